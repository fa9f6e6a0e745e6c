"""The gate of a call: whether a person is needed, decided once and stored; and the approval that lets it through.

An approval is bound to the call as it was shown: arguments, contract, run, step and the values of its facts. What has
changed since voids it, and it is asked again, with old and new side by side.
"""

from collections.abc import Mapping

from runs import approvals, facts, steps
from runs.agents import Agent, Effect, Json, Tool, find_tool, judge_policy
from runs.approvals import Replaced
from runs.engine import doubt
from runs.facts import Judged
from runs.models import Approval, Fact, Key, Run, Step, WorkItem
from runs.states import KEY_OPEN, ApprovalKind, ApprovalState, KeyState, StepKind, StepState, WaitingFor

# What a person is told of the work so far, before the first call that cannot be undone.
_FACTS_TOLD = 20
_STEPS_TOLD = 10


class NotNow:
    """The gate is shut for now."""


def pass_gate(
    run: Run, step: Step, agent: Agent, tool: Tool, key: Key | None, judged: Mapping[str, Judged]
) -> Approval | NotNow | None:
    """The approval that allows the call, or None where none is needed. Asked once, stored, never recomputed."""
    if step.gated is None:
        steps.set_gate(step, _why_gated(run, step, agent, tool))
    elif not step.gated and key is None and (doubtful := _why_doubtful(run, step, tool)):
        # It passed before another call of this tool came in doubt, and has not been taken yet.
        steps.set_gate(step, doubtful)
    if not step.gated:
        return None
    approval = approvals.in_effect(step)
    if approval is not None:
        if changed := _what_changed(run, step, tool, approval, judged):
            if key is not None and steps.judge_past(key=key.pk).may_have_acted:
                # The call may have happened on the old approval: that is settled first.
                doubt.put_in_doubt(run, step, key)
                return NotNow()
            doubt.give_back_approval(run, step)
            approval.refresh_from_db()
            approvals.void(approval, why=changed)
        elif approval.state == ApprovalState.APPROVED or key is not None:
            return approval
        else:
            approvals.give_back(approval)
            return approval
    _ask(run, step, agent, tool, judged)
    return NotNow()


def _why_gated(run: Run, step: Step, agent: Agent, tool: Tool) -> str | None:
    if reason := _why_doubtful(run, step, tool):
        return reason
    if step.again and tool.acts:
        return f"it is a deliberate second time: {step.again}"
    if reason := tool.gate(step.arguments):
        return reason
    policy = agent.gate
    if policy is not None and (reason := judge_policy(lambda: policy(tool.name, dict(step.arguments)))):
        return reason
    if agent.ask_first_use and tool.acts and not _was_used(agent, tool):
        return f"{agent.name} has never used {tool.name}"
    return None


def _why_doubtful(run: Run, step: Step, tool: Tool) -> str | None:
    """Another call of this tool is in doubt; or it is about to be, since nobody but a person can settle it."""
    for key in (
        Key.objects.filter(run=run, tool=tool.name, state__in=KEY_OPEN).select_related("step").exclude(step=step)
    ):
        if key.state == KeyState.IN_DOUBT or (
            tool.effect is Effect.ONCE and steps.judge_past(key=key.pk).may_have_acted
        ):
            return f"step {key.step.number} of this tool is in doubt"
    return None


def _was_used(agent: Agent, tool: Tool) -> bool:
    return Key.objects.filter(run__agent=agent.name, tool=tool.name, state=KeyState.DONE).exists()


def _what_changed(run: Run, step: Step, tool: Tool, approval: Approval, judged: Mapping[str, Judged]) -> str:
    """Why an approval does not allow this call any more; empty when it does."""
    if approval.contract != tool.contract:
        return "the tool changed"
    if approval.digest != approvals.bind(run=run, step=step, contract=tool.contract, arguments=step.arguments):
        return "the arguments changed"
    for shown in approval.facts:
        now = judged.get(shown["name"])
        if now is None or now.digest != shown["digest"]:
            return f"{shown['name']} changed"
    if set(judged) - {shown["name"] for shown in approval.facts}:
        return "it rests on other facts now"
    return ""


def _ask(run: Run, step: Step, agent: Agent, tool: Tool, judged: Mapping[str, Judged]) -> None:
    pending = Approval.objects.filter(step=step, kind=ApprovalKind.APPROVAL, state=ApprovalState.PENDING).exists()
    if not pending:
        shown = facts.shown(judged.values())
        card = approvals.ask(
            run,
            ApprovalKind.APPROVAL,
            title=_title(step, tool),
            why=step.gate_reason,
            step=step,
            because=step.because,
            contract=tool.contract,
            arguments=dict(step.arguments),
            facts=shown,
            evidence=_sum_up(run, agent) if tool.irreversible and _is_first(run) else None,
            valid_for_s=tool.valid_for,
            on_expiry=tool.on_expiry,
            needed=tool.people,
            groups=agent.approvers,
            escalate_to=tool.escalate_to,
            replaces=_find_replaced(run, step, tool, shown),
        )
        facts.note_use(judged.values(), approval=card.pk)
    steps.wait(step, WaitingFor.APPROVAL, note=f"needs an approval: {step.gate_reason}", on="an approver")


def _title(step: Step, tool: Tool) -> str:
    named = tool.identity_of(step.arguments)
    return f"{tool.name} " + ", ".join(f"{name} {value}" for name, value in named.items())


def _find_replaced(run: Run, step: Step, tool: Tool, shown: list[dict[str, Json]]) -> Replaced | None:
    """The newest void card of this step, or of an earlier step with the same intent, and what is different now."""
    intent = tool.identity_of(step.arguments)
    void = Approval.objects.filter(
        run=run, kind=ApprovalKind.APPROVAL, tool=tool.name, state=ApprovalState.VOID, replaced_by__isnull=True
    )
    for old in void.order_by("-pk")[:20]:
        if old.step_id == step.pk or tool.identity_of(old.arguments or {}) == intent:
            return Replaced(approval=old.pk, changes=_compare(old, step, tool, shown))
    return None


def _compare(old: Approval, step: Step, tool: Tool, shown: list[dict[str, Json]]) -> list[Json]:
    before, after = dict(old.arguments or {}), dict(step.arguments)
    changes: list[Json] = [
        {"what": "argument", "name": name, "old": before.get(name), "new": after.get(name)}
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    known = {str(fact["name"]): fact for fact in old.facts}
    now = {str(fact["name"]): fact for fact in shown}
    changes += [
        {"what": "fact", "name": name, "old": _value(known.get(name)), "new": _value(now.get(name))}
        for name in sorted({*known, *now})
        if (known.get(name) or {}).get("digest") != (now.get(name) or {}).get("digest")
    ]
    if old.contract != tool.contract:
        changes.append({"what": "tool", "name": tool.name, "old": old.contract[:16], "new": tool.contract[:16]})
    return changes


def _value(fact: Mapping[str, Json] | None) -> Json:
    return None if fact is None else fact.get("value")


def _is_first(run: Run) -> bool:
    """Whether nobody has been asked in this run about a call that cannot be undone."""
    asked = Approval.objects.filter(run=run, kind=ApprovalKind.APPROVAL).values_list("tool", flat=True).distinct()
    tools = [find_tool(run.agent, name) for name in asked]
    return not any(tool is not None and tool.irreversible for tool in tools)


def _sum_up(run: Run, agent: Agent) -> Json:
    """What the run has established so far."""
    done = Step.objects.filter(run=run, state=StepState.DONE, kind__in=[StepKind.ACT, StepKind.CHECK])
    acted = [t.name for t in agent.tools if t.acts]
    established: dict[str, Json] = {
        "steps_done": done.count(),
        "facts": {
            fact.name: fact.value
            for fact in Fact.objects.filter(run=run).order_by("-pk").only("name", "value")[:_FACTS_TOLD]
        },
        "done_so_far": [
            f"step {step.number}: {step.tool} " + ", ".join(f"{k} {v}" for k, v in step.arguments.items())
            for step in done.filter(tool__in=acted)
            .order_by("-number")
            .only("number", "tool", "arguments")[:_STEPS_TOLD]
        ],
        "work": [
            f"{item.title}: {item.state}" for item in WorkItem.objects.filter(run=run).order_by("pk")[:_FACTS_TOLD]
        ],
    }
    return {"established": {name: value for name, value in established.items() if value}}

"""Writer of idempotency keys: one per intended effect, found by its intent, closed by what is known."""

from dataclasses import dataclass
from typing import get_args

from django.db.models import Q

from runs import locks, sql, steps
from runs.agents import Json, Tool, digest
from runs.errors import WrongState
from runs.journal import RUNTIME, Actor, append, require_transaction
from runs.models import Key, KeyAlias, Run, Step
from runs.states import KEY_MOVES, KEY_OPEN, KeyState


@dataclass(frozen=True, kw_only=True)
class Same:
    """What an earlier call of the same intent left: its newest key, and whether values (not wording) differ."""

    key: Key
    other_values: list[str]


def intent_of(tool: Tool, asked: dict[str, Json]) -> str:
    """SHA-256 (hex) of the tool and its identity arguments as asked; never of `because`, `rests_on` or an edit."""
    return digest({"tool": tool.name, "identity": tool.identity_of(asked)})


def find(run: Run, tool: Tool, asked: dict[str, Json]) -> Same | None:
    """The key of this intent in the run's namespace, by its own identity or an alias; what is open or done comes first."""
    intent = intent_of(tool, asked)
    # Asked for by themselves: with them inside, all keys that ever were would be gone through.
    aliases = KeyAlias.objects.filter(namespace=run.origin, intent=intent).values_list("key", flat=True)
    same = Q(namespace=run.origin, intent=intent) | Q(pk__in=list(aliases))
    found = list(Key.objects.filter(same, tool=tool.name).select_related("step"))
    if not found:
        return None
    key = max(found, key=lambda k: (_WEIGHT[KeyState(k.state)], k.occurrence, k.generation, k.pk))
    # An edited call is the same as what was asked, and as what it became.
    others = (_other_values(tool, first, asked) for first in (key.step.asked, key.arguments))
    return Same(key=key, other_values=min(others, key=len))


def take(run: Run, step: Step, tool: Tool, *, approval: int | None) -> Key:
    """Take the key of a step within its take: a new one, a new generation after certain failures, or the step's own.

    Raises: WrongState when another step's live key has this intent (the unique index holds it for two at once).
    """
    require_transaction()
    intent = intent_of(tool, step.asked)
    last = (
        Key.objects.select_for_update(of=("self",), no_key=True)
        .filter(namespace=run.origin, tool=tool.name, intent=intent)
        .order_by("-occurrence", "-generation")
        .first()
    )
    occurrence, generation = 1, 1
    if last is not None:
        occurrence = last.occurrence
        if last.state in KEY_OPEN and (last.step_id != step.pk or last.state != KeyState.TAKEN):
            raise WrongState(f"Key {last.pk}", last.state, "taken by another step")
        if last.state == KeyState.DONE and not step.again:
            raise WrongState(f"Key {last.pk}", last.state, "taken again")
        if last.state == KeyState.TAKEN:
            if last.arguments == step.arguments or steps.judge_past(key=last.pk).may_have_acted:
                return _keep(last, run, step, tool, approval)
            # Edited after tries that certainly did nothing: a receiver may know this key by the other arguments.
            close(last, KeyState.FAILED, how="settled")
        if last.state == KeyState.DONE:
            occurrence += 1
        else:
            generation = last.generation + 1
    row = sql.fetch_one(
        "INSERT INTO runs_key (namespace, tool, identity, intent, occurrence, generation, state, run_id, step_id,"
        " approval_id, arguments, closed_how, replays, taken_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, 'taken', %s, %s, %s, %s, '', 0, lw_clock()) ON CONFLICT DO NOTHING RETURNING id",
        [
            run.origin,
            tool.name,
            sql.jsonb(tool.identity_of(step.asked)),
            intent,
            occurrence,
            generation,
            run.pk,
            step.pk,
            approval,
            sql.jsonb(step.arguments),
        ],
    )
    if row is None:  # a run that shares this namespace was first
        raise WrongState(f"The key of {tool.name}", KeyState.TAKEN, "taken by another step")
    _add_alias(row[0], run, step, tool)
    append("key.taken", run=run.pk, step=step.pk, after={"occurrence": occurrence, "generation": generation})
    return Key.objects.get(pk=row[0])


def open_key_of(step: Step) -> Key | None:
    """The live key of a step, locked, if it has one."""
    require_transaction()
    return Key.objects.select_for_update(of=("self",), no_key=True).filter(step=step, state__in=KEY_OPEN).first()


def lock(key: int) -> Key:
    require_transaction()
    return Key.objects.select_for_update(of=("self",), no_key=True).get(pk=key)


def close(
    key: Key,
    state: KeyState,
    *,
    how: str,
    result: Json = None,
    artifact: int | None = None,
    actor: Actor = RUNTIME,
    evidence: Json = None,
) -> list[str]:
    """Close a locked key, or put it in doubt. Returns what became free: its locks, and itself (`waited_on`)."""
    require_transaction()
    if state not in KEY_MOVES[KeyState(key.state)]:
        raise WrongState(f"Key {key.pk}", key.state, state)
    closing = state not in KEY_OPEN
    if (
        sql.execute(
            "UPDATE runs_key SET state = %s, closed_how = %s, result = %s, artifact_id = %s,"
            " evidence = coalesce(%s, evidence), closed_at = CASE WHEN %s THEN lw_clock() END WHERE id = %s AND state = %s",
            [
                state,
                how if closing else "",
                sql.jsonb(result),
                artifact,
                sql.jsonb(evidence),
                closing,
                key.pk,
                key.state,
            ],
        )
        == 0
    ):
        raise WrongState(f"Key {key.pk}", "changed by another", state)
    append(f"key.{state}", actor=actor, run=key.run_id, step=key.step_id, after={"how": how})
    key.state, key.result = state, result
    return [*locks.release(key.pk), waited_on(key)] if closing else []


def waited_on(key: Key) -> str:
    """What a step waits on while this key is open: another call of the same intent, or the look-up of its own."""
    return f"key.{key.pk}"


def count_replay(key: Key) -> None:
    sql.execute("UPDATE runs_key SET replays = replays + 1 WHERE id = %s", [key.pk])


def note_evidence(key: Key, evidence: Json) -> None:
    sql.execute("UPDATE runs_key SET evidence = %s WHERE id = %s", [sql.jsonb(evidence), key.pk])


def _keep(key: Key, run: Run, step: Step, tool: Tool, approval: int | None) -> Key:
    """The step's own key, for a redo."""
    sql.execute(
        "UPDATE runs_key SET approval_id = coalesce(%s, approval_id), arguments = %s WHERE id = %s",
        [approval, sql.jsonb(step.arguments), key.pk],
    )
    _add_alias(key.pk, run, step, tool)
    key.refresh_from_db()
    return key


def _add_alias(key: int, run: Run, step: Step, tool: Tool) -> None:
    """An edited call is also found by what it became."""
    alias = intent_of(tool, step.arguments)
    if alias != intent_of(tool, step.asked):
        sql.execute(
            "INSERT INTO runs_keyalias (key_id, namespace, intent)"
            " SELECT %(key)s::bigint, %(namespace)s::uuid, %(intent)s::text"
            " WHERE NOT EXISTS (SELECT FROM runs_keyalias WHERE key_id = %(key)s AND intent = %(intent)s)",
            {"key": key, "namespace": run.origin, "intent": alias},
        )


# What was or may have been done counts before what certainly was not.
_WEIGHT = {KeyState.FAILED: 0, KeyState.DONE: 1, KeyState.TAKEN: 2, KeyState.IN_DOUBT: 2}


def _other_values(tool: Tool, first: dict[str, Json], now: dict[str, Json]) -> list[str]:
    """Arguments whose value differs. Free text is wording: rewording a memo is still the same call."""
    return [
        name
        for name in sorted(set(first) | set(now))
        if first.get(name) != now.get(name) and not _is_wording(tool, name)
    ]


def _is_wording(tool: Tool, name: str) -> bool:
    """Whether an argument is free text. An amount, a date and a choice are values, also where JSON writes them as text."""
    field = tool.arguments.model_fields.get(name)
    return field is not None and set(get_args(field.annotation) or [field.annotation]) <= {str, type(None)}

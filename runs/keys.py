"""Writer of idempotency keys: one per intended effect, found by its intent, closed by what is known."""

from dataclasses import dataclass

from runs import locks, sql
from runs.agents import Json, Tool, digest
from runs.errors import WrongState
from runs.journal import RUNTIME, Actor, append, require_transaction
from runs.models import Key, Run, Step
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
    """The newest key of this intent in the run's namespace, by its own identity or an alias."""
    intent = intent_of(tool, asked)
    key = (
        Key.objects.filter(namespace=run.origin, intent=intent).order_by("-occurrence", "-generation").first()
        or Key.objects.filter(aliases__namespace=run.origin, aliases__intent=intent, tool=tool.name)
        .order_by("-occurrence", "-generation")
        .first()
    )
    if key is None:
        return None
    return Same(key=key, other_values=_other_values(key.step.asked, asked))


def take(run: Run, step: Step, tool: Tool, *, approval: int | None) -> Key:
    """Take the key of a step within its take: a new one, a new generation after certain failures, or the step's own.

    Raises: WrongState when another step's live key has this intent (the unique index holds it for two at once).
    """
    require_transaction()
    intent = intent_of(tool, step.asked)
    last = (
        Key.objects.select_for_update()
        .filter(namespace=run.origin, intent=intent)
        .order_by("-occurrence", "-generation")
        .first()
    )
    occurrence, generation = 1, 1
    if last is not None:
        occurrence = last.occurrence
        if last.state in KEY_OPEN:
            if last.step_id != step.pk or last.state != KeyState.TAKEN:
                raise WrongState(f"Key {last.pk}", last.state, "taken by another step")
            _hold(last, approval, step)
            return last
        if last.state == KeyState.DONE:
            if not step.again:
                raise WrongState(f"Key {last.pk}", last.state, "taken again")
            occurrence += 1
        else:
            generation = last.generation + 1
    (ident,) = sql.fetch_row(
        "INSERT INTO runs_key (namespace, tool, identity, intent, occurrence, generation, state, run_id, step_id,"
        " approval_id, arguments, closed_how, replays, taken_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, 'taken', %s, %s, %s, %s, '', 0, lw_clock()) RETURNING id",
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
    if step.arguments != step.asked:
        # An edited call is also found by what it became.
        sql.execute(
            "INSERT INTO runs_keyalias (key_id, namespace, intent) VALUES (%s, %s, %s)",
            [ident, run.origin, intent_of(tool, step.arguments)],
        )
    append("key.taken", run=run.pk, step=step.pk, after={"occurrence": occurrence, "generation": generation})
    return Key.objects.get(pk=ident)


def open_key_of(step: Step) -> Key | None:
    """The live key of a step, locked, if it has one."""
    require_transaction()
    return Key.objects.select_for_update(of=("self",)).filter(step=step, state__in=KEY_OPEN).first()


def lock(key: int) -> Key:
    require_transaction()
    return Key.objects.select_for_update(of=("self",)).get(pk=key)


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


def _hold(key: Key, approval: int | None, step: Step) -> None:
    sql.execute(
        "UPDATE runs_key SET approval_id = coalesce(%s, approval_id), arguments = %s WHERE id = %s",
        [approval, sql.jsonb(step.arguments), key.pk],
    )


def _other_values(first: dict[str, Json], now: dict[str, Json]) -> list[str]:
    """Arguments whose value differs. Free text is wording: rewording a memo is still the same call."""
    names = sorted(set(first) | set(now))
    return [
        n
        for n in names
        if first.get(n) != now.get(n) and not (isinstance(first.get(n), str) and isinstance(now.get(n), str))
    ]

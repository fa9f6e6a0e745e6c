"""The tool process: runs the agents' own code, so that a leak, a crash, a hang or a fork of it ends here.

It leads a process group, dies with its worker (PDEATHSIG) and by a kernel timer at its deadline. Just before the
agent's function runs it looks once more: at the database, and at `begin_by` on the boot-time clock.
"""

import json
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from django.db import DatabaseError, connection, transaction

from runs import clock, processes, steps, vault
from runs.agents import (
    Artifact,
    Briefing,
    Claim,
    CredentialExpired,
    DidNotHappen,
    Effect,
    Happened,
    Json,
    Refused,
    Unsure,
    Verdict,
    Wait,
    get_agent,
)
from runs.engine import failpoints, renewing
from runs.engine.deadline import Deadline
from runs.engine.keeping import keep
from runs.engine.printed import join_log
from runs.engine.toolwire import Function, Perform, Report, Said
from runs.sanitise import clean_text
from runs.states import ProcessKind

_LOOK_EVERY_S = 0.2
_REASON_CHARS = 2000


def serve(fd: int, *, parent: uuid.UUID) -> None:
    """Perform what the worker at the other end of `fd` sends, one after another, until it hangs up."""
    pipe, printed = Connection(fd), join_log()
    deadline = Deadline()
    ident = processes.register(ProcessKind.TOOL, parent=parent)
    pipe.send_bytes(json.dumps({"hello": str(ident)}).encode())
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        for perform in Perform.load(message):
            began = time.monotonic()
            made = _perform(perform, pipe, deadline, ident)
            report = replace(
                made,
                attempt=perform.attempt,
                result=vault.redact(made.result),
                error=vault.redact(made.error),
                body=vault.redact(made.body),
                took_s=time.monotonic() - began,
                printed=printed(),
            )
            failpoints.reach("reported", run=perform.run, tool=perform.tool)
            pipe.send_bytes(report.dump())


class ToolCall:
    """What a tool is given; see `runs.agents.Call`."""

    def __init__(self, perform: Perform, pipe: Connection, until: float) -> None:
        self._perform, self._pipe, self._until = perform, pipe, until
        self._looked_at, self._stop = 0.0, False
        self._key = perform.key or uuid.uuid4().hex
        self.signed_in: dict[str, str] = {}  # what each credential was when it was used

    @property
    def key(self) -> str:
        return self._key

    @property
    def run(self) -> int:
        return self._perform.run

    @property
    def step(self) -> int:
        return self._perform.step

    @property
    def timeout(self) -> float:
        return max(self._until - clock.boottime(), 0.0)

    def secret(self, name: str = "") -> str:
        agent = get_agent(self._perform.agent)
        tool = agent.tool_or_checker(self._perform.tool)
        name = name or (tool.credential if tool else "")
        try:
            found = vault.read(name)
        except vault.NoSecret as missing:
            raise CredentialExpired(missing.message) from None
        self.signed_in[name] = found.value
        if found.expires_at is not None and found.expires_at <= clock.now():
            raise CredentialExpired(f"{name} expired at {found.expires_at:%Y-%m-%d %H:%M:%S %Z}")
        return found.value

    def stop_requested(self) -> bool:
        if not self._stop and time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._stop = not steps.may_go_on(self._perform.attempt)
        return self._stop

    def keep(self, value: object) -> Json:
        return keep(value, whose=f"{self._perform.tool or self._perform.function} of {self._perform.agent}")

    def heartbeat(self, progress: Json = None) -> None:
        self._pipe.send_bytes(
            Report(attempt=self._perform.attempt, said=Said.PROGRESS, result=vault.redact(self.keep(progress))).dump()
        )


def _perform(perform: Perform, pipe: Connection, deadline: Deadline, ident: uuid.UUID) -> Report:
    if clock.boottime() >= perform.begin_by:
        return Report(said=Said.NOT_BEGUN, error="it arrived too late")
    if perform.look:
        # Frozen from here on until after begin_by, this process is killed before it wakes.
        deadline.arm(perform.begin_by)
    try:
        failpoints.reach("received", run=perform.run, tool=perform.tool)
        if perform.look and not _last_look(perform.attempt, ident):
            return Report(said=Said.NOT_BEGUN, error="the last look forbade it")
        failpoints.reach("looked", run=perform.run, tool=perform.tool)
        if (now := clock.boottime()) >= perform.begin_by:
            return Report(said=Said.NOT_BEGUN, error="it was too late after the last look")
        until = now + perform.timeout_s
        deadline.arm(until)
        if perform.look:
            pipe.send_bytes(Report(attempt=perform.attempt, said=Said.BEGUN).dump())
        report = _run(perform, ToolCall(perform, pipe, until))
        failpoints.reach("performed", run=perform.run, tool=perform.tool)
        return report
    finally:
        deadline.disarm()
        # Asks the server only after an error of this connection.
        connection.close_if_unusable_or_obsolete()


def _last_look(attempt: int, performer: uuid.UUID) -> bool:
    """Pass the last look, or not. An answer that does not come is a no: nothing is sent then."""
    try:
        with transaction.atomic(durable=True):
            return steps.begin(attempt, performer=performer)
    except DatabaseError:
        connection.close()
        return False


def _run(perform: Perform, call: ToolCall) -> Report:
    harmless = True
    try:
        function, harmless = _find(perform, call)
        value = function()
    except Refused as refusal:
        return Report(said=Said.REFUSED, error=_words(refusal))
    except CredentialExpired as expired:
        return _renew(perform, call, expired)
    except BaseException as error:  # whatever the agent's code throws, SystemExit included, ends here
        said = Said.FAILED if harmless else Said.UNKNOWN
        return Report(said=said, error=_words(error) + _where(error))
    return _report(value, call)


def _renew(perform: Perform, call: ToolCall, expired: CredentialExpired) -> Report:
    """Refresh what was not accepted. The call itself is taken anew by its worker: what allowed it may have run out."""
    agent = get_agent(perform.agent)
    tool = agent.tool_or_checker(perform.tool)
    name = next(reversed(call.signed_in), tool.credential if tool else "") or perform.tool
    why = "nothing can refresh it"
    if name in call.signed_in and not call.stop_requested():
        why = renewing.renew(agent, name, call.signed_in[name], within_s=max(call.timeout - 1.0, 0.0))
    told: dict[str, Json] = {"credential": name, "renewed": not why}
    return Report(said=Said.CREDENTIAL, error=_words(expired) + (f"; {why}" if why else ""), result=told)


def _find(perform: Perform, call: ToolCall) -> tuple[Callable[[], Any], bool]:
    """The function with its arguments bound, and whether a failure of it is certain to have changed nothing."""
    agent = get_agent(perform.agent)
    if perform.function is Function.VERIFY:
        assert agent.verify is not None
        verify, claim = agent.verify, Claim(**_fields(perform.arguments))
        return lambda: verify(claim), True
    if perform.function is Function.DECIDE:
        assert agent.decide is not None
        decide, briefing = agent.decide, Briefing(**_fields(perform.arguments))
        return lambda: decide(briefing), True
    tool = agent.tool_or_checker(perform.tool)
    if tool is None:
        raise Refused(f"agent {agent.name} has no tool {perform.tool}")
    if perform.function is Function.CALL and tool.acts and not perform.look:
        raise Refused(f"{tool.name} has an effect, and came without its last look")
    typed = tool.typed(perform.arguments)
    if perform.function is Function.RECONCILE:
        reconcile = tool.reconciler
        assert reconcile is not None
        return lambda: reconcile(call, **typed), True
    return lambda: tool.function(call, **typed), tool.effect is Effect.READ


def _report(value: object, call: ToolCall) -> Report:
    match value:
        case Artifact():
            return Report(
                said=Said.DONE, result=clean_text(value.preview), body=value.body, media_type=value.media_type
            )
        case Wait():
            error = "it returned a Wait, and nothing can wait for that here"
            return Report(said=Said.WAITS, result=_write_wait(value, call), error=error)
        case Happened(result=Wait() as wait):
            return Report(said=Said.DONE, result={"found": "happened", "wait": _write_wait(wait, call)})
        case Happened():
            return Report(said=Said.DONE, result={"found": "happened", "result": call.keep(value.result)})
        case DidNotHappen():
            return Report(said=Said.DONE, result={"found": "did_not_happen", "evidence": call.keep(value.evidence)})
        case Unsure():
            return Report(said=Said.DONE, result={"found": "unsure", "evidence": call.keep(value.evidence)})
        case Verdict():
            verdict: Json = {
                "holds": value.holds,
                "reason": clean_text(value.reason),
                "evidence": call.keep(value.evidence),
            }
            return Report(said=Said.DONE, result=verdict)
    if (
        isinstance(value, list)
        and value
        and all(hasattr(item, "tool") and hasattr(item, "arguments") for item in value)
    ):
        return Report(said=Said.DONE, result=call.keep([vars(item) for item in value]))
    return Report(said=Said.DONE, result=call.keep(value))


def _write_wait(wait: Wait, call: ToolCall) -> Json:
    return {
        "event": clean_text(str(wait.event)),
        "key": clean_text(str(wait.key) or call.key) if wait.event else "",
        "until": wait.until.isoformat() if wait.until else None,
        "reason": clean_text(str(wait.reason))[:_REASON_CHARS],
    }


def _fields(arguments: dict[str, Json]) -> dict[str, Any]:
    return dict(arguments)


def _words(error: BaseException) -> str:
    return clean_text(f"{type(error).__name__}: {error}"[:2000])


def _where(error: BaseException) -> str:
    """The last place in the agent's code, so that its author finds it."""
    frames = traceback.extract_tb(error.__traceback__)
    return clean_text(f" (at {frames[-1].name}, line {frames[-1].lineno})") if frames else ""

"""A credential that was refused: refreshed once, by one process at a time; and the card that lists who waits for it."""

import time
from collections.abc import Callable

from django.db import transaction

from runs import approvals, credentials, sql, steps, vault
from runs.agents import Agent, Secret
from runs.engine.toolwire import Report
from runs.models import Approval, Attempt, Run, Step
from runs.states import ApprovalKind, ApprovalState, AttemptOutcome, WaitingFor

_LOCK = 0x4C57_0004


def renew(agent: Agent, name: str, refused: str, *, within_s: float) -> str:
    """Make sure that another secret than the refused one is there; "" when it is, else why not.

    One at a time: of two that were refused at once, the second finds what the first has made. A refresh talks to a
    provider, so the lock is the session's, not a transaction's.
    """
    until = time.monotonic() + within_s
    while not sql.fetch_row("SELECT pg_try_advisory_lock(%s, hashtext(%s))", [_LOCK, name])[0]:
        if time.monotonic() >= until:
            return "another call is refreshing it"
        time.sleep(0.05)
    try:
        known = vault.read(name)
        if known.value != refused:
            return ""
        refresh = agent.refresh.get(name)
        return "nothing can refresh it" if refresh is None else _refresh(refresh, known)
    finally:
        sql.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", [_LOCK, name])


def _refresh(refresh: Callable[[Secret], Secret], known: Secret) -> str:
    try:
        fresh = refresh(known)
    except Exception as error:  # whatever the agent's code throws
        return f"refreshing it failed: {type(error).__name__}: {error}"[:500]
    if not vault.keep(fresh):
        return "the refreshed one cannot be kept where it came from; mount a folder that can be written"
    with transaction.atomic(durable=True):
        credentials.note_renewed(known.name, expires_at=fresh.expires_at)
    return ""


def go_on(run: Run, step: Step, report: Report) -> None:
    """What comes next for a locked step whose credential was refused: once more with a new one, else it waits for it."""
    told = report.result if isinstance(report.result, dict) else {}
    name = str(told.get("credential") or step.tool)
    tries = Attempt.objects.filter(step=step).order_by("-number").values_list("outcome", flat=True)[:2]
    if told.get("renewed") and list(tries) != [AttemptOutcome.REFUSED] * 2:
        steps.wake(step, why=f"{name} was refused and is renewed: it is taken once more")
    else:
        wait_for_credential(run, step, name, why=f"{name} is not accepted: {report.error}")


def wait_for_credential(run: Run, step: Step, name: str, *, why: str) -> None:
    """Let a locked step wait until a credential is renewed."""
    ask_for_credential(run, step, name, why=why)
    steps.wait(step, WaitingFor.CREDENTIAL, note=why, on=name)


def ask_for_credential(run: Run, step: Step, name: str, *, why: str) -> None:
    """Ask a person for it: one card, whoever else waits for it."""
    credentials.note_refused(name, why)
    asked = Approval.objects.filter(
        kind=ApprovalKind.CREDENTIAL, state=ApprovalState.PENDING, evidence__credential=name
    ).exists()
    if not asked:
        title = f"Renew the credential {name}"
        approvals.ask(run, ApprovalKind.CREDENTIAL, title=title, why=why, step=step, evidence={"credential": name})

"""A person says that there is a new credential: whoever waits for it tries again with what stands there now."""

from datetime import datetime

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import access, credentials
from runs.access import Action
from runs.agents import Json, get_agents
from runs.approvals import Said
from runs.errors import NotFound
from runs.journal import person
from runs.models import Approval, Step
from runs.operations.decisions import decide
from runs.operations.verdicts import read_expiry
from runs.operations.wakes import wake_waiters
from runs.queries.paging import EVERY_AGENT
from runs.states import ApprovalKind, ApprovalState, StepState, Verdict, WaitingFor


def renew_credential(name: str, *, expires_at: datetime | None = None, comment: str = "", by: AbstractBaseUser) -> None:
    """Where a card asks for it, this decides that card. The secret itself never comes here.

    Raises: NotFound, Forbidden, Malformed, AlreadyDecided.
    """
    concerned = _visible_users(name, by)
    if not concerned:
        raise NotFound("credential", name)
    if not any(access.may(by, Action.DECIDE, agent) for agent in concerned):
        access.require(by, Action.DECIDE, concerned[0])
    result: Json = None if expires_at is None else {"expires_at": expires_at.isoformat()}
    card = Approval.objects.filter(
        kind=ApprovalKind.CREDENTIAL, state=ApprovalState.PENDING, evidence__credential=name
    ).first()
    if card is not None:
        decide(card.pk, Said(verdict=Verdict.RENEWED, result=result, comment=comment), by=by)
        return
    with transaction.atomic(durable=True):
        credentials.note_renewed(name, expires_at=read_expiry(result), actor=person(by), why=comment)
    wake_waiters(WaitingFor.CREDENTIAL, name, why=f"{name} was renewed")


def _visible_users(name: str, by: AbstractBaseUser) -> list[str]:
    """The agents that sign in with it, or wait for it, of those that a person sees."""
    users = {agent.name for agent in get_agents().values() if name in agent.users_of_credentials()}
    waiting = Step.objects.filter(state=StepState.WAITING, waiting_for=WaitingFor.CREDENTIAL, waiting_on=name)
    users |= set(waiting.values_list("run__agent", flat=True).distinct())
    seen = access.visible_agents(by)
    return sorted(users if EVERY_AGENT in seen else users & seen)

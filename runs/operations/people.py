"""Tokens, sign-in links, and who may see which agent."""

from django.contrib.auth.models import AbstractBaseUser, Group, User
from django.db import transaction

from runs import access
from runs.access import Action, Role
from runs.journal import Actor, person
from runs.models import AgentGrant


def create_token(name: str, role: Role, *, by: Actor) -> str:
    """Make an API token; it is returned once."""
    with transaction.atomic(durable=True):
        return access.create_token(name, role, actor=by)


def revoke_token(token: int, *, by: AbstractBaseUser) -> None:
    """End an API token for good. Raises: Forbidden, WrongState."""
    access.require(by, Action.ACCESS)
    with transaction.atomic(durable=True):
        access.revoke_token(token, actor=person(by))


def set_grant(group: Group, agent: str, *, by: AbstractBaseUser, replaces: AgentGrant | None = None) -> AgentGrant:
    """Let a group see an agent. Raises: Forbidden."""
    access.require(by, Action.ACCESS)
    with transaction.atomic(durable=True):
        return access.set_grant(group, agent, actor=person(by), replaces=replaces)


def end_grant(grant: AgentGrant, *, by: AbstractBaseUser) -> None:
    """Raises: Forbidden."""
    access.require(by, Action.ACCESS)
    with transaction.atomic(durable=True):
        access.end_grant(grant, actor=person(by))


def spend_sign_in_token(token: str) -> User | None:
    """Sign in by a link, which works once; None when it does not."""
    with transaction.atomic(durable=True):
        return access.spend_sign_in_token(token)

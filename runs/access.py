"""Who may see and do what: role groups, agents by group, tokens.

One table answers "show the button?" and "accept the POST?".
"""

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, Group, Permission, User
from django.core import signing
from django.db.models import QuerySet

from runs import sql
from runs.agents import Agent, get_agents
from runs.clock import real_now
from runs.errors import Conflict, Forbidden, Malformed, NotFound, UnknownAgent, WrongState
from runs.journal import Actor, append, require_transaction
from runs.models import AgentGrant, ApiToken, Approval, Fact, Run
from runs.queries.paging import EVERY_AGENT, in_range, sees, within
from runs.sanitise import clean_text


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"
    SERVICE = "service"


class Action(StrEnum):
    VIEW = "view"
    START = "start"
    STOP = "stop"  # also pause, resume and amend
    DECIDE = "decide"
    BUDGET = "budget"
    MONEY = "change money"  # prices, allowances over many runs, rates of calls
    SWITCH = "switch"
    RECHECK = "recheck"
    EVENT = "event"
    DELETE = "delete"  # what is kept for nobody any more
    ACCESS = "change access"  # tokens, and which group sees which agent


_PHRASES: dict[Action, str] = {
    Action.VIEW: "look at this",
    Action.START: "start a run here",
    Action.STOP: "stop, pause, resume or amend a run here",
    Action.DECIDE: "decide here",
    Action.BUDGET: "change a budget here",
    Action.MONEY: "change prices, allowances or rates",
    Action.SWITCH: "use a switch here",
    Action.RECHECK: "have a fact checked again here",
    Action.EVENT: "deliver an event here",
    Action.DELETE: "delete what is kept",
    Action.ACCESS: "change access here",
}

MAY: dict[Role, frozenset[Action]] = {
    Role.VIEWER: frozenset({Action.VIEW}),
    Role.OPERATOR: frozenset(
        {Action.VIEW, Action.START, Action.STOP, Action.BUDGET, Action.SWITCH, Action.RECHECK, Action.EVENT}
    ),
    Role.APPROVER: frozenset({Action.VIEW, Action.DECIDE, Action.RECHECK}),
    Role.ADMIN: frozenset(Action),
    Role.SERVICE: frozenset({Action.VIEW, Action.START, Action.EVENT}),
}

_SIGN_IN_SALT = "longwatch.sign-in"
SIGN_IN_LINK_S = 15 * 60
MAX_TOKEN_NAME = 100


def make_roles() -> None:
    """Create the role groups; each sees every agent until an admin narrows that."""
    for role in Role:
        group, created = Group.objects.get_or_create(name=role)
        if created:
            AgentGrant.objects.create(group=group, agent=EVERY_AGENT)
    budgets = Permission.objects.filter(codename__in=["view_budget", "change_budget"], content_type__app_label="runs")
    views = Permission.objects.filter(codename__startswith="view_", content_type__app_label="runs")
    Group.objects.get(name=Role.ADMIN).permissions.add(*views, *budgets)
    Group.objects.get(name=Role.OPERATOR).permissions.add(*views, *budgets)


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What a person may see and do, read once: for a page that asks often. `agents`: `*` stands for all."""

    agents: frozenset[str]
    actions: frozenset[Action]

    def may(self, action: Action, agent: str | None = None) -> bool:
        if action not in self.actions:
            return False
        return bool(self.agents) if agent is None else self.sees(agent)

    def sees(self, agent: str) -> bool:
        return sees(self.agents, agent)


def read_rights(user: AbstractBaseUser) -> Rights:
    if not user.is_active or not isinstance(user, User):
        return Rights(agents=frozenset(), actions=frozenset())
    if user.is_superuser:
        return Rights(agents=frozenset({EVERY_AGENT}), actions=frozenset(Action))
    actions = frozenset(_actions(user))
    return Rights(agents=frozenset(_granted_agents(user) if Action.VIEW in actions else ()), actions=actions)


def may(user: AbstractBaseUser, action: Action, agent: str | None = None) -> bool:
    """Whether a person may do this, to that agent's runs (None: to any agent at all)."""
    return read_rights(user).may(action, agent)


def require(user: AbstractBaseUser, action: Action, agent: str | None = None) -> None:
    """Raises: Forbidden, naming the roles that may."""
    if not may(user, action, agent):
        roles = ", ".join(role for role in Role if action in MAY[role])
        raise Forbidden(
            f"You may not {_PHRASES[action]}.", remedy=f"It takes one of the roles {roles}, for this agent."
        )


def visible_agents(user: AbstractBaseUser) -> set[str]:
    """Names of the agents whose runs a person sees; `*` stands for all."""
    return set(read_rights(user).agents)


def visible_runs(user: AbstractBaseUser) -> QuerySet[Run]:
    return within(Run.objects.all(), visible_agents(user))


def visible_approvals(user: AbstractBaseUser) -> QuerySet[Approval]:
    return within(Approval.objects.all(), visible_agents(user), "run__agent")


def require_sight(user: AbstractBaseUser) -> None:
    """Raises: NotFound, for a stranger: someone who sees no agent at all."""
    if not visible_agents(user):
        raise NotFound("agent", "at all")


def get_agent(user: AbstractBaseUser, name: str) -> Agent:
    """Raises: NotFound for a stranger; UnknownAgent, also for one that the person may not see."""
    agents = visible_agents(user)
    if not agents:
        raise NotFound("agent", name)
    seen = {n: agent for n, agent in get_agents().items() if sees(agents, n)}
    if name not in seen:
        raise UnknownAgent(name, list(seen))
    return seen[name]


def get_run(user: AbstractBaseUser, run: int) -> Run:
    """Raises: NotFound, also for a run of an agent that the person may not see."""
    found = visible_runs(user).filter(pk=run).first() if in_range(run) else None
    if found is None:
        raise NotFound("run", run)
    return found


def get_approval(user: AbstractBaseUser, approval: int) -> Approval:
    """Raises: NotFound, also for one of an agent that the person may not see."""
    cards = visible_approvals(user).filter(pk=approval).select_related("run", "step")
    found = cards.first() if in_range(approval) else None
    if found is None:
        raise NotFound("approval", approval)
    return found


def get_fact(user: AbstractBaseUser, fact: int) -> Fact:
    """Raises: NotFound, also for one of an agent that the person may not see."""
    rows = within(Fact.objects.filter(pk=fact).select_related("run"), visible_agents(user), "run__agent")
    found = rows.first() if in_range(fact) else None
    if found is None:
        raise NotFound("fact", fact)
    return found


def create_token(name: str, role: Role, *, actor: Actor) -> str:
    """Make an API token and its service user. The token is returned once; only its hash is kept."""
    require_transaction()
    if not name.strip():
        raise Malformed("A token needs a name.")
    if len(name) > MAX_TOKEN_NAME:
        raise Malformed(f"A token's name has at most {MAX_TOKEN_NAME} characters.")
    name = clean_text(name)
    user, new = get_user_model().objects.get_or_create(username=f"token:{name}", defaults={"password": "!"})
    if new:
        user.groups.set([Group.objects.get(name=role)])
    elif set(user.groups.values_list("name", flat=True)) != {role}:
        # The tokens of that name act as this user: they would gain or lose rights by it.
        raise Conflict(f"There is a token {name!r} of another role already.", remedy="Choose another name.")
    token = f"lw_{secrets.token_urlsafe(32)}"
    sql.execute(
        "INSERT INTO runs_apitoken (name, user_id, digest, created_at) VALUES (%s, %s, %s, lw_clock())",
        [name, user.pk, _digest(token)],
    )
    append("token.created", actor=actor, after={"name": name, "role": role})
    return token


def revoke_token(token: int, *, actor: Actor) -> None:
    """End a token for good. Raises: WrongState, when it is ended already."""
    require_transaction()
    row = sql.fetch_one(
        "UPDATE runs_apitoken SET revoked_at = lw_clock() WHERE id = %s AND revoked_at IS NULL RETURNING name", [token]
    )
    if row is None:
        raise WrongState(f"Token {token}", "revoked", "revoked again")
    append("token.revoked", actor=actor, before={"name": row[0]})


def set_grant(group: Group, agent: str, *, actor: Actor, replaces: AgentGrant | None = None) -> AgentGrant:
    """Let a group see an agent (`*`: every agent), instead of what `replaces` says."""
    require_transaction()
    agent = clean_text(agent)
    before = None
    if replaces is not None:
        before = {"group": replaces.group.name, "agent": replaces.agent}
        AgentGrant.objects.filter(pk=replaces.pk).update(group=group, agent=agent)
        grant = AgentGrant.objects.get(pk=replaces.pk)
    else:
        grant, _ = AgentGrant.objects.get_or_create(group=group, agent=agent)
    append("grant.set", actor=actor, before=before, after={"group": group.name, "agent": agent})
    return grant


def end_grant(grant: AgentGrant, *, actor: Actor) -> None:
    require_transaction()
    append("grant.ended", actor=actor, before={"group": grant.group.name, "agent": grant.agent})
    AgentGrant.objects.filter(pk=grant.pk).delete()


def spend_sign_in_token(token: str) -> User | None:
    """The user of a sign-in link, whose last sign-in is now: so the link is spent. None: it is spent, old or forged."""
    require_transaction()
    user = read_sign_in_token(token)
    if user is None:
        return None
    # Lock, then judge: of two at once with one link, the second finds another last sign-in.
    user = User.objects.select_for_update(of=("self",)).get(pk=user.pk)
    if read_sign_in_token(token) is None:
        return None
    User.objects.filter(pk=user.pk).update(last_login=real_now())
    append("person.signed_in", actor=Actor(name=f"person:{user.get_username()}", user=user.pk), why="by link")
    return user


def find_token_user(token: str) -> User | None:
    """The active user that a bearer token acts as."""
    found = ApiToken.objects.filter(digest=_digest(token), revoked_at__isnull=True).select_related("user").first()
    if found is None or not found.user.is_active:
        return None
    # Once a minute is often enough to see which tokens are not used any more.
    sql.execute(
        "UPDATE runs_apitoken SET last_used_at = lw_clock() WHERE id = %s"
        " AND (last_used_at IS NULL OR last_used_at < lw_clock() - interval '1 minute')",
        [found.pk],
    )
    return found.user


def make_sign_in_token(user: AbstractBaseUser) -> str:
    """A link token for one sign-in within 15 minutes: it names the last sign-in, so that using it spends it."""
    return signing.dumps([user.pk, _stamp(user)], salt=_SIGN_IN_SALT)


def read_sign_in_token(token: str) -> User | None:
    try:
        pk, stamp = signing.loads(token, salt=_SIGN_IN_SALT, max_age=SIGN_IN_LINK_S)
    except (signing.BadSignature, ValueError):
        return None
    user = User.objects.filter(pk=pk, is_active=True).first()
    return user if user is not None and _stamp(user) == stamp else None


def _stamp(user: AbstractBaseUser) -> str:
    return f"{user.last_login.timestamp() if user.last_login else 0}:{user.password[-12:]}"


def _granted_agents(user: User) -> set[str]:
    return set(AgentGrant.objects.filter(group__user=user).values_list("agent", flat=True))


def _actions(user: User) -> set[Action]:
    names = set(user.groups.values_list("name", flat=True))
    return {action for role in Role if role in names for action in MAY[role]}


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

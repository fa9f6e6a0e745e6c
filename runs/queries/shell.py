"""What the frame around every page shows: what waits for a person, what is not fresh, what is switched off. Four queries."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from runs import clock
from runs.models import Approval
from runs.queries.factlists import count_facts_to_look_at
from runs.queries.paging import within
from runs.queries.switches import list_engaged
from runs.states import ApprovalKind, ApprovalState

# The badge says "99+" beyond; nobody needs to know how many thousand more.
COUNTED = 100
SWITCHES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Engaged:
    """An engaged switch in one line."""

    id: int
    scope: str
    reason: str
    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Shell:
    """`to_decide`: pending cards that this reader sees, doubts among them, at most COUNTED. `facts`: those that nothing may
    act on now, at most COUNTED. `now`: when this was read.
    """

    now: datetime
    to_decide: int
    doubts: int
    facts: int
    switches: list[Engaged]


def read_shell(*, agents: Collection[str]) -> Shell:
    pending = within(
        Approval.objects.filter(state=ApprovalState.PENDING, effective_at__isnull=True), agents, "run__agent"
    )
    kinds = list(pending.values_list("kind", flat=True)[:COUNTED])
    switches = [
        Engaged(
            id=switch.pk,
            scope=switch.scope,
            reason=switch.reason,
            by=switch.engaged_by.get_username() if switch.engaged_by else "",
            at=switch.engaged_at,
        )
        for switch in list_engaged(agents=agents, limit=SWITCHES_SHOWN)
    ]
    return Shell(
        now=clock.now(),
        to_decide=len(kinds),
        doubts=kinds.count(ApprovalKind.VERDICT),
        facts=count_facts_to_look_at(agents=agents),
        switches=switches,
    )

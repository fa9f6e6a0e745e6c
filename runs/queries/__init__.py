"""Every read that console, API and commands need: fixed numbers of queries, shapes that are ready to be shown.

`agents` is always the set of agent names that the reader may see (`access.visible_agents`); `*` stands for all.
"""

from runs.queries.approvals import find_approval, list_approvals
from runs.queries.health import Health, read_health
from runs.queries.lists import (
    find_fact,
    find_step,
    list_facts,
    list_journal,
    list_keys,
    list_ledger,
    list_steps,
    list_work,
)
from runs.queries.paging import MAX_PAGE, Page, Window
from runs.queries.runs import RunFilter, find_run, list_runs
from runs.queries.shapes import (
    ApprovalCard,
    FactRow,
    JournalRow,
    KeyRow,
    LedgerRow,
    RunDetail,
    RunRow,
    StepRow,
    SwitchCard,
    WorkRow,
    as_json,
    write_money,
)
from runs.queries.switches import find_switch, list_switches

__all__ = [
    "MAX_PAGE",
    "ApprovalCard",
    "FactRow",
    "Health",
    "JournalRow",
    "KeyRow",
    "LedgerRow",
    "Page",
    "RunDetail",
    "RunFilter",
    "RunRow",
    "StepRow",
    "SwitchCard",
    "Window",
    "WorkRow",
    "as_json",
    "find_approval",
    "find_fact",
    "find_run",
    "find_step",
    "find_switch",
    "list_approvals",
    "list_facts",
    "list_journal",
    "list_keys",
    "list_ledger",
    "list_runs",
    "list_steps",
    "list_switches",
    "list_work",
    "read_health",
    "write_money",
]

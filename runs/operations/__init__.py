"""Every write that a person or the API makes: one function, one transaction, one journal entry: who, and why."""

from runs.operations.amounts import LONGEST_S
from runs.operations.credentials import renew_credential
from runs.operations.decisions import (
    apply_held_decision,
    approve_batch,
    claim_approval,
    decide,
    release_approval,
    why_not_in_batch,
)
from runs.operations.events import delete_events, store_event
from runs.operations.facts import checker_of, correct_fact, extend_fact, plan_check, recheck_card, recheck_fact
from runs.operations.money import (
    Ends,
    change_allowance,
    create_allowance,
    end_allowance,
    set_budget,
    set_price,
    set_rate,
    withdraw_price,
)
from runs.operations.people import create_token, end_grant, revoke_token, set_grant, spend_sign_in_token
from runs.operations.retention import delete_runs
from runs.operations.starts import GOAL_CHARS, Start, create_child, start_run
from runs.operations.stops import amend_run, engage_switch, pause_run, release_switch, resume_run, stop_run, stop_scope
from runs.operations.wakes import wake_after_end, wake_lock_waiters
from runs.retention import Deletion

__all__ = [
    "GOAL_CHARS",
    "LONGEST_S",
    "Deletion",
    "Ends",
    "Start",
    "amend_run",
    "apply_held_decision",
    "approve_batch",
    "change_allowance",
    "checker_of",
    "claim_approval",
    "correct_fact",
    "create_allowance",
    "create_child",
    "create_token",
    "decide",
    "delete_events",
    "delete_runs",
    "end_allowance",
    "end_grant",
    "engage_switch",
    "extend_fact",
    "pause_run",
    "plan_check",
    "recheck_card",
    "recheck_fact",
    "release_approval",
    "release_switch",
    "renew_credential",
    "resume_run",
    "revoke_token",
    "set_budget",
    "set_grant",
    "set_price",
    "set_rate",
    "spend_sign_in_token",
    "start_run",
    "stop_run",
    "stop_scope",
    "store_event",
    "wake_after_end",
    "wake_lock_waiters",
    "why_not_in_batch",
    "withdraw_price",
]

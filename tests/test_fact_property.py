"""The property behind G3: whatever happens in whatever order, no effect begins on a fact that is not fresh.

The engine, the database and the writers are the real ones; what would be sent is played by the other end of the port to
the tool process, which passes the real last look first and judges every effect at the moment at which it would be sent.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runs import clock, facts, operations, sql, steps
from runs.agents import Briefing, get_agent
from runs.approvals import Said
from runs.engine.sweep import sweep_once
from runs.engine.toolwire import Function, Perform, Report
from runs.engine.toolwire import Said as Told
from runs.engine.worker import Worker
from runs.errors import LongwatchError
from runs.models import Approval, Fact, FactUse, Run
from runs.operations import Start
from runs.sanitise import clean_json
from runs.states import RUN_FINAL, ApprovalState, Verdict
from tests.engine_tools import call

pytestmark = pytest.mark.django_db(transaction=True)
ORDER = "1"
FACT = f"order.{ORDER}"


class Crash(BaseException):
    """The worker dies here."""


@dataclass
class World:
    """What the source says now, and the other end of the port to the tool process."""

    ident: uuid.UUID  # the performer: here the worker's own process
    paid: int = 900
    down: bool = False
    crash: str = ""  # "before" or "after" the next effect, or in the next "check"
    sent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def ready(self, *, meanwhile: Callable[[], None] | None = None) -> uuid.UUID:
        return self.ident

    def living(self) -> uuid.UUID:
        return self.ident

    def usual_s(self, agent: str, tool: str) -> float:
        return 0.0

    def record_exits(self) -> None:
        """It never exits."""

    def perform(self, perform: Perform, **_: Any) -> Report:
        if perform.function is Function.DECIDE:
            decide = get_agent(perform.agent).decide
            assert decide is not None
            asks = decide(Briefing(**perform.arguments))  # type: ignore[arg-type]
            return Report(said=Told.DONE, result=[clean_json(vars(ask)) for ask in asks])
        if perform.tool == "read_order":
            self._die("check")
            if self.down:
                return Report(said=Told.FAILED, error="no answer")
            return Report(said=Told.DONE, result={"paid": self.paid})
        self._die("before")
        with transaction.atomic():
            if not steps.begin(perform.attempt):
                return Report(said=Told.NOT_BEGUN)
        self._judge(perform)
        self.sent.append(perform.key)
        self._die("after")
        return Report(said=Told.DONE, result={"ok": True})

    def perform_each(self, performs: Sequence[Perform], **_: Any) -> Iterator[tuple[Perform, Report]]:
        for each in performs:
            yield each, self.perform(each)

    def _judge(self, perform: Perform) -> None:
        """Right after the last look: each fact that the effect was taken on is fresh now, and still what it was."""
        used = list(FactUse.objects.filter(attempt=perform.attempt).select_related("fact"))
        if not used:
            self.wrong.append("an effect rests on nothing")
        for use in used:
            now = facts.judge(perform.run, [use.fact.name])[use.fact.name]
            if not now.usable or use.age_s >= use.fact.max_age_s or now.version != use.version:
                self.wrong.append(
                    f"{use.fact.name} was {use.age_s:.1f} s old at take, and is {now.state} at {now.age_s}"
                )

    def _die(self, where: str) -> None:
        if self.crash == where:
            self.crash = ""
            raise Crash


def expire_leases() -> None:
    """As if every lease of a dead worker, and what it may still do, were over."""
    sql.execute("UPDATE runs_attempt SET lease_until = clock_timestamp() - interval '1 s' WHERE outcome = 'open'")
    sql.execute("UPDATE runs_run SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'running'")
    sweep_once()


def take_step(world: World, worker: Worker, run: Run, by: User, what: tuple[str, int]) -> None:
    kind, number = what
    card = Approval.objects.filter(run=run, state=ApprovalState.PENDING).order_by("pk").first()
    match kind:
        case "go":
            try:
                for _ in range(10):
                    if not worker.claim_and_advance():
                        break
            except Crash:
                expire_leases()
        case "wait":
            clock.shift(timedelta(seconds=number))
        case "change":
            world.paid = 500 + number
        case "down":
            world.down = number % 2 == 0
        case "crash":
            world.crash = ("before", "after", "check")[number % 3]
        case "recheck" if fact := Fact.objects.filter(run=run, name=FACT).first():
            operations.recheck_fact(fact.pk, by=by)
        case "correct" if fact := Fact.objects.filter(run=run, name=FACT).first():
            operations.correct_fact(fact.pk, {"paid": 300 + number}, by=by)
        case "extend" if fact := Fact.objects.filter(run=run, name=FACT).first():
            operations.extend_fact(fact.pk, by_s=min(number, fact.max_age_s), reason="it holds", by=by)
        case "decide" if card is not None:
            first = Verdict(card.verdicts[0])
            operations.decide(card.pk, Said(verdict=first, version=card.version, result={"paid": number}), by=by)


KINDS = ["go", "go", "go", "wait", "change", "down", "crash", "recheck", "correct", "extend", "decide", "decide"]
WHATS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 90)), min_size=6, max_size=24)


def test_no_effect_begins_on_a_fact_that_is_not_fresh(full_matrix: bool, settings: Any) -> None:
    settings.LEASE_S, settings.UNDO_S = 5.0, 0.0
    person = User.objects.create_superuser("ana")
    worker = Worker()
    effects = 0

    @_often(200 if full_matrix else 6)
    @given(whats=WHATS)
    def hold(whats: list[tuple[str, int]]) -> None:
        nonlocal effects
        world = World(ident=worker.ident)
        worker.tools = world  # type: ignore[assignment]
        script: list[Any] = [
            [call("read_order", order=ORDER)],
            [call("record_fact", name=FACT, from_step=2)],
            [call("pay_keyed", order=ORDER, amount="300")],
            [call("wait_until", seconds=45, reason="a while")],
            [call("pay_keyed", order=ORDER, amount="5")],
            [call("pay_keyed", order=ORDER, amount="7")],
        ]
        start = Start(agent="scripted", goal="follow the script", inputs={"script": script})
        run, _ = operations.start_run(start, by=person)
        try:
            for what in [("go", 1), *whats, ("go", 1), ("wait", 70), ("go", 1), ("decide", 1), ("go", 1)]:
                # Much of it is refused by the rules, as it should be.
                with suppress(LongwatchError):
                    take_step(world, worker, run, person, what)
            assert not world.wrong, world.wrong
            effects += len(world.sent)
        finally:
            run.refresh_from_db()
            if run.state not in RUN_FINAL:
                operations.stop_run(run.pk, reason="the example is over", by=person)
            sql.execute("UPDATE lw_clock_shift SET shift = '0'")

    hold()
    assert effects, "no example came to an effect: the property was not tried"


class Forgetful(World):
    """A source that looks at what the database was asked after the last commit, and loses what it was told: as a server
    that dies."""

    asked_after: str = ""

    def perform(self, perform: Perform, **also: Any) -> Report:
        if connection.force_debug_cursor:
            log = [str(query["sql"]) for query in connection.queries_log]
            self.asked_after = "".join(log[len(log) - log[::-1].index("COMMIT") :])
            with transaction.atomic():
                sql.execute("SET LOCAL session_replication_role = replica")
                before = "UPDATE runs_step s SET state = 'planned', tries = tries - 1 FROM runs_attempt a"
                sql.execute(f"{before} WHERE s.id = a.step_id AND a.id = %s", [perform.attempt])
                for table, name in (("factuse", "attempt_id"), ("ledgerentry", "attempt_id"), ("attempt", "id")):
                    sql.execute(f"DELETE FROM runs_{table} WHERE {name} = %s", [perform.attempt])
        return super().perform(perform, **also)


def test_a_check_is_on_disk_before_its_source_is_asked_and_one_that_is_forgotten_asks_nobody() -> None:
    person = User.objects.create_superuser("ana")
    worker = Worker()
    world = Forgetful(ident=worker.ident)
    worker.tools = world  # type: ignore[assignment]
    script: list[Any] = [
        [call("read_order", order=ORDER)],
        [call("record_fact", name=FACT, from_step=2)],
        [call("wait_until", seconds=45, reason="a while")],
    ]
    start = Start(agent="scripted", goal="follow the script", inputs={"script": script})
    run, _ = operations.start_run(start, by=person)
    take_step(world, worker, run, person, ("go", 1))
    operations.recheck_fact(Fact.objects.get(run=run, name=FACT).pk, by=person)
    with CaptureQueriesContext(connection):
        worker.claim_and_advance()
    assert "pg_logical_emit_message" in world.asked_after
    assert not Approval.objects.filter(run=run).exists()
    operations.stop_run(run.pk, reason="the example is over", by=person)


def _often(count: int) -> Callable[[Any], Any]:
    phases = [Phase.explicit, Phase.generate, Phase.shrink] if count > 50 else [Phase.generate]
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, phases=phases, suppress_health_check=quiet, database=None)

"""The spend page and the ledger: what was used by whom and for what, each try once, and only what the reader may see."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from runs import budgets, clock, operations, sql
from runs.access import Role
from runs.allowances import Terms
from runs.budgets import Amounts
from runs.models import LedgerEntry, Run
from runs.queries import spend
from runs.queries.spend import Span, read_spend
from tests import situations
from tests.crowd import add_runs
from tests.page_situations import book
from tests.page_tools import client_of, read
from tests.people import make_person, operator, viewer
from tests.writers import person, start, start_child

__all__ = ["operator", "person", "viewer"]
pytestmark = pytest.mark.django_db
EVERY = {"*"}


@pytest.fixture
def noon(db: None) -> None:
    """Noon of a day, so that an hour more or less stays within it."""
    (to_noon,) = sql.fetch_row("SELECT date_trunc('day', lw_clock(), 'UTC') + interval '36 hours' - lw_clock()")
    clock.shift(to_noon)


def test_what_was_used_is_told_by_day_agent_and_model_and_once(person: User, viewer: User, noon: None) -> None:
    run, other = start(person), situations.start(person)
    child = start_child(run)
    book(run, "0.50")
    book(child, "0.25")
    clock.shift(timedelta(days=1))
    book(other, "1.25", model="claude-opus-5")
    figures = read_spend(Span.WEEK, agents=EVERY)
    days = [each.since for each in figures.used]
    assert [(each.agent, each.model, each.usd, each.calls) for each in figures.used] == [
        ("scripted", "claude-sonnet-5-5", Decimal("0.75"), 2),
        ("refund-desk", "claude-opus-5", Decimal("1.25"), 1),
    ]
    assert days == figures.starts[-2:]
    assert [(each.run, each.usd, each.usd_with_below) for each in figures.consumers] == [
        (other.pk, Decimal("1.25"), Decimal("1.25")),
        (run.pk, Decimal("0.50"), Decimal("0.75")),
        (child.pk, Decimal("0.25"), Decimal("0.25")),
    ]
    words = read(client_of(viewer).get("/spend"))
    assert "$2.00 . $0.29 a day on average" in words
    assert "the bars compare them" in words
    assert "$0.75 with what it started" in words
    assert "refund-desk claude-opus-5 " in words
    assert "$1.25 1,000 1" in words
    wrong = client_of(viewer).get("/spend?span=9d&agent=refund-desk")
    assert "'9d' is no span of time. It was left out. Known: 24h, 7d, 30d." in read(wrong)
    assert "$1.25 . $0.18 a day" in read(wrong)
    # One agent alone; and the last hour, in which nothing of the first day lies.
    assert "$1.25 . $0.18 a day" in read(client_of(viewer).get("/spend?agent=refund-desk"))
    assert "$1.25 . $0.05 an hour on average; most from 12:00 on" in read(client_of(viewer).get("/spend?span=24h"))
    clock.shift(timedelta(days=6))
    assert "$1.25 ." in read(client_of(viewer).get("/spend"))
    assert "$2.00 ." in read(client_of(viewer).get("/spend?span=30d"))


def test_an_estimate_is_said_until_the_truth_has_come(person: User, viewer: User) -> None:
    run = start(person)
    attempt = book(run, "0.40", estimated=True)
    page = client_of(viewer)
    assert "$0.40 , $0.40 of it estimated ." in read(page.get("/spend"))
    with transaction.atomic():
        budgets.settle(attempt, Amounts(usd=Decimal("0.10"), tokens=10, calls=1, steps=1))
    words = read(page.get("/spend"))
    assert "$0.10 . " in words
    assert "of it estimated" not in words


def test_an_outcome_has_its_price_with_all_that_was_started(person: User, viewer: User) -> None:
    runs = [start(person) for _ in range(3)]
    child = start_child(runs[0])
    book(child, "0.30")
    for run, usd in zip(runs, ("0.30", "0.20", "0.10"), strict=True):
        book(run, usd)
        operations.stop_run(run.pk, reason="enough", by=person)
    (outcome,) = read_spend(Span.WEEK, agents=EVERY).outcomes
    assert (outcome.state, outcome.runs, outcome.usd) == ("stopped", 3, Decimal("0.90"))
    words = read(client_of(viewer).get("/spend"))
    assert "scripted 3 runs – – – 3 $0.30 each – $0.90 none succeeded" in words


def test_limits_over_many_runs_say_what_happens_next(person: User, viewer: User, noon: None) -> None:
    for scope, hard, dimension in (("all", "2.00", "usd"), ("agent:scripted", "0.50", "usd"), ("all", "9", "tokens")):
        terms = Terms(scope=scope, dimension=dimension, period="day", hard=Decimal(hard))
        if dimension == "usd":
            operations.create_allowance(terms, reason="because", by=person)
    run = start(person)
    book(run, "0.50")
    short = situations.ask_budget(situations.start(person, usd="1.00"))
    words = read(client_of(viewer).get("/spend"))
    assert "everything a day" in words
    assert "$0.50 $0.00 $1.50 $2.00 not reached at this rate" in words
    assert "scripted a day" in words
    assert "nothing more is taken , frees up at" in words
    assert f"run {short.run_id}" in words
    assert "The budget is used up , waits for a person, no time limit" in words
    assert "/admin/runs/allowance/" not in client_of(viewer).get("/spend").content.decode()
    admin = client_of(make_person("ada", Role.ADMIN, staff=True)).get("/spend")
    assert "/admin/runs/allowance/" in admin.content.decode()


def test_whoever_sees_one_agent_sees_its_spend_alone(person: User) -> None:
    seen, hidden = start(person), situations.start(person)
    book(seen, "0.11")
    book(hidden, "0.77", note="hidden note")
    for scope in ("all", "agent:scripted", "agent:refund-desk"):
        terms = Terms(scope=scope, dimension="usd", period="day", hard=Decimal(5))
        operations.create_allowance(terms, reason="because", by=person)
    operations.stop_run(hidden.pk, reason="enough", by=person)
    situations.ask_budget(situations.start(person, usd="1.00"))
    noor = client_of(make_person("noor", Role.VIEWER, agents=("scripted",)))
    for path in ("/spend", "/spend?agent=refund-desk", "/ledger", f"/ledger?run={hidden.pk}", "/ledger.csv"):
        page = noor.get(path)
        assert page.status_code == 200
        text = page.content.decode()
        for secret in ("0.77", "refund-desk", "everything", "hidden note"):
            assert secret not in text or secret in path, (path, secret)
    assert "$0.11" in read(noor.get("/spend"))


class TestLedger:
    def test_it_is_filtered_by_what_the_address_says(self, person: User, viewer: User, noon: None) -> None:
        run, other = start(person), situations.start(person)
        book(run, "0.0312", note="first")
        book(other, "0.50", model="claude-opus-5", estimated=True)
        page = client_of(viewer)

        def count(query: str) -> int:
            return page.get(f"/ledger{query}").content.decode().count('<tr id="entry-')

        assert count("") == 4
        assert count(f"?run={run.pk}") == 2
        assert count("?agent=refund-desk") == 2
        assert count("?kind=settle") == 2
        assert count("?model=claude-opus-5") == 1
        assert count("?estimated=1") == 1
        today = f"{clock.now():%Y-%m-%d}"
        assert count(f"?since={today}&until={today}") == 4
        assert count("?until=2020-01-01") == 0
        assert "Spent run" in (words := read(page.get(f"/ledger?run={run.pk}&kind=settle")))
        assert "$0.0312 1,000 1 model call, 1 step claude-sonnet-5-5 first" in words
        assert page.get("/ledger?after=x").status_code == 400
        assert page.get("/ledger?model=%00&agent=%00").status_code == 200

    @pytest.mark.parametrize("wrong", ["run=x", "kind=gift", "since=soon", "until=1"])
    def test_a_wrong_filter_is_left_out_alone_and_the_page_says_so(
        self, person: User, viewer: User, wrong: str
    ) -> None:
        book(situations.start(person), "0.50", model="claude-opus-5")
        book(start(person), "0.25")
        page = client_of(viewer)
        response = page.get(f"/ledger?{wrong}&model=claude-opus-5")
        assert read(response).count("It was left out.") == 1
        assert response.content.decode().count('<tr id="entry-') == 1
        assert response.context["csv"] == "?model=claude-opus-5"
        # A file has no place to say it.
        assert page.get(f"/ledger.csv?{wrong}&model=claude-opus-5").status_code == 400

    def test_a_tree_books_once(self, person: User, viewer: User) -> None:
        child = start_child(start(person))
        book(child, "0.25")
        assert LedgerEntry.objects.count() == 4
        assert client_of(viewer).get("/ledger").content.decode().count('<tr id="entry-') == 2

    def test_it_is_paged_and_a_page_takes_one_query_more_or_less(self, person: User, viewer: User) -> None:
        run = start(person)
        for _ in range(60):
            book(run, "0.01")
        page = client_of(viewer)
        first = page.get("/ledger")
        assert first.content.decode().count('<tr id="entry-') == 100
        older = f"/ledger?after={LedgerEntry.objects.order_by('-pk')[99].pk}"
        assert f'href="{older}"' in first.content.decode()
        assert page.get(older).content.decode().count('<tr id="entry-') == 20

    def test_the_csv_has_exact_figures_and_nothing_that_a_spreadsheet_runs(self, person: User, viewer: User) -> None:
        run = start(person)
        attempt = book(run, "0.0312345678", note="=HYPERLINK(1)", model="@model", estimated=True)
        with transaction.atomic():
            budgets.settle(attempt, Amounts(usd=Decimal("0.01"), tokens=10, calls=1, steps=1), note="+1")
        response: Any = client_of(viewer).get(f"/ledger.csv?run={run.pk}")
        assert response["Content-Disposition"] == 'attachment; filename="ledger.csv"'
        lines = list(csv.DictReader(io.StringIO(response.content.decode())))
        assert [(line["entry"], line["usd"], line["note"]) for line in lines] == [
            ("correct", "-0.0212345678", "'+1"),
            ("settle", "0.0312345678", "'=HYPERLINK(1)"),
            ("reserve", "0.0312345678", ""),
        ]
        assert lines[1]["model"] == "'@model"
        # What is summed is what was spent.
        assert sum(Decimal(line["usd"]) for line in lines if line["entry"] in ("settle", "correct")) == Decimal("0.01")


@contextmanager
def unchecked() -> Iterator[None]:
    """Only what is asked about has to be true of these rows; foreign keys and triggers would take most of the time."""
    sql.execute("SET LOCAL session_replication_role = replica")
    yield
    sql.execute("SET LOCAL session_replication_role = DEFAULT")


class TestMany:
    """The same statements, each on an index, however long the ledger is."""

    def fill(self, run: Run, entries: int) -> None:
        attempt = book(run, "0.01")
        with unchecked():
            sql.execute(
                "INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,"
                " estimated, unpriced, model, note, at) SELECT %(run)s, %(run)s, %(attempt)s + n,"
                " (ARRAY['reserve', 'settle'])[1 + n %% 2], 0.01, 100, 1, 0, 1, n %% 50 = 1, false, 'claude-sonnet-5-5', '',"
                " lw_now() - n * interval '5 minutes'"
                " FROM generate_series(1, %(entries)s) n",
                {"run": run.pk, "attempt": attempt, "entries": entries},
            )
        sql.execute("ANALYZE runs_ledgerentry, runs_run, runs_budget")

    def test_the_statements_are_as_many_as_for_one_entry(self, person: User, viewer: User) -> None:
        run = start(person)
        book(run, "0.01")
        page = client_of(viewer)

        def count(path: str) -> int:
            with CaptureQueriesContext(connection) as made:
                assert page.get(path).status_code == 200
            return len(made)

        paths = ["/spend", "/spend/panels/figures?span=30d", "/ledger", "/ledger?agent=scripted&kind=settle"]
        few = [count(path) for path in paths]
        self.fill(run, 3_000)
        assert [count(path) for path in paths] == few
        assert max(few) < 18

    def test_each_figure_is_read_by_an_index(self, person: User) -> None:
        run = start(person)
        self.fill(run, 20_000)
        with unchecked():
            ended = "now() - g * interval '10 minutes'"
            add_runs(
                10_000, 14_000, state="'succeeded'", ended_at=ended, drained_at="now()", due_at="NULL", created_at=ended
            )
        sql.execute("ANALYZE runs_run")
        now = clock.now()
        given = {
            "all": True,
            "agents": [],
            "agent": "",
            "unit": "day",
            "since": now - timedelta(days=7),
            "consumers": 10,
        }
        for statement in (spend.USED, spend.TOP):
            plan = "\n".join(row[0] for row in sql.fetch_all(f"EXPLAIN {statement}", given))
            assert "ledger_spent" in plan, plan
            assert "Seq Scan on runs_ledgerentry" not in plan, plan
        plan = "\n".join(row[0] for row in sql.fetch_all(f"EXPLAIN {spend.OUTCOMES}", given))
        assert "run_outcomes" in plan, plan

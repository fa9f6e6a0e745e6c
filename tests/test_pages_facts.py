"""The facts page: what is not fresh over all runs, what it holds up, and what a person may do about it."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from runs import clock, facts, lifecycle, operations, sql
from runs.access import Role
from runs.approvals import Said
from runs.errors import Conflict, Malformed
from runs.models import Approval, Fact, FactVersion, JournalEntry, Run, Step
from runs.queries import factlists
from runs.queries.factlists import FactList, count_facts_to_look_at, list_facts_over_runs
from runs.states import ApprovalState, CheckOutcome, StepKind, Verdict
from tests import page_situations, situations
from tests.page_tools import client_of
from tests.page_tools import read as read_page
from tests.people import make_person
from tests.writers import person, plan_act, record, start

__all__ = ["person"]
pytestmark = pytest.mark.django_db
EVERY = {"*"}


@pytest.fixture
def approver() -> User:
    return make_person("anna", Role.APPROVER)


def names(which: FactList, agents: Any = EVERY) -> list[str]:
    return sorted(fact.name for fact in list_facts_over_runs(which, agents=agents).facts)


def make_all_kinds(run: Run) -> None:
    record(run, "fresh", age_s=10)
    record(run, "ageing", age_s=90)
    record(run, "stale", age_s=300)
    failed = record(run, "failed", age_s=300)
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = operations.plan_check(locked, failed, operations.checker_of(record_of(run, "order.9")))  # type: ignore[arg-type]
        facts.check_failed(failed, CheckOutcome.UNREACHABLE, "503", step=step.pk)
        facts.record(locked, name="undated", value=1, source={}, observed_at=None, max_age_s=60)
    record(run, "ahead", age_s=-500)
    record(run, "sum", 3, source={"agent": "scripted"}, derived_from=["parent"])
    record(run, "parent", 2, age_s=5)
    with transaction.atomic():
        lifecycle.lock(run.pk)
        facts.correct(Fact.objects.get(run=run, name="parent"), 7, actor=lifecycle_actor())


def record_of(run: Run, name: str) -> Fact:
    return record(run, name)


def lifecycle_actor() -> Any:
    from runs.journal import Actor

    return Actor(name="person:ana")


def test_each_list_shows_its_facts_and_what_is_over_shows_nowhere(person: User) -> None:
    run = start(person)
    record(run, "parent", 1, age_s=20)
    make_all_kinds(run)
    assert names(FactList.STALE) == ["stale"]
    assert names(FactList.CHECK_FAILED) == ["failed"]
    assert names(FactList.AGEING) == ["ageing"]
    assert names(FactList.CONTRADICTED) == ["sum"]
    assert names(FactList.UNKNOWN) == ["ahead", "undated"]
    assert len(names(FactList.ALL)) == 9
    counts = list_facts_over_runs(FactList.ALL, agents=EVERY).counts
    assert [counts[which] for which in FactList] == [1, 1, 1, 2, 1, 9]
    assert count_facts_to_look_at(agents=EVERY) == 5
    # The database's own judgement of each one agrees.
    for which in FactList:
        if which is not FactList.ALL:
            assert {fact.state for fact in list_facts_over_runs(which, agents=EVERY).facts} == {which.value}
    assert names(FactList.ALL, {"stock-watch"}) == []
    assert count_facts_to_look_at(agents={"stock-watch"}) == 0
    operations.stop_run(run.pk, reason="over", by=person)
    assert names(FactList.ALL) == []
    assert count_facts_to_look_at(agents=EVERY) == 0


def test_what_follows_from_a_stale_fact_is_in_its_list_too(person: User) -> None:
    run = start(person)
    parent = record(run, "order.1", age_s=200)
    record(run, "sum", 3, source={"agent": "scripted"}, max_age_s=10_000, derived_from=["order.1"])
    assert names(FactList.STALE) == ["order.1", "sum"]
    assert count_facts_to_look_at(agents=EVERY) == 2
    with transaction.atomic():
        lifecycle.lock(run.pk)
        facts.confirm(Fact.objects.get(pk=parent.pk), actor=lifecycle_actor())
    assert names(FactList.STALE) == []
    assert count_facts_to_look_at(agents=EVERY) == 0


def test_the_badge_and_the_page_say_what_is_stale_what_it_holds_up_and_let_go_of_it_by_themselves(
    person: User, approver: User
) -> None:
    asking = situations.ask_approval(situations.start(person))
    page = client_of(approver)
    assert "not fresh" not in page.get("/").content.decode()
    clock.shift(timedelta(hours=2))
    assert "1 fact not fresh" in page.get("/").content.decode()
    text = page.get("/facts").content.decode()
    assert f"approval {asking.card.pk}" in text
    assert f'href="/facts/{asking.fact.pk}"' in text
    with transaction.atomic():
        lifecycle.lock(asking.run.pk)
        facts.confirm(Fact.objects.get(pk=asking.fact.pk), actor=lifecycle_actor())
    assert "not fresh" not in page.get("/").content.decode()
    assert "No fact is past its limit." in page.get("/facts").content.decode()
    clock.shift(timedelta(hours=-2))


def test_one_source_over_many_runs_is_one_line_with_its_runs(person: User, approver: User) -> None:
    for value in (1, 1, 2):
        record(start(person), "policy.refunds", value, age_s=300)
    text = client_of(approver).get("/facts").content.decode()
    assert "In 2 more runs, 2 different values" in text
    assert "/facts?source=read_order&amp;name=policy.refunds" in text
    same = client_of(approver).get("/facts?source=read_order&name=policy.refunds").content.decode()
    assert same.count('class="long-id"') == 3


def test_the_story_of_a_fact_says_each_value_each_check_and_who_used_it_at_what_age(
    person: User, approver: User
) -> None:
    asking = situations.ask_approval(situations.start(person))
    with transaction.atomic():
        run = lifecycle.lock(asking.run.pk)
        facts.note_use(facts.judge(run.pk, [asking.fact.name]).values(), approval=asking.card.pk)
    text = client_of(approver).get(f"/facts/{asking.fact.pk}").content.decode()
    assert f"approval {asking.card.pk}, when it was asked" in text
    assert '<svg class="chart steps' in text
    assert client_of(approver).get("/facts/987654").status_code == 404


def test_a_list_that_there_is_not_is_left_out_alone_and_the_page_says_so(person: User, approver: User) -> None:
    record(start(person), "policy.refunds", age_s=300)
    record(start(person), "order.1", age_s=300)
    page = client_of(approver)
    response = page.get("/facts?state=worst&source=read_order&name=policy.refunds")
    words = read_page(response)
    assert "'worst' is no list of facts. It was left out. Known: stale" in words
    assert ("policy.refunds" in words, "order.1" in words) == (True, False)
    assert response.context["query"] == "state=stale&source=read_order&name=policy.refunds"
    assert page.get("/facts/panels/list?state=worst").status_code == 200


class TestSeenAgain:
    """What has made a fact fresh since its value was first read, where no check has."""

    def said(self, fact: Fact, reader: User) -> str:
        text = read_page(client_of(reader).get(f"/facts/{fact.pk}"))
        return text[text.index("Checks") : text.index("Values")]

    def test_a_value_that_was_recorded_again_is_not_said_to_be_unseen_since(self, person: User, approver: User) -> None:
        run = start(person)
        steps_of_run = [plan_act(run, _pay(), order=str(n), amount="5") for n in range(2)]
        fact = record(run, age_s=90, step=steps_of_run[0].pk)
        assert "It was not checked again yet." in self.said(fact, approver)
        # An older reading of the same value makes it no fresher: nothing has seen it since.
        record(run, age_s=95, step=steps_of_run[1].pk)
        assert "It was not checked again yet." in self.said(fact, approver)
        record(run, age_s=1, step=steps_of_run[1].pk)
        said = self.said(fact, approver)
        assert f"The same recorded again step {steps_of_run[1].number}" in said
        assert "not checked again" not in said

    def test_so_is_one_that_a_person_confirmed(self, person: User, approver: User) -> None:
        card = page_situations.ask_about_fact(start(person))
        fact = card.fact
        assert fact is not None
        record_again = {"name": fact.name, "value": fact.value, "source": fact.source, "max_age_s": fact.max_age_s}
        step = plan_act(card.run, _pay(), order="1", amount="5")
        with transaction.atomic():
            run = lifecycle.lock(card.run_id)
            facts.record(run, **record_again, observed_at=clock.now(), step=step.pk)
        assert f"The same recorded again step {step.number}" in self.said(fact, approver)
        operations.decide(card.pk, Said(verdict=Verdict.CONFIRM, version=card.version), by=approver)
        said = self.said(fact, approver)
        assert "The same confirmed by a person" in said
        assert "recorded again" not in said

    def test_what_follows_from_others_is_verified_with_them(self, person: User, approver: User) -> None:
        run = start(person)
        record(run, "order.1", age_s=90)
        child = record(run, "sum", 3, source={"agent": "scripted"}, derived_from=["order.1"])
        assert "It was not checked again yet." in self.said(child, approver)
        record(run, "order.1", age_s=1)
        assert "The same verified with what it follows from" in self.said(child, approver)

    def test_a_check_stands_alone_until_something_has_seen_the_value_after_it(
        self, person: User, approver: User
    ) -> None:
        fact = record(start(person), age_s=90)
        with transaction.atomic():
            run = lifecycle.lock(fact.run_id)
            step = operations.plan_check(run, fact, operations.checker_of(fact))  # type: ignore[arg-type]
            facts.check_same(fact, began_at=clock.now() - timedelta(seconds=1), step=step.pk)
        assert self.said(fact, approver).count("The same") == 1
        with transaction.atomic():
            lifecycle.lock(fact.run_id)
            facts.confirm(fact, actor=lifecycle_actor())
        assert self.said(fact, approver).count("The same") == 2


class TestCorrecting:
    def test_what_rests_on_the_old_value_is_void(self, person: User, approver: User) -> None:
        asking = situations.ask_approval(situations.start(person))
        form = {"version": str(asking.fact.version), "value": '{"paid": "1.00"}'}
        assert client_of(approver).post(f"/facts/{asking.fact.pk}/correct", form).status_code == 302
        fact = Fact.objects.get(pk=asking.fact.pk)
        assert (fact.value, fact.version) == ({"paid": "1.00"}, 2)
        assert FactVersion.objects.get(fact=fact, version=2).source == {"person": "person:anna"}
        card = Approval.objects.get(pk=asking.card.pk)
        assert (card.state, card.closed_because) == (ApprovalState.VOID, f"{fact.name} changed")
        assert JournalEntry.objects.filter(kind="fact.corrected", user=approver).exists()

    def test_another_value_than_the_one_that_was_seen_is_not_corrected(self, person: User, approver: User) -> None:
        fact = record(start(person), value=1)
        with transaction.atomic():
            lifecycle.lock(fact.run_id)
            facts.correct(fact, 2, actor=lifecycle_actor())
        response = client_of(approver).post(f"/facts/{fact.pk}/correct", {"version": "1", "value": "3"})
        assert response.status_code == 409
        assert Fact.objects.get(pk=fact.pk).value == 2

    @pytest.mark.parametrize("form", [{"version": "1", "value": " "}, {"value": "3"}, {"version": "x", "value": "3"}])
    def test_a_form_that_says_too_little_changes_nothing(
        self, person: User, approver: User, form: dict[str, str]
    ) -> None:
        fact = record(start(person), value=1)
        assert client_of(approver).post(f"/facts/{fact.pk}/correct", form).status_code == 422
        assert Fact.objects.get(pk=fact.pk).version == 1


class TestExtending:
    def test_once_with_a_reason_until_it_is_read_again(self, person: User, approver: User) -> None:
        run = start(person)
        fact = record(run, age_s=150, max_age_s=100)
        form = {"minutes": "1.5", "reason": "the warehouse called"}
        assert client_of(approver).post(f"/facts/{fact.pk}/extend", form).status_code == 302
        assert names(FactList.STALE) == []
        fact.refresh_from_db()
        assert (fact.max_age_s, fact.extended_from_s) == (190, 100)
        entry = JournalEntry.objects.get(kind="fact.extended")
        assert (entry.user, entry.why) == (approver, "the warehouse called")
        assert client_of(approver).post(f"/facts/{fact.pk}/extend", form).status_code == 409
        with transaction.atomic():
            lifecycle.lock(run.pk)
            facts.confirm(fact, actor=lifecycle_actor())
        fact.refresh_from_db()
        assert (fact.max_age_s, fact.extended_from_s) == (100, None)

    @pytest.mark.parametrize(
        "form",
        [
            {"minutes": "1"},
            {"minutes": "0", "reason": "r"},
            {"minutes": "nan", "reason": "r"},
            {"minutes": "2", "reason": "r"},
            {"reason": "r"},
        ],
    )
    def test_not_without_a_reason_and_not_by_more_than_its_limit(
        self, person: User, approver: User, form: dict[str, str]
    ) -> None:
        fact = record(start(person), age_s=150, max_age_s=100)
        assert client_of(approver).post(f"/facts/{fact.pk}/extend", form).status_code == 422
        fact.refresh_from_db()
        assert fact.max_age_s == 100

    def test_a_step_that_waits_for_it_goes_on(self, person: User, approver: User) -> None:
        run = start(person)
        fact = record(run, "mood", "good", source={"agent": "scripted"}, age_s=150, max_age_s=100)
        from runs.engine import freshen

        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            step = plan_act(run, _pay(), order="1", amount="5", rests_on=("mood",))
            freshen.freshen(locked, step, list(facts.judge(run.pk, ["mood"]).values()))
        card = Approval.objects.get(run=run, kind="fact")
        operations.extend_fact(fact.pk, by_s=90, reason="it holds", by=approver)
        card.refresh_from_db()
        step.refresh_from_db()
        assert (card.state, card.closed_because, step.state) == (ApprovalState.VOID, "extended by anna", "planned")


def _pay() -> Any:
    from runs.agents import get_agent

    return get_agent("scripted").tool("pay_keyed")


def test_a_run_that_has_ended_is_left_as_it_was(person: User, approver: User) -> None:
    fact = record(start(person), age_s=150)
    operations.stop_run(fact.run_id, reason="over", by=person)
    with pytest.raises(Conflict, match="has ended"):
        operations.extend_fact(fact.pk, by_s=5, reason="r", by=approver)
    with pytest.raises(Conflict, match="has ended"):
        operations.correct_fact(fact.pk, 2, by=approver)
    with pytest.raises(Malformed):
        operations.extend_fact(record(start(person)).pk, by_s=5, reason=" ", by=approver)


class TestOpeningACard:
    def test_looking_changes_nothing_and_what_has_aged_is_read_again_when_the_page_asks(
        self, person: User, approver: User
    ) -> None:
        asking = situations.ask_approval(situations.start(person))
        page = client_of(approver)
        assert 'id="freshen"' not in page.get(f"/approvals/{asking.card.pk}").content.decode()
        clock.shift(timedelta(minutes=20))
        before = JournalEntry.objects.count()
        text = page.get(f"/approvals/{asking.card.pk}").content.decode()
        assert f'hx-post="/approvals/{asking.card.pk}/freshen" hx-trigger="load"' in text
        assert JournalEntry.objects.count() == before
        said = page.post(f"/approvals/{asking.card.pk}/freshen", headers={"hx-request": "true"}).content.decode()
        assert "1 fact is being read again." in said
        check = Step.objects.get(run=asking.run, kind=StepKind.CHECK)
        assert check.fact_id == asking.fact.pk
        # Once more, or by two at once: the same check.
        page.post(f"/approvals/{asking.card.pk}/freshen")
        assert Step.objects.filter(run=asking.run, kind=StepKind.CHECK).count() == 1
        clock.shift(timedelta(minutes=-20))


class TestMany:
    """Must show 7, at a smaller size: the same statements, each on an index, however many facts there are."""

    def fill(self, person: User, *, runs: int, each: int) -> None:
        first = start(person)
        ids = [first.pk, *(start(person).pk for _ in range(9))]
        sql.execute(
            "INSERT INTO runs_fact (run_id, name, value, version, source, source_tool, observed_at, verified_at, max_age_s,"
            " derived_from, check_tries, live) SELECT (%s::bigint[])[1 + n %% 10], 'order.' || n, '1', 1,"
            " '{\"tool\": \"read_order\"}', 'read_order', lw_now() - make_interval(secs => n %% 1000),"
            " lw_now() - make_interval(secs => n %% 1000), 950, '[]', 0, n %% 3 > 0 FROM generate_series(1, %s) n",
            [ids, runs * each],
        )
        sql.execute("ANALYZE runs_fact, runs_run, runs_step")

    def test_the_statements_are_as_many_as_for_one_fact(self, person: User, approver: User) -> None:
        run = start(person)
        record(run, "stale", age_s=300)
        record(run, "ageing", age_s=90)
        page = client_of(approver)

        def count(path: str) -> int:
            with CaptureQueriesContext(
                connection,
            ) as made:
                assert page.get(path).status_code == 200
            return len(made)

        paths = ["/facts", "/facts?state=all", "/facts?state=ageing", "/facts/panels/list", "/panels/nav"]
        few = [count(path) for path in paths]
        self.fill(person, runs=50, each=100)
        assert [count(path) for path in paths] == few
        assert max(few) < 20

    def test_each_list_is_read_by_an_index(self, person: User) -> None:
        self.fill(person, runs=200, each=100)
        given = factlists._given(EVERY) | {"limit": factlists.SHOWN + 1, "source": "read_order", "name": "order.7"}
        statements = [
            *factlists._LISTS.values(),
            factlists._of_source(with_name=True),
            factlists._COUNTS,
            factlists._BADGE,
        ]
        for statement in statements:
            plan = "\n".join(row[0] for row in sql.fetch_all(f"EXPLAIN {statement}", given))
            assert "Seq Scan on runs_fact" not in plan, plan

"""What may be changed in the admin goes through operations: budgets, switches, tokens, grants."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from runs import operations
from runs.access import Role
from runs.journal import RUNTIME
from runs.models import AgentGrant, ApiToken, JournalEntry, Run, Switch
from tests import situations
from tests.admin_tools import ada, client
from tests.people import make_person

__all__ = ["ada", "client"]
pytestmark = pytest.mark.django_db


def budget_form(run: Run, **changes: Any) -> dict[str, Any]:
    budget = run.budget
    budget.refresh_from_db()
    limits = (
        "usd_limit",
        "tokens_limit",
        "calls_limit",
        "effects_limit",
        "steps_limit",
        "working_limit_s",
        "ask_percent",
    )
    shown = {name: "" if getattr(budget, name) is None else getattr(budget, name) for name in limits}
    return shown | {"version": budget.version, "reason": "worth it"} | changes


def test_a_raised_limit_lets_a_waiting_run_go_on_by_itself(client: Client, ada: User) -> None:
    run = situations.start(ada)
    situations.ask_budget(run)
    address = reverse("admin:runs_budget_change", args=[run.pk])
    page = client.get(address)
    assert page.status_code == 200
    assert 'name="usd_limit"' in page.content.decode()
    assert 'name="usd_spent"' not in page.content.decode()
    response = client.post(address, budget_form(run, usd_limit="7.50"))
    assert response.status_code == 302, response.content
    run.refresh_from_db()
    run.budget.refresh_from_db()
    assert (run.state, str(run.budget.usd_limit), run.budget.version) == ("queued", "7.5000000000", 2)
    entry = JournalEntry.objects.get(kind="budget.limits_set")
    assert (entry.actor, entry.why) == ("person:ada", "worth it")


def test_a_stale_form_is_refused(client: Client, ada: User) -> None:
    run = situations.start(ada)
    form = budget_form(run, usd_limit="3.00")
    operations.set_budget(run.pk, {"usd": 5}, reason="first", by=ada)
    response = client.post(reverse("admin:runs_budget_change", args=[run.pk]), form)
    assert response.status_code == 200
    assert "was changed since you opened it" in response.content.decode()
    run.budget.refresh_from_db()
    assert run.budget.usd_limit == 5


def test_a_limit_below_what_is_used_is_refused_in_the_form(client: Client, ada: User) -> None:
    run = situations.start(ada)
    run.budget.tokens_spent = 500
    run.budget.save()
    response = client.post(reverse("admin:runs_budget_change", args=[run.pk]), budget_form(run, tokens_limit=100))
    assert response.status_code == 200
    assert "500 is already spent or reserved" in response.content.decode()


@pytest.mark.parametrize(
    "changes", [{"reason": ""}, {"usd_limit": "-1"}, {"usd_limit": "1e30"}, {"tokens_limit": 2**64}]
)
def test_a_limit_that_cannot_be_is_refused_in_the_form(client: Client, ada: User, changes: dict[str, Any]) -> None:
    run = situations.start(ada)
    response = client.post(reverse("admin:runs_budget_change", args=[run.pk]), budget_form(run, **changes))
    assert response.status_code in (200, 400)
    run.budget.refresh_from_db()
    assert run.budget.version == 1


def test_an_approver_sees_a_budget_and_cannot_change_it(ada: User) -> None:
    run = situations.start(ada)
    client = Client()
    client.force_login(make_person("anna", Role.APPROVER, staff=True))
    address = reverse("admin:runs_budget_change", args=[run.pk])
    assert client.get(address).status_code == 200
    assert client.post(address, budget_form(run, usd_limit="9")).status_code == 403


def test_a_budget_is_neither_added_nor_deleted(client: Client, ada: User) -> None:
    run = situations.start(ada)
    assert client.get(reverse("admin:runs_budget_add")).status_code == 403
    assert client.post(reverse("admin:runs_budget_delete", args=[run.pk]), {"post": "yes"}).status_code == 403


def test_a_switch_is_engaged_and_released(client: Client, ada: User) -> None:
    response = client.post(reverse("admin:runs_switch_add"), {"scope": "all", "reason": "look"})
    assert response.status_code == 302, response.content
    switch = Switch.objects.get()
    assert (switch.scope, switch.engaged_by) == ("all", ada)
    address = reverse("admin:runs_switch_change", args=[switch.pk])
    assert client.post(address, {"release_reason": ""}).status_code == 200
    assert client.post(address, {"release_reason": "mended"}).status_code == 302
    switch.refresh_from_db()
    assert (switch.released_by, switch.release_reason) == (ada, "mended")
    assert client.post(address, {"release_reason": "again"}).status_code == 403
    assert set(JournalEntry.objects.values_list("kind", flat=True)) == {"switch.engaged", "switch.released"}


def test_a_switch_for_nothing_comes_back_with_the_reason(client: Client) -> None:
    response = client.post(reverse("admin:runs_switch_add"), {"scope": "agent:refund-dsek", "reason": "look"})
    assert response.status_code == 400
    text = response.content.decode()
    assert "There is no agent" in text
    assert "refund-dsek" in text
    assert not Switch.objects.exists()


def test_a_viewer_engages_nothing(ada: User) -> None:
    client = Client()
    client.force_login(make_person("vera", Role.VIEWER, staff=True))
    assert client.post(reverse("admin:runs_switch_add"), {"scope": "all", "reason": "look"}).status_code == 403


def test_a_token_is_revoked_and_its_hash_never_shown(client: Client, ada: User) -> None:
    operations.create_token("robot", Role.SERVICE, by=RUNTIME)
    token = ApiToken.objects.get()
    listing = reverse("admin:runs_apitoken_changelist")
    pages = client.get(listing).content.decode()
    pages += client.get(reverse("admin:runs_apitoken_change", args=[token.pk])).content.decode()
    assert token.digest not in pages
    client.post(listing, {"action": "revoke", "_selected_action": [token.pk]})
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert JournalEntry.objects.get(kind="token.revoked").actor == "person:ada"


@pytest.mark.parametrize("model", ["apitoken", "agentgrant"])
def test_only_an_admin_sees_tokens_and_grants(model: str) -> None:
    client = Client()
    client.force_login(make_person("olga", Role.OPERATOR, staff=True))
    assert client.get(reverse(f"admin:runs_{model}_changelist")).status_code == 403
    assert f"/admin/runs/{model}/" not in client.get("/admin/").content.decode()


def test_a_grant_is_made_changed_and_ended_with_a_journal_entry_each(client: Client) -> None:
    group = Group.objects.create(name="night shift")
    assert (
        client.post(reverse("admin:runs_agentgrant_add"), {"group": group.pk, "agent": "refund-desk"}).status_code
        == 302
    )
    grant = AgentGrant.objects.get(group=group)
    change = reverse("admin:runs_agentgrant_change", args=[grant.pk])
    assert client.post(change, {"group": group.pk, "agent": "stock-watch"}).status_code == 302
    grant.refresh_from_db()
    assert grant.agent == "stock-watch"
    assert client.post(reverse("admin:runs_agentgrant_delete", args=[grant.pk]), {"post": "yes"}).status_code == 302
    assert not AgentGrant.objects.filter(group=group).exists()
    assert list(JournalEntry.objects.order_by("pk").values_list("kind", flat=True)) == [
        "grant.set",
        "grant.set",
        "grant.ended",
    ]

"""Prices, allowances and rates in the admin: by those with the right, validated, journalled, a stale form refused."""

from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from runs import limits
from runs.access import Role
from runs.models import Allowance, JournalEntry, Price, ProviderLimit
from tests.admin_tools import ada, client
from tests.people import make_person

__all__ = ["ada", "client"]
pytestmark = pytest.mark.django_db


ALLOWANCE = {"scope": "agent:refund-desk", "dimension": "usd", "period": "day", "zone": "Europe/Berlin", "soft": "8",
             "hard": "10", "reason": "the plan"}  # fmt: skip
PRICE = {"model": "m-new", "above": "0", "uncached": "2", "cache_read": "0.2", "write_5m": "2.5", "write_1h": "4",
         "output": "10", "reason": "the page"}  # fmt: skip


def add(client: Client, model: str, form: dict[str, Any]) -> Any:
    return client.post(reverse(f"admin:runs_{model}_add"), form)


def change(client: Client, model: str, pk: int, form: dict[str, Any]) -> Any:
    return client.post(reverse(f"admin:runs_{model}_change", args=[pk]), form)


def test_an_allowance_is_made_changed_and_ended(client: Client) -> None:
    assert client.get(reverse("admin:runs_allowance_add")).status_code == 200
    assert add(client, "allowance", ALLOWANCE).status_code == 302
    made = Allowance.objects.get()
    page = client.get(reverse("admin:runs_allowance_change", args=[made.pk])).content.decode()
    assert 'name="hard"' in page
    assert 'name="scope"' not in page
    edited = {"soft": "", "hard": "20", "version": 1, "reason": "month end"}
    assert change(client, "allowance", made.pk, edited).status_code == 302
    stale = change(client, "allowance", made.pk, {**edited, "hard": "30"})
    assert stale.status_code == 409
    assert "changed since you opened it" in stale.content.decode()
    made.refresh_from_db()
    assert [made.soft, made.hard, made.version] == [None, 20, 2]
    client.post(reverse("admin:runs_allowance_changelist"), {"action": "end", "_selected_action": [made.pk]})
    made.refresh_from_db()
    assert made.ended_at is not None
    kinds = JournalEntry.objects.order_by("pk").values_list("kind", "actor")
    assert list(kinds) == [(f"allowance.{what}", "person:ada") for what in ("set", "changed", "ended")]


@pytest.mark.parametrize(
    "wrong", [{"zone": "Nowhere"}, {"scope": "team"}, {"hard": "1"}, {"period": "once"}, {"reason": ""}]
)
def test_an_allowance_that_makes_no_sense_comes_back_with_the_reason(client: Client, wrong: dict[str, str]) -> None:
    response = add(client, "allowance", ALLOWANCE | wrong)
    assert response.status_code in (200, 400)
    assert "errorlist" in response.content.decode()
    assert not Allowance.objects.exists()


def test_a_price_is_set_and_withdrawn_and_never_edited(client: Client) -> None:
    assert add(client, "price", PRICE).status_code == 302
    made = Price.objects.get()
    assert (made.model, made.output, made.effective_from) == ("m-new", Decimal(10), None)
    assert add(client, "price", PRICE).status_code == 409
    assert add(client, "price", PRICE | {"model": "m-other", "output": "0"}).status_code in (200, 400)
    page = client.get(reverse("admin:runs_price_change", args=[made.pk])).content.decode()
    assert 'name="output"' not in page
    assert change(client, "price", made.pk, {"withdrawn_because": "wrong page"}).status_code == 302
    made.refresh_from_db()
    assert (made.withdrawn_at is not None, made.withdrawn_because) == (True, "wrong page")
    assert set(JournalEntry.objects.values_list("kind", flat=True)) == {"price.set", "price.withdrawn"}


def test_a_rate_is_set_for_a_credential_that_a_gateway_has(client: Client) -> None:
    with transaction.atomic():
        limits.know("anthropic#1234")
    row = ProviderLimit.objects.get()
    form = {"calls_per_minute": "10", "version": 1, "why": "the contract"}
    assert change(client, "providerlimit", row.pk, form).status_code == 302
    row.refresh_from_db()
    assert (row.calls_per_minute, row.version) == (10, 2)
    assert change(client, "providerlimit", row.pk, form).status_code == 409
    assert JournalEntry.objects.get().why == "the contract"


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.APPROVER, Role.VIEWER])
@pytest.mark.parametrize("model", ["allowance", "price", "providerlimit"])
def test_nobody_else_sees_or_changes_them(role: Role, model: str) -> None:
    client = Client()
    client.force_login(make_person("olga", role, staff=True))
    assert client.get(reverse(f"admin:runs_{model}_changelist")).status_code == 403
    if model != "providerlimit":
        assert add(client, model, PRICE if model == "price" else ALLOWANCE).status_code == 403

"""The admin shows what happened and changes none of it; it shows only what its reader may see."""

import re

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.urls import reverse

from runs import operations
from runs.access import Role
from runs.models import JournalEntry, Run
from tests import situations
from tests.page_tools import client_of
from tests.people import make_person, make_stranger

pytestmark = pytest.mark.django_db

READ_ONLY = [
    "run",
    "step",
    "attempt",
    "fact",
    "key",
    "ledgerentry",
    "journalentry",
    "approval",
    "event",
    "artifact",
    "process",
]
CHANGEABLE = ["budget", "switch", "agentgrant", "apitoken", "allowance", "price", "providerlimit"]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.fixture
def ada() -> User:
    return make_person("ada", Role.ADMIN, staff=True)


def make_rows() -> Run:
    maker = User.objects.create_superuser("maker")
    run = situations.start(maker, goal=HOSTILE, labels={"shop": HOSTILE})
    situations.finish(situations.take(run), {"text": HOSTILE})
    situations.ask_approval(run)
    operations.store_event(name="n", key="k", payload=HOSTILE, source="s", delivery_id="d", by=maker)
    operations.set_budget(run.pk, {"usd": 9}, reason=HOSTILE, by=maker)
    return run


def test_every_table_of_ours_is_in_a_list_of_this_test_or_left_out_on_purpose() -> None:
    shown = {
        model._meta.model_name for model in apps.get_app_config("runs").get_models() if admin.site.is_registered(model)
    }
    assert shown == {*READ_ONLY, *CHANGEABLE}


@pytest.mark.parametrize("model", [*READ_ONLY, *CHANGEABLE])
def test_a_list_and_a_row_are_shown_and_hostile_text_stays_text(ada: User, model: str) -> None:
    make_rows()
    client = client_of(ada)
    page = client.get(reverse(f"admin:runs_{model}_changelist"), {"q": "1"} if model == "run" else {})
    assert page.status_code == 200
    assert "<script>alert" not in page.content.decode()
    cls = apps.get_model("runs", model)
    for row in cls._default_manager.all()[:3]:
        detail = client.get(reverse(f"admin:runs_{model}_change", args=[row.pk]))
        assert detail.status_code == 200, (model, row)
        assert "<script>alert" not in detail.content.decode()
        assert "<img src=x" not in detail.content.decode()


@pytest.mark.parametrize("model", READ_ONLY)
def test_what_happened_is_not_added_changed_or_deleted_here(ada: User, model: str) -> None:
    make_rows()
    client = client_of(ada)
    # Even the superuser: the journal has to stay true.
    for user in (ada, User.objects.get(username="maker")):
        user.is_staff = True
        user.save()
        client.force_login(user)
        assert client.get(reverse(f"admin:runs_{model}_add")).status_code == 403
        row = apps.get_model("runs", model)._default_manager.first()
        if row is None:
            continue
        change, delete = (reverse(f"admin:runs_{model}_{what}", args=[row.pk]) for what in ("change", "delete"))
        assert client.post(change, {"state": "stopped"}).status_code == 403
        assert client.post(delete, {"post": "yes"}).status_code == 403
        page = client.get(reverse(f"admin:runs_{model}_changelist")).content.decode()
        assert "delete_selected" not in page


@pytest.mark.parametrize("model", [*READ_ONLY, "budget"])
def test_rows_of_other_agents_are_not_there(model: str) -> None:
    make_rows()
    client = client_of(make_person("noor", Role.OPERATOR, agents=("stock-watch",), staff=True))
    page = client.get(reverse(f"admin:runs_{model}_changelist"))
    assert page.status_code == 200
    assert "refund" not in page.content.decode()
    if model == "process":
        return
    for row in apps.get_model("runs", model)._default_manager.all()[:2]:
        address = reverse(f"admin:runs_{model}_change", args=[row.pk])
        assert client.get(address, follow=False).status_code in (302, 404)


def test_a_moment_has_its_zone(ada: User) -> None:
    make_rows()
    page = client_of(ada).get(reverse("admin:runs_run_changelist")).content.decode()
    assert re.search(r'field-created_at nowrap">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC<', page)


def test_staff_who_see_no_agent_see_no_table() -> None:
    make_rows()
    user = make_stranger()
    user.is_staff = True
    user.save()
    client = client_of(user)
    assert client.get("/admin/").status_code == 200
    for model in READ_ONLY:
        assert client.get(reverse(f"admin:runs_{model}_changelist")).status_code == 403


@pytest.mark.parametrize("model", [*READ_ONLY, *CHANGEABLE])
def test_a_search_that_finds_nothing_breaks_nothing(ada: User, model: str) -> None:
    client = client_of(ada)
    for query in ({"q": "abc"}, {"q": "9" * 40}, {"q": "a\x00b"}, {"q": "'\\%_"}, {"agent": "x\x00"}, {"p": "99999"}):
        response = client.get(reverse(f"admin:runs_{model}_changelist"), query)
        assert response.status_code in (200, 302, 400), query


def test_a_row_that_cannot_be_there_is_not_found(ada: User) -> None:
    client = client_of(ada)
    for number in ("99999999999999999999999", "abc", "0"):
        assert client.get(f"/admin/runs/run/{number}/change/").status_code in (302, 404)


def test_the_queue_of_django_q_has_no_page(ada: User) -> None:
    assert client_of(ada).get("/admin/django_q/schedule/").status_code == 404


def test_the_admin_bears_the_name_and_leads_back(ada: User) -> None:
    page = client_of(ada).get("/admin/").content.decode()
    assert "Longwatch" in page
    assert 'href="/"' in page
    assert "Django administration" not in page
    assert JournalEntry.objects.count() == 0

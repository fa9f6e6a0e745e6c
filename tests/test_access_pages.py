"""Who may open which page and send which form: for every address of the console, every kind of person.

The table below is held against the URLconf: an address that is missing here fails. The admin has tests of its own
(`test_admin_tables.py`), the API too (`test_access.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, get_resolver

from runs import operations
from runs.access import Role
from runs.models import Run
from tests import situations
from tests.people import make_person, make_stranger

pytestmark = pytest.mark.django_db

VIEWER, OPERATOR, APPROVER, SERVICE, ADMIN = Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.SERVICE, Role.ADMIN
ALL = frozenset(Role)
RUNNERS = frozenset({OPERATOR, ADMIN})


@dataclass(frozen=True, kw_only=True)
class Page:
    """A GET, or with `form` a POST, of an address; who may; what they, and others, are answered."""

    may: frozenset[Role] = ALL
    form: dict[str, str] | None = None
    ok: int = 200
    stranger: int = 404
    signed_out: int = 302
    names: dict[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return "GET" if self.form is None else "POST"


REASON = {"reason": "because"}
PAGES: dict[str, list[Page]] = {
    "": [Page(stranger=200)],
    "panels/home": [Page()],
    "welcome": [Page(form={}, ok=302, stranger=302)],
    "runs": [Page()],
    "runs/new": [Page(may=frozenset({OPERATOR, SERVICE, ADMIN}))],
    "runs/panels/rows": [Page()],
    "runs/<int:number>": [Page()],
    "runs/<int:number>/panels/head": [Page()],
    "runs/<int:number>/panels/side": [Page()],
    "runs/<int:number>/panels/<slug:tab>": [Page()],
    "runs/<int:number>/limits": [Page(may=RUNNERS, form=REASON | {"version": "1", "usd": "5"}, ok=302)],
    "runs/<int:number>/stop": [Page(may=RUNNERS, form=REASON, ok=302)],
    "runs/<int:number>/amend": [Page(may=RUNNERS, form=REASON, ok=302)],
    "runs/<int:number>/pause": [Page(may=RUNNERS, form=REASON, ok=302)],
    "runs/<int:number>/resume": [Page(may=RUNNERS, form=REASON, ok=302)],
    "approvals": [Page()],
    "approvals/panels/list": [Page()],
    "approvals/panels/decided": [Page()],
    "approvals/<int:number>": [Page()],
    "approvals/<int:number>/decision": [
        Page(may=frozenset({APPROVER, ADMIN}), form={"version": "1", "verdict": "approve"}, ok=302)
    ],
    "approvals/<int:number>/panels/evidence": [Page()],
    "approvals/<int:number>/panels/news": [Page()],
    "approvals/<int:number>/freshen": [Page(may=RUNNERS | {APPROVER}, form={}, ok=302)],
    "facts": [Page()],
    "facts/panels/list": [Page()],
    "facts/<int:number>": [Page()],
    "facts/<int:number>/panels/story": [Page()],
    "facts/<int:number>/correct": [Page(may=frozenset({APPROVER, ADMIN}), form={"version": "1", "value": "2"}, ok=302)],
    "facts/<int:number>/extend": [
        Page(may=frozenset({APPROVER, ADMIN}), form={"minutes": "1", "reason": "because"}, ok=302)
    ],
    "approvals/<int:number>/claim": [Page(may=frozenset({APPROVER, ADMIN}), form={}, ok=302)],
    "approvals/<int:number>/release": [Page(may=frozenset({APPROVER, ADMIN}), form={}, ok=409)],
    "approvals/<int:number>/later": [Page(may=frozenset({APPROVER, ADMIN}), form={"minutes": "15"}, ok=302)],
    "approvals/together": [Page()],
    "approvals/together/approve": [Page(may=frozenset({APPROVER, ADMIN}), form={"card": "1.1"})],
    "spend": [Page()],
    "spend/panels/figures": [Page()],
    "ledger": [Page()],
    "ledger.csv": [Page()],
    "credentials": [Page()],
    "credentials/panels/list": [Page()],
    "credentials/renew": [Page(may=frozenset({APPROVER, ADMIN}), form={"name": "model provider"}, ok=302)],
    "switches": [Page()],
    "switches/panels/engaged": [Page()],
    "switches/engage": [Page(may=RUNNERS, form=REASON | {"kind": "agent", "agent": situations.AGENT}, ok=302)],
    "switches/<int:number>/release": [Page(may=RUNNERS, form=REASON, ok=302)],
    "switches/<int:number>/stop-runs": [Page(may=RUNNERS, form=REASON, ok=302)],
    "journal": [Page()],
    "journal.csv": [Page()],
    "facts/<int:number>/recheck": [Page(may=RUNNERS | {APPROVER}, form={}, ok=302)],
    "panels/nav": [Page()],
    "panels/switches": [Page()],
    "theme": [Page(form={"theme": "dark"}, ok=302, stranger=302)],
    "sign-in": [Page(ok=302, stranger=302, signed_out=200)],
    "sign-out": [Page(form={}, ok=302, stranger=302)],
}
# The stream says in itself who may not have it, because a script cannot see why a stream is refused.
STREAMS = {"live", "api/v1/live"}
EACH = [(path, page) for path, pages in PAGES.items() for page in pages]


def read_addresses() -> Iterator[str]:
    for entry in get_resolver().url_patterns:
        if isinstance(entry, URLPattern):
            yield str(entry.pattern)
        elif str(entry.pattern) not in ("admin/", "api/v1/"):
            pytest.fail(f"{entry.pattern} is in no table here")


def test_the_table_names_every_address() -> None:
    assert set(PAGES) | STREAMS == set(read_addresses())


def make_address(path: str) -> str:
    """The address with numbers of things that are there, made by somebody who may."""
    maker = User.objects.create_superuser("maker")
    asking = situations.ask_approval(situations.start(maker))
    if path.endswith("/resume"):
        operations.pause_run(asking.run.pk, reason="set up", by=maker)
    switch = (
        operations.engage_switch(f"run:{asking.run.pk}", reason="set up", by=maker).pk if "switches/" in path else 0
    )
    kinds = {"switches": switch, "runs": asking.run.pk, "approvals": asking.card.pk, "facts": asking.fact.pk}
    number = kinds.get(path.partition("/")[0], 0)
    return "/" + path.replace("<int:number>", str(number)).replace("<slug:tab>", "facts")


def send(client: Client, address: str, page: Page) -> int:
    response = client.get(address) if page.form is None else client.post(address, page.form)
    return response.status_code


@pytest.mark.parametrize(("path", "page"), EACH)
def test_a_page_needs_a_sign_in(path: str, page: Page) -> None:
    address = make_address(path)
    assert send(Client(), address, page) == page.signed_out


@pytest.mark.parametrize(("path", "page"), EACH)
def test_a_stranger_finds_nothing(path: str, page: Page) -> None:
    address, client = make_address(path), Client()
    client.force_login(make_stranger())
    assert send(client, address, page) == page.stranger


@pytest.mark.parametrize(("path", "page"), [(path, page) for path, page in EACH if "<int:number>" in path])
def test_someone_who_sees_another_agent_only_finds_nothing(path: str, page: Page) -> None:
    address, client = make_address(path), Client()
    client.force_login(make_person("noor", Role.OPERATOR, Role.APPROVER, agents=("stock-watch",)))
    assert send(client, address, page) == 404
    assert Run.objects.get().state == "waiting"


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(("path", "page"), EACH)
def test_a_role_may_what_its_table_says(path: str, page: Page, role: Role) -> None:
    address, client = make_address(path), Client()
    client.force_login(make_person("them", role))
    assert send(client, address, page) == (page.ok if role in page.may else 403)


@pytest.mark.parametrize(("path", "page"), [(path, page) for path, page in EACH if page.form is not None])
def test_what_changes_something_is_never_a_get_and_never_from_another_site(path: str, page: Page) -> None:
    address = make_address(path)
    person = make_person("them", Role.ADMIN)
    client = Client()
    client.force_login(person)
    assert client.get(address).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(person)
    assert strict.post(address, page.form).status_code == 403

"""Credentials age too (case E2): looked up at each call, refreshed once, then one card; never stored, shown or logged."""

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from console.env import Environment
from console.logs import OneLine
from runs import clock, operations, sql, vault
from runs.agents import Secret, get_agent
from runs.approvals import Said
from runs.engine import renewing
from runs.engine.sweep import sweep_once
from runs.models import Approval, Attempt, Budget, Credential, JournalEntry, Run
from runs.states import ApprovalState, RunState, StepState, Verdict
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers
from tests.shop_process import ShopProcess
from tests.writers import together

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def credentials_folder(engine: Engine, shop_process: ShopProcess) -> Path:
    return shop_process.folder / "credentials"


def mount(folder: Path, value: str, **more: Any) -> None:
    (folder / "shop").write_text(json.dumps({"value": value, **more}))


def refuse(engine: Engine, order: str, *, status: int = 401, times: int | None = None) -> None:
    engine.shop.add_fault("fail", status=status, times=times, match={"path": f"/orders/{order}", "method": "POST"})


def run_pay(engine: Engine, order: str) -> Run:
    return engine.go(engine.start([call("pay_signed", order=order, amount="5.00")]))


def everything_stored() -> str:
    """Every row of every table of ours, as text."""
    tables = [t for t in connection.introspection.table_names() if t.startswith("runs_")]
    return "\n".join(str(sql.fetch_all(f'SELECT t::text FROM "{table}" t')) for table in tables)


def test_a_refused_token_is_refreshed_once_and_the_call_taken_anew(engine: Engine, credentials_folder: Path) -> None:
    order = engine.order()
    mount(credentials_folder, "token-that-is-old", turn=4)
    refuse(engine, order, times=1)
    run = run_pay(engine, order)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
    (step,) = engine.steps(run, "pay_signed")
    assert [a.outcome for a in Attempt.objects.filter(step=step).order_by("number")] == ["refused", "done"]
    assert json.loads((credentials_folder / "shop").read_text()) == {"turn": 5, "value": "token-of-turn-5"}
    # What was refused cost nothing: the thinks, the call and the end are what is spent.
    assert Budget.objects.get(run=run).effects_spent == 1
    # Neither token stands anywhere, though the tool gave both away.
    stored = everything_stored()
    assert "token-that-is-old" not in stored
    assert "token-of-turn-5" not in stored
    assert dig(step.result, "headers") == {"Authorization": "Bearer [shop]"}


def test_what_cannot_be_refreshed_is_one_card_for_all_runs_and_renewing_it_wakes_them(
    engine: Engine, credentials_folder: Path
) -> None:
    orders = [engine.order() for _ in range(2)]
    mount(credentials_folder, "token-that-is-dead", dead=True)
    for order in orders:
        refuse(engine, order)
    runs = [run_pay(engine, order) for order in orders]
    assert [run.waiting_for for run in runs] == ["credential", "credential"]
    card = Approval.objects.get(kind="credential")
    assert "the refresh token is revoked" in card.why
    # Waiting burns nothing.
    for _ in range(3):
        sweep_once()
        engine.go(runs[0])
    assert Attempt.objects.filter(step__tool="pay_signed").count() == 2
    assert Approval.objects.filter(kind="credential").count() == 1
    # The run that asked is stopped: the other still waits, and asks.
    operations.stop_run(runs[0].pk, reason="not needed", by=engine.person)
    sweep_once()
    card = Approval.objects.get(kind="credential", state=ApprovalState.PENDING)
    assert card.run_id == runs[1].pk
    third = run_pay(engine, orders[0])
    assert third.waiting_for == "credential"
    mount(credentials_folder, "token-that-is-new")
    engine.shop.clear_faults()
    operations.decide(card.pk, Said(verdict=Verdict.RENEWED, version=card.version), by=engine.person)
    for run in (runs[1], third):
        engine.go(run)
        assert run.state == RunState.SUCCEEDED, run.why
    assert [engine.paid(order) for order in orders] == [1, 1]
    assert Credential.objects.get(name="shop").refused_at is None
    assert JournalEntry.objects.filter(kind="credential.renewed", user=engine.person).count() == 1
    assert "token-that-is" not in everything_stored()


def test_a_token_whose_time_is_over_is_not_tried(engine: Engine, credentials_folder: Path) -> None:
    order = engine.order()
    mount(credentials_folder, "token-until-then", expires_at=(clock.now() + timedelta(days=2)).isoformat())
    clock.shift(timedelta(days=3))
    run = engine.start([call("pay_signed", order=order, amount="5.00")], max_age_s=10 * 86_400.0)
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
    assert [line["method"] for line in engine.shop.log(kind="arrived", order=order)].count("POST") == 1


def test_403_is_a_refusal_and_no_expiry(engine: Engine, credentials_folder: Path) -> None:
    order = engine.order()
    mount(credentials_folder, "token-without-scope", turn=1)
    refuse(engine, order, status=403)
    run = run_pay(engine, order)
    (step,) = engine.steps(run, "pay_signed")
    assert (step.state, step.tries, run.state) == (StepState.REFUSED, 1, RunState.SUCCEEDED)
    assert step.error == "Refused: 403 for [shop]"
    assert json.loads((credentials_folder / "shop").read_text())["value"] == "token-without-scope"


def test_of_two_that_are_refused_at_once_one_refreshes_and_both_go_on(engine: Engine, credentials_folder: Path) -> None:
    mount(credentials_folder, "token-that-is-old", turn=0)
    agent = get_agent("scripted")

    def renew() -> str:
        return renewing.renew(agent, "shop", "token-that-is-old", within_s=10)

    assert together(renew, renew) == ["", ""]
    assert json.loads((credentials_folder / "shop").read_text())["turn"] == 1


class TestVault:
    def test_a_file_comes_first_and_counts_as_it_is_now(self, tmp_path: Path, settings: Any) -> None:
        settings.SECRETS_DIR = tmp_path
        settings.SECRETS = Environment(variables={"LONGWATCH_CREDENTIAL_BANK_API": " from-environment "}).read_all(
            "LONGWATCH_CREDENTIAL_"
        )
        assert vault.read("bank-api").value == "from-environment"
        (tmp_path / "bank-api").write_text("from-file\n")
        assert vault.read("bank-api").value == "from-file"
        assert vault.keep(Secret(name="bank-api", value="refreshed"))
        assert vault.read("bank-api").value == "refreshed"
        assert (tmp_path / "bank-api").stat().st_mode & 0o077 == 0
        for name in ("../bank-api", "", "nothing", ".hidden"):
            with pytest.raises(vault.NoSecret):
                vault.read(name)

    def test_what_is_in_the_environment_cannot_be_renewed_there(self, settings: Any) -> None:
        settings.SECRETS_DIR, settings.SECRETS = None, {"bank": "from-environment"}
        assert not vault.keep(Secret(name="bank", value="refreshed"))

    def test_a_secret_is_blanked_out_in_whatever_depth_it_stands_and_in_the_log(self, settings: Any) -> None:
        settings.SECRETS = {"bank": "s3cr3t-value"}
        settings.ANTHROPIC_API_KEY = "sk-ant-12345"
        told = vault.redact({"a": ["x s3cr3t-value y", {"s3cr3t-value": 1}], "b": b"s3cr3t-value"})
        assert told == {"a": ["x [bank] y", {"[bank]": 1}], "b": b"[bank]"}
        record = logging.LogRecord("x", logging.ERROR, "", 0, "sent %s with %s", ("sk-ant-12345", "s3cr3t-value"), None)
        line = OneLine().format(record)
        assert "sk-ant" not in line
        assert "s3cr3t" not in line
        assert "s3cr3t-value" not in repr(vault.read("bank"))

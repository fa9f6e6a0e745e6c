"""Writer of facts. Freshness is judged here alone, by the database's clock, at the moment of asking."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import connection

from runs import sql
from runs.agents import Json, digest
from runs.journal import AGENT, RUNTIME, Actor, append, require_transaction
from runs.models import Fact, Run
from runs.sanitise import clean_json, clean_text
from runs.states import CheckOutcome, FactState


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A fact as it stands now. `fresh_for_s`: how long this judgement holds; 0 when it is not fresh."""

    id: int
    name: str
    value: Json
    version: int
    digest: str
    state: FactState
    age_s: float
    max_age_s: float
    fresh_for_s: float

    @property
    def usable(self) -> bool:
        return self.state in (FactState.FRESH, FactState.AGEING)


def record(
    run: Run,
    *,
    name: str,
    value: Json,
    source: dict[str, Json],
    observed_at: datetime | None,
    max_age_s: float,
    step: int | None = None,
    derived_from: Iterable[str] = (),
    actor: Actor = AGENT,
) -> Fact:
    """Record a claim, or a new version of it. `observed_at`: when the reading that it comes from began.

    An observation older than the one that is kept changes nothing but is refused by the caller; re-signing an old
    observation does not make a fact fresh, because `verified_at` never passes `observed_at` here.
    """
    require_transaction()
    clean, names = clean_json(value), list(derived_from)
    fact = Fact.objects.select_for_update(of=("self",)).filter(run=run, name=name).first()
    tool = str(source.get("tool") or "")
    if fact is None:
        fact = Fact.objects.get(
            pk=sql.fetch_row(
                "INSERT INTO runs_fact (run_id, name, value, version, source, source_tool, source_step_id, observed_at,"
                " verified_at, max_age_s, derived_from, check_tries) VALUES (%s, %s, %s, 1, %s, %s, %s, %s, %s, %s, %s, 0)"
                " RETURNING id",
                [
                    run.pk,
                    clean_text(name),
                    sql.jsonb(clean),
                    sql.jsonb(source),
                    tool,
                    step,
                    observed_at,
                    observed_at,
                    max_age_s,
                    sql.jsonb(names),
                ],
            )[0]
        )
        _add_version(fact, step)
    else:
        changed = digest(fact.value) != digest(clean)
        sql.execute(
            "UPDATE runs_fact SET value = %s, source = %s, source_tool = %s, source_step_id = %s, observed_at = %s,"
            " verified_at = %s, max_age_s = %s, derived_from = %s, version = version + %s, check_failed_at = NULL,"
            " check_tries = 0, contradicted_at = NULL WHERE id = %s",
            [
                sql.jsonb(clean),
                sql.jsonb(source),
                tool,
                step,
                observed_at,
                observed_at,
                max_age_s,
                sql.jsonb(names),
                int(changed),
                fact.pk,
            ],
        )
        fact.refresh_from_db()
        if changed:
            _add_version(fact, step)
    append(
        "fact.recorded",
        actor=actor,
        run=run.pk,
        step=step,
        after={"fact": name, "version": fact.version, "value": clean},
    )
    return fact


def lock(names_or_ids: Iterable[int]) -> None:
    """Lock facts in the order of their ids."""
    require_transaction()
    list(
        Fact.objects.select_for_update(of=("self",)).filter(pk__in=list(names_or_ids)).order_by("pk").values_list("pk")
    )


def judge(run: int, names: Iterable[str], *, lock_rows: bool = False) -> dict[str, Judged]:
    """How each named fact, and each that one is derived from, stands now. A name that is not there is not in the result."""
    judged: dict[str, Judged] = {}
    parents_of: dict[str, list[str]] = {}
    frontier = set(names)
    while frontier:
        rows = _judge_rows(run, sorted(frontier), lock_rows)
        judged.update((fact.name, fact) for fact, _ in rows)
        parents_of.update((fact.name, parents) for fact, parents in rows)
        frontier = {parent for _, parents in rows for parent in parents} - set(judged) if rows else set()
    for name, parents in parents_of.items():
        if not set(parents) <= set(judged):  # derived from something that is not known
            judged[name] = replace(judged[name], state=FactState.UNKNOWN, fresh_for_s=0.0)
    return judged


def check_same(fact: Fact, *, began_at: datetime, step: int) -> None:
    """Its source said the same: verified as of when that reading began. Approvals stand."""
    require_transaction()
    sql.execute(
        "UPDATE runs_fact SET verified_at = greatest(verified_at, %s), check_failed_at = NULL, check_tries = 0,"
        " contradicted_at = NULL WHERE id = %s",
        [began_at, fact.pk],
    )
    _add_check(fact, CheckOutcome.SAME, step, "")


def check_changed(fact: Fact, value: Json, *, began_at: datetime, step: int) -> Fact:
    """Its source says otherwise: a new version, the old one kept."""
    require_transaction()
    old = fact.value
    sql.execute(
        "UPDATE runs_fact SET value = %s, version = version + 1, observed_at = %s, verified_at = %s,"
        " source_step_id = %s, check_failed_at = NULL, check_tries = 0, contradicted_at = NULL WHERE id = %s",
        [sql.jsonb(value), began_at, began_at, step, fact.pk],
    )
    fact.refresh_from_db()
    _add_version(fact, step)
    _add_check(fact, CheckOutcome.CHANGED, step, "")
    append(
        "fact.changed",
        run=fact.run_id,
        step=step,
        before={"value": old},
        after={"fact": fact.name, "value": fact.value},
    )
    return fact


def check_failed(fact: Fact, outcome: CheckOutcome, detail: str, *, step: int) -> int:
    """Its source could not say: value and dates stay. Returns how often in a row."""
    require_transaction()
    tries = int(
        sql.fetch_row(
            "UPDATE runs_fact SET check_failed_at = lw_clock(), check_tries = check_tries + 1 WHERE id = %s"
            " RETURNING check_tries",
            [fact.pk],
        )[0]
    )
    _add_check(fact, outcome, step, detail)
    append("fact.check_failed", run=fact.run_id, step=step, after={"fact": fact.name, "tries": tries}, why=detail)
    return tries


def confirm(fact: Fact, *, actor: Actor) -> None:
    """A person vouches for the value as of now."""
    require_transaction()
    sql.execute(
        "UPDATE runs_fact SET verified_at = lw_clock(), observed_at = coalesce(observed_at, lw_clock()),"
        " check_failed_at = NULL, check_tries = 0, contradicted_at = NULL WHERE id = %s",
        [fact.pk],
    )
    append("fact.confirmed", actor=actor, run=fact.run_id, after={"fact": fact.name})


def correct(fact: Fact, value: Json, *, actor: Actor) -> None:
    """A person says what it really is, as of now."""
    require_transaction()
    old = fact.value
    sql.execute(
        "UPDATE runs_fact SET value = %s, version = version + 1, observed_at = lw_clock(), verified_at = lw_clock(),"
        " check_failed_at = NULL, check_tries = 0, contradicted_at = NULL WHERE id = %s",
        [sql.jsonb(value), fact.pk],
    )
    fact.refresh_from_db()
    _add_version(fact, None)
    append(
        "fact.corrected", actor=actor, run=fact.run_id, before={"value": old}, after={"fact": fact.name, "value": value}
    )


def note_use(judged: Iterable[Judged], *, attempt: int | None = None, approval: int | None = None) -> None:
    """Keep which versions an act or an approval rests on, and how old they were."""
    require_transaction()
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO runs_factuse (fact_id, version, attempt_id, approval_id, age_s, at)"
            " VALUES (%s, %s, %s, %s, %s, lw_clock())",
            [[f.id, f.version, attempt, approval, f.age_s] for f in judged],
        )


def shown(judged: Iterable[Judged]) -> list[dict[str, Json]]:
    """Facts as an approval keeps them: the values that the person saw."""
    return [
        {
            "name": f.name,
            "version": f.version,
            "digest": f.digest,
            "value": f.value,
            "age_s": round(f.age_s, 1),
            "max_age_s": f.max_age_s,
        }
        for f in sorted(judged, key=lambda f: f.name)
    ]


def _judge_rows(run: int, names: list[str], lock_rows: bool) -> list[tuple[Judged, list[str]]]:
    if lock_rows:
        lock(Fact.objects.filter(run_id=run, name__in=names).values_list("pk", flat=True))
    rows = sql.fetch_all(
        "SELECT f.id, f.name, f.value, f.version, f.max_age_s, f.derived_from,"
        " lw_fact_state(f.observed_at, f.verified_at, f.max_age_s, f.check_failed_at, f.contradicted_at, c.at),"
        " coalesce(extract(epoch FROM c.at - f.verified_at), 0)"
        " FROM runs_fact f, (SELECT lw_clock() AS at OFFSET 0) c WHERE f.run_id = %s AND f.name = ANY(%s) ORDER BY f.id",
        [run, names],
    )
    out = []
    for ident, name, value, version, max_age_s, parents, state, age in rows:
        age_s = max(float(age), 0.0)
        usable = state in (FactState.FRESH, FactState.AGEING)
        out.append(
            (
                Judged(
                    id=ident,
                    name=name,
                    value=(parsed := json.loads(value)),
                    version=version,
                    digest=digest(parsed),
                    state=FactState(state),
                    age_s=age_s,
                    max_age_s=max_age_s,
                    fresh_for_s=max(max_age_s - age_s, 0.0) if usable else 0.0,
                ),
                json.loads(parents),
            )
        )
    return out


def _add_version(fact: Fact, step: int | None) -> None:
    sql.execute(
        "INSERT INTO runs_factversion (fact_id, version, value, source, step_id, observed_at, recorded_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, lw_clock())",
        [fact.pk, fact.version, sql.jsonb(fact.value), sql.jsonb(fact.source), step, fact.observed_at],
    )


def _add_check(fact: Fact, outcome: CheckOutcome, step: int, detail: str) -> None:
    sql.execute(
        "INSERT INTO runs_factcheck (fact_id, step_id, outcome, detail, at) VALUES (%s, %s, %s, %s, lw_clock())",
        [fact.pk, step, outcome, clean_text(detail)],
    )
    append("fact.checked", actor=RUNTIME, run=fact.run_id, step=step, after={"fact": fact.name, "outcome": outcome})

"""Writer of facts. Freshness is judged here alone, by the database's clock, at the moment of asking."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from runs import clock, sql
from runs.agents import Json, digest
from runs.errors import Conflict, Malformed
from runs.journal import AGENT, RUNTIME, Actor, append, require_transaction
from runs.models import Fact, Run
from runs.models.fact import LONGEST_AGE_S
from runs.sanitise import clean_json, clean_text
from runs.states import FACT_USABLE, CheckOutcome, FactState

NAME_CHARS = 200


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
        return self.state in FACT_USABLE


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

    Re-signing an old observation does not make a fact fresh: `verified_at` is never later than a reading began.

    Raises:
        Malformed (a name or max age that cannot be kept); Conflict (another value, read before the newest reading).
    """
    require_transaction()
    name, clean = clean_text(name), clean_json(value)
    parents = list(dict.fromkeys(clean_text(parent) for parent in derived_from))
    if not 0 < len(name) <= NAME_CHARS:
        raise Malformed(f"The name of a fact has 1 to {NAME_CHARS} characters; this one has {len(name)}.")
    if not 0 < max_age_s < LONGEST_AGE_S:
        raise Malformed(f"{max_age_s} s is no max age.", remedy="Give seconds, above 0.")
    fact = Fact.objects.select_for_update(of=("self",), no_key=True).filter(run=run, name=name).first()
    new = fact is None
    changed = fact is not None and digest(fact.value) != digest(clean)
    if fact and changed and observed_at and fact.verified_at and observed_at < fact.verified_at <= clock.now():
        raise Conflict(
            f"{name} was read again later, at {fact.verified_at:%Y-%m-%d %H:%M:%S} UTC; that value is kept.",
            remedy="Read it again if it has changed since.",
        )
    columns: dict[str, object] = {
        "source": sql.jsonb(source),
        "source_tool": clean_text(str(source.get("tool") or ""))[:100],
        "source_step_id": step,
        "max_age_s": max_age_s,
        "own_max_age_s": max_age_s if parents else None,
        "derived_from": sql.jsonb(parents),
        "extended_from_s": None,
    }
    if fact is None:
        fact = _insert(run, name, clean, observed_at, columns)
    else:
        # `observed_at` is when this value was first read; the same value read again only moves `verified_at`.
        sql.execute(
            f"UPDATE runs_fact SET {', '.join(f'{column} = %({column})s' for column in columns)}, value = %(value)s,"
            f" observed_at = CASE WHEN %(changed)s THEN %(at)s ELSE {_FIRST_OBSERVED} END,"
            f" verified_at = CASE WHEN %(changed)s THEN %(at)s ELSE {_LAST_VERIFIED} END,"
            f" version = version + %(changed)s::int, {_SETTLED_BY_READING} WHERE id = %(id)s",
            {**columns, "value": sql.jsonb(clean), "changed": changed, "at": observed_at, "id": fact.pk},
        )
        fact.refresh_from_db()
    if parents and {*parents} & {*names_resting_on(run, name)}:
        # It is known only by itself; and so is what it is derived from.
        sql.execute("UPDATE runs_fact SET observed_at = NULL, verified_at = NULL WHERE id = %s", [fact.pk])
    _inherit(fact)
    if new or changed:
        _add_version(fact, step)
    _tell_derived(fact, changed=changed)
    append(
        "fact.recorded",
        actor=actor,
        run=run.pk,
        step=step,
        after={"fact": name, "version": fact.version, "value": clean},
    )
    return fact


def lock(ids: Iterable[int]) -> None:
    """Lock facts in the order of their ids."""
    require_transaction()
    list(
        Fact.objects.select_for_update(of=("self",), no_key=True)
        .filter(pk__in=list(ids))
        .order_by("pk")
        .values_list("pk")
    )


def judge(run: int, names: Iterable[str], *, lock_rows: bool = False) -> dict[str, Judged]:
    """How each named fact, and each that one is derived from, stands now. A name that is not there is not in the result.

    A derived fact by its own row: that holds what its parents allow (`_INHERIT`).
    """
    names = [clean_text(name) for name in names]
    judged: dict[str, Judged] = {}
    frontier = set(names)
    while frontier:
        rows = _judge_rows(run, sorted(frontier), lock_rows)
        judged.update((fact.name, fact) for fact, _ in rows)
        frontier = {parent for _, parents in rows for parent in parents} - set(judged) if rows else set()
    return judged


def names_resting_on(run: Run, name: str) -> list[str]:
    """A fact, and every one that is derived from it."""
    names, grew = {name}, True
    derived = list(Fact.objects.filter(run=run).exclude(derived_from=[]).values_list("name", "derived_from"))
    while grew:
        more = {child for child, parents in derived if names & set(parents)} - names
        names |= more
        grew = bool(more)
    return sorted(names)


def check_same(fact: Fact, *, began_at: datetime, step: int) -> None:
    """Its source said the same: verified as of when that reading began. Approvals stand."""
    require_transaction()
    sql.execute(
        f"UPDATE runs_fact SET observed_at = {_FIRST_OBSERVED}, verified_at = {_LAST_VERIFIED}, {_SETTLED_BY_READING},"
        f" {_NOT_EXTENDED} WHERE id = %(id)s",
        {"at": began_at, "id": fact.pk},
    )
    _inherit(fact)
    _tell_derived(fact, changed=False)
    _add_check(fact, CheckOutcome.SAME, step, "")


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A fact with the value that a try rested on, and the one that it has now."""

    name: str
    old: Json
    new: Json


def changed_since_tried(step: int) -> Changed | None:
    """The first fact that has another version now than when a step was tried before; its facts are locked."""
    row = sql.fetch_one(
        "SELECT f.name, v.value, f.value FROM runs_attempt a JOIN runs_factuse u ON u.attempt_id = a.id"
        " JOIN runs_fact f ON f.id = u.fact_id"
        " LEFT JOIN runs_factversion v ON v.fact_id = f.id AND v.version = u.version"
        " WHERE a.step_id = %s AND f.version <> u.version ORDER BY f.name, a.id LIMIT 1",
        [step],
    )
    if row is None:
        return None
    name, old, new = row
    return Changed(name=name, old=json.loads(old) if old else None, new=json.loads(new) if new else None)


def check_changed(fact: Fact, value: Json, *, began_at: datetime, step: int) -> Fact:
    """Its source says otherwise: a new version, the old one kept."""
    require_transaction()
    old = fact.value
    sql.execute(
        "UPDATE runs_fact SET value = %(value)s, version = version + 1, observed_at = %(at)s, verified_at = %(at)s,"
        f" source_step_id = %(step)s, {_SETTLED_BY_READING}, {_NOT_EXTENDED} WHERE id = %(id)s",
        {"value": sql.jsonb(value), "at": began_at, "step": step, "id": fact.pk},
    )
    fact.refresh_from_db()
    _inherit(fact)
    _add_version(fact, step)
    _tell_derived(fact, changed=True)
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
        "UPDATE runs_fact SET verified_at = c.at, observed_at = coalesce(observed_at, c.at), check_failed_at = NULL,"
        f" check_tries = 0, contradicted_at = NULL, {_NOT_EXTENDED} FROM {_NOW} WHERE id = %s",
        [fact.pk],
    )
    _inherit(fact)
    _tell_derived(fact, changed=False)
    append("fact.confirmed", actor=actor, run=fact.run_id, after={"fact": fact.name})


def correct(fact: Fact, value: Json, *, actor: Actor) -> None:
    """A person says what it really is, as of now."""
    require_transaction()
    old = fact.value
    sql.execute(
        "UPDATE runs_fact SET value = %s, version = version + 1, observed_at = c.at, verified_at = c.at,"
        f" check_failed_at = NULL, check_tries = 0, contradicted_at = NULL, {_NOT_EXTENDED} FROM {_NOW} WHERE id = %s",
        [sql.jsonb(value), fact.pk],
    )
    fact.refresh_from_db()
    _inherit(fact)
    _add_version(fact, None, source={"person": actor.name})
    _tell_derived(fact, changed=True)
    append(
        "fact.corrected", actor=actor, run=fact.run_id, before={"value": old}, after={"fact": fact.name, "value": value}
    )


def extend(fact: Fact, *, by_s: float, actor: Actor, why: str) -> None:
    """Let a fact be used for longer than its max age: once, at most as long again, until it is read again.

    Raises: Malformed, Conflict.
    """
    require_transaction()
    if not why.strip():
        raise Malformed("Extending a fact needs a reason.", remedy="Say why the value still holds.")
    if fact.derived_from:
        raise Conflict(
            f"{fact.name} lasts as long as what it follows from.", remedy=f"Extend {', '.join(fact.derived_from)}."
        )
    if fact.extended_from_s is not None:
        raise Conflict(f"{fact.name} was extended already.", remedy="Check it again, confirm or correct it.")
    if not 0 < by_s <= fact.max_age_s:
        raise Malformed(
            f"{fact.name} can be extended by at most its own limit, {fact.max_age_s:g} s; this is {by_s:g} s.",
            remedy="Give less, or check it again.",
        )
    sql.execute(
        "UPDATE runs_fact SET extended_from_s = max_age_s, max_age_s = max_age_s + %s WHERE id = %s", [by_s, fact.pk]
    )
    append(
        "fact.extended",
        actor=actor,
        run=fact.run_id,
        before={"max_age_s": fact.max_age_s},
        after={"fact": fact.name, "max_age_s": fact.max_age_s + by_s},
        why=why,
    )
    fact.refresh_from_db()
    _tell_derived(fact, changed=False)


def retire(run: int) -> None:
    """The run has ended: its facts hold nothing up any more."""
    require_transaction()
    sql.queue("UPDATE runs_fact SET live = false WHERE run_id = %s AND live", [run])


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


# The running clock, once for a whole statement.
_NOW = "(SELECT lw_clock() AS at OFFSET 0) c"

# A reading ends what a person had allowed beyond the max age.
_NOT_EXTENDED = "max_age_s = coalesce(extended_from_s, max_age_s), extended_from_s = NULL"

# A date that has not come yet is none.
_FIRST_OBSERVED = "CASE WHEN observed_at <= lw_clock() THEN observed_at ELSE %(at)s END"
_LAST_VERIFIED = "CASE WHEN verified_at <= lw_clock() THEN greatest(verified_at, %(at)s) ELSE %(at)s END"

# A reading settles the doubts that are older than itself.
_SETTLED_BY_READING = """
    check_tries = CASE WHEN check_failed_at > %(at)s THEN check_tries ELSE 0 END,
    check_failed_at = CASE WHEN check_failed_at > %(at)s THEN check_failed_at END,
    contradicted_at = CASE WHEN contradicted_at > %(at)s THEN contradicted_at END
"""


def _tell_derived(fact: Fact, *, changed: bool) -> None:
    """What follows from a fact is contradicted once that has another value; else it ages as its parents do now."""
    if not changed:
        _pass_on(fact)
        return
    sql.execute(
        f"""
        WITH RECURSIVE below AS (
            SELECT id, name FROM runs_fact WHERE run_id = %(run)s AND derived_from ? %(name)s
            UNION SELECT f.id, f.name FROM runs_fact f JOIN below b ON f.derived_from ? b.name WHERE f.run_id = %(run)s
        )
        UPDATE runs_fact f SET contradicted_at = c.at FROM below, {_NOW} WHERE f.id = below.id AND f.id <> %(id)s
        """,
        {"run": fact.run_id, "name": fact.name, "id": fact.pk},
    )


def _pass_on(fact: Fact) -> None:
    """Let what only follows from a fact be verified with it, and with what follows from that; each as far as it changes."""
    given = {"run": fact.run_id, "name": fact.name, "id": None, "verified_with": True}
    for ident, name in sql.fetch_all(_INHERIT, given):
        _pass_on(Fact(pk=ident, run_id=fact.run_id, name=name))


def _inherit(fact: Fact) -> None:
    """A derived fact is as old as its oldest parent, lasts no longer than any of them, and is no better than its worst."""
    if fact.derived_from:
        sql.execute(_INHERIT, {"run": fact.run_id, "name": None, "id": fact.pk, "verified_with": False})
        fact.refresh_from_db()


# A derived fact holds in its own columns what its parents allow, so that whoever reads it judges by these alone. Its
# parents are all there and have their dates, or it has none. `verified_with`: what nothing has read is verified with them.
_INHERIT = """
    UPDATE runs_fact f SET observed_at = n.observed_at, verified_at = n.verified_at, max_age_s = n.max_age_s,
        contradicted_at = n.contradicted_at
    FROM (
        SELECT d.id, CASE WHEN d.observed_at IS NOT NULL THEN least(d.observed_at, p.oldest) END AS observed_at,
            v.verified_at, least(d.own_max_age_s, extract(epoch FROM p.ends - v.verified_at)::float8) AS max_age_s,
            coalesce(d.contradicted_at, p.contradicted_at) AS contradicted_at
        FROM runs_fact d
        CROSS JOIN LATERAL (
            SELECT CASE WHEN jsonb_array_length(d.derived_from) = count(*) FILTER (WHERE p.observed_at <= p.verified_at
                        AND p.verified_at <= lw_clock() AND isfinite(p.verified_at)) THEN min(p.verified_at) END AS oldest,
                min(p.verified_at + make_interval(secs => p.max_age_s)) AS ends, max(p.contradicted_at) AS contradicted_at
            FROM runs_fact p WHERE p.run_id = d.run_id AND d.derived_from ? p.name AND p.id <> d.id
        ) p
        CROSS JOIN LATERAL (
            SELECT CASE WHEN p.oldest IS NULL OR d.observed_at IS NULL THEN NULL
                        WHEN %(verified_with)s AND d.source_tool = '' THEN p.oldest
                        ELSE least(coalesce(d.verified_at, d.observed_at), p.oldest) END AS verified_at
        ) v
        WHERE d.run_id = %(run)s AND (d.id = %(id)s OR (d.derived_from ? %(name)s AND d.contradicted_at IS NULL))
    ) n
    WHERE f.id = n.id AND (f.observed_at, f.verified_at, f.max_age_s, f.contradicted_at)
        IS DISTINCT FROM (n.observed_at, n.verified_at, n.max_age_s, n.contradicted_at)
    RETURNING f.id, f.name
"""


def _insert(run: Run, name: str, value: Json, observed_at: datetime | None, columns: dict[str, object]) -> Fact:
    (ident,) = sql.fetch_row(
        f"INSERT INTO runs_fact (run_id, name, value, version, observed_at, verified_at, check_tries, live,"
        f" {', '.join(columns)}) VALUES (%s, %s, %s, 1, %s, %s, 0, true, {', '.join(['%s'] * len(columns))}) RETURNING id",
        [run.pk, name, sql.jsonb(value), observed_at, observed_at, *columns.values()],
    )
    return Fact.objects.get(pk=ident)


def _judge_rows(run: int, names: list[str], lock_rows: bool) -> list[tuple[Judged, list[str]]]:
    if lock_rows:
        lock(Fact.objects.filter(run_id=run, name__in=names).values_list("pk", flat=True))
    rows = sql.fetch_all(
        "SELECT f.id, f.name, f.value, f.version, f.max_age_s, f.derived_from,"
        " lw_fact_state(f.observed_at, f.verified_at, f.max_age_s, f.check_failed_at, f.contradicted_at, c.at),"
        " coalesce(extract(epoch FROM c.at - f.verified_at), 0)"
        f" FROM runs_fact f, {_NOW} WHERE f.run_id = %s AND f.name = ANY(%s) ORDER BY f.id",
        [run, names],
    )
    out = []
    for ident, name, value, version, max_age_s, parents, state, age in rows:
        age_s = max(float(age), 0.0)
        usable = state in FACT_USABLE
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


def _add_version(fact: Fact, step: int | None, *, source: Json = None) -> None:
    sql.execute(
        "INSERT INTO runs_factversion (fact_id, version, value, source, step_id, observed_at, recorded_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, lw_clock())",
        [fact.pk, fact.version, sql.jsonb(fact.value), sql.jsonb(source or fact.source), step, fact.observed_at],
    )


def _add_check(fact: Fact, outcome: CheckOutcome, step: int, detail: str) -> None:
    sql.execute(
        "INSERT INTO runs_factcheck (fact_id, step_id, outcome, detail, at) VALUES (%s, %s, %s, %s, lw_clock())",
        [fact.pk, step, outcome, clean_text(detail)],
    )
    append("fact.checked", actor=RUNTIME, run=fact.run_id, step=step, after={"fact": fact.name, "outcome": outcome})

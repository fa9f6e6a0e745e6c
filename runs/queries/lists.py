"""The lists of one run: each a page, oldest first, in one or two queries however long it is."""

from collections.abc import Collection
from typing import Any

from django.db.models import Case, Count, F, Func, IntegerField, Prefetch, QuerySet, TextField, Value, When
from django.db.models.fields.json import JSONField
from django.db.models.functions import Cast, Coalesce

from runs.models import Attempt, Fact, JournalEntry, Key, LedgerEntry, Step, WorkItem
from runs.queries.clock import Now
from runs.queries.paging import Page, Window, cut, in_range, within
from runs.queries.shapes import AttemptRow, FactRow, JournalRow, KeyRow, LedgerRow, StepRow, WorkRow

RESULT_IN_LIST = 16 * 1024  # bytes


class _Bytes(Func):
    """Bytes of a value as text. As stored it may be compressed, and then says nothing about what a list would carry."""

    function = "octet_length"
    output_field = IntegerField()


class _FactState(Func):
    function = "lw_fact_state"
    output_field = TextField()


def list_steps(run: int, window: Window) -> Page[StepRow]:
    """Steps with their tries; a large result stays where it is."""
    rows = _select_steps(Step.objects.filter(run=run), window, "number")
    small = rows.defer("result").annotate(
        small_result=Case(
            When(size__lte=RESULT_IN_LIST, then=F("result")), default=Value(None), output_field=JSONField()
        )
    )
    return cut(
        list(small[: window.limit + 1]),
        window,
        place=lambda step: step.number,
        show=lambda step: _show_step(step, step.small_result),
    )


def find_step(run: int, number: int) -> StepRow | None:
    """A step of a run by its number, whole."""
    if number > 2**31 - 1:
        return None
    step = _select_steps(Step.objects.filter(run=run, number=number), Window(), "number").first()
    return _show_step(step, step.result) if step else None


def list_facts(run: int, window: Window) -> Page[FactRow]:
    rows = select_facts(_after(Fact.objects.filter(run=run), window))
    return cut(list(rows[: window.limit + 1]), window, place=lambda fact: fact.pk, show=_show_fact)


def find_fact(number: int, *, agents: Collection[str]) -> FactRow | None:
    if not in_range(number):
        return None
    fact = select_facts(within(Fact.objects.filter(pk=number), agents, "run__agent")).first()
    return _show_fact(fact) if fact else None


def list_keys(run: int, window: Window) -> Page[KeyRow]:
    rows = (
        _after(Key.objects.filter(run=run), window)
        .select_related("step", "artifact")
        .only(*_own_columns(Key), "step__number", "artifact__digest")
        .annotate(tries=Count("attempts"))
    )

    def show(key: Any) -> KeyRow:
        return KeyRow(
            id=key.pk,
            key=key.header,
            run=key.run_id,
            step=key.step.number,
            tool=key.tool,
            identity=key.identity,
            occurrence=key.occurrence,
            generation=key.generation,
            state=key.state,
            approval=key.approval_id,
            arguments=key.arguments,
            result=key.result,
            artifact=f"sha256:{key.artifact.digest}" if key.artifact else None,
            evidence=key.evidence,
            closed_how=key.closed_how,
            replays=key.replays,
            attempts=key.tries,
            taken_at=key.taken_at,
            closed_at=key.closed_at,
        )

    return cut(list(rows[: window.limit + 1]), window, place=lambda key: key.pk, show=show)


def list_ledger(run: int, window: Window) -> Page[LedgerRow]:
    """What touched a run's budget: its own steps' entries and its descendants'."""
    rows = _after(LedgerEntry.objects.filter(budget=run), window).annotate(
        step_number=F("attempt__step__number"), attempt_number=F("attempt__number")
    )

    def show(entry: Any) -> LedgerRow:
        return LedgerRow(
            id=entry.pk,
            kind=entry.kind,
            run=entry.run_id,
            step=entry.step_number,
            attempt=entry.attempt_number,
            usd=entry.usd,
            tokens=entry.tokens,
            calls=entry.calls,
            effects=entry.effects,
            steps=entry.steps,
            estimated=entry.estimated,
            model=entry.model,
            usage=entry.usage,
            price=entry.price,
            note=entry.note,
            at=entry.at,
        )

    return cut(list(rows[: window.limit + 1]), window, place=lambda entry: entry.pk, show=show)


def list_work(run: int, window: Window) -> Page[WorkRow]:
    rows = _after(WorkItem.objects.filter(run=run), window).annotate(
        opened=F("opened_by__number"), closed=F("closed_by__number")
    )

    def show(item: Any) -> WorkRow:
        return WorkRow(
            id=item.pk,
            item=item.ref,
            title=item.title,
            state=item.state,
            outcome=item.outcome,
            opened_by=item.opened,
            closed_by=item.closed,
            created_at=item.created_at,
            closed_at=item.closed_at,
        )

    return cut(list(rows[: window.limit + 1]), window, place=lambda item: item.pk, show=show)


def list_journal(run: int, window: Window) -> Page[JournalRow]:
    """A run's journal. `seq` is given out under the run's lock, so nothing that commits late lies behind a cursor."""
    rows = JournalEntry.objects.filter(run=run)
    if window.newest_first:
        rows = (rows.filter(seq__lt=window.after) if window.after is not None else rows).order_by("-seq")
    else:
        rows = rows.filter(seq__gt=window.after or 0).order_by("seq")

    def show(entry: Any) -> JournalRow:
        return JournalRow(
            seq=entry.seq,
            at=entry.at,
            kind=entry.kind,
            actor=entry.actor,
            step=entry.step_number,
            before=entry.before,
            after=entry.after,
            why=entry.why,
        )

    found = list(rows.annotate(step_number=F("step__number"))[: window.limit + 1])
    return cut(found, window, place=lambda entry: entry.seq or 0, show=show)


def _after[M: Any](rows: QuerySet[M], window: Window) -> QuerySet[M]:
    if window.newest_first:
        return (rows.filter(pk__lt=window.after) if window.after is not None else rows).order_by("-pk")
    return (rows.filter(pk__gt=window.after) if window.after is not None else rows).order_by("pk")


def _select_steps(rows: QuerySet[Step], window: Window, order: str) -> Any:
    if window.after is not None:
        rows = rows.filter(number__gt=window.after)
    tries = Attempt.objects.order_by("number").defer("progress")
    return (
        rows.order_by(order)
        .annotate(
            size=Coalesce(_Bytes(Cast("result", TextField())), 0),
            reply=F("reply_to__number"),
            replayed=F("replay_of__number"),
            fact_name=F("fact__name"),
            artifact_digest=F("artifact__digest"),
        )
        .prefetch_related(Prefetch("attempts", queryset=tries, to_attr="tries_made"))
    )


def _show_step(step: Any, result: Any) -> StepRow:
    return StepRow(
        id=step.pk,
        number=step.number,
        kind=step.kind,
        state=step.state,
        reply_to=step.reply,
        tool=step.tool,
        asked=step.asked,
        arguments=step.arguments,
        because=step.because,
        rests_on=step.rests_on,
        again=step.again,
        fact=step.fact_name,
        gated=step.gated,
        gate_reason=step.gate_reason,
        waiting_for=step.waiting_for,
        waiting_on=step.waiting_on,
        wait_note=step.wait_note,
        wake_at=step.wake_at,
        and_then=step.and_then,
        tries=step.tries,
        result=result,
        result_bytes=step.size,
        artifact=f"sha256:{step.artifact_digest}" if step.artifact_digest else None,
        error=step.error,
        replay_of=step.replayed,
        usd=step.usd,
        created_at=step.created_at,
        began_at=step.began_at,
        ended_at=step.ended_at,
        attempts=[
            AttemptRow(
                number=attempt.number,
                outcome=attempt.outcome,
                taken_at=attempt.taken_at,
                began_at=attempt.began_at,
                ended_at=attempt.ended_at,
                error=attempt.error,
                exit_status=attempt.exit_status,
                exit_signal=attempt.exit_signal,
                late=attempt.late,
            )
            for attempt in step.tries_made
        ],
    )


def select_facts(rows: QuerySet[Fact]) -> Any:
    """Facts with the moment of reading as `now`, and their `state` at it."""
    times = ("observed_at", "verified_at", "max_age_s", "check_failed_at", "contradicted_at")
    return rows.annotate(now=Now(), state=_FactState(*times, Now()))


def _show_fact(fact: Any) -> FactRow:
    age = max((fact.now - fact.verified_at).total_seconds(), 0.0) if fact.verified_at else None
    return FactRow(
        id=fact.pk,
        run=fact.run_id,
        name=fact.name,
        value=fact.value,
        version=fact.version,
        source=fact.source,
        observed_at=fact.observed_at,
        verified_at=fact.verified_at,
        age_s=None if age is None else round(age, 3),
        max_age_s=fact.max_age_s,
        state=fact.state,
        derived_from=fact.derived_from,
        check_failed_at=fact.check_failed_at,
        check_tries=fact.check_tries,
    )


def _own_columns(model: Any) -> list[str]:
    return [f.name for f in model._meta.concrete_fields]

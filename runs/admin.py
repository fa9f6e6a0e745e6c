"""The plain Django admin, for configuration and forensics: what happened is read; changes go through operations."""

from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import BadRequest
from django.core.paginator import Paginator
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

from runs import access, clock, operations
from runs.access import Action
from runs.agents import get_agents
from runs.allowances import Terms
from runs.errors import LongwatchError
from runs.models import (
    AgentGrant,
    Allowance,
    AllowanceWindow,
    ApiToken,
    Approval,
    Artifact,
    Attempt,
    Budget,
    Decision,
    Event,
    Fact,
    JournalEntry,
    Key,
    LedgerEntry,
    Price,
    Process,
    ProviderLimit,
    Run,
    Step,
    Switch,
)
from runs.models.budget import DIMENSIONS
from runs.models.price import RATES
from runs.prices import NewPrice
from runs.queries.paging import EVERY_AGENT, sees, within
from runs.queries.switches import visible_switches

# Their classes are generic for the type checker only.
if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
    ModelForm = forms.ModelForm[Any]
    PlainPaginator = Paginator[Any]
else:
    ModelAdmin, TabularInline, ModelForm, PlainPaginator = (
        admin.ModelAdmin,
        admin.TabularInline,
        forms.ModelForm,
        Paginator,
    )

COUNTED = 10_000


class CappedPaginator(PlainPaginator):
    """Counts no further than it has to: the number of all rows of a long table is worth no minute of the database."""

    @cached_property
    def count(self) -> int:
        rows = cast(QuerySet[Model], self.object_list)
        return int(rows.order_by()[:COUNTED].values("pk").count())


class AgentFilter(admin.SimpleListFilter):
    """The agents that are installed: asking the table for its distinct names would read all of it."""

    title = parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        agents = access.visible_agents(_person(request))
        return [(name, name) for name in sorted(get_agents()) if sees(agents, name)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        if name not in get_agents():
            return queryset
        return queryset.filter(**{"agent" if queryset.model is Run else "run__agent": name})


class ReadOnly(ModelAdmin):
    """Rows of agents that the reader may see. `agent_path` leads from the model to an agent's name."""

    agent_path = "run__agent"
    heavy: tuple[str, ...] = ()  # columns that a list does without
    actions: Any = None
    show_full_result_count = False
    paginator = CappedPaginator
    list_per_page = 50
    ordering = ("-pk",)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.VIEW)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return access.may(_person(request), Action.VIEW)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        # The admin takes any column as a filter and compares it with what came; PostgreSQL has no text with a NUL.
        if any("\x00" in value for values in request.GET.lists() for value in values[1]):
            raise BadRequest("NUL in the query")
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = self.narrow(super().get_queryset(request), access.visible_agents(_person(request)))
        match = request.resolver_match
        return rows.defer(*self.heavy) if match and (match.url_name or "").endswith("_changelist") else rows

    def narrow(self, rows: QuerySet[Any], agents: set[str]) -> QuerySet[Any]:
        return within(rows, agents, self.agent_path)


class RefusableForm(ModelForm):
    """A form that shows what an operation answered when it was tried with these values."""

    refusal = ""

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.refusal:
            raise forms.ValidationError(self.refusal)
        return cleaned


class ThroughOperations(ReadOnly):
    """Saves by an operation, which opens its own transaction; what it refuses comes back as the form's error."""

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        view = self._changeform_view  # type: ignore[attr-defined]  # without the transaction that the admin opens around it
        try:
            return cast(HttpResponse, view(request, object_id, form_url, extra_context))
        except LongwatchError as error:
            request.refusal = str(error)  # type: ignore[attr-defined]
            response = cast(HttpResponse, view(request, object_id, form_url, extra_context))
            response.status_code = error.status
            return response

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"refusal": getattr(request, "refusal", "")})


class BudgetForm(RefusableForm):
    version = forms.IntegerField(widget=forms.HiddenInput)
    reason = forms.CharField(widget=forms.Textarea(attrs={"rows": 2}), help_text="Kept in the journal.")

    class Meta:
        model = Budget
        fields = [*(f"{d}_limit" for d in DIMENSIONS), "working_limit_s", "ask_percent"]
        labels = {
            "usd_limit": "USD",
            "tokens_limit": "Tokens",
            "calls_limit": "Model calls",
            "effects_limit": "Effects",
            "steps_limit": "Steps",
            "working_limit_s": "Working time, in seconds",
            "ask_percent": "Ask above, in percent",
        }
        help_texts = {
            "ask_percent": "A step that may take more than this share of the USD or token limit asks a person first."
        }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("version") not in (None, self.instance.version):
            raise forms.ValidationError("This budget was changed since you opened it. Open it again, then edit.")
        for dimension in DIMENSIONS:
            limit = cleaned.get(f"{dimension}_limit")
            used = getattr(self.instance, f"{dimension}_spent") + getattr(self.instance, f"{dimension}_reserved")
            if limit is not None and limit < used and f"{dimension}_limit" in self.changed_data:
                self.add_error(f"{dimension}_limit", f"{used} is already spent or reserved.")
        return cleaned


@admin.register(Budget)
class BudgetAdmin(ThroughOperations):
    form = BudgetForm
    list_display = ("run", "usd_spent", "usd_reserved", "usd_limit", "tokens_spent", "tokens_limit")
    list_select_related = ("run",)
    search_fields = ("run__id__exact",)
    readonly_fields = (
        "run",
        *(f"{d}_{part}" for d in DIMENSIONS for part in ("spent", "reserved", "overrun")),
        "unlimited_because",
    )
    fieldsets = (
        (None, {"fields": ("run", "version", "unlimited_because")}),
        ("Limits (empty: no limit)", {"fields": (*(f"{d}_limit" for d in DIMENSIONS), "working_limit_s")}),
        (None, {"fields": ("ask_percent", "reason")}),
        (
            "Used",
            {"fields": tuple(tuple(f"{d}_{part}" for part in ("spent", "reserved", "overrun")) for d in DIMENSIONS)},
        ),
    )

    def has_change_permission(self, request: HttpRequest, obj: Budget | None = None) -> bool:
        return access.may(_person(request), Action.BUDGET, obj.run.agent if obj else None)

    def save_model(self, request: HttpRequest, obj: Budget, form: Any, change: bool) -> None:
        names = {f"{d}_limit": d for d in DIMENSIONS} | {"working_limit_s": "working_s", "ask_percent": "ask_percent"}
        limits = {name: form.cleaned_data[field] for field, name in names.items() if field in form.changed_data}
        operations.set_budget(
            obj.run_id,
            limits,
            reason=form.cleaned_data["reason"],
            by=_person(request),
            version=form.cleaned_data["version"],
        )


class ForMoney(ThroughOperations):
    """Concerns the runs of every agent: seen and changed by those who may change money."""

    def narrow(self, rows: QuerySet[Any], agents: set[str]) -> QuerySet[Any]:
        return rows

    def has_module_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.MONEY)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return access.may(_person(request), Action.MONEY)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.MONEY)


class AllowanceForm(RefusableForm):
    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    reason = forms.CharField(widget=forms.Textarea(attrs={"rows": 2}), help_text="Kept in the journal.")

    class Meta:
        model = Allowance
        fields = ["scope", "dimension", "period", "zone", "soft", "hard"]
        help_texts = {"period": "once: with the dimension runs, which counts those under way at once."}


@admin.register(Allowance)
class AllowanceAdmin(ForMoney):
    form = AllowanceForm
    list_display = ("scope", "dimension", "period", "zone", "soft", "hard", "used", "ended_at")
    list_filter = ("dimension", "period")
    actions = ("end",)

    @admin.display(description="used in this period")
    def used(self, obj: Allowance) -> str:
        window = AllowanceWindow.objects.filter(allowance=obj).order_by("-starts_at").first()
        if window is None or window.ends_at <= clock.now():
            return "–"
        return f"{window.spent.normalize():f} spent, {window.reserved.normalize():f} reserved"

    def has_change_permission(self, request: HttpRequest, obj: Allowance | None = None) -> bool:
        return (obj is None or obj.ended_at is None) and access.may(_person(request), Action.MONEY)

    def has_end_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.MONEY)

    def get_readonly_fields(self, request: HttpRequest, obj: Allowance | None = None) -> list[str]:
        return [] if obj is None else ["scope", "dimension", "period", "zone", "used", "set_by", "set_at"]

    def get_fields(self, request: HttpRequest, obj: Allowance | None = None) -> Any:
        own = ["scope", "dimension", "period", "zone", "soft", "hard"]
        return [*own, "reason"] if obj is None else [*own, "used", "set_by", "set_at", "version", "reason"]

    def save_model(self, request: HttpRequest, obj: Allowance, form: Any, change: bool) -> None:
        given = form.cleaned_data
        if change:
            operations.change_allowance(
                obj.pk,
                soft=given["soft"],
                hard=given["hard"],
                reason=given["reason"],
                by=_person(request),
                version=given["version"],
            )
            return
        terms = Terms(
            scope=obj.scope, dimension=obj.dimension, period=obj.period, zone=obj.zone, soft=obj.soft, hard=obj.hard
        )
        made = operations.create_allowance(terms, reason=given["reason"], by=_person(request))
        obj.pk, obj.set_at = made.pk, made.set_at

    @admin.action(description="End the selected allowances: they limit nothing any more", permissions=["end"])
    def end(self, request: HttpRequest, chosen: QuerySet[Allowance]) -> None:
        for allowance in chosen.filter(ended_at__isnull=True):
            operations.end_allowance(allowance.pk, reason="ended in the admin", by=_person(request))
            self.message_user(request, f"{allowance} has ended.")


class PriceForm(RefusableForm):
    reason = forms.CharField(widget=forms.Textarea(attrs={"rows": 2}), help_text="Where the price is from.")

    class Meta:
        model = Price
        fields = ["model", "above", "effective_from", *RATES, "web_searches", "reason"]
        help_texts = {
            "model": "Its plain name, or * for every model that has no other price.",
            "effective_from": "Empty: always. What was used without a price is priced by the first one.",
            "uncached": "USD per million tokens, as every rate here.",
        }


class WithdrawForm(RefusableForm):
    withdrawn_because = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2}), help_text="Saving withdraws the price; what was priced stays."
    )

    class Meta:
        model = Price
        fields = ["withdrawn_because"]


@admin.register(Price)
class PriceAdmin(ForMoney):
    list_display = ("model", "above", "effective_from", *RATES, "set_by", "withdrawn_at")
    list_select_related = ("set_by",)

    def has_change_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return (obj is None or obj.withdrawn_at is None) and access.may(_person(request), Action.MONEY)

    def get_form(self, request: HttpRequest, obj: Price | None = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change, form=WithdrawForm if change else PriceForm, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Price | None = None) -> Any:
        own = ["model", "above", "effective_from", *RATES, "web_searches", "reason"]
        return own if obj is None else [*own, "set_by", "set_at", "withdrawn_by", "withdrawn_at", "withdrawn_because"]

    def get_readonly_fields(self, request: HttpRequest, obj: Price | None = None) -> list[str]:
        fixed = ["model", "above", "effective_from", *RATES, "web_searches", "reason", "set_by", "set_at"]
        return [] if obj is None else [*fixed, "withdrawn_by", "withdrawn_at"]

    def save_model(self, request: HttpRequest, obj: Price, form: Any, change: bool) -> None:
        if change:
            operations.withdraw_price(obj.pk, reason=form.cleaned_data["withdrawn_because"], by=_person(request))
            return
        new = NewPrice(
            model=obj.model,
            above=obj.above,
            effective_from=obj.effective_from,
            rates={rate: getattr(obj, rate) for rate in RATES},
            web_searches=obj.web_searches,
            reason=obj.reason,
        )
        made = operations.set_price(new, by=_person(request))
        obj.pk, obj.set_at = made.pk, made.set_at


class RateForm(RefusableForm):
    version = forms.IntegerField(widget=forms.HiddenInput)
    why = forms.CharField(widget=forms.Textarea(attrs={"rows": 2}), help_text="Kept in the journal.")

    class Meta:
        model = ProviderLimit
        fields = ["calls_per_minute"]
        help_texts = {"calls_per_minute": "Empty: as often as the provider lets it."}


@admin.register(ProviderLimit)
class ProviderLimitAdmin(ForMoney):
    """How often a credential may call, and what the provider last said about it."""

    form = RateForm
    list_display = ("credential", "model", "calls_per_minute", "not_before", "reason")
    readonly_fields = ("credential", "model", "not_before", "reason", "strikes", "ramp_until")
    fields = (*readonly_fields, "calls_per_minute", "version", "why")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ProviderLimit | None = None) -> bool:
        return access.may(_person(request), Action.MONEY)

    def save_model(self, request: HttpRequest, obj: ProviderLimit, form: Any, change: bool) -> None:
        given = form.cleaned_data
        operations.set_rate(
            obj.pk, given["calls_per_minute"], reason=given["why"], by=_person(request), version=given["version"]
        )


class EngageForm(RefusableForm):
    scope = forms.CharField(max_length=200, help_text="all, agent:NAME, tool:NAME or run:ID")
    reason = forms.CharField(widget=forms.Textarea(attrs={"rows": 2}))

    class Meta:
        model = Switch
        fields = ["scope", "reason"]


class ReleaseForm(RefusableForm):
    release_reason = forms.CharField(widget=forms.Textarea(attrs={"rows": 2}), help_text="Saving releases the switch.")

    class Meta:
        model = Switch
        fields = ["release_reason"]


@admin.register(Switch)
class SwitchAdmin(ThroughOperations):
    list_display = ("scope", "reason", "engaged_by", "engaged_at", "released_at")
    list_select_related = ("engaged_by",)

    def narrow(self, rows: QuerySet[Switch], agents: set[str]) -> QuerySet[Switch]:
        return visible_switches(rows, agents)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.SWITCH)

    def has_change_permission(self, request: HttpRequest, obj: Switch | None = None) -> bool:
        engaged = obj is None or obj.released_at is None
        return engaged and access.may(_person(request), Action.SWITCH)

    def get_form(self, request: HttpRequest, obj: Switch | None = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change, form=ReleaseForm if change else EngageForm, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Switch | None = None) -> Any:
        shown = ["scope", "reason"]
        return (
            shown
            if obj is None
            else [*shown, "engaged_by", "engaged_at", "released_by", "released_at", "release_reason"]
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Switch | None = None) -> list[str]:
        fixed = ["scope", "reason", "engaged_by", "engaged_at", "released_by", "released_at"]
        return [] if obj is None else fixed

    def save_model(self, request: HttpRequest, obj: Switch, form: Any, change: bool) -> None:
        if change:
            operations.release_switch(obj.pk, reason=form.cleaned_data["release_reason"], by=_person(request))
        else:
            engaged = operations.engage_switch(obj.scope, reason=obj.reason, by=_person(request))
            obj.pk, obj.engaged_at = engaged.pk, engaged.engaged_at


@admin.register(AgentGrant)
class AgentGrantAdmin(ThroughOperations):
    """Which group sees which agent (`*`: every agent)."""

    form = RefusableForm
    fields = ("group", "agent")
    list_display = ("group", "agent")
    list_select_related = ("group",)

    def narrow(self, rows: QuerySet[AgentGrant], agents: set[str]) -> QuerySet[AgentGrant]:
        return rows

    def has_module_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.ACCESS)

    def has_view_permission(self, request: HttpRequest, obj: AgentGrant | None = None) -> bool:
        return access.may(_person(request), Action.ACCESS)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.ACCESS)

    def has_change_permission(self, request: HttpRequest, obj: AgentGrant | None = None) -> bool:
        return access.may(_person(request), Action.ACCESS)

    def has_delete_permission(self, request: HttpRequest, obj: AgentGrant | None = None) -> bool:
        return access.may(_person(request), Action.ACCESS)

    def save_model(self, request: HttpRequest, obj: AgentGrant, form: Any, change: bool) -> None:
        before = AgentGrant.objects.select_related("group").get(pk=obj.pk) if change else None
        saved = operations.set_grant(obj.group, obj.agent, by=_person(request), replaces=before)
        obj.pk = saved.pk

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        view = self._delete_view  # type: ignore[attr-defined]  # without the transaction that the admin opens around it
        return cast(HttpResponse, view(request, object_id, extra_context))

    def delete_model(self, request: HttpRequest, obj: AgentGrant) -> None:
        operations.end_grant(obj, by=_person(request))


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly):
    fields = ("name", "user", "created_at", "last_used_at", "revoked_at")
    list_display = ("name", "user", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    actions = ("revoke",)

    def narrow(self, rows: QuerySet[ApiToken], agents: set[str]) -> QuerySet[ApiToken]:
        return rows

    def has_module_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.ACCESS)

    def has_view_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return access.may(_person(request), Action.ACCESS)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return access.may(_person(request), Action.ACCESS)

    @admin.action(description="Revoke the selected tokens", permissions=["revoke"])
    def revoke(self, request: HttpRequest, tokens: QuerySet[ApiToken]) -> None:
        for token in tokens.filter(revoked_at__isnull=True):
            operations.revoke_token(token.pk, by=_person(request))
            self.message_user(request, f"{token.name} is revoked.")


@admin.register(Run)
class RunAdmin(ReadOnly):
    agent_path = "agent"
    heavy = ("constraints", "inputs", "outcome")
    list_display = ("id", "agent", "state", "waiting_for", "why", "created_at", "changed_at")
    list_filter = (AgentFilter, "state", "waiting_for", "verified")
    search_fields = ("id__exact", "goal")


@admin.register(Step)
class StepAdmin(ReadOnly):
    heavy = ("result", "asked", "arguments", "rests_on")
    list_display = ("run", "number", "kind", "tool", "state", "waiting_for", "created_at", "ended_at")
    list_select_related = ("run",)
    list_filter = (AgentFilter, "kind", "state", "waiting_for")
    search_fields = ("run__id__exact", "tool")


@admin.register(Attempt)
class AttemptAdmin(ReadOnly):
    heavy = ("progress",)
    list_display = ("run", "step", "number", "outcome", "taken_at", "began_at", "ended_at", "late")
    list_select_related = ("run", "step")
    list_filter = (AgentFilter, "outcome", "late")
    search_fields = ("run__id__exact",)


@admin.register(Fact)
class FactAdmin(ReadOnly):
    heavy = ("value", "source", "derived_from")
    list_display = ("name", "run", "version", "observed_at", "verified_at", "max_age_s", "check_tries")
    list_select_related = ("run",)
    list_filter = (AgentFilter,)
    search_fields = ("run__id__exact", "name")


@admin.register(Key)
class KeyAdmin(ReadOnly):
    heavy = ("arguments", "result", "evidence")
    list_display = ("tool", "run", "step", "identity", "occurrence", "generation", "state", "closed_how", "replays")
    list_select_related = ("run", "step")
    list_filter = (AgentFilter, "state")
    search_fields = ("run__id__exact", "tool", "intent__exact")


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnly):
    heavy = ("usage", "price")
    list_display = ("at", "run", "kind", "usd", "tokens", "estimated", "model", "note")
    list_select_related = ("run",)
    list_filter = (AgentFilter, "kind", "estimated")
    search_fields = ("run__id__exact", "model")


@admin.register(JournalEntry)
class JournalEntryAdmin(ReadOnly):
    heavy = ("before", "after")
    list_display = ("at", "run", "seq", "kind", "actor", "why")
    list_select_related = ("run",)
    list_filter = (AgentFilter,)
    search_fields = ("run__id__exact", "kind__startswith", "actor__exact")


class DecisionInline(TabularInline):
    model = Decision
    extra = 0
    can_delete = False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return access.may(_person(request), Action.VIEW)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Approval)
class ApprovalAdmin(ReadOnly):
    heavy = ("arguments", "facts", "evidence", "options")
    list_display = ("id", "run", "kind", "title", "state", "verdict", "created_at", "expires_at", "closed_at")
    list_select_related = ("run",)
    list_filter = (AgentFilter, "state", "kind")
    search_fields = ("run__id__exact", "title")
    inlines = (DecisionInline,)


@admin.register(Event)
class EventAdmin(ReadOnly):
    agent_path = "step__run__agent"
    heavy = ("payload",)
    list_display = ("name", "key", "source", "delivery_id", "received_at", "step", "matched_at")
    list_select_related = ("step",)
    list_filter = (("matched_at", admin.EmptyFieldListFilter),)
    search_fields = ("name__exact", "key__exact", "delivery_id__exact")


@admin.register(Artifact)
class ArtifactAdmin(ReadOnly):
    fields = ("digest", "media_type", "size", "created_at")
    list_display = ("digest", "media_type", "size", "created_at")
    search_fields = ("digest__startswith",)

    def narrow(self, rows: QuerySet[Artifact], agents: set[str]) -> QuerySet[Artifact]:
        """One artifact may belong to several runs: it is shown to whoever sees one of them."""
        rows = rows.defer("body")
        if EVERY_AGENT in agents:
            return rows
        here = {"artifact": OuterRef("pk"), "run__agent__in": agents}
        return rows.filter(Exists(Step.objects.filter(**here)) | Exists(Key.objects.filter(**here)))


@admin.register(Process)
class ProcessAdmin(ReadOnly):
    ordering = ("-started_at",)
    list_display = ("kind", "host", "pid", "started_at", "seen_at", "ended_at", "exit_status", "exit_signal")
    list_filter = ("kind",)

    def narrow(self, rows: QuerySet[Process], agents: set[str]) -> QuerySet[Process]:
        return rows


def _person(request: HttpRequest) -> User:
    return cast(User, request.user)

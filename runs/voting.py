"""Who may decide a card beyond the right to decide at all, and how many different people have to."""

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, User

from runs import approvals
from runs.approvals import Said
from runs.errors import Conflict, Forbidden
from runs.models import Approval, Decision, Run
from runs.queries.approvals import find_voters
from runs.states import Verdict

# These let something happen; every other verdict is open to whoever may decide.
_LETS_ACT = frozenset({Verdict.APPROVE, Verdict.EDIT})


def require_decider(card: Approval, run: Run, said: Said, *, by: AbstractBaseUser) -> None:
    """Raises: Forbidden (not one of those who are asked, or on one's own account), Conflict (claimed, voted already)."""
    if not is_asked(by, card.groups):
        raise Forbidden(
            f"This card is for {', '.join(card.groups)}.", remedy="A member of one of these groups decides it."
        )
    if other := approvals.claimed_by_another(card, by):
        raise Conflict(f"{other} is at this card.", remedy="Take it over first, or leave it to them.")
    if said.verdict not in _LETS_ACT:
        return
    if not settings.SELF_APPROVAL and by.pk in _starters(run):
        raise Forbidden("You started this run.", remedy="Another person has to approve what it does.")
    if said.verdict == Verdict.APPROVE and by.pk in list_voters(card):
        raise Conflict("You have approved this already.", remedy="It takes another person as well.")
    if said.verdict == Verdict.APPROVE and not settings.SELF_APPROVAL and by.pk == _last_editor(card):
        raise Forbidden("You edited this call.", remedy="Another person has to approve it as it is now.")


def is_asked(by: AbstractBaseUser, groups: list[str]) -> bool:
    """Whether a person belongs to one of a card's groups; a card without groups asks everyone who may decide."""
    if not groups:
        return True
    return isinstance(by, User) and (by.is_superuser or by.groups.filter(name__in=groups).exists())


def is_enough(card: Approval, said: Said, *, by: AbstractBaseUser) -> bool:
    """Whether a decision is the last that a locked card needs."""
    match said.verdict:
        case Verdict.APPROVE:
            return len({*list_voters(card), by.pk}) >= card.needed
        case Verdict.EDIT:
            return card.needed == 1 and settings.SELF_APPROVAL
    return True


def list_voters(card: Approval) -> list[int]:
    """Who has approved a card as it is now."""
    made = Decision.objects.filter(approval=card).order_by("pk").values_list("verdict", "by")
    return find_voters(made, own_edits=settings.SELF_APPROVAL)


def _last_editor(card: Approval) -> int | None:
    edits = Decision.objects.filter(approval=card, verdict=Verdict.EDIT)
    return edits.order_by("-pk").values_list("by", flat=True).first()


def _starters(run: Run) -> set[int | None]:
    """Who started a run, or the one at the top of its tree."""
    return {run.started_by_id, Run.objects.values_list("started_by", flat=True).get(pk=run.root_id)}

"""What a person said on a card's form, read into the one shape that a decision has."""

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from django.http import QueryDict

from console.display.outside import drop_hidden
from console.filters import read_moment
from runs.agents import Json
from runs.approvals import Said
from runs.errors import Malformed
from runs.queries import ApprovalCard
from runs.sanitise import clean_json
from runs.states import Verdict

ARGUMENT = "arg."
MOST_TEXT = 20_000
_VERSIONS = 2**31


def read_decision(form: QueryDict, card: ApprovalCard) -> Said:
    """Raises: Malformed, with what to do about it."""
    verdict = _read_verdict(form)
    return Said(
        verdict=verdict,
        version=_read_version(form),
        arguments=_read_arguments(form, card.arguments) if verdict == Verdict.EDIT else None,
        answer=_read_text(form, "answer"),
        result=_read_result(form, verdict),
        grant=_read_grant(form) if verdict == Verdict.GRANT and form.get("amount", "0").strip() else None,
        comment=_read_comment(form, verdict),
    )


def _read_verdict(form: QueryDict) -> Verdict:
    try:
        return Verdict(form.get("verdict", ""))
    except ValueError:
        raise Malformed("The form says no verdict.", remedy="Use one of its buttons.") from None


def _read_version(form: QueryDict) -> int:
    """The card that was seen: without it a decision could land on something else than what was read."""
    text = form.get("version", "")
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:12]) < _VERSIONS):
        raise Malformed("The form does not say which version of the card it is about.", remedy="Open the card again.")
    return int(text)


def _read_comment(form: QueryDict, verdict: Verdict) -> str:
    comment = _read_text(form, "comment") or _read_text(form, _READY)
    if verdict in _NEEDS_REASON and not comment:
        raise Malformed(f"To {_NEEDS_REASON[verdict]} takes a reason.", remedy="The agent and the journal get it.")
    return comment


_NEEDS_REASON: dict[Verdict, str] = {
    Verdict.REJECT: "reject",
    Verdict.STOP: "stop the run",
    Verdict.DID_NOT_HAPPEN: "say that it did not happen",
}
_READY = "ready"  # a reason that the form offers, used where none was typed


def _read_arguments(form: QueryDict, shown: Json) -> dict[str, Json]:
    """The edited arguments: text stays text, everything else is JSON. What was not touched stays as it was."""
    if not isinstance(shown, dict):
        raise Malformed("This card has no arguments to edit.")
    edited = {name: _read_argument(form, name, value) for name, value in shown.items()}
    if edited == shown:
        raise Malformed("Nothing was changed.", remedy="Change an argument, or approve it as it is.")
    return edited


def _read_argument(form: QueryDict, name: str, shown: Json) -> Json:
    if ARGUMENT + name not in form:
        return shown
    typed = _unfold(form.get(ARGUMENT + name, ""))
    if typed == _unfold(write_field(shown)):
        return shown
    if isinstance(shown, str):
        return clean_json(typed)
    if shown is None and not typed:
        return None
    try:
        return clean_json(json.loads(typed))
    except ValueError:
        # The tool's own schema says what it takes; a bare word for a number is told there.
        return clean_json(typed)


def write_field(value: Json) -> str:
    """An argument as it stands in the form: without what nobody can see. Untouched, it stays as it was, whole."""
    if value is None:
        return ""
    return drop_hidden(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _unfold(text: str) -> str:
    # A form sends every line break as CR LF, whatever it was.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_result(form: QueryDict, verdict: Verdict) -> Json:
    """What the receiver answered (it happened), or the right value (a fact): JSON if it is that, else the text.

    Of a credential: until when the new one is good.
    """
    if verdict == Verdict.RENEWED:
        at = read_moment(form.get("expires_at", ""))
        return {"expires_at": at.isoformat()} if at is not None else None
    if verdict not in (Verdict.HAPPENED, Verdict.CORRECT):
        return None
    text = _read_text(form, "result")
    if not text:
        if verdict == Verdict.CORRECT:
            raise Malformed("A correction needs the right value.")
        return {"said": _read_text(form, "comment")} if form.get("comment", "").strip() else None
    try:
        return clean_json(json.loads(text))
    except ValueError:
        return clean_json(text)


def _read_grant(form: Mapping[str, str]) -> dict[str, str]:
    name, text = form.get("dimension", "usd"), form.get("amount", "").strip().removeprefix("$").replace(",", "")
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise Malformed("A grant says how much.", remedy="Write a number, as 1.00.") from None
    if not (amount.is_finite() and amount > 0):
        raise Malformed("A grant is more than nothing.", remedy="Write a number, as 1.00.")
    return {name: format(amount, "f") if name == "usd" else format(amount.to_integral_value(), "f")}


def _read_text(form: Mapping[str, str], name: str) -> str:
    text = _unfold(form.get(name, "")).strip()
    if len(text) > MOST_TEXT:
        raise Malformed(f"The {name} has more than {MOST_TEXT} characters.", remedy="Shorten it.")
    return text

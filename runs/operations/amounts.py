"""Amounts as people and the API write them."""

from decimal import Decimal, InvalidOperation

from runs.errors import Malformed
from runs.queries.paging import BIGGEST

LONGEST_S = 10 * 366 * 86_400.0


def read_money(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        value = Decimal(str(text))
    except InvalidOperation:
        raise Malformed(f"{text!r} is no amount.", remedy='Write it as "2.00".') from None
    check_amount("usd", value)
    return str(value)


def read_whole(name: str, text: str) -> int:
    try:
        amount = int(text)
    except ValueError:
        raise Malformed(f"{text!r} is no possible {name}.", remedy="Write a whole number.") from None
    check_amount(name, amount)
    return amount


def check_amount(name: str, amount: Decimal | int | float | None) -> None:
    """Raises: Malformed, for what is no limit or does not fit its column."""
    if amount is None:
        return
    match name:
        case "usd":
            value = Decimal(amount)
            fits = value.is_finite() and 0 <= value < 10**10 and value == round(value, 10)
        case "ask_percent":
            fits = 1 <= amount <= 100 and amount == int(amount)
        case "working_s" | "max_age_s":
            fits = 0 < amount <= LONGEST_S  # NaN compares false
        case _:
            fits = 0 <= amount <= BIGGEST and amount == int(amount)
    if not fits:
        raise Malformed(
            f"{amount} is no possible {name}.", remedy='Write money as "2.00", counts and seconds as numbers.'
        )

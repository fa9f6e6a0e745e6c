"""Numbers on a command line: each option says what it may be, and is refused with that in one line."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def whole(least: int, most: int) -> Callable[[str], int]:
    """For `type=` of an option: a whole number from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ArgumentTypeError(f"must be a whole number from {least} to {most}, and is {text!r}")
        return value

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """For `type=` of an option: a number from `least` to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        # Written so that NaN, which compares false with everything, is refused.
        if not least <= value <= most:
            raise ArgumentTypeError(f"must be a number from {least:g} to {most:g}, and is {text!r}")
        return value

    return read

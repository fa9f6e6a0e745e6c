"""What a person has to give a reason for."""

from runs.errors import Malformed


def require_reason(reason: str, what: str) -> None:
    """Raises: Malformed, when there is no word in it. what: as the sentence begins."""
    if not reason.strip():
        raise Malformed(f"{what} needs a reason.")

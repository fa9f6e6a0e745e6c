"""JSON values with types: narrow what came over the wire without trusting it."""

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None
type JsonObject = dict[str, Json]


def as_object(value: Json) -> JsonObject:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    """Return the value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: Json) -> str:
    """Return the value if it is a string, a number as its digits, else an empty string."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def as_integer(value: Json) -> int | None:
    """Return the value if it is a whole number (true and false are none)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_number(value: Json) -> float | None:
    """Return the value as a float if it is a number (true and false are none)."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def look_up(value: Json, path: list[str]) -> Json:
    """Follow keys and list positions. Raises: KeyError naming the part that is not there."""
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.lstrip("-").isdigit() and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(part)
    return value

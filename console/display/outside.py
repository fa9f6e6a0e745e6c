"""Text from outside, made harmless to the eye: what would be invisible, or would reorder what stands beside it, is written out.

Escaping for HTML is the templates' business; this is about people being shown exactly what is there.
"""

import json
import unicodedata
from dataclasses import dataclass

from runs.agents import Json

# Seen as nothing although their category says letter, mark or symbol.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SELECTORS = frozenset(chr(n) for n in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x1810)))
# Part of ordinary writing and of emoji: written out only where every character counts.
_COMMON = frozenset("\u00a0\u202f\u200d\u200c\u00ad") | _SELECTORS
_KEPT = frozenset("\n\t ")


def show(text: str) -> str:
    """For titles, reasons and running text: controls and what changes direction become escapes."""
    return text if text.isascii() and text.isprintable() else "".join(map(_show_character, text))


def show_title(text: str) -> str:
    """A line that begins a card: with a capital, as people write, unless its first word is a name."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return show(text[:1].upper() + text[1:] if first.isalpha() else text)


def show_exactly(text: str) -> str:
    """For what will run: every character that cannot be seen, or looks like a plain space, becomes an escape."""
    return text if text.isascii() and text.isprintable() else "".join(map(_show_exact_character, text))


def count_hidden(text: str) -> int:
    """How many characters `show_exactly` writes out."""
    return 0 if text.isascii() and text.isprintable() else sum(len(_show_exact_character(c)) > 1 for c in text)


def drop_hidden(text: str) -> str:
    """Without the characters that `show_exactly` writes out: for a field in which people edit what they see."""
    return text if text.isascii() and text.isprintable() else "".join(c for c in text if _show_exact_character(c) == c)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A value to be read before it is used: complete, with its length when it is long, and how much of it was hidden."""

    text: str
    length: int
    hidden: int

    @property
    def is_long(self) -> bool:
        return self.length > LONG

    @property
    def is_huge(self) -> bool:
        """So long that it scrolls in a box of its own."""
        return self.length > HUGE


LONG, HUGE = 200, 5_000


@dataclass(frozen=True, kw_only=True)
class Text:
    """Running text where there is little room: how it begins and, if that is not all, the whole of it."""

    start: str
    whole: str = ""


TITLE, SENTENCE = 120, 240


def shorten(text: str, most: int = TITLE) -> Text:
    """Text that `show` has gone over, cut between words where that costs little. A cut that would hide less than it says
    is not made.
    """
    if len(text) <= most + len("… all of it"):
        return Text(start=text)
    cut = text[:most]
    words = cut.rpartition(" ")[0].rstrip()
    return Text(start=f"{words if len(words) > most * 0.8 else cut}…", whole=text)


def show_value(value: Json) -> Shown:
    """An argument or a fact's value: text as it is, everything else as JSON, with its keys in order."""
    raw = value if isinstance(value, str) else write_json(value)
    return Shown(text=show_exactly(raw), length=len(raw), hidden=count_hidden(raw))


def write_json(value: Json) -> str:
    """JSON for people: short values on one line, the others indented."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 80 else json.dumps(value, ensure_ascii=False, indent=1)


def write_brief(value: Json, most: int = 140) -> str:
    """A value in one line of a list: plain parts first, lists and objects by their size, cut."""
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda part: isinstance(part[1], (dict, list)))
        line = ", ".join(f"{name} {_write_part(part)}" for name, part in ordered)
    else:
        line = _write_part(value)
    line = show(line)
    return line if len(line) <= most else line[: most - 1] + "…"


def _write_part(value: Json) -> str:
    match value:
        case str():
            return " ".join(value.split()) or "–"
        case [str(first), *rest]:
            return f"{' '.join(first.split())}{f' and {len(rest)} more' if rest else ''}"
        case list():
            return f"({len(value)})"
        case dict():
            return f"({len(value)} parts)"
    return json.dumps(value)


def _show_character(character: str) -> str:
    return character if character in _COMMON else _show_exact_character(character, spaces=False)


def _show_exact_character(character: str, *, spaces: bool = True) -> str:
    if character in _KEPT:
        return character
    category = unicodedata.category(character)
    hidden = category[0] == "C" or category in ("Zl", "Zp") or character in _BLANKS or character in _SELECTORS
    if hidden or (spaces and category == "Zs"):
        return _escape(character)
    return character


def _escape(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"

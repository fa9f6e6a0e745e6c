"""The filters of lists, as they stand in the address: read, turned into a query, and written back as links."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from console.display.marks import RUN, WAITING
from console.display.outside import show
from runs.errors import Malformed
from runs.queries import RunFilter
from runs.queries.counts import RunCounts
from runs.queries.paging import BIGGEST
from runs.states import RUN_OPEN, WAITS_ON_PEOPLE, RunState, WaitingFor

OPEN, PEOPLE, WORLD = "open", "people", "world"
_GROUPS_OF_STATES: dict[str, tuple[str, ...]] = {OPEN: tuple(s for s in RunState if s in RUN_OPEN)}
_GROUPS_OF_WAITS: dict[str, tuple[str, ...]] = {
    PEOPLE: tuple(w for w in WaitingFor if w in WAITS_ON_PEOPLE),
    WORLD: tuple(w for w in WaitingFor if w not in WAITS_ON_PEOPLE),
}
_MOST_TEXT = 200
_MOST_QUOTED = 40


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One thing that narrows a list, and the address without it."""

    name: str
    value: str
    without: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    value: str
    word: str
    chosen: bool = False


def offer(choices: Iterable[Choice], chosen: tuple[str, ...]) -> list[Choice]:
    """For a menu, of which one is chosen: what is chosen as one choice of its own, when it is not just one of these."""
    offered = [replace(choice, chosen=chosen == (choice.value,)) for choice in choices]
    if not chosen or any(choice.chosen for choice in offered):
        return offered
    words = {choice.value: choice.word for choice in offered}
    first = show(words.get(chosen[0], chosen[0]))
    more = f" +{len(chosen) - 1}" if len(chosen) > 1 else ""
    return [Choice(value=",".join(chosen), word=f"{_cut(first)}{more}", chosen=True), *offered]


@dataclass(frozen=True, kw_only=True)
class RunsFilter:
    """What `/runs?state=&agent=&waiting_for=&q=` asks for. Words may be groups: open; people, world."""

    states: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    q: str = ""

    @classmethod
    def read(cls, query: Mapping[str, Sequence[str]]) -> tuple["RunsFilter", list[Malformed]]:
        """From the lists of a query string, repeated or with commas; and why what cannot be read was left out."""
        states, no_states = sort_out(_words(query.get("state", ())), _STATE_WORDS, "state")
        waits, no_waits = sort_out(_words(query.get("waiting_for", ())), _WAIT_WORDS, "kind of wait")
        labels, no_labels = _read_labels(query.get("label", ()))
        read = cls(
            states=states,
            agents=_words(query.get("agent", ())),
            waiting_for=waits,
            labels=labels,
            q=" ".join(query.get("q", ())).replace("\x00", "\ufffd").strip()[:_MOST_TEXT],
        )
        return read, no_states + no_waits + no_labels

    def as_query(self) -> RunFilter:
        return RunFilter(
            states=_spread(self.states, _GROUPS_OF_STATES),
            agents=self.agents,
            waiting_for=_spread(self.waiting_for, _GROUPS_OF_WAITS),
            labels=self.labels,
            q=self.q,
        )

    def write(self, **more: str) -> str:
        """The query string, with its question mark; empty for no filter."""
        pairs = [
            *(("state", s) for s in self.states),
            *(("agent", a) for a in self.agents),
            *(("waiting_for", w) for w in self.waiting_for),
            *(("label", label) for label in self.labels_written),
            *([("q", self.q)] if self.q else []),
            *((name, value) for name, value in more.items() if value),
        ]
        return f"?{urlencode(pairs)}" if pairs else "?"

    @property
    def labels_written(self) -> list[str]:
        """As they stand in the address."""
        return [f"{name}:{value}" for name, value in self.labels.items()]

    @property
    def is_empty(self) -> bool:
        return self == RunsFilter()

    @property
    def chips(self) -> list[Chip]:
        """One for each word, so that each can be taken away alone."""
        found = [
            Chip(name="state is", value=_STATE_WORDS.get(s, s), without=self._without(states=s)) for s in self.states
        ]
        found += [Chip(name="agent is", value=show(a), without=self._without(agents=a)) for a in self.agents]
        found += [
            Chip(name="waits for", value=_WAIT_WORDS.get(w, w), without=self._without(waiting_for=w))
            for w in self.waiting_for
        ]
        for name, value in self.labels.items():
            rest = {n: v for n, v in self.labels.items() if n != name}
            chip = Chip(name=f"{show(name)} is", value=show(value), without=replace(self, labels=rest).write())
            found.append(chip)
        if self.q:
            found.append(Chip(name="holds", value=show(self.q), without=replace(self, q="").write()))
        return found

    def _without(self, **given: str) -> str:
        changed = {name: tuple(w for w in getattr(self, name) if w != word) for name, word in given.items()}
        return replace(self, **changed).write()  # type: ignore[arg-type]  # the three fields that are tuples


@dataclass(frozen=True, kw_only=True)
class View:
    """A filter that is looked at often, with how many runs it finds; `within`: how many of the last while."""

    word: str
    query: str
    count: int
    within: str
    css: str
    current: bool


def list_views(counts: RunCounts, current: RunsFilter) -> list[View]:
    """The tabs above the list."""
    named = [
        ("All", RunsFilter(), 0, ""),
        ("Needs a person", RunsFilter(waiting_for=(PEOPLE,)), counts.on_people, "person"),
        ("In doubt", RunsFilter(waiting_for=(WaitingFor.VERDICT.value,)), counts.in_doubt, "unknown"),
        ("Failed", RunsFilter(states=(RunState.FAILED.value,)), counts.ended.get(RunState.FAILED, 0), "danger"),
        ("Not finished", RunsFilter(states=(OPEN,)), counts.open, ""),
        ("Waiting on the world", RunsFilter(waiting_for=(WORLD,)), counts.on_the_world, ""),
    ]
    return [
        View(
            word=word,
            query=wanted.write(),
            count=count,
            within="in 24 h" if wanted.states == (RunState.FAILED,) else "",
            css=css,
            current=wanted == current,
        )
        for word, wanted, count, css in named
    ]


_STATE_WORDS = {OPEN: "not finished"} | {s: RUN[s].word.lower() for s in RunState}
_WAIT_WORDS = {PEOPLE: "people", WORLD: "the world"} | {w: WAITING[w].word for w in WaitingFor}
STATE_CHOICES = [Choice(value=value, word=word.capitalize()) for value, word in _STATE_WORDS.items()]
WAIT_CHOICES = [Choice(value=value, word=word) for value, word in _WAIT_WORDS.items()]


class Asked:
    """What the address says of these filters, without what is empty. A value that cannot be read is left out, and `wrong`
    says why.
    """

    def __init__(self, query: Mapping[str, str], names: Sequence[str]) -> None:
        read = ((name, query.get(name, "").replace("\x00", "\ufffd").strip()[:_MOST_TEXT]) for name in names)
        self.values = {name: text for name, text in read if text}
        self.wrong: list[Malformed] = []

    def require_all(self) -> None:
        """For a file, which has no place to say what was left out. Raises: Malformed, once all is read."""
        if self.wrong:
            raise self.wrong[0]

    def text(self, name: str) -> str:
        return self.values.get(name, "")

    def read[T](self, name: str, read: Callable[[str], T]) -> T | None:
        """read: raises Malformed for what it cannot read."""
        try:
            return read(self.text(name))
        except Malformed as wrong:
            self.wrong.append(wrong)
            del self.values[name]
            return None


def read_word(known: Iterable[str], what: str) -> Callable[[str], str]:
    """A reader of one of the known words, or of none; it raises Malformed."""

    def read(text: str) -> str:
        _, wrong = sort_out((text,) if text else (), known, what)
        if wrong:
            raise wrong[0]
        return text

    return read


def read_run(text: str) -> int | None:
    """Raises: Malformed."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= BIGGEST):
        raise Malformed(f"{_quote(text)} is no number of a run.", remedy="Write it as 41.")
    return int(text)


def read_day(text: str, *, days: int = 0) -> datetime | None:
    """The beginning of a day (UTC), or of one so many days later. Raises: Malformed."""
    if not text:
        return None
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise Malformed(f"{_quote(text)} is no day.", remedy="Write it as 2026-11-29.") from None
    if not 2000 <= day.year <= 9000:
        raise Malformed(f"{_quote(text)} is out of reach.", remedy="Write a day such as 2026-11-29.")
    return day + timedelta(days=days)


def read_moment(text: str) -> datetime | None:
    """As a browser's field writes it, in UTC. Raises: Malformed."""
    if not text.strip():
        return None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Malformed(f"{text[:40]!r} is no moment.", remedy="Write it as 2026-11-30T08:00, in UTC.") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _words(given: Sequence[str]) -> tuple[str, ...]:
    words = (word.strip() for text in given for word in text.replace("\x00", "\ufffd").split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _spread(words: tuple[str, ...], groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for word in words for one in groups.get(word, (word,))))


def _read_labels(given: Sequence[str]) -> tuple[dict[str, str], list[Malformed]]:
    labels, wrong = {}, []
    for text in given:
        if not text:
            continue
        name, colon, value = text.replace("\x00", "\ufffd").partition(":")
        if colon:
            labels[name] = value
        else:
            wrong.append(Malformed(f"{_quote(text)} is no label.", remedy="Write it as name:value."))
    return labels, wrong


def sort_out(words: tuple[str, ...], known: Iterable[str], what: str) -> tuple[tuple[str, ...], list[Malformed]]:
    """The words that are known, and what is to be said of the others."""
    known = tuple(known)
    unknown = [word for word in words if word not in known]
    if not unknown:
        return words, []
    said = f"is no {what}" if len(unknown) == 1 else f"and {len(unknown) - 1} more are no {what}"
    wrong = Malformed(f"{_quote(unknown[0])} {said}.", remedy=f"Known: {', '.join(known)}.")
    return tuple(word for word in words if word in known), [wrong]


def _quote(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"

"""Anticipated errors. Each takes data and builds a message that names the rule and the remedy."""

from datetime import UTC, datetime
from decimal import Decimal


class LongwatchError(Exception):
    """Base of every error that a caller is expected to handle. `code` is stable and goes over the API."""

    code = "error"
    status = 400
    remedy = ""

    def __init__(self, message: str = "", *, remedy: str = "") -> None:
        self.message = message or self.__class__.__name__
        self.remedy = remedy or self.remedy
        super().__init__(f"{self.message} {self.remedy}".strip())


class NotFound(LongwatchError):
    code, status = "not_found", 404

    def __init__(self, what: str, ref: object) -> None:
        super().__init__(f"There is no {what} {ref} that you may see.")


class Forbidden(LongwatchError):
    code, status = "forbidden", 403


class Malformed(LongwatchError):
    code, status = "malformed", 400


class TooLarge(LongwatchError):
    code, status = "too_large", 413


class Conflict(LongwatchError):
    """The current state does not allow this. The caller shows the fresh object."""

    code, status = "conflict", 409


class KeyReused(LongwatchError):
    code, status = "idempotency_key_reused", 422

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was used with another body.", remedy="Use a new key, or send the same body."
        )


class RunEnded(Conflict):
    code = "run_ended"

    def __init__(self, run: int, state: str) -> None:
        super().__init__(f"Run {run} has ended ({state}); a final state does not change.")


class RunDeleted(Conflict):
    code = "run_deleted"

    def __init__(self, run: int) -> None:
        super().__init__(
            f"Run {run}, which was started with this Idempotency-Key, has ended and was deleted.",
            remedy="Use a new key if another run is wanted.",
        )


class WrongState(Conflict):
    code = "wrong_state"

    def __init__(self, what: str, state: str, wanted: str) -> None:
        super().__init__(f"{what} is {state}, so it cannot become {wanted}.")


class AlreadyDecided(Conflict):
    code = "already_decided"

    def __init__(self, approval: int, state: str, by: str, at: str) -> None:
        who = f" by {by}" if by else ""
        when = f" at {at}" if at else ""
        super().__init__(f"Approval {approval} is already {state}{who}{when}; your decision changed nothing.")


class AnotherVersion(Conflict):
    code = "another_version"

    def __init__(self, approval: int, seen: int, now: int) -> None:
        super().__init__(
            f"Approval {approval} changed since you saw it (version {seen}, now {now}).",
            remedy="Look at the fresh one and decide again.",
        )


class SwitchedOff(Conflict):
    code = "switched_off"

    def __init__(self, scope: str, reason: str) -> None:
        super().__init__(f"The switch for {scope} is engaged: {reason}", remedy="Release it first.")


class UnknownAgent(LongwatchError):
    code, status = "unknown_agent", 400

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"There is no agent {name!r}.", remedy=f"Known: {', '.join(sorted(known)) or 'none'}.")


class NoLimit(LongwatchError):
    code, status = "no_limit", 400

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"Agent {agent!r} would run without any limit.",
            remedy="Give it a budget, or say unlimited with a reason in the agent's Budget.",
        )


class LimitTooLow(Conflict):
    code = "limit_too_low"

    def __init__(self, dimension: str, wanted: object, used: object) -> None:
        super().__init__(f"The {dimension} limit cannot be {wanted}: {used} is already spent or reserved.")


class OverBudget(LongwatchError):
    """A reservation does not fit. `by_siblings`: it would fit once what others reserved is settled.

    percent: it fits, but takes more than that share of a limit, and a person has not been asked yet.
    allowance: the budgets have room, and that has none before `frees_at`. allowance_of: its scope and period.
    """

    code, status = "over_budget", 409

    def __init__(
        self,
        *,
        dimension: str,
        needed: Decimal | int | float,
        left: Decimal | int | float,
        run: int,
        by_siblings: bool = False,
        percent: int | None = None,
        allowance: int | None = None,
        allowance_of: tuple[str, str] = ("all", "day"),
        frees_at: datetime | None = None,
    ) -> None:
        self.dimension, self.needed, self.left, self.run = dimension, needed, left, run
        self.by_siblings, self.percent = by_siblings, percent
        self.allowance, self.frees_at = allowance, frees_at
        if dimension == "working_s":
            super().__init__(f"Run {run} has used its working time.")
        elif allowance is not None:
            most, rest = write_amount(dimension, needed), write_amount(dimension, left)
            until = f" until {frees_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if frees_at else ""
            scope, period = allowance_of
            whose = "everything" if scope == "all" else scope.removeprefix("agent:").replace("label:", "the label ", 1)
            super().__init__(
                f"The next step may take {most}; the allowance of {whose} a {period} has {rest} left{until}."
            )
        elif percent is not None:
            share = f"more than {percent} % of what run {run} may use in all"
            super().__init__(f"The next step may take {write_amount(dimension, needed)}, {share}.")
        else:
            most, rest = write_amount(dimension, needed), write_amount(dimension, left)
            super().__init__(f"The next step may take {most}; run {run} has {rest} left.")


def say_dimension(dimension: str) -> str:
    return {"usd": "USD", "calls": "model calls", "working_s": "working time"}.get(dimension, dimension)


def write_amount(dimension: str, amount: Decimal | int | float) -> str:
    """An amount of a budget in words: `0.40 USD`, `12,000 tokens`, `1 model call`."""
    if dimension == "usd":
        whole, _, cents = f"{Decimal(amount):,.10f}".rstrip("0").partition(".")
        return f"{whole}.{cents:0<2} USD"
    word = {"calls": "model calls", "working_s": "seconds"}.get(dimension, dimension)
    return f"{int(amount):,} {word.removesuffix('s') if amount == 1 else word}"


class NoPrice(LongwatchError):
    code, status = "no_price", 409

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"There is no price for the model {model!r}.",
            remedy="Set its price in the admin, or give the agent a model that has one.",
        )


class Lost(LongwatchError):
    """The caller no longer holds the run: its epoch moved on. Nothing was changed."""

    code, status = "lost", 409

    def __init__(self, run: int, epoch: int) -> None:
        self.run, self.epoch = run, epoch
        super().__init__(f"Run {run} is no longer held at epoch {epoch}.")


class Untaken(Lost):
    """The database has no record of a try: as it died it lost its last moments. Nothing was changed."""

    def __init__(self, attempt: int) -> None:
        LongwatchError.__init__(self, f"Attempt {attempt} was lost with the last moments of the database.")


class OutsideTransaction(RuntimeError):
    def __init__(self) -> None:
        super().__init__("A writer module was called outside a transaction; open one in operations, engine or gateway.")

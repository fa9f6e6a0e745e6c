"""The gateway: one event loop that has hundreds of model calls in flight, and a few threads for the database.

A call is taken, looked at once more, streamed and settled, each a transaction of its own. One statement renews the leases
of all calls, and the same look finds which of them must be cut. An outage of the database loses nothing: streams go on,
and a reply that is held is settled when the database is back.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from django.conf import settings
from django.utils.module_loading import import_string

from runs import clock, notify, sql
from runs.engine.failpoints import reach
from runs.gateway import claims, outcomes
from runs.gateway.claims import CannotTake, Counted, Look, Parked, Taken, Uncounted
from runs.gateway.database import Outage, Threads
from runs.gateway.provider import COUNT_S, Answer, Credential, NoReply, Provider, Reason, Stream

log = logging.getLogger(__name__)

CAPACITY = 500
POLL_LEAST_S = 0.9
POLL_MOST_S = 5.0
IDLE_S = 30.0
CLAIMERS = 2
THREADS = 4
SWEEP_AGAIN_S = 1.0  # after one that failed
FLUSH_EVERY_S = 0.25
OUTAGE_PAUSE_S = 0.3
AVOID_S = 2.0
SWEEP_FUNCTION = "runs.engine.sweep.sweep"


@dataclass(eq=False, kw_only=True)
class Call:
    """A call in flight."""

    taken: Taken
    stream: Stream = field(default_factory=Stream)
    taken_at: float = field(default_factory=time.monotonic)
    why_cut: str = ""
    reading: asyncio.Task[Answer] | None = None

    def cut(self, why: str) -> None:
        """Close the HTTP stream at once, or do not open it."""
        if self.why_cut:
            return
        self.why_cut = why
        if self.reading is not None:
            self.reading.cancel()


class Gateway:
    """Makes the model calls of all runs until `stop`."""

    def __init__(self, credential: Credential | None, *, capacity: int = CAPACITY) -> None:
        self.calls: dict[int, Call] = {}
        self._credential = credential
        self._provider = Provider(credential) if credential is not None else None
        self._capacity = capacity
        self._ident = uuid.UUID(int=0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking = 0
        self._avoided: dict[int, float] = {}
        self._unknown: frozenset[int] = frozenset()
        self._stopping = asyncio.Event()
        self._due = asyncio.Event()
        self._look = asyncio.Event()
        self._work = Threads("work", THREADS)
        # Leases and cuts never wait behind settlements, nor the sweep before either.
        self._pulse = Threads("pulse", 1)
        self._sweeper = Threads("sweep", 1)
        self._reachable = True

    def stop(self) -> None:
        """Take nothing more; let what is in flight finish for the grace time, then cut it."""
        self._stopping.set()
        self._due.set()

    async def run(self) -> None:
        """Work until stopped. An unanticipated error of a loop ends the process: its parent starts another."""
        if not await self._register():
            await self._close()
            return
        try:
            async with asyncio.TaskGroup() as loops:
                background = [
                    loops.create_task(self._listen()),
                    loops.create_task(self._keep_leases()),
                    loops.create_task(self._sweep()),
                ]
                # One looks by itself; the others help when there is a hint, so that idling costs one query.
                claimers = [loops.create_task(self._claim(looks=not n)) for n in range(CLAIMERS)]
                await asyncio.wait(claimers)
                await self._drain()
                for task in background:
                    task.cancel()
        finally:
            await self._close()

    async def _register(self) -> bool:
        while not self._stopping.is_set():
            try:
                self._ident = await self._pulse.run(lambda: claims.register(self._credential))
            except Outage as error:
                await self._pause(error)
            else:
                log.info("The gateway takes calls as %s", self._ident)
                return True
        return False

    # Taking calls

    async def _claim(self, *, looks: bool) -> None:
        """Take calls when there is a hint; with `looks` also without one, less and less often while nothing happens."""
        poll_s, hinted = POLL_LEAST_S, True
        while not self._stopping.is_set():
            self._due.clear()
            # Counted before it is taken, so that two claimers do not share one place.
            while len(self.calls) + self._taking < self._capacity and not self._stopping.is_set():
                self._taking += 1
                try:
                    found = await self._take_one()
                finally:
                    self._taking -= 1
                if not found:
                    break
            # What was put aside, or was locked by another at the look, is due without a hint.
            poll_s = POLL_LEAST_S if hinted or self._avoided else min(poll_s * 1.5, POLL_MOST_S)
            hinted = await _wait(self._due, poll_s if looks else IDLE_S)

    async def _take_one(self) -> bool:
        """Take one call, or park one run; False when nothing is due, or the database cannot say."""
        now = time.monotonic()
        self._avoided = {run: until for run, until in self._avoided.items() if until > now}
        avoid = list(self._avoided)
        try:
            taken = await self._work.run(lambda: claims.take_call(self._ident, self._credential, avoid=avoid))
        except Outage as error:
            await self._pause(error)
            return False
        except CannotTake as error:
            await self._put_aside(error)
            return True
        self._reachable = True
        if isinstance(taken, Taken):
            self._begin(taken)
        elif isinstance(taken, Uncounted):
            self._avoided[taken.run] = time.monotonic() + 2 * COUNT_S
            self._start(self._count(taken))
        elif isinstance(taken, Parked) and not taken.moved:
            self._avoided[taken.run] = time.monotonic() + AVOID_S
        return taken is not None

    def _begin(self, taken: Taken) -> None:
        call = Call(taken=taken)
        self.calls[taken.attempt] = call
        self._start(self._carry(call))

    async def _count(self, uncounted: Uncounted) -> None:
        """Let the provider count a prompt whose bytes alone would not fit the budget, and take the call by that."""
        assert self._provider is not None
        try:
            counted = Counted(call=uncounted, tokens=await self._provider.count(uncounted.request))
            taken = await self._work.run(lambda: claims.take_call(self._ident, self._credential, counted=counted))
        except (Outage, CannotTake) as error:
            log.info("Run %d could not be taken by its counted tokens: %s", uncounted.run, error)
        else:
            if isinstance(taken, Taken):
                self._begin(taken)
        finally:
            self._avoided.pop(uncounted.run, None)
            self._due.set()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _put_aside(self, error: CannotTake) -> None:
        self._avoided[error.run] = time.monotonic() + AVOID_S
        if error.passing:
            return  # a lock that took too long: the others first
        log.error("%s", error, exc_info=error.__cause__)
        told = f"{type(error.__cause__).__name__}: {error.__cause__}"
        try:
            await self._work.run(lambda: claims.quarantine(error.run, told))
        except Exception:
            self._avoided[error.run] = time.monotonic() + 30 * AVOID_S
            log.exception("Run %d could not be put aside", error.run)

    # One call

    async def _carry(self, call: Call) -> None:
        """Carry a taken call to its end. Whatever goes wrong stays with this call."""
        try:
            await self._make(call)
        except Exception:
            # Its lease runs out, and the sweep books it.
            log.exception("The call of run %d (attempt %d) was lost", call.taken.run, call.taken.attempt)
        finally:
            del self.calls[call.taken.attempt]
            self._due.set()

    async def _make(self, call: Call) -> None:
        taken, stream = call.taken, call.stream
        reach("think.taken")
        try:
            begun = not call.why_cut and await self._work.run(lambda: claims.begin(taken.attempt))
        except Outage:
            begun = False  # and nobody knows whether it was marked as begun: it is not sent
        looked_at = time.monotonic()
        if begun:
            reach("think.looked")
        # Between here and the first byte nothing is waited for but the connection.
        if not begun or call.why_cut or clock.boottime() >= taken.begin_until:
            await self._surely(lambda: outcomes.close_unsent(taken.attempt, call.why_cut))
            return
        try:
            answer = await self._read(call)
        except NoReply as failure:
            failed = failure
            log.info("Run %d, step %d: %s", taken.run, taken.number, failed.message)
            assert self._credential is not None
            credential = self._credential
            await self._surely(lambda: outcomes.close_failed(taken, stream, credential, failed))
            return
        if answer is None:
            await self._surely(lambda: outcomes.close_cut(taken, stream, call.why_cut))
            return
        reach("think.replied")
        timings = _measure(call, looked_at)
        try:
            await self._surely(lambda: outcomes.settle(taken, answer, timings))
        except Exception as error:
            log.exception("The reply for run %d, step %d, could not be settled", taken.run, taken.number)
            told = f"its reply could not be settled: {type(error).__name__}: {error}"
            await self._surely(lambda: outcomes.settle_unusable(taken, answer, told))
        reach("think.settled")

    async def _read(self, call: Call) -> Answer | None:
        """Send the request and read the reply; None when it was cut. Raises: NoReply."""
        assert self._provider is not None
        call.reading = asyncio.create_task(self._provider.call(call.taken.request, call.stream))
        try:
            async with asyncio.timeout(call.taken.timeout_s):
                return await call.reading
        except asyncio.CancelledError:
            if call.why_cut:
                return None
            raise
        except TimeoutError:
            message = f"the reply was not whole after {call.taken.timeout_s:.0f} s"
            raise NoReply(Reason.BROKEN, message, unspent=False) from None
        except NoReply:
            if call.why_cut:
                return None
            raise
        except Exception as error:
            log.exception("The call of run %d failed in an unknown way", call.taken.run)
            raise NoReply(Reason.FAILED, f"{type(error).__name__}: {error}", unspent=False) from error

    async def _surely(self, work: Callable[[], None]) -> None:
        """Do what has to be done however long the database is away; it may be done twice."""
        pause_s = OUTAGE_PAUSE_S
        while True:
            try:
                return await self._work.run(work)
            except Outage as error:
                self._tell_outage(error)
                await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - spreads reconnects
                pause_s = min(pause_s * 1.5, 2.0)

    # Leases, stops, hints

    async def _keep_leases(self) -> None:
        renew_at = 0.0
        while True:
            renew = time.monotonic() >= renew_at
            self._look.clear()
            # Only what was known before the look can be judged by it.
            known = set(self.calls)
            if renew or known:
                try:
                    found = await self._pulse.run(lambda renew=renew: claims.look(self._ident, renew=renew))  # type: ignore[misc]
                except Outage as error:
                    self._tell_outage(error)
                    await asyncio.sleep(OUTAGE_PAUSE_S)
                    continue
                if renew:
                    renew_at = time.monotonic() + settings.LEASE_S / 3
                self._judge(known, found, renewed=renew)
            await _wait(self._look, max(renew_at - time.monotonic(), 0.0))

    def _judge(self, known: set[int], found: Look, *, renewed: bool) -> None:
        for attempt, why in found.cuts:
            if attempt in self.calls:
                self.calls[attempt].cut(why)
        if not renewed:
            return
        for attempt in (known - found.open) & self.calls.keys():
            self.calls[attempt].cut("its attempt was closed: the lease had run out")
        # Open, ours, and not known twice in a row: its claim was committed, and the connection lost before we heard.
        unknown = found.open - self.calls.keys()
        for attempt in unknown & self._unknown:
            self._start(self._give_up(attempt))
        self._unknown = unknown

    async def _give_up(self, attempt: int) -> None:
        try:
            await self._surely(lambda: outcomes.close_orphan(attempt))
        except Exception:
            log.exception("Attempt %d, which nobody carries, could not be closed", attempt)

    async def _listen(self) -> None:
        while True:
            try:
                parameters = await self._pulse.run(sql.connection_parameters)
                async with await psycopg.AsyncConnection.connect(**parameters) as listening:
                    await listening.execute(f"LISTEN {notify.THINK}")
                    await listening.execute(f"LISTEN {notify.STOP}")
                    self._due.set()  # what was said while nobody listened
                    self._look.set()
                    async for hint in listening.notifies():
                        self._take_hint(hint)
            except (psycopg.Error, OSError, Outage) as error:
                self._tell_outage(error)
                await asyncio.sleep(OUTAGE_PAUSE_S)

    def _take_hint(self, hint: psycopg.Notify) -> None:
        if hint.channel == notify.THINK:
            self._due.set()
        elif hint.payload == "*" or any(str(call.taken.run) == hint.payload for call in self.calls.values()):
            self._look.set()

    async def _sweep(self) -> None:
        sweep_at, well = 0.0, True
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            try:
                await self._sweeper.run(notify.flush)
                if time.monotonic() >= sweep_at:
                    sweep_at = time.monotonic() + SWEEP_AGAIN_S
                    sweep_at = time.monotonic() + await self._sweeper.run(self._sweep_once)
                well = True
            except Exception as error:
                if well and not isinstance(error, Outage):
                    log.exception("The sweep failed")
                well = False

    def _sweep_once(self) -> float:
        again_s: float = import_string(getattr(settings, "SWEEP_FUNCTION", SWEEP_FUNCTION))()
        return again_s

    # The end

    async def _drain(self) -> None:
        """Let what is in flight finish, then cut it; what cannot even be booked is left to the sweep."""
        # A part of the grace time is for cutting and booking.
        await self._wait_for_calls(settings.GRACE_S * 0.7)
        for call in list(self.calls.values()):
            call.cut("the gateway stops")
        await self._wait_for_calls(max(settings.GRACE_S * 0.25, 0.5))
        for task in self._tasks:
            task.cancel()

    async def _wait_for_calls(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._provider is not None:
            with suppress(Exception):
                await self._provider.close()
        for threads in (self._work, self._pulse, self._sweeper):
            await asyncio.to_thread(threads.close, timeout_s=1.0)

    async def _pause(self, error: Exception) -> None:
        self._tell_outage(error)
        await _wait(self._stopping, OUTAGE_PAUSE_S)

    def _tell_outage(self, error: Exception) -> None:
        if self._reachable:
            log.warning("The database cannot be reached: %s", error)
        self._reachable = False


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; False when it did not come in time."""
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False


def _measure(call: Call, looked_at: float) -> dict[str, float]:
    """Seconds, for people: what was ours, and what was the provider's."""
    now = time.monotonic()
    stream = call.stream
    sent_at = stream.sent_at or looked_at
    return {
        "looked_after_s": round(looked_at - call.taken_at, 4),
        "sent_after_look_s": round(sent_at - looked_at, 4),
        "first_byte_s": round((stream.first_byte_at or now) - sent_at, 4),
        "reply_s": round(now - sent_at, 4),
    }

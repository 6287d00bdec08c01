"""Housekeeping: reap lapsed leases, promote what is due, tick schedules, trim what is too old.

Any number may run at once: each step is one script, and bounded.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from . import inspector, onward, registry, scripts
from .conf import settings
from .connections import Client
from .exceptions import EmqError, ServerRefused
from .jobs import Reaped
from .log import Outage, get_logger
from .ticker import Ticker

logger = get_logger("reaper")

BATCH = 500  # jobs in one script call
BUDGET = 0.5  # seconds for one queue before the others have their turn
TRIM_EVERY = 30.0  # seconds
DECLARE_EVERY = 60.0  # seconds; the server may have lost what it knew
SOON = 5.0  # seconds until that is tried again, when the server was away

T = TypeVar("T")


class Reaper:
    """Sweeps queues.

    :param queues: names; empty for all that were ever used on this server.
    :param interval: seconds between two passes, at most.
    """

    def __init__(
        self, client: Client, queues: tuple[str, ...] = (), *, interval: float, batch: int = BATCH
    ) -> None:
        self.client = client
        self.queues = queues
        self.interval = interval
        self.batch = min(batch, scripts.BATCH_MAX)  # a call that moves as many was a full one
        self.returned = self.dead = self.promoted = self.trimmed = 0
        self.ticker = Ticker(client)
        self._trim_at = self._declare_at = 0.0
        self._refused: set[str] = set()
        self._stop = threading.Event()

    def run(self) -> None:
        """Sweep until stopped. No single error ends this loop."""
        outage = Outage(logger, "reaper")
        while not self._stop.is_set():
            pause = self.interval
            try:
                pause = self.run_once()
                outage.over()
            except EmqError as error:
                outage.failed(error)
            except Exception:
                logger.exception("reaper: unexpected error; going on")
            self._stop.wait(pause)

    def stop(self) -> None:
        """End `run` after the pass that is under way."""
        self._stop.set()

    def run_once(self) -> float:
        """One pass over all queues; answers the seconds until the next is due.

        Raises an EmqError when the server is away.
        """
        pause = self.interval * random.uniform(0.75, 1.0)
        trim = monotonic() >= self._trim_at
        failure: EmqError | None = None
        if monotonic() >= self._declare_at:
            self._declare_at = monotonic() + SOON
            try:
                self._unless_refused("schedules of the code are not entered", self.declare, None)
                self._declare_at = monotonic() + DECLARE_EVERY
            except EmqError as error:  # where one node is away, the queues of others are swept
                if not self.client.shards:
                    raise
                failure = error

        def sweep(queue: str) -> None:
            nonlocal pause
            next_ms = self.sweep(queue, trim=trim)
            if next_ms >= 0:
                pause = min(pause, next_ms / 1000 + 0.001)

        self.client.each(self._names(), sweep)
        if trim:
            # Nothing is kept for more than half as long again as it shall be.
            self._trim_at = monotonic() + min(TRIM_EVERY, settings().dead_ttl / 2)
        if failure is not None:
            raise failure
        return pause

    def declare(self) -> None:
        """Enter the schedules of the code in the queues of this reaper; raises an EmqError."""
        self.ticker.declare(self._names(), everywhere=not self.queues)

    def _names(self) -> tuple[str, ...]:
        return self.queues or tuple(inspector.queues(self.client))

    def sweep(self, queue: str, *, trim: bool = True, seconds: float = BUDGET) -> int:
        """Sweep one queue; answers the ms until a lease may lapse or a tick is due, -1 for none.

        :param seconds: how long it may take; answers 0 when something is left after that.
        """
        conf = settings().queue(queue)
        next_ms = tick_ms = -1

        def reap() -> int:
            nonlocal next_ms, tick_ms
            reaped = scripts.reap(self.client, queue, max_stalls=conf.max_stalls, batch=self.batch)
            next_ms, tick_ms = reaped.next_ms, reaped.tick_ms
            self._tell(queue, reaped)
            if reaped.onward:
                onward.admit(self.client, queue)
            return len(reaped.returned) + len(reaped.dead)

        def promote() -> int:
            promoted = scripts.promote(self.client, queue, batch=self.batch)
            self.promoted += promoted
            return promoted

        def trim_some() -> int:
            trimmed = scripts.trim(
                self.client,
                queue,
                dead_max=settings().dead_max,
                dead_ttl_ms=int(settings().dead_ttl * 1000),
                done_max=settings().done_max,
                look=self.batch if registry.dead_times() else 0,
                batch=self.batch,
            )
            self.trimmed += trimmed
            return trimmed

        ends, left = monotonic() + seconds, False
        for step in (reap, promote, trim_some) if trim else (reap, promote):
            while step() >= self.batch:
                if monotonic() >= ends:
                    left = True
                    break
        if tick_ms == 0:
            what = f"queue {queue}: schedules do not tick"
            tick_ms = self._unless_refused(what, lambda: self.ticker.tick(queue), -1)
        return 0 if left else min((ms for ms in (next_ms, tick_ms) if ms >= 0), default=-1)

    def _unless_refused(self, what: str, work: Callable[[], T], otherwise: T) -> T:
        """Do what a full server refuses: sweeping must go on there. Said once."""
        try:
            done = work()
        except ServerRefused as error:
            if what not in self._refused:
                self._refused.add(what)
                logger.error("%s: %s", what, error)
            return otherwise
        self._refused.discard(what)
        return done

    def _tell(self, queue: str, reaped: Reaped) -> None:
        self.returned += len(reaped.returned)
        self.dead += len(reaped.dead)
        for job_id in reaped.returned:
            logger.warning("queue %s: lease of job %s lapsed; it is pending again", queue, job_id)
        for job_id in reaped.dead:
            logger.error("queue %s: job %s lost too many leases; morgue", queue, job_id)

"""The courier: one thread of a worker process, the only one that talks to Redis.

It claims as many jobs as the runners can start within a short window, settles what they
deliver, and sleeps when there is nothing to do. Outcomes that arrive while a trip is under way
go out together in the next one; with nothing under way they go out at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic

from .. import scripts
from ..connections import Client
from ..context import JobContext
from ..exceptions import Cancelled, EmqError, Refused
from ..jobs import Claimed
from ..log import Outage, get_logger
from .appetite import Appetite
from .bell import Bell, Pop, Wake
from .hygiene import Hygiene
from .ledger import Ledger
from .limits import Limits
from .options import BEAT, WINDOW, WorkerOptions
from .outcome import Outcome
from .page import QUIET, STOP, STOP_NOW, Page
from .presence import rss_mb
from .runner import LoopRunner, Runner
from .teller import Teller
from .trips import Trips
from .work import Work

logger = get_logger("worker")

TICK = 1.0  # seconds between two looks at what is not urgent
RECYCLE = 75  # exit status of a process that asks to be replaced
CALL_MAX = 500  # leases in one extension call


class Courier:
    """Moves jobs between the server and the runners of one process.

    :param number: of this process among all that its worker ever starts.
    :param supervisor: pid of the process that extends the leases; 0 when this one does.
    :param leave: ends the process at once, with an exit status, though a job still runs.
    """

    def __init__(
        self,
        client: Client,
        options: WorkerOptions,
        page: Page,
        *,
        number: int = 0,
        supervisor: int = 0,
        leave: Callable[[int], None],
    ) -> None:
        self.client = client
        self.options = options
        self.page = page
        self.supervisor = supervisor
        self.leave = leave
        self.lease = options.lease
        self.worker = f"{options.worker_id}.{number}"
        self.status = 0
        self.stopping = self.finished = self.quiet = False
        self.inbox: SimpleQueue[Claimed | None] = SimpleQueue()
        self.dropped: set[Claimed] = set()  # unstarted jobs whose lease was lost
        self.hygiene = Hygiene()
        self.limits = Limits()
        self.work = Work()
        self._teller = Teller()
        self.ledger = Ledger(page, options.queues)
        self.loop = LoopRunner(self, range(options.threads, page.slots))
        self.runners = [Runner(self, slot, self.loop) for slot in range(options.threads)]
        self.bell = Bell()
        self._appetite = Appetite(self.runners, self.loop, self.inbox)
        self._outage = Outage(logger, self.worker)
        self._trips = Trips(
            client, options, self.worker, self.ledger, self.inbox, self._outage, self._teller,
            self._refused,
        )  # fmt: skip
        self._wake = Wake(client, self._trips.turns, BEAT, self.bell)
        self._outbox = self._trips.outbox
        self.awaited = self._trips.awaited
        self._asleep = False
        self._followed_up = True  # no ended job has done anything since the last look
        self._tick_at = self._grace_ends = 0.0
        self._extend_every = options.extend_every
        self._extended_at = 0.0

    # -- called by the runners ----------------------------------------------------------------

    def deliver(self, outcome: Outcome) -> None:
        """Take an outcome to be settled."""
        self._outbox.append(outcome)
        if self._asleep:
            self._asleep = False
            self.bell.ring()

    def noted(self, context: JobContext) -> None:
        """Take along what a run says of itself, with a trip that is not far off."""
        self._trips.notebook.noted.append(context)
        if self._asleep:
            self._asleep = False
            self.bell.ring()

    def extended_at(self) -> float:
        """When the leases were last extended, on the monotonic clock; 0.0 for never."""
        return self._extended_at if not self.supervisor else self.page.extended_at

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped. No single error ends this loop."""
        self.page.ready()
        while not self.finished:
            try:
                self.step()
            except Exception:
                logger.exception("courier: unexpected error; going on in a second")
                self._rest(1.0)
        for _ in self.runners:
            self.inbox.put(None)
        self.loop.stop()
        self._wake.drop()
        self._trips.close()
        self._teller.close()
        self.ledger.compact()  # nothing is left for the supervisor to give back

    def step(self) -> None:
        """Do what is due, or sleep until something is."""
        now = monotonic()
        if now >= self._tick_at:
            self._tick_at = now + min(TICK, self._extend_every)
            self._tick(now)
        if self.stopping or not self._appetite.free(now):
            self._hand_back()
        if self.stopping and now >= self._grace_ends:
            self._abandon()
            return
        trips = self._trips
        if trips.dry and now >= trips.look_at:
            trips.look_again()
        want = 0
        if not (self.stopping or self.quiet):
            want = self._appetite.want(now, trips.asked)
        if now >= self._outage.retry_at and trips.due(want, self._appetite.low):
            trips.leave(want)
        elif trips.under_way:
            trips.arrive()
        elif not self._outbox and self._over(want):
            self.finished = True
        else:
            self._sleep(now, want)

    def _over(self, want: int) -> bool:
        """Whether nothing is left to do: after a stop, or at the end of a burst."""
        done = self.stopping or (self.options.burst and self._trips.dry and want > 0)
        if not done or self.ledger or not self._trips.idle():
            return False
        if self.loop.concluding or any(runner.concluding for runner in self.runners):
            self._followed_up = False
            return False
        if self.stopping or self._followed_up:
            return True
        self._followed_up = True
        self._trips.look_again()  # for what they have enqueued
        return False

    def _sleep(self, now: float, want: int) -> None:
        until = min(self._tick_at, now + TICK)
        dry, look_at = self._trips.dry, self._trips.look_at
        if dry and look_at > now:
            until = min(until, look_at)
        if now < self._outage.retry_at:
            until = min(until, self._outage.retry_at)
        elif dry and want > 0 and not self.options.burst:
            until = self._listen(now, until)
        if self.inbox.qsize():
            until = min(until, now + WINDOW)
        if self.stopping:
            until = min(until, self._grace_ends)
        self._asleep = True
        if self._outbox and now >= self._outage.retry_at:
            self._asleep = False
            return
        notebook = self._trips.notebook
        if notebook.noted and now >= self._outage.retry_at:
            until = min(until, notebook.at)
        if ready := self._rest(until - now):
            self._answered(ready)

    def _rest(self, seconds: float) -> list[Pop]:
        """Sleep, and obey signals; answers the blocking pops that have ended."""
        signals, ready = self.bell.wait(seconds)
        self._asleep = False
        for number in signals:
            self._signalled(number)
        return ready

    def _listen(self, now: float, until: float) -> float:
        """Have a blocking pop under way; an idle process needs no ticks beside it."""
        if self._wake.overdue_at and now >= self._wake.overdue_at:
            logger.warning("the wake connection of %s is silent; making a new one", self.worker)
            self._wake.drop()
        try:
            self._wake.arm()
        except EmqError as error:
            self._outage.failed(error)
            return self._outage.retry_at
        return until

    def _answered(self, ready: list[Pop]) -> None:
        """Blocking pops have ended: by a wake, by their beat, or by a broken link."""
        self._trips.dry = False
        try:
            woken, ended = self._wake.collect(ready)
            self._trips.woken |= woken
            self._trips.look |= ended
        except EmqError as error:
            self._outage.failed(error)

    # -- leases, limits, and the end ----------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self.supervisor and os.getppid() != self.supervisor:
            logger.warning("%s: the supervisor is gone; finishing what runs", self.worker)
            self.supervisor = 0
            self._extended_at = self.page.extended_at
            self.stop()
        command = self.page.command
        if command in (STOP, STOP_NOW):
            self.stop(now_=command == STOP_NOW)
        elif (command == QUIET) is not self.quiet:
            self.quiet, self._trips.dry = not self.quiet, False
        for lost in self.page.lost():
            self._lost(*lost)
        if not self.supervisor and now - self._extended_at >= self._extend_every:
            self._extend(now)
        self.ledger.compact()
        jobs = sum(runner.jobs for runner in self.runners)
        self.page.count(jobs)
        if 0 < self.options.max_jobs <= jobs or 0 < self.options.max_rss_mb <= rss_mb():
            self.stop(status=RECYCLE)

    def _extend(self, now: float) -> None:
        """Extend the leases; a process with a supervisor leaves this to it."""
        try:
            self.client.each(self.ledger.by_queue().items(), self._extend_some)
            self._extended_at = now
        except EmqError as error:
            self._outage.failed(error)

    def _extend_some(self, entry: tuple[str, list[tuple[bytes, int]]]) -> None:
        queue, items = entry
        for start in range(0, len(items), CALL_MAX):
            part = items[start : start + CALL_MAX]
            verdicts = scripts.extend(self.client, queue, part, lease_ms=self.options.lease_ms)
            for item, verdict in zip(part, verdicts, strict=True):
                if isinstance(verdict, Refused):
                    self._lost(*item, isinstance(verdict, Cancelled))

    def _lost(self, job_id: bytes, token: int, cancelled: bool) -> None:
        """A lease was lost: tell the run, or see to it that it never starts."""
        job = self.ledger.find(job_id, token)
        if job is None:
            return
        for runner in self.runners:
            context = runner.running
            if context is not None and context.claimed is job:
                context.lose(cancelled=cancelled)
                why = "cancelled" if cancelled else "lease lost"
                logger.info("%s: %r goes on, but cannot settle", why, context)
                return
        if not self.loop.cancel(job, cancelled=cancelled):
            self.dropped.add(job)
            self.ledger.strike(job)

    def _refused(self, context: JobContext, cancelled: bool) -> None:
        """What a run said of itself was refused: where it goes on, it has lost its lease."""
        job = context.claimed
        running = any(runner.running is context for runner in self.runners)
        if not context.lost and (running or job in self.loop.running):
            self._lost(job.id, job.token, cancelled)

    def _signalled(self, number: int) -> None:
        if number not in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            return
        if self.supervisor:  # it says on the page what is meant; else somebody stops us alone
            self.stop(now_=self.page.command == STOP_NOW)
        else:
            self.stop(now_=self.stopping or number == signal.SIGQUIT)

    def stop(self, *, now_: bool = False, status: int = 0) -> None:
        """Claim nothing more, hand back what has not started, finish what runs, and end.

        :param now_: hand back what runs as well.
        """
        if not self.stopping:
            self.stopping = True
            self.status = status
            self._grace_ends = monotonic() + self.options.grace
            self._teller.stopping(name=self.options.name, queues=self.options.queues)
        if now_:
            self._grace_ends = 0.0

    def _hand_back(self) -> None:
        """Release the jobs that no runner has started."""
        while True:
            try:
                job = self.inbox.get_nowait()
            except Empty:
                return
            if job is not None and job not in self.dropped:
                self._outbox.append(Outcome("release", self._context(job)))

    def _context(self, job: Claimed) -> JobContext:
        return JobContext(job, self.lease, self.extended_at, self.noted)

    def _abandon(self) -> None:
        """The grace is over: hand back what runs, and leave."""
        self.finished = True
        while self._trips.under_way:
            self._trips.arrive()
        settled = {outcome.context.claimed for outcome in self._outbox}
        for job in list(self.ledger.jobs):
            if job not in settled:
                logger.warning("job %s still runs; handing it back", job.id.decode())
                self._outbox.append(Outcome("release", self._context(job)))
        while self._trips.settle_all() and self.inbox.qsize():
            self._hand_back()  # what a claim was given whose answer had been lost
        self._teller.close()
        self.leave(self.status)

"""The courier: one thread of a worker process, the only one that talks to Redis.

It claims as many jobs as the runners can start within a short window, settles what they
deliver, and sleeps when there is nothing to do. Outcomes that arrive while a round trip is
under way go out together in the next one; with nothing under way they go out at once.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from .. import scripts
from ..connections import Batch, Client
from ..context import JobContext
from ..exceptions import EmqError, JobGone, Refused, ServerError
from ..jobs import Claimed, Claims
from ..log import Outage, get_logger
from .appetite import Appetite
from .bell import Bell, Wake
from .hygiene import Hygiene
from .ledger import Ledger
from .options import BEAT, WINDOW, WorkerOptions
from .outcome import Outcome, report
from .page import QUIET, STOP, STOP_NOW, Page
from .presence import rss_mb
from .runner import LoopRunner, Runner

logger = get_logger("worker")

TICK = 1.0  # seconds between two looks at what is not urgent
RECYCLE = 75  # exit status of a process that asks to be replaced
CALL_MAX = 500  # outcomes in one script call
BACK = {"release", "retry", "snooze"}  # after these there may be more to claim
OPTION = {"complete": "keep_ms", "retry": "max_attempts"}


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
        self.awaited: dict[Claimed, Callable[[Any], None]] = {}  # who waits for a verdict
        self.hygiene = Hygiene()
        self.ledger = Ledger(page, options.queues)
        self.loop = LoopRunner(self, range(options.threads, page.slots))
        self.runners = [Runner(self, slot, self.loop) for slot in range(options.threads)]
        self.bell = Bell()
        self._appetite = Appetite(self.runners, self.loop, self.inbox)
        self._wake = Wake(client, options.queues, BEAT, self.bell)
        self._outbox: deque[Outcome] = deque()
        self._unsettled: list[Outcome] = []  # sent before, answer unknown
        self._requests: dict[str, int] = {}  # claims whose answer is unknown, by queue
        self._request = 0
        self._asleep = False
        self._dry = self._woken = False  # nothing more to claim; a wake was taken
        self._look_at = 0.0  # when a dry queue has more without a wake
        self._tick_at = self._grace_ends = 0.0
        self._outage = Outage(logger, self.worker)
        self._extend_every = options.extend_every
        self._extended_at = 0.0

    # -- called by the runners ----------------------------------------------------------------

    def deliver(self, outcome: Outcome) -> None:
        """Take an outcome to be settled."""
        self._outbox.append(outcome)
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
        if self._dry and now >= self._look_at:
            self._dry = False
        want = 0 if self.stopping or self.quiet else self._appetite.want(now)
        deliver = bool(self._outbox or self._unsettled)
        claim = bool(self._woken or self._requests)
        claim = claim or (want > 0 and not self._dry and self._appetite.low)
        if now >= self._outage.retry_at and (deliver or claim):
            self._trip(want)
        elif not deliver and self._over(want):
            self.finished = True
        else:
            self._sleep(now, want)

    def _over(self, want: int) -> bool:
        """Whether nothing is left to do: after a stop, or at the end of a burst."""
        done = self.stopping or (self.options.burst and self._dry and want > 0)
        return done and not self.ledger and not self._requests

    def _sleep(self, now: float, want: int) -> None:
        until = min(self._tick_at, now + TICK)
        if self._dry:
            until = min(until, self._look_at) if self._look_at > now else until
        if now < self._outage.retry_at:
            until = min(until, self._outage.retry_at)
        elif self._dry and want > 0 and not self.options.burst:
            until = self._listen(now, until)
        if self.inbox.qsize():
            until = min(until, now + WINDOW)
        if self.stopping:
            until = min(until, self._grace_ends)
        self._asleep = True
        if self._outbox and now >= self._outage.retry_at:
            self._asleep = False
            return
        if self._rest(until - now):
            self._answered()

    def _rest(self, seconds: float) -> bool:
        """Sleep, and obey signals; answers whether a blocking pop has ended."""
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

    def _answered(self) -> None:
        """A blocking pop has ended: by a wake, by its beat, or by a broken link."""
        self._dry = False
        try:
            self._woken = self._wake.collect()
        except EmqError as error:
            self._outage.failed(error)

    # -- the round trip -----------------------------------------------------------------------

    def _trip(self, want: int) -> None:
        """Settle all outcomes and claim, in one round trip; then claim from the other queues."""
        outcomes, again = self._unsettled, {o.context.claimed for o in self._unsettled}
        while True:
            try:
                outcomes.append(self._outbox.popleft())
            except IndexError:
                break
        self._unsettled = outcomes
        batch = Batch(self.client)
        groups = self._settle(batch, outcomes)
        # A claim whose answer was lost comes first, also when nothing more is wanted: the jobs
        # that it was given are ours.
        queues = [*self._requests]
        if want or self._woken:
            queues += [queue for queue in self.options.queues if queue not in self._requests]
        for queue in queues[:1]:
            self._claim(batch, queue, want)
        try:
            answers = batch.send()
        except EmqError as error:
            self._outage.failed(error)
            return
        left: list[Outcome] = []
        for group, verdicts in zip(groups, answers, strict=False):
            left += self._settled(group, verdicts, again)
        self._unsettled = left
        if queues:
            self._claim_on(queues, want, answers[-1])
        if any(outcome.verb in BACK for outcome in outcomes):
            self._dry = False  # a server that had forgotten a script settles after the claim
        if not self._unsettled and not self._requests:
            self._outage.over()

    def _settle(self, batch: Batch, outcomes: list[Outcome]) -> list[list[Outcome]]:
        calls: dict[tuple[str, str, int], list[Outcome]] = {}
        for outcome in outcomes:
            key = (outcome.context.claimed.queue, outcome.verb, outcome.option)
            calls.setdefault(key, []).append(outcome)
        groups = []
        for (queue, verb, option), group in calls.items():
            for start in range(0, len(group), CALL_MAX):
                part = group[start : start + CALL_MAX]
                items = [(o.context.claimed.id, o.context.claimed.token, *o.details) for o in part]
                options = {OPTION[verb]: option} if verb in OPTION else {}
                getattr(scripts, verb)(batch, queue, items, **options)
                groups.append(part)
        return groups

    def _settled(self, group: list[Outcome], verdicts: Any, again: set[Claimed]) -> list[Outcome]:
        """Take the verdicts of one call; answers the outcomes that must be sent again."""
        if isinstance(verdicts, EmqError):  # this call was not carried out
            self._outage.failed(verdicts)
            return group
        quiet = not logger.isEnabledFor(logging.DEBUG)
        if (
            quiet
            and not self.awaited
            and group[0].verb == "complete"
            and verdicts.count(1) == len(group)
        ):
            self.ledger.strike_all(outcome.context.claimed for outcome in group)
            return []
        left = []
        for outcome, verdict in zip(group, verdicts, strict=True):
            job = outcome.context.claimed
            if isinstance(verdict, ServerError):
                left.append(outcome)
                self._outage.failed(verdict)
                continue
            self.ledger.strike(job)
            gone = verdict == 0 or isinstance(verdict, JobGone)
            if gone and job in again:
                verdict = 1  # the first sending did it; its reply was lost
            if verdict != 1 or not quiet:
                report(outcome, verdict)
            if job in self.awaited:
                self.awaited.pop(job)(verdict)
        return left

    def _claim(self, way: Client | Batch, queue: str, count: int) -> Claims:
        """Claim, under the same name as before while the answer of that is unknown."""
        if queue not in self._requests:
            self._request += 1
            self._requests[queue] = self._request
        return scripts.claim(
            way,
            queue,
            worker=self.worker,
            request=self._requests[queue],
            lease_ms=self.options.lease_ms,
            count=count,
        )

    def _claim_on(self, queues: list[str], want: int, first: Any) -> None:
        """Take the claim of the first queue, and ask the next ones for what it did not have."""
        self._woken = False
        self._look_at = monotonic() + BEAT * 2
        left, counted = want, want > 0
        answer: Claims | EmqError = first
        for number, queue in enumerate(queues):
            if number:
                if counted and left <= 0:
                    return
                try:
                    answer = self._claim(self.client, queue, left)
                except EmqError as error:
                    answer = error
            if isinstance(answer, EmqError):
                self._outage.failed(answer)
                return
            del self._requests[queue]
            left -= len(answer.jobs)
            self._take(queue, answer)
        self._dry = counted and left > 0

    def _take(self, queue: str, claims: Claims) -> None:
        now = monotonic()
        if claims.next_ms >= 0:
            self._look_at = min(self._look_at, now + claims.next_ms / 1000)
        if claims.jobs:
            self.ledger.add(queue, claims)
            for job in claims.jobs:
                self.inbox.put(job)

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
            self.quiet, self._dry = not self.quiet, False
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
            for queue, items in self.ledger.by_queue().items():
                for start in range(0, len(items), CALL_MAX):
                    part = items[start : start + CALL_MAX]
                    verdicts = scripts.extend(
                        self.client, queue, part, lease_ms=self.options.lease_ms
                    )
                    for item, verdict in zip(part, verdicts, strict=True):
                        if isinstance(verdict, Refused):
                            self._lost(*item)
            self._extended_at = now
        except EmqError as error:
            self._outage.failed(error)

    def _lost(self, job_id: bytes, token: int) -> None:
        """A lease was lost: tell the run, or see to it that it never starts."""
        job = self.ledger.find(job_id, token)
        if job is None:
            return
        for runner in self.runners:
            context = runner.running
            if context is not None and context.claimed is job:
                context.lost = True
                logger.info("lease lost: %r goes on, but cannot settle", context)
                return
        if not self.loop.cancel(job):
            self.dropped.add(job)
            self.ledger.strike(job)

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
        return JobContext(job, self.lease, self.extended_at)

    def _abandon(self) -> None:
        """The grace is over: hand back what runs, and leave."""
        settled = {outcome.context.claimed for outcome in (*self._outbox, *self._unsettled)}
        for job in list(self.ledger.jobs):
            if job not in settled:
                logger.warning("job %s still runs; handing it back", job.id.decode())
                self._outbox.append(Outcome("release", self._context(job)))
        self.finished = True
        if self._outbox or self._unsettled or self._requests:
            self._trip(0)
            self._hand_back()  # what a claim was given whose answer had been lost
        if self._outbox:
            self._trip(0)
        self.leave(self.status)

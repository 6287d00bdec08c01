"""Runners: take a claimed job, run its task, hand the outcome to the courier."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Protocol

from asgiref.sync import sync_to_async

from .. import registry, signing
from ..conf import settings
from ..context import JobContext, enter
from ..jobs import Call, Claimed, decode
from ..log import get_logger
from ..registry import AnyTask
from . import limits
from .bell import Bell
from .hygiene import IDLE, Hygiene, fresh_context
from .outcome import Outcome
from .page import Page
from .work import Work, afailure, failure

logger = get_logger("worker")

# Seconds after which a waiting main thread looks up. A signal may be marked for it while it goes
# to sleep, and stays so: in a process that is traced (coverage, a debugger) Python 3.11 then lets
# the other threads spin in place, and nothing is settled.
LOOK_UP = 1.0


class Desk(Protocol):
    """Where runners get their jobs and leave their outcomes: the courier."""

    inbox: SimpleQueue[Claimed | None]
    page: Page
    hygiene: Hygiene
    limits: limits.Limits
    dropped: set[Claimed]
    awaited: dict[Claimed, Callable[[Any], None]]
    finished: bool
    work: Work
    bell: Bell

    def deliver(self, outcome: Outcome) -> None:
        """Take an outcome to be settled."""

    lease: float

    def noted(self, context: JobContext) -> None:
        """Take along what a run says of itself."""

    def extended_at(self) -> float:
        """When the leases were last extended, on the monotonic clock; 0.0 for never."""


class Runner:
    """Runs one job at a time, in the thread that calls `run`.

    :ivar since: when the running job started, on the monotonic clock; 0.0 while idle.
    :ivar busy: seconds that jobs have held this runner, for `jobs` jobs.
    :ivar concluding: its job has ended and is being followed up, which may enqueue another one.
    """

    def __init__(self, desk: Desk, slot: int, loop: LoopRunner) -> None:
        self.desk = desk
        self.slot = slot
        self.loop = loop
        self.since = 0.0
        self.busy = 0.0
        self.jobs = 0
        self.running: JobContext | None = None
        self.concluding = False
        self._context = fresh_context()
        self._noted = desk.noted
        self._conf = settings()
        self._signed = self._conf.sign_payloads

    def run(self) -> None:
        """Run jobs until the inbox yields None."""
        desk = self.desk
        desk.hygiene.adopt()
        while True:
            try:
                job = desk.inbox.get_nowait()
            except Empty:
                self.since = 0.0
                desk.hygiene.rest()
                rested_at = monotonic()
                job = self._next()
                if monotonic() - rested_at >= IDLE:
                    desk.hygiene.rouse()
            if job is None:
                break
            if job in desk.dropped:
                desk.dropped.discard(job)
                continue
            self.run_one(job)
        desk.hygiene.leave()

    def _next(self) -> Claimed | None:
        while True:
            with suppress(Empty):
                return self.desk.inbox.get(timeout=LOOK_UP)

    def run_one(self, job: Claimed) -> None:
        """Run one job and deliver its outcome; no error of the job leaves this."""
        desk = self.desk
        started = self.since = monotonic()
        self.running = context = JobContext(job, desk.lease, desk.extended_at, self._noted)
        desk.page.start(self.slot, job.id)
        hygiene = desk.hygiene
        if hygiene.needed:
            hygiene.clean()
        scope = self._context()
        outcome = scope.run(self._attempt, context)
        if hygiene.needed:
            hygiene.clean()
        self.running = None
        # Before the outcome is delivered: the courier that it wakes must see a runner that is free.
        self.since = 0.0
        context.seconds = monotonic() - started
        self.busy += context.seconds
        self.jobs += 1
        if outcome is not None:
            if context.after is None:
                desk.deliver(outcome)
            else:
                scope.run(self._conclude, context, outcome)
                # So long it held the runner too, which says how many jobs may wait for it.
                self.busy += monotonic() - started - context.seconds

    def _conclude(self, context: JobContext, outcome: Outcome) -> None:
        """Deliver an outcome, and tell its verdict to who waits for it, in the job's own scope."""
        verdicts: SimpleQueue[Any] = SimpleQueue()
        self.concluding = True
        self.desk.awaited[context.claimed] = verdicts.put
        self.desk.deliver(outcome)
        while not self.desk.finished or not verdicts.empty():
            with suppress(Empty):
                tell(context, outcome, verdicts.get(timeout=LOOK_UP))
                break
        if self.desk.hygiene.needed:
            self.desk.hygiene.clean()
        self.concluding = False
        self.desk.bell.ring()

    def _attempt(self, context: JobContext) -> Outcome | None:
        task = None
        try:
            claimed = context.claimed
            if self._signed:
                signing.check(claimed.payload, claimed.id)
            call = decode(claimed.payload)
            context.task = call.task
            task = registry.get(call.task)
            if task.lease_ms:
                context.lease = task.lease_ms / 1000
            if task.is_async:
                self.loop.submit(context, call, task)
                return None
            if task.is_timed or self.desk.limits.default:
                return self._limited(context, call, task)
            return self.desk.work.run(context, call, task)
        except BaseException as error:  # whatever a task raises is the outcome of its job
            return failure(context, task, error)

    def _limited(self, context: JobContext, call: Call, task: AnyTask) -> Outcome:
        """Run a task that may have a time limit; raises what it raises."""
        desk = self.desk
        timeout, kill_after = limits.of(task, context.queue, self._conf)
        if not timeout:
            return desk.work.run(context, call, task)
        context.ends_at = monotonic() + timeout
        if kill_after:
            desk.page.limit(self.slot, context.ends_at + kill_after)
        guard = desk.limits.begin(timeout)
        try:
            try:
                return desk.work.run(context, call, task)
            finally:
                guard.end()  # raises the exception itself, when it comes up here
        finally:
            if kill_after:
                desk.page.limit(self.slot, 0.0)
            if guard.fired:
                desk.hygiene.drop()


def tell(context: JobContext, outcome: Outcome, verdict: Any) -> None:
    """Tell the verdict to who asked for it; an error of theirs costs no runner."""
    try:
        if context.after is not None:
            context.after(outcome, verdict)
    except BaseException:
        logger.exception("a receiver failed at the end of %r", context)
    finally:
        context.after = context.error = None  # a traceback refers to what refers to it


class LoopRunner:
    """Runs jobs of ``async def`` tasks: one event loop in a thread of its own.

    :param slots: one for each job that may run at once.
    """

    def __init__(self, desk: Desk, slots: range) -> None:
        self.desk = desk
        self.limit = len(slots)
        self.running: dict[Claimed, tuple[JobContext, asyncio.Task[None]]] = {}
        self._slots = deque(slots)
        self._room = threading.Semaphore(self.limit)
        self._ready: deque[tuple[JobContext, Call, AnyTask]] = deque()
        self._called = False
        self._telling: set[asyncio.Future[Any]] = set()
        self._ending = False
        self._conf = settings()
        self._context = fresh_context()
        self._rested_at = monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def concluding(self) -> bool:
        """Whether jobs have ended and are being followed up."""
        return bool(self._telling)

    @property
    def active(self) -> int:
        """How many async jobs run or wait for the loop."""
        return len(self.running) + len(self._ready)

    def submit(self, context: JobContext, call: Call, task: AnyTask) -> None:
        """Start a job on the loop, from any thread; wait while as many run as may."""
        self._room.acquire()
        loop = self._loop or self._start()
        self._ready.append((context, call, task))
        if not self._called:
            self._called = True
            loop.call_soon_threadsafe(self._pump)

    def cancel(self, claimed: Claimed, *, cancelled: bool = False) -> bool:
        """Cancel a running job whose lease was lost; answers whether it runs here.

        :param cancelled: whether that was because the job was cancelled.
        """
        found = self.running.get(claimed)
        if found is None or self._loop is None:
            return False
        found[0].lose(cancelled=cancelled)
        self._loop.call_soon_threadsafe(self._cancel, claimed)
        return True

    def _cancel(self, claimed: Claimed) -> None:
        """Cancel a job whose task still runs: nothing disturbs what settles it."""
        if found := self.running.get(claimed):
            found[1].cancel()

    def stop(self) -> None:
        """End the loop, once no job runs on it."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join(5)
            self._loop = None

    def _end(self) -> None:
        """Stop the loop, once all have been told their verdicts."""
        self._ending = True
        if not self._telling:
            asyncio.get_running_loop().stop()

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name="emq-loop", daemon=True
        )
        self._thread.start()
        return loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _pump(self) -> None:
        self._called = False
        loop = asyncio.get_running_loop()
        while self._ready:
            context, call, task = self._ready.popleft()
            if context.claimed in self.desk.dropped:  # lost while the loop was busy
                self.desk.dropped.discard(context.claimed)
                self._room.release()
                continue
            job = loop.create_task(self._attempt(context, call, task), context=self._context())
            self.running[context.claimed] = (context, job)

    async def _attempt(self, context: JobContext, call: Call, task: AnyTask) -> None:
        started = monotonic()
        slot = self._slots.popleft()
        self.desk.page.start(slot, context.claimed.id)
        enter(context)
        try:
            try:
                if self.desk.hygiene.strangers and started - self._rested_at >= IDLE:
                    await sync_to_async(self.desk.hygiene.rouse)()
                if task.is_timed or self.desk.limits.default:
                    outcome = await self._limited(slot, context, call, task)
                else:
                    outcome = await self.desk.work.arun(context, call, task)
            finally:
                self.running.pop(context.claimed, None)
        except BaseException as error:  # as in Runner: the outcome of its job
            outcome = await afailure(context, task, error)
        finally:
            self._slots.append(slot)
            self._room.release()
            self._rested_at = monotonic()
        if self.desk.hygiene.strangers:
            await sync_to_async(self.desk.hygiene.clean)()
        context.seconds = monotonic() - started
        if context.after is None:
            self.desk.deliver(outcome)
        else:
            await self._conclude(context, outcome)

    async def _limited(self, slot: int, context: JobContext, call: Call, task: AnyTask) -> Outcome:
        """As in Runner: a run that takes too long is cancelled."""
        timeout, kill_after = limits.of(task, context.queue, self._conf)
        if not timeout:
            return await self.desk.work.arun(context, call, task)
        context.ends_at = monotonic() + timeout
        if kill_after:
            self.desk.page.limit(slot, context.ends_at + kill_after)
        try:
            async with asyncio.timeout(timeout) as clock:
                return await self.desk.work.arun(context, call, task)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise limits.error_of(timeout) from error
        finally:
            if kill_after:
                self.desk.page.limit(slot, 0.0)

    async def _conclude(self, context: JobContext, outcome: Outcome) -> None:
        """As in Runner. The loop does not end before this has."""
        loop = asyncio.get_running_loop()
        verdict: asyncio.Future[Any] = loop.create_future()
        self.desk.awaited[context.claimed] = partial(_settle, loop, verdict)
        self._telling.add(verdict)
        self.desk.deliver(outcome)
        await sync_to_async(tell)(context, outcome, await verdict)
        if self.desk.hygiene.strangers:
            await sync_to_async(self.desk.hygiene.clean)()
        self._telling.discard(verdict)
        self.desk.bell.ring()
        if self._ending and not self._telling:
            loop.stop()


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], verdict: Any) -> None:
    """Give a future its result, from another thread."""
    loop.call_soon_threadsafe(future.set_result, verdict)

"""The queues of one test, and a worker that runs in its thread."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple, Self

from asgiref.sync import async_to_sync
from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db import connections as databases
from django.test import TestCase, override_settings

from .. import admission, connections, inspector, onward, registry, rules, scripts, signing
from ..conf import settings
from ..connections import Client
from ..context import JobContext
from ..exceptions import JobGone, Refused, TimeLimitExceeded, Verdict
from ..jobs import Claimed, decode
from ..keys import queue_keys
from ..registry import AnyTask
from ..worker.notebook import Notebook
from ..worker.outcome import Outcome
from ..worker.runner import tell
from ..worker.trips import OPTION
from ..worker.work import Work, failure
from .clock import Clock, pass_time
from .points import Crash, Trap

JOBS_MAX = 1000  # that one run_until_empty takes: more is a job that enqueues itself
POINTS_MAX = 200  # that one job may have for `explore`
COMPLETE = "complete"  # the point between the end of a task and the settlement


class Waiting(NamedTuple):
    """A job that is to run."""

    id: str
    queue: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    due_in: float  # seconds; 0 for now
    planned_at: datetime | None = None  # the time that a job of a schedule stands for

    def __str__(self) -> str:
        parts = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        when = f" in {self.due_in:.0f} s" if self.due_in else ""
        return f"{self.task}({', '.join(parts)}) on {self.queue}{when}"


class Ran(NamedTuple):
    """One run of a job.

    :ivar verb: how it was settled: ``complete``, ``retry``, ``snooze``, ``bury``, ``discard``;
        ``crash`` when it was not.
    :ivar error: what the task raised.
    :ivar refused: why the settlement was refused: the run was a late one.
    """

    id: str
    task: str
    token: int
    verb: str
    error: BaseException | None = None
    refused: Refused | None = None


class Sandbox:
    """The queues of one test. A context manager; `EmqMixin` and the fixture `emq` open one."""

    def __init__(self) -> None:
        self.prefix = f"test-{secrets.token_hex(6)}"
        self._override = override_settings(
            EMQ={**getattr(django_settings, "EMQ", {}), "PREFIX": self.prefix}
        )
        self._clock = Clock()
        self._trap: Trap | None = None
        self._notebook = Notebook(lambda context, cancelled: None)
        self._running = False

    def __enter__(self) -> Self:
        self._override.enable()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.empty()
        finally:
            self._override.disable()

    def empty(self) -> None:
        """Delete all that the test has on the server."""
        raw = self._client.raw
        for pattern in (f"{self.prefix}:{{*", f"{{{self.prefix}}}:*"):
            for key in raw.scan_iter(match=pattern, count=1000):
                raw.delete(key)
        self._client.known_queues.clear()

    @property
    def _client(self) -> Client:
        return connections.client()

    # -- looking ------------------------------------------------------------------------------

    def waiting(self) -> list[Waiting]:
        """All jobs that are to run, by queue: those that are ready, then those that wait."""
        found = []
        for name in inspector.queues(self._client):
            for place in ("pending", "schedule"):
                for row in inspector.page(self._client, name, place, size=JOBS_MAX).rows:
                    payload = inspector.row(self._client, name, row.id)["payload"]
                    due_in = max(row.left_s or 0.0, 0.0)
                    call = decode(payload.encode())
                    planned = rules.instant(call.planned_at) if call.planned_at else None
                    found.append(Waiting(row.id, name, *call[:3], due_in, planned))
        return found

    def assert_enqueued(
        self,
        task: AnyTask | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        match: Callable[[Waiting], object] | None = None,
        count: int | None = None,
    ) -> Waiting:
        """Check that jobs of a task wait; answer the first of them.

        :param args: their positional arguments. :param kwargs: their others.
        :param match: what else must be true of them.
        :param count: how many; at least one when it is left out.
        """
        name = task if isinstance(task, str) else task.name
        everything = self.waiting()
        found = [
            job
            for job in everything
            if job.task == name
            and (args is None or job.args == list(args))
            and (kwargs is None or job.kwargs == kwargs)
            and (match is None or match(job))
        ]
        if not found or (count is not None and len(found) != count):
            wanted = "No such job" if count is None else f"{len(found)} such jobs, not {count}"
            lines = "".join(f"\n  {job}" for job in everything) or " Nothing."
            raise AssertionError(f"{wanted} of {name} among what is enqueued:{lines}")
        return found[0]

    @contextmanager
    def commits(self) -> Iterator[None]:
        """Run, at the end of the block, what it has registered with `transaction.on_commit`.

        In a test that is a transaction itself nothing is ever committed.
        """
        with ExitStack() as stack:
            for alias in databases:
                stack.enter_context(TestCase.captureOnCommitCallbacks(using=alias, execute=True))
            yield

    @contextmanager
    def _committed(self) -> Iterator[None]:
        """`commits` for what a job has committed, also before it crashed; called this once."""
        before = {alias: len(databases[alias].run_on_commit) for alias in databases}
        try:
            with self.commits():
                yield
        finally:
            for alias, count in before.items():
                del databases[alias].run_on_commit[count:]

    # -- running ------------------------------------------------------------------------------

    def run_until_empty(self, *, scheduled: bool = False, raises: bool = True) -> list[Ran]:
        """Run all that is ready, and what it enqueues; answer the runs in their order.

        :param scheduled: let time pass until what waits for a time is ready, too: later jobs,
            retries and snoozes.
        :param raises: raise what a task raised, when the run is settled. A verdict is no error.
        """
        ran: list[Ran] = []
        while True:
            if len(ran) > JOBS_MAX:
                raise AssertionError(f"{JOBS_MAX} runs, and no end: {ran[-1].task} goes on.")
            one = self._run_next()
            if one is not None:
                ran.append(one)
                if raises and one.error is not None and not isinstance(one.error, Verdict):
                    raise one.error
                continue
            wait = self._until_due() if scheduled else None
            if wait is None:
                return ran
            self.advance(wait + 0.001)

    def _until_due(self) -> float | None:
        """Seconds until the next job of a schedule is due, 0 for one that is; None for none.

        Not of a paused queue, which gives it to nobody.
        """
        waits = []
        for name in inspector.queues(self._client):
            if not self._client.raw.hexists(queue_keys(name, self.prefix).meta, "paused"):
                rows = inspector.page(self._client, name, "schedule", size=1).rows
                waits += [max(row.left_s or 0.0, 0.0) for row in rows]
        return min(waits, default=None)

    @contextmanager
    def inline(self) -> Iterator[None]:
        """During the block each job that is ready runs at once, at the end of its enqueue."""
        push = admission.push_many

        def push_and_run(*args: Any, **kwargs: Any) -> Any:
            verdicts = push(*args, **kwargs)
            if not self._running:  # else the run under way goes on with it
                self.run_until_empty()
            return verdicts

        admission.push_many = push_and_run
        try:
            yield
        finally:
            admission.push_many = push

    def advance(self, seconds: float) -> None:
        """Let time pass for the queue, without waiting: leases end, times come, jobs
        expire, schedules tick.
        """
        ms = round(seconds * 1000)
        pass_time(self._client, ms)
        self._clock.advance(self._client, ms)

    def schedules(self, *names: str, at: datetime | None = None) -> None:
        """From here on `advance` makes the jobs of these schedules, as they would come.

        :param names: of schedules of the code; all of them where none is given.
        :param at: which time it is for them, an aware datetime; now where it is left out.
        """
        self._clock.start(self._client, names, at)

    def _run_next(self) -> Ran | None:
        for name in inspector.queues(self._client):
            request = secrets.token_hex(6)
            lease_ms = int(settings().queue(name).lease * 1000)
            claimed = scripts.claim(
                self._client, name, worker=request, request=request, lease_ms=lease_ms
            )
            for job in claimed.jobs:
                return self._run(job)
        if sum(onward.admit(self._client, name) for name in inspector.queues(self._client)):
            return self._run_next()  # the death of a job that a sweep has buried
        return None

    def _run(self, job: Claimed) -> Ran:
        lease = settings().queue(job.queue).lease
        context = JobContext(job, lease, monotonic, self._notebook.noted.append)
        before, self._running = self._running, True
        try:
            scope = copy_context()
            with self._committed():
                outcome, error = scope.run(self._attempt, context)
            self._notebook.flush(self._client)
            if self._trap is not None:
                self._trap.reach(COMPLETE, context)
        except Crash as crash:
            self._notebook.flush(self._client)
            # As a supervisor does for a child that died.
            scripts.extend(self._client, job.queue, [(job.id, job.token)], lease_ms=0)
            self.advance(0)
            return Ran(context.id, context.task, job.token, "crash", crash)
        finally:
            self._running = before
        options = {OPTION[outcome.verb]: outcome.option} if outcome.verb in OPTION else {}
        items = [(job.id, job.token, *outcome.details)]
        (verdict,) = getattr(scripts, outcome.verb)(self._client, job.queue, items, **options)
        refused = JobGone() if verdict == 0 else verdict if isinstance(verdict, Refused) else None
        if refused is None:
            context.error = error
            scope.run(tell, context, outcome, verdict)
        return Ran(context.id, context.task, job.token, outcome.verb, error, refused)

    def _attempt(self, context: JobContext) -> tuple[Outcome, BaseException | None]:
        """As a runner does; what is no business of the job (KeyboardInterrupt) leaves it."""
        task = None
        with ExitStack() as stack:
            if self._trap is not None:
                self._trap.watch(stack, context)
            try:
                if settings().sign_payloads:
                    signing.check(context.claimed.payload, context.claimed.id)
                call = decode(context.claimed.payload)
                context.task = call.task
                task = registry.get(call.task)
                work = Work()
                run = async_to_sync(work.arun) if task.is_async else work.run
                return run(context, call, task), None
            except (Exception, Verdict, TimeLimitExceeded) as error:
                return failure(context, task, error), error

    # -- crashing -----------------------------------------------------------------------------

    @contextmanager
    def crash_at(self, point: str) -> Iterator[None]:
        """During the block the first run that comes to a point is cut off there, once.

        :param point: part of an SQL statement, which is not carried out, or ``complete``: between
            the end of the task and its settlement.
        """

        def crash(_: JobContext) -> None:
            raise Crash(point)

        def hit(_: int, reached: str) -> bool:
            return point in reached

        trap = self._trap = Trap(hit, crash)
        try:
            yield
        finally:
            self._trap = None
        if not trap.sprung:
            lines = "".join(f"\n  {reached}" for reached in trap.reached)
            raise AssertionError(f"No run came to {point!r}. These points were reached:{lines}")

    def explore(
        self,
        enqueue: Callable[[], object],
        check: Callable[[], object],
        *,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[str]:
        """Run jobs again and again, disturbed at another point each time; answer what was tried.

        Each time `enqueue` is called, all runs until nothing waits, `check` is called, and the
        database is rolled back. The points are the SQL statements of all runs, and the moment
        before each settlement. At each the run is cut off, and then run anew; and where it has no
        transaction open, another run comes between: it is taken away, the next run does all, and
        this one goes on late.

        :param check: asserts what must be true, for instance that there is one payment.
        :param using: the database that is rolled back.
        """
        calm = Trap(_never, _crash)
        self._trial(enqueue, check, using, "no disturbance", calm)
        if len(calm.reached) > POINTS_MAX:
            raise AssertionError(f"There are {len(calm.reached)} points, more than {POINTS_MAX}.")
        tried = []
        for number, point in enumerate(calm.reached):
            ways = {"crash": _crash, "another run": self._take_away}
            if not calm.outside[number]:
                del ways["another run"]
            for way, spring in ways.items():
                name = f"{way} at {number}: {point}"
                self._trial(enqueue, check, using, name, Trap(_at(number), spring))
                tried.append(name)
        return tried

    def _trial(
        self,
        enqueue: Callable[[], object],
        check: Callable[[], object],
        using: str,
        name: str,
        trap: Trap,
    ) -> None:
        try:
            with transaction.atomic(using=using):
                trap.depth = len(databases[using].savepoint_ids)
                with self._committed():
                    enqueue()
                self._trap = trap
                self.run_until_empty(scheduled=True, raises=False)
                check()
                transaction.set_rollback(True, using=using)
        except AssertionError as error:
            error.add_note(f"explored: {name}")
            raise
        finally:
            self._trap = None
            self.empty()

    def _take_away(self, context: JobContext) -> None:
        scripts.requeue(self._client, context.queue, [context.id])
        while self._run_next():
            pass


def _crash(_: JobContext) -> None:
    raise Crash


def _never(number: int, point: str) -> bool:
    return False


def _at(wanted: int) -> Callable[[int, str], bool]:
    return lambda number, _: number == wanted

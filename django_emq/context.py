"""The job that the calling code runs in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections

from .exceptions import JobCancelled, LeaseLost, NoCurrentJob
from .jobs import Call, Claimed, Previous
from .log import get_logger
from .notes import Notes, check_step, line_of
from .signals import lease_lost

logger = get_logger("worker")
_making = threading.Lock()


class JobContext:
    """What a task may know of its own job; see `current_job`."""

    __slots__ = (
        "_call", "_extended_at", "_hooks", "_noted", "after", "cancelled", "claimed", "ends_at",
        "error", "lease", "lost", "notes", "seconds", "task",
    )  # fmt: skip

    def __init__(
        self,
        claimed: Claimed,
        lease: float,
        extended_at: Callable[[], float],
        noted: Callable[[JobContext], object] | None = None,
    ) -> None:
        self.claimed = claimed
        self._extended_at = extended_at
        self._noted = noted  # is told that there are notes to be taken along
        self.notes: Notes | None = None  # what this run says of itself
        self._hooks: list[Callable[[], object]] | None = None
        #: Seconds that the lease holds from the claim, and from each extension.
        self.lease = lease
        #: Path of the task.
        self.task = "?"
        self._call: Call | None = None  # what the payload says, once the run has begun
        #: Whether the lease was lost: what this run still does cannot settle the job.
        self.lost = False
        #: Whether that was because the job was cancelled.
        self.cancelled = False
        # When the timeout ends, on the monotonic clock; 0.0 for none.
        self.ends_at = 0.0
        #: How long the task ran, once it has ended.
        self.seconds = 0.0
        # Who is told the outcome and its verdict, in the job's own context; and what was raised.
        self.after: Callable[[Any, Any], None] | None = None
        self.error: BaseException | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.claimed.id.decode("ascii", "backslashreplace")

    @property
    def args(self) -> list[Any]:
        """The arguments of the call, once the run has begun."""
        return self._call.args if self._call else []

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the call."""
        return self._call.kwargs if self._call else {}

    @property
    def previous(self) -> Previous | None:
        """What the job before it left, in a chain; None for a job that nobody was before."""
        return self._call.previous if self._call else None

    @property
    def planned_at(self) -> datetime | None:
        """Which time a job of a schedule stands for, in UTC; None for other jobs.

        It is the planned one, also where the job was enqueued late.
        """
        planned = self._call.planned_at if self._call else 0
        return datetime.fromtimestamp(planned / 1000, UTC) if planned else None

    def begin(self, call: Call) -> None:
        """Make this the current job, with the arguments of its call. Called by the worker."""
        self._call = call
        enter(self)

    @property
    def queue(self) -> str:
        """The queue that the job was claimed from."""
        return self.claimed.queue

    @property
    def token(self) -> int:
        """The fencing token: higher for every claim of this job, never given out twice."""
        return self.claimed.token

    @property
    def fence(self) -> int:
        """What a fenced write stores: higher for every claim for the same `fence_key`.

        So it grows across jobs. Without a fence_key it is the token, which grows for this job only.
        """
        return self.claimed.fence or self.claimed.token

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1: the failures so far, and this one.

        Runs that ended without a verdict (a lost worker, a hand-back, a snooze) do not count.
        """
        return self.claimed.failures + 1

    @property
    def lease_deadline(self) -> datetime:
        """When the lease ends unless it is extended, as this machine's clock would show it."""
        begins_at = max(self.claimed.claimed_at, self._extended_at())
        return datetime.now(UTC) + timedelta(seconds=begins_at + self.lease - time.monotonic())

    @property
    def time_left(self) -> float | None:
        """Seconds until the timeout of this run ends, at least 0; None without a timeout."""
        return max(self.ends_at - time.monotonic(), 0.0) if self.ends_at else None

    def check(self) -> None:
        """Raise LeaseLost if the lease was lost. For a long task, to call now and then.

        JobCancelled, which is a LeaseLost, when that was because the job was cancelled.
        """
        if self.cancelled:
            raise JobCancelled(f"{self!r} was cancelled: it is in the morgue now.")
        if self.lost:
            raise LeaseLost(
                f"The lease of {self!r} was lost: another worker may run it now, and this run "
                "cannot settle it."
            )

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far this run has come: ``job.progress(3, 10, "page 3")``.

        Cheap enough for each round of a loop: nothing is sent here. The newest goes to the server
        a few times a second, and before the job is settled. Of a run that lost its lease it goes
        nowhere. Raises InvalidOption for what is no number.
        """
        notes = self.notes or self._take_notes()
        notes.step = check_step(done, total, note)
        if not notes.waiting:
            self._note(notes)

    def log(self, text: str) -> None:
        """Add a line to the job's log, which the admin shows: the newest LOG_MAX are kept.

        Cheap, and sent together, as `progress` is.
        """
        notes = self.notes or self._take_notes()
        notes.lines.append(line_of(text))
        if not notes.waiting:
            self._note(notes)

    def _take_notes(self) -> Notes:
        with _making:  # two threads of the job may begin at once
            if self.notes is None:
                self.notes = Notes()
            return self.notes

    def _note(self, notes: Notes) -> None:
        if self._noted is not None and not self.lost:
            notes.waiting = True
            self._noted(self)

    def on_lost(self, call: Callable[[], object]) -> None:
        """Have `call` called when the lease is lost, in another thread; at once if it is lost.

        For what cannot look at `lost` itself: ``job.on_lost(process.terminate)``.
        """
        if self._hooks is None:
            self._hooks = []
        self._hooks.append(call)
        if self.lost:
            self._tell_lost()

    def lose(self, *, cancelled: bool = False) -> None:
        """Note that the lease is lost, and tell whoever wants to know. Called by the worker."""
        self.cancelled = cancelled
        self.lost = True
        if self._hooks or lease_lost.receivers:
            # Not in the thread of the caller, which moves the jobs of the whole process.
            threading.Thread(target=self._tell_all, name="emq-lost", daemon=True).start()

    def _tell_all(self) -> None:
        self._tell_lost()
        lease_lost.tell(type(self), job=self)
        connections.close_all()  # what a receiver opened belongs to this thread

    def _tell_lost(self) -> None:
        while self._hooks:
            try:
                call = self._hooks.pop()
            except IndexError:  # two threads at once, and the other one has it
                return
            try:
                call()
            except Exception:
                logger.exception("a hook of %r for the lost lease raised", self)

    def __repr__(self) -> str:
        return f"job {self.id} of {self.task} (token {self.token})"


_current: ContextVar[JobContext | None] = ContextVar("django_emq_job", default=None)
enter = _current.set


def current_job() -> JobContext:
    """The job that this code runs in. Raises NoCurrentJob outside of a worker's job."""
    job = _current.get()
    if job is None:
        raise NoCurrentJob(
            "This code does not run inside a job. Call it from a task that a worker runs, or "
            "catch NoCurrentJob."
        )
    return job

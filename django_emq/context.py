"""The job that the calling code runs in."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from .exceptions import NoCurrentJob
from .jobs import Claimed


class JobContext:
    """What a task may know of its own job; see `current_job`."""

    __slots__ = ("_extended_at", "after", "claimed", "error", "lease", "lost", "seconds", "task")

    def __init__(self, claimed: Claimed, lease: float, extended_at: Callable[[], float]) -> None:
        self.claimed = claimed
        self._extended_at = extended_at
        #: Seconds that the lease holds from the claim, and from each extension.
        self.lease = lease
        #: Path of the task.
        self.task = "?"
        #: Whether the lease was lost: what this run still does cannot settle the job.
        self.lost = False
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
    def queue(self) -> str:
        """The queue that the job was claimed from."""
        return self.claimed.queue

    @property
    def token(self) -> int:
        """The fencing token: higher for every claim of this job, never given out twice."""
        return self.claimed.token

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

"""How many jobs a process should hold in front of its runners."""

from __future__ import annotations

from queue import SimpleQueue

from ..jobs import Claimed
from .options import WINDOW
from .runner import LoopRunner, Runner

CHUNK = 250  # jobs in one claim, outcomes in one trip
AHEAD = 8 * CHUNK  # jobs that may wait in front of the runners


class Appetite:
    """As many jobs as the runners can start within the window, by a moving average of run times.

    While nothing is known, and for jobs longer than the window, one for each idle runner: a
    waiting job is never stuck behind a slow one for longer than the window.
    """

    def __init__(
        self, runners: list[Runner], loop: LoopRunner, inbox: SimpleQueue[Claimed | None]
    ) -> None:
        self._runners = runners
        self._loop = loop
        self._inbox = inbox
        self._mean = 0.0  # seconds that a job holds its runner; 0.0 while nothing is known
        self._seen = (0.0, 0)
        self.low = True  # whether less than half the target waits, as `want` last saw it

    def free(self, now: float) -> int:
        """How many runners are idle, or will soon be: none of them is in a long job."""
        return sum(1 for runner in self._runners if not runner.since or now - runner.since < WINDOW)

    def want(self, now: float, coming: int = 0) -> int:
        """How many jobs to claim now.

        :param coming: how many have been asked for.
        """
        waiting = self._inbox.qsize() + coming
        target = self._target(now)
        self.low = 2 * waiting <= target
        return max(min(target - waiting, CHUNK), 0)

    def _target(self, now: float) -> int:
        self._learn()
        idle = sum(1 for runner in self._runners if not runner.since)
        if not self._mean or self._mean >= WINDOW:
            target = idle
        else:
            target = max(int(self.free(now) * WINDOW / self._mean), idle)
        if self._loop.active:
            target = min(target, self._loop.limit - self._loop.active)
        return min(target, AHEAD)

    def _learn(self) -> None:
        busy = sum(runner.busy for runner in self._runners)
        jobs = sum(runner.jobs for runner in self._runners)
        seconds, count = busy - self._seen[0], jobs - self._seen[1]
        if count > 0:
            self._seen = (busy, jobs)
            # Slow jobs are believed at once, quick ones by and by.
            mean = seconds / count
            self._mean = mean if mean > self._mean else 0.7 * self._mean + 0.3 * mean

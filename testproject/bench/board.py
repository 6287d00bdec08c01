"""Memory that the tasks of all workers write into: when each job started, and how often.

A stamp costs a fraction of a microsecond and no command of the server, so a job that is measured
does nothing that another one would not do.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from time import monotonic
from typing import Self

put_stamp = struct.Struct("d").pack_into
VARIABLE = "BENCH_BOARD"  # where a worker finds the path of the board


class Board:
    """One byte (runs) and two stamps of the monotonic clock (sent, started) for each job.

    :param path: a file of 17 bytes a job, at first all zero.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        view = memoryview(self._map)
        self.jobs = jobs = len(view) // 17
        stamps = view[: 16 * jobs].cast("d")
        self.sent, self.started = stamps[:jobs], stamps[jobs:]
        self.runs = view[16 * jobs :]
        self._started_at, self._runs_at = 8 * jobs, 16 * jobs

    @classmethod
    def new(cls, path: Path, jobs: int) -> Self:
        """Make the file, and its board."""
        with path.open("wb") as file:
            file.truncate(17 * jobs)
        return cls(path)

    @classmethod
    def of_this_worker(cls) -> Self:
        """The board whose path the environment names."""
        return cls(Path(os.environ[VARIABLE]))

    def stamp(self, job: int) -> None:
        """Note that a job starts now."""
        at = self._runs_at + job
        runs = self._map[at]
        self._map[at] = runs + 1
        if not runs:
            put_stamp(self._map, self._started_at + 8 * job, monotonic())

    def missing(self, first: int = 0, end: int | None = None) -> int:
        """How many jobs have not started, of all or of those in a range."""
        return bytes(self.runs[first:end]).count(0)

    def repeated(self) -> list[int]:
        """The jobs that ran more than once."""
        runs = bytes(self.runs)
        if runs.count(0) + runs.count(1) == self.jobs:
            return []
        return [job for job, count in enumerate(runs) if count > 1]

    def span(self) -> float:
        """Seconds from the first job's start to the last one's."""
        return max(self.started) - min(self.started)

    def delays_ms(self, first: int, end: int) -> list[float]:
        """Milliseconds from `sent` to `started` for a range of jobs, in order of size."""
        pairs = zip(self.sent[first:end], self.started[first:end], strict=True)
        return sorted((started - sent) * 1000 for sent, started in pairs)

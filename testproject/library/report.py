"""What the demo found, held against what must be."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .measure import Figures


class Line(NamedTuple):
    """One figure for people."""

    name: str
    figure: str
    must: str = ""
    ok: bool = True
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """The worker that got SIGKILL, and the jobs that it held in that moment."""

    worker: str
    pid: int  # the process that ran its jobs
    held: frozenset[str]  # ids of claimed jobs
    running: frozenset[str]  # those of them that had started and not ended


@dataclass(frozen=True, slots=True)
class Report:
    """All figures of a demo. Files are named by their paths, jobs by their ids."""

    expected: dict[str, Figures | str]  # what measuring it outside the queue comes to
    results: dict[str, Figures]  # what is in the database
    morgue: dict[str, str]  # reasons
    writes: dict[str, int]  # how many runs wrote a result, by path
    kill: Kill | None
    repeated: frozenset[str]  # jobs that the killed worker had started and another ran again
    refused: int  # runs that found their result there already
    reaped: int  # leases that lapsed and were taken back
    seconds: float  # from the start of the first run to the end of the last

    @property
    def must_fail(self) -> dict[str, str]:
        """The files that fail outside the queue, with the reasons."""
        return {path: v for path, v in self.expected.items() if isinstance(v, str)}

    @property
    def lost(self) -> list[str]:
        """Files of which nothing came: no result, and no place in the morgue."""
        return sorted(self.expected.keys() - self.results.keys() - self.morgue.keys())

    @property
    def different(self) -> list[str]:
        """Files whose results are not those of the same parse outside the queue."""
        return sorted(p for p, found in self.results.items() if self.expected.get(p) != found)

    @property
    def misplaced(self) -> list[str]:
        """Files that are in the morgue and should not be, or the other way round, or why."""
        paths = self.morgue.keys() | self.must_fail.keys()
        return sorted(p for p in paths if self.morgue.get(p) != self.must_fail.get(p))

    @property
    def twice(self) -> list[str]:
        """Files whose result was written more than once."""
        return sorted(path for path, count in self.writes.items() if count > 1)

    @property
    def not_repeated(self) -> list[str]:
        """Jobs that were cut off by the kill and never ran again."""
        return sorted(self.kill.running - self.repeated) if self.kill else []

    @property
    def per_second(self) -> float:
        """Jobs a second."""
        return len(self.expected) / self.seconds if self.seconds else 0.0

    @property
    def ok(self) -> bool:
        """Whether every figure is what it must be."""
        return not self.wrong

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in sentences."""
        return list(self._complaints())

    def _complaints(self) -> Iterator[str]:
        must_do = len(self.expected) - len(self.must_fail)
        if len(self.results) != must_do:
            yield f"{len(self.results):,} files are done, not {must_do:,}."
        for name, found in (
            ("in the wrong place or there for another reason", self.misplaced),
            ("done with figures that differ from those outside the queue", self.different),
            ("written twice", self.twice),
            ("lost", self.lost),
        ):
            if found:
                yield f"{len(found):,} {name}: {some(found)}."
        if self.kill is None:
            yield "No worker was killed: none could be caught in the middle of a job."
        if self.not_repeated:
            yield f"Cut off by the kill and never run again: {some(self.not_repeated)}."

    def lines(self) -> list[Line]:
        """The table."""
        files, fail = len(self.expected), len(self.must_fail)
        held = len(self.kill.held) if self.kill else 0
        running = len(self.kill.running) if self.kill else 0
        return [
            Line("files, one job each", f"{files:,}"),
            Line(
                "done",
                f"{len(self.results):,}",
                f"{files - fail:,}",
                len(self.results) == files - fail,
            ),
            Line(
                "in the morgue",
                f"{len(self.morgue):,}",
                f"{fail:,}",
                not self.misplaced,
                "as outside the queue",
            ),
            Line(
                "results unlike outside",
                f"{len(self.different):,}",
                "0",
                not self.different,
            ),
            Line(
                "held by the killed worker",
                f"{held:,}",
                "> 0",
                bool(running),
                f"{running} in the middle of a run",
            ),
            Line("leases taken back", f"{self.reaped:,}", remark="by the reaper"),
            Line(
                "runs repeated after the kill",
                f"{len(self.repeated):,}",
                "> 0",
                bool(self.repeated) and not self.not_repeated,
                f"{self.refused} found their result there",
            ),
            Line("results written twice", f"{len(self.twice):,}", "0", not self.twice),
            Line("lost", f"{len(self.lost):,}", "0", not self.lost),
            Line("jobs/s", f"{self.per_second:,.1f}", remark=f"{self.seconds:.1f} s of work"),
        ]

    def summary(self) -> str:
        """One line that says it all."""
        return (
            f"demo: {'' if self.ok else 'WRONG: '}{len(self.expected):,} files, "
            f"{len(self.results):,} done, {len(self.morgue):,} in the morgue "
            f"({len(self.must_fail):,} expected), "
            f"{len(self.repeated):,} repeated after the kill, {len(self.twice):,} written twice, "
            f"{len(self.lost):,} lost, {self.per_second:,.1f} jobs/s"
        )

    def as_dict(self) -> dict[str, Any]:
        """The figures for programs."""
        return {
            "ok": self.ok,
            "wrong": self.wrong,
            "python": platform.python_version(),
            "files": len(self.expected),
            "done": len(self.results),
            "morgue": self.morgue,
            "morgue_expected": self.must_fail,
            "different": self.different,
            "killed": self.kill.worker if self.kill else None,
            "held": sorted(self.kill.held) if self.kill else [],
            "cut_off": sorted(self.kill.running) if self.kill else [],
            "reaped": self.reaped,
            "repeated": sorted(self.repeated),
            "results_found_there": self.refused,
            "written_twice": self.twice,
            "lost": self.lost,
            "seconds": round(self.seconds, 3),
            "jobs_per_second": round(self.per_second, 1),
        }


def some(names: list[str], most: int = 5) -> str:
    """The first few names."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""The morgue over all queues: the newest dead jobs, grouped by what killed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..connections import Client
from ..keys import queue_keys
from ._read import ask, instant, text, to_ms
from .jobs import JobRow, Mark, load_places

PER_QUEUE = 1000  # newest dead jobs looked at in each queue
IN_ALL = 2000  # …and in all queues together, which share them evenly


@dataclass(frozen=True, slots=True)
class Group:
    """Dead jobs of one queue and task with the same class of error."""

    queue: str
    task: str
    error: str  # the class
    count: int
    newest: JobRow

    @property
    def died_at(self) -> datetime | None:
        """When the newest of them died."""
        return instant(self.newest.score)


@dataclass(frozen=True, slots=True)
class Morgue:
    """The groups, the newest first, and how much of the morgue they are."""

    groups: list[Group]
    total: int  # dead jobs in all the queues
    examined: int  # newest ones that were grouped
    counts: dict[str, int]  # dead jobs in each queue that has any


def morgue(client: Client, names: Sequence[str]) -> Morgue:
    """Group the newest dead jobs, in four round trips."""
    keys = [queue_keys(name, client.prefix).dead for name in names]
    time, *sizes = ask(client, lambda p: [p.time(), *(p.zcard(key) for key in keys)])
    counts = {name: size for name, size in zip(names, sizes, strict=True) if size}
    share = min(PER_QUEUE, max(IN_ALL // max(len(counts), 1), 1))

    def build(pipeline: Any) -> None:
        for name in counts:
            dead = queue_keys(name, client.prefix).dead
            pipeline.zrange(dead, 0, share - 1, desc=True, withscores=True)

    places = [
        (name, Mark(score, text(job_id)))
        for name, found in zip(counts, ask(client, build), strict=True)
        for job_id, score in found
    ]
    rows = load_places(client, "dead", places, now_ms=to_ms(time))
    return Morgue(grouped(rows), sum(counts.values()), len(rows), counts)


def grouped(rows: Sequence[JobRow]) -> list[Group]:
    """Rows by queue, task and class of error; the group with the newest death first."""
    found: dict[tuple[str, str, str], list[JobRow]] = {}
    for row in rows:
        found.setdefault((row.queue, row.task, row.error_class), []).append(row)
    groups = [
        Group(queue, task, error, len(members), max(members, key=lambda row: row.score or 0))
        for (queue, task, error), members in found.items()
    ]
    return sorted(groups, key=lambda group: group.newest.score or 0, reverse=True)

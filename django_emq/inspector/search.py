"""Jobs of a set that match a filter: a bounded part of the set is looked at in one call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

from ..connections import Client
from .jobs import JobRow, Mark, follow, load

CHUNK = 500  # rows read at once
SECONDS = 1.0  # of looking, in one call


@dataclass(frozen=True, slots=True)
class Filter:
    """What to look for; empty fields do not count.

    :ivar task: path of the task, or a part of it.
    :ivar error: class of the last error, or a part of the error's last line.
    :ivar older_s: seconds since the job ended, or since it was enqueued when it has not.
    :ivar exact: `task` and `error` must be the path and the class, whole.
    """

    task: str = ""
    error: str = ""
    older_s: float = 0.0
    exact: bool = False

    def __bool__(self) -> bool:
        return bool(self.task or self.error or self.older_s or self.exact)

    def matches(self, row: JobRow) -> bool:
        """Whether a row is looked for. A payload too large for a list has no task to match."""
        if self.exact:
            return (self.task, self.error) == (row.task, row.error_class)
        if self.task and self.task.casefold() not in row.task.casefold():
            return False
        errors = f"{row.error_class}\n{row.error_line}".casefold()
        if self.error and self.error.casefold() not in errors:
            return False
        return not self.older_s or (row.age_s or 0.0) >= self.older_s


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that match, of the part of a set that was looked at."""

    rows: list[JobRow]
    examined: int
    next: Mark | None  # where to go on; None when the set is at its end


def walk(
    client: Client,
    queue: str,
    name: str,
    *,
    after: Mark | None = None,
    newest: bool = False,
    seconds: float = SECONDS,
) -> Iterator[list[JobRow]]:
    """Parts of a set in its order, until its end or until the time is up."""
    ends = monotonic() + seconds
    while True:
        now_ms = _now(client)
        marks = follow(client, queue, name, after, size=CHUNK, newest=newest)
        if marks:
            yield load(client, queue, name, marks, now_ms=now_ms)
            after = marks[-1]
        if len(marks) < CHUNK or monotonic() >= ends:
            return


def find(
    client: Client,
    queue: str,
    name: str,
    wanted: Filter,
    *,
    after: Mark | None = None,
    newest: bool = False,
    size: int = 50,
    seconds: float = SECONDS,
) -> Found:
    """Up to `size` rows that match; goes on where the last call ended, given its `next`."""
    rows: list[JobRow] = []
    examined = 0
    last: Mark | None = after
    full = False
    for part in walk(client, queue, name, after=after, newest=newest, seconds=seconds):
        full = len(part) == CHUNK
        for row in part:
            examined += 1
            last = Mark(row.score or 0.0, row.id)
            if wanted.matches(row):
                rows.append(row)
                if len(rows) == size:
                    return Found(rows, examined, last)
    return Found(rows, examined, last if full else None)


def _now(client: Client) -> int:
    seconds, micros = client.read(lambda raw: raw.time())
    return int(seconds) * 1000 + int(micros) // 1000

"""What happened, written down outside the server: files that outlive every process of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import django_emq as emq
from django_emq.keys import Keys

VARIABLE = "CHAOS_LEDGER"  # where a worker finds the path of the effects

# Events of the trail that settle a job for good, and those after which it runs again. A snooze and
# a discard leave no entry: they are known by the counters.
FINAL = ("completed", "died", "buried")
SETTLED = (*FINAL, "failed", "released")


class Mark(NamedTuple):
    """An id, and the token of the claim by which somebody did something with it."""

    job: str
    token: int


def append(path: Path | str, line: str) -> None:
    """One write in append mode: lines of several processes never mix.

    A line that was written stays written when its process is killed the moment after.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def effect() -> None:
    """Write down, from within a task, that this run of its job has begun."""
    job = emq.current_job()
    append(os.environ[VARIABLE], f"{job.id} {job.token}")


class Ledger:
    """The effects that tasks wrote down, and a copy of the queue's trail."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        self.effects_path = folder / "effects"
        self.trail_path = folder / "trail"
        self.effects_path.touch()
        self.trail_path.touch()
        self._keys = keys
        self._since = "-"

    def follow(self, raw: Any) -> None:
        """Copy what the trail has had since the last time; the server keeps only the newest."""
        for at, fields in raw.xrange(self._keys.trail, self._since, "+"):
            event, job, token = (fields.get(n, b"").decode() for n in (b"event", b"id", b"token"))
            append(self.trail_path, f"{event} {job or '-'} {token or 0}")
            self._since = f"({at.decode()}"

    def effects(self) -> Iterator[Mark]:
        """All runs that began, in order."""
        for line in self.effects_path.read_text().splitlines():
            job, token = line.split()
            yield Mark(job, int(token))

    def entries(self) -> Iterator[tuple[str, Mark]]:
        """The whole trail, in the order in which the server did what it says."""
        for line in self.trail_path.read_text().splitlines():
            event, job, token = line.split()
            yield event, Mark(job, int(token))

    def trail(self, *events: str) -> Iterator[Mark]:
        """The entries of these events, in order."""
        return (mark for event, mark in self.entries() if event in events)

    def events(self) -> Counter[str]:
        """How many entries there are of each event."""
        return Counter(event for event, _ in self.entries())

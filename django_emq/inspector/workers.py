"""The workers, and the jobs that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..connections import Client
from ..exceptions import InvalidOption
from ..keys import queue_keys, reserve_keys
from ._read import ask, instant, text, texts, to_ms
from .jobs import JobRow, Mark, load_places

WORKERS_MAX = 1000
HELD_MAX = 200  # held jobs read of each queue


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker last said of itself."""

    id: str
    beat_at: datetime
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def queues(self) -> list[str]:
        """The queues that it serves, the first one first."""
        return self.facts.get("queues", "").split()

    def holds(self, row: JobRow) -> bool:
        """Whether one of its processes, which are numbered after it, holds a job."""
        return row.worker == self.id or row.worker.rpartition(".")[0] == self.id


def workers(client: Client) -> list[Worker]:
    """The workers whose word still holds, the latest beat first; two round trips."""
    reserve = reserve_keys(client.prefix)
    beats = client.read(
        lambda raw: raw.zrange(reserve.workers, 0, WORKERS_MAX - 1, desc=True, withscores=True)
    )
    replies = ask(client, lambda p: [p.hgetall(reserve.worker(text(name))) for name, _ in beats])
    found = []
    for (name, beat), fields in zip(beats, replies, strict=True):
        at = instant(float(beat))
        if fields and at:
            found.append(Worker(text(name), at, texts(fields)))
    return found


def served(found: Sequence[Worker], queue: str) -> list[Worker]:
    """Those of the workers that serve a queue."""
    return [worker for worker in found if queue in worker.queues]


def held(client: Client, names: Sequence[str]) -> list[JobRow]:
    """The jobs of some queues that are held, up to 200 of each queue; three round trips."""
    sound = [name for name in names if _sound(name, client.prefix)]

    def build(pipeline: Any) -> None:
        pipeline.time()
        for name in sound:
            active = queue_keys(name, client.prefix).active
            pipeline.zrange(active, 0, HELD_MAX - 1, withscores=True)

    time, *found = ask(client, build)
    places = [
        (name, Mark(score, text(job_id)))
        for name, entries in zip(sound, found, strict=True)
        for job_id, score in entries
    ]
    return load_places(client, "active", places, now_ms=to_ms(time))


def _sound(name: str, prefix: str) -> bool:
    """Whether this can be a queue: a worker's own words are only words."""
    try:
        queue_keys(name, prefix)
    except InvalidOption:
        return False
    return True

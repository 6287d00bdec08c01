"""The workers, and the jobs that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..connections import Client
from ..exceptions import InvalidOption
from ..keys import queue_keys, reserve_keys
from ..scripts import read_word
from ._read import ask, instant, text, texts, to_ms
from .jobs import JobRow, Mark, load_places

WORKERS_MAX = 1000
HELD_MAX = 200  # held jobs read of each queue
STATES = {"quiet": "quiet", "resume": "running", "stop": "stopping"}  # that a word leads to


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker last said of itself."""

    id: str
    beat_at: datetime
    facts: dict[str, str] = field(default_factory=dict)
    asked: str = ""  # to do: quiet, resume or stop; '' when that is done, or nothing was asked
    asked_by: str = ""

    @property
    def state(self) -> str:
        """running, quiet or stopping, in its own words."""
        return self.facts.get("state", "")

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

    def build(pipeline: Any) -> None:
        for name, _ in beats:
            pipeline.hgetall(reserve.worker(text(name)))
            pipeline.get(reserve.word(text(name)))

    replies = ask(client, build, loose=True)
    found = []
    for (name, beat), fields, word in zip(beats, replies[::2], replies[1::2], strict=True):
        at, facts = instant(float(beat)), texts(fields)
        if facts and at:
            asked, by = read_word(word) if isinstance(word, bytes) else ("", "")
            if facts.get("state") == STATES.get(asked):
                asked = by = ""
            found.append(Worker(text(name), at, facts, asked, by))
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

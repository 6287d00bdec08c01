"""The jobs that run now and say how far they have come."""

from __future__ import annotations

from collections.abc import Sequence

from ..connections import Client
from ..keys import queue_keys
from ._read import ask, text, to_ms
from .jobs import JobRow, Mark, load_places

LOOKED_AT = 200  # held jobs of each queue: those whose lease ends first
SHOWN = 20


def running(client: Client, names: Sequence[str], count: int = SHOWN) -> list[JobRow]:
    """Held jobs of these queues that have noted a progress, `count` at most; four round trips."""
    if not names:
        return []
    keys = [queue_keys(name, client.prefix) for name in names]
    held = ask(
        client,
        lambda p: [p.zrange(key.active, 0, LOOKED_AT - 1, withscores=True) for key in keys],
        loose=True,
    )
    found = [
        (name, Mark(score, text(job_id)))
        for name, entries in zip(names, held, strict=True)
        if isinstance(entries, list)
        for job_id, score in entries
    ]
    rows = [queue_keys(name, client.prefix).job(mark.id) for name, mark in found]
    said = ask(client, lambda p: [p.hget(row, "progress") for row in rows], loose=True)
    chosen = [one for one, noted in zip(found, said, strict=True) if isinstance(noted, bytes)]
    if not chosen:
        return []
    now_ms = to_ms(client.read(lambda raw: raw.time()))
    return load_places(client, "active", chosen[:count], now_ms=now_ms)

"""The trail of a queue: what happened, who did it, and what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..connections import Client
from ..ids import is_job_id, minted_at
from ..keys import Keys, queue_keys
from ._read import ask, instant, texts

EXAMINED_MAX = 5000  # entries looked at for those of one job
SKEW_MS = 3_600_000  # how far the clock of who minted an id may be ahead of the server's


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened.

    :ivar event: failed, died, reaped, released, refused, buried, reprocessed, …
    :ivar token: of the row, then. :ivar yours: the token of a caller who was refused.
    :ivar by: the operator who did it. :ivar note: error, verb and reason, in short.
    """

    at: datetime
    event: str
    id: str
    token: str
    yours: str
    by: str
    note: str
    count: str = ""  # of jobs, where it is about many


def trail(client: Client, queue: str, *, count: int = 100) -> list[Entry]:
    """The newest entries of a queue, newest first."""
    key = queue_keys(queue, client.prefix).trail
    return entries(ask(client, lambda p: p.xrevrange(key, count=count))[0])


def read_trail(pipeline: Any, keys: Keys, job_id: str) -> None:
    """Ask for the entries since a job was minted."""
    since = 0
    if is_job_id(job_id):
        since = max(int(minted_at(job_id).timestamp() * 1000) - SKEW_MS, 0)
    pipeline.xrevrange(keys.trail, min=str(since), count=EXAMINED_MAX)


def entries(stream: Any, job_id: str | None = None) -> list[Entry]:
    """The entries in a reply of the server, of one job or of all."""
    if not isinstance(stream, list):
        return []
    wanted = None if job_id is None else job_id.encode()
    return [_entry(*one) for one in stream if wanted is None or one[1].get(b"id") == wanted]


def _entry(entry_id: bytes, fields: Any) -> Entry:
    about = texts(fields)
    at = instant(int(entry_id.partition(b"-")[0]))
    assert at is not None  # the server wrote it
    names = ("event", "id", "token", "yours", "by", "note", "count")
    event, job_id, token, yours, by, note, count = (about.get(name, "") for name in names)
    if event == "drained":
        note = about.get("set", note)
    return Entry(at, event, job_id, token, yours, by, note, count)

"""What the wire-level tests share: mint, enqueue one, claim one, wait, and look at everything."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import books

from django_emq import scripts
from django_emq.connections import Client
from django_emq.ids import mint
from django_emq.jobs import Claimed, Claims, NewJob
from django_emq.keys import queue_keys
from tests.processes import wait_until

LEASE_MS = 60_000
SETS = books.SETS
PLAIN = ("state", "attempts", "payload")

_requests = itertools.count()


def new(payload: str = "work", *, priority: int = 0, due: str = "", **fields: Any) -> NewJob:
    """A job with a fresh id; `fields` are further fields of its row."""
    pairs = tuple(part for pair in fields.items() for part in pair)
    return NewJob(mint(), payload, priority, due, pairs)


def admit(client: Client, queue: str, *jobs: NewJob) -> list[Any]:
    """Enqueue under a request of its own; the verdicts."""
    request = f"r{next(_requests)}"
    return scripts.enqueue(client, queue, jobs, request=request, producer="test")


def enqueue_one(client: Client, queue: str, payload: str = "work", **options: Any) -> str:
    """Enqueue one job and answer its id."""
    job = new(payload, **options)
    assert scripts.one(admit(client, queue, job)) == 1
    return job.id


def enqueue_some(client: Client, queue: str, count: int, **options: Any) -> list[str]:
    """Enqueue several jobs in one call; their ids in mint order."""
    jobs = [new(**options) for _ in range(count)]
    assert admit(client, queue, *jobs) == [1] * count
    return [job.id for job in jobs]


def claims(
    client: Client, queue: str, count: int = 1, *, lease_ms: int = LEASE_MS, worker: str = "w"
) -> Claims:
    """One claim, whole, under a request of its own."""
    return scripts.claim(
        client, queue, worker=worker, request=f"c{next(_requests)}", lease_ms=lease_ms, count=count
    )


def claim_some(client: Client, queue: str, count: int, **options: Any) -> list[Claimed]:
    """Claim up to `count` jobs."""
    return claims(client, queue, count, **options).jobs


def claim_one(client: Client, queue: str, **options: Any) -> Claimed | None:
    """Claim one job; None when there is none to be had."""
    jobs = claim_some(client, queue, 1, **options)
    return jobs[0] if jobs else None


def given(job: Claimed | None) -> tuple[str, str, int] | None:
    """The table's way to write a claim: (id, payload, token)."""
    return None if job is None else (job.id.decode(), job.payload.decode(), job.token)


def complete(client: Client, queue: str, job_id: str, token: int, *, keep_ms: int = 0) -> int:
    """Complete one job; raises a refusal."""
    return scripts.one(scripts.complete(client, queue, [(job_id, token, "")], keep_ms=keep_ms))


def retry(
    client: Client,
    queue: str,
    job_id: str,
    token: int,
    *,
    delay_ms: int = 10,
    maximum: int = 3,
    error: str = "boom",
    traceback: str = "",
) -> str:
    """Retry one job: 'scheduled' or 'dead'; raises a refusal."""
    items = [(job_id, token, delay_ms, error, traceback)]
    return scripts.one(scripts.retry(client, queue, items, max_attempts=maximum))


def snooze(client: Client, queue: str, job_id: str, token: int, delay_ms: int = 10) -> int:
    """Snooze one job (the contract's delay); raises a refusal."""
    return scripts.one(scripts.snooze(client, queue, [(job_id, token, f"+{delay_ms}")]))


def release(client: Client, queue: str, job_id: str, token: int) -> int:
    """Hand one job back; raises a refusal."""
    return scripts.one(scripts.release(client, queue, [(job_id, token)]))


def bury(client: Client, queue: str, job_id: str, token: int, reason: str = "no use") -> int:
    """Bury one job; raises a refusal."""
    return scripts.one(scripts.bury(client, queue, [(job_id, token, reason, "")]))


def discard(client: Client, queue: str, job_id: str, token: int) -> int:
    """Discard one job; raises a refusal."""
    return scripts.one(scripts.discard(client, queue, [(job_id, token)]))


def extend(client: Client, queue: str, job_id: str, token: int, *, lease_ms: int = LEASE_MS) -> int:
    """Extend one lease; raises a refusal."""
    return scripts.one(scripts.extend(client, queue, [(job_id, token)], lease_ms=lease_ms))


def progress(client: Client, queue: str, job_id: str, token: int, value: str = "50") -> int:
    """Note the progress of one job; raises a refusal."""
    return scripts.one(scripts.progress(client, queue, [(job_id, token, value)]))


def log(
    client: Client, queue: str, job_id: str, token: int, line: str = "line", *, keep: int = 100
) -> int:
    """Add one line to a job's log: how many there are; raises a refusal."""
    return scripts.one(scripts.log(client, queue, [(job_id, token, line)], keep=keep))


def reap(client: Client, queue: str, *, max_stalls: int = 99, batch: int = 500) -> list[str]:
    """Sweep; the ids that are back in pending."""
    return scripts.reap(client, queue, max_stalls=max_stalls, batch=batch).returned


def lapse(client: Client, queue: str, job_id: str, token: int) -> None:
    """Have the lease of one held job end and be swept."""
    assert extend(client, queue, job_id, token, lease_ms=0) == 1
    assert reap(client, queue) == [job_id]


def row(client: Client, queue: str, job_id: str) -> dict[str, str]:
    """All fields of a row; empty when there is none."""
    fields = client.raw.hgetall(queue_keys(queue, client.prefix).job(job_id))
    return {name.decode(): value.decode() for name, value in fields.items()}


def members(client: Client, queue: str, name: str) -> dict[str, float]:
    """One set, ids with their scores, in the order of the server."""
    key = getattr(queue_keys(queue, client.prefix), name)
    return {i.decode(): score for i, score in client.raw.zrange(key, 0, -1, withscores=True)}


def now_ms(client: Client) -> float:
    """The server's clock."""
    seconds, micros = client.raw.time()
    return seconds * 1000 + micros / 1000


def pass_ms(client: Client, ms: float) -> None:
    """Return when `ms` have passed on the server's clock, the only one that counts."""
    end = now_ms(client) + ms
    wait_until(lambda: now_ms(client) >= end, what=f"{ms} ms on the server's clock")


def snapshot(client: Client, queue: str) -> dict[str, Any]:
    """The whole state in one step: each set with its scores, each row with its fields."""
    return books.snapshot(client.raw, queue_keys(queue, client.prefix).base)


def books_balance(
    client: Client, queue: str, before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Check that each job is in one place; answer all tokens, to be given as `before` later."""
    return books.balance(snapshot(client, queue), before)


def calls(client: Client, command: str) -> int:
    """How often the server has carried out a command, by any client."""
    facts = client.raw.info("commandstats").get(f"cmdstat_{command}", {})
    return int(facts.get("calls", 0))


class Clock:
    """Seconds since it was made, for bounds on how long something took."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

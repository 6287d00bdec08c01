"""Every change of the queue: one function a verb, each one EVALSHA of the Lua file of its name.

Nothing else changes Redis. The verbs of operators, sweepers and schedules stand in modules of their
own (`operators`, `sweeps`, `repeats`) and are reached from here too.
`client` is a `connections.Client`, or a `Batch`: then the call is noted, and `Batch.send` answers
what the verb would have returned. Verbs that take several jobs answer one verdict a job, in order;
a refused one is an exception object in the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any

from .calls import (
    BATCH_MAX,
    SCRIPTS,
    Token,
    Verdict,
    Way,
    answers,
    bounded,
    keys_of,
    one,
    run,
    settle,
    texts,
    verdicts,
)
from .exceptions import EmqError
from .jobs import NO_KEY, Claimed, Claims, Conflict, NewJob
from .keys import reserve_keys
from .operators import (
    WORD_MS,
    WORDS,
    cancel,
    control,
    drain,
    obliterate,
    pause,
    read_word,
    remove,
    reprocess,
    requeue,
    resume,
    unregister,
    update,
)
from .repeats import (
    Tick,
    declare,
    repeat_advance,
    repeat_cancel,
    repeat_due,
    repeat_register,
)
from .sweeps import beat, onward, promote, reap, trim

__all__ = [
    "BATCH_MAX",
    "SCRIPTS",
    "VERSION",
    "WORDS",
    "WORD_MS",
    "Tick",
    "Token",
    "Verdict",
    "Way",
    "beat",
    "bury",
    "cancel",
    "cas",
    "claim",
    "complete",
    "control",
    "declare",
    "discard",
    "drain",
    "enqueue",
    "enqueue_unique",
    "extend",
    "forget",
    "gate",
    "log",
    "obliterate",
    "one",
    "onward",
    "pause",
    "progress",
    "promote",
    "read_word",
    "reap",
    "register",
    "release",
    "remove",
    "repeat_advance",
    "repeat_cancel",
    "repeat_due",
    "repeat_register",
    "reprocess",
    "requeue",
    "resume",
    "retry",
    "snooze",
    "state",
    "trim",
    "unregister",
    "update",
    "wait",
]

# Written by the first client of a deployment; rows of another version are not ours to touch.
VERSION = "django_emq:1"
SENT_MS = 120_000


# -- admission --------------------------------------------------------------------------------


def register(client: Way, queues: Iterable[str]) -> int:
    """Check the version fence and enter queues in the registry; raises VersionFence."""
    reserve = reserve_keys(client.prefix)
    result: int = run(client, "register", (reserve.version, reserve.queues), (VERSION, *queues))
    return result


def enqueue(
    client: Way,
    queue: str,
    jobs: Iterable[NewJob],
    *,
    request: str,
    producer: str,
    sent_ms: int = SENT_MS,
    void_at: int | str = "",
    tick: Tick | None = None,
) -> list[Verdict]:
    """Admit jobs: 1 enqueued, 0 duplicate, or KindRefused or DamagedRow.

    :param request: names this call. Sent again with the same name and producer, it is answered
        with the verdicts of the first time and changes nothing.
    :param producer: names a sender that makes one call at a time.
    :param sent_ms: how long the server remembers the call.
    :param void_at: ms since 1970 by the server's clock; a later call changes nothing and raises
        ServerRefused.
    :param tick: admit the job as this tick of a schedule, or raise NotInState and change nothing.
    """
    keys = keys_of(client, queue)
    args: list[Any] = [keys.jobs, request, sent_ms, void_at, tick.words if tick else ""]
    count = 0
    for job in jobs:
        count += 1
        extra = len(job.fields) // 2
        args += (job.id, job.payload, job.priority, job.due, extra, *job.fields)
    bounded("enqueue", count)
    sent = keys.sent(producer)
    names = [keys.pending, keys.schedule, keys.wake, keys.metrics, sent]
    if tick:
        names += (keys.repeat, keys.record(tick.name))
    result: list[Verdict] = run(client, "enqueue", names, args, verdicts)
    return result


def enqueue_unique(
    client: Way,
    queue: str,
    jobs: Iterable[NewJob],
    *,
    request: str,
    producer: str,
    sent_ms: int = SENT_MS,
    void_at: int | str = "",
    tick: Tick | None = None,
) -> list[Verdict | Conflict]:
    """`enqueue` for jobs of which some have a unique key: a Conflict where another job holds it."""
    k = keys_of(client, queue)
    args: list[Any] = [k.jobs, request, sent_ms, void_at, k.uniques]
    args += (client.trail_max, client.trail_all, tick.words if tick else "")
    count = 0
    for job in jobs:
        count += 1
        extra = len(job.fields) // 2
        args += (job.id, job.payload, job.priority, job.due, *(job.unique or NO_KEY))
        args += (extra, *job.fields)
    bounded("enqueue", count)
    names = [k.pending, k.schedule, k.active, k.wake, k.metrics, k.sent(producer), k.trail]
    if tick:
        names += (k.repeat, k.record(tick.name))
    result: list[Verdict | Conflict] = run(client, "enqueue_unique", names, args, answers)
    return result


def forget(client: Way, queue: str, producers: Iterable[str], *, grace_ms: int) -> int:
    """End the memory of these producers' last calls after a grace; how many there were."""
    keys = keys_of(client, queue)
    names = [keys.sent(producer) for producer in producers]
    result: int = run(client, "forget", names, (grace_ms,))
    return result


# -- the worker's verbs -----------------------------------------------------------------------


def claim(
    client: Way,
    queue: str,
    *,
    worker: str,
    request: str | int,
    lease_ms: int,
    claimer: int = 0,
    count: int = 1,
    due: int = 200,
) -> Claims:
    """Lease up to `count` jobs to a worker, after promoting up to `due` jobs that are due.

    :param worker: who is to hold the jobs, for instance one process.
    :param request: names this call; the same again is given the same jobs and tokens.
    :param claimer: a worker may make one call at a time under each number.
    :param count: at most 1,000; 0 takes nothing and passes a wake on to the next worker.
    """
    k = keys_of(client, queue)
    names = (k.pending, k.active, k.schedule, k.dead, k.wake, k.meta, k.metrics, k.limiter)
    count = min(count, BATCH_MAX)
    due = min(due, BATCH_MAX)
    trail = (client.trail_max, client.trail_all)
    args = (k.jobs, request, worker, lease_ms, count, due, *trail, k.fences, client.dead_max)

    sent_at = monotonic()

    def parse(reply: list[Any]) -> Claims:
        fields = iter(reply)
        next_ms, receipt, fences = next(fields), next(fields), next(fields)
        quads = zip(fields, fields, fields, fields, strict=True)
        jobs = [Claimed(*quad, queue, sent_at) for quad in quads]
        if fences:
            _fence(jobs, fences)
        return Claims(next_ms, receipt, jobs)

    result: Claims = run(client, "claim", (*names, k.claims(worker, claimer), k.trail), args, parse)
    return result


def _fence(jobs: list[Claimed], fences: bytes) -> None:
    """Enter the numbers of resources, given as ``<place of the job>:<number> …``."""
    for pair in fences.split():
        place, _, number = pair.partition(b":")
        jobs[int(place)].fence = int(number)


def complete(
    client: Way, queue: str, items: Iterable[tuple[Any, Token, Any]], *, keep_ms: int = 0
) -> list[Verdict]:
    """Retire jobs, given (id, token, result): 1 retired, 0 gone, or StaleToken.

    :param keep_ms: how long the rows are kept with their results; 0 deletes them.
    """
    k = keys_of(client, queue)
    keys = (k.active, k.pending, k.done, k.metrics, k.trail, k.schedule, k.wake, k.onward)
    options = (k.jobs, client.trail_max, client.trail_all, keep_ms)
    return settle(client, "complete", keys, options, items)


def retry(
    client: Way,
    queue: str,
    items: Iterable[tuple[Any, Token, int, str, str]],
    *,
    max_attempts: int,
) -> list[str | EmqError]:
    """Count failures, given (id, token, delay_ms, error, traceback): 'scheduled' or 'dead'.

    :param max_attempts: failures before the morgue, for rows that have no number of their own.
    """
    k = keys_of(client, queue)
    keys = (k.active, k.schedule, k.dead, k.wake, k.metrics, k.trail, k.pending, k.onward)
    options = (k.jobs, client.trail_max, max_attempts, client.dead_max)
    return settle(client, "retry", keys, options, items, texts)


def snooze(client: Way, queue: str, items: Iterable[tuple[Any, Token, str]]) -> list[Verdict]:
    """Run jobs later, given (id, token, due as '+ms' or 'ms'): 1 moved."""
    k = keys_of(client, queue)
    keys = (k.active, k.schedule, k.wake, k.metrics, k.trail)
    return settle(client, "snooze", keys, (k.jobs, client.trail_max), items)


def release(client: Way, queue: str, items: Iterable[tuple[Any, Token]]) -> list[Verdict]:
    """Hand jobs back unharmed, given (id, token): 1 handed back."""
    k = keys_of(client, queue)
    keys = (k.active, k.pending, k.wake, k.metrics, k.trail)
    return settle(client, "release", keys, (k.jobs, client.trail_max), items)


def bury(client: Way, queue: str, items: Iterable[tuple[Any, Token, str, str]]) -> list[Verdict]:
    """Put jobs into the morgue, given (id, token, reason, traceback): 1 buried."""
    k = keys_of(client, queue)
    keys = (k.active, k.dead, k.metrics, k.trail, k.pending, k.schedule, k.wake, k.onward)
    return settle(client, "bury", keys, (k.jobs, client.trail_max, client.dead_max), items)


def discard(client: Way, queue: str, items: Iterable[tuple[Any, Token]]) -> list[Verdict]:
    """Drop jobs, given (id, token): 1 dropped."""
    k = keys_of(client, queue)
    keys = (k.active, k.metrics, k.trail)
    return settle(client, "discard", keys, (k.jobs, client.trail_max), items)


def extend(
    client: Way, queue: str, items: Iterable[tuple[Any, Token]], *, lease_ms: int
) -> list[Verdict]:
    """Prolong leases, given (id, token): 1 prolonged. With lease_ms=0 they lapse now."""
    k = keys_of(client, queue)
    return settle(client, "extend", (k.active,), (k.jobs, lease_ms), items)


# -- what a run says of itself ------------------------------------------------------------------


def progress(client: Way, queue: str, items: Iterable[tuple[Any, Token, str]]) -> list[Verdict]:
    """Note and publish how far held jobs have come, given (id, token, text): 1 noted."""
    k = keys_of(client, queue)
    return settle(client, "progress", (k.active, k.events), (k.jobs,), items)


def log(
    client: Way, queue: str, items: Iterable[tuple[Any, Token, str]], *, keep: int = 100
) -> list[Verdict]:
    """Append lines to the logs of held jobs, given (id, token, text): how many there are.

    A job may have several lines in one call.
    """
    k = keys_of(client, queue)
    return settle(client, "log", (k.active,), (k.jobs, max(keep, 1)), items)


# -- small verbs ------------------------------------------------------------------------------


def gate(client: Way, queue: str) -> None:
    """Ask for room under the queue's concurrency limit; raises RateLimited when there is none."""
    k = keys_of(client, queue)
    run(client, "gate", (k.meta, k.active), ())


def state(client: Way, queue: str, job_id: str) -> str:
    """'pending', 'active', 'scheduled', 'dead', 'done', 'unknown' or 'absent'."""
    k = keys_of(client, queue)
    keys = (k.pending, k.active, k.schedule, k.dead, k.done, k.job(job_id))
    result: str = run(client, "state", keys, (job_id,), bytes.decode)
    return result


def wait(client: Way, queue: str, job_id: str, waiter: str, *, keep: int = 200) -> str:
    """As `state`; of a job that is still to end it is noted that `waiter` waits for it.

    Whatever ends the job leaves a word on the list `Keys.waiter`: done, dead, discarded, removed,
    replaced.

    :param keep: how many waiters a job has at most; older ones are forgotten, and ask again.
    """
    k = keys_of(client, queue)
    keys = (k.pending, k.active, k.schedule, k.dead, k.done, k.job(job_id))
    result: str = run(client, "wait", keys, (job_id, waiter, keep), bytes.decode)
    return result


def cas(client: Way, key: str, expected: str | bytes, value: str | bytes) -> bool:
    """Write `value` only if `key` still holds `expected`; answers whether it was written."""
    return bool(run(client, "cas", (key,), (expected, value)))

"""Every change of the queue: one function a verb, each one EVALSHA of the Lua file of its name.

The only module that changes Redis. `client` is a `connections.Client`, or a `Batch`: then the
call is noted, and `Batch.send` answers what the verb would have returned. Verbs that take
several jobs answer one verdict a job, in order; a refused one is an exception object in the
list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from .connections import Batch, Client, Script, typed
from .exceptions import EmqError
from .jobs import Claimed, Claims, NewJob, Reaped
from .keys import Keys, queue_keys, reserve_keys

T = TypeVar("T")
Verdict = int | EmqError
Token = int
Way = Client | Batch

# Written by the first client of a deployment; rows of another version are not ours to touch.
VERSION = "django_emq:1"
BATCH_MAX = 1000
SENT_MS = 120_000

NAMES = (
    "beat bury cas claim complete discard enqueue extend gate pause promote reap register "
    "release resume retry snooze state trim"
)
SCRIPTS = {name: Script(name) for name in NAMES.split()}


def _verdicts(reply: list[Any]) -> list[Any]:
    return [typed(item) if isinstance(item, Exception) else item for item in reply]


def _texts(reply: list[Any]) -> list[Any]:
    return [typed(v) if isinstance(v, Exception) else v.decode() for v in reply]


def _reaped(reply: list[Any]) -> Reaped:
    next_ms, returned, dead = reply
    return Reaped(next_ms, [i.decode() for i in returned], [i.decode() for i in dead])


def _same(reply: Any) -> Any:
    return reply


def _run(
    client: Way,
    verb: str,
    keys: Sequence[str],
    args: Sequence[Any],
    parse: Callable[[Any], Any] = _same,
) -> Any:
    return client.run(SCRIPTS[verb], keys, args, parse)


def _keys(client: Way, queue: str) -> Keys:
    return queue_keys(queue, client.prefix)


def _settle(
    client: Way,
    verb: str,
    keys: Sequence[str],
    options: Sequence[Any],
    items: Iterable[Sequence[Any]],
    parse: Callable[[Any], Any] = _verdicts,
) -> list[Any]:
    args = list(options)
    before = len(args)
    for item in items:
        args += item
    if len(args) == before:
        return []
    result: list[Any] = _run(client, verb, keys, args, parse)
    return result


def one(verdicts: list[T | EmqError]) -> T:
    """The only verdict of a call for one job; raised when it is a refusal."""
    (verdict,) = verdicts
    if isinstance(verdict, EmqError):
        raise verdict
    return verdict


# -- admission --------------------------------------------------------------------------------


def register(client: Way, queues: Iterable[str]) -> int:
    """Check the version fence and enter queues in the registry; raises VersionFence."""
    reserve = reserve_keys(client.prefix)
    result: int = _run(client, "register", (reserve.version, reserve.queues), (VERSION, *queues))
    return result


def enqueue(
    client: Way, queue: str, jobs: Iterable[NewJob], *, request: str, producer: str
) -> list[Verdict]:
    """Admit jobs: 1 enqueued, 0 duplicate, or KindRefused or DamagedRow.

    :param request: names this call. Sent again with the same name and producer, it is answered
        with the verdicts of the first time and changes nothing.
    :param producer: names a sender that makes one call at a time.
    """
    keys = _keys(client, queue)
    args: list[Any] = [keys.jobs, request, SENT_MS]
    for job in jobs:
        extra = len(job.fields) // 2
        args += (job.id, job.payload, job.priority, job.due, extra, *job.fields)
    sent = keys.sent(producer)
    names = (keys.pending, keys.schedule, keys.wake, keys.metrics, sent)
    result: list[Verdict] = _run(client, "enqueue", names, args, _verdicts)
    return result


# -- the worker's verbs -----------------------------------------------------------------------


def claim(
    client: Way,
    queue: str,
    *,
    worker: str,
    request: str | int,
    lease_ms: int,
    count: int = 1,
    due: int = 200,
) -> Claims:
    """Lease up to `count` jobs to a worker, after promoting up to `due` jobs that are due.

    :param worker: names a claimer that makes one call at a time, for instance one process.
    :param request: names this call; the same again is given the same jobs and tokens.
    :param count: at most 1,000; 0 takes nothing and passes a wake on to the next worker.
    """
    k = _keys(client, queue)
    names = (k.pending, k.active, k.schedule, k.dead, k.wake, k.meta, k.metrics, k.limiter)
    count = min(count, BATCH_MAX)
    args = (k.jobs, request, worker, lease_ms, count, min(due, BATCH_MAX))

    def parse(reply: list[Any]) -> Claims:
        fields = iter(reply)
        next_ms, receipt = next(fields), next(fields)
        jobs = [Claimed(*job, queue) for job in zip(fields, fields, fields, fields, strict=True)]
        return Claims(next_ms, receipt, jobs)

    result: Claims = _run(client, "claim", (*names, k.claims(worker)), args, parse)
    return result


def complete(
    client: Way, queue: str, items: Iterable[tuple[Any, Token, Any]], *, keep_ms: int = 0
) -> list[Verdict]:
    """Retire jobs, given (id, token, result): 1 retired, 0 gone, or StaleToken.

    :param keep_ms: how long the rows are kept with their results; 0 deletes them.
    """
    k = _keys(client, queue)
    keys = (k.active, k.pending, k.done, k.metrics)
    return _settle(client, "complete", keys, (k.jobs, keep_ms), items)


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
    k = _keys(client, queue)
    keys = (k.active, k.schedule, k.dead, k.wake, k.metrics)
    return _settle(client, "retry", keys, (k.jobs, max_attempts), items, _texts)


def snooze(client: Way, queue: str, items: Iterable[tuple[Any, Token, str]]) -> list[Verdict]:
    """Run jobs later, given (id, token, due as '+ms' or 'ms'): 1 moved."""
    k = _keys(client, queue)
    keys = (k.active, k.schedule, k.wake, k.metrics)
    return _settle(client, "snooze", keys, (k.jobs,), items)


def release(client: Way, queue: str, items: Iterable[tuple[Any, Token]]) -> list[Verdict]:
    """Hand jobs back unharmed, given (id, token): 1 handed back."""
    k = _keys(client, queue)
    return _settle(client, "release", (k.active, k.pending, k.wake, k.metrics), (k.jobs,), items)


def bury(client: Way, queue: str, items: Iterable[tuple[Any, Token, str, str]]) -> list[Verdict]:
    """Put jobs into the morgue, given (id, token, reason, traceback): 1 buried."""
    k = _keys(client, queue)
    return _settle(client, "bury", (k.active, k.dead, k.metrics), (k.jobs,), items)


def discard(client: Way, queue: str, items: Iterable[tuple[Any, Token]]) -> list[Verdict]:
    """Drop jobs, given (id, token): 1 dropped."""
    k = _keys(client, queue)
    return _settle(client, "discard", (k.active, k.metrics), (k.jobs,), items)


def extend(
    client: Way, queue: str, items: Iterable[tuple[Any, Token]], *, lease_ms: int
) -> list[Verdict]:
    """Prolong leases, given (id, token): 1 prolonged. With lease_ms=0 they lapse now."""
    k = _keys(client, queue)
    return _settle(client, "extend", (k.active, k.metrics), (k.jobs, lease_ms), items)


# -- housekeeping -----------------------------------------------------------------------------


def promote(client: Way, queue: str, *, batch: int = 500) -> int:
    """Make up to `batch` due jobs ready; answers how many left the schedule."""
    k = _keys(client, queue)
    keys = (k.schedule, k.pending, k.dead, k.wake, k.metrics)
    result: int = _run(client, "promote", keys, (k.jobs, min(batch, BATCH_MAX)))
    return result


def reap(client: Way, queue: str, *, max_stalls: int, batch: int = 500) -> Reaped:
    """Take back up to `batch` jobs whose lease has lapsed."""
    k = _keys(client, queue)
    keys = (k.active, k.pending, k.dead, k.wake, k.metrics)
    result: Reaped = _run(
        client, "reap", keys, (k.jobs, max_stalls, min(batch, BATCH_MAX)), _reaped
    )
    return result


def trim(client: Way, queue: str, *, dead_max: int, dead_ttl_ms: int, batch: int = 500) -> int:
    """Forget dead jobs past their cap or age and kept jobs past their time; answers how many."""
    k = _keys(client, queue)
    args = (k.jobs, dead_max, dead_ttl_ms, min(batch, BATCH_MAX))
    result: int = _run(client, "trim", (k.dead, k.done, k.metrics), args)
    return result


def beat(client: Way, worker: str, *, ttl_ms: int, facts: dict[str, Any]) -> None:
    """Say that a worker is there, for `ttl_ms`; 0 signs it off."""
    reserve = reserve_keys(client.prefix)
    pairs = [part for pair in facts.items() for part in pair]
    _run(client, "beat", (reserve.workers, reserve.worker(worker)), (worker, ttl_ms, *pairs))


# -- small verbs ------------------------------------------------------------------------------


def pause(client: Way, queue: str, *, by: str = "") -> None:
    """Stop all claims of a queue; admission and running jobs go on."""
    _run(client, "pause", (_keys(client, queue).meta,), (by,))


def resume(client: Way, queue: str) -> bool:
    """Let a queue be claimed again; answers whether it was paused."""
    k = _keys(client, queue)
    return bool(_run(client, "resume", (k.meta, k.wake), ()))


def gate(client: Way, queue: str) -> None:
    """Ask for room under the queue's concurrency limit; raises RateLimited when there is none."""
    k = _keys(client, queue)
    _run(client, "gate", (k.meta, k.active), ())


def state(client: Way, queue: str, job_id: str) -> str:
    """'pending', 'active', 'scheduled', 'dead', 'done', 'unknown' or 'absent'."""
    k = _keys(client, queue)
    keys = (k.pending, k.active, k.schedule, k.dead, k.done, k.job(job_id))
    result: str = _run(client, "state", keys, (job_id,), bytes.decode)
    return result


def cas(client: Way, key: str, expected: str | bytes, value: str | bytes) -> bool:
    """Write `value` only if `key` still holds `expected`; answers whether it was written."""
    return bool(_run(client, "cas", (key,), (expected, value)))

"""Every change of the queue: one function a verb, each one EVALSHA of the Lua file of its name.

The only module that changes Redis. `client` is a `connections.Client`, or a `Batch`: then the
call is noted, and `Batch.send` answers what the verb would have returned. Verbs that take
several jobs answer one verdict a job, in order; a refused one is an exception object in the
list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from time import monotonic
from typing import Any, TypeVar

from .connections import Batch, Client, Script, typed
from .exceptions import EmqError, InvalidOption, UnknownSet
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
WORDS = ("quiet", "resume", "stop")  # what a worker can be asked to do
WORD_MS = 600_000  # how long a word waits for a worker that cannot reach the server

NAMES = (
    "audit beat bury cancel cas claim complete control discard drain enqueue extend gate log mend "
    "obliterate pause progress promote reap register release remove reprocess requeue resume retry "
    "rights snooze state trim unregister update"
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
    count = 0
    for item in items:
        args += item
        count += 1
    if not count:
        return []
    _bounded(verb, count)
    result: list[Any] = _run(client, verb, keys, args, parse)
    return result


def _batch(batch: int) -> int:
    return max(1, min(batch, BATCH_MAX))


def _bounded(verb: str, count: int) -> None:
    if count > BATCH_MAX:
        raise InvalidOption(f"{verb} takes at most {BATCH_MAX} jobs in one call, not {count}.")


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
    count = 0
    for job in jobs:
        count += 1
        extra = len(job.fields) // 2
        args += (job.id, job.payload, job.priority, job.due, extra, *job.fields)
    _bounded("enqueue", count)
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
    due = min(due, BATCH_MAX)
    trail = (client.trail_max, client.trail_all)
    args = (k.jobs, request, worker, lease_ms, count, due, *trail)

    sent_at = monotonic()

    def parse(reply: list[Any]) -> Claims:
        fields = iter(reply)
        next_ms, receipt = next(fields), next(fields)
        quads = zip(fields, fields, fields, fields, strict=True)
        jobs = [Claimed(*quad, queue, sent_at) for quad in quads]
        return Claims(next_ms, receipt, jobs)

    result: Claims = _run(client, "claim", (*names, k.claims(worker), k.trail), args, parse)
    return result


def complete(
    client: Way, queue: str, items: Iterable[tuple[Any, Token, Any]], *, keep_ms: int = 0
) -> list[Verdict]:
    """Retire jobs, given (id, token, result): 1 retired, 0 gone, or StaleToken.

    :param keep_ms: how long the rows are kept with their results; 0 deletes them.
    """
    k = _keys(client, queue)
    keys = (k.active, k.pending, k.done, k.metrics, k.trail)
    options = (k.jobs, client.trail_max, client.trail_all, keep_ms)
    return _settle(client, "complete", keys, options, items)


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
    keys = (k.active, k.schedule, k.dead, k.wake, k.metrics, k.trail)
    options = (k.jobs, client.trail_max, max_attempts, client.dead_max)
    return _settle(client, "retry", keys, options, items, _texts)


def snooze(client: Way, queue: str, items: Iterable[tuple[Any, Token, str]]) -> list[Verdict]:
    """Run jobs later, given (id, token, due as '+ms' or 'ms'): 1 moved."""
    k = _keys(client, queue)
    keys = (k.active, k.schedule, k.wake, k.metrics, k.trail)
    return _settle(client, "snooze", keys, (k.jobs, client.trail_max), items)


def release(client: Way, queue: str, items: Iterable[tuple[Any, Token]]) -> list[Verdict]:
    """Hand jobs back unharmed, given (id, token): 1 handed back."""
    k = _keys(client, queue)
    keys = (k.active, k.pending, k.wake, k.metrics, k.trail)
    return _settle(client, "release", keys, (k.jobs, client.trail_max), items)


def bury(client: Way, queue: str, items: Iterable[tuple[Any, Token, str, str]]) -> list[Verdict]:
    """Put jobs into the morgue, given (id, token, reason, traceback): 1 buried."""
    k = _keys(client, queue)
    keys = (k.active, k.dead, k.metrics, k.trail)
    return _settle(client, "bury", keys, (k.jobs, client.trail_max, client.dead_max), items)


def discard(client: Way, queue: str, items: Iterable[tuple[Any, Token]]) -> list[Verdict]:
    """Drop jobs, given (id, token): 1 dropped."""
    k = _keys(client, queue)
    keys = (k.active, k.metrics, k.trail)
    return _settle(client, "discard", keys, (k.jobs, client.trail_max), items)


def extend(
    client: Way, queue: str, items: Iterable[tuple[Any, Token]], *, lease_ms: int
) -> list[Verdict]:
    """Prolong leases, given (id, token): 1 prolonged. With lease_ms=0 they lapse now."""
    k = _keys(client, queue)
    return _settle(client, "extend", (k.active,), (k.jobs, lease_ms), items)


# -- housekeeping -----------------------------------------------------------------------------


def promote(client: Way, queue: str, *, batch: int = 500) -> int:
    """Make up to `batch` due jobs ready; answers how many left the schedule."""
    k = _keys(client, queue)
    keys = (k.schedule, k.pending, k.dead, k.wake, k.metrics, k.trail)
    args = (k.jobs, client.trail_max, _batch(batch))
    result: int = _run(client, "promote", keys, args)
    return result


def reap(client: Way, queue: str, *, max_stalls: int, batch: int = 500) -> Reaped:
    """Take back up to `batch` jobs whose lease has lapsed."""
    k = _keys(client, queue)
    keys = (k.active, k.pending, k.dead, k.wake, k.metrics, k.trail)
    args = (k.jobs, client.trail_max, max_stalls, _batch(batch), client.dead_max)
    result: Reaped = _run(client, "reap", keys, args, _reaped)
    return result


def trim(client: Way, queue: str, *, dead_max: int, dead_ttl_ms: int, batch: int = 500) -> int:
    """Forget dead jobs past their cap or age and kept jobs past their time; answers how many."""
    k = _keys(client, queue)
    args = (k.jobs, dead_max, dead_ttl_ms, _batch(batch))
    result: int = _run(client, "trim", (k.dead, k.done, k.metrics), args)
    return result


def beat(client: Way, worker: str, *, ttl_ms: int, facts: dict[str, Any]) -> tuple[str, str]:
    """Say that a worker is there, for `ttl_ms`; 0 signs it off.

    Answers what it is asked to do, one of WORDS or '', and by whom.
    """
    reserve = reserve_keys(client.prefix)
    pairs = [part for pair in facts.items() for part in pair]
    keys = (reserve.workers, reserve.worker(worker), reserve.word(worker))
    result: tuple[str, str] = _run(client, "beat", keys, (worker, ttl_ms, *pairs), read_word)
    return result


def read_word(text: bytes) -> tuple[str, str]:
    """What a worker is asked to do, one of WORDS or '', and by whom."""
    word, _, by = text.decode(errors="replace").partition(" ")
    return (word, by) if word in WORDS else ("", "")


# -- the operators' verbs: they carry no token; `by` says who asks -----------------------------


def reprocess(client: Way, queue: str, ids: Sequence[str], *, by: str = "") -> list[Verdict]:
    """Give dead jobs another life: 1 pending, NotInState or JobGone. Tokens stay."""
    k = _keys(client, queue)
    keys = (k.dead, k.pending, k.wake, k.metrics, k.trail)
    return _settle(client, "reprocess", keys, (k.jobs, by, client.trail_max), zip(ids, strict=True))


def requeue(
    client: Way, queue: str, ids: Sequence[str], *, by: str = "", only: str = ""
) -> list[Verdict]:
    """Make waiting or held jobs ready now: 1 pending, NotInState or JobGone.

    The token of a held job moves first, so its run is refused.

    :param only: 'active' or 'schedule': what is elsewhere by now is NotInState.
    """
    k = _keys(client, queue)
    keys = (k.active, k.schedule, k.pending, k.wake, k.metrics, k.trail)
    options = (k.jobs, by, client.trail_max, _only(only, "active", "schedule"))
    return _settle(client, "requeue", keys, options, zip(ids, strict=True))


def cancel(
    client: Way, queue: str, ids: Sequence[str], *, by: str = "", only: str = ""
) -> list[Verdict]:
    """Put waiting or held jobs into the morgue: 1 cancelled, NotInState or JobGone.

    The token of a held job moves first, so its run is refused.

    :param only: 'active', 'schedule' or 'pending': what is elsewhere by now is NotInState.
    """
    k = _keys(client, queue)
    keys = (k.active, k.schedule, k.pending, k.dead, k.metrics, k.trail)
    only = _only(only, "active", "schedule", "pending")
    options = (k.jobs, by, client.trail_max, only, client.dead_max)
    return _settle(client, "cancel", keys, options, zip(ids, strict=True))


def remove(
    client: Way,
    queue: str,
    ids: Sequence[str],
    *,
    by: str = "",
    force: bool = False,
    only: str = "",
) -> list[Verdict]:
    """Delete jobs with their rows: 1 removed, JobGone, or JobHeld unless `force`.

    :param only: one of the five sets, or 'none' for rows that are in no set: what is elsewhere by
        now is NotInState.
    """
    k = _keys(client, queue)
    keys = (k.pending, k.active, k.schedule, k.dead, k.done, k.metrics, k.trail)
    sets = ("pending", "active", "schedule", "dead", "done", "none")
    options = (k.jobs, by, client.trail_max, int(force), _only(only, *sets))
    return _settle(client, "remove", keys, options, zip(ids, strict=True))


def _only(name: str, *allowed: str) -> str:
    if name and name not in allowed:
        raise UnknownSet(f"There is no set {name!r} here. Use one of: {', '.join(allowed)}.")
    return name


def drain(client: Way, queue: str, name: str, *, by: str = "", batch: int = 500) -> int:
    """Delete up to `batch` jobs of a set: 'pending', 'schedule', 'dead' or 'done'.

    Answers how many; call again while that is `batch`.
    """
    k = _keys(client, queue)
    if name not in ("pending", "schedule", "dead", "done"):
        raise UnknownSet(f"Set {name!r} cannot be drained. Use pending, schedule, dead or done.")
    args = (k.jobs, by, client.trail_max, _batch(batch))
    result: int = _run(client, "drain", (getattr(k, name), k.metrics, k.trail), args)
    return result


def obliterate(client: Client, queue: str, *, force: bool = False, batch: int = 500) -> bool:
    """Delete up to `batch` jobs of a paused queue, and at the end the queue; whether more is left.

    Raises NotInState when the queue is not paused, or holds jobs and `force` is not given.
    """
    k = _keys(client, queue)
    sets = (k.pending, k.schedule, k.dead, k.done, k.active)
    keys = (k.meta, *sets, k.wake, k.metrics, k.limiter, k.trail)
    args = (k.jobs, int(force), _batch(batch))
    left = bool(_run(client, "obliterate", keys, args))
    if not left:  # a call of its own: the registry is in another slot of a cluster
        unregister(client, queue)
    return left


def unregister(client: Client, queue: str) -> bool:
    """Take a queue off the list of queues, unless a worker serves it; whether it is off.

    A producer enters it again: at its next call, or, if it has used the queue in the last minute,
    when that is over.
    """
    client.known_queues.pop(queue, None)
    reserve = reserve_keys(client.prefix)
    args = (queue, reserve.worker(""))
    return bool(_run(client, "unregister", (reserve.queues, reserve.workers), args))


def update(
    client: Way,
    queue: str,
    job_id: str,
    payload: str,
    *,
    by: str = "",
    was: str | bytes | None = None,
) -> None:
    """Replace the payload of a job that is still to run; raises JobGone, JobHeld, NotInState.

    :param was: the payload that is replaced: when another one is there, NotInState.
    """
    k = _keys(client, queue)
    keys = (k.active, k.done, k.job(job_id), k.trail)
    was = was.encode() if isinstance(was, str) else was
    seen = "" if was is None else sha1(was, usedforsecurity=False).hexdigest()
    _run(client, "update", keys, (job_id, payload, by, client.trail_max, seen))


def progress(client: Way, queue: str, job_id: str, token: Token, value: str) -> None:
    """Note and publish how far a held job has come; raises StaleToken, JobGone."""
    k = _keys(client, queue)
    _run(client, "progress", (k.active, k.job(job_id), k.events), (job_id, token, value))


def log(client: Way, queue: str, job_id: str, token: Token, line: str, *, keep: int = 100) -> int:
    """Append a line to the log of a held job; answers how many there are. Raises StaleToken."""
    k = _keys(client, queue)
    keys = (k.active, k.job(job_id), k.logs(job_id))
    result: int = _run(client, "log", keys, (job_id, token, line, max(keep, 1)))
    return result


# -- small verbs ------------------------------------------------------------------------------


def pause(client: Way, queue: str, *, by: str = "", why: str = "") -> bool:
    """Stop all claims of a queue; admission and running jobs go on. Whether it was open."""
    k = _keys(client, queue)
    return bool(_run(client, "pause", (k.meta, k.trail), (client.trail_max, by, why)))


def resume(client: Way, queue: str, *, by: str = "") -> bool:
    """Let a queue be claimed again; answers whether it was paused."""
    k = _keys(client, queue)
    return bool(_run(client, "resume", (k.meta, k.wake, k.trail), (client.trail_max, by)))


def control(client: Way, worker: str, word: str, *, by: str = "") -> bool:
    """Ask a worker to do one of WORDS at its next beat; answers whether there is such a worker.

    quiet: take no more jobs, finish those that it holds, stay up. resume: take jobs again. stop:
    as at a SIGTERM. Raises InvalidOption for another word.
    """
    if word not in WORDS:
        raise InvalidOption(f"A worker cannot be asked to {word!r}. Use {', '.join(WORDS)}.")
    reserve = reserve_keys(client.prefix)
    keys = (reserve.worker(worker), reserve.word(worker))
    return bool(_run(client, "control", keys, (word, by, WORD_MS)))


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

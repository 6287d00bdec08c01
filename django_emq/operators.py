"""The operators' verbs, which carry no token; `by` says who asks. Reached through `scripts`."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1

from .calls import Verdict, Way, batch_of, keys_of, run, settle
from .connections import Client
from .exceptions import InvalidOption, UnknownSet
from .keys import reserve_keys

WORDS = ("quiet", "resume", "stop")  # what a worker can be asked to do
WORD_MS = 600_000  # how long a word waits for a worker that cannot reach the server


def reprocess(client: Way, queue: str, ids: Sequence[str], *, by: str = "") -> list[Verdict]:
    """Give dead jobs another life: 1 pending, NotInState, KeyHeld or JobGone. Tokens stay."""
    k = keys_of(client, queue)
    keys = (k.dead, k.pending, k.wake, k.metrics, k.trail)
    return settle(client, "reprocess", keys, (k.jobs, by, client.trail_max), zip(ids, strict=True))


def requeue(
    client: Way, queue: str, ids: Sequence[str], *, by: str = "", only: str = ""
) -> list[Verdict]:
    """Make waiting or held jobs ready now: 1 pending, NotInState, KeyHeld or JobGone.

    The token of a held job moves first, so its run is refused.

    :param only: 'active' or 'schedule': what is elsewhere by now is NotInState.
    """
    k = keys_of(client, queue)
    keys = (k.active, k.schedule, k.pending, k.wake, k.metrics, k.trail)
    options = (k.jobs, by, client.trail_max, _only(only, "active", "schedule"))
    return settle(client, "requeue", keys, options, zip(ids, strict=True))


def cancel(
    client: Way, queue: str, ids: Sequence[str], *, by: str = "", only: str = ""
) -> list[Verdict]:
    """Put waiting or held jobs into the morgue: 1 cancelled, NotInState or JobGone.

    The token of a held job moves first, so its run is refused.

    :param only: 'active', 'schedule' or 'pending': what is elsewhere by now is NotInState.
    """
    k = keys_of(client, queue)
    keys = (k.active, k.schedule, k.pending, k.dead, k.metrics, k.trail)
    only = _only(only, "active", "schedule", "pending")
    options = (k.jobs, by, client.trail_max, only, client.dead_max)
    return settle(client, "cancel", keys, options, zip(ids, strict=True))


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
    k = keys_of(client, queue)
    keys = (k.pending, k.active, k.schedule, k.dead, k.done, k.metrics, k.trail)
    sets = ("pending", "active", "schedule", "dead", "done", "none")
    options = (k.jobs, by, client.trail_max, int(force), _only(only, *sets))
    return settle(client, "remove", keys, options, zip(ids, strict=True))


def _only(name: str, *allowed: str) -> str:
    if name and name not in allowed:
        raise UnknownSet(f"There is no set {name!r} here. Use one of: {', '.join(allowed)}.")
    return name


def drain(client: Way, queue: str, name: str, *, by: str = "", batch: int = 500) -> int:
    """Delete up to `batch` jobs of a set: 'pending', 'schedule', 'dead' or 'done'.

    Answers how many; call again while that is `batch`.
    """
    k = keys_of(client, queue)
    if name not in ("pending", "schedule", "dead", "done"):
        raise UnknownSet(f"Set {name!r} cannot be drained. Use pending, schedule, dead or done.")
    args = (k.jobs, by, client.trail_max, batch_of(batch))
    result: int = run(client, "drain", (getattr(k, name), k.metrics, k.trail), args)
    return result


def obliterate(client: Client, queue: str, *, force: bool = False, batch: int = 500) -> bool:
    """Delete up to `batch` jobs of a paused queue, and at the end the queue; whether more is left.

    Raises NotInState when the queue is not paused, or holds jobs and `force` is not given.
    """
    k = keys_of(client, queue)
    sets = (k.pending, k.schedule, k.dead, k.done, k.active)
    keys = (k.meta, *sets, k.wake, k.metrics, k.limiter, k.trail, k.onward, k.repeat)
    args = (k.jobs, int(force), batch_of(batch))
    left = bool(run(client, "obliterate", keys, args))
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
    return bool(run(client, "unregister", (reserve.queues, reserve.workers), args))


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
    k = keys_of(client, queue)
    keys = (k.active, k.done, k.job(job_id), k.trail)
    was = was.encode() if isinstance(was, str) else was
    seen = "" if was is None else sha1(was, usedforsecurity=False).hexdigest()
    run(client, "update", keys, (job_id, payload, by, client.trail_max, seen))


def pause(client: Way, queue: str, *, by: str = "", why: str = "") -> bool:
    """Stop all claims of a queue; admission and running jobs go on. Whether it was open."""
    k = keys_of(client, queue)
    return bool(run(client, "pause", (k.meta, k.trail), (client.trail_max, by, why)))


def resume(client: Way, queue: str, *, by: str = "") -> bool:
    """Let a queue be claimed again; answers whether it was paused."""
    k = keys_of(client, queue)
    return bool(run(client, "resume", (k.meta, k.wake, k.trail), (client.trail_max, by)))


def control(client: Way, worker: str, word: str, *, by: str = "") -> bool:
    """Ask a worker to do one of WORDS at its next beat; answers whether there is such a worker.

    quiet: take no more jobs, finish those that it holds, stay up. resume: take jobs again. stop:
    as at a SIGTERM. Raises InvalidOption for another word.
    """
    if word not in WORDS:
        raise InvalidOption(f"A worker cannot be asked to {word!r}. Use {', '.join(WORDS)}.")
    reserve = reserve_keys(client.prefix)
    keys = (reserve.worker(worker), reserve.word(worker))
    return bool(run(client, "control", keys, (word, by, WORD_MS)))


def read_word(text: bytes) -> tuple[str, str]:
    """What a worker is asked to do, one of WORDS or '', and by whom."""
    word, _, by = text.decode(errors="replace").partition(" ")
    return (word, by) if word in WORDS else ("", "")

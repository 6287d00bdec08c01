"""The verbs of those who sweep: workers beside their jobs, and `emq_reaper`.

One function for each script, as in `scripts`, from where all of them are reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .calls import BATCH_MAX, Way, batch_of, keys_of, run
from .jobs import Reaped
from .keys import reserve_keys
from .operators import read_word


def _reaped(reply: list[Any]) -> Reaped:
    next_ms, returned, dead, onward, tick_ms = reply
    back, died = [i.decode() for i in returned], [i.decode() for i in dead]
    return Reaped(next_ms, back, died, onward, tick_ms)


def _onward(reply: list[Any]) -> tuple[int, dict[bytes, bytes]]:
    return reply[0], dict(zip(reply[1::2], reply[2::2], strict=True))


def promote(client: Way, queue: str, *, batch: int = 500) -> int:
    """Make up to `batch` due jobs ready; answers how many left the schedule."""
    k = keys_of(client, queue)
    keys = (k.schedule, k.pending, k.dead, k.wake, k.metrics, k.trail)
    args = (k.jobs, client.trail_max, batch_of(batch))
    result: int = run(client, "promote", keys, args)
    return result


def reap(client: Way, queue: str, *, max_stalls: int, batch: int = 500) -> Reaped:
    """Take back up to `batch` jobs whose lease has lapsed."""
    k = keys_of(client, queue)
    keys = (k.active, k.pending, k.dead, k.wake, k.metrics, k.trail, k.schedule, k.onward, k.repeat)
    args = (k.jobs, client.trail_max, max_stalls, batch_of(batch), client.dead_max)
    result: Reaped = run(client, "reap", keys, args, _reaped)
    return result


def onward(
    client: Way, queue: str, *, admitted: Iterable[str | bytes] = (), batch: int = 100
) -> tuple[int, dict[bytes, bytes]]:
    """Forget jobs of chains that have been admitted to other queues, and tell which are to be.

    Answers the server's clock in ms, and up to `batch` jobs by id, for `chains.unpacked`.
    """
    k = keys_of(client, queue)
    args = (min(batch, BATCH_MAX), *admitted)
    result: tuple[int, dict[bytes, bytes]] = run(client, "onward", (k.onward,), args, _onward)
    return result


def trim(
    client: Way,
    queue: str,
    *,
    dead_max: int,
    dead_ttl_ms: int,
    done_max: int = 10_000_000,
    look: int = 0,
    batch: int = 500,
) -> int:
    """Forget dead and kept jobs past their cap, age or time; answers how many.

    :param look: how many dead jobs are asked for a shorter time of their own.
    """
    k = keys_of(client, queue)
    args = (k.jobs, dead_max, dead_ttl_ms, batch_of(batch), done_max, batch_of(look) if look else 0)
    result: int = run(client, "trim", (k.dead, k.done, k.metrics), args)
    return result


def beat(client: Way, worker: str, *, ttl_ms: int, facts: dict[str, Any]) -> tuple[str, str]:
    """Say that a worker is there, for `ttl_ms`; 0 signs it off.

    Answers what it is asked to do, one of WORDS or '', and by whom.
    """
    reserve = reserve_keys(client.prefix)
    pairs = [part for pair in facts.items() for part in pair]
    keys = (reserve.workers, reserve.worker(worker), reserve.word(worker))
    result: tuple[str, str] = run(client, "beat", keys, (worker, ttl_ms, *pairs), read_word)
    return result

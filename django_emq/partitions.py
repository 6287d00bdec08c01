"""One queue spread over several on the server: which of them a job goes to, and their names.

A partition is an ordinary queue for every script and sweep. Only the faces (enqueueing, commands,
the admin, figures of a whole queue) know the name that people use for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from zlib import crc32

from .conf import Settings, settings
from .keys import partition, split_partition

_64_BITS = (1 << 64) - 1


def place(conf: Settings, queue: str, job_id: str, key: str | None) -> str:
    """The queue on the server that takes a job: one of the partitions, or `queue` itself.

    That of the key, where there is one (the digest of its unique key, if the job has that); else
    the job's id spreads evenly, for a tenth of the time.
    """
    own = conf.queues.get(queue)
    if own is None or not own.partitions:
        return queue
    count = own.partitions
    return partition(
        queue, crc32(job_id.encode()) % count if key is None else number_of(key, count)
    )


def number_of(key: str, count: int) -> int:
    """The partition of a key, among so many: the same in every process, for ever.

    Lamping and Veach's jump consistent hash: with one partition more, one key in so many moves,
    and only to the new one. What has been spread evenly stays so.
    """
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    state = int.from_bytes(digest, "big")
    here, there = 0, 0
    while there < count:
        here = there
        state = (state * 2862933555777941757 + 1) & _64_BITS
        there = int((here + 1) * (1 << 31) / ((state >> 33) + 1))
    return here


def families(names: Iterable[str]) -> dict[str, list[str]]:
    """Queues of the server by the name that people use, partitions in the order of their numbers.

    >>> families(["events.10", "events.2", "mail"])
    {'events': ['events.2', 'events.10'], 'mail': ['mail']}
    """
    whole = settings().whole
    found: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (whole(name), split_partition(name)[1])):
        found.setdefault(whole(name), []).append(name)
    return found


def folded(names: Sequence[str]) -> list[str]:
    """Names of queues for people: one for all partitions of a queue, where all are there."""
    conf = settings()
    there = set(names)

    def short(name: str) -> str:
        queue = conf.whole(name)
        return queue if there.issuperset(conf.parts(queue)) else name

    return list(dict.fromkeys(map(short, names)))

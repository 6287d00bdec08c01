"""The names of all keys. No other module spells one.

Every key of queue ``q`` is ``emq:{q}:<suffix>``: one hash tag, so one slot of a cluster.
Facts about the deployment live under ``{emq}:``. The setting PREFIX replaces the word
``emq`` in both families; it never goes around the braces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from .exceptions import InvalidOption

QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
PARTITION = re.compile(r"(.+)\.(0|[1-9][0-9]{0,2})\Z")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue."""

    queue: str
    base: str  # emq:{q}:
    pending: str  # zset, ids ready to run, scored by -priority
    active: str  # zset, ids held by a worker, scored by the end of the lease in ms
    schedule: str  # zset, ids waiting for a time, scored by due time in ms
    dead: str  # zset, the morgue, scored by time of death in ms
    done: str  # zset, finished ids whose row is kept, scored by the end of its time in ms
    wake: str  # list, readiness tokens, at most one
    meta: str  # hash, paused, paused_by and limits
    metrics: str  # hash, lifetime counters; metrics:<minute> holds those of one minute
    trail: str  # stream, what happened, refusals included; capped
    events: str  # channel, progress of jobs as JSON
    onward: str  # hash, jobs of chains that are to be admitted to other queues, by id
    limiter: str  # string, claims in the running window of the rate limit
    repeat: str  # zset, names of schedules, scored by their next time in ms; inf: switched off
    jobs: str  # prefix of the rows
    fences: str  # prefix of the keys that `fence` spells
    uniques: str  # prefix of the keys that `unique` spells

    def job(self, job_id: str) -> str:
        """Key of the row: a hash."""
        return self.jobs + job_id

    def logs(self, job_id: str) -> str:
        """Key of the job's log lines: a list."""
        return f"{self.jobs}{job_id}:logs"

    def waiter(self, name: str) -> str:
        """Key on which one caller waits for the end of a job: a list with a time to live."""
        return f"{self.base}waiter:{name}"

    def minute(self, minute: int) -> str:
        """Key of the counters of one minute since 1970, by the server's clock: a hash."""
        return f"{self.metrics}:{minute}"

    def sent(self, producer: str) -> str:
        """Key that remembers the last enqueue of one producer: a string with a time to live."""
        return f"{self.base}sent:{producer}"

    def claims(self, worker: str, claimer: int = 0) -> str:
        """Key that remembers a worker's last claim under a number: a string with a time to live."""
        return f"{self.base}claims:{worker}" + (f":{claimer}" if claimer else "")

    def fence(self, key: str) -> str:
        """Key of the last number of a resource (`fence_key`): a string with a time to live."""
        return self.fences + key

    def record(self, schedule: str) -> str:
        """Key of what is known of a schedule: a hash."""
        return f"{self.repeat}:{schedule}"

    def unique(self, key: str) -> str:
        """Key that names the job which holds a unique key: a string."""
        return self.uniques + digest(key)


@dataclass(frozen=True, slots=True)
class Reserve:
    """The keys of the deployment."""

    base: str  # {emq}:
    version: str  # string, the version fence
    queues: str  # set, names of all queues ever used
    workers: str  # zset, worker ids by their last beat in ms

    def worker(self, worker: str) -> str:
        """Key of what one worker says of itself: a hash with a time to live."""
        return f"{self.base}worker:{worker}"

    def word(self, worker: str) -> str:
        """Key of what a worker is asked to do: a string with a time to live."""
        return f"{self.base}word:{worker}"


def digest(key: str) -> str:
    """What stands for a unique key: its SHA-256 in hex."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def check_queue(queue: object, prefix: str = "emq") -> str:
    """Return the name of a queue, or raise InvalidOption with the rule."""
    if not isinstance(queue, str) or not QUEUE_NAME.match(queue):
        raise InvalidOption(
            f"Queue name {queue!r} is not allowed. Use 1 to 128 of the characters A-Z a-z 0-9 . _ -"
        )
    if queue == prefix:
        raise InvalidOption(f"Queue name {queue!r} is reserved. Use another name.")
    return queue


def whole(key: str) -> str | None:
    """The key that no one ever writes, in the slot of another one; None where that has no tag.

    A call that names it is refused by a cluster while the slot is on its way to another node.
    """
    tagged, brace, _ = key.partition("}")
    return f"{tagged}}}:whole" if brace else None


def partition(queue: str, number: int) -> str:
    """The name of one partition of a queue, itself a queue with a hash tag of its own."""
    return f"{queue}.{number}"


def split_partition(name: str) -> tuple[str, int]:
    """The queue that a name would be a partition of, and its number; ('', -1) for another name."""
    found = PARTITION.match(name)
    return (found[1], int(found[2])) if found else ("", -1)


@lru_cache(maxsize=4096)
def queue_keys(queue: str, prefix: str = "emq") -> Keys:
    """Keys of a queue. Raises InvalidOption for a name that is not allowed."""
    check_queue(queue, prefix)
    base = f"{prefix}:{{{queue}}}:"
    return Keys(
        queue=queue,
        base=base,
        pending=base + "pending",
        active=base + "active",
        schedule=base + "schedule",
        dead=base + "dead",
        done=base + "done",
        wake=base + "wake",
        meta=base + "meta",
        metrics=base + "metrics",
        trail=base + "trail",
        events=base + "events",
        onward=base + "onward",
        limiter=base + "limiter",
        repeat=base + "repeat",
        jobs=base + "job:",
        fences=base + "fence:",
        uniques=base + "unique:",
    )


@lru_cache(maxsize=16)
def reserve_keys(prefix: str = "emq") -> Reserve:
    """Keys of the deployment."""
    base = f"{{{prefix}}}:"
    return Reserve(base, base + "version", base + "queues", base + "workers")

"""Enqueueing: validate, serialise, admit. The write verbs for people.

Every call mints the id of its job and names itself, so it may be sent twice: when a reply is
lost it is sent again, and the server answers it from memory. One call never makes two jobs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async

from . import connections, partitions, registry, scripts, signing
from .conf import Settings, settings
from .connections import Batch, Client
from .exceptions import EmqError, OutcomeUnknown
from .ids import mint
from .jobs import Job, NewJob, encode
from .keys import check_queue
from .registry import AnyTask, Seconds, Task, Unsent

PAUSES = (0.05, 0.5)  # seconds before the call is sent again, when its reply was lost
CHUNK = 500  # jobs in one script call
ROUND = 5000  # jobs in one round trip, about
# Seconds after which a process enters a queue again: somebody may have emptied the server since.
KNOWN = 60.0


def enqueue(task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue one job of a task, given as an object or by name, and return it.

    Raises InvalidArguments for what JSON cannot carry, InvalidOption, UnknownTask;
    OutcomeUnknown when no answer came (nought or one job exists), ServerRefused when the
    server takes no writes (nothing was stored).
    """
    task = registry.get(task) if isinstance(task, str) else task
    queue, new = _new_job(task, args, kwargs, settings())
    (verdict,) = push(connections.client(), queue, [new])
    if isinstance(verdict, EmqError):
        raise verdict
    return Job(new.id, queue, task.name, "enqueued" if verdict == 1 else "duplicate")


def enqueue_in(delay: Seconds, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue a job that runs after `delay` seconds (or a timedelta), by the server's clock."""
    task = registry.get(task) if isinstance(task, str) else task
    return enqueue(task.using(run_in=delay, run_at=None), *args, **kwargs)


def enqueue_at(when: datetime, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue a job that runs at an instant, an aware datetime."""
    task = registry.get(task) if isinstance(task, str) else task
    return enqueue(task.using(run_at=when, run_in=None), *args, **kwargs)


def enqueue_many(jobs: Iterable[Unsent]) -> list[Job]:
    """Enqueue many jobs, made by `Task.job`; answer one Job each, in order.

    All are validated before the first is sent. Each 500 jobs of a queue, or of a partition, are
    one step on the server, which they enter together; steps of several queues share a round trip.
    A job that the server refuses has an `error`.

    >>> emq.enqueue_many(send.job(user_id) for user_id in ids)
    """
    conf = settings()
    made: list[Job] = []
    by_queue: dict[str, list[tuple[int, NewJob]]] = {}
    for at, unsent in enumerate(jobs):
        queue, job = _new_job(unsent.task, unsent.args, unsent.kwargs, conf)
        made.append(Job(job.id, queue, unsent.task.name))
        by_queue.setdefault(queue, []).append((at, job))
    client = connections.client()
    for lots in _rounds(by_queue):
        news = {queue: [job for _, job in lot] for queue, lot in lots.items()}
        verdicts = push_many(client, news)
        for queue, lot in lots.items():
            for (at, _), verdict in zip(lot, verdicts[queue], strict=True):
                if verdict != 1:
                    made[at] = _other(made[at], verdict)
    return made


Lots = dict[str, list[tuple[int, NewJob]]]


def _rounds(by_queue: Lots) -> Iterator[Lots]:
    """Up to 500 jobs of each queue at a time.

    No queue twice in a round trip: of a producer's calls to a queue only the last is remembered.
    """
    longest = max(map(len, by_queue.values()), default=0)
    for start in range(0, longest, CHUNK):
        lots: Lots = {}
        for queue, entries in by_queue.items():
            if lot := entries[start : start + CHUNK]:
                lots[queue] = lot
            if sum(map(len, lots.values())) >= ROUND:
                yield lots
                lots = {}
        if lots:
            yield lots


def push(client: Client, queue: str, jobs: list[NewJob]) -> list[scripts.Verdict]:
    """Admit jobs of one queue, again if the reply is lost."""
    return push_many(client, {queue: jobs})[queue]


def push_many(client: Client, lots: dict[str, list[NewJob]]) -> dict[str, list[scripts.Verdict]]:
    """Admit jobs by queue in one round trip, again if a reply is lost."""
    try:
        producer = _idle.pop()
    except IndexError:
        producer = secrets.token_hex(6)
    pauses = iter(PAUSES)
    try:
        while True:
            try:
                _enter(client, lots)
                return _send(client, lots, producer)
            except OutcomeUnknown as error:
                pause = next(pauses, None)
                if pause is None:
                    queue, jobs = next(iter(lots.items()))
                    raise OutcomeUnknown(
                        f"Queue {queue!r}: no answer after {len(PAUSES) + 1} tries, so it is "
                        f"unknown whether job {jobs[0].id} was stored: {error}"
                    ) from error
                time.sleep(pause)
    finally:
        _idle.append(producer)


def _enter(client: Client, queues: Iterable[str]) -> None:
    """Have the queues in the registry."""
    now = monotonic()
    if new := [queue for queue in queues if now >= client.known_queues.get(queue, 0.0)]:
        scripts.register(client, new)
        client.known_queues.update(dict.fromkeys(new, now + KNOWN))


def _send(
    client: Client, lots: dict[str, list[NewJob]], producer: str
) -> dict[str, list[scripts.Verdict]]:
    """One script call a queue; raises the first error of any: all may be sent again."""
    if len(lots) == 1:  # needs no pipeline
        ((queue, jobs),) = lots.items()
        verdicts = scripts.enqueue(client, queue, jobs, request=jobs[0].id, producer=producer)
        return {queue: verdicts}
    batch = Batch(client)
    for queue, jobs in lots.items():
        scripts.enqueue(batch, queue, jobs, request=jobs[0].id, producer=producer)
    answers = batch.send()
    failed = [answer for answer in answers if isinstance(answer, EmqError)]
    if failed:
        raise next((error for error in failed if isinstance(error, OutcomeUnknown)), failed[0])
    return dict(zip(lots, answers, strict=True))


aenqueue = sync_to_async(enqueue)
aenqueue_in = sync_to_async(enqueue_in)
aenqueue_at = sync_to_async(enqueue_at)
aenqueue_many = sync_to_async(enqueue_many)


def cas(key: str, expected: str | bytes, value: str | bytes) -> bool:
    """Compare and set: write `value` to `key` only if it still holds `expected`.

    One script on the queue's server, so no other client comes between. `key` is taken as it
    is. An absent key holds nothing, so it is never written. Answers whether it was written.
    """
    return scripts.cas(connections.client(), key, expected, value)


def _new_job(
    task: AnyTask, args: tuple[Any, ...], kwargs: dict[str, Any], conf: Settings
) -> tuple[str, NewJob]:
    payload = encode(task.name, args, kwargs, limit=conf.max_payload)
    queue = check_queue(task.queue or conf.default_queue, conf.prefix)
    job_id = mint()
    if conf.sign_payloads:
        payload = signing.sealed(payload, job_id)
    if conf.queues:
        queue = partitions.place(conf, queue, job_id, task.partition_key)
    return queue, NewJob(job_id, payload, task.priority, task.due, task.fields)


def _other(job: Job, verdict: int | EmqError) -> Job:
    if isinstance(verdict, EmqError):
        return Job(job.id, job.queue, job.task, "refused", verdict)
    return Job(job.id, job.queue, job.task, "duplicate")


# The server remembers the last call of each producer. A producer makes one call at a time, so
# there are as many as this process ever made calls at once, not as many as it had threads.
_idle: deque[str] = deque()
os.register_at_fork(after_in_child=_idle.clear)

"""Enqueueing: validate, serialise, admit. The write verbs for people.

Every call mints the id of its job and names itself, so it may be sent twice: when a reply is
lost it is sent again, and the server answers it from memory. One call never makes two jobs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from . import connections, partitions, registry, scripts, signing
from .batches import Batch
from .conf import Settings, settings
from .connections import Client
from .exceptions import EmqError, OutcomeUnknown, TooFewReplicas
from .ids import mint
from .jobs import Job, NewJob, encode
from .keys import check_queue
from .registry import AnyTask, Seconds, Task, Unsent
from .waiting import Waiting

T = TypeVar("T")

PAUSES = (0.05, 0.5)  # seconds before the call is sent again, when its reply was lost
CHUNK = 500  # jobs in one script call
ROUND = 5000  # jobs in one round trip, about
# Seconds after which a process enters a queue again: somebody may have emptied the server since.
KNOWN = 60.0


def enqueue(task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue one job of a task, given as an object or by name, and return it.

    Raises InvalidArguments for what JSON cannot carry, InvalidOption, UnknownTask;
    OutcomeUnknown when no answer came (nought or one job exists), ServerRefused when the
    server takes no writes (nothing was stored); TooFewReplicas when the job is stored, but not
    by as many replicas as `wait_replicas` asks for.
    """
    task = registry.get(task) if isinstance(task, str) else task
    conf = settings()
    queue, new = _new_job(task, args, kwargs, conf)
    client = connections.client()
    waiting = _waiting(client, queue, _replicas(task, queue, conf), conf)
    (verdict,) = push(client, queue, [new], waiting)
    if isinstance(verdict, EmqError):
        raise verdict
    job = Job(new.id, queue, task.name, "enqueued" if verdict == 1 else "duplicate")
    if waiting:
        _confirm([job], [(queue, [new], waiting)])
    return job


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
    one step on the server, which they enter together; steps of several queues share a round trip,
    unless they wait for replicas. A job that the server refuses has an `error`. Raises
    TooFewReplicas after the last step, where one of them lacks replicas.

    >>> emq.enqueue_many(send.job(user_id) for user_id in ids)
    """
    conf = settings()
    made: list[Job] = []
    by_queue: dict[str, list[tuple[int, NewJob]]] = {}
    replicas: dict[str, int] = {}
    for at, unsent in enumerate(jobs):
        queue, job = _new_job(unsent.task, unsent.args, unsent.kwargs, conf)
        made.append(Job(job.id, queue, unsent.task.name))
        by_queue.setdefault(queue, []).append((at, job))
        replicas[queue] = max(replicas.get(queue, 0), _replicas(unsent.task, queue, conf))
    client = connections.client()
    sent: list[Sent] = []
    for lots in _rounds(by_queue):
        new = {queue: [job for _, job in lot] for queue, lot in lots.items()}
        verdicts = {}
        for queue in lots:
            if waiting := _waiting(client, queue, replicas[queue], conf):
                sent.append((queue, new.pop(queue), waiting))
                verdicts[queue] = push(client, queue, sent[-1][1], waiting)
        verdicts |= push_many(client, new) if new else {}
        for queue, lot in lots.items():
            for (at, _), verdict in zip(lot, verdicts[queue], strict=True):
                if verdict != 1:
                    made[at] = _other(made[at], verdict)
    return _confirm(made, sent)


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


# Jobs of one queue that were sent in one call, and how many replicas have them.
Sent = tuple[str, list[NewJob], Waiting]


def push(
    client: Client, queue: str, jobs: list[NewJob], waiting: Waiting | None = None
) -> list[scripts.Verdict]:
    """Admit jobs of one queue, again if the reply is lost.

    :param waiting: what waits for replicas. While too few have the jobs, it keeps the name under
        which they were sent: sent again, they are answered from memory.
    """
    try:
        producer = (waiting and waiting.producer) or _idle.pop()
    except IndexError:
        producer = secrets.token_hex(6)
    way = waiting or client
    try:
        return _again(
            client,
            {queue: jobs},
            lambda: scripts.enqueue(way, queue, jobs, request=jobs[0].id, producer=producer),
        )
    finally:
        if waiting and waiting.is_short:
            waiting.producer = producer
        else:
            _idle.append(producer)


def push_many(client: Client, lots: dict[str, list[NewJob]]) -> dict[str, list[scripts.Verdict]]:
    """Admit jobs by queue in one round trip, all of them again if a reply is lost."""
    if len(lots) == 1:
        return {queue: push(client, queue, jobs) for queue, jobs in lots.items()}
    try:
        producer = _idle.pop()
    except IndexError:
        producer = secrets.token_hex(6)
    try:
        return _again(client, lots, lambda: _send(client, lots, producer))
    finally:
        _idle.append(producer)


def _send(
    client: Client, lots: dict[str, list[NewJob]], producer: str
) -> dict[str, list[scripts.Verdict]]:
    """One script call a queue; raises the first error of any: each may be sent again."""
    batch = Batch(client)
    for queue, jobs in lots.items():
        scripts.enqueue(batch, queue, jobs, request=jobs[0].id, producer=producer)
    answers = batch.send()
    failed = [answer for answer in answers if isinstance(answer, EmqError)]
    if failed:
        raise next((error for error in failed if isinstance(error, OutcomeUnknown)), failed[0])
    return dict(zip(lots, answers, strict=True))


def _again(client: Client, lots: dict[str, list[NewJob]], send: Callable[[], T]) -> T:
    """Send jobs of some queues; again, after a pause, while no answer comes."""
    pauses = iter(PAUSES)
    while True:
        try:
            _enter(client, lots)
            return send()
        except OutcomeUnknown as error:
            pause = next(pauses, None)
            if pause is None:
                queue, jobs = next(iter(lots.items()))
                raise OutcomeUnknown(
                    f"Queue {queue!r}: no answer after {len(PAUSES) + 1} tries, so it is "
                    f"unknown whether job {jobs[0].id} was stored: {error}"
                ) from error
            time.sleep(pause)


def _enter(client: Client, queues: Iterable[str]) -> None:
    """Have the queues in the registry."""
    now = monotonic()
    if new := [queue for queue in queues if now >= client.known_queues.get(queue, 0.0)]:
        scripts.register(client, new)
        client.known_queues.update(dict.fromkeys(new, now + KNOWN))


def _replicas(task: AnyTask, queue: str, conf: Settings) -> int:
    """How many replicas shall have a job before enqueue answers."""
    if task.wait_replicas is not None:
        return task.wait_replicas
    own = conf.queues.get(queue) or conf.queues.get(conf.whole(queue)) if conf.queues else None
    return own.wait_replicas if own else conf.wait_replicas


def _waiting(client: Client, queue: str, replicas: int, conf: Settings) -> Waiting | None:
    if not replicas:
        return None
    seconds = conf.queue(queue).wait_timeout or min(1.0, conf.socket_timeout / 2)
    return Waiting(client, replicas, seconds)


def _confirm(made: list[Job], sent: list[Sent]) -> list[Job]:
    """Answer the jobs; raise TooFewReplicas where some of those that were sent lack replicas."""
    short = [one for one in sent if one[2].is_short]
    if not short:
        return made

    def again() -> list[Job]:
        for queue, jobs, waiting in short:
            push(waiting.client, queue, jobs, waiting)
        return _confirm(made, short)

    _, _, worst = min(short, key=lambda one: one[2].acknowledged)
    ids = [job.id for _, jobs, _ in short for job in jobs]
    what = f"Job {ids[0]} is" if len(ids) == 1 else f"{len(ids)} jobs, from {ids[0]} on, are"
    raise TooFewReplicas(
        f"{what} admitted in queue {short[0][0]!r}, but only {worst.acknowledged} of "
        f"{worst.replicas} replicas have said so within {worst.seconds:g} s. Call again() of this "
        "exception to send the same and wait again: that makes no second job."
        + (f" The server refused to wait: {worst.why}" if worst.why else ""),
        made,
        worst.replicas,
        worst.acknowledged,
        again,
    )


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

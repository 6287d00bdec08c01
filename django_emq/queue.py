"""Enqueueing: validate, serialise, admit. The write verbs for people.

Every call mints the id of its job and names itself, so it may be sent twice: when a reply is
lost it is sent again, and the server answers it from memory. One call never makes two jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from . import connections, partitions, registry, scripts, signing
from .admission import Lots, admit, confirm, push, replicas_of, waiting
from .conf import Settings, settings
from .exceptions import EmqError
from .ids import mint
from .jobs import Job, NewJob, encode
from .keys import check_queue
from .registry import AnyTask, Seconds, Task, Unsent


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
    wait = waiting(client, queue, replicas_of(task, queue, conf), conf)
    (verdict,) = push(client, queue, [new], wait)
    if isinstance(verdict, EmqError):
        raise verdict
    job = Job(new.id, queue, task.name, "enqueued" if verdict == 1 else "duplicate")
    if wait:
        confirm([job], [(queue, [new], wait)])
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
    one step on the server, which they enter together; steps of several queues share a round trip.
    A job that the server refuses has an `error`. Raises TooFewReplicas after the last step, where
    one of them lacks replicas.

    >>> emq.enqueue_many(send.job(user_id) for user_id in ids)
    """
    conf = settings()
    made: list[Job] = []
    lots: Lots = {}
    places: dict[str, list[int]] = {}
    replicas: dict[str, int] = {}
    for at, unsent in enumerate(jobs):
        queue, job = _new_job(unsent.task, unsent.args, unsent.kwargs, conf)
        made.append(Job(job.id, queue, unsent.task.name))
        lots.setdefault(queue, []).append(job)
        places.setdefault(queue, []).append(at)
        if count := replicas_of(unsent.task, queue, conf):
            replicas[queue] = max(replicas.get(queue, 0), count)
    found, sent = admit(lots, replicas)
    for queue, verdicts in found.items():
        for at, verdict in zip(places[queue], verdicts, strict=True):
            if verdict != 1:
                made[at] = _other(made[at], verdict)
    return confirm(made, sent)


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

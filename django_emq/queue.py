"""Enqueueing: validate, serialise, admit. The write verbs for people.

Every call mints the id of its job and names itself, so it may be sent twice: when a reply is
lost it is sent again, and the server answers it from memory. One call never makes two jobs.
A call inside a transaction may be told to wait for its commit (`commit.plan`).
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from . import commit, connections, registry, scripts, signing
from .conf import Settings, settings
from .connections import Client
from .exceptions import EmqError, OutcomeUnknown
from .ids import mint
from .jobs import Job, NewJob, encode
from .keys import check_queue
from .registry import AnyTask, Seconds, Task, Unsent

PAUSES = (0.05, 0.5)  # seconds before the call is sent again, when its reply was lost
CHUNK = 500  # jobs in one script call
# Seconds after which a process enters a queue again: somebody may have emptied the server since.
KNOWN = 60.0


def enqueue(task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue one job of a task, given as an object or by name, and return it.

    Raises InvalidArguments for what JSON cannot carry, InvalidOption, UnknownTask;
    OutcomeUnknown when no answer came (nought or one job exists), ServerRefused when the
    server takes no writes (nothing was stored).
    """
    return _enqueue(task, args, kwargs)


def enqueue_on_commit(task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
    """`enqueue` after the commit of the transaction that is open; at once where none is.

    After a rollback there is no job. What `enqueue` raises for the task and its arguments is raised
    here; what it raises for the server comes out of the block that commits.
    """
    return _enqueue(task, args, kwargs, at_once=False)


def _enqueue(
    task: Task[..., Any] | str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    at_once: bool = True,
) -> Job:
    task = registry.get(task) if isinstance(task, str) else task
    conf = settings()
    queue, new = _new_job(task, args, kwargs, conf)
    plan = commit.plan(task, queue, conf, at_once=at_once)
    if plan is not None:
        _defer(plan, {queue: [new]})
        return Job(new.id, queue, task.name, "deferred")
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

    All are validated before the first is sent. Each 500 jobs of a queue are one step on the
    server, which they enter together. A job that the server refuses has an `error`.

    >>> emq.enqueue_many(send.job(user_id) for user_id in ids)
    """
    conf = settings()
    made: list[Job] = []
    plans: dict[commit.Plan | None, dict[str, list[tuple[int, NewJob]]]] = {}
    for at, unsent in enumerate(jobs):
        queue, job = _new_job(unsent.task, unsent.args, unsent.kwargs, conf)
        plan = commit.plan(unsent.task, queue, conf)
        status = "enqueued" if plan is None else "deferred"
        made.append(Job(job.id, queue, unsent.task.name, status))
        plans.setdefault(plan, {}).setdefault(queue, []).append((at, job))
    now = plans.pop(None, {})
    for plan, by_queue in plans.items():
        if plan is not None:
            _defer(plan, {queue: [job for _, job in jobs] for queue, jobs in by_queue.items()})
    for queue, entries in now.items():
        verdicts = _push_all(queue, [job for _, job in entries])
        for (at, _), verdict in zip(entries, verdicts, strict=True):
            if verdict != 1:
                made[at] = _other(made[at], verdict)
    return made


def _defer(plan: commit.Plan, jobs: dict[str, list[NewJob]]) -> None:
    """Have jobs, by queue, sent after the commit that they wait for."""
    if plan.outbox:
        from . import outbox

        outbox.store(plan.database, jobs)
        return
    transaction.on_commit(partial(_committed, jobs), using=plan.database)


def _committed(jobs: dict[str, list[NewJob]]) -> None:
    """Send jobs whose transaction has been committed; raises the first refusal, all being sent."""
    refusals = [
        verdict
        for queue, new in jobs.items()
        for verdict in _push_all(queue, new)
        if isinstance(verdict, EmqError)
    ]
    if refusals:
        raise refusals[0]


def _push_all(queue: str, jobs: list[NewJob]) -> Iterator[scripts.Verdict]:
    client = connections.client()
    for start in range(0, len(jobs), CHUNK):
        yield from push(client, queue, jobs[start : start + CHUNK])


def push(client: Client, queue: str, jobs: list[NewJob]) -> list[scripts.Verdict]:
    """Admit jobs of one queue, again if the reply is lost."""
    try:
        producer = _idle.pop()
    except IndexError:
        producer = secrets.token_hex(6)
    pauses = iter(PAUSES)
    try:
        while True:
            try:
                introduce(client, queue)
                return scripts.enqueue(client, queue, jobs, request=jobs[0].id, producer=producer)
            except OutcomeUnknown as error:
                pause = next(pauses, None)
                if pause is None:
                    raise OutcomeUnknown(
                        f"Queue {queue!r}: no answer after {len(PAUSES) + 1} tries, so it is "
                        f"unknown whether job {jobs[0].id} was stored: {error}"
                    ) from error
                time.sleep(pause)
    finally:
        _idle.append(producer)


def introduce(client: Client, queue: str) -> None:
    """Check the version fence and enter a queue in the registry, once a minute."""
    now = monotonic()
    if now >= client.known_queues.get(queue, 0.0):
        scripts.register(client, [queue])
        client.known_queues[queue] = now + KNOWN


aenqueue = sync_to_async(enqueue)
aenqueue_on_commit = sync_to_async(enqueue_on_commit)
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
    return queue, NewJob(job_id, payload, task.priority, task.due, task.fields)


def _other(job: Job, verdict: int | EmqError) -> Job:
    if isinstance(verdict, EmqError):
        return Job(job.id, job.queue, job.task, "refused", verdict)
    return Job(job.id, job.queue, job.task, "duplicate")


# The server remembers the last call of each producer. A producer makes one call at a time, so
# there are as many as this process ever made calls at once, not as many as it had threads.
_idle: deque[str] = deque()
os.register_at_fork(after_in_child=_idle.clear)

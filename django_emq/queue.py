"""Enqueueing: validate, serialise, admit. The write verbs for people.

Every call mints the id of its job and names itself, so it may be sent twice: when a reply is
lost it is sent again, and the server answers it from memory. One call never makes two jobs.
A call inside a transaction may be told to wait for its commit (`commit.plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from . import chains, commit, connections, partitions, registry, scripts, signing
from .admission import (
    Lots,
    Verdict,
    admit,
    came_in,
    confirm,
    job_after,
    push,
    replicas_of,
    waiting,
)
from .chains import Made, job_of
from .conf import Settings, settings
from .exceptions import EmqError
from .ids import mint
from .jobs import Conflict, Job, NewJob, encode
from .keys import check_queue
from .log import get_logger
from .registry import AnyTask, Task, Unsent
from .signals import job_enqueued
from .times import Seconds

logger = get_logger("queue")


def enqueue(task: Task[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue one job of a task, given as an object or by name, and return it.

    Raises InvalidArguments for what JSON cannot carry, InvalidOption, UnknownTask;
    OutcomeUnknown when no answer came (nought or one job exists), ServerRefused when the
    server takes no writes (nothing was stored); TooFewReplicas when the job is stored, but not
    by as many replicas as `wait_replicas` asks for.
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
    made = _new_job(task, args, kwargs, conf)
    queue, new = made.queue, made.new
    replicas = replicas_of(task, queue, conf)
    plan = commit.plan(task, queue, conf, at_once=at_once)
    if plan is not None:
        job = job_of(made, task.name, "deferred")
        _defer(plan, {queue: [new]}, {queue: replicas}, [job])
        return job
    client = connections.client()
    wait = waiting(client, queue, replicas, conf)
    (verdict,) = push(client, queue, [new], wait)
    if isinstance(verdict, EmqError):
        raise verdict
    job = job_of(made, task.name, "enqueued")
    if verdict != 1:
        job = job_after(job, verdict)
    if job_enqueued.receivers and came_in(verdict):
        job_enqueued.tell(task, job=job)
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
    plans: dict[commit.Plan | None, Lots] = {}
    places: dict[str, list[int]] = {}  # of the jobs that are sent now
    replicas: dict[str, int] = {}
    for at, unsent in enumerate(jobs):
        one = _new_job(unsent.task, unsent.args, unsent.kwargs, conf)
        queue, job = one.queue, one.new
        plan = commit.plan(unsent.task, queue, conf)
        made.append(job_of(one, unsent.task.name, "enqueued" if plan is None else "deferred"))
        plans.setdefault(plan, {}).setdefault(queue, []).append(job)
        if plan is None:
            places.setdefault(queue, []).append(at)
        if count := replicas_of(unsent.task, queue, conf):
            replicas[queue] = max(replicas.get(queue, 0), count)
    now = plans.pop(None, {})
    for plan, lots in plans.items():
        if plan is not None:
            _defer(plan, lots, replicas, [job for job in made if job.status == "deferred"])
    found, sent = admit(now, replicas)
    for queue, verdicts in found.items():
        for at, verdict in zip(places[queue], verdicts, strict=True):
            if verdict != 1:
                made[at] = job_after(made[at], verdict)
            if job_enqueued.receivers and came_in(verdict):
                job_enqueued.tell(registry.find(made[at].task), job=made[at])
    return confirm(made, sent)


def _defer(plan: commit.Plan, lots: Lots, replicas: Mapping[str, int], jobs: Iterable[Job]) -> None:
    """Have jobs, by queue, sent after the commit that they wait for."""
    if plan.outbox:
        from . import outbox

        outbox.store(plan.database, lots)
        return
    ids = {new.id for news in lots.values() for new in news}
    ours = [replace(job, status="enqueued") for job in jobs if job.id in ids]
    transaction.on_commit(partial(_committed, lots, replicas, ours), using=plan.database)


def _committed(lots: Lots, replicas: Mapping[str, int], jobs: list[Job]) -> None:
    """Send jobs whose transaction has been committed; raises the first refusal, all being sent."""
    found, sent = admit(lots, replicas)
    verdicts: dict[str, Verdict] = {}
    for queue, lot in lots.items():
        verdicts |= {new.id: verdict for new, verdict in zip(lot, found[queue], strict=True)}
    for job in jobs:
        verdict = verdicts[job.id]
        if isinstance(verdict, Conflict) and not came_in(verdict):
            logger.info(  # who enqueued it has long been answered
                "job %s of %s was a duplicate: job %s holds its unique key",
                job.id,
                job.task,
                verdict.holder,
            )
        elif job_enqueued.receivers and came_in(verdict):
            job_enqueued.tell(registry.find(job.task), job=job)
    for verdict in verdicts.values():
        if isinstance(verdict, EmqError):
            raise verdict
    confirm(jobs, sent)


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


def _new_job(task: AnyTask, args: tuple[Any, ...], kwargs: dict[str, Any], conf: Settings) -> Made:
    if task.on_success is not None or task.on_failure is not None:
        first = Unsent(task, args, kwargs)
        return chains.Weaver(conf, first).weave(first)
    payload = encode(task.name, args, kwargs, limit=conf.max_payload)
    queue = check_queue(task.queue or conf.default_queue, conf.prefix)
    job_id = mint()
    if conf.sign_payloads:
        payload = signing.sealed(payload, job_id)
    rule = task.rule
    unique = () if rule is None else rule.of(task.name, args, kwargs)
    if conf.queues:
        key = unique.digest if unique else task.partition_key
        queue = partitions.place(conf, queue, job_id, key)
    return Made(queue, NewJob(job_id, payload, task.priority, task.due, task.fields, unique))


def make(task: AnyTask, args: Iterable[Any], kwargs: dict[str, Any]) -> Made:
    """A job that is not sent yet; raises what `enqueue` refuses it with."""
    return _new_job(task, tuple(args), kwargs, settings())

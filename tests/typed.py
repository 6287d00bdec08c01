"""What a type checker knows of the public interface; `make lint` reads it, a test runs it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import assert_type

from django.db.models import QuerySet
from orders.models import Sales

import django_emq as emq
from django_emq import backend, compat
from django_emq.testing import Ran, Sandbox, Waiting


@emq.task
def send(order_id: int, *, email: str = "") -> str:
    """The decorator without options."""
    return f"{order_id} {email}"


@emq.task(queue="mail", max_attempts=3, backoff=60)
async def fetch(url: str) -> bytes:
    """With options, and a coroutine function."""
    return url.encode()


@compat.task()
def charge(order_id: int) -> float:
    """A task of Django's."""
    return order_id / 2


def own_tasks() -> None:
    """The decorated function keeps its parameters and what it returns."""
    assert_type(send(1, email="a"), str)
    assert_type(send.job(1, email="a"), emq.Unsent)
    assert_type(send.using(run_in=timedelta(hours=1)).name, str)
    copy = fetch.using(priority=5)
    enqueue: Callable[[int], emq.Job] = send.enqueue
    fetch_later: Callable[[str], emq.Job] = copy.enqueue
    assert callable(enqueue)
    assert callable(fetch_later)


def enqueued(when: datetime) -> None:
    """All ways of enqueueing answer jobs. For the type checker: nothing is enqueued."""
    assert_type(send.enqueue(1), emq.Job)
    assert_type(emq.enqueue(send, 1), emq.Job)
    assert_type(emq.enqueue_in(5, send, 1), emq.Job)
    assert_type(emq.enqueue_at(when, send, 1), emq.Job)
    assert_type(emq.enqueue_many([send.job(1)]), list[emq.Job])
    assert_type(emq.current_job(), emq.JobContext)
    assert_type(emq.current_job().token, int)


def effects(rows: QuerySet[Sales]) -> None:
    """In a job: what is written once, and what only the newest run writes."""
    with emq.effect("charge", key="order:1") as once:
        assert_type(once, emq.Once)
        assert_type(once.first, bool)
    assert_type(emq.fenced_update(rows, orders=1), int)
    assert_type(emq.idempotency_key("charge"), str)
    assert_type(emq.current_job().fence, int)
    assert_type(emq.enqueue_on_commit(send, 1), emq.Job)


def in_tests(sandbox: Sandbox) -> None:
    """What the fixture and the mixin give."""
    assert_type(sandbox.run_until_empty(), list[Ran])
    assert_type(sandbox.assert_enqueued(send, args=[1], count=1), Waiting)
    assert_type(sandbox.explore(lambda: send.enqueue(1), lambda: None), list[str])


async def enqueued_async() -> None:
    """The same, awaited."""
    assert_type(await send.aenqueue(1), emq.Job)
    assert_type(await emq.aenqueue(send, 1), emq.Job)


def django_tasks() -> None:
    """Django's decorator and the backend say the same of a task."""
    result = charge.enqueue(1)
    assert_type(result.return_value, float)
    assert_type(charge.get_result(result.id).return_value, float)
    assert_type(charge.call(1), float)
    whole = backend.EMQTask(func=charge.func, max_attempts=3, lease=timedelta(minutes=1))
    assert_type(whole.using(run_after=timedelta(hours=1)), backend.EMQTask)

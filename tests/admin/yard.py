"""Jobs in every set, and the way to the pages."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.contrib.admin.utils import quote
from django.urls import reverse

from django_emq import scripts
from django_emq.admission import push
from django_emq.ids import mint
from django_emq.jobs import NewJob

ACTS = ("requeue_job", "remove_job", "cancel_job", "edit_job", "pause_queue", "control_worker")
ACTS += ("operate_schedule",)
VIEWS = ("view_queue", "view_morgue", "view_worker", "view_server", "view_schedule")
TASK = "tests.probe.tasks.mark"


def url(view: str, **names: str) -> str:
    """The address of a page: url("queue_set", queue="mail", name="dead")"""
    kwargs = {name: quote(value) for name, value in names.items()}
    return reverse(f"admin:django_emq_{view}", kwargs=kwargs)


@dataclass
class Yard:
    """A queue with jobs in each set."""

    queue: str
    pending: list[str]
    active: list[str]
    schedule: list[str]
    dead: list[str]
    done: list[str]

    def ids(self) -> list[str]:
        return [*self.pending, *self.active, *self.schedule, *self.dead, *self.done]


def payload(task: str = TASK, *args: object, **kwargs: object) -> str:
    return json.dumps({"task": task, "args": list(args), "kwargs": kwargs})


def admit(client, queue: str, payloads: Iterable[str], **options: object) -> list[str]:
    """Enqueue payloads as they are; their ids."""
    jobs = [NewJob(mint(), one, **options) for one in payloads]
    push(client, queue, jobs)
    return [job.id for job in jobs]


def kill(client, queue: str, payloads: Iterable[str], error: str = "ValueError: boom") -> list[str]:
    """Put jobs into the morgue, each after one failure. Other pending jobs must not be there."""
    ids = admit(client, queue, payloads)
    claims = scripts.claim(
        client, queue, worker="w-7.1", request=mint(), lease_ms=15_000, count=len(ids)
    )
    items = [(job.id, job.token, 0, error, f"Traceback\n{error}") for job in claims.jobs]
    assert scripts.retry(client, queue, items, max_attempts=1) == ["dead"] * len(ids)
    return ids


def make_yard(client, queue: str) -> Yard:
    """3 pending, 1 active, 2 scheduled, 4 dead, 1 done."""
    dead = kill(client, queue, [payload(TASK, n) for n in range(4)])
    done, active = admit(client, queue, [payload(TASK, "done"), payload(TASK, "active")])
    claims = scripts.claim(client, queue, worker="w-7.1", request="yard", lease_ms=15_000, count=2)
    first = claims.jobs[0]
    scripts.complete(client, queue, [(first.id, first.token, '{"sum": 3}')], keep_ms=600_000)
    pending = admit(client, queue, [payload(TASK, n) for n in range(3)])
    schedule = admit(client, queue, [payload(TASK, n) for n in range(2)], due="+600000")
    return Yard(queue, pending, [active], schedule, dead, [done])


def texts(response) -> list[str]:
    """The messages of a page that was followed to."""
    return [str(message) for message in response.context["messages"]]

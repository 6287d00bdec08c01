"""Tasks of Django's API that do one observable thing each."""

import os
import time
from pathlib import Path

from django.dispatch import receiver

from django_emq import connections, scripts
from django_emq.compat import task, task_finished
from django_emq.exceptions import Discard, Snooze
from tests.probe.tasks import _append


@task()
def wait_for_go(x):
    """Leave a mark, and end when somebody has left the mark 'go'."""
    _append(x)
    while "go" not in Path(os.environ["PROBE_FILE"]).read_text().splitlines():
        time.sleep(0.005)
    return x


def flaky_backoff(exception, task_result):
    """Leave what it was asked as a mark; no wait."""
    _append(f"{type(exception).__name__} after {task_result.attempts}")
    return 0


def flaky(context, times):
    """Fail so many times."""
    if context.attempt <= times:
        raise LookupError(f"attempt {context.attempt}")
    return [context.attempt, context.token, context.job.token, context.lost]


flaky = task(takes_context=True)(flaky).using(backoff=flaky_backoff, max_attempts=3)


def _rob(context):
    """Let the lease lapse, and another worker claim the job."""
    client, job = connections.client(), context.job
    scripts.extend(client, job.queue, [(job.id, job.token)], lease_ms=0)
    scripts.reap(client, job.queue, max_stalls=9)
    scripts.claim(client, job.queue, worker="thief", request=1, lease_ms=60_000)


@task(takes_context=True)
def robbed(context):
    _rob(context)


@task(takes_context=True)
async def arobbed(context):
    _rob(context)


@task(takes_context=True)
def login(context, password):
    raise ValueError(f"no user has {password}")


@task()
def unwanted():
    raise Discard


@task(takes_context=True)
def snoozing(context):
    if context.attempt == 1:
        raise Snooze(0)
    return context.attempt


@task()
async def slowly_told():
    pass


@receiver(task_finished)
def tell_slowly(task_result, **kwargs):
    """Leave a mark on the end of a job of `slowly_told`, after a while."""
    if task_result.task.name == "slowly_told":
        time.sleep(0.3)
        _append("told")


def plain(*args):
    """No task: must never be called by a path in a payload."""
    _append("plain was called")


def charge(context, order, note=""):
    _append(f"{order} {note}")


charge = task(takes_context=True)(charge).using(unique="order")

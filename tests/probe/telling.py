"""Tasks that say how far they are, and tasks whose results are waited for."""

import asyncio
import os
import time

import django_emq as emq
from tests.probe.tasks import _append


def wait_for_file(path):
    """Until the test makes a file."""
    while not os.path.exists(path):
        time.sleep(0.005)


@emq.task(result_ttl=600)
def answer_later(path, value):
    """Return a value, when the test says so."""
    _append("started")
    wait_for_file(path)
    return value


@emq.task(max_attempts=1)
def end_later(path, how):
    """End without a result, in one of several ways, when the test says so."""
    _append("started")
    wait_for_file(path)
    if how == "discard":
        raise emq.Discard("no longer wanted")
    if how == "bury":
        raise emq.Bury("no use")
    if how == "fail":
        raise ValueError("no luck")


@emq.task(result_ttl=600)
def count_to(number, path=""):
    """Say something at each step, many times."""
    job = emq.current_job()
    for step in range(1, number + 1):
        job.progress(step, number, f"step {step}")
        job.log(f"line {step}")
    _append("counted")
    if path:
        wait_for_file(path)


@emq.task(result_ttl=600)
async def acount_to(number):
    """The same from an async task, and from a thread that has its context."""
    job = emq.current_job()
    job.progress(1, number)
    await asyncio.to_thread(lambda: emq.current_job().log("from a thread"))
    job.progress(number, number, "done")


@emq.task
def say_until_lost(path):
    """Go on and say so, until the lease is lost."""
    job = emq.current_job()
    _append(f"token {job.token}")
    if job.token == 1:
        wait_for_file(path)
        while not job.lost:
            job.log("still here")
            time.sleep(0.005)
        _append("lost")


@emq.task(backoff=0)
def fail_saying(secret_note, password):
    """Say something with a secret in it, and fail; the second run says nothing."""
    job = emq.current_job()
    if job.attempt == 1:
        job.progress(1, 4, f"{secret_note} {password}")
        job.log(f"login with {password}")
        raise ValueError("after saying so")


@emq.task(result_ttl=600)
def report(year):
    """Say how far it is, and return something."""
    emq.current_job().progress(3, 3, str(year))
    return {"rows": 3}


@emq.task(result_ttl={"done": 600, "dead": 60}, max_attempts=1)
def by_outcome(fails):
    """Kept for ten minutes when it is done, for one when it is dead."""
    if fails:
        raise ValueError("as it was told")

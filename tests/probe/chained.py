"""Tasks that are links of chains: each says what the one before left it."""

import os
import signal

import django_emq as emq
from tests.probe.tasks import _append


def _mark(x):
    previous = emq.current_job().previous
    _append(f"{x} after {previous.value if previous.error is None else previous.error}")


@emq.task
def first(value=1):
    _append(f"first {value}")
    return value


@emq.task
def link(x, add=1):
    """Mark what was left, and leave one more."""
    _mark(x)
    return emq.current_job().previous.value + add


@emq.task
async def alink(x):
    _mark(x)
    return emq.current_job().previous.value + 1


@emq.task
def tell(x="told"):
    """A callback: mark what was left, value or error."""
    _mark(x)


@emq.task(max_attempts=1)
def fail(text="boom"):
    raise ValueError(text)


@emq.task(max_attempts=1)
def fail_until(name):
    """Fail as long as the environment does not say otherwise."""
    if name not in os.environ:
        raise ValueError(name)
    return name


@emq.task
def bury():
    raise emq.Bury("no use")


@emq.task
def drop():
    raise emq.Discard


@emq.task
def unspeakable():
    """Return what JSON cannot carry."""
    return object()


@emq.task(max_stalls=1)
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@emq.task(on_success="tests.probe.chained.tell", on_failure="tests.probe.chained.tell")
def decorated(fails=False):
    if fails:
        raise emq.Bury("it fails")
    return "decorated"


@emq.task
def step(chain, number):
    """A member of many chains: mark it with its id and token."""
    job = emq.current_job()
    before = job.previous.value if job.previous else 0
    _append(f"{chain} {number} {job.id} {before}")
    return before + 1


loop = emq.task(name="tests.probe.chained.loop", on_success="tests.probe.chained.loop")(tell.func)

"""Tasks that end in every way a task may end."""

import asyncio
import subprocess
import time
from contextlib import suppress
from datetime import timedelta

from django.core.cache import caches
from django.views.decorators.debug import sensitive_variables

import django_emq as emq
from django_emq.signals import lease_lost
from tests.probe.tasks import _append


def again_at_once(failures, error):
    """A backoff of the project's own that leaves a mark."""
    _append(f"backoff {failures} {type(error).__name__}")
    return 0


def never_again(failures, error):
    return None


@emq.task
def ask_retry(in_, reason=""):
    """Ask for a retry at the first run."""
    job = emq.current_job()
    _append(f"attempt {job.attempt} token {job.token}")
    if job.attempt == 1:
        raise emq.Retry(in_=in_, reason=reason)


@emq.task(max_attempts=2)
def always_retry():
    raise emq.Retry(in_=0, reason="not yet")


@emq.task
def ask_snooze(seconds, times):
    """Snooze so many times."""
    job = emq.current_job()
    _append(f"attempt {job.attempt} token {job.token}")
    if job.token <= times:
        raise emq.Snooze(timedelta(seconds=seconds))


@emq.task
def ask_discard():
    try:
        raise emq.Discard("no longer wanted")
    except Exception:
        _append("a verdict is no Exception")


@emq.task
def ask_bury(reason=""):
    raise emq.Bury(reason)


@emq.task(backoff=0, max_attempts=3)
def fail_fast():
    _append(emq.current_job().attempt)
    raise ValueError("no luck")


@emq.task(backoff=again_at_once, max_attempts=3)
def fail_with_callable():
    raise KeyError("gone")


@emq.task(backoff=never_again)
def fail_for_good():
    raise ValueError("no use to try again")


@emq.task(backoff="no.such.module.policy")
def fail_with_lost_policy():
    raise ValueError("boom")


class Unspeakable(Exception):
    """Takes two arguments and has no text."""

    def __init__(self, one, two):
        super().__init__(one, two)

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@emq.task(backoff=0, max_attempts=2)
def raise_one(kind):
    """Raise an error that is hard to store."""
    if kind == "unspeakable":
        raise Unspeakable(1, 2)
    if kind == "exit":
        raise SystemExit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "group":
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    if kind == "surrogate":
        raise ValueError("bad \udc80 \x00 name")
    if kind == "huge":
        raise ValueError("\u0645" * 2_500_000)
    if kind == "nothing":
        raise ValueError
    raise AssertionError(kind)


@emq.task(backoff=0, max_attempts=2)
async def araise_one(kind):
    raise_one.func(kind)


@emq.task(result_ttl=600, backoff=0, max_attempts=2)
def answer(kind):
    """Return something; its row is kept."""
    return {
        "plain": {"sum": 3, "text": "\u00e4\ud83d", "list": [1.5, None, True]},
        "large": "x" * 10_000_000,
        "none": None,
    }.get(kind, object())


@emq.task(result_ttl=600)
async def aanswer(x):
    await asyncio.sleep(0)
    return x


@emq.task
def forget(x):
    """Return what JSON cannot carry, which nobody asked to keep."""
    _append(x)
    return object()


@emq.task
def mark_deadline(x):
    """Mark the seconds from now to the end of the lease."""
    job = emq.current_job()
    left = job.lease_deadline.timestamp() - time.time()
    _append(f"{x} {left:.3f}")


@emq.task
def nap_then_mark_deadline(seconds, x):
    time.sleep(seconds)
    mark_deadline.func(x)


@emq.task(lease=60)
def mark_own_deadline(x):
    mark_deadline.func(x)


@emq.task
def nap_once_then_mark(seconds, x):
    """Take long at the first claim only."""
    token = emq.current_job().token
    if token == 1:
        time.sleep(seconds)
    _append(f"{x} token {token}")


@emq.task
def mark_nap_boom(x, seconds):
    _append(x)
    time.sleep(seconds)
    raise ValueError("too late")


@emq.task
def mark_when_lost():
    """Wait until this run has lost its lease, and have all be told that can be."""
    job = emq.current_job()
    job.on_lost(lambda: _append("hook"))
    lease_lost.connect(lambda job, **_: _append(f"signal {job.task}"), weak=False)
    _append("waiting")
    try:
        while True:
            job.check()
            time.sleep(0.01)
    except emq.LeaseLost:
        _append("lost")
        raise


@emq.task
async def amark_when_cancelled():
    _append("waiting")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        _append("cancelled")
        raise


def same(one, other):
    """Equal, and of equal types all the way down."""
    return repr(one) == repr(other)


@emq.task(result_ttl=600)
def echo(x):
    return x


@emq.task
def compare(i, value, named):
    from tests.test_arguments import CARRIED

    equal = same(value, CARRIED[i]) and same(named, CARRIED[i])
    _append(f"{i} {'same' if equal else f'not the same: {value!r}'}")


@emq.task(backoff=0, max_attempts=2)
def spoil_then_compare(x):
    _append(x)
    x[1]["a"].append("spoilt")
    if emq.current_job().attempt == 1:
        raise ValueError("again")


@emq.task
def mark_types(one, two):
    _append(f"{type(one).__name__} {one} {type(two).__name__} {two}")


@emq.task
def any_names(x, *, task, self, name, queue, args, delay):
    _append(f"{x} {task} {self} {name} {queue} {args} {delay}")


@emq.task(result_ttl=600)
def mark_token(x):
    _append(f"{x} token {emq.current_job().token}")


@emq.task
def mark_size(x):
    _append(len(x))


@emq.task
def mark_repr(x):
    _append(ascii(x) if isinstance(x, str) else repr(x))


@emq.task
def read_cache_then_mark_token(seconds, x):
    """Read the cache of the queue's alias all the time, whatever that answers."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with suppress(Exception):
            caches["emq"].get("of the project")
        time.sleep(0.005)
    _append(f"{x} token {emq.current_job().token}")


@emq.task
def leave_a_process_then_mark(x):
    """Start a process that outlives its parent, and ends soon."""
    subprocess.run(["sh", "-c", "sleep 0.1 & echo"], check=True, stdout=subprocess.DEVNULL)
    _append(x)


# -- tasks that put what they were given into their errors ------------------------------------


@emq.task(max_attempts=1)
def leak(kind, password, options=None):
    text = f"cannot sign in with {password!r} and {options}"
    if kind == "bury":
        raise emq.exceptions.Bury(text)
    if kind == "retry":
        raise emq.exceptions.Retry(in_=60, reason=text)
    if kind == "notes":
        error = ValueError("no")
        error.add_note(text)
        raise error
    if kind == "cause":
        try:
            raise KeyError(text)
        except KeyError as error:
            raise RuntimeError("wrapped") from error
    raise ValueError(text)


@emq.task(max_attempts=1, backoff="tests.probe.nowhere.policy")
def leak_without_backoff(password):
    raise ValueError(f"cannot sign in with {password}")


@emq.task(max_attempts=1)
@sensitive_variables("pin")
def leak_pin(pin, who):
    raise ValueError(f"{who} has {pin}")


@emq.task(max_attempts=1)
@sensitive_variables("pin")
async def aleak_pin(pin, who):
    raise ValueError(f"{who} has {pin}")


@emq.task(max_attempts=1)
@sensitive_variables()
def leak_all(pin, who):
    raise ValueError(f"{who} has {pin}")

"""Middleware and receivers that leave marks."""

import io
import logging
import threading

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.utils.decorators import async_only_middleware, sync_and_async_middleware

import django_emq as emq
from django_emq import signals

from .tasks import _append


def counted(run):
    """Plain jobs only."""

    def middleware(job):
        _append(f"plain before {job.task.rpartition('.')[2]} {job.args} {job.kwargs}")
        try:
            return run(job)
        finally:
            _append("plain after")

    return middleware


@sync_and_async_middleware
def both(run):
    """Plain and async jobs."""
    if iscoroutinefunction(run):

        async def middleware(job):
            _append(f"both async {emq.current_job().id == job.id}")
            return await run(job)

    else:

        def middleware(job):
            _append(f"both plain {emq.current_job().id == job.id}")
            return run(job)

    return middleware


@async_only_middleware
def waits(run):
    """Async jobs only."""

    async def middleware(job):
        _append("waits")
        return await run(job)

    return middleware


class Instead:
    """Answers in place of the task; a class whose instances are async."""

    sync_capable = False
    async_capable = True

    def __init__(self, run):
        markcoroutinefunction(self)

    async def __call__(self, job):
        _append(f"instead of {job.task.rpartition('.')[2]}")


def refuses(run):
    """Ends the job in its own way."""

    def middleware(job):
        raise emq.Bury("not today")

    return middleware


def liar(run):
    """Says that it can do async jobs, and makes a plain function of them."""
    return lambda job: run(job)


liar.async_capable = True


def _mark(name, *facts):
    def receiver(sender, **given):
        told = " ".join(str(given[fact]) for fact in facts)
        job = given.get("job")
        who = getattr(sender, "name", "-").rpartition(".")[2]
        _append(f"{name} {who} {getattr(job, 'args', '')} {told}".strip())

    return receiver


def connect():
    """Have all signals leave marks."""
    for name, facts in (
        ("job_enqueued", ()),
        ("job_started", ()),
        ("job_succeeded", ("result",)),
        ("job_failed", ("error",)),
        ("job_retried", ("delay", "reason")),
        ("job_dead", ("reason",)),
        ("job_stale", ("verb",)),
        ("worker_started", ("queues",)),
        ("worker_stopping", ("queues",)),
    ):
        getattr(signals, name).connect(
            _mark(name, *facts), weak=False, dispatch_uid=f"probe {name}"
        )


class BrokenHandler(logging.Handler):
    """Raises at the line that a dead job leaves, as a handler does whose disk is full."""

    def emit(self, record):
        if "in the morgue" in record.getMessage():
            raise OSError("no space left")


def refuse():
    """Have a receiver of each signal raise, and a log handler."""
    logging.getLogger("django_emq").addHandler(BrokenHandler())

    def receiver(**_):
        raise ZeroDivisionError("a receiver")

    for name, signal in vars(signals).items():
        if isinstance(signal, signals.EmqSignal):
            signal.connect(receiver, weak=False, dispatch_uid=f"probe {name} raises")


def log_without_end():
    """Log in a thread, so that a fork finds the lock of logging taken."""
    logging.getLogger("probe").addHandler(logging.StreamHandler(io.StringIO()))

    def run():
        while True:
            logging.getLogger("probe").debug("a line")

    logging.getLogger("probe").setLevel("DEBUG")
    threading.Thread(target=run, daemon=True).start()

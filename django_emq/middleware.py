"""What is run around each job: EMQ["MIDDLEWARE"], as Django's is around each request.

    def timing(run):
        def middleware(job):
            with measured(job.task):
                return run(job)
        return middleware

A factory is given the next callable and answers one that takes the job's `JobContext` and answers
what the task returned. Whether it can do plain and async tasks it says as Django's does, by
`sync_capable` and `async_capable` (`django.utils.decorators.sync_and_async_middleware`). One that
can do only one of them is adapted to the other, which costs a change of threads for each job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from . import registry
from .context import JobContext

Run = Callable[[JobContext], Any]
Arun = Callable[[JobContext], Awaitable[Any]]


def chains(paths: Iterable[str]) -> tuple[Run | None, Arun | None]:
    """What runs a plain job, and an async one, through all middleware; None without any.

    The first of the list is the outermost. Raises ImproperlyConfigured for what cannot be used.
    """
    factories = [load(path) for path in paths]
    if not factories:
        return None, None
    run: Run = _run
    arun: Arun = _arun
    for factory in reversed(factories):
        run, arun = _around(factory, run), _aaround(factory, arun)
    return run, arun


def load(path: str) -> Callable[[Any], Any]:
    """The factory of a path. Raises ImproperlyConfigured."""
    try:
        factory = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"EMQ['MIDDLEWARE'] names {path!r}: {error}.") from error
    if not callable(factory):
        raise ImproperlyConfigured(
            f"EMQ['MIDDLEWARE'] names {path!r}, which cannot be called. Name a function that is "
            "given the next one, or a class."
        )
    made: Callable[[Any], Any] = factory
    return made


def _run(job: JobContext) -> Any:
    return registry.get(job.task).func(*job.args, **job.kwargs)


async def _arun(job: JobContext) -> Any:
    return await registry.get(job.task).func(*job.args, **job.kwargs)


def _around(factory: Callable[[Any], Any], inner: Run) -> Run:
    if getattr(factory, "sync_capable", True):
        made: Run = factory(inner)
        return made
    outer: Run = async_to_sync(factory(_marked(sync_to_async(inner))))
    return outer


def _aaround(factory: Callable[[Any], Any], inner: Arun) -> Arun:
    if getattr(factory, "async_capable", False):
        made = factory(_marked(inner))
        if iscoroutinefunction(made) or iscoroutinefunction(type(made).__call__):
            amade: Arun = made
            return amade
        raise ImproperlyConfigured(
            f"EMQ['MIDDLEWARE']: {factory!r} says that it is async_capable, and makes a plain "
            "function of an async one. Have it answer a coroutine function then."
        )
    return sync_to_async(factory(async_to_sync(inner)), thread_sensitive=False)


def _marked(function: Any) -> Any:
    """Say that a callable is a coroutine function: by that a factory knows which it is given."""
    return function if iscoroutinefunction(function) else markcoroutinefunction(function)

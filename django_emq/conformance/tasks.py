"""Tasks of the conformance suite: each does one observable thing. For the alias 'default'."""

from __future__ import annotations

from typing import Any

from ..compat import AnyContext, task


@task()
def nothing(*args: Any, **kwargs: Any) -> None:
    """Take anything, answer None."""


@task()
async def anothing(*args: Any, **kwargs: Any) -> None:
    """The same, on an event loop."""


@task()
def echo(*args: Any, **kwargs: Any) -> Any:
    """Answer the arguments."""
    return [args, kwargs]


@task()
async def aecho(*args: Any, **kwargs: Any) -> Any:
    """The same, on an event loop."""
    return [args, kwargs]


@task(takes_context=True)
def attempt(context: AnyContext) -> int:
    """Answer which attempt this is."""
    return context.attempt


@task(takes_context=True)
async def own_id(context: AnyContext) -> str:
    """Answer the id of the result."""
    return context.task_result.id


@task(takes_context=True)
def state(context: AnyContext, key: str) -> Any:
    """Answer a field of the result as the task sees it."""
    return str(getattr(context.task_result, key))


@task()
def fails(message: str) -> None:
    """Raise."""
    raise ValueError(message)


@task()
async def afails(message: str) -> None:
    """The same, on an event loop."""
    raise ValueError(message)


@task()
def fails_with_an_error_inside() -> None:
    """Raise an exception that holds another one, which JSON has no form for."""
    raise ValueError(ValueError("inside"))


@task()
def exits() -> None:
    """Ask the interpreter to end."""
    raise SystemExit(1)


@task()
def answers_what_is_no_json() -> Any:
    """Answer a function."""
    return lambda: None


@task(priority=7)
def urgent() -> None:
    """Has a priority of its own."""

"""Options of tasks: what each may be."""

from __future__ import annotations

from typing import Any

from .exceptions import InvalidOption
from .times import Seconds, milliseconds


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    """Refuse what is neither None nor a whole number within these bounds."""
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise InvalidOption(f"{name} is {value!r}. Use a whole number from {least} to {most}.")


def check_commit(name: str, value: Any) -> None:
    """Refuse what names no commit, for `on_commit` and `outbox`."""
    if value is not None and not isinstance(value, (bool, str)):
        raise InvalidOption(f"{name} is {value!r}. Use True, False, or the alias of a database.")


def check_fence_key(value: Any) -> None:
    """Refuse what names no resource: it becomes part of a key."""
    if value is None:
        return
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= 200:
        raise InvalidOption(
            f"fence_key is {value!r}. Name the resource in 1 to 200 printable characters, for "
            "instance 'invoice:42'."
        )


def check_partition_key(value: Any) -> None:
    """Refuse what is no text, or an empty one."""
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidOption(f"partition_key is {value!r}. Use a text, for instance 'customer-7'.")


def milliseconds_or_0(name: str, value: Seconds | None) -> int:
    """A time as `times.milliseconds` reads it; 0 for None."""
    return 0 if value is None else milliseconds(name, value, least=0.001)

"""What all reads share: one round trip for many commands, and text from whatever is there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..connections import Client
from ..ids import is_job_id, minted_at

SETS = ("pending", "active", "schedule", "dead", "done")


def ask(client: Client, build: Callable[[Any], object], *, loose: bool = False) -> list[Any]:
    """The answers to the commands that `build` puts into a pipeline, in one round trip.

    :param loose: leave errors of single commands in the list, as exceptions; otherwise the first
        one is raised. Rows that strangers have damaged must not take a page with them.
    """
    replies = client.read(lambda raw: client.gather(build))
    for reply in replies:
        if isinstance(reply, Exception) and not loose:
            raise client.failed(reply)
    return replies


def text(value: Any) -> str:
    """Bytes as text, also those that are none; nothing as an empty one."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else ""


def texts(fields: Any) -> dict[str, str]:
    """A hash as text; empty for a key that holds something else."""
    if not isinstance(fields, dict):
        return {}
    return {text(name): text(value) for name, value in fields.items()}


def number(value: Any, default: int = 0) -> int:
    """A whole number, or the default for what a stranger may have written in its place."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


def numbers(fields: Any) -> dict[str, int]:
    """A hash of counters."""
    return {name: number(value) for name, value in texts(fields).items()}


def to_ms(time: tuple[int, int]) -> int:
    """The server's TIME in milliseconds since 1970."""
    return time[0] * 1000 + time[1] // 1000


def instant(ms: float | None) -> datetime | None:
    """Milliseconds since 1970 as a datetime; None for what is no time."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def age(job_id: str, now: float) -> float:
    """Seconds since the id was minted."""
    return max(now - minted_at(job_id).timestamp(), 0.0) if is_job_id(job_id) else 0.0

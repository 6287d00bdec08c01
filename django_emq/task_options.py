"""OPTIONS of an entry of TASKS: read, and checked without a connection."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error

from . import aliases
from .backoff import resolve
from .conf import DAY, PARSERS, Problem
from .exceptions import InvalidOption
from .keys import check_queue
from .times import Seconds, milliseconds

IDS = {"unknown": "django_emq.E020", "value": "django_emq.E021"}


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What holds for the tasks of one alias that say nothing else.

    :ivar result_ttl: how long a successful result is kept.
    :ivar max_attempts: None for the queue's MAX_ATTEMPTS. :ivar backoff: None for the queue's.
    """

    result_ttl: Seconds = DAY
    max_attempts: int | None = None
    backoff: Any = None


def check() -> list[CheckMessage]:
    """E020, E021: the entries of TASKS that use the backend here."""
    found: list[CheckMessage] = []
    for alias, entry in (getattr(settings, "TASKS", None) or {}).items():
        cls = aliases.imported(entry.get("BACKEND"))
        if any(base.__module__ == "django_emq.backend" for base in getattr(cls, "__mro__", ())):
            options, queues = entry.get("OPTIONS", {}), entry.get("QUEUES", ["default"])
            found += messages(read_options(alias, options, queues)[1])
    return found


def messages(problems: list[Problem]) -> list[CheckMessage]:
    """What is wrong with an entry of TASKS, as messages."""
    return [
        Error(one.sentence, hint="All options: docs/django-tasks.md", id=IDS[one.kind])
        for one in problems
    ]


def _ttl(value: Any) -> Seconds:
    milliseconds("RESULT_TTL", value, least=1)
    kept: Seconds = value
    return kept


def _backoff(value: Any) -> Any:
    resolve(value)
    return value


PARSE: dict[str, Callable[[Any], Any]] = {
    "RESULT_TTL": _ttl,
    "MAX_ATTEMPTS": PARSERS["MAX_ATTEMPTS"],
    "BACKOFF": _backoff,
}


def read_options(
    alias: str, options: object, queues: Iterable[object]
) -> tuple[TaskOptions, list[Problem]]:
    """The OPTIONS of an alias with the default for each bad one, and all that is wrong with it."""
    where = f"TASKS[{alias!r}]"
    found: list[Problem] = []
    values = {}
    if not isinstance(options, Mapping):
        found.append(_bad(f"{where}['OPTIONS']", options, "Give a dict."))
        options = {}
    for name, value in options.items():
        setting = f"{where}['OPTIONS'][{name!r}]"
        if name not in PARSE:
            found.append(_unknown(setting, name))
            continue
        try:
            values[name.lower()] = PARSE[name](value)
        except InvalidOption as error:
            found.append(_bad(setting, value, str(error)))
    for queue in sorted(queues, key=str):
        try:
            check_queue(queue)
        except InvalidOption as error:
            found.append(_bad(f"{where}['QUEUES']", queue, str(error)))
    return TaskOptions(**values), found


def _unknown(setting: str, name: object) -> Problem:
    (nearest,) = difflib.get_close_matches(str(name).upper(), PARSE, n=1, cutoff=0)
    sentence = (
        f"{setting} is not an option of the backend. The nearest known name is {nearest!r}. Known "
        f"are {', '.join(PARSE)}; what holds for all jobs is in EMQ."
    )
    return Problem("unknown", setting, sentence)


def _bad(setting: str, value: object, why: str) -> Problem:
    return Problem("value", setting, f"{setting} is {reprlib.repr(value)}. {why}")

"""OPTIONS of an entry of TASKS: read, and checked without a connection."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error

from .backoff import resolve
from .conf import DAY, PARSERS
from .exceptions import InvalidOption
from .keys import check_queue
from .registry import Seconds, milliseconds


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What holds for the tasks of one alias that say nothing else.

    :ivar result_ttl: how long a successful result is kept.
    :ivar max_attempts: None for the queue's MAX_ATTEMPTS. :ivar backoff: None for the queue's.
    """

    result_ttl: Seconds = DAY
    max_attempts: int | None = None
    backoff: Any = None


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
    alias: str, options: Any, queues: Iterable[str]
) -> tuple[TaskOptions, list[CheckMessage]]:
    """The OPTIONS of an alias with the default for each bad one, and all that is wrong with it."""
    where = f"TASKS[{alias!r}]"
    found: list[CheckMessage] = []
    values = {}
    if not isinstance(options, Mapping):
        found.append(_bad(f"{where}['OPTIONS']", options, "Give a dict."))
        options = {}
    for name, value in options.items():
        if name not in PARSE:
            found.append(_unknown(where, name))
            continue
        try:
            values[name.lower()] = PARSE[name](value)
        except InvalidOption as error:
            found.append(_bad(f"{where}['OPTIONS'][{name!r}]", value, str(error)))
    for name in sorted(queues, key=str):
        try:
            check_queue(name)
        except InvalidOption as error:
            found.append(_bad(f"{where}['QUEUES']", name, str(error)))
    if not apps.is_installed("django_emq"):
        found.append(
            Error(
                f"{where} uses the backend of django_emq, which is not in INSTALLED_APPS: no "
                "worker would run its jobs. Add 'django_emq' there.",
                hint="Its system checks and its commands come with it.",
                id="django_emq.E022",
            )
        )
    return TaskOptions(**values), found


def _unknown(where: str, name: object) -> CheckMessage:
    (nearest,) = difflib.get_close_matches(str(name).upper(), PARSE, n=1, cutoff=0)
    return Error(
        f"{where}['OPTIONS'][{name!r}] is not an option of the backend. The nearest known name is "
        f"{nearest!r}.",
        hint=f"Known are {', '.join(PARSE)}. What holds for all jobs is in EMQ.",
        id="django_emq.E020",
    )


def _bad(setting: str, value: object, why: str) -> CheckMessage:
    return Error(
        f"{setting} is {reprlib.repr(value)}. {why}",
        hint="All options: docs/django-tasks.md",
        id="django_emq.E021",
    )

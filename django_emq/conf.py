"""The settings: one dict ``EMQ``, read when first asked for, checked as a whole.

    EMQ = {
        "CACHE_ALIAS": "emq",
        "LEASE": 15,
        "QUEUES": {"mail": {"MAX_ATTEMPTS": 10, "BACKOFF": 60}},
    }

All times are in seconds. A bad value is never replaced by a guess: `settings` raises, and the
system checks show every problem at once.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .backoff import DEFAULT, Policy, resolve
from .exceptions import InvalidOption
from .keys import check_queue, partition, split_partition
from .plans import Plan, read_plans

PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
DAY = 86400
NAME_MAX = 128  # characters of a queue's name
PARTITIONS_MAX = 64  # each costs a worker a few commands in ten seconds
REDACT = ("password", "passwd", "secret", "token", "api_key", "authorization")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What holds for one queue: its entry in QUEUES, and the general settings for the rest."""

    lease: float  # seconds
    max_attempts: int
    max_stalls: int
    backoff: Policy
    wait_replicas: int = 0  # that shall have a job before enqueue answers
    wait_timeout: float | None = None  # seconds
    on_commit: bool | str = False
    outbox: bool | str = False
    timeout: float | None = None  # seconds that a run may take
    kill_after: float | None = None  # seconds after that until its process is killed
    partitions: int = 0  # queues that its jobs are spread over; 0 for none but itself


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, with their defaults. ``EMQ["LEASE"]`` is ``settings().lease``."""

    cache_alias: str = "emq"
    prefix: str = "emq"
    default_queue: str = "default"
    lease: float = 15  # seconds a claim holds
    max_attempts: int = 5
    max_stalls: int = 3
    backoff: Policy = DEFAULT
    max_payload: int = 1024 * 1024  # bytes
    dead_max: int = 10_000  # jobs in the morgue of a queue
    dead_ttl: float = 180 * DAY  # seconds
    effect_ttl: float = 365 * DAY  # seconds that a recorded effect is kept
    done_max: int = 100_000  # finished jobs of a queue that are kept with their results
    log_max: int = 100  # lines of a job's log
    socket_timeout: float = 5  # seconds
    async_concurrency: int = 100
    trail: str = "notable"  # what each queue remembers: off, notable, all
    redact: tuple[str, ...] = REDACT  # arguments whose values no page and no log shows
    sign_payloads: bool | str = False  # False, "sign" or True
    wait_replicas: int = 0
    wait_timeout: float | None = None  # seconds; None for 1, or half of socket_timeout if less
    on_commit: bool | str = False  # True, or the alias of a database
    outbox: bool | str = False  # True, or the alias of a database
    timeout: float | None = None  # seconds that a run may take; None for no limit
    kill_after: float | None = None  # seconds after that until its process is killed
    middleware: tuple[str, ...] = ()  # paths of what is run around each job
    schedules: Mapping[str, Plan | None] = field(default_factory=lambda: MappingProxyType({}))
    queues: Mapping[str, QueueSettings] = field(default_factory=lambda: MappingProxyType({}))

    def queue(self, name: str) -> QueueSettings:
        """The settings of one queue, also of a partition and of what QUEUES does not name."""
        own = self.queues.get(name) or self.queues.get(self.whole(name))
        return own or QueueSettings(
            self.lease,
            self.max_attempts,
            self.max_stalls,
            self.backoff,
            self.wait_replicas,
            self.wait_timeout,
            self.on_commit,
            self.outbox,
            self.timeout,
            self.kill_after,
        )

    def whole(self, name: str) -> str:
        """The queue that people know: ``events`` for its partition ``events.3``, else the name."""
        queue, _ = split_partition(name)
        own = self.queues.get(queue)
        return queue if own and own.partitions else name

    def parts(self, name: str) -> tuple[str, ...]:
        """The queues on the server that take the jobs of one: its partitions, or itself."""
        own = self.queues.get(name)
        if own is None or not own.partitions:
            return (name,)
        return tuple(partition(name, number) for number in range(own.partitions))


NAMES = tuple(item.name.upper() for item in fields(Settings))
QUEUE_NAMES = tuple(item.name.upper() for item in fields(QueueSettings))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the settings: a sentence with the way out."""

    kind: Literal["unknown", "value", "contradiction"]
    setting: str  # as a user would spell it: EMQ['LEASE']
    sentence: str


@cache
def settings() -> Settings:
    """The settings of the project.

    Raises ImproperlyConfigured with the sentence of the first problem. Kept until ``EMQ`` or
    ``CACHES`` changes in a test.
    """
    values, found = read()
    if found:
        raise ImproperlyConfigured(found[0].sentence)
    return values


def problems() -> list[Problem]:
    """All that is wrong with the settings."""
    return read()[1]


def read() -> tuple[Settings, list[Problem]]:
    """The settings with the default in place of each bad value, and the problems."""
    found: list[Problem] = []
    raw = getattr(django_settings, "EMQ", {})
    values = _read_dict("EMQ", raw, NAMES, found)
    queues = values.pop("queues", {})
    general = replace(Settings(), **values)
    names = {"EMQ['DEFAULT_QUEUE']": general.default_queue}
    own = {}
    for name, overrides in queues.items():
        where = f"EMQ['QUEUES'][{name!r}]"
        try:
            names[where] = _queue_name(name)
        except InvalidOption as error:
            found.append(Problem("value", where, f"{where}: {error}"))
        own[name] = replace(general.queue(""), **_read_dict(where, overrides, QUEUE_NAMES, found))
        last = own[name].partitions - 1
        if last >= 0 and where in names and len(partition(name, last)) > NAME_MAX:
            found.append(_long_name(f"{where}['PARTITIONS']", name))
    waits = {f"EMQ['QUEUES'][{name!r}]": one.wait_timeout for name, one in own.items()}
    waits = {name: wait for name, wait in waits.items() if wait != general.wait_timeout}
    waits["EMQ"] = general.wait_timeout
    found += [
        _too_long(where, wait, general.socket_timeout)
        for where, wait in waits.items()
        if wait and wait >= general.socket_timeout
    ]
    found += [_reserved(where, name) for where, name in names.items() if name == general.prefix]
    general = replace(general, queues=MappingProxyType(own))
    for where, name in names.items():
        if general.whole(name) != name:
            found.append(_taken(where, name, general.whole(name)))
    return general, found


def _read_dict(
    where: str, raw: object, known: Iterable[str], found: list[Problem]
) -> dict[str, Any]:
    """Parse one dict of settings; what is wrong with it goes to ``found`` and is left out."""
    if not isinstance(raw, Mapping):
        sentence = f"{where} is {reprlib.repr(raw)}. Give a dict, for instance {{'LEASE': 60}}."
        found.append(Problem("value", where, sentence))
        return {}
    values = {}
    for name, value in raw.items():
        setting = f"{where}[{name!r}]"
        if name not in known:
            found.append(_unknown(setting, name, known))
            continue
        try:
            values[name.lower()] = PARSERS[name](value)
        except InvalidOption as error:
            sentence = f"{setting} is {reprlib.repr(value)}. {error}"
            found.append(Problem("value", setting, sentence))
    return values


def _unknown(setting: str, name: object, known: Iterable[str]) -> Problem:
    if name in NAMES:
        way_out = f"{name} holds for all queues: move it to EMQ itself."
    elif name in QUEUE_NAMES:
        way_out = f"{name} holds for single queues: move it to their entries in QUEUES."
    else:
        nearest = difflib.get_close_matches(str(name).upper(), known, n=1, cutoff=0)
        way_out = f"The nearest known name is {nearest[0]!r}."
    sentence = f"{setting} is not a setting. {way_out} Known here are {', '.join(known)}."
    return Problem("unknown", setting, sentence)


def _reserved(where: str, name: str) -> Problem:
    sentence = (
        f"{where} and EMQ['PREFIX'] both name {name!r}. The prefix names the keys of the whole "
        "deployment, so no queue can have that name: change one of the two."
    )
    return Problem("contradiction", where, sentence)


def _too_long(where: str, wait: float, timeout: float) -> Problem:
    setting = f"{where}['WAIT_TIMEOUT']"
    sentence = (
        f"{setting} is {wait:g} s, and EMQ['SOCKET_TIMEOUT'] is {timeout:g} s: the connection "
        "would give up before the server answers. Make the first shorter, or the second longer."
    )
    return Problem("contradiction", setting, sentence)


def _taken(where: str, name: str, queue: str) -> Problem:
    return Problem("contradiction", where, f"{where} names {name!r}. {taken(name, queue)}")


def taken(name: str, queue: str) -> str:
    """What is wrong with a queue that is called like a partition of another one."""
    return (
        f"EMQ['QUEUES'][{queue!r}]['PARTITIONS'] spreads {queue!r} over queues of such names, so "
        f"the jobs of {name!r} would be among its own: rename one of the two. What holds for all "
        f"partitions is set in the entry of {queue!r}."
    )


def _long_name(where: str, name: str) -> Problem:
    sentence = (
        f"{where}: the names of the partitions would have more than {NAME_MAX} characters. Use a "
        f"shorter name than {name!r}."
    )
    return Problem("value", where, sentence)


# -- parsers: value in, value out, or InvalidOption with the way out --------------------------


def _number(low: float, high: float, unit: str, *, whole: bool = False) -> Callable[[object], Any]:
    types = int if whole else (int, float)

    def parse(value: object) -> Any:
        # True is an int to Python, but nobody means 1 by it. NaN fails the comparison.
        if isinstance(value, bool) or not isinstance(value, types) or not low <= value <= high:
            number = "a whole number" if whole else "a number"
            raise InvalidOption(f"Give {number} of {unit} from {low} to {high}.")
        return value

    return parse


def _wait(value: object) -> Any:
    return None if value is None else _number(0.01, 60, "seconds")(value)


def _limit(value: object) -> Any:
    return None if value is None else _number(0.01, 365 * DAY, "seconds")(value)


def _alias(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidOption("Give the name of an alias in CACHES.")
    return value


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not PREFIX.match(value):
        raise InvalidOption("Give 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    return value


def _queue_name(value: Any) -> str:
    # Whether it is the reserved word depends on PREFIX, which `read` looks at.
    return check_queue(value, prefix="")


def _trail(value: object) -> str:
    if value not in ("off", "notable", "all"):
        raise InvalidOption("Give 'off', 'notable' or 'all'.")
    return str(value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) and name for name in value
    ):
        raise InvalidOption("Give a list of names of arguments, for instance ['password'].")
    return tuple(value)


def _paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(path, str) and "." in path for path in value
    ):
        raise InvalidOption("Give a list of dotted paths, for instance ['shop.jobs.timing'].")
    return tuple(value)


def _signing(value: object) -> bool | str:
    if value is not True and value is not False and value != "sign":
        raise InvalidOption("Give True, False, or 'sign' to sign without demanding it yet.")
    return value if isinstance(value, bool) else "sign"


def _database(value: object) -> bool | str:
    if isinstance(value, bool) or (isinstance(value, str) and value in django_settings.DATABASES):
        return value
    known = ", ".join(map(repr, django_settings.DATABASES))
    raise InvalidOption(f"Give True, False, or an alias in DATABASES: {known}.")


def _queues(value: object) -> Mapping[Any, object]:
    if not isinstance(value, Mapping):
        raise InvalidOption("Give a dict of dicts, for instance {'mail': {'LEASE': 60}}.")
    return value


PARSERS: dict[str, Callable[[Any], Any]] = {
    "CACHE_ALIAS": _alias,
    "PREFIX": _prefix,
    "DEFAULT_QUEUE": _queue_name,
    "LEASE": _number(1, DAY, "seconds"),
    "MAX_ATTEMPTS": _number(1, 1000, "failures", whole=True),
    "MAX_STALLS": _number(1, 1000, "lost leases", whole=True),
    "BACKOFF": resolve,
    # The server itself takes no string longer than 512 MiB.
    "MAX_PAYLOAD": _number(1, 512 * 1024 * 1024, "bytes", whole=True),
    "DEAD_MAX": _number(1, 10_000_000, "jobs", whole=True),
    "DEAD_TTL": _number(1, 3650 * DAY, "seconds"),
    "EFFECT_TTL": _number(1, 36500 * DAY, "seconds"),
    "DONE_MAX": _number(1, 10_000_000, "jobs", whole=True),
    "LOG_MAX": _number(1, 1000, "lines", whole=True),
    "SOCKET_TIMEOUT": _number(0.1, 3600, "seconds"),
    "ASYNC_CONCURRENCY": _number(1, 10_000, "jobs", whole=True),
    "TRAIL": _trail,
    "REDACT": _names,
    "SIGN_PAYLOADS": _signing,
    "WAIT_REPLICAS": _number(0, 100, "replicas", whole=True),
    "WAIT_TIMEOUT": _wait,
    "ON_COMMIT": _database,
    "OUTBOX": _database,
    "TIMEOUT": _limit,
    "KILL_AFTER": _limit,
    "MIDDLEWARE": _paths,
    "SCHEDULES": read_plans,
    "QUEUES": _queues,
    "PARTITIONS": _number(1, PARTITIONS_MAX, "partitions", whole=True),
}


def _reset(*, setting: str, **kwargs: object) -> None:
    if setting in ("EMQ", "CACHES"):
        settings.cache_clear()


setting_changed.connect(_reset, dispatch_uid="django_emq.conf")

"""Schedules as the server knows them: what they are, their next and their last times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo
from math import isfinite
from zoneinfo import ZoneInfo

from django.utils import timezone

from .. import rules
from ..connections import Client
from ..exceptions import InvalidOption
from ..jobs import decode
from ..keys import queue_keys
from ._read import ask, instant, number, text, texts
from .queues import queues as known_queues

SCHEDULES_MAX = 1000  # read of each queue


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule on the server.

    :ivar source: ``code``, ``database``, or '' for a plain `repeat_register`.
    :ivar times: its rule for people: ``0 6 * * * (Europe/Berlin)``.
    :ivar next_at: its next time, in UTC; None while it is switched off.
    :ivar coming: the next five times, in UTC; as many as can be computed here.
    :ivar zone: the time zone that its times are said in, beside UTC.
    :ivar last_at: when its last job was enqueued. :ivar last_planned: the time that it stood for.
    """

    name: str
    queue: str
    task: str
    source: str
    times: str
    misfire: str
    owner: str
    next_at: datetime | None
    coming: list[datetime]
    zone: tzinfo
    last_at: datetime | None
    last_planned: datetime | None
    last_job: str
    switched_by: str

    @property
    def enabled(self) -> bool:
        """Whether it is switched on."""
        return self.next_at is not None

    @property
    def said(self) -> list[str]:
        """The next times for people: as the clock of the zone shows them, and in UTC."""
        return [_said(one.astimezone(self.zone), one) for one in self.coming]


def schedules(client: Client, names: Iterable[str] | None = None) -> list[Schedule]:
    """The schedules of some queues, or of all, by name; two round trips, three for all."""
    queues = list(known_queues(client) if names is None else names)
    keys = [queue_keys(name, client.prefix) for name in queues]
    found = ask(
        client,
        lambda p: [p.zrange(k.repeat, 0, SCHEDULES_MAX - 1, withscores=True) for k in keys],
        loose=True,
    )
    places = [
        (k, name, float(score))
        for k, entries in zip(keys, found, strict=True)
        if isinstance(entries, list)
        for name, score in entries
    ]
    records = ask(
        client, lambda p: [p.hgetall(k.record(text(name))) for k, name, _ in places], loose=True
    )
    made = [
        _schedule(k.queue, text(name), score, texts(fields))
        for (k, name, score), fields in zip(places, records, strict=True)
    ]
    return sorted(made, key=lambda one: (one.name, one.queue))


def places(client: Client, name: str, source: str) -> list[str]:
    """The queues in which a source has a schedule of this name; two round trips."""
    queues = known_queues(client)
    keys = [queue_keys(queue, client.prefix).record(name) for queue in queues]
    found = ask(client, lambda p: [p.hget(key, "source") for key in keys], loose=True)
    return [q for q, value in zip(queues, found, strict=True) if value == source.encode()]


def _said(local: datetime, utc: datetime) -> str:
    text = f"{local:%Y-%m-%d %H:%M:%S %Z}"
    if local.tzname() == "UTC":
        return text
    day = "" if local.date() == utc.date() else f"{utc:%Y-%m-%d} "
    return f"{text} ({day}{utc:%H:%M:%S} UTC)"


def _schedule(queue: str, name: str, score: float, record: dict[str, str]) -> Schedule:
    try:
        rule = rules.read(record)
    except InvalidOption:  # a zone that this machine does not have, for instance
        rule = None
    try:
        task = decode(record.get("template", "").encode()).task
    except ValueError:
        task = ""
    planned = instant(score) if isfinite(score) else None
    coming = [planned] if planned else []
    if rule and planned:
        following = [rules.instant(ms) for ms in rules.coming(rule, int(score), 4)]
        coming += following
    zone: tzinfo = timezone.get_default_timezone()
    if isinstance(rule, rules.Cron):
        zone = ZoneInfo(rule.tz)
    last_at, last_planned = number(record.get("last_at")), number(record.get("last_planned"))
    return Schedule(
        name=name,
        queue=queue,
        task=task,
        source=record.get("source", ""),
        times=str(rule or record.get("cron") or record.get("every_ms") or "?"),
        misfire=record.get("misfire") or "fire_once",
        owner=record.get("owner", ""),
        next_at=planned,
        coming=coming,
        zone=zone,
        last_at=instant(last_at) if last_at else None,
        last_planned=instant(last_planned) if last_planned else None,
        last_job=record.get("last_job", ""),
        switched_by=record.get("switched_by", ""),
    )

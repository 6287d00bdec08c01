"""Schedules of the database: entered on the server when their row has been saved and committed."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from . import connections, inspector, schedules, scripts
from .admission import introduce
from .conf import settings
from .connections import Client
from .exceptions import EmqError, InvalidOption
from .log import get_logger
from .models import Schedule
from .plans import Plan, check_name
from .repeats import OFF, Entry
from .schedules import Placed
from .ticker import now_ms

logger = get_logger("ticker")

SOURCE = "database"


def plan_of(row: Schedule) -> Plan:
    """What a row says. Raises InvalidOption."""
    return Plan(
        task=row.task,
        args=row.args or [],
        kwargs=row.kwargs or {},
        cron=row.cron or None,
        every_ms=None if row.every is None else row.every * 1000,
        tz=row.tz or None,
        misfire=str(row.misfire),
        queue=row.queue or None,
        priority=row.priority,
        owner=row.owner,
    )


def check(row: Schedule) -> None:
    """Raise ValidationError for what cannot be kept, or has the name of a schedule of the code."""
    try:
        check_name(row.name)
        _placed(row)
    except (EmqError, TypeError) as error:
        raise ValidationError(str(error)) from error
    if row.name in schedules.declared():
        raise ValidationError({"name": f"The code has a schedule {row.name!r}. Use another name."})


def _placed(row: Schedule) -> Placed:
    return schedules.placed(row.name, plan_of(row), settings(), source=SOURCE)


def _entry(row: Schedule, one: Placed, now: int) -> Entry:
    record = {**one.record, "stamp": int(row.updated_at.timestamp() * 1_000_000)}
    # So that switching is a change, too.
    record["rule"] += "+" if row.enabled else "-"
    entry = one.entry(now)
    return Entry(row.name, entry.next_ms if row.enabled else OFF, record)


def enter(client: Client, row: Schedule) -> None:
    """Have the server know a row as it is; raises an EmqError."""
    one = _placed(row)
    for queue in inspector.places(client, row.name, SOURCE):
        if queue != one.queue:
            scripts.repeat_cancel(client, queue, row.name)
    introduce(client, [one.queue])
    scripts.declare(client, one.queue, SOURCE, [_entry(row, one, now_ms(client))])


def sync(client: Client) -> tuple[int, int]:
    """Enter all rows, and remove what no row stands for any more: how many of each.

    For after a restore, a load of fixtures, or a loss of the server's data. Raises an EmqError.
    """
    now = now_ms(client)
    found: dict[str, list[Entry]] = {queue: [] for queue in inspector.queues(client)}
    for row in Schedule.objects.order_by("name"):
        try:
            one = _placed(row)
        except InvalidOption as error:
            logger.error("schedule %s cannot be kept: %s", row.name, error)
            continue
        found.setdefault(one.queue, []).append(_entry(row, one, now))
    entered = removed = 0
    for queue, entries in found.items():
        if entries:
            introduce(client, [queue])
        done = scripts.declare(client, queue, SOURCE, entries, since=now)
        entered, removed = entered + done.entered, removed + done.removed
    return entered, removed


def switch(name: str, *, on: bool) -> None:
    """Have the row say so as well; where it is gone, nothing."""
    row = Schedule.objects.filter(name=name).first()
    if row is not None:
        row.enabled = on
        row.save()


def connect() -> None:
    """Follow what is saved and deleted. Called once, when the app is ready."""
    post_save.connect(_saved, sender=Schedule, dispatch_uid="django_emq.schedule")
    post_delete.connect(_deleted, sender=Schedule, dispatch_uid="django_emq.schedule")


def _saved(instance: Schedule, raw: bool, using: str, **_: Any) -> None:
    if not raw:  # a fixture is loaded: see `sync`
        transaction.on_commit(partial(_try, _enter_again, instance.pk, instance.name), using=using)


def _enter_again(client: Client, pk: int) -> None:
    row = Schedule.objects.filter(pk=pk).first()
    if row is not None:
        enter(client, row)


def _deleted(instance: Schedule, using: str, **_: Any) -> None:
    def cancel(client: Client, _: int) -> None:
        for queue in inspector.places(client, instance.name, SOURCE):
            scripts.repeat_cancel(client, queue, instance.name)

    transaction.on_commit(partial(_try, cancel, 0, instance.name), using=using)


def _try(work: Any, pk: int, name: str) -> None:
    """Do it after a commit, which cannot be taken back any more: an error is told, not raised."""
    try:
        work(connections.client(), pk)
    except EmqError as error:
        logger.error(
            "schedule %s: what was saved is not on the server yet: %s. Save it again, or call "
            "manage.py emq_schedules --sync",
            name,
            error,
        )

"""Effects that happen once, and writes that a late run cannot make: the token in user code.

A job may run twice, and a run that lost its lease may go on beside the next one. What both write
into Django's database is put right here, by that database: a unique key for what shall happen
once, and a comparison for what only the newest run may write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, IntegrityError, models, router, transaction
from django.utils import timezone

from .conf import settings
from .context import JobContext, current_job
from .exceptions import EffectError, InvalidOption, NoCurrentJob, PayloadTooLarge, StaleToken
from .jobs import sound
from .models import Effect

M = TypeVar("M", bound=models.Model)

NAME_MAX, KEY_MAX = 100, 255
PRUNE_BATCH = 1000  # rows in one DELETE


class Once:
    """What a block of `effect` is told: whether it is the first, and what the first one stored."""

    __slots__ = ("_asked", "_first", "_open", "_row", "_value")

    def __init__(self, row: Effect, first: bool) -> None:
        self._row = row
        self._first = first
        self._asked = False
        self._open = True
        self._value = json.loads(row.value) if row.value else None

    @property
    def first(self) -> bool:
        """Whether the effect is not recorded yet: only then do the work."""
        self._asked = True
        return self._first

    def __bool__(self) -> bool:
        return self.first

    @property
    def value(self) -> Any:
        """What the first block stored; None until it does. Setting it stores it: JSON only."""
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        """Store what later runs are given."""
        if not self._open or not self._first:
            raise EffectError(
                f"The value of {self._row} cannot be set: "
                + ("it was recorded by an earlier run." if self._open else "its block is over.")
            )
        text = json.dumps(sound(value, "once.value"), separators=(",", ":"))
        if len(text) > settings().max_payload:
            raise PayloadTooLarge(
                f"The value of {self._row} has {len(text)} bytes, MAX_PAYLOAD allows "
                f"{settings().max_payload}."
            )
        self._value, self._row.value = value, text

    def _close(self) -> bool:
        """End the block; answers whether there is a value to store. Raises EffectError."""
        self._open = False
        if not self._asked:
            raise EffectError(
                f"The block of {self._row} ran without looking at `first`, so it would run again "
                "in every run. Put the work under `if once.first:`. Nothing was written."
            )
        return self._first and bool(self._row.value)


@contextmanager
def effect(name: str, *, key: str | None = None, using: str = DEFAULT_DB_ALIAS) -> Iterator[Once]:
    """A transaction that knows whether its work has been done before, by any run of this job.

    >>> with emq.effect("charge") as once:
    ...     if once.first:
    ...         once.value = Charge.objects.create(order=order).pk

    The record and what the block writes to this database are one transaction: both are there, or
    neither. A second run that comes meanwhile waits at the record's unique key for the end of the
    first, and then finds it recorded, or takes over.

    :param name: of the effect, 1 to 100 characters; each effect of a job has its own.
    :param key: what the effect is for, 1 to 255 characters; the job's id when it is left out.
    :param using: alias of the database that the block writes to.

    Raises EffectError, and rolls back, when the block did not look at `first`, when one run enters
    an effect twice, and when the transaction is too old to see who was first; NoCurrentJob outside
    of a job without a `key`.
    """
    row = _row(name, key)
    with transaction.atomic(using=using):
        once = _enter(row, using, again=key is not None)
        yield once
        if once._close():
            row.save(using=using, update_fields=["value"])


def _row(name: str, key: str | None) -> Effect:
    _text("name", name, NAME_MAX)
    job: JobContext | None = None
    try:
        job = current_job()
    except NoCurrentJob:
        if key is None:
            raise NoCurrentJob(
                f"Effect {name!r} is entered outside of a job. Give it a key=, for instance the "
                "number of the order."
            ) from None
    if key is None and job is not None:
        key = job.id
    key = _text("key", key, KEY_MAX)
    digest = hashlib.sha256(json.dumps([key, name]).encode()).hexdigest()
    return Effect(digest=digest, key=key, name=name, token=0 if job is None else job.token)


def _text(what: str, value: Any, longest: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise InvalidOption(f"{what} is {value!r}. Give a text of 1 to {longest} characters.")
    return value


def _enter(row: Effect, using: str, *, again: bool) -> Once:
    """Record the effect, or find it recorded.

    :param again: whether one run may come a second time.
    """
    try:
        with transaction.atomic(using=using):  # a savepoint: what is around it survives a refusal
            row.save(using=using, force_insert=True)
        return Once(row, first=True)
    except IntegrityError as error:
        found = Effect.objects.using(using).filter(pk=row.pk).first()
        if found is None:
            raise EffectError(
                f"{row} was recorded by another run, and this transaction began too early to see "
                "that. Run it again; with READ COMMITTED this does not happen."
            ) from error
    if not again and found.token == row.token:
        raise EffectError(
            f"{row} is entered twice in one run, and the second block would be skipped. Give each "
            f"a name of its own, for instance effect(f'{row.name}:{{number}}')."
        )
    return Once(found, first=False)


def fenced_update(queryset: models.QuerySet[M], **values: Any) -> int:
    """`queryset.update(**values)`, unless a newer claim has written one of the rows.

    The model has a column `fence` (`FencedModel`). It is compared with `JobContext.fence` and set
    to it. Answers the number of rows written. Raises StaleToken, nothing written, when a row has
    a higher fence; NoCurrentJob outside of a job.
    """
    job = current_job()
    fence = job.fence
    chosen = getattr(queryset, "_db", None)  # by using(); `db` would ask the router for a reader
    using = chosen or router.db_for_write(queryset.model)
    queryset = queryset.using(using)
    with transaction.atomic(using=using):
        written = queryset.filter(fence__lte=fence).update(fence=fence, **values)
        if queryset.filter(fence__gt=fence).exists():
            raise StaleToken(
                f"{queryset.model._meta.label} was written by a newer claim than that of {job!r}, "
                f"whose fence is {fence}. Nothing was written."
            )
    return written


def idempotency_key(name: str) -> str:
    """A text that names one effect of this job, the same in every run of it.

    For services that take such a key with a request (``Idempotency-Key``) and carry it out once.
    At most 126 printable ASCII characters. Raises NoCurrentJob outside of a job.
    """
    if not _text("name", name, NAME_MAX).isascii() or not name.isprintable():
        raise InvalidOption(f"name is {name!r}. A key goes into a header: printable ASCII only.")
    return f"{current_job().id}:{name}"


def prune(*, seconds: float | None = None, using: str = DEFAULT_DB_ALIAS) -> int:
    """Delete up to 1,000 effects older than `seconds`, EFFECT_TTL by default; how many it were."""
    age = settings().effect_ttl if seconds is None else seconds
    old = Effect.objects.using(using).filter(recorded_at__lt=timezone.now() - timedelta(0, age))
    # MySQL has no LIMIT in a subquery.
    keys = list(old.order_by("recorded_at").values_list("pk", flat=True)[:PRUNE_BATCH])
    return Effect.objects.using(using).filter(pk__in=keys).delete()[0] if keys else 0

"""The outbox, records of effects, schedules of people, and what the admin's permissions hang on.

The queue itself lives on its server: these three are the only tables. A permission is a row of
Django's own; the pages of `django_emq.admin` check them.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class NoRows(models.Manager[Any]):
    """Answers no rows, so that dumpdata and the like do not look for a table."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().none()


class Queue(models.Model):
    """Queues and their jobs."""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (
            ("requeue_job", _("Can requeue jobs")),
            ("remove_job", _("Can remove jobs")),
            ("cancel_job", _("Can cancel jobs")),
            ("edit_job", _("Can edit the payload of jobs")),
            ("pause_queue", _("Can pause and resume queues")),
        )
        verbose_name = _("queue")
        verbose_name_plural = _("queues")

    def __str__(self) -> str:
        return str(self._meta.verbose_name)


class Morgue(models.Model):
    """The dead jobs of all queues, grouped."""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = _("morgue")
        verbose_name_plural = _("morgue")

    def __str__(self) -> str:
        return str(self._meta.verbose_name)


class Worker(models.Model):
    """The workers."""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("control_worker", _("Can quiet and stop workers")),)
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return str(self._meta.verbose_name)


class Server(models.Model):
    """The server that the queues live on."""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = _("server")
        verbose_name_plural = _("server")

    def __str__(self) -> str:
        return str(self._meta.verbose_name)


class Outbox(models.Model):
    """One call that enqueues jobs, stored in a transaction of its caller's.

    The row is deleted when the jobs are on the server. It is named by its first job: ids grow in
    the order of the calls, also those of several rows of one transaction.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    batch = models.UUIDField(editable=False)  # the rows that keep their order: a transaction's
    queue = models.CharField(max_length=128, verbose_name=_("queue"))
    count = models.PositiveIntegerField(verbose_name=_("jobs"))
    jobs = models.TextField()  # JSON, a list of `NewJob`; arguments may be secret
    stored_at = models.DateTimeField(db_default=Now(), verbose_name=_("stored"))

    class Meta:
        default_permissions = ("view",)
        verbose_name = _("outbox row")
        verbose_name_plural = _("outbox")
        indexes = [models.Index(fields=["batch", "id"], name="emq_outbox_batch")]

    def __str__(self) -> str:
        return f"{self.queue}: {self.count}"


class Effect(models.Model):
    """One effect that was recorded, in the transaction of what it stands for; see `effects`.

    The primary key is a digest, because a database may compare texts as if a were A: two ids of
    jobs that differ in that only would be one.
    """

    digest = models.CharField(max_length=64, primary_key=True)
    key = models.CharField(max_length=255)
    name = models.CharField(max_length=100)
    token = models.BigIntegerField(default=0)
    value = models.TextField(default="", blank=True)
    recorded_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name} of {self.key}"


class Schedule(models.Model):
    """A schedule that people keep in the admin; what is declared in code is not here.

    The server has what is ticked: a row is entered there when it has been saved and committed.
    """

    class Misfire(models.TextChoices):
        """What becomes of times that nobody could keep."""

        FIRE_ONCE = "fire_once", _("one job, for the newest")
        SKIP = "skip", _("none that is a minute late")
        FIRE_ALL = "fire_all", _("one job for each, at most 100")

    name = models.CharField(max_length=128, unique=True, verbose_name=_("name"))
    task = models.CharField(max_length=255, verbose_name=_("task"))
    args = models.JSONField(default=list, blank=True, verbose_name=_("positional arguments"))
    kwargs = models.JSONField(default=dict, blank=True, verbose_name=_("named arguments"))
    cron = models.CharField(
        max_length=100,
        blank=True,
        verbose_name=_("cron expression"),
        help_text=_("Minute, hour, day, month, weekday; or @daily and the like."),
    )
    every = models.PositiveIntegerField(
        null=True,
        blank=True,
        verbose_name=_("period"),
        help_text=_("Seconds, in the place of a cron expression."),
    )
    tz = models.CharField(
        max_length=64,
        blank=True,
        verbose_name=_("time zone"),
        help_text=_("Of the cron expression; the project's own where this is empty."),
    )
    misfire = models.CharField(
        max_length=10,
        choices=Misfire.choices,
        default=Misfire.FIRE_ONCE,
        verbose_name=_("after an outage"),
        help_text=_("What becomes of the times that nobody could keep."),
    )
    queue = models.CharField(
        max_length=128,
        blank=True,
        verbose_name=_("queue"),
        help_text=_("The task's own where this is empty."),
    )
    priority = models.SmallIntegerField(null=True, blank=True, verbose_name=_("priority"))
    enabled = models.BooleanField(default=True, verbose_name=_("enabled"))
    owner = models.CharField(
        max_length=150, blank=True, verbose_name=_("owner"), help_text=_("Who answers for it.")
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        permissions = (("operate_schedule", _("Can switch schedules and run them now")),)
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuse what the queue would refuse, in its words."""
        from .stored import check

        check(self)


class FencedModel(models.Model):
    """A row that remembers the highest fence that has written it; see `effects.fenced_update`."""

    fence = models.BigIntegerField(default=0, editable=False)

    class Meta:
        abstract = True

"""The outbox, what effects are recorded in, and what the admin and its permissions hang on.

The queue itself lives on its server: these two are the only tables. A permission is a row of
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


class FencedModel(models.Model):
    """A row that remembers the highest fence that has written it; see `effects.fenced_update`."""

    fence = models.BigIntegerField(default=0, editable=False)

    class Meta:
        abstract = True

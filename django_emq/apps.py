"""The Django application: finds the tasks of all installed apps and registers the checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class EmqConfig(AppConfig):
    name = "django_emq"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .checks import check
        from .doctor import check_eviction
        from .outbox_checks import check_aliases, check_tables

        register(check, "emq", Tags.caches)
        register(check_aliases, "emq")
        register(check_tables, Tags.database)
        register(check_eviction, "emq", deploy=True)
        autodiscover_modules("tasks")

"""The Django application: finds the tasks of all installed apps and registers the checks."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.conf import settings
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
        from .stored import connect

        connect()
        register(check, "emq", Tags.caches)
        register(check_aliases, "emq")
        register(check_tables, Tags.database)
        register(check_eviction, "emq", deploy=True)
        aliases = getattr(settings, "TASKS", None) or {}
        if any("django_emq." in str(one.get("BACKEND")) for one in aliases.values()):
            import_module("django_emq.backend")  # so that workers know the tasks of Django's API
        autodiscover_modules("tasks")

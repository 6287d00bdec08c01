"""The benchmark's app: no-op tasks, and what measures how they pass through the queue."""

from django.apps import AppConfig


class BenchConfig(AppConfig):
    name = "bench"
    default_auto_field = "django.db.models.BigAutoField"

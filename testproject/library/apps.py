"""The demo's app: what the jobs read out of Python's own standard library."""

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    name = "library"
    default_auto_field = "django.db.models.BigAutoField"

"""An app with tasks that leave marks."""

from importlib import import_module

from django.apps import AppConfig


class ProbeConfig(AppConfig):
    name = "tests.probe"
    label = "probe"

    def ready(self):
        """Register the tasks that are not in tasks.py."""
        for module in ("state", "verdicts"):
            import_module(f"tests.probe.{module}")

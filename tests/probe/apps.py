"""An app with tasks that leave marks."""

import os
import time
from importlib import import_module

from django.apps import AppConfig


class ProbeConfig(AppConfig):
    name = "tests.probe"
    label = "probe"

    def ready(self):
        """Register the tasks that are not in tasks.py, and obey what the environment says:

        PROBE_CLOCK: seconds by which Python's clock is wrong. BEAT_EVERY: between two beats.
        """
        for module in ("chained", "effects", "limits", "state", "telling", "verdicts"):
            import_module(f"tests.probe.{module}")
        if "PROBE_SIGNALS" in os.environ:
            import_module("tests.probe.around").connect()
        if "PROBE_CALL" in os.environ:
            getattr(import_module("tests.probe.around"), os.environ["PROBE_CALL"])()
        if wrong := float(os.environ.get("PROBE_CLOCK", "0")):
            true = time.time
            time.time = lambda: true() + wrong
        if every := os.environ.get("BEAT_EVERY"):
            # Before the worker's modules take the number over: no test waits for ten seconds.
            import_module("django_emq.worker.presence").BEAT_EVERY = float(every)

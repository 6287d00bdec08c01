"""The app of the chaos command: tasks whose effects are written down outside the server."""

import os
import time

from django.apps import AppConfig

CLOCK = "CHAOS_CLOCK"  # seconds by which the clock of a process is wrong


class ChaosConfig(AppConfig):
    name = "chaos"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have a process that is told so read a wrong clock, in all of its Python code.

        It is Python's clock that is wrong, not the kernel's: code in other languages, of which
        the queue's own path has none but the minting of ids, would read the true one.
        """
        if wrong := float(os.environ.get(CLOCK, "0")):
            true, true_ns = time.time, time.time_ns
            time.time = lambda: true() + wrong
            time.time_ns = lambda: true_ns() + int(wrong * 1e9)

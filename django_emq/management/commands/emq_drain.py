"""Delete all jobs of one set."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_emq import connections, inspector, whole
from django_emq.exceptions import EmqError

from ._base import EmqCommand, read_queues

HELP = """\
Delete all jobs of one set of a queue, with their rows: pending, schedule, dead or done.

  manage.py emq_drain mail dead               asks first
  manage.py emq_drain mail dead --no-input    for scripts

It works in small steps, so workers and producers go on meanwhile, and says every few seconds how
far it is. It can be stopped at any moment and started again. Jobs that a worker holds stay.
"""
SETS = ("pending", "schedule", "dead", "done")
PROGRESS_S = 2.0  # seconds between two words on how far it is


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("queue", help="whose jobs")
        add("set", choices=SETS, help="pending, schedule, dead or done")
        add("--no-input", action="store_true", help="do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        (queue,) = read_queues([options["queue"]])
        name = options["set"]
        try:
            count = inspector.counts(connections.client(), queue, (name,))[name]
            if not options["no_input"] and not self.agreed(queue, name, count):
                raise CommandError("Nothing was deleted.")
            self.drain(queue, name, count)
        except EmqError as error:
            raise CommandError(str(error)) from error

    def agreed(self, queue: str, name: str, count: int) -> bool:
        """Whether somebody types yes."""
        return input(f"Delete {count:,} jobs from {name!r} of {queue!r}? [yes/no] ") == "yes"

    def drain(self, queue: str, name: str, count: int) -> None:
        """Delete, step by step, and say how many."""
        done, told_at = 0, time.monotonic()
        try:
            while step := whole.drain(connections.client(), queue, name, by="emq_drain"):
                done += step
                if time.monotonic() - told_at >= PROGRESS_S:
                    told_at = time.monotonic()
                    self.stderr.write(f"{done:,} of {count:,} jobs deleted")
        except KeyboardInterrupt:
            raise CommandError(f"Stopped after {done:,} of {count:,} jobs.") from None
        self.say(f"{done:,} jobs deleted.")

"""Run the housekeeping as a process of its own."""

from __future__ import annotations

import math
import signal
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError
from django.db import Error

from django_emq import connections, inspector, relay, rights, scripts
from django_emq.conf import settings
from django_emq.connections import Client
from django_emq.exceptions import EmqError, ServerRefused
from django_emq.partitions import folded
from django_emq.reaper import BATCH, Reaper

from ._base import EmqCommand, all_parts, positive, read_queues, seconds

QUEUES_MAX = 100  # whose keys are asked about at the start
HELP = """\
Sweep queues: take back jobs whose worker is lost, make due jobs ready, tick schedules, trim the
morgue, and push what waits in the outbox, where one is used.

  manage.py emq_reaper                        all queues, every 2 seconds
  manage.py emq_reaper mail --interval 0.5    one queue, twice a second
  manage.py emq_reaper --once                 one pass, then exit (for cron)

Every worker does this too, unless it runs with --no-sweep. Any number may run at once.
"""


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("queues", nargs="*", metavar="queue", help="queues to sweep (all)")
        add("--interval", type=seconds, default=2.0, metavar="S", help="seconds between passes (2)")
        add(
            "--batch", type=positive, default=BATCH, metavar="N", help=f"jobs in one step ({BATCH})"
        )
        add("--once", action="store_true", help="one pass, then exit")

    def handle(self, *args: Any, **options: Any) -> None:
        self.log_to_console(options["verbosity"])
        if options["interval"] < 0.05:
            raise CommandError("--interval is too short. Use at least 0.05 seconds.")
        names = read_queues(options["queues"])
        client = connections.client()
        try:
            queues = self.allowed(client, names)
        except EmqError as error:
            raise CommandError(f"The reaper cannot start: {error}") from error
        reaper = Reaper(client, queues, interval=options["interval"], batch=options["batch"])
        if options["once"]:
            self.once(reaper)
            return
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda *_: reaper.stop())
        self.say(f"reaper ready: {', '.join(folded(queues)) or 'all queues'}")
        with relay.relaying(client):
            reaper.run()
        self.say(self.summary(reaper))

    def allowed(self, client: Client, names: tuple[str, ...]) -> tuple[str, ...]:
        """The queues to be swept, none for all; raises an EmqError when they may not be."""
        there: Sequence[str] = [part for name in names for part in settings().parts(name)]
        if not names:
            with suppress(ServerRefused):  # what is refused, the sentence below says
                there = inspector.queues(client)[:QUEUES_MAX]
        also = () if names else ("SMEMBERS",)
        rights.demand(client, there or (settings().default_queue,), rights.REAPER, also=also)
        queues = all_parts(client, names)
        scripts.register(client, queues)
        return queues

    def once(self, reaper: Reaper) -> None:
        """Sweep every queue until nothing is left to do."""
        try:
            reaper.declare()
            for queue in reaper.queues or tuple(inspector.queues(reaper.client)):
                reaper.sweep(queue, seconds=math.inf)
            relays = relay.Relay(reaper.client, relay.watched())
            for database in relays.databases:
                relays.drain(database)
        except (EmqError, Error) as error:
            raise CommandError(f"The sweep did not end: {error}") from error
        self.say(self.summary(reaper))

    def summary(self, reaper: Reaper) -> str:
        """What was done, in one line."""
        return (
            f"reaped {reaper.returned}, dead {reaper.dead}, promoted {reaper.promoted}, "
            f"ticked {reaper.ticker.fired}, trimmed {reaper.trimmed}"
        )

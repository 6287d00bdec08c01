"""Push what waits in the outbox, as a process of its own."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import Error

from django_emq import commit, connections, relay
from django_emq.exceptions import EmqError
from django_emq.outbox import BATCH
from django_emq.outbox_checks import has_table

from ._base import EmqCommand, positive, seconds

HELP = """\
Push the jobs that were stored in an outbox and have not reached the server yet.

  manage.py emq_relay                       the outboxes that settings and tasks use, every second
  manage.py emq_relay --database orders     that of one database
  manage.py emq_relay --once                until they are empty, then exit (for cron)

The process that stored a job pushes it after its commit; a relay is for those that died in between.
Every worker and emq_reaper are relays too, where settings or tasks use an outbox. Any number may
run at once.
"""


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--database",
            action="append",
            metavar="ALIAS",
            help="database whose outbox it is; may be given several times (all in use)",
        )
        add("--interval", type=seconds, default=1.0, metavar="S", help="seconds between passes (1)")
        add(
            "--batch", type=positive, default=BATCH, metavar="N", help=f"rows in one push ({BATCH})"
        )
        add("--once", action="store_true", help="until the outboxes are empty, then exit")

    def handle(self, *args: Any, **options: Any) -> None:
        self.log_to_console(options["verbosity"])
        if options["interval"] < 0.05:
            raise CommandError("--interval is too short. Use at least 0.05 seconds.")
        try:
            aliases = [commit.known(alias) for alias in dict.fromkeys(options["database"] or ())]
            aliases = aliases or list(relay.watched()) or [commit.home()]
            for alias in aliases:
                demand_table(alias)
            one = relay.Relay(
                connections.client(),
                tuple(aliases),
                interval=options["interval"],
                batch=options["batch"],
            )
            if options["once"]:
                for alias in aliases:
                    one.drain(alias)
                self.say(f"pushed {one.pushed} rows")
                return
        except EmqError as error:
            raise CommandError(str(error)) from error
        except Error as error:
            raise CommandError(f"The database cannot be read: {error}") from error
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda *_: one.stop())
        self.say(f"relay ready: {', '.join(aliases)}")
        one.run()
        self.say(f"pushed {one.pushed} rows")


def demand_table(alias: str) -> None:
    """Raise CommandError where the outbox's table is not in a database."""
    if not has_table(alias):
        raise CommandError(
            f"The database {alias!r} has no outbox: "
            f"run manage.py migrate django_emq --database {alias}."
        )

"""Delete records of effects that are past their time."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from django_emq import effects

from ._base import EmqCommand, seconds

HELP = """\
Delete the records of effects that are older than EFFECT_TTL, a thousand rows at a time.

  manage.py emq_prune                       for cron, once a day
  manage.py emq_prune --database reports    where effect(…, using="reports") is in use

It can be stopped at any moment, and any number may run at once.
"""


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--database", default=DEFAULT_DB_ALIAS, help="alias of the database (default: default)")
        add("--older-than", type=seconds, help="seconds, in place of EFFECT_TTL")

    def handle(self, *args: Any, **options: Any) -> None:
        done = 0
        while step := effects.prune(seconds=options["older_than"], using=options["database"]):
            done += step
        self.say(f"{done:,} records of effects deleted.")

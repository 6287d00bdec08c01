"""Show what is guaranteed for the jobs of a task."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_emq import registry
from django_emq.exceptions import EmqError
from django_emq.explain import Sheet, explain

from ._base import EmqCommand, plain

HELP = """\
Show what is guaranteed for the jobs of a task, and what to think about again.

  manage.py emq_explain                          all tasks, a line each
  manage.py emq_explain shop.tasks.send_receipt  the sheet of one
  manage.py emq_explain --json                   for scripts: one JSON object a task

Asks no server.
"""


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("task", nargs="?", help="its name (all are listed)")
        add("--json", action="store_true", help="one JSON object for each task, a line each")

    def handle(self, *args: Any, **options: Any) -> None:
        names = [options["task"]] if options["task"] else registry.names()
        try:
            sheets = [explain(registry.get(name)) for name in names]
        except EmqError as error:
            raise CommandError(str(error)) from error
        for sheet in sheets:
            if options["json"]:
                facts = {"task": sheet.task, **dict(sheet.facts), "warnings": sheet.warnings}
                self.say(json.dumps(facts))
            elif options["task"]:
                self.say(words(sheet))
            else:
                count = len(sheet.warnings)
                self.say(plain(sheet.task) + (f"  ({count} to think about)" if count else ""))
        if not sheets:
            self.say("No task is registered. They are found in tasks.py of each app.")


def words(sheet: Sheet) -> str:
    """The sheet as text."""
    width = max(len(heading) for heading, _ in sheet.facts) + 2
    lines = [sheet.task, "", *(f"{head:<{width}}{text}" for head, text in sheet.facts)]
    if sheet.warnings:
        lines += ["", "To think about again:", *(f"* {warning}" for warning in sheet.warnings)]
    return "\n".join(plain(line) for line in lines)

"""Show schedules, switch them, run them now."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_emq import connections, inspector, ticker
from django_emq.exceptions import EmqError
from django_emq.inspector import Schedule

from ._base import EmqCommand, plain

HELP = """\
Show the schedules that the server has: their next five times, in their zone and in UTC, and their
last run.

  manage.py emq_schedules                      all of them
  manage.py emq_schedules --json               for scripts: one JSON object
  manage.py emq_schedules --run-now digest     one job now; the next time stays
  manage.py emq_schedules --disable digest     no more jobs until --enable digest
  manage.py emq_schedules --sync               enters what the admin keeps, after a loss of the
                                               server's data, and removes what it has no more

Those of the code are entered by whatever ticks: emq_worker and emq_reaper.
"""


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--json", action="store_true", help="one JSON object")
        add("--queue", help="the queue, where two have a schedule of one name")
        what = parser.add_mutually_exclusive_group()
        add = what.add_argument
        add("--run-now", metavar="NAME", help="enqueue a job of this schedule")
        add("--enable", metavar="NAME", help="switch it on")
        add("--disable", metavar="NAME", help="switch it off")
        add("--sync", action="store_true", help="enter the schedules of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["sync"]:
                self.sync()
            elif name := options["run_now"]:
                self.run_now(name, options["queue"])
            elif name := options["enable"] or options["disable"]:
                self.switch(name, options["queue"], on=bool(options["enable"]))
            else:
                self.show(as_json=options["json"], queue=options["queue"])
        except EmqError as error:
            raise CommandError(str(error)) from error

    def read(self, queue: str | None) -> list[Schedule]:
        """All schedules, or those of a queue."""
        return inspector.schedules(connections.client(), [queue] if queue else None)

    def show(self, *, as_json: bool, queue: str | None) -> None:
        """Print them."""
        found = self.read(queue)
        if as_json:
            self.say(json.dumps({"schedules": [facts(one) for one in found]}))
            return
        for one in found:
            state = "" if one.enabled else f" (switched off by {plain(one.switched_by or '?')})"
            self.say(f"{plain(one.name)}{state}")
            source = one.source or "a program"
            self.say(f"  {plain(one.task)} on {plain(one.queue)}, {plain(one.times)}, by {source}")
            for text in one.said:
                self.say(f"  next  {text}")
            if one.last_at:
                self.say(f"  last  {one.last_at:%Y-%m-%d %H:%M:%S} UTC  {plain(one.last_job)}")
        if not found:
            self.say("There is no schedule. Those of the code are entered when a worker starts.")

    def one(self, name: str, queue: str | None) -> Schedule:
        """The schedule of a name; CommandError unless there is exactly one."""
        found = [one for one in self.read(queue) if one.name == name]
        if not found:
            known = ", ".join(plain(one.name) for one in self.read(queue)) or "none"
            raise CommandError(f"There is no schedule {plain(name)!r}. There are: {known}.")
        if len(found) > 1:
            where = ", ".join(one.queue for one in found)
            raise CommandError(f"Schedule {name!r} is in the queues {where}: name one by --queue.")
        return found[0]

    def run_now(self, name: str, queue: str | None) -> None:
        """Enqueue a job of it."""
        one = self.one(name, queue)
        job = ticker.run_now(connections.client(), one.queue, one.name)
        self.say(f"job {job.id} of {job.task} on {job.queue}")

    def switch(self, name: str, queue: str | None, *, on: bool) -> None:
        """Switch it on or off."""
        one = self.one(name, queue)
        if one.source == "database":
            from django_emq import stored

            stored.switch(one.name, on=on)
        ticker.switch(connections.client(), one.queue, one.name, on=on, by="emq_schedules")
        self.say(f"schedule {plain(one.name)} is {'on' if on else 'off'}")

    def sync(self) -> None:
        """Have the server know the rows of the database."""
        from django_emq import stored

        entered, removed = stored.sync(connections.client())
        self.say(f"{entered} entered or changed, {removed} removed")


def facts(one: Schedule) -> dict[str, Any]:
    """What a schedule is, for JSON; times in UTC."""
    return {
        "name": one.name,
        "queue": one.queue,
        "task": one.task,
        "source": one.source,
        "times": one.times,
        "zone": str(one.zone),
        "misfire": one.misfire,
        "owner": one.owner,
        "enabled": one.enabled,
        "next": [time.isoformat() for time in one.coming],
        "last_at": one.last_at and one.last_at.isoformat(),
        "last_planned": one.last_planned and one.last_planned.isoformat(),
        "last_job": one.last_job,
    }

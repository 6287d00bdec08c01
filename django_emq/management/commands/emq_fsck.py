"""Check the books of the queues, and mend them."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from django_emq import connections, inspector
from django_emq.conf import settings
from django_emq.exceptions import EmqError
from django_emq.inspector import FACTS, Finding

from ._base import EmqCommand, all_parts, plain, read_queues

HELP = """\
Check that each job is in exactly one set, that each row says where it is, and that every key
of the queues is sound. Workers may go on: a job in motion is never a finding.

  manage.py emq_fsck                  all queues
  manage.py emq_fsck mail             one queue
  manage.py emq_fsck --repair         mend what is found
  manage.py emq_fsck --json           for scripts: one JSON object a finding, and one at the end

Mending never loses a job: what can run goes back to pending, what cannot goes to the morgue
with a reason, and only an id without a row is dropped. Exit status 0, or 1 when something
wrong is left.
"""
PROGRESS_S = 5.0  # seconds between two words on how far it is


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("queues", nargs="*", metavar="queue", help="queues to check (all)")
        add("--repair", action="store_true", help="mend what is found")
        add("--json", action="store_true", help="one JSON object a line")

    def handle(self, *args: Any, **options: Any) -> None:
        names = read_queues(options["queues"])
        self.looked: dict[str, int] = {}
        self.told_at = time.monotonic()
        found = mended = 0
        try:
            client = connections.client()
            lease_ms = int(settings().lease * 1000)
            names = all_parts(client, names)
            for one in inspector.audit(client, names, lease_ms=lease_ms, progress=self.progress):
                done = False
                if options["repair"] and one.mend is not None:
                    one.mend(client)  # what has put itself right meanwhile is left alone
                    done = True
                found += 1
                mended += done
                self.say(as_json(one, done) if options["json"] else as_text(one, done))
        except EmqError as error:
            raise CommandError(f"The check did not end: {error}") from error
        self.sum_up(found, mended, as_json=options["json"])
        if found > mended:
            sys.exit(1)

    def progress(self, what: str, count: int) -> None:
        """Say on standard error, now and then, how far the check is."""
        self.looked[what] = count
        if time.monotonic() - self.told_at >= PROGRESS_S:
            self.told_at = time.monotonic()
            self.stderr.write(f"{what}: {count:,} looked at")

    def sum_up(self, found: int, mended: int, *, as_json: bool) -> None:
        """The last line."""
        keys = self.looked.pop("all keys", 0)
        jobs = sum(self.looked.values())
        if as_json:
            self.say(json.dumps({"entries": jobs, "keys": keys, "found": found, "mended": mended}))
        else:
            looked = f"{jobs:,} entries of sets and {keys:,} keys looked at"
            self.say(f"{looked}: {found:,} found wrong, {mended:,} mended.")


def as_text(one: Finding, mended: bool) -> str:
    """A finding for people, in one line."""
    end = f"mended: {one.remedy}" if mended else f"remedy: {one.remedy}"
    detail = f" ({plain(one.detail)})" if one.detail else ""
    return f"{one.queue} {one.kind} {plain(one.id, 200)}: {FACTS[one.kind]}{detail}; {end}"


def as_json(one: Finding, mended: bool) -> str:
    """A finding for scripts."""
    facts = {name: value for name, value in asdict(one).items() if name != "mend"}
    return json.dumps({**facts, "fact": FACTS[one.kind], "mended": mended})

"""Say why a job is not running."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from django_emq import connections, inspector
from django_emq.exceptions import EmqError, JobGone
from django_emq.inspector import Why

from ._base import EmqCommand, all_parts, plain, read_queues

HELP = """\
Say in words why a job is not running, and why a settlement of it was refused.

  manage.py emq_why JOB001abc…                 looks in all queues
  manage.py emq_why JOB001abc… --queue mail    also when the row is gone but the trail is not
  manage.py emq_why JOB001abc… --json          for scripts: one JSON object

Exit status 1 when no queue knows the job.
"""


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("id", help="the job's id")
        add("--queue", metavar="QUEUE", help="its queue (all are searched)")
        add("--json", action="store_true", help="one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        client = connections.client()
        try:
            names = read_queues([options["queue"]]) if options["queue"] else ()
            answer = self.find(client, options["id"], all_parts(client, names))
        except EmqError as error:
            raise CommandError(plain(str(error))) from error
        self.say(json.dumps(asdict(answer)) if options["json"] else words(answer))

    def find(self, client: Any, job_id: str, names: tuple[str, ...]) -> Why:
        """Of the queue that has the job. Raises JobGone when none has.

        :param names: of one queue, whose trail is looked at too; of no queue for all.
        """
        known = names or inspector.queues(client)
        found = inspector.locate(client, job_id, known)
        for queue in found or names[:-1]:
            with suppress(JobGone):
                return inspector.why(client, queue, job_id)
        if names:
            return inspector.why(client, names[-1], job_id)
        raise JobGone(
            f"None of the {len(known)} queues has a job {job_id!r}: it was completed, "
            "discarded or removed, or never existed. With --queue the queue's trail is looked "
            "at too."
        )


def words(answer: Why) -> str:
    """The answer as text."""
    lines = [f"Job {answer.id} of queue {answer.queue} is {answer.state}.", *answer.reasons]
    if answer.refusals:
        lines += ["", "Refused:", *(f"  {line}" for line in answer.refusals)]
    if answer.history:
        lines += ["", "What happened:", *(f"  {line}" for line in answer.history)]
    return "\n".join(map(plain, lines))

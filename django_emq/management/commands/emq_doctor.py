"""Say what is wrong with the server and the settings."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from typing import Any

from django.core.checks import ERROR, INFO, WARNING, CheckMessage

from django_emq import connections, doctor, inspector
from django_emq.exceptions import EmqError

from ._base import EmqCommand, plain

HELP = """\
Ask the server what may cost jobs: version, eviction, persistence, memory, clock, time-outs,
rights, who else uses the database. The system checks of the settings are part of it.

  manage.py emq_doctor                     as the user of a worker
  manage.py emq_doctor --role producer     whether this user may enqueue
  manage.py emq_doctor --json              for scripts: one JSON object

Exit status 0, or 1 when one of the findings is an error. Nothing is changed.
"""
SEVERITIES = {ERROR: "error", WARNING: "warning", INFO: "info"}


class Command(EmqCommand):
    help = HELP
    requires_system_checks = ()  # they are among the findings

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--role",
            choices=sorted(doctor.ROLES),
            default="worker",
            help="whose rights the user must have (worker)",
        )
        add("--json", action="store_true", help="one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = doctor.settings_findings()
        server = ""
        if not doctor.is_sick(findings):
            try:
                client = connections.client()
                facts = inspector.server(client)
                server = f"{facts.name or 'The server'}, database {facts.database}"
                findings = [*doctor.examine(client, facts, role=options["role"]), *findings]
            except EmqError as error:
                findings = [doctor.unreachable(error), *findings]
        if options["json"]:
            self.say(json.dumps({"server": server, "findings": [*map(as_dict, findings)]}))
        else:
            self.show(server, findings)
        if doctor.is_sick(findings):
            sys.exit(1)

    def show(self, server: str, findings: list[CheckMessage]) -> None:
        """Print each finding in two lines, and how many there are."""
        if server:
            self.say(plain(server))
        for one in findings:
            self.say(f"\n{severity(one)} {plain(str(one.id))}: {plain(str(one.msg))}")
            self.say(f"  {plain(str(one.hint))}")
        counted = Counter(map(severity, findings))
        told = ", ".join(f"{counted[name]} {name}" for name in SEVERITIES.values())
        self.say(f"\n{told}" if findings else "Nothing is wrong.")


def severity(one: CheckMessage) -> str:
    """The word for a level; what is worse than an error is one."""
    return next(word for level, word in SEVERITIES.items() if one.level >= level)


def as_dict(one: CheckMessage) -> dict[str, str]:
    """A finding for JSON."""
    return {
        "id": str(one.id),
        "severity": severity(one),
        "fact": str(one.msg),
        "fix": str(one.hint or ""),
    }

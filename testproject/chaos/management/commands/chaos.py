"""Run the queue under every fault that can be made, and reckon up."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from interrupts import interrupts
from library.show import make_console, say, table

from chaos.report import Report
from chaos.storm import Storm

HELP = """\
Producers, three workers and two reapers at work on a server of their own, and every few hundred
milliseconds a fault: processes killed and stopped, connections cut, delayed and half-closed,
replies lost, scripts flushed, the server killed or out of memory. One worker and one reaper have a
clock that is an hour wrong. At the end every figure is held against what it must be. Exit status 1
when one is wrong.
"""


class Command(BaseCommand):
    help = HELP
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--seconds", type=float, default=120, metavar="S", help="how long faults happen (120)")
        add("--seed", type=int, metavar="N", help="the same faults in the same order again")
        add("--json", type=Path, metavar="FILE", help="write the figures to FILE")

    def handle(self, *args: Any, **options: Any) -> None:
        console = make_console()
        folder = Path(tempfile.mkdtemp(prefix="emq-chaos-"))
        seed = secrets.randbelow(10**6) if options["seed"] is None else options["seed"]
        say(console, f"seed {seed}")
        report: Report | None = None
        stopped = False
        try:
            with interrupts():
                report = Storm(console, seconds=options["seconds"], seed=seed, folder=folder).run()
            if options["json"]:
                options["json"].write_text(json.dumps(report.as_dict(), indent=1) + "\n")
            console.print()
            console.print(table("what became of it", report.lines))
            console.print()
            for sentence in report.wrong:
                say(console, f"WRONG: {sentence}", "bold red")
        except KeyboardInterrupt:
            stopped = True
        finally:
            if stopped or (report is not None and report.ok):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                say(console, f"The ledger and the logs are in {folder}")
        if report is None:
            say(console, "chaos: stopped; all that it started has ended")
            sys.exit(130)
        say(console, report.summary(), "bold green" if report.ok else "bold red")
        if not report.ok:
            sys.exit(1)  # without another word: the summary stays the last line

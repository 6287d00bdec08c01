"""Run real work through the queue, kill a worker on the way, and reckon up."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from interrupts import interrupts

from django_emq.exceptions import EmqError
from library.demo import Demo
from library.measure import STANDARD_LIBRARY
from library.report import Report
from library.show import make_console, say, show


class Command(BaseCommand):
    help = (
        "One job for each Python file of the standard library (or of a folder). Two workers and a "
        "reaper run them; half-way one worker gets SIGKILL in the middle of a job. At the end "
        "every figure is held against what it must be. Exit status 1 when one is wrong."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", nargs="?", type=Path, default=STANDARD_LIBRARY)
        parser.add_argument("--limit", type=int, default=0, metavar="N", help="at most N files")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")

    def handle(self, *args: Any, **options: Any) -> None:
        console = make_console()
        logs = Path(tempfile.mkdtemp(prefix="emq-demo-"))
        root = options["folder"].resolve()
        report: Report | None = None
        stopped = False
        try:
            with interrupts():
                report = Demo(console, root, limit=options["limit"], logs=logs).run()
        except EmqError as error:
            raise CommandError(f"{error} `make demo` runs it on a server of its own.") from error
        except KeyboardInterrupt:
            stopped = True
        finally:
            if stopped or (report is not None and report.ok):
                shutil.rmtree(logs, ignore_errors=True)
            else:
                say(console, f"The logs of the workers are in {logs}")
        if report is None:
            say(console, "demo: stopped; all that it started has ended")
            sys.exit(130)
        if options["json"]:
            options["json"].write_text(json.dumps(report.as_dict(), indent=2) + "\n")
        show(console, report)
        if not report.ok:
            sys.exit(1)  # without another word: the summary stays the last line

"""Measure how fast the queue is."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from interrupts import interrupts
from rich.console import Console
from rich.progress import track

from bench.lab import Miscount
from bench.measures import KEYS, Measure, chosen
from bench.results import Results
from bench.sizes import QUICK, Sizes
from bench.tables import fill_page, number, screen

HELP = """\
Measure how fast the queue is, with real workers, real tasks, ordinary settings and servers of its
own. Each round measures everything once, each drain beside a run of the yardstick, so a machine
that is slow for a while is slow for both. No figure is a reason to fail; a job that did not run, or
ran twice, is.

  manage.py bench                                   everything, five rounds of about twelve minutes
  manage.py bench --only drain_1 drain_2 --reps 3   some of it
  manage.py bench --quick                           only whether it works
  manage.py bench --json FILE --plot FILE.svg       keep the figures, draw them
  manage.py bench --load FILE --plot FILE.svg       the same with figures that were kept
  manage.py bench --docs PAGE.md                    write kept figures into the tables of a page
"""


class Command(BaseCommand):
    help = HELP
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Keep the line breaks of the help."""
        return super().create_parser(
            prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--only", nargs="+", default=[], metavar="NAME", help="figures: " + " ".join(KEYS))
        add("--reps", type=int, metavar="N", help="rounds (5; 1 with --quick)")
        add("--quick", action="store_true", help="small sizes: only to see that it works")
        add("--json", type=Path, metavar="FILE", help="keep all raw figures in FILE")
        add("--plot", type=Path, metavar="FILE", help="draw the figures (needs matplotlib)")
        add("--load", type=Path, metavar="FILE", help="take the figures from FILE, measure nothing")
        add("--docs", type=Path, metavar="PAGE", help="fill the tables of PAGE, measure nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with interrupts():
                self.do(options)
        except KeyboardInterrupt:
            sys.exit(130)  # all that was started has ended

    def do(self, options: dict[str, Any]) -> None:
        """Do what the options ask for."""
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=140)
        if options["docs"]:
            options["docs"].write_text(fill_page(options["docs"]))
            return
        if options["load"]:
            results = Results.load(options["load"])
        else:
            results = self.measure(console, options)
        if options["json"]:
            results.save(options["json"])
        if options["plot"]:
            self.plot(results, options["plot"])
        console.print()
        console.print(screen(results))

    def measure(self, console: Console, options: dict[str, Any]) -> Results:
        """Measure in rounds, so that what is compared is measured within minutes."""
        quick = options["quick"]
        sizes = QUICK if quick else Sizes()
        rounds = options["reps"] or (1 if quick else 5)
        try:
            measures = chosen(options["only"])
        except KeyError as error:
            raise CommandError(f"There is no figure {error}. Use: {', '.join(KEYS)}.") from None
        results = Results.begin(sizes, quick=quick)
        work = [(number, measure) for number in range(rounds) for measure in measures]
        # No thread that draws: the measures have this process for themselves.
        for at, measure in track(
            work, "bench", console=console, auto_refresh=False, disable=not console.is_terminal
        ):
            if at == len(results.rounds):
                results.rounds.append({})
            results.rounds[at][measure.name] = self.one(console, measure, sizes, at)
        return results

    def one(self, console: Console, measure: Measure, sizes: Sizes, at: int) -> dict[str, float]:
        """Take one measure, and say what came of it."""
        try:
            figures = measure.run(sizes)
        except Miscount as error:
            raise CommandError(f"{measure.name}, round {at + 1}: {error}") from error
        said = ", ".join(f"{key} {number(value)}" for key, value in figures.items())
        console.print(f"round {at + 1}: {said}", soft_wrap=True)
        return figures

    def plot(self, results: Results, path: Path) -> None:
        """Draw, where the library for it is installed."""
        try:
            from bench.plot import plot
        except ImportError as error:
            raise CommandError(f"{error}. pip install 'django-emq[bench]' brings it.") from error
        plot(results, path)

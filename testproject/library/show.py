"""How the demo looks: a progress bar in a terminal, a line now and then elsewhere, two tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from io import TextIOWrapper
from time import monotonic
from typing import Self

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from .report import Line, Report

LINE_EVERY = 5.0  # seconds between two lines where there is no terminal
DRAW_EVERY = 0.1  # seconds between two pictures of the bar
REASONS_MAX = 30


def make_console() -> Console:
    """A console on standard output; what that cannot show is escaped."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=110)


class Bar:
    """Progress of one piece of work: call `show` as often as you like."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self.console = console
        self.title = title
        self.total = total
        self._next = 0.0 if console.is_terminal else monotonic() + LINE_EVERY
        self._task: TaskID | None = None
        # No thread that draws: the caller starts processes meanwhile.
        self._progress = Progress(
            TextColumn(title),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            auto_refresh=False,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task(self.title, total=self.total, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, note: str = "") -> None:
        """Say how far it is."""
        assert self._task is not None
        if done < self.total and monotonic() < self._next:
            return
        if self.console.is_terminal:
            self._next = monotonic() + DRAW_EVERY
            self._progress.update(self._task, completed=done, note=note, refresh=True)
        else:
            self._next = monotonic() + LINE_EVERY
            say(self.console, f"{self.title}: {done:,} of {self.total:,}  {note}".rstrip())


def say(console: Console, line: str, style: str = "") -> None:
    """Print a line above the bar, as it is."""
    console.print(Text(line, style), soft_wrap=True)


def show(console: Console, report: Report) -> None:
    """Print the tables, and the summary last."""
    console.print()
    if report.morgue:
        console.print(morgue(report))
        console.print()
    console.print(figures(report))
    console.print()
    for sentence in report.wrong:
        say(console, f"WRONG: {sentence}", "bold red")
    say(console, report.summary(), "bold green" if report.ok else "bold red")


def morgue(report: Report) -> Table:
    """What is in the morgue, and why."""
    table = Table(box=SIMPLE, show_edge=False)
    table.add_column("in the morgue", overflow="fold")
    table.add_column("reason", overflow="fold")
    for path, reason in sorted(report.morgue.items())[:REASONS_MAX]:
        same = report.expected.get(path) == reason
        table.add_row(Text(path), Text(reason, "" if same else "bold red"))
    if len(report.morgue) > REASONS_MAX:
        table.add_row(f"and {len(report.morgue) - REASONS_MAX:,} more", "")
    return table


def figures(report: Report) -> Table:
    """The figures of the demo."""
    return table("what became of the jobs", report.lines())


def table(title: str, lines: Iterable[Line]) -> Table:
    """Figures, each beside what it must be."""
    table = Table(box=SIMPLE, show_edge=False)
    table.add_column(title)
    table.add_column("figure", justify="right")
    table.add_column("must be", justify="right")
    table.add_column("")
    for line in lines:
        style = "" if line.ok else "bold red"
        table.add_row(Text(line.name, style), Text(line.figure, style), line.must, line.remark)
    return table

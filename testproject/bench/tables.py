"""The results as a table: on the screen, and in a page."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from rich.box import SIMPLE
from rich.table import Table

from .results import Line, Results

HEAD = ("figure", "what", "median", "range", "ratio", "to reach", "")
RIGHT = ("median", "range", "ratio")
BLOCK = re.compile(r"(<!-- bench: (\S+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def cells(line: Line) -> tuple[str, ...]:
    """A line of the table."""
    middle, low, high = (number(value) for value in line.range)
    ratio = f"{median(line.ratios):.2f}" if line.ratios else ""
    if len(line.ratios) > 1:
        ratio += f" ({min(line.ratios):.2f} to {max(line.ratios):.2f})"
    verdict = {True: "met", False: "missed", None: line.note}[line.met]
    figure = line.figure
    unit = f"{middle} {figure.unit}"
    return figure.key, figure.what, unit, f"{low} to {high}", ratio, line.target, verdict


def number(value: float) -> str:
    """Three digits that matter, or all before the point."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def screen(results: Results) -> Table:
    """The table for a terminal."""
    table = Table(box=SIMPLE, show_edge=False)
    for name in HEAD:
        table.add_column(name, justify="right" if name in RIGHT else "left")
    for line in results.lines():
        style = {True: "green", False: "bold red", None: ""}[line.met]
        table.add_row(*cells(line), style=style)
    return table


def markdown(results: Results) -> str:
    """The table and its circumstances for a page."""
    ruler = tuple("---:" if name in RIGHT else "---" for name in HEAD)
    rows = [HEAD, ruler, *map(cells, results.lines())]
    facts = ", ".join(f"{name} {value}" for name, value in results.facts.items() if name != "date")
    head = f"{results.facts['date']}, {len(results.rounds)} rounds. {facts}.\n\n"
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def fill_page(page: Path) -> str:
    """The text of a page with its marked blocks filled from the files that they name.

    <!-- bench: benchmarks.json -->
    <!-- /bench -->
    """

    def block(match: re.Match[str]) -> str:
        results = Results.load(page.parent / match[2])
        return f"{match[1]}\n{markdown(results)}\n{match[3]}"

    return BLOCK.sub(block, page.read_text())

"""The results as a picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from .results import Line, Results


def plot(results: Results, path: Path) -> None:
    """Draw all that is in jobs a second, its range as a black line, into a file (SVG or PNG)."""
    lines = [line for line in results.lines() if line.figure.unit == "jobs/s"]
    # The same figures give the same file, and its text stays text.
    with mpl.rc_context({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 0.9 + 0.28 * len(lines)), layout="constrained")
        axes = figure.add_subplot()
        for at, line in enumerate(lines):
            middle, low, high = line.range
            axes.barh(at, middle, color=_colour(line), height=0.7)
            axes.plot([low, high], [at, at], color="black", linewidth=1)
            axes.annotate(f" {middle:,.0f}", (high, at), va="center", fontsize=8)
        axes.set_yticks(range(len(lines)), [line.figure.key for line in lines])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
        facts = results.facts
        axes.set_xlabel(
            f"jobs a second, median and range; {facts['server']}, Python {facts['python']}, "
            f"{facts['cores']} cores, {facts['date']}"
        )
        date = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=date)


def _colour(line: Line) -> str:
    """Yardsticks are grey."""
    return "#999999" if line.figure.key in ("ceiling", "enqueue_floor") else "#2f6f8f"

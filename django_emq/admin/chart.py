"""The throughput of an hour as shapes for an SVG: geometry only, the template draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..inspector import Minute

WIDTH, HEIGHT = 600, 100


@dataclass(frozen=True)
class Bar:
    """One minute: finished jobs from the ground up, failed ones on top of each other in front."""

    minute: Minute
    x: float
    y: float
    height: float
    failed_y: float
    failed_height: float


@dataclass(frozen=True)
class Chart:
    """An hour, one bar a minute, and a line for what was enqueued."""

    bars: list[Bar] = field(default_factory=list)
    line: str = ""  # points of a polyline
    bar_width: float = 0.0
    top: int = 0  # jobs a minute at the upper edge
    enqueued: int = 0  # in the whole hour, like those below
    finished: int = 0
    failed: int = 0
    width: int = WIDTH
    height: int = HEIGHT


def chart(minutes: Sequence[Minute]) -> Chart:
    """Draw the minutes, oldest first."""
    highest = max((max(m.enqueued, m.finished, m.failed) for m in minutes), default=0)
    top = _round_up(highest)
    step = WIDTH / max(len(minutes), 1)

    def tall(count: int) -> float:
        return round(HEIGHT * count / top, 2)

    bars, points = [], []
    for at, minute in enumerate(minutes):
        height, failed = tall(minute.finished), tall(minute.failed)
        x = round(at * step, 2)
        bars.append(Bar(minute, x, HEIGHT - height, height, HEIGHT - failed, failed))
        points.append(f"{x + step / 2:.2f},{HEIGHT - tall(minute.enqueued):.2f}")
    return Chart(
        bars=bars,
        # The minute that is running would draw the line down to the ground.
        line=" ".join(points[:-1]),
        bar_width=round(step - 1.5, 2),
        top=top,
        enqueued=sum(minute.enqueued for minute in minutes),
        finished=sum(minute.finished for minute in minutes),
        failed=sum(minute.failed for minute in minutes),
    )


def _round_up(highest: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …: an axis that people can read."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if highest <= factor * step:
                return factor * step
        step *= 10

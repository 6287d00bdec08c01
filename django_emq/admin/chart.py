"""The throughput of an hour as shapes for an SVG: geometry only, the template draws it.

Coordinates are text and bars are one path each kind: an hour has 60 minutes, and a template that
formats three rectangles of each takes longer than everything else on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.utils.dateformat import format as written
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

from ..inspector import Minute

WIDTH, HEIGHT = 600, 100
GAP = 1.5  # between two bars


@dataclass(frozen=True)
class Zone:
    """The strip of one minute, which tells its figures to a pointer that rests on it."""

    x: str
    title: str


@dataclass(frozen=True)
class Chart:
    """An hour, one bar a minute, and a line for what was enqueued."""

    finished_path: str = ""  # bars from the ground up
    failed_path: str = ""  # those in front of them
    line: str = ""  # points of a polyline
    zones: list[Zone] = field(default_factory=list)
    bar_width: str = ""
    top: int = 0  # jobs a minute at the upper edge
    enqueued: int = 0  # in the whole hour, like those below
    finished: int = 0
    failed: int = 0
    width: int = WIDTH
    height: int = HEIGHT


def chart(minutes: Sequence[Minute]) -> Chart:
    """Draw the minutes, oldest first."""
    top = _round_up(max((max(m.enqueued, m.finished, m.failed) for m in minutes), default=0))
    step = WIDTH / max(len(minutes), 1)
    at = [number * step for number in range(len(minutes))]

    def bars(counts: Sequence[int]) -> str:
        tall = [HEIGHT * count / top for count in counts]
        return "".join(
            f"M{x:.2f},{HEIGHT}v{-height:.2f}h{step - GAP:.2f}v{height:.2f}z"
            for x, height in zip(at, tall, strict=True)
            if height
        )

    points = [
        f"{x + step / 2:.2f},{HEIGHT - HEIGHT * minute.enqueued / top:.2f}"
        for x, minute in zip(at, minutes, strict=True)
    ]
    return Chart(
        finished_path=bars([minute.finished for minute in minutes]),
        failed_path=bars([minute.failed for minute in minutes]),
        # The minute that is running would draw the line down to the ground.
        line=" ".join(points[:-1]),
        zones=_zones(at, minutes),
        bar_width=f"{step - GAP:.2f}",
        top=top,
        enqueued=sum(minute.enqueued for minute in minutes),
        finished=sum(minute.finished for minute in minutes),
        failed=sum(minute.failed for minute in minutes),
    )


def _zones(at: Sequence[float], minutes: Sequence[Minute]) -> list[Zone]:
    title = _("%(time)s: %(enqueued)d enqueued, %(finished)d finished, %(failed)d failed")
    zone = get_current_timezone()
    return [
        Zone(
            f"{x:.2f}",
            title
            % {
                "time": written(minute.at.astimezone(zone), "H:i"),
                "enqueued": minute.enqueued,
                "finished": minute.finished,
                "failed": minute.failed,
            },
        )
        for x, minute in zip(at, minutes, strict=True)
    ]


def _round_up(highest: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …: an axis that people can read."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if highest <= factor * step:
                return factor * step
        step *= 10

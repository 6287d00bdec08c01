"""The raw figures of a run, what they come to, and the file that keeps them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from django_emq import __version__

from .drains import Figures
from .lab import fresh_server
from .measures import FIGURES, Figure
from .sizes import Sizes

FULL = 0.9  # of its one core: a server that is so busy has no room for another worker


@dataclass(frozen=True)
class Line:
    """A figure with all that was measured of it; `ratios` to what its bound is a multiple of."""

    figure: Figure
    values: list[float]
    ratios: list[float]
    target: str
    met: bool | None  # None where nothing is to be reached, or the sizes are not the real ones
    note: str = ""  # why there is nothing to be reached

    @property
    def range(self) -> tuple[float, float, float]:
        """Median, lowest, highest."""
        return median(self.values), min(self.values), max(self.values)


@dataclass
class Results:
    """What was measured: the figures of each measure in each round."""

    facts: dict[str, str]
    sizes: dict[str, float]
    quick: bool
    rounds: list[dict[str, Figures]] = field(default_factory=list)  # by name of the measure

    @classmethod
    def begin(cls, sizes: Sizes, *, quick: bool) -> Results:
        """Nothing measured yet."""
        return cls(facts(), asdict(sizes), quick)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` has written."""
        body = json.loads(path.read_text())
        return cls(body["facts"], body["sizes"], body["quick"], body["rounds"])

    def save(self, path: Path) -> None:
        """Write the raw figures, and what they come to."""
        body = asdict(self)
        body["figures"] = {line.figure.key: _as_dict(line) for line in self.lines()}
        path.write_text(json.dumps(body, indent=1) + "\n")

    def lines(self) -> Iterator[Line]:
        """What was measured, in the order of the table."""
        for figure in FIGURES:
            values, ratios = [], []
            for measures in self.rounds:
                for figures in measures.values():
                    if figure.key in figures:
                        values.append(figures[figure.key])
                        other = _other(figure.of, figures, measures)
                        if other:
                            ratios.append(figures[figure.key] / other)
            if values:
                yield self._line(figure, values, ratios)

    def _line(self, figure: Figure, values: list[float], ratios: list[float]) -> Line:
        most = figure.at_most
        if figure.redis_at_most and not self.facts["server"].startswith("valkey"):
            most = figure.redis_at_most
        judged = ratios if figure.of else values
        met: bool | None = None
        target = ""
        if figure.at_least is not None:
            target = f"≥ {figure.at_least:g} times {figure.of}"
            met = bool(judged) and median(judged) >= figure.at_least
        elif most is not None:
            target = f"≤ {most:g}"
            met = median(judged) <= most
        met = None if self.quick or not judged else met
        note = ""
        if met is False and figure.room and (busy := self.busy(figure.of)) >= FULL:
            met, note = None, f"server full ({busy:.0%})"
        return Line(figure, values, ratios, target, met, note)

    def busy(self, key: str) -> float:
        """The share of its core that the server used in a drain, the median of all rounds."""
        shares = [
            figures[key] * figures[f"{key}_server_us"] / 1e6
            for measures in self.rounds
            for figures in measures.values()
            if f"{key}_server_us" in figures
        ]
        return min(median(shares), 1.0) if shares else 0.0


def _other(key: str, figures: Figures, measures: dict[str, Figures]) -> float | None:
    """The figure that another one is held against: of the same measure, or the same round."""
    if key in figures:
        return figures[key]
    return next((found[key] for found in measures.values() if key in found), None)


def _as_dict(line: Line) -> dict[str, Any]:
    middle, low, high = line.range
    return {
        "median": middle,
        "low": low,
        "high": high,
        "values": line.values,
        "of": line.figure.of,
        "ratios": line.ratios,
        "target": line.target,
        "met": line.met,
        "note": line.note,
    }


def facts() -> dict[str, str]:
    """What the figures depend on."""
    with fresh_server() as server:
        info: dict[str, Any] = server.client().info("server")
    name = info.get("server_name", "redis")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "django-emq": __version__,
        "python": platform.python_version(),
        "django": version("django"),
        "django-redis": version("django-redis"),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
        "server": f"{name} {info[f'{name}_version']}",
        "system": platform.system(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "?")

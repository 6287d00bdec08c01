"""Schedules in the model: their verbs, and ticks. `declare` has tests of its own."""

from __future__ import annotations

from typing import Any

from django_emq.repeats import OFF, Tick
from tests.model.base import Base
from tests.model.look import Ms

DAY_MS = 86_400_000  # as far as a sweep looks ahead


class Repeating(Base):
    """Names, each with its next time and its record."""

    def __init__(self) -> None:
        super().__init__()
        self.repeats: dict[str, tuple[Ms, dict[str, Any]]] = {}

    def pass_ms(self, ms: int) -> None:
        super().pass_ms(ms)
        for name, (at, record) in self.repeats.items():
            if "last_at" in record:
                record["last_at"] = record["last_at"].plus(-ms)
            self.repeats[name] = (at.plus(-ms), record)

    def repeat_register(self, name: str, *, every_ms: int, template: str, first_ms: int) -> bool:
        if name in self.repeats:
            return False
        record = {"every_ms": every_ms, "template": template}
        self.repeats[name] = (Ms(first_ms, first_ms), record)
        return True

    def repeat_cancel(self, name: str) -> bool:
        return self.repeats.pop(name, None) is not None

    def repeat_advance(
        self, name: str, next_ms: float, *, was: int | None = None, by: str = ""
    ) -> bool:
        if name not in self.repeats or was not in (None, self.repeats[name][0].low):
            return False
        record = self.repeats[name][1]
        if by:
            record["switched_by"] = by
            self.note("switched_off" if next_ms == OFF else "switched_on")
        self.repeats[name] = (Ms(next_ms, next_ms), record)
        return True

    def repeat_due(self, *, batch: int = 100) -> list[tuple[str, float]]:
        """Which are due; of the server's answer, names and times."""
        due = [(at.low, name) for name, (at, _) in self.repeats.items() if self.due(at)]
        return [(name, at) for at, name in sorted(due)[:batch]]

    def refuses(self, tick: Tick | None) -> bool:
        """Whether a job is no tick that may be made now."""
        if tick is None:
            return False
        if tick.name not in self.repeats or tick.rule:
            return True
        at = self.repeats[tick.name][0]
        return tick.was is not None and (tick.was != at.low or not self.due(at))

    def ticked(self, tick: Tick | None, admitted: list[str]) -> None:
        """The tick was made."""
        if tick is None:
            return
        at, record = self.repeats[tick.name]
        record |= {"last_planned": tick.planned, "last_at": self.now}
        if admitted:
            record["last_job"] = admitted[0]
        self.repeats[tick.name] = (at if tick.was is None else Ms(*[tick.next_ms] * 2), record)

    def until_tick(self) -> Any:
        """The ms until the next time of a schedule, for sweepers; -1 for none."""
        first = min((at for at, _ in self.repeats.values() if at.low < OFF), default=None)
        if first is None:
            return -1
        low, high = first.low - self.now.high, first.high - self.now.low
        return Ms(*(min(max(ms, 0), DAY_MS) for ms in (low, high)))

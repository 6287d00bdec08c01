"""What a run has shown, held against what must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from library.report import Line, some

from .ledger import FINAL, SETTLED, Ledger, Mark

MEMORY_MAX = 1 << 18  # bytes by which the server may have grown, once the queue is empty
KEYS_LEFT = {"sent", "claims", "{emq}"}  # callers and their last calls; for minutes, then gone


class Rest(NamedTuple):
    """What is on the server when all is done: `books.snapshot`, and the lifetime counters."""

    state: dict[str, Any]
    totals: dict[str, int]

    @property
    def waiting(self) -> int:
        """Jobs that are not done."""
        return sum(len(self.state[name]) for name in ("pending", "active", "schedule"))

    def fields(self, job: str) -> dict[bytes, bytes]:
        """The row of a job."""
        found: dict[bytes, bytes] = self.state["rows"].get(job, {})
        return found


@dataclass(frozen=True)
class Report:
    """All figures of a run."""

    seed: int
    seconds: float
    faults: dict[str, int]
    started: int  # processes
    early: int  # processes that found no server at their start
    deserters: list[str]  # logs of those that ended by themselves later
    admitted: dict[str, float | None]  # jobs, with the result that is to be kept
    said: dict[str, int]  # what the producers were told
    ledger: Ledger
    rest: Rest
    checks: int  # of the books, while all went on
    unbalanced: list[str]
    memory_before: int
    memory_after: int
    keys_left: list[str]

    # -- what must be empty -------------------------------------------------------------------

    @cached_property
    def ran(self) -> set[str]:
        """Jobs of which a run began."""
        return {mark.job for mark in self.ledger.effects()}

    @cached_property
    def lost(self) -> list[str]:
        """Admitted jobs that never ran and are not in the morgue with a reason."""
        dead = self.rest.state["dead"]
        told = {job for job in dead if self.rest.fields(job).get(b"last_error")}
        return sorted(self.admitted.keys() - self.ran - told)

    @cached_property
    def without_reason(self) -> list[str]:
        """Jobs in the morgue that do not say why."""
        dead = self.rest.state["dead"]
        return sorted(job for job in dead if not self.rest.fields(job).get(b"last_error"))

    @cached_property
    def run_twice(self) -> list[str]:
        """Jobs of which two runs began under one token."""
        return _repeated(self.ledger.effects())

    @cached_property
    def claimed_twice(self) -> list[str]:
        """Jobs whose token did not rise from one claim to the next."""
        newest: dict[str, int] = {}
        wrong = set()
        for mark in self.ledger.trail("claimed"):
            if mark.token <= newest.get(mark.job, 0):
                wrong.add(mark.job)
            newest[mark.job] = mark.token
        return sorted(wrong)

    @cached_property
    def settled_twice(self) -> list[str]:
        """Jobs of which one token was accepted twice, or that ended twice."""
        ended = Counter(mark.job for mark in self.ledger.trail(*FINAL))
        twice = {job for job, count in ended.items() if count > 1}
        return sorted(twice | set(_repeated(self.ledger.trail(*SETTLED))))

    @cached_property
    def by_strangers(self) -> list[str]:
        """Jobs that were settled by another token than that of their newest claim."""
        newest: dict[str, int] = {}
        wrong = set()
        for event, mark in self.ledger.entries():
            if event == "claimed":
                newest[mark.job] = mark.token
            elif event in SETTLED and mark.token < newest.get(mark.job, 0):
                wrong.add(mark.job)
        return sorted(wrong)

    @cached_property
    def risen(self) -> list[str]:
        """Jobs that were claimed after they had ended."""
        ends = {mark.job: mark.token for mark in self.ledger.trail(*FINAL)}
        claims = self.ledger.trail("claimed")
        return sorted({mark.job for mark in claims if mark.token > ends.get(mark.job, mark.token)})

    @cached_property
    def bad_results(self) -> list[str]:
        """Jobs whose result is not kept, or another one, and that are not dead."""
        wrong = []
        for job, result in self.admitted.items():
            if result is None or job in self.rest.state["dead"]:
                continue
            if self.rest.fields(job).get(b"result") != str(result).encode():
                wrong.append(job)
        return sorted(wrong)

    @property
    def unaccounted(self) -> int:
        """Jobs that came in, less those that went out by some door and those in the morgue."""
        totals, dead = self.rest.totals, len(self.rest.state["dead"])
        out = totals.get("completed", 0) + totals.get("discarded", 0)
        return totals.get("enqueued", 0) - out - dead - self.rest.waiting

    @property
    def surplus(self) -> int:
        """Admitted jobs that the server does not know of."""
        return max(len(self.admitted) - self.rest.totals.get("enqueued", 0), 0)

    @property
    def grown(self) -> int:
        """Bytes by which the server has grown."""
        return self.memory_after - self.memory_before

    @property
    def odd_keys(self) -> list[str]:
        """Kinds of keys that should not be there any more."""
        return sorted(set(self.keys_left) - KEYS_LEFT)

    # -- for people and programs --------------------------------------------------------------

    def _must_be_empty(self) -> Iterator[tuple[str, list[str]]]:
        yield "admitted jobs lost", self.lost
        yield "in the morgue without a reason", self.without_reason
        yield "run twice under one token", self.run_twice
        yield "claimed twice under one token", self.claimed_twice
        yield "settled twice", self.settled_twice
        yield "settled by an old token", self.by_strangers
        yield "claimed after their end", self.risen
        yield "kept results missing or wrong", self.bad_results
        yield "times the books did not balance", self.unbalanced
        yield "processes that ended by themselves", self.deserters
        yield "kinds of keys left behind", self.odd_keys

    @cached_property
    def lines(self) -> list[Line]:
        """The table."""
        totals, events = self.rest.totals, self.ledger.events()
        effects = sum(1 for _ in self.ledger.effects())
        names = ("completed", "failed", "snoozed", "discarded", "released", "reaped", "stale")
        unknown = self.said.get("OutcomeUnknown", 0)
        lines = [
            Line("faults", f"{sum(self.faults.values()):,}", remark=f"of {len(self.faults)} kinds"),
            Line("processes started", f"{self.started:,}", remark=f"{self.early} found no server"),
            Line("jobs admitted", f"{len(self.admitted):,}", "> 0", bool(self.admitted)),
            Line("calls with unknown outcome", f"{unknown:,}"),
            Line("calls refused", f"{self.said.get('ServerRefused', 0):,}"),
            Line("runs", f"{effects:,}", remark=f"of {len(self.ran):,} jobs"),
            *(Line(name, f"{totals.get(name, 0):,}") for name in names),
            Line("settlements in the trail", f"{sum(events[name] for name in SETTLED):,}"),
            Line("in the morgue", f"{len(self.rest.state['dead']):,}"),
            Line("checks of the books", f"{self.checks:,}"),
        ]
        for name, found in self._must_be_empty():
            lines.append(Line(name, f"{len(found):,}", "0", not found, some(found, 3)))
        for name, number in (
            ("waiting at the end", self.rest.waiting),
            ("jobs unaccounted for", self.unaccounted),
            ("admitted, unknown to the server", self.surplus),
        ):
            lines.append(Line(name, f"{number:,}", "0", not number))
        grown = Line(
            "memory at the end, KB",
            f"{self.memory_after / 1024:,.0f}",
            f"≤ {(self.memory_before + MEMORY_MAX) / 1024:,.0f}",
            self.grown <= MEMORY_MAX,
            f"{self.memory_before / 1024:,.0f} at the beginning",
        )
        return [*lines, grown]

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in sentences."""
        return [
            f"{line.name}: {line.figure}, must be {line.must}. {line.remark}".rstrip()
            for line in self.lines
            if not line.ok
        ]

    @property
    def ok(self) -> bool:
        """Whether every figure is what it must be."""
        return not self.wrong

    def summary(self) -> str:
        """One line that says it all."""
        return (
            f"chaos: {'' if self.ok else 'WRONG: '}{sum(self.faults.values()):,} faults, "
            f"{len(self.admitted):,} jobs admitted, {len(self.lost):,} lost, "
            f"{len(self.settled_twice):,} settled twice, {len(self.unbalanced):,} imbalances, "
            f"seed {self.seed}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The figures for programs."""
        return {
            "ok": self.ok,
            "wrong": self.wrong,
            "seed": self.seed,
            "seconds": self.seconds,
            "faults": self.faults,
            "said": self.said,
            "totals": self.rest.totals,
            "trail": dict(self.ledger.events()),
            "figures": {line.name: line.figure for line in self.lines},
        }


def _repeated(marks: Iterable[Mark]) -> list[str]:
    return sorted({mark.job for mark, count in Counter(marks).items() if count > 1})

"""What runs say of themselves goes along with the courier's trips: progress, and lines of logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any, NamedTuple

from .. import scripts
from ..batches import Batch
from ..conf import settings
from ..connections import Client
from ..context import JobContext
from ..exceptions import Cancelled, EmqError, Refused
from ..log import get_logger
from ..notes import Line, Step
from .outcome import Outcome

logger = get_logger("worker")

EVERY = 0.2  # seconds between two trips that take along what is said


class Said(NamedTuple):
    """What one run has said, on its way."""

    context: JobContext
    step: Step | None
    lines: list[Line]


class Notebook:
    """Knows which runs have something to say. Runners add to `noted`, the courier does the rest.

    :param lost: told of a run whose notes were refused, since it does not hold its job any more,
        and whether that is because the job was cancelled.
    :ivar at: when the next trip may take notes along, on the monotonic clock. Those of a run that
        has ended go before its settlement, with the same trip, at any time.
    """

    def __init__(self, lost: Callable[[JobContext, bool], object]) -> None:
        self.noted: deque[JobContext] = deque()
        self.at = 0.0
        self._lost = lost
        self._keep = settings().log_max
        self._complain_at = 0.0

    def due(self) -> bool:
        """Whether a trip should leave for what has been said."""
        return bool(self.noted) and monotonic() >= self.at

    def pack(self, batch: Batch, outcomes: Sequence[Outcome]) -> list[list[Said]]:
        """Put notes into a trip, before its settlements; answers who said them, by call."""
        groups: list[list[Said]] = []
        steps: dict[str, list[Said]] = {}
        lines: dict[str, list[Said]] = {}
        for said in self._take({outcome.context for outcome in outcomes}):
            if said.step is not None:
                one = Said(said.context, said.step, [])
                steps.setdefault(said.context.queue, []).append(one)
            for line in said.lines:
                one = Said(said.context, None, [line])
                lines.setdefault(said.context.queue, []).append(one)
        for queue, group in steps.items():
            scripts.progress(batch, queue, [self._step(said) for said in group])
            groups.append(group)
        for queue, group in lines.items():
            for start in range(0, len(group), scripts.BATCH_MAX):
                part = group[start : start + scripts.BATCH_MAX]
                scripts.log(batch, queue, [self._line(said) for said in part], keep=self._keep)
                groups.append(part)
        return groups

    def _take(self, ending: set[JobContext]) -> list[Said]:
        """Of those that end with this trip, and of all others where it is time for that."""
        now = monotonic()
        timely = now >= self.at
        if timely:
            self.at = now + EVERY
        taken: dict[JobContext, Said] = {}
        later, count = [], 0
        for _ in range(len(self.noted)):
            context = self.noted.popleft()
            if context in ending or (timely and count < scripts.BATCH_MAX):
                notes = context.notes
                if notes is not None and not context.lost and context not in taken:
                    taken[context] = Said(context, *notes.take())
                    count += 1 + len(taken[context].lines)
            else:
                later.append(context)
        self.noted.extendleft(reversed(later))
        return list(taken.values())

    def _step(self, said: Said) -> tuple[Any, int, str]:
        job, notes = said.context.claimed, said.context.notes
        assert notes is not None
        assert said.step is not None
        return job.id, job.token, notes.written(said.step, job.payload)

    def _line(self, said: Said) -> tuple[Any, int, str]:
        job, notes = said.context.claimed, said.context.notes
        assert notes is not None
        return job.id, job.token, notes.line(said.lines[0], job.payload)

    def told(
        self, groups: list[list[Said]], answers: list[Any], ended: Collection[JobContext] = ()
    ) -> None:
        """Take the verdicts: whose notes are refused has lost its job, unless it was settled since.

        A call that the server did not carry out is dropped: it must not hold up settlements.
        """
        for group, verdicts in zip(groups, answers, strict=True):
            if isinstance(verdicts, EmqError):
                if monotonic() >= self._complain_at:
                    logger.warning("what jobs say of themselves cannot be stored: %s", verdicts)
                    self._complain_at = monotonic() + 60
                continue
            for said, verdict in zip(group, verdicts, strict=True):
                if isinstance(verdict, Refused) and said.context not in ended:
                    self._lost(said.context, isinstance(verdict, Cancelled))

    def flush(self, client: Client) -> None:
        """Send all that has been said, at once: for the sandbox of tests, which has no trips."""
        self.at = 0.0
        batch = Batch(client)
        if groups := self.pack(batch, ()):
            self.told(groups, batch.send())

    def give_back(self, groups: list[list[Said]]) -> None:
        """Nothing is known of these: they are sent again. A line may stand twice in a log then."""
        for group in reversed(groups):
            for said in reversed(group):
                notes = said.context.notes
                if notes is not None:
                    notes.give_back(said.step, said.lines)
                    if not notes.waiting:
                        notes.waiting = True
                        self.noted.append(said.context)

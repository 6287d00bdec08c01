"""Schedules in a test: they tick as its clock is advanced, and not by themselves."""

from __future__ import annotations

from datetime import datetime

from .. import scripts
from ..admission import introduce, verb_of
from ..conf import settings
from ..connections import Client
from ..exceptions import InvalidOption
from ..repeats import FIELDS, Tick
from ..schedules import Placed, declared, placed
from ..ticker import PRODUCER, job_of, now_ms

TICKS_MAX = 1000  # of one advance


class Clock:
    """The time that it is for the schedules of one test.

    :ivar now: in ms since 1970; None until the first schedule was started.
    """

    def __init__(self) -> None:
        self.now: int | None = None
        self._next: dict[str, tuple[int, Placed]] = {}

    def start(self, client: Client, names: tuple[str, ...], at: datetime | None) -> None:
        """Enter schedules of the code, all where no name is given; nothing is fired."""
        known = declared()
        for name in names:
            if name not in known:
                said = ", ".join(known) or "none"
                raise InvalidOption(f"The code has no schedule {name!r}. There are: {said}.")
        if at is not None:
            if at.utcoffset() is None:
                raise InvalidOption(f"at is {at!r}. Use an aware datetime.")
            self.now = int(at.timestamp() * 1000)
        elif self.now is None:
            self.now = now_ms(client)
        for name in names or tuple(known):
            one = placed(name, known[name], settings())
            entry = one.entry(self.now)
            introduce(client, [one.queue])
            scripts.declare(client, one.queue, "code", [entry])
            self._next[name] = (int(entry.next_ms), one)

    def advance(self, client: Client, ms: int) -> None:
        """Enqueue a job for each time that comes meanwhile, in their order."""
        if self.now is None:
            return
        self.now += ms
        for _ in range(TICKS_MAX):
            due = [(planned, name) for name, (planned, _) in self._next.items()]
            planned, name = min(due, default=(self.now + 1, ""))
            if planned > self.now:
                return
            self._tick(client, name, planned)
        raise AssertionError(
            f"{TICKS_MAX} times of schedules in one advance: start fewer, or advance by less."
        )

    def _tick(self, client: Client, name: str, planned: int) -> None:
        _, one = self._next[name]
        record = {field: str(one.record.get(field, "")) for field in FIELDS}
        job = job_of(one.queue, name, record, planned)
        # Between two times, for the server: its own clock stands still.
        tick = Tick(name, None, 0, planned, record["rule"])
        admit = verb_of([job])
        admit(client, one.queue, [job], request=job.id, producer=PRODUCER, tick=tick)
        following = one.rule.after(planned)
        scripts.repeat_advance(client, one.queue, name, following)
        self._next[name] = (following, one)

"""The rules of the state machine that work on schedules."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import rule

from django_emq import scripts
from django_emq.jobs import NewJob
from django_emq.repeats import OFF, Tick
from tests.model.sides import UNIT, Sides, queues

names = st.sampled_from("xy")
whens = st.integers(-2, 2)  # units from now
picks = st.integers(0, 2**16)


class RepeatRules(Sides):
    """What is done with schedules, on both sides."""

    def next_of(self, name: str, pick: int) -> int:
        """The next time of a schedule, or another one."""
        at = self.model.repeats[name][0].low if name in self.model.repeats else self.time
        at = at if math.isfinite(at) else self.time
        return int(at) + (pick % 4 == 0) * UNIT

    @rule(name=names, when=whens, every=st.integers(1, 2))
    def repeat_register(self, name, when, every):
        first = int(self.time) + when * UNIT - 1000
        self.do("repeat_register", name, every_ms=every * UNIT, template="t", first_ms=first)

    @rule(name=names)
    def repeat_cancel(self, name):
        self.do("repeat_cancel", name)

    @rule(name=names, when=whens, pick=picks, by=st.sampled_from(("", "ada")), off=st.booleans())
    def repeat_advance(self, name, when, pick, by, off):
        next_ms = OFF if off and by else int(self.time) + when * UNIT - 1000
        was = self.next_of(name, pick) if pick % 3 else None
        self.do("repeat_advance", name, next_ms, was=was, by=by)

    @rule(batch=st.sampled_from((100, 1)))
    def repeat_due(self, batch):
        due = scripts.repeat_due(self.client, self.queue, batch=batch)
        found = [(one.name, one.planned) for one in due.schedules]
        self.answers["repeat_due", True] += 1
        self._compare(lambda: self._same(found, self.model.repeat_due(batch=batch), "due"))

    @rule(name=names, pick=picks, beside=st.booleans(), known=st.booleans())
    def tick(self, name, pick, beside, known):
        """A job by a tick: mostly the one that is next; or beside the times, or a wrong one."""
        was = self.next_of(name, pick)
        tick = Tick(
            name, None if beside else was, was + UNIT, was, "other" if pick % 7 == 0 else ""
        )
        self.ids.append(f"JOB{len(self.ids):05}")
        job_id = self.id(pick) if known and self.model.jobs else self.ids[-1]
        jobs = [NewJob(job_id, "by a tick", 0, "", ("planned_at", was))]
        self.do("enqueue", jobs=jobs, producer="ticker", request=f"r{next(queues)}", tick=tick)

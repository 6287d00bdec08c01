"""The two sides of the state machine, a real server and the model, and how they are compared."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from books import SETS, balance
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine

from django_emq import connections, scripts
from django_emq.exceptions import EmqError
from django_emq.keys import queue_keys
from tests.model.answers import matches, plain, texts
from tests.model.base import GONE, HELD, KEY, NEVER, STALE, STATE, TIMES
from tests.model.look import Ms, look
from tests.model.model import Model

DEADLY = ("retry", "bury", "reap", "cancel", "claim")
REFUSALS = (STALE, GONE, HELD, STATE, KEY, "KindRefused", "RateLimited")

queues = itertools.count()

# A wait is a number of these, and time passes in these and a little: so a time that has come, and
# one that has not, are never so close that the run time of an example could blur them.
UNIT = 1_000_000
A_LITTLE = 1_000


class Sides(RuleBasedStateMachine):
    """One queue. `do` carries a verb out on both sides, and compares all that there is."""

    answers: ClassVar[Counter[tuple[str, bool]]] = Counter()  # by verb, and whether accepted

    def __init__(self) -> None:
        super().__init__()
        self.client = connections.connect()
        self.client.trail_all = self.client.trail_max
        self.queue = f"model-{next(queues)}"
        self.keys = queue_keys(self.queue)
        self.model = Model()
        self.client.dead_max = self.model.dead_max = 2
        self.since = ""
        self.tokens: list[tuple[str, int]] = []  # all that were ever handed out
        self.ids: list[str] = []
        self.lowest: dict[str, int] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.verbs: dict[str, str] = {}  # by producer: of its request
        self.time = 0.0
        self.model.now = Ms(0, 0)
        self._compare()

    def teardown(self) -> None:
        """The next example's queue has another name, but the server need not remember this one."""
        self.client.raw.flushdb()
        self.client.close()

    # -- both sides ---------------------------------------------------------------------------

    def do(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Carry out a verb; the answer."""
        if verb in DEADLY:
            self._tick()
        try:
            answer = plain(getattr(scripts, verb)(self.client, self.queue, *args, **kwargs))
        except EmqError as error:
            answer = type(error).__name__
        for verdict in answer if isinstance(answer, list) else [answer]:
            refused = isinstance(verdict, str) and verdict in REFUSALS
            self.answers[verb, not refused] += 1
        note(f"    {verb} {args} {kwargs} -> {answer}")
        self._compare(lambda: self._same(answer, getattr(self.model, verb)(*args, **kwargs), verb))
        return answer

    def _tick(self) -> None:
        """Let a millisecond begin: so who dies now is younger than all that is in the morgue."""
        now = self.time
        while now <= self.time:
            seconds, micros = self.client.raw.time()
            now = seconds * 1000 + micros // 1000

    def _compare(self, step: Callable[[], None] = lambda: None) -> None:
        """Look at the server, take the step in the model, and compare everything."""
        found = look(self.client, self.keys, self.since)
        assert found.time >= self.time, "the clock of this machine went backwards"
        self.model.now, self.time = Ms(self.time, found.time), found.time
        self.model.trail = []
        step()
        model = self.model
        for name in SETS:
            expected = {job.id: job.score for job in model.inside(name)}
            self._same(found.sets[name], expected, name)
        rows = {job.id: job.row for job in model.jobs.values()}
        self._same(found.rows, {i: texts(row) for i, row in rows.items()}, "rows")
        logs = {job.id: job.logs for job in model.jobs.values() if job.logs}
        self._same(found.logs, logs, "logs")
        held = {d: i for d, (i, ends) in model.keys.items() if ends is NEVER or not model.due(ends)}
        self._same(found.keys, held, "unique keys")
        times = {name: at for name, (at, _) in model.repeats.items()}
        self._same(found.repeats, times, "schedules")
        records = {name: texts(record) for name, (_, record) in model.repeats.items()}
        self._same(found.records, records, "records of schedules")
        told = {
            w: ["ends", *words] for w, (words, end) in model.waiting.items() if not model.due(end)
        }
        self._same(found.told, told, "words for waiters")
        self._same(found.onward, model.away, "onward")
        self._same(found.meta, texts(model.meta), "meta")
        self._same(found.wake, int(model.wake), "wake")
        open_ = model.used and not model.due(model.window_ends)
        self._same(found.limiter, model.used if open_ else 0, "limiter")
        self._same(found.totals, dict(model.totals), "totals")
        self._same(found.counted, dict(model.totals), "totals of the minutes")
        trail = [(f["event"], f.get("id", ""), f.get("token", "")) for _, f in found.trail]
        self._same(sorted(trail), sorted(model.trail), "trail")
        self.since = found.trail[-1][0] if found.trail else self.since
        self._take_over(found)
        said = {
            i: {b"state": row["state"].encode(), b"attempts": row["attempts"]}
            for i, row in found.rows.items()
        }
        self.lowest = balance({**found.sets, "rows": said}, self.lowest)

    def _take_over(self, found: Any) -> None:
        """The times that the server has stored, within the bounds as they were found to be."""
        for job in self.model.jobs.values():
            exact = found.sets[job.place][job.id]
            job.score = Ms(exact, exact)
            for name in (*TIMES, "fence"):
                if name in job.row:
                    at = float(found.rows[job.id][name])
                    job.row[name] = Ms(at, at)
            if isinstance(job.row.get("last_error"), frozenset):
                job.row["last_error"] = found.rows[job.id]["last_error"]
        for name, (_, record) in self.model.repeats.items():
            if "last_at" in record:
                record["last_at"] = Ms(*[float(found.records[name]["last_at"])] * 2)
        for job_id, parts in self.model.away.items():
            stored = zip(found.onward[job_id], parts, strict=True)
            exact = [Ms(float(v), float(v)) if isinstance(p, Ms) else v for v, p in stored]
            self.model.away[job_id] = exact
        for resource, (number, ends) in self.model.fences.items():
            rows = [j.row for j in self.model.jobs.values() if j.row.get("fence_key") == resource]
            exact = [r["fence"] for r in rows if "fence" in r and number.has(r["fence"].low)]
            self.model.fences[resource] = (max(exact, default=number), ends)

    def _same(self, found: Any, expected: Any, what: str) -> None:
        assert matches(found, expected), f"{what}:\n  server {found}\n  model  {expected}"

    def item(self, pick: int) -> tuple[str, int]:
        """An id and a token: the newest of a job that is held, or one beside it, or an old one."""
        kind, n = pick % 8, pick // 8
        held = sorted(job.id for job in self.model.jobs.values() if job.place == "active")
        if kind < 5 and held:
            job_id = held[n % len(held)]
            token = self.model.jobs[job_id].token
            return job_id, token + (1, -1)[n % 2] if kind == 4 else token
        known = [(i, token) for i, token in self.tokens if i in self.model.jobs]
        if kind < 7 and known:
            return known[n % len(known)]
        return self.id(n), n % 3

    def id(self, pick: int, place: str = "") -> str:
        """An id that is there, or one that was admitted once, or one that never was.

        :param place: the set that it is in, if it is there.
        """
        kind, n = pick % 8, pick // 8
        there = sorted(job.id for job in self.model.jobs.values() if place in ("", job.place))
        if kind < 6 and there:
            return there[n % len(there)]
        return self.ids[n % len(self.ids)] if self.ids and kind < 7 else "JOBnever"

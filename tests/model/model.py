"""The whole model: admission, claims, sweeps and operators, on top of what workers do."""

from __future__ import annotations

from typing import Any

from django_emq.repeats import Tick
from tests.model.base import CLAIMS_MS, GONE, HELD, KEY, NEVER, SENT_MS, STATE, Job
from tests.model.look import SETS, Ms, whole
from tests.model.repeating import Repeating
from tests.model.unique import Unique

FENCE_MS = 3_600_000
LAST_LIFE = ("failures", "stalls", "last_error", "traceback", "finished_at", "expires_at")


class Swept(Unique, Repeating):
    """Admission, claims, and what sweepers do."""

    def enqueue(
        self, jobs: list[Any], *, request: str, producer: str, tick: Tick | None = None
    ) -> Any:
        last, ends, verdicts = self.sent.get(producer, (None, NEVER, []))
        if last == request and not self.due(ends):
            return verdicts
        if self.refuses(tick):
            return STATE
        first, verdicts = self.first_due(), []
        for new in jobs:
            if not new.id.startswith("JOB"):
                verdicts.append("KindRefused")
            elif new.id in self.jobs:
                verdicts.append(0)
            else:
                self.admit(new, first)
                verdicts.append(1)
        self.ticked(
            tick, [new.id for new, verdict in zip(jobs, verdicts, strict=True) if verdict == 1]
        )
        self.sent[producer] = (request, self.now.plus(SENT_MS), verdicts)
        return verdicts

    def claim(
        self, *, worker: str, request: str, lease_ms: int, count: int = 1, due: int = 200
    ) -> tuple[Any, list[Any]]:
        last, ends, given = self.given.get(worker, (None, NEVER, []))
        if last == request and not self.due(ends):
            held = [self.jobs[i] for i, token in given if self._refusal(i, token) is None]
            return -1, [self._lease(job, lease_ms) for job in held]
        if "paused" in self.meta:
            return -1, []
        wanted, limited, window = self._room(count)
        ready = self.lapsed("schedule", due)
        for job in ready:
            self.move(job, "pending")
        self.count("promoted", len(ready))
        taken: list[Job] = []
        expired, answer = False, []
        for job in self.inside("pending"):
            if len(taken) == wanted:
                break
            if self.due(job.row.get("expires_at", NEVER)):
                self._expire(job)
                expired = True
                continue
            taken.append(job)
            job.row.pop("settled", None)
            if job.token and "claims" in job.row:
                before = [job.row.get("worker", ""), whole(job.row.get("started_at"))]
                job.row["claims"] += "@".join(before) + "\n"
            fields = {"attempts": job.token + 1, "worker": worker, "started_at": self.now}
            if (resource := job.row.get("fence_key")) is not None:
                fields["fence"] = self._raise(resource)
            self.move(job, "active", self.now, **fields)
            answer.append(self._lease(job, lease_ms))
            self.note("claimed", job.id, job.token)
        self.keep_cap()
        self.count("claimed", len(taken))
        if taken:
            given = [(job.id, job.token) for job in taken]
            self.given[worker] = (request, self.now.plus(CLAIMS_MS), given)
            self._use(len(taken))
        return self._leave(limited, window, len(taken) < count, expired), answer

    def _expire(self, job: Job) -> None:
        """The time of a job was over before it could run."""
        ended = job.row["expires_at"]
        low, high = self.now.low - ended.high, self.now.high - ended.low
        tenths = range(int(low // 100), int(high // 100) + 2)
        last = f". The last error was: {job.row['last_error']}" if "last_error" in job.row else ""
        why = frozenset(
            f"expired: its time was over {n / 10:.1f} s before it could run{last}" for n in tenths
        )
        fields = {"settled": "expire", "last_error": why, "finished_at": self.now}
        self.move(job, "dead", self.now, **fields)
        self.count("expired")
        self.count("dead")
        self.note("died", job.id, job.token)

    def _raise(self, resource: str) -> Ms:
        """A number above the last one, and never below the clock."""
        last, ends = self.fences.get(resource, (Ms(0, 0), NEVER))
        if self.due(ends):
            last = Ms(0, 0)
        number = Ms(max(last.low + 1, self.now.low), max(last.high + 1, self.now.high))
        self.fences[resource] = (number, self.now.plus(FENCE_MS))
        return number

    def _lease(self, job: Job, lease_ms: int) -> Any:
        job.score = self.now.plus(job.number("lease_ms", lease_ms))
        return job.id, job.row["payload"], job.token, job.number("failures", 0)

    def _room(self, count: int) -> tuple[int, bool, Ms | None]:
        """How many may be claimed, whether a limit says so, and when the window of one ends."""
        wanted, limited = count, False
        concurrency, most = self.meta.get("concurrency"), self.meta.get("max")
        if concurrency:
            room = max(concurrency - len(self.inside("active")), 0)
            if room < wanted:
                wanted, limited = room, True
        if most:
            open_ = not self.used or self.due(self.window_ends)
            room = max(most - (0 if open_ else self.used), 0)
            if room < wanted:
                ends = self.now.plus(self.meta["duration"]) if open_ else self.window_ends
                return room, True, ends
        return wanted, limited, None

    def _use(self, n: int) -> None:
        if self.meta.get("max"):
            if not self.used or self.due(self.window_ends):
                self.used, self.window_ends = 0, self.now.plus(self.meta["duration"])
            self.used += n

    def _leave(self, limited: bool, window: Ms | None, short: bool, expired: bool) -> Any:
        """Pass the wake on; answer when to look again."""
        left = self.inside("pending")
        if left:
            self.ring(not limited)
        elif not expired:  # else what waited behind an expired job may be due
            self.hush()
        at = self.first_due() if short else NEVER
        if short and left and window and window < at:
            at = window
        return -1 if at is NEVER else self._until(at)

    def _until(self, at: Ms) -> Ms:
        return Ms(max(at.low - self.now.high - 1, 0), max(at.high - self.now.low + 1, 0))

    def promote(self, *, batch: int = 500) -> int:
        ready = self.lapsed("schedule", batch)
        for job in ready:
            self.move(job, "pending")
        self.ring(ready)
        self.count("promoted", len(ready))
        return len(ready)

    def reap(self, *, max_stalls: int, batch: int = 500) -> tuple[Any, ...]:
        back, dead = [], []
        self.known = set(self.jobs)
        for job in self.lapsed("active", batch):
            stalls = job.number("stalls", 0) + 1
            if stalls >= job.number("max_stalls", max_stalls):
                reason = f"stalled: the worker was lost or its lease lapsed {stalls} times"
                fields = {"stalls": stalls, "finished_at": self.now, "last_error": reason}
                self.move(job, "dead", self.now, **fields)
                self.note("died", job.id, job.token)
                self.after_failure(job, reason)
                dead.append(job.id)
            else:
                self.move(job, "pending", stalls=stalls)
                self.note("reaped", job.id, job.token)
                back.append(job.id)
        self.ring(back)
        self.count("reaped", len(back))
        self.count("dead", len(dead))
        self.keep_cap()
        held = self.inside("active")
        until = self._until(held[0].score) if held else -1
        return until, back, dead, len(self.away), self.until_tick()

    def trim(self, *, dead_max: int, dead_ttl_ms: int, batch: int = 500) -> int:
        over = self.lapsed("done", batch)
        buried = self.lapsed("dead", batch, dead_ttl_ms)
        excess = min(len(self.inside("dead")) - dead_max, batch)
        if excess > len(buried):
            buried = self.inside("dead")[:excess]
        self.count("trimmed", len(buried))
        return self.forget(over) + self.forget(buried)


class Model(Swept):
    """All verbs: those of operators last. They carry no token."""

    def reprocess(self, ids: list[str], *, by: str = "") -> list[Any]:
        def act(job: Job) -> Any:
            if job.place != "dead":
                return STATE
            takes = self.takes_again(job)
            if takes is None:
                return KEY
            if takes:
                self.keys[self.key_of(job)] = (job.id, NEVER)
                for name in ("behind", "due", "heir", "unique_since", "duplicates"):
                    job.row.pop(name, None)
            for name in LAST_LIFE:
                job.row.pop(name, None)
            self.move(job, "pending", settled="reprocess")
            self.ring()
            return 1

        return self._operate(ids, act, "reprocessed")

    def requeue(self, ids: list[str], *, by: str = "", only: str = "") -> list[Any]:
        def act(job: Job) -> Any:
            if job.place not in ([only] if only else ("active", "schedule")):
                return STATE
            if "behind" in job.row:
                return KEY
            token = job.token + (job.place == "active")
            self.move(job, "pending", settled="requeue", attempts=token)
            self.ring()
            return 1

        return self._operate(ids, act, "requeued")

    def cancel(self, ids: list[str], *, by: str = "", only: str = "") -> list[Any]:
        def act(job: Job) -> Any:
            if job.place not in ([only] if only else ("active", "schedule", "pending")):
                return STATE
            fields = {"attempts": job.token + (job.place == "active"), "settled": "cancel"}
            fields["last_error"] = f"cancelled by {by}" if by else "cancelled"
            self.move(job, "dead", self.now, finished_at=self.now, **fields)
            self.count("dead")
            return 1

        verdicts = self._operate(ids, act, "cancelled")
        self.keep_cap()
        return verdicts

    def _operate(self, ids: list[str], act: Any, event: str) -> list[Any]:
        verdicts: list[Any] = []
        for job_id in ids:
            job = self.jobs.get(job_id)
            verdict = act(job) if job else GONE
            if verdict == 1:
                assert job
                self.count(event)
                self.note(event, job_id, job.token)
            verdicts.append(verdict)
        return verdicts

    def remove(
        self, ids: list[str], *, by: str = "", force: bool = False, only: str = ""
    ) -> list[Any]:
        def act(job: Job) -> Any:
            if only and job.place != only:
                return STATE
            if job.place == "active" and not force:
                return HELD
            return self.forget([job])

        return self._operate(ids, act, "removed")

    def drain(self, name: str, *, by: str = "", batch: int = 500) -> int:
        gone = self.inside(name)[:batch]
        if gone:
            self.note("drained")
            self.count("removed", self.forget(gone))
        return len(gone)

    def obliterate(self, *, force: bool = False, batch: int = 500) -> Any:
        if "paused" not in self.meta or (self.inside("active") and not force):
            return STATE
        order = ("pending", "schedule", "dead", "done", "active")
        assert set(order) == set(SETS)
        left = batch
        for name in order:
            left -= self.forget(self.inside(name)[:left])
        if not left:
            return True
        self.totals.clear()
        self.meta.clear()
        self.repeats.clear()
        self.away.clear()
        self.wake, self.used = False, 0
        return False

    def update(self, job_id: str, payload: str, *, by: str = "", was: str | None = None) -> Any:
        job = self.jobs.get(job_id)
        if job is None:
            return GONE
        if job.place == "active":
            return HELD
        if job.place == "done" or was not in (None, job.row["payload"]):
            return STATE
        job.row["payload"] = payload
        if job.token:
            job.row.setdefault("settled", "update")
        self.note("updated", job_id, job.token)
        return None

    def pause(self, *, by: str = "", why: str = "") -> bool:
        if "paused" in self.meta:
            return False
        self.meta |= {"paused": self.now, "paused_by": by, "paused_why": why}
        self.note("paused")
        return True

    def resume(self, *, by: str = "") -> bool:
        self.ring()
        if "paused" not in self.meta:
            return False
        for name in ("paused", "paused_by", "paused_why"):
            del self.meta[name]
        self.note("resumed")
        return True

    def gate(self) -> Any:
        concurrency = self.meta.get("concurrency", 0)
        full = concurrency and len(self.inside("active")) >= concurrency
        return "RateLimited" if full else None

    def state(self, job_id: str) -> str:
        job = self.jobs.get(job_id)
        return job.row["state"] if job else "absent"

    def cas(self, key: str, expected: str, value: str) -> bool:
        if self.key != expected:
            return False
        self.key = value
        return True

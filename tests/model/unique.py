"""The model's unique keys: who holds one, what a conflict leads to, and when one is free."""

from __future__ import annotations

from typing import Any

from tests.model.base import NEVER, SENT_MS, Job
from tests.model.fenced import Fenced
from tests.model.look import Ms

ALIVE = ("pending", "schedule", "active")
TEN_YEARS = 315_360_000_000


class Unique(Fenced):
    """Admission of jobs with a key. That an end frees the key is in `Base`: it is one rule."""

    def enqueue_unique(self, jobs: list[Any], *, request: str, producer: str) -> list[Any]:
        last, ends, verdicts = self.sent.get(producer, (None, NEVER, []))
        if last == request and not self.due(ends):
            return verdicts
        first = self.first_due()
        verdicts = [self._come(new, first) for new in jobs]
        self.sent[producer] = (request, self.now.plus(SENT_MS), verdicts)
        return verdicts

    def _come(self, new: Any, first: Ms) -> Any:
        if not new.id.startswith("JOB"):
            return "KindRefused"
        if new.id in self.jobs:
            return 0
        if not new.unique:
            self.admit(new, first)
            return 1
        key = new.unique
        held = self._held(key.digest)
        if held is None:
            self._take(new, first, self.now)
            return 1
        holder_id, holder = held
        behind = key.conflict == "keep_last" and holder is not None and holder.token > 0
        heir = self.heir(holder) if holder else None
        if behind:
            gone = [heir] if heir else []
        elif (
            holder is not None
            and holder.place != "active"
            and key.conflict in ("replace", "keep_last", "debounce")
        ):
            gone = [holder, *([heir] if heir else [])]
        else:
            return self._refuse(new, holder_id)
        since = holder.row.get("unique_since", self.now) if holder else self.now
        for job in gone:
            del self.jobs[job.id]
            self.tell(job, "replaced")
            self.count("replaced")
            self.note("replaced", job.id, job.token)
        if behind and holder is not None:
            self._wait(new, holder)
            return f"replaced {gone[0].id}" if gone else f"behind {holder_id}"
        self._take(new, first, since)
        return f"replaced {gone[0].id}"

    def _held(self, digest: str) -> tuple[str, Job | None] | None:
        """Who holds a key: an id, and the job if the key counts because of it."""
        holder_id, ends = self.keys.get(digest, ("", NEVER))
        if not holder_id or (ends is not NEVER and self.due(ends)):
            return None
        job = self.jobs.get(holder_id)
        if job is not None and job.place in ALIVE and self.key_of(job) == digest:
            return holder_id, job
        return (holder_id, None) if ends is not NEVER else None

    def _refuse(self, new: Any, holder_id: str) -> str:
        self.count("duplicates")
        self.note("duplicate", new.id)
        if holder := self.jobs.get(holder_id):
            holder.row["duplicates"] = holder.row.get("duplicates", 0) + 1
        return f"duplicate {holder_id}"

    def _take(self, new: Any, first: Ms, since: Ms) -> None:
        """The job comes in and has the key."""
        key = new.unique
        due = None
        if key.conflict == "debounce":
            bound, due = since.plus(key.max_wait_ms), self.instant(new.due)
            due = Ms(min(due.low, bound.low), min(due.high, bound.high))
        job = self.admit(new, first, due)
        job.row |= {"unique": f"{key.digest} {key.until}", "ties": "1"}
        if key.conflict == "debounce":
            job.row["unique_since"] = since
        ends = self.now.plus(key.hold_ms) if key.until == "time" else NEVER
        self.keys[key.digest] = (new.id, ends)

    def _wait(self, new: Any, holder: Job) -> None:
        """The job comes in, and waits until another one has ended."""
        due = self.instant(new.due)
        wake = self.wake
        job = self.admit(new, NEVER)
        self.wake = wake
        self.move(job, "schedule", self.now.plus(TEN_YEARS))
        job.row |= {"unique": f"{new.unique.digest} {new.unique.until}", "ties": "1"}
        job.row |= {"behind": holder.id}
        job.row["due"] = Ms(max(due.low, self.now.low), max(due.high, self.now.high))
        holder.row["heir"] = new.id

    def takes_again(self, job: Job) -> bool | None:
        """Whether a job that gets another life takes its key: None when it must not have one."""
        digest, _, until = job.row.get("unique", "").partition(" ")
        if not digest or until == "time" or (until == "start" and job.token):
            return False
        held = self._held(digest)
        return None if held is not None and held[0] != job.id else True

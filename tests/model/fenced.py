"""The model's verbs of a worker that holds jobs: each carries a token."""

from __future__ import annotations

import json
from typing import Any

from tests.model.base import GONE, STALE, Job
from tests.model.tied import Tied


class Fenced(Tied):
    """The verbs of a worker that carry a token."""

    def _refusal(self, job_id: str, token: int) -> str | None:
        """Why a job cannot be moved by this token."""
        job = self.jobs.get(job_id)
        if job is None:
            return GONE
        return None if job.token == token and job.place == "active" else STALE

    def _settle(self, verb: str, items: list[Any], act: Any, again: Any = None) -> list[Any]:
        """Judge all items by the state before the call, and carry out what may be.

        :param act: moves a job, and answers the verdict.
        :param again: the verdict on a job that this token has settled by this verb before.
        """
        self.known = set(self.jobs)
        before = {i: (j, j.token, j.place, j.row.get("settled")) for i, j in self.jobs.items()}
        verdicts: list[Any] = []
        seen: dict[str, Any] = {}
        for item in items:
            job_id, token = item[:2]
            if job_id not in before:
                verdicts.append(GONE)
                continue
            job, newest, place, settled = before[job_id]
            # The one verb that takes a swept job: its work is done, nobody has claimed it since.
            swept = verb == "complete" and place == "pending" and not settled
            if token != newest or not token:
                verdicts.append(STALE)
            elif settled == verb:
                verdicts.append(again(job) if again else 1)
            elif job_id in seen:
                verdicts.append(seen[job_id])
            elif place == "active" or swept:
                seen[job_id] = act(job, item)
                verdicts.append(seen[job_id])
            else:
                verdicts.append(STALE)
            if verdicts[-1] == STALE:
                self.note("refused", job_id, newest)
        self.count("stale", verdicts.count(STALE))
        return verdicts

    @staticmethod
    def _keep_error(job: Job, *error: str) -> None:
        """Add a line to the history, where the row has one."""
        if "errors" in job.row:
            job.row["errors"] += json.dumps(error, separators=(",", ":")) + "\n"

    def complete(self, items: list[Any], *, keep_ms: int = 0) -> list[Any]:
        done: list[tuple[Job, str]] = []

        def act(job: Job, item: Any) -> int:
            done.append((job, item[2]))
            if keep_ms:
                end = self.now.plus(keep_ms)
                fields = {"settled": "complete", "finished_at": self.now, "result": item[2]}
                self.move(job, "done", end, **fields)
            else:
                self.forget([job], "done")
            return 1

        verdicts = self._settle("complete", items, act)
        self.count("completed", len(done))
        for job, result in done:
            self.after_success(job, result)
            self.note("completed", job.id, job.token)
        return [0 if verdict == GONE else verdict for verdict in verdicts]

    def retry(self, items: list[Any], *, max_attempts: int) -> list[Any]:
        first = self.first_due()

        def act(job: Job, item: Any) -> str:
            _, token, delay_ms, error, trace = item
            fields = {"settled": "retry", "last_error": error}
            fields |= {"traceback": trace} if trace else {}
            fields["failures"] = failures = job.number("failures", 0) + 1
            self.count("failed")
            self._keep_error(job, "retry", item[3], item[4])
            if failures >= job.number("max_attempts", max_attempts):
                self.move(job, "dead", self.now, finished_at=self.now, **fields)
                self.count("dead")
                self.note("died", job.id, token)
                self.after_failure(job, error)
                return "dead"
            due = self.now.plus(delay_ms)
            self.move(job, "schedule", due, **fields)
            self.ring(self.before(due, first))
            self.count("retried")
            self.note("failed", job.id, token)
            return "scheduled"

        def again(job: Job) -> str:
            return "dead" if job.place == "dead" else "scheduled"

        verdicts = self._settle("retry", items, act, again)
        self.keep_cap()
        return verdicts

    def snooze(self, items: list[Any]) -> list[Any]:
        first = self.first_due()

        def act(job: Job, item: Any) -> int:
            due = self.instant(item[2])
            self.move(job, "schedule", due, settled="snooze")
            self.ring(self.before(due, first))
            self.count("snoozed")
            return 1

        return self._settle("snooze", items, act)

    def release(self, items: list[Any]) -> list[Any]:
        def act(job: Job, item: Any) -> int:
            self.move(job, "pending", settled="release")
            self.ring()
            self.count("released")
            self.note("released", job.id, job.token)
            return 1

        return self._settle("release", items, act)

    def bury(self, items: list[Any]) -> list[Any]:
        def act(job: Job, item: Any) -> int:
            fields = {"settled": "bury", "last_error": item[2], "finished_at": self.now}
            fields |= {"traceback": item[3]} if item[3] else {}
            self._keep_error(job, "bury", item[2], item[3])
            self.move(job, "dead", self.now, **fields)
            self.count("dead")
            self.note("buried", job.id, job.token)
            self.after_failure(job, item[2])
            return 1

        verdicts = self._settle("bury", items, act)
        self.keep_cap()
        return verdicts

    def discard(self, items: list[Any]) -> list[Any]:
        def act(job: Job, item: Any) -> int:
            self.count("discarded", self.forget([job], "discarded"))
            return 1

        return self._settle("discard", items, act)

    def _told(self, job_id: str, token: int) -> str | None:
        """`_refusal` for what a running job asks between: it is told of a cancel."""
        job = self.jobs.get(job_id)
        if job and job.token != token and job.row.get("settled") == "cancel":
            return "Cancelled"
        return self._refusal(job_id, token)

    def extend(self, items: list[Any], *, lease_ms: int) -> list[Any]:
        verdicts: list[Any] = [self._told(*item) or 1 for item in items]
        for (job_id, _), verdict in zip(items, verdicts, strict=True):
            if verdict == 1:
                job = self.jobs[job_id]
                own = job.number("lease_ms", lease_ms) if lease_ms else 0
                job.score = self.now.plus(own)
        return verdicts

    def progress(self, items: list[Any]) -> list[Any]:
        verdicts = [self._told(job_id, token) or 1 for job_id, token, _ in items]
        for (job_id, _, value), verdict in zip(items, verdicts, strict=True):
            if verdict == 1:
                self.jobs[job_id].row["progress"] = value
        return verdicts

    def log(self, items: list[Any], *, keep: int = 100) -> list[Any]:
        verdicts: list[Any] = []
        for job_id, token, line in items:
            refusal = self._told(job_id, token)
            if not refusal:
                job = self.jobs[job_id]
                job.row["ties"] = "1"
                job.logs = [*job.logs, line][-keep:]
            verdicts.append(refusal or len(self.jobs[job_id].logs))
        return verdicts

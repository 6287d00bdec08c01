"""The model's rows that others hang on: the next jobs of a chain, and who waits for an end."""

from __future__ import annotations

import json
from typing import Any

from django_emq.chains import unpacked
from django_emq.jobs import NewJob
from tests.model.base import NEVER, Base, Job
from tests.model.look import Ms


class Tied(Base):
    """Admission, and what a job leaves behind."""

    def instant(self, text: str) -> Ms:
        """'+ms' from now, or 'ms' since 1970; '' for now."""
        if text.startswith("+"):
            return self.now.plus(int(text))
        return Ms(float(text or 0), float(text or 0))

    def admit(self, new: NewJob, first: Ms, due: Ms | None = None) -> Job:
        row: dict[str, Any] = {"attempts": 0, "payload": new.payload}
        row |= {"priority": new.priority} if new.priority else {}
        row |= dict(zip(new.fields[::2], new.fields[1::2], strict=True))
        if "expires_at" in row:
            row["expires_at"] = self.instant(row["expires_at"])
        job = self.jobs[new.id] = Job(new.id, row, "", Ms(0, 0))
        due = due or self.instant(new.due)
        if due.low > self.now.high:
            self.move(job, "schedule", due)
            self.ring(self.before(due, first))
        else:
            self.move(job, "pending")
            self.ring()
        self.count("enqueued")
        return job

    def after_success(self, job: Job, result: str) -> None:
        if ids := self._follow(job, "on_success", f'"value":{result or "null"}'):
            job.row.pop("on_failure", None)
            job.row["next"] = ids

    def after_failure(self, job: Job, error: str) -> None:
        if ids := self._follow(job, "on_failure", f'"error":{json.dumps(error)}'):
            job.row["next"] = ids

    def _follow(self, job: Job, field: str, left: str) -> str:
        """Admit what hangs there and was not there before this call; answers the ids."""
        ids = []
        for text in unpacked(job.row.get(field, "").encode()):
            there, next_id, payload, priority, due, *fields = unpacked(text.encode())
            if next_id in self.known:
                continue
            ids.append(next_id)
            payload += f'\n{{"id":"{job.id}",{left}}}'
            fields = ["after", job.id, *fields]
            if there:
                parts: list[Any] = [there, next_id, payload, priority, self.instant(due), *fields]
                for i in range(7, len(parts), 2):
                    if parts[i] == "expires_at":
                        parts[i + 1] = self.instant(parts[i + 1])
                self.away[next_id] = parts
            else:
                new = NewJob(next_id, payload, int(priority), due, tuple(fields))
                self.admit(new, NEVER)
            self.note("admitted", next_id, 0)
        if ids:
            del job.row[field]
        return " ".join(ids)

    def wait(self, job_id: str, waiter: str, *, keep: int = 200) -> str:
        job = self.jobs.get(job_id)
        if job is None:
            return "absent"
        names = job.row.get("waiters", "").split()
        if job.place not in ("dead", "done") and waiter not in names:
            job.row |= {"ties": "1", "waiters": " ".join([*names, waiter][-keep:])}
        return str(job.row["state"])

    def onward(self, *, admitted: list[str], batch: int) -> tuple[Ms, dict[str, Any]]:
        for job_id in admitted:
            self.away.pop(job_id, None)
        assert batch == 0 or batch >= len(self.away), "which ones, is the server's choice"
        return self.now, dict(self.away) if batch else {}

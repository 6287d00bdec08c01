"""A queue as plain Python: what the design says of each verb, in the words of a reader of it.

Nothing here is shared with the scripts, and nothing is fast. Each verb takes what the function of
its name in `scripts` takes, and answers what that must answer: a refusal is the name of its
exception. An instant is a `look.Ms`, because only the server knows its own clock; what it has
stored is taken over by `Machine` once it was found to be within the bounds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.model.look import Ms

STALE, GONE, HELD, STATE = "StaleToken", "JobGone", "JobHeld", "NotInState"
KEY = "KeyHeld"
SENT_MS, CLAIMS_MS = 120_000, 600_000  # how long calls are remembered
TOLD_MS = 60_000  # how long a word waits for who waits for it
NEVER = Ms(float("inf"), float("inf"))
# Fields that are instants.
TIMES = ("started_at", "finished_at", "unique_since", "due", "expires_at")


@dataclass
class Job:
    """A row, where its id is, and with which score."""

    id: str
    row: dict[str, Any]
    place: str
    score: Ms
    logs: list[str] = field(default_factory=list)

    @property
    def token(self) -> int:
        return int(self.row["attempts"])

    def number(self, name: str, default: int) -> int:
        return int(self.row.get(name, default))


class Base:
    """What there is, and the few things that verbs do with it."""

    def __init__(self) -> None:
        self.now = Ms(0, 0)  # of the call that is under way
        self.jobs: dict[str, Job] = {}
        self.known: set[str] = set()  # the ids that were there before the call
        self.away: dict[str, list[Any]] = {}  # next jobs that belong to other queues
        self.waiting: dict[str, tuple[list[str], Ms]] = {}  # what waiters were told, until when
        self.totals: Counter[str] = Counter()
        self.trail: list[tuple[str, str, str]] = []  # event, id, token: of the last call
        self.dead_max = 10_000
        self.wake = False
        self.meta: dict[str, Any] = {}
        self.used, self.window_ends = 0, Ms(0, 0)  # claims in the window of the rate limit
        self.sent: dict[str, tuple[Any, Ms, list[Any]]] = {}  # by producer
        self.given: dict[str, tuple[Any, Ms, list[tuple[str, int]]]] = {}  # by worker
        self.key: str | None = None  # what `cas` works on
        self.keys: dict[str, tuple[str, Ms]] = {}  # unique ones: the holder, and until when
        self.fences: dict[str, tuple[Ms, Ms]] = {}  # by resource: the last number, and until when

    def due(self, at: Ms) -> bool:
        """Whether an instant has come. All waits are much longer than a call takes."""
        assert at.high <= self.now.low or at.low > self.now.high, f"{at} or not, at {self.now}?"
        return at.high <= self.now.low

    def before(self, at: Ms, other: Ms) -> bool:
        """Whether an instant that was reckoned from now is before a stored one."""
        assert at.high < other.low or at.low >= other.low, f"{at} before {other}?"
        return at.high < other.low

    def inside(self, place: str) -> list[Job]:
        """A set in the order of the server."""
        found = [job for job in self.jobs.values() if job.place == place]
        return sorted(found, key=lambda job: (job.score, job.id))

    def first_due(self) -> Ms:
        waiting = self.inside("schedule")
        return waiting[0].score if waiting else NEVER

    def lapsed(self, place: str, limit: int, ago: float = 0) -> list[Job]:
        """The first entries whose time has come, or came so long ago."""
        return [job for job in self.inside(place) if self.due(job.score.plus(ago))][:limit]

    def move(self, job: Job, place: str, score: Ms | None = None, **fields: Any) -> None:
        if place == "pending":
            score = Ms(-job.number("priority", 0), -job.number("priority", 0))
        assert score is not None
        job.place, job.score = place, score
        state = {"schedule": "scheduled"}.get(place, place)
        job.row.update(fields, state=state)
        if place in ("dead", "done"):
            self.free(job)
            self.tell(job, place)

    def forget(self, jobs: list[Job], word: str = "removed") -> int:
        for job in jobs:
            del self.jobs[job.id]
        for job in jobs:
            self.free(job)
            self.tell(job, word)
        return len(jobs)

    def tell(self, job: Job, word: str) -> None:
        """Who waits for the end of a job hears of it."""
        for name in job.row.pop("waiters", "").split():
            words, ends = self.waiting.get(name, ([], NEVER))
            before = [] if self.due(ends) else words
            self.waiting[name] = ([*before, word], self.now.plus(TOLD_MS))

    def free(self, job: Job) -> None:
        """A job has ended: its key goes to the one that waits behind it, or nobody has it."""
        digest, _, until = job.row.get("unique", "").partition(" ")
        holder_id, _ = self.keys.get(digest, ("", NEVER))
        if holder_id != job.id or until == "time":
            return
        if heir := self.heir(job):
            self.keys[digest] = (heir.id, NEVER)
            heir.score = heir.row.pop("due")
            del heir.row["behind"]
            self.ring()
        else:
            del self.keys[digest]

    def heir(self, job: Job) -> Job | None:
        """The job that waits behind this one."""
        heir = self.jobs.get(job.row.get("heir", ""))
        waits = heir and heir.place == "schedule" and heir.row.get("behind") == job.id
        return heir if waits else None

    def key_of(self, job: Job) -> str:
        """The key that a job that is not over may hold; '' for none."""
        digest, _, until = job.row.get("unique", "").partition(" ")
        return "" if until == "start" and job.token else str(digest)

    def keep_cap(self) -> None:
        """The morgue is full: the oldest go."""
        dead = self.inside("dead")
        self.count("trimmed", self.forget(dead[: max(len(dead) - self.dead_max, 0)]))

    def count(self, name: str, n: int = 1) -> None:
        self.totals += Counter({name: n})

    def note(self, event: str, job_id: str = "", token: Any = "") -> None:
        self.trail.append((event, job_id, str(token)))

    def ring(self, reason: object = True) -> None:
        self.wake = self.wake or bool(reason)

    def hush(self) -> None:
        """Somebody has heard."""
        self.wake = False

    def pass_ms(self, ms: int) -> None:
        """Time has passed: the same as all that is stored having been earlier."""
        for job in self.jobs.values():
            if job.place != "pending":
                job.score = job.score.plus(-ms)
            for name in TIMES:
                if name in job.row:
                    job.row[name] = job.row[name].plus(-ms)
        if "paused" in self.meta:
            self.meta["paused"] = self.meta["paused"].plus(-ms)
        self.window_ends = self.window_ends.plus(-ms)
        self.sent = {who: (r, ends.plus(-ms), v) for who, (r, ends, v) in self.sent.items()}
        self.given = {who: (r, ends.plus(-ms), g) for who, (r, ends, g) in self.given.items()}
        self.keys = {
            d: (i, ends if ends is NEVER else ends.plus(-ms)) for d, (i, ends) in self.keys.items()
        }
        self.waiting = {who: (w, ends.plus(-ms)) for who, (w, ends) in self.waiting.items()}
        self.fences = {res: (n, ends.plus(-ms)) for res, (n, ends) in self.fences.items()}

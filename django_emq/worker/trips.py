"""The courier's trips: each settles outcomes and claims jobs in one round trip.

Two may be under way. While the answer of one is read, entered and followed up, the server works
on the other and does not wait; with little to do there is one at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import Any

from .. import scripts
from ..batches import Batch, line_of
from ..connections import Client
from ..context import JobContext
from ..exceptions import EmqError, JobGone, ServerError
from ..jobs import Claimed, Claims
from ..log import Outage, get_logger
from .appetite import CHUNK
from .ledger import Ledger
from .notebook import Notebook, Said
from .options import BEAT, WorkerOptions
from .outcome import Outcome, report
from .teller import Teller
from .turns import Turns

logger = get_logger("worker")

DEPTH = 2  # trips under way at once
MUCH = CHUNK // 2  # outcomes or jobs that are worth a trip beside another
BACK = {"release", "retry", "snooze"}  # after these there may be more to claim
OPTION = {"complete": "keep_ms", "retry": "max_attempts"}

# A queue, and one of the claimers 0 … DEPTH - 1: each makes one claim at a time.
Ask = tuple[str, int]


@dataclass(slots=True, eq=False)
class Trip:
    """What was sent together."""

    groups: list[list[Outcome]]  # of one script call each
    outcomes: list[Outcome]
    asks: list[Ask]  # the first is part of the batch, the next are asked for what it did not have
    woken: set[str]  # queues whose wake was taken before it left
    want: int
    claimer: int
    whole: bool  # whether all queues were to be asked
    said: list[list[Said]]  # what runs say of themselves, by script call: these come first


class Trips:
    """Moves outcomes and jobs between one process and the server. Only its courier calls it.

    :ivar outbox: outcomes to be settled; runners append to it.
    :ivar awaited: who waits for the verdict on a job.
    :ivar dry: nothing more to claim, until a wake or `look_at`.
    :ivar woken: queues whose wake was taken, so a claim must follow.
    :ivar look: queues to be asked by the next claim, whoever has the turn.
    """

    def __init__(
        self,
        client: Client,
        options: WorkerOptions,
        worker: str,
        ledger: Ledger,
        inbox: SimpleQueue[Claimed | None],
        outage: Outage,
        teller: Teller,
        lost: Callable[[JobContext, bool], object] = lambda *_: None,
    ) -> None:
        self.outbox: deque[Outcome] = deque()
        self.awaited: dict[Claimed, Callable[[Any], None]] = {}
        self.dry = False
        self.woken: set[str] = set()
        self.turns = Turns(options.queues, options.weights)
        self.look = set(options.queues)
        self.look_at = 0.0  # when a dry queue has more without a wake
        self._client = client
        self._line = line_of(client)
        self._options = options
        self._worker = worker
        self._ledger = ledger
        self._inbox = inbox
        self._outage = outage
        self._teller = teller
        self.notebook = Notebook(lost)
        self._under_way: deque[Trip] = deque()
        self._doubtful: set[Claimed] = set()  # jobs whose outcome was sent, answer unknown
        self._requests: dict[Ask, int] = {}  # claims that have not been answered
        self._request = 0

    @property
    def under_way(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._under_way)

    @property
    def asked(self) -> int:
        """How many jobs the trips under way may bring."""
        return sum(trip.want for trip in self._under_way)

    def idle(self) -> bool:
        """Whether nothing is under way or unanswered."""
        return not self._under_way and not self._requests

    def look_again(self) -> None:
        """Have the next claim ask all queues."""
        self.dry, self.look = False, set(self.turns.queues)

    def due(self, want: int, low: bool) -> bool:
        """Whether to leave now: for anything when none is under way, for much beside another."""
        claim = want > 0 and not self.dry and low
        if not self._under_way:
            due = claim or bool(self.woken or self.outbox or self._requests)
            return due or self.notebook.due()
        if len(self._under_way) == DEPTH:
            return False
        return len(self.outbox) >= MUCH or (claim and want >= MUCH)

    def leave(self, want: int) -> None:
        """Send outcomes, and a claim of `want` jobs; `arrive` takes the answer."""
        outcomes: list[Outcome] = []
        while len(outcomes) < CHUNK:
            try:
                outcomes.append(self.outbox.popleft())
            except IndexError:
                break
        try:
            batch, trip = self._packed(outcomes, want)
        except BaseException:
            self._put_back(outcomes)
            raise
        self._under_way.append(trip)
        try:
            self._line.post(batch)
        except EmqError as error:
            self._lost(error)

    def arrive(self) -> bool:
        """Wait for the answer of the oldest trip; answers whether all of it was carried out."""
        try:
            answers = self._line.collect()
        except EmqError as error:
            self._lost(error)
            return False
        except Exception:  # a fault of ours, in the reading of a reply
            self._line.drop()
            self._give_up()
            raise
        trip = self._under_way.popleft()
        left = trip.outcomes  # should this stumble, they are sent again, and known by then
        if trip.said:
            count = len(trip.said)
            ended = {outcome.context for outcome in left}
            self.notebook.told(trip.said, answers[:count], ended)
            answers = answers[count:]
        try:
            left = self._settled(trip, answers)
            if trip.asks:
                self._claimed(trip, answers[-1])
        finally:
            self._put_back(left)
        if any(outcome.verb in BACK for outcome in trip.outcomes):
            self.dry = False  # a server that had forgotten a script settles after the claim
        done = not left and not self._unanswered()
        if done and not self._doubtful:
            self._outage.over()
        return done

    def settle_all(self) -> bool:
        """Settle the outbox, and wait for it; answers whether all was carried out."""
        while self._under_way or self.outbox or self._requests:
            if not self._under_way:
                self.leave(0)
            if not self._under_way or not self.arrive():
                return False
        return True

    def close(self) -> None:
        """Give the connection back."""
        self._line.drop()

    # -- on the way out -----------------------------------------------------------------------

    def _packed(self, outcomes: list[Outcome], want: int) -> tuple[Batch, Trip]:
        claimer = 1 - self._under_way[0].claimer if self._under_way else 0
        batch = Batch(self._client)
        said = self.notebook.pack(batch, outcomes) if self.notebook.noted else []
        groups, asks = self._settle(batch, outcomes), self._asks(want, claimer)
        for ask in asks[:1]:
            self._claim(batch, ask, want)
        woken, self.woken = self.woken, set()
        whole = not self.turns.split or (want > 0 and len(self.look) == len(self.turns.queues))
        if want:
            self.look = set()
        return batch, Trip(groups, outcomes, asks, woken, want, claimer, whole, said)

    def _asks(self, want: int, claimer: int) -> list[Ask]:
        """Whom to ask for jobs.

        A claim whose answer was lost comes first, also when nothing more is wanted: the jobs
        that it was given are ours.
        """
        asks = self._unanswered()
        if want or self.woken:
            if self._options.burst:  # which is over when nobody has more
                self.look = set(self.turns.queues)
            new = ((queue, claimer) for queue in self.turns.next(self.woken, self.look))
            asks += [ask for ask in new if ask not in self._requests]
        return asks

    def _unanswered(self) -> list[Ask]:
        """Claims whose answer was lost."""
        awaited = {ask for trip in self._under_way for ask in trip.asks}
        return [ask for ask in self._requests if ask not in awaited]

    def _claim(self, way: Client | Batch, ask: Ask, count: int) -> Claims:
        """Claim, under the same name as before while the answer of that is unknown."""
        queue, claimer = ask
        if ask not in self._requests:
            self._request += 1
            self._requests[ask] = self._request
        return scripts.claim(
            way,
            queue,
            worker=self._worker,
            claimer=claimer,
            request=self._requests[ask],
            lease_ms=self._options.lease_ms,
            count=count,
        )

    def _settle(self, batch: Batch, outcomes: list[Outcome]) -> list[list[Outcome]]:
        calls: dict[tuple[str, str, int], list[Outcome]] = {}
        for outcome in outcomes:
            key = (outcome.context.claimed.queue, outcome.verb, outcome.option)
            calls.setdefault(key, []).append(outcome)
        for (queue, verb, option), group in calls.items():
            items = [(o.context.claimed.id, o.context.claimed.token, *o.details) for o in group]
            options = {OPTION[verb]: option} if verb in OPTION else {}
            getattr(scripts, verb)(batch, queue, items, **options)
        return list(calls.values())

    # -- on the way back ----------------------------------------------------------------------

    def _lost(self, error: EmqError) -> None:
        """The connection broke: whatever was under way is sent again."""
        self._outage.failed(error)
        self._give_up()

    def _give_up(self) -> None:
        """Take back what was under way: nothing is known of it."""
        outcomes = [outcome for trip in self._under_way for outcome in trip.outcomes]
        self.woken = self.woken.union(*(trip.woken for trip in self._under_way))
        for trip in reversed(self._under_way):
            self.notebook.give_back(trip.said)
        self._under_way.clear()
        self.look = set(self.turns.queues)
        self._put_back(outcomes)

    def _put_back(self, outcomes: list[Outcome]) -> None:
        self._doubtful.update(outcome.context.claimed for outcome in outcomes)
        self.outbox.extendleft(reversed(outcomes))

    def _settled(self, trip: Trip, answers: Iterable[Any]) -> list[Outcome]:
        """Take the verdicts; answers the outcomes that must be sent again."""
        left: list[Outcome] = []
        for group, verdicts in zip(trip.groups, answers, strict=False):
            if isinstance(verdicts, EmqError):  # this call was not carried out
                self._outage.failed(verdicts)
                left += group
            else:
                left += self._judged(group, verdicts)
        return left

    def _judged(self, group: list[Outcome], verdicts: list[Any]) -> list[Outcome]:
        quiet = not logger.isEnabledFor(logging.DEBUG)
        if (
            quiet
            and not self.awaited
            and group[0].verb == "complete"
            and verdicts.count(1) == len(group)
        ):
            jobs = {outcome.context.claimed for outcome in group}
            self._ledger.strike_all(jobs)
            self._doubtful -= jobs
            return []
        left = []
        for outcome, verdict in zip(group, verdicts, strict=True):
            job = outcome.context.claimed
            if isinstance(verdict, ServerError):
                left.append(outcome)
                self._outage.failed(verdict)
                continue
            self._ledger.strike(job)
            gone = verdict == 0 or isinstance(verdict, JobGone)
            if gone and job in self._doubtful:
                verdict = 1  # the first sending did it; its reply was lost
            self._doubtful.discard(job)
            if verdict != 1 or not quiet or outcome.verb == "bury":
                report(outcome, verdict)
                self._teller.verdict(outcome, verdict)
            if job in self.awaited:
                self.awaited.pop(job)(verdict)
        return left

    def _claimed(self, trip: Trip, first: Any) -> None:
        """Take the claim of the first queue, and ask the next ones for what it did not have.

        A queue whose wake was taken is asked for nothing at least: that wakes the next worker.
        """
        if trip.whole:  # else not all have said when they have more
            self.look_at = monotonic() + BEAT * 2
        left, counted = trip.want, trip.want > 0
        given: dict[str, int] = {}
        answer: Claims | EmqError = first
        for number, ask in enumerate(trip.asks):
            if number:
                if counted and left <= 0 and ask[0] not in trip.woken:
                    continue
                try:
                    answer = self._claim(self._client, ask, max(left, 0))
                except EmqError as error:
                    answer = error
            if isinstance(answer, EmqError):
                self._outage.failed(answer)
                if self._client.shards:  # the next queue may be on a server that answers
                    continue
                return
            del self._requests[ask]
            if left > 0:
                given[ask[0]] = len(answer.jobs)
            left -= len(answer.jobs)
            self.turns.told(ask[0], rich=counted and left <= 0)
            self._take(ask[0], answer)
        self.turns.took(given)
        self.dry = counted and left > 0

    def _take(self, queue: str, claims: Claims) -> None:
        if claims.next_ms >= 0:
            self.look_at = min(self.look_at, monotonic() + claims.next_ms / 1000)
        if claims.jobs:
            self._ledger.add(queue, claims)
            for job in claims.jobs:
                self._inbox.put(job)

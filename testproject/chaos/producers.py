"""Threads that enqueue all kinds of jobs, and know of each what the server said."""

from __future__ import annotations

import random
import threading
from collections import Counter

import django_emq as emq
from django_emq import connections, inspector
from django_emq.exceptions import EmqError
from django_emq.registry import AnyTask, Unsent

from . import tasks

LONG = 1.5  # seconds that a job of LATE takes at least, now and then
LATE = {t.func for t in (tasks.fail_twice, tasks.fail_always, tasks.snooze_once, tasks.give_up)}
ENOUGH = 300  # waiting jobs, after which a producer waits: slow machines have less to do then


def _any_job(dice: random.Random) -> Unsent:
    """One job of any kind; a third of them take long enough to be caught in the middle.

    Some of those that are not simply done take longer than a lease: who is stopped with one of
    them, and ends it late, finds that another worker has it and is in the middle of it. Only then
    does a verb show what it does with a token that is not the newest.
    """
    soon = dice.uniform(0.1, 2)
    kinds: dict[AnyTask, int] = {
        tasks.work: 6,
        tasks.work.using(run_in=soon): 2,
        tasks.work.using(priority=5): 2,
        tasks.awork: 4,
        tasks.fail_twice: 3,
        tasks.fail_twice.using(run_in=soon): 1,
        tasks.fail_always: 1,
        tasks.snooze_once: 2,
        tasks.drop: 1,
        tasks.give_up: 1,
        tasks.answer: 2,
    }
    task: AnyTask = dice.choices([*kinds], [*kinds.values()])[0]
    seconds = dice.choice((0.0, 0.0, dice.uniform(0.05, 1.2)))
    if task.func in LATE and dice.random() < 0.2:
        seconds = dice.uniform(LONG, 2 * LONG)
    return task.job(round(seconds, 3))


class Producer(threading.Thread):
    """Enqueues until it is told to stop.

    :ivar admitted: jobs that the server has taken, with the result that each will have, if any.
    :ivar said: how often which answer was had.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(name=f"producer-{seed}", daemon=True)
        self.admitted: dict[str, float | None] = {}
        self.said: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._dice = random.Random(seed)
        self._stop_it = threading.Event()

    def run(self) -> None:
        """Enqueue, now one and now several."""
        try:
            while not self._stop_it.wait(self._dice.uniform(0.05, 0.25)):
                self.enqueue(
                    [_any_job(self._dice) for _ in range(self._dice.choice((1, 1, 1, 12)))]
                )
        except BaseException as error:
            self.error = error

    def enqueue(self, jobs: list[Unsent]) -> None:
        """Enqueue, and note what came of it."""
        try:
            if (
                inspector.counts(connections.client(), tasks.QUEUE, ("pending",))["pending"]
                > ENOUGH
            ):
                return
            made = emq.enqueue_many(jobs)
        except EmqError as error:
            self.said[type(error).__name__] += 1
            return
        for unsent, job in zip(jobs, made, strict=True):
            self.said[job.status] += 1
            if job.error is None:
                kept = unsent.task.name == tasks.answer.name
                self.admitted[job.id] = unsent.args[0] if kept else None

    def stop(self) -> None:
        """End it, and wait for that. Raises what it died of."""
        self._stop_it.set()
        self.join()
        if self.error is not None:
            raise self.error

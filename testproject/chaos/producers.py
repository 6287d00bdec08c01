"""Threads that enqueue all kinds of jobs, and know of each what the server said."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import django_emq as emq
from django_emq import connections, inspector
from django_emq.exceptions import EmqError
from django_emq.registry import Unsent

from . import tasks

ENOUGH = 300  # waiting jobs, after which a producer waits: slow machines have less to do then


def _kinds(dice: random.Random) -> Unsent:
    """One job of any kind."""
    number = dice.randrange(1000)
    soon = dice.uniform(0.1, 2)
    kinds: list[tuple[int, Callable[[], Unsent]]] = [
        (6, tasks.work.job),
        (4, lambda: tasks.work.job(dice.uniform(0.05, 1))),
        (2, lambda: tasks.work.using(run_in=soon).job()),
        (2, lambda: tasks.work.using(priority=5).job()),
        (3, lambda: tasks.awork.job(dice.uniform(0.05, 2))),
        (2, lambda: tasks.fail_twice.using(run_in=dice.choice((None, soon))).job()),
        (1, tasks.fail_always.job),
        (2, tasks.snooze_once.job),
        (1, tasks.drop.job),
        (1, tasks.give_up.job),
        (2, lambda: tasks.answer.job(number)),
    ]
    weights, makers = zip(*kinds, strict=True)
    make: Callable[[], Unsent] = dice.choices(makers, weights)[0]
    return make()


class Producer(threading.Thread):
    """Enqueues until it is told to stop.

    :ivar admitted: jobs that the server has taken, with the result that each will have, if any.
    :ivar said: how often which answer was had.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(name=f"producer-{seed}", daemon=True)
        self.admitted: dict[str, int | None] = {}
        self.said: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._dice = random.Random(seed)
        self._stop_it = threading.Event()

    def run(self) -> None:
        """Enqueue, now one and now several."""
        try:
            while not self._stop_it.wait(self._dice.uniform(0.05, 0.25)):
                self.enqueue([_kinds(self._dice) for _ in range(self._dice.choice((1, 1, 1, 12)))])
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
                self.admitted[job.id] = 2 * unsent.args[0] if kept else None

    def stop(self) -> None:
        """End it, and wait for that. Raises what it died of."""
        self._stop_it.set()
        self.join()
        if self.error is not None:
            raise self.error

"""In which order a courier asks its queues, and the partitions of a queue among them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from time import monotonic

from ..conf import settings

# Seconds after which a queue that had nothing is asked first again, when others have the turn.
LOOK_EVERY = 0.05


class Turns:
    """The queues of a worker: in the order in which they were named, or by their weights.

    All partitions of a queue stand where the queue was named, and each time another one of them is
    the first, so that none starves. Most of the time only that one is asked, and those that had as
    much as was wanted when they were asked last: whoever else has work keeps a token on its `wake`,
    and the blocking pop says whose it took. So a look costs no more calls than that of a worker
    with one queue.

    :param weights: by queue, a queue with partitions as a whole; none for the order of naming.
    :ivar split: whether there is a queue with more than one partition.
    :ivar fixed: whether the order is always the same.
    """

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int] | None = None) -> None:
        self.queues = tuple(queues)
        self._whole = {queue: settings().whole(queue) for queue in queues}
        families: dict[str, list[str]] = {}
        for queue in queues:
            families.setdefault(self._whole[queue], []).append(queue)
        self._families = families
        self._parts = {q for family in families.values() if len(family) > 1 for q in family}
        self.split = bool(self._parts)
        # Not the same for all workers. By weights each queue has turns of its own, or those of its
        # partitions could fall in step with those of the queues, and one of them never come first.
        self._turn = random.randrange(1_000_000)
        self._own_turns = dict.fromkeys(families, 0)
        self._rich: set[str] = set()  # may have more, and nobody was told when
        self._shares = (
            Shares({name: weights.get(name, 1) for name in families}) if weights else None
        )
        self.fixed = not self.split and self._shares is None

    def next(self, woken: Set[str], look: Set[str]) -> Sequence[str]:
        """The queues to be asked now.

        :param woken: those for which a wake was taken: they come first.
        :param look: others that are to be asked.
        """
        if not self.split:
            return self.all()
        if self._shares is None:
            self._turn += 1
        wanted = woken | look
        if wanted & self._parts:
            asked = [queue for queue in self.all() if queue in wanted]
            return sorted(asked, key=lambda queue: queue not in woken)
        return [
            queue
            for family in self._turned()
            for at, queue in enumerate(family)
            if not at or queue in self._rich
        ]

    def told(self, queue: str, *, rich: bool) -> None:
        """Note whether a queue had as much as was wanted of it, so that it did not say more."""
        if rich:
            self._rich.add(queue)
        else:
            self._rich.discard(queue)

    def took(self, jobs: Mapping[str, int]) -> None:
        """Note how many jobs each of the queues has given that were asked for some."""
        if self._shares is None:
            return
        given: dict[str, int] = {}
        for queue, count in jobs.items():
            given[self._whole[queue]] = given.get(self._whole[queue], 0) + count
        for name in given:
            self._own_turns[name] += 1
        self._shares.took(given)

    def all(self) -> Sequence[str]:
        """All queues, in the order of this turn."""
        if self.fixed:
            return self.queues
        return [queue for family in self._turned() for queue in family]

    def _turned(self) -> list[list[str]]:
        names = list(self._families) if self._shares is None else self._shares.order()
        turned = []
        for name in names:
            family = self._families[name]
            first = (self._turn + self._own_turns[name]) % len(family)
            turned.append(family[first:] + family[:first])
        return turned


class Shares:
    """Which queue has the turn, so that each gives jobs in proportion to its weight.

    Each job that a queue gives costs it the inverse of its weight, and the one that has paid least
    is next. One that had nothing pays nothing, and saves nothing up: when it has work again it goes
    on from where the others are. So its share is theirs meanwhile. That it has work again is seen
    within LOOK_EVERY while the others have enough, and at once when they have not.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._price = {name: 1 / weight for name, weight in weights.items()}
        self._paid = {name: random.uniform(0, price) for name, price in self._price.items()}
        self._look_at: dict[str, float] = {}  # when one that had nothing comes first again

    def order(self) -> list[str]:
        """All queues, the one whose turn it is first."""
        now, level = monotonic(), self._level()

        def place(name: str) -> tuple[bool, float, bool]:
            if name not in self._look_at:
                return False, self._paid[name], True
            # Before its equals: a single other one that always has enough is always its equal.
            return now < self._look_at[name], max(self._paid[name], level), False

        return sorted(self._paid, key=place)

    def took(self, given: Mapping[str, int]) -> None:
        """Have queues pay for the jobs that they gave; those that gave none had none."""
        level = self._level()
        for name, count in given.items():
            if not count:
                self._look_at[name] = monotonic() + LOOK_EVERY
                continue
            if self._look_at.pop(name, None) is not None:
                self._paid[name] = max(self._paid[name], level)
            self._paid[name] += count * self._price[name]

    def _level(self) -> float:
        """What those have paid at least that have work."""
        busy = [paid for name, paid in self._paid.items() if name not in self._look_at]
        return min(busy or self._paid.values())

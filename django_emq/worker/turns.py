"""In which order a courier asks its queues, and the partitions of a queue among them."""

from __future__ import annotations

import random
from collections.abc import Sequence, Set

from ..conf import settings


class Turns:
    """The queues of a worker: in the order in which they were named, partitions by turns.

    All partitions of a queue stand where the queue was named, and each time another one of them is
    the first, so that none starves. Most of the time only that one is asked, and those that had as
    much as was wanted when they were asked last: whoever else has work keeps a token on its `wake`,
    and the blocking pop says whose it took. So a look costs no more calls than that of a worker
    with one queue.

    :ivar split: whether there is a queue with more than one partition.
    """

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = tuple(queues)
        whole = settings().whole
        families: dict[str, list[str]] = {}
        for queue in queues:
            families.setdefault(whole(queue), []).append(queue)
        self._families = list(families.values())
        self._parts = {q for family in self._families if len(family) > 1 for q in family}
        self.split = bool(self._parts)
        self._turn = random.randrange(1_000_000)  # not the same for all workers
        self._rich: set[str] = set()  # may have more, and nobody was told when

    def next(self, woken: Set[str], look: Set[str]) -> Sequence[str]:
        """The queues to be asked now.

        :param woken: those for which a wake was taken: they come first.
        :param look: others that are to be asked.
        """
        if not self.split:
            return self.queues
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
        return [*asked, *(queue for queue in woken if queue not in asked)]

    def told(self, queue: str, *, rich: bool) -> None:
        """Note whether a queue had as much as was wanted of it, so that it did not say more."""
        if rich:
            self._rich.add(queue)
        else:
            self._rich.discard(queue)

    def all(self) -> Sequence[str]:
        """All queues, in the order of this turn."""
        if not self.split:
            return self.queues
        return [queue for family in self._turned() for queue in family]

    def _turned(self) -> list[list[str]]:
        turned = []
        for family in self._families:
            first = self._turn % len(family)
            turned.append(family[first:] + family[:first])
        return turned

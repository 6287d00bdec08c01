"""What a process holds, and what it tells its supervisor of it."""

from __future__ import annotations

from collections.abc import Iterable

from ..jobs import Claimed, Claims
from .page import Page


class Ledger:
    """The held jobs of one process. Only the courier's thread calls it.

    The supervisor reads the receipts of whole claims from the page; that some of their jobs are
    settled already does no harm, since the server refuses what is done in their name.
    """

    def __init__(self, page: Page, queues: tuple[str, ...]) -> None:
        self.jobs: set[Claimed] = set()
        self._page = page
        self._numbers = {queue: number for number, queue in enumerate(queues)}
        self._lots: list[tuple[bytes, list[Claimed]]] = []  # a line of the page, and its jobs

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, queue: str, claims: Claims) -> None:
        """Enter the jobs of a claim, and publish them before any of them can start."""
        self._lots = [lot for lot in self._lots if not self.jobs.isdisjoint(lot[1])]
        self.jobs.update(claims.jobs)
        self._lots.append((b"%d %b" % (self._numbers[queue], claims.receipt), claims.jobs))
        self._publish()

    def strike(self, job: Claimed) -> None:
        """Take out a job that is settled or lost."""
        self.jobs.discard(job)

    def strike_all(self, jobs: Iterable[Claimed]) -> None:
        """Take out jobs that are settled."""
        self.jobs.difference_update(jobs)

    def find(self, job_id: bytes, token: int) -> Claimed | None:
        """The held job of this id and token."""
        return next((j for j in self.jobs if j.id == job_id and j.token == token), None)

    def compact(self) -> None:
        """Leave out what is settled, so that a long job does not keep its whole claim in sight."""
        lots = []
        for line, jobs in self._lots:
            left = [job for job in jobs if job in self.jobs]
            if len(left) < len(jobs) and left:
                number = self._numbers[left[0].queue]
                line = b"%d -" % number + b"".join(b" %b:%d" % (j.id, j.token) for j in left)
            if left:
                lots.append((line, left))
        if lots != self._lots:
            self._lots = lots
            self._publish()

    def by_queue(self) -> dict[str, list[tuple[bytes, int]]]:
        """Ids and tokens of all held jobs."""
        return group((job.queue, job.id, job.token) for job in self.jobs)

    def _publish(self) -> None:
        held = b"\n".join([line for line, _ in self._lots])
        if len(held) > self._page.held_max:  # many claims of which little is left
            self.compact()
        else:
            self._page.publish(held)


def group(held: Iterable[tuple[str, bytes, int]]) -> dict[str, list[tuple[bytes, int]]]:
    """Ids and tokens by queue."""
    queues: dict[str, list[tuple[bytes, int]]] = {}
    for queue, job_id, token in held:
        queues.setdefault(queue, []).append((job_id, token))
    return queues

"""What a worker was told to do."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import registry
from ..conf import settings
from ..partitions import folded

WINDOW = 0.05  # seconds of work that may wait in a worker in front of its runners
BEAT = 10.0  # seconds between two looks of an idle worker that nothing has woken


def default_name() -> str:
    """Host and process."""
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of `emq_worker`; times in seconds."""

    queues: tuple[str, ...]
    lease: float  # how long a claim holds before it must be extended
    processes: int = 1
    threads: int = 1
    grace: float = 30.0  # how long running jobs may go on after a stop
    burst: bool = False  # exit when no job is ready
    max_jobs: int = 0  # jobs after which a process is replaced; 0 for never
    max_rss_mb: int = 0  # memory after which a process is replaced; 0 for never
    name: str = field(default_factory=default_name)
    sweep: bool = True
    health_file: str = ""
    # By queue, a queue with partitions as a whole; none to serve them in their order.
    weights: Mapping[str, int] = field(default_factory=dict)
    # The random part keeps two workers of one name from being taken for one claimer.
    mark: str = field(default_factory=lambda: secrets.token_hex(3))

    @property
    def worker_id(self) -> str:
        """What rows and the list of workers call this worker."""
        return f"{self.name}-{self.mark}"

    @property
    def served(self) -> str:
        """Its queues, for people: ``mail:3, default``."""
        names = folded(self.queues)
        weights = {name: self.weights.get(settings().whole(name), 1) for name in names}
        return ", ".join(f"{n}:{w}" if w > 1 else n for n, w in weights.items())

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return int(self.lease * 1000)

    @property
    def sweep_every(self) -> float:
        """Seconds between two sweeps, at most: the shortest lease in use, or ten seconds.

        So each lease is seen before it can lapse, and the sweep that sees it knows when the next
        one is due.
        """
        return min(10.0, 3 * self.extend_every)

    @property
    def extend_every(self) -> float:
        """Seconds between two extensions: a third of the shortest lease in use."""
        return min([self.lease, *(ms / 1000 for ms in registry.leases())]) / 3


def lease_of(queues: tuple[str, ...]) -> float:
    """The shortest LEASE of the queues, which a worker that serves them all must keep."""
    conf = settings()
    return min(conf.queue(queue).lease for queue in queues)

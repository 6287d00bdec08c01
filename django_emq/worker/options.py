"""What a worker was told to do."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

from .. import registry
from ..conf import settings

WINDOW = 0.05  # seconds of work that may wait in a worker in front of its runners
BEAT = 10.0  # seconds between two looks of an idle worker that nothing has woken


def default_name() -> str:
    """Host and process, for people; the workers' ids carry a random part beside it."""
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

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return int(self.lease * 1000)

    @property
    def extend_every(self) -> float:
        """Seconds between two extensions: a third of the shortest lease in use."""
        leases = [registry.get(name).lease_ms / 1000 for name in registry.names()]
        return min([self.lease, *filter(None, leases)]) / 3


def lease_of(queues: tuple[str, ...]) -> float:
    """The shortest LEASE of the queues, which a worker that serves them all must keep."""
    conf = settings()
    return min(conf.queue(queue).lease for queue in queues)

"""A worker's word in the list of workers, and its sign of life for a container's probe."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from .. import __version__, scripts
from ..connections import Client
from .options import WorkerOptions

BEAT_EVERY = 10.0  # seconds
BEAT_TTL_MS = 30_000


class Presence:
    """Says that a worker is there; raises an EmqError when the server cannot be told."""

    def __init__(self, client: Client, options: WorkerOptions) -> None:
        self._client = client
        self._options = options

    def beat(self, *, jobs: int, stopping: bool) -> None:
        """Say it once: the word holds for 30 seconds. Raises VersionFence, too."""
        options = self._options
        scripts.register(self._client, options.queues)
        facts = {
            "name": options.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": " ".join(options.queues),
            "processes": options.processes,
            "threads": options.threads,
            "version": __version__,
            "jobs": jobs,
            "state": "stopping" if stopping else "running",
        }
        scripts.beat(self._client, options.worker_id, ttl_ms=BEAT_TTL_MS, facts=facts)
        if options.health_file:
            Path(options.health_file).touch()

    def leave(self) -> None:
        """Take the worker off the list."""
        scripts.beat(self._client, self._options.worker_id, ttl_ms=0, facts={})


def rss_mb() -> float:
    """Memory of this process in MB, or 0.0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0

"""A worker's word in the list of workers, and its sign of life for a container's probe."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

from .. import __version__, scripts
from ..connections import Client
from ..log import get_logger
from .options import WorkerOptions

logger = get_logger("worker")

BEAT_EVERY = 10.0  # seconds
BEAT_TTL_MS = 30_000
SOON = 1.1  # seconds in which all children have obeyed a word, and the list may say so


class Presence:
    """Says that a worker is there; raises an EmqError when the server cannot be told.

    :ivar quiet: an operator has asked it to take no more jobs. It is remembered here and not on
        the server, so a worker that is started again is not quiet.
    """

    def __init__(self, client: Client, options: WorkerOptions) -> None:
        self._client = client
        self._options = options
        self.quiet = False

    def beat(self, *, jobs: int, stopping: bool, children: Iterable[int] = ()) -> str:
        """Say it once: the word holds for 30 seconds. Raises VersionFence, too.

        :param children: pids, whose memory is told with that of this process.

        Answers what an operator asks for that is not done yet: 'quiet', 'resume', 'stop' or ''.
        """
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
            "state": "stopping" if stopping else "quiet" if self.quiet else "running",
        }
        if rss := rss_mb() + sum(rss_mb(child) for child in children):
            facts["rss_mb"] = round(rss)
        word, by = scripts.beat(self._client, options.worker_id, ttl_ms=BEAT_TTL_MS, facts=facts)
        if options.health_file:
            Path(options.health_file).touch()
        if stopping or not word or word == ("quiet" if self.quiet else "resume"):
            return ""
        self.quiet = word == "quiet"
        logger.info("worker %s: %s, as %s asks", options.name, word, by or "somebody")
        return word

    def leave(self) -> None:
        """Take the worker off the list."""
        scripts.beat(self._client, self._options.worker_id, ttl_ms=0, facts={})


def rss_mb(pid: int | str = "self") -> float:
    """Memory of this process or another one in MB, or 0.0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0

"""Small things that several test modules need: processes by their number, one run of a worker."""

from __future__ import annotations

from pathlib import Path

from django_emq.keys import queue_keys
from tests.processes import PATIENCE, Worker

QUEUE = "default"


def children(pid: int) -> list[int]:
    """Pids of the child processes, the oldest first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended; one that nobody has waited for has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def burst(*args: str, seconds: float = PATIENCE, **env: str) -> str:
    """Run a worker until nothing is ready; its output."""
    with Worker("--burst", *args, **env) as worker:
        assert worker.wait(seconds) == 0, worker.output
    return worker.output


def lease_ends(client, job_id: str, queue: str = QUEUE) -> float | None:
    """When the lease of a job ends, in ms of the server's clock; None when it is not held."""
    return client.raw.zscore(queue_keys(queue).active, job_id)

"""Another client, to which a server that is busy with one call does not answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from private_server import Server

from tests.helpers import forked


def ran_s(pid: int | str) -> float:
    """Seconds that a process has run since its start."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def queued_s(pid: int | str) -> float:
    """Seconds that a process has waited for a CPU since its start."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextlib.contextmanager
def pings(server: Server, file: Path) -> Iterator[Callable[[], float]]:
    """Send PING every 10 ms during the block; ask for the longest wait so far, in seconds.

    Only what the server did in the meantime counts: how long it ran until the answer was there. So
    a machine with too few processors, or one that stands still itself, is not held against it. (Nor
    is a disk: a test whose server writes to one needs another measure.)
    The block begins before there are threads.
    """

    def ping() -> None:
        client = server.client()
        while True:
            start, ran = time.monotonic(), ran_s(server.pid or 0)
            client.ping()
            took = time.monotonic() - start
            with file.open("a") as out:
                out.write(f"{min(took, ran_s(server.pid or 0) - ran):.6f}\n")
            time.sleep(0.01)

    def longest() -> float:
        return max(map(float, file.read_text().split()))

    with forked(ping):
        yield longest


@contextlib.contextmanager
def no_slow_call(server: Server, *, ms: int = 50) -> Iterator[None]:
    """No command, of whomever, takes the server longer than this during the block.

    The slow log goes by the clock on the wall. So what it holds is forgiven as far as the server
    was kept waiting for a CPU meanwhile: nothing on a machine that has one to spare.
    """
    with server.client() as client:
        client.config_set("slowlog-max-len", 10_000)
        client.config_set("slowlog-log-slower-than", ms * 1000)
        client.slowlog_reset()
        queued = queued_s(server.pid or 0)
        yield
        queued = queued_s(server.pid or 0) - queued
        slow = client.slowlog_get(10_000)
        over = sum(entry["duration"] / 1e6 - ms / 1000 for entry in slow)
        worst = [(entry["duration"], entry["command"][:80]) for entry in slow]
        assert over <= queued, (queued, worst)

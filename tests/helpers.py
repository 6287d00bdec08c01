"""Small things that several test modules need: processes by their number, one run of a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
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


def point_at(settings, url: str, **options: object) -> None:
    """Have this process use the server at a URL, with these OPTIONS of the alias."""
    alias = {**settings.CACHES["emq"], "LOCATION": url, **({"OPTIONS": options} if options else {})}
    settings.CACHES = {**settings.CACHES, "emq": alias}


@contextlib.contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """Do `work` in a copy of this process, which the block may kill; its pid.

    Only where no thread runs beside the test: a copy would keep the thread's locks for ever.
    """
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def again_and_again(look: Callable[[], object], *, every: float = 0.01) -> Iterator[None]:
    """Call `look` in a thread during the block; what it raises is raised at the end."""
    stop, raised = threading.Event(), []

    def run() -> None:
        while not stop.wait(every) and not raised:
            try:
                look()
            except BaseException as error:
                raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if raised:
        raise raised[0]


# Rows and entries as the verbs would leave them, many in one call.
_SEED = """
for i = tonumber(ARGV[3]), tonumber(ARGV[4]) do
  local id = string.format('JOB%022d', i)
  redis.call('HSET', ARGV[2] .. id, 'state', ARGV[1], 'attempts', '1', 'payload', ARGV[7],
    'last_error', 'ValueError: b')
  redis.call('ZADD', KEYS[1], ARGV[5] + ARGV[6] * i, id)
end
"""


def seed(client, queue: str, name: str, count: int, *, score: float, step: float = 0) -> None:
    """Put so many jobs into a set, quickly; each has a score that is `step` above the last."""
    keys = queue_keys(queue)
    payload = '{"task":"tests.probe.tasks.mark","args":[1]}'
    for start in range(1, count + 1, 10_000):
        end = min(start + 9_999, count)
        args = (name, keys.jobs, start, end, f"{score:.0f}", step, payload)
        client.raw.eval(_SEED, 1, getattr(keys, name), *args)


def lease_ends(client, job_id: str, queue: str = QUEUE) -> float | None:
    """When the lease of a job ends, in ms of the server's clock; None when it is not held."""
    return client.raw.zscore(queue_keys(queue).active, job_id)

"""Where one measurement happens: a server that is fresh, a board, and worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from django.conf import settings
from django.test import override_settings
from interrupts import held
from library.outside import die_with_the_parent
from private_server import Server, private_server

import django_emq as emq
from django_emq import connections, inspector
from django_emq.conf import settings as emq_settings
from django_emq.registry import AnyTask

from .board import VARIABLE, Board

CHUNK = 10_000  # jobs in one call of enqueue_many
EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec")
PATIENCE = 30.0  # seconds without a single job, after which something is wrong
LOOK = 0.005  # seconds between two looks at the board: they cost the cores next to nothing
MANAGE = Path(settings.BASE_DIR) / "manage.py"


class Miscount(Exception):
    """A job did not run, or ran twice: the figures of such a run are worth nothing."""


class Lab:
    """A fresh server, and a board for some jobs. Made by `lab`."""

    def __init__(self, server: Server, folder: Path, jobs: int) -> None:
        self.server = server
        self.folder = folder
        self.jobs = jobs
        self.queue = emq_settings().default_queue
        self.board = Board.new(folder / "board", jobs)
        self.redis = server.client()
        self._workers = 0

    def info(self, section: str, *names: str) -> float:
        """The sum of some numbers of the server's INFO."""
        facts: dict[str, Any] = self.redis.info(section)
        return float(sum(facts[name] for name in names))

    def cpu_seconds(self) -> float:
        """What the server has used."""
        return self.info("cpu", "used_cpu_user", "used_cpu_sys")

    def commands(self) -> float:
        """What the server has counted."""
        return self.info("stats", "total_commands_processed")

    def calls(self, names: Iterable[str]) -> float:
        """How often these commands have been carried out."""
        facts: dict[str, Any] = self.redis.info("commandstats")
        return float(sum(facts.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names))

    def fill(self, task: AnyTask, first: int = 0, end: int | None = None) -> None:
        """Enqueue one job of a task for each line of the board, or for a range of them."""
        end = self.jobs if end is None else end
        for start in range(first, end, CHUNK):
            enqueue(task, range(start, min(start + CHUNK, end)))

    def worker(self, *options: str, **env: str) -> Worker:
        """Start `emq_worker`; the end of the `with` block stops it as an operator would."""
        self._workers += 1
        return Worker(self, options, self.folder / f"worker-{self._workers}.log", **env)

    def wait(self, *workers: Worker, first: int = 0, end: int | None = None) -> None:
        """Wait until all jobs, or those of a range, have started. Raises Miscount.

        The board is looked at and not the server, which has other things to do.
        """
        end = self.jobs if end is None else end
        left = end - first
        look_at = changed_at = time.monotonic() + 1
        while not self.board.runs[end - 1] or self.board.missing(first, end):
            now = time.monotonic()
            if now >= look_at:
                look_at = now + 1
                for worker in workers:
                    worker.check()
                missing = self.board.missing(first, end)
                if missing < left:
                    left, changed_at = missing, now
                elif now > changed_at + PATIENCE or not any(self._waiting().values()):
                    raise Miscount(f"{left:,} jobs have not started, and no more of them do.")
            time.sleep(LOOK)

    def _waiting(self) -> dict[str, int]:
        return inspector.counts(connections.client(), self.queue, ("pending", "active"))

    def check(self, jobs: int | None = None) -> None:
        """Raise Miscount unless each job ran once, and the server thinks so too.

        :param jobs: how many the server should have seen; all of the board by default.
        """
        jobs = self.jobs if jobs is None else jobs
        missing, repeated = self.board.missing(), self.board.repeated()
        if missing or repeated:
            raise Miscount(
                f"Of {self.jobs:,} jobs {missing:,} never ran, and {len(repeated):,} ran more "
                f"than once{f' (job {repeated[0]} for instance)' if repeated else ''}."
            )
        waiting, totals = self._waiting(), inspector.totals(connections.client(), self.queue)
        wrong = [name for name in ("failed", "dead", "reaped") if totals.get(name)]
        if totals.get("completed") != jobs or any(waiting.values()) or wrong:
            raise Miscount(f"The server counts {totals}, and {waiting} are left.")


class Worker:
    """An `emq_worker` command in a process group of its own, with a log."""

    def __init__(self, lab: Lab, options: Iterable[str], log: Path, **env: str) -> None:
        self.log = log
        self.board = lab.folder / "board"
        with held(), log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(MANAGE), "emq_worker", *options],
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "testproject.settings",
                    "EMQ_URL": lab.server.url,
                    VARIABLE: str(self.board),
                    **env,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Control-C in a terminal is for the benchmark alone, which then ends the others.
                start_new_session=True,
                preexec_fn=die_with_the_parent,
            )

    def check(self) -> None:
        """Raise Miscount when it has ended although nobody told it to."""
        with held():
            status = self.process.poll()
        if status is not None:
            raise Miscount(f"A worker ended with status {status}:\n{self._said()}")

    def rss_mb(self) -> float:
        """Memory of the worker's processes, without the lines of the board that they wrote on."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        kilobytes = 0
        for process in (str(pid), *children):
            counted = True
            for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
                name, *rest = line.split()
                if not name.endswith(":"):  # range, rights, offset, device, inode, path
                    counted = rest[4:] != [str(self.board)]
                elif name == "Rss:" and counted:
                    kilobytes += int(rest[0])
        return kilobytes * 1024 / 1e6

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with held():
            if kind is None:
                self.check()
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(PATIENCE)
            status = self.process.poll()
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if kind is None and status != 0:
            how = f"ended with status {status}" if status else f"did not end in {PATIENCE:g} s"
            raise Miscount(f"A worker that was told to stop {how}:\n{self._said()}")

    def _said(self) -> str:
        return self.log.read_text(errors="replace")


def enqueue(task: AnyTask, jobs: Iterable[int]) -> None:
    """Enqueue a job of the task for each of these lines of the board."""
    emq.enqueue_many(task.job(job) for job in jobs)


@contextmanager
def fresh_server(*, everysec: bool = False) -> Iterator[Server]:
    """A server that nobody has used; the queue of this process is on it meanwhile.

    :param everysec: keeps what it is told in a file, flushed each second.
    """
    with private_server(EVERYSEC if everysec else (), own=True) as server:
        alias = emq_settings().cache_alias
        caches = {**settings.CACHES, alias: {**settings.CACHES[alias], "LOCATION": server.url}}
        with override_settings(CACHES=caches):
            yield server


@contextmanager
def lab(jobs: int, *, everysec: bool = False) -> Iterator[Lab]:
    """A lab for this many jobs."""
    with (
        tempfile.TemporaryDirectory(prefix="emq-bench-") as folder,
        fresh_server(everysec=everysec) as server,
    ):
        yield Lab(server, Path(folder), jobs)

"""How long a job waits for a worker that has nothing else to do, or something."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from time import monotonic

from django.conf import settings

import django_emq as emq

from . import chain
from .board import VARIABLE, Board
from .drains import Figures
from .lab import PATIENCE, Lab, lab
from .sizes import Sizes
from .tasks import hold, noop

PAUSE = 0.005  # seconds between two single jobs
HOLD = 0.1  # seconds of the job that keeps one runner busy
ROUND = 20  # single jobs that are sent meanwhile
SENT = ("evalsha", "blpop")  # what a worker at rest sends; the rest is inside its scripts
WARM = 1000  # jobs that a worker runs before it is measured


def pickup(sizes: Sizes) -> Figures:
    """From before enqueue to the start, for single jobs and a worker that is idle."""
    singles = sizes.singles
    with lab(singles + WARM) as bench:
        with bench.worker() as worker:
            _warm(bench, singles, sizes)
            _send(bench.board, range(singles))
            bench.wait(worker)
        bench.check()
        delays = bench.board.delays_ms(0, singles)
    return {
        "pickup_p50_ms": quantile(delays, 0.50),
        "pickup_p99_ms": quantile(delays, 0.99),
        **_pickup_floor(sizes),
    }


def _pickup_floor(sizes: Sizes) -> Figures:
    """The same for a bare worker: what the machine and two round trips cost."""
    with lab(sizes.singles) as bench:
        worker = subprocess.Popen(
            [sys.executable, "-m", chain.__name__, bench.server.url],
            cwd=settings.BASE_DIR,
            env={**os.environ, VARIABLE: str(bench.folder / "board")},
        )
        try:
            while not bench.info("clients", "blocked_clients"):
                time.sleep(0.01)
            chain.send(bench.redis, bench.board, range(bench.jobs), PAUSE)
            worker.wait(PATIENCE)
        finally:
            worker.kill()
            worker.wait()
        delays = bench.board.delays_ms(0, bench.jobs)
    return {
        "pickup_floor_p50_ms": quantile(delays, 0.5),
        "pickup_floor_p99_ms": quantile(delays, 0.99),
    }


def pickup_busy(sizes: Sizes) -> Figures:
    """The same for a worker of two threads, one of which is held while short jobs wait.

    Each round: a job that holds a runner for 100 ms, then a backlog of short ones, then single
    jobs 5 ms apart.
    """
    singles, rounds = sizes.singles, sizes.singles // ROUND
    backlog_at = singles
    held_at = backlog_at + rounds * sizes.backlog
    warm_at = held_at + rounds
    with lab(warm_at + WARM) as bench:
        with bench.worker("--threads", "2") as worker:
            _warm(bench, warm_at, sizes)
            for number in range(rounds):
                hold.enqueue(held_at + number, HOLD)
                bench.wait(worker, first=held_at + number, end=held_at + number + 1)
                start = backlog_at + number * sizes.backlog
                bench.fill(noop, start, start + sizes.backlog)
                _send(bench.board, range(number * ROUND, (number + 1) * ROUND))
            bench.wait(worker)
        bench.check()
        delays = bench.board.delays_ms(0, rounds * ROUND)
    return {"pickup_busy_p99_ms": quantile(delays, 0.99)}


def hostage(sizes: Sizes) -> Figures:
    """Two workers, one long job in front of short ones: until the last short one has started."""
    short, held = sizes.hostages, sizes.hostages
    with lab(short + 1 + WARM) as bench:
        with bench.worker() as one, bench.worker() as two:
            _warm(bench, short + 1, sizes)
            start = monotonic()
            emq.enqueue_many([hold.job(held, sizes.hold_seconds), *map(noop.job, range(short))])
            bench.wait(one, two)
            last = max(bench.board.started[:short])
        bench.check()
    return {"hostage_ms": (last - start) * 1000}


def idle(sizes: Sizes) -> Figures:
    """Commands that the server counts while one worker has nothing to do."""
    with lab(WARM) as bench:
        with bench.worker():
            _warm(bench, 0, sizes)
            sent, before = bench.calls(SENT), bench.commands()
            time.sleep(sizes.idle_seconds)
            counted = bench.commands() - before - 1  # the look itself
            sent = bench.calls(SENT) - sent
        bench.check()
    return {"idle_commands": counted, "idle_calls": sent}


def memory(sizes: Sizes) -> Figures:
    """Memory of one worker after some jobs, and after many."""
    piece = sizes.rss_jobs
    with lab(piece * sizes.rss_pieces) as bench:
        with bench.worker() as worker:
            seen = []
            for start in range(0, bench.jobs, piece):
                bench.fill(noop, start, start + piece)
                bench.wait(worker, first=start, end=start + piece)
                seen.append(worker.rss_mb())
        bench.check()
    return {"rss_mb": seen[0], "rss_mb_1m": seen[-1], "rss_growth_mb": seen[-1] - seen[0]}


def _warm(bench: Lab, first: int, sizes: Sizes) -> None:
    """Have the workers run some jobs, and be at rest."""
    bench.fill(noop, first, first + WARM)
    bench.wait(first=first, end=first + WARM)
    gc.collect()
    time.sleep(sizes.rest_seconds)


def _send(board: Board, jobs: range) -> None:
    for job in jobs:
        time.sleep(PAUSE)
        board.sent[job] = monotonic()
        noop.enqueue(job)


def quantile(ordered: list[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]

"""How fast workers run what waits; beside each run one of the yardstick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from django_emq.registry import AnyTask

from .lab import fresh_server, lab
from .sizes import Sizes

Figures = dict[str, float]
CEILING = Path(__file__).with_name("ceiling.py")


def ceiling(sizes: Sizes) -> Figures:
    """Jobs a second of the yardstick, on a server of its own."""
    with fresh_server() as server:
        command = [sys.executable, str(CEILING), server.url, str(sizes.waiting)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {"ceiling": float(answer.stdout)}


def drain(
    task: AnyTask, jobs: int, *options: str, everysec: bool = False, trail: str = ""
) -> tuple[float, Figures]:
    """Jobs a second from the first start to the last one, and what the server spent on a job.

    :param trail: another value of TRAIL for the worker.
    """
    env = {"DJANGO_SETTINGS_MODULE": "bench.settings", "BENCH_TRAIL": trail} if trail else {}
    with lab(jobs, everysec=everysec) as bench:
        bench.fill(task)
        cpu, commands = bench.cpu_seconds(), bench.commands()
        with bench.worker(*options, **env) as worker:
            bench.wait(worker)
        cost = {
            "server_us_per_job": (bench.cpu_seconds() - cpu) * 1e6 / jobs,
            "commands_per_job": (bench.commands() - commands) / jobs,
        }
        bench.check()
        return jobs / bench.board.span(), cost

"""The processes of a run: workers and reapers behind proxies of their own, started again."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_proxy import Act, FaultProxy
from interrupts import held
from library.crew import Crew, Member

from .apps import CLOCK
from .ledger import VARIABLE
from .tasks import QUEUE

LEASE = 2.0  # seconds
WORKER = ("emq_worker", QUEUE, "--lease", f"{LEASE:g}", "--grace", "5")
REAPER = ("emq_reaper", QUEUE, "--interval", "0.5")
HOUR = 3600


@dataclass(frozen=True)
class Post:
    """One process to have at all times: its command, and by how much its clock is wrong."""

    name: str
    command: tuple[str, ...]
    clock: int = 0


POSTS = (
    Post("worker-1", (*WORKER, "--processes", "2", "--name", "worker-1")),
    Post("worker-2", (*WORKER, "--threads", "4", "--name", "worker-2")),
    Post("worker-3", (*WORKER, "--threads", "2", "--no-sweep", "--name", "worker-3"), HOUR),
    Post("reaper-1", REAPER),
    Post("reaper-2", REAPER, -HOUR),
)


class Lane(FaultProxy):
    """The way of one process to the server."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._act, self._left = Act.PASS, 0

    def lose(self, act: Act, times: int) -> None:
        """Do this with the next requests."""
        self._act, self._left = act, times

    def judge(self, data: bytes) -> Act:
        """Whether this is one of them."""
        if self._left <= 0:
            return Act.PASS
        self._left -= 1
        return self._act

    def calm(self) -> None:
        """Pass everything on from now on."""
        self._left, self.delay = 0, 0.0
        self.allow()


class Staff(Crew):
    """All posts with who is on them. What has ended is started again, as an init system does."""

    def __init__(self, folder: Path, lanes: dict[str, Lane], effects: Path) -> None:
        super().__init__(folder)
        self.lanes = lanes
        self.effects = effects
        self.on: dict[str, Member] = {}
        self.started = 0
        self.early = 0  # ended at their start, since the server was away just then
        self.deserters: list[Path] = []  # logs of those who ended by themselves later
        self._gone: list[Member] = []

    def fill(self) -> None:
        """Put somebody on each post that has nobody."""
        for post in POSTS:
            member = self.on.get(post.name)
            with held():
                there = member is not None and member.process.poll() is None
            if there:
                continue
            if member is not None:
                self.members.remove(member)
                self._gone.append(member)
                self._look_back(member)
            self.started += 1
            self.on[post.name] = self.hire(
                f"{post.name}-{self.started}",
                *post.command,
                EMQ_URL=self.lanes[post.name].url,
                DJANGO_SETTINGS_MODULE="chaos.settings",
                **{CLOCK: str(post.clock), VARIABLE: str(self.effects)},
            )

    def _look_back(self, member: Member) -> None:
        """Whether somebody who has ended was killed by us."""
        if member.process.returncode == -signal.SIGKILL:
            return
        text = member.log.read_text(errors="replace")
        if "cannot start: " in text:
            self.early += 1
        else:
            self.deserters.append(member.log)

    def pick(self, dice: random.Random, kind: str) -> Member:
        """Somebody who is on a post of this kind."""
        return self.on[dice.choice([post.name for post in POSTS if post.name.startswith(kind)])]

    def signal_everybody(self, number: int) -> None:
        """Send a signal to all that are there, and to what is left of those that are not."""
        for member in (*self.members, *self._gone):
            member.signal_all(number)

    def __exit__(self, *args: Any) -> None:
        self.signal_everybody(signal.SIGCONT)
        super().__exit__(*args)
        for member in self._gone:
            member.signal_all(signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Pids of a process's children."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    """SIGKILL, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

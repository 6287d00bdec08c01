"""The demo's processes: workers and a reaper, as an operator would start them, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from django.conf import settings
from interrupts import held

from .outside import die_with_the_parent

GRACE = 10.0  # seconds that a process may take to end when it is told to


class Member:
    """One `manage.py` command that runs in a process group of its own, with a log.

    :param env: what its environment has beside that of this process.
    """

    def __init__(self, name: str, arguments: tuple[str, ...], log: Path, **env: str) -> None:
        self.name = name
        self.log = log
        manage = str(Path(settings.BASE_DIR) / "manage.py")
        output: IO[bytes]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, manage, *arguments],
                env={"LOG_LEVEL": "INFO", **os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Control-C in a terminal is for the demo alone, which then ends the others.
                start_new_session=True,
                preexec_fn=die_with_the_parent,
            )

    @property
    def pid(self) -> int:
        """The process that was started, and the number of its group."""
        return self.process.pid

    def signal_all(self, number: int) -> None:
        """Send a signal to the process and all its children at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def owns(self, pid: int) -> bool:
        """Whether a living process belongs to the group."""
        try:
            return os.getpgid(pid) == self.pid
        except ProcessLookupError:
            return False

    def end(self) -> None:
        """End what was told to end, and wait for it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        self.signal_all(signal.SIGKILL)
        self.process.wait()


class Crew:
    """The members that are at work. Leaving the `with` block ends them all.

    :param folder: where their logs go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: list[Member] = []

    def hire(self, name: str, *arguments: str, **env: str) -> Member:
        """Start a command."""
        with held():
            member = Member(name, arguments, self.folder / f"{name}.log", **env)
            self.members.append(member)
        return member

    def kill(self, member: Member) -> None:
        """SIGKILL, to the process and its children: nobody is left to tidy up."""
        with held():
            self.members.remove(member)
            member.signal_all(signal.SIGKILL)
            member.process.wait()

    def dropout(self) -> Member | None:
        """A member that has ended although nobody told it to."""
        with held():
            return next((m for m in self.members if m.process.poll() is not None), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with held():
            for member in self.members:
                member.process.terminate()
            for member in self.members:
                member.end()

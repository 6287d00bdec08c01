"""Real worker processes, and what tests know of them: their output, their marks, their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
MANAGE = ROOT / "testproject" / "manage.py"

# Longer than anything takes on a busy machine: only a test that fails waits for it.
PATIENCE = 60.0

# Commands that play a whole scene with many processes. The lines that they run are run by other
# tests too, so their coverage is not measured, which would take as long as the scene.
SCENES = {"bench", "chaos", "demo"}


def wait_until(
    happened: Callable[[], object], *, seconds: float = PATIENCE, what: str = ""
) -> None:
    """Return as soon as `happened()` is true; AssertionError after `seconds`.

    For facts on a server or in a file, which nothing announces to a test.
    """
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"not within {seconds} s: {what or happened}"
        time.sleep(0.005)


class Probe:
    """The file to which the tasks of `tests.probe` append a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def marks(self) -> list[str]:
        """The lines so far, in the order in which they were written."""
        return self.path.read_text().splitlines()

    def wait_for(self, count: int, *, seconds: float = PATIENCE) -> list[str]:
        """The lines, once there are at least `count` of them."""
        wait_until(
            lambda: len(self.marks()) >= count, seconds=seconds, what=f"{count} marks by tasks"
        )
        return self.marks()


def environment(*, measured: bool = True, **changes: str) -> dict[str, str]:
    """What a `manage.py` command started by a test sees: the tests' settings, server, database.

    :param measured: whether its coverage counts, where that of the tests does.
    """
    left_out = "" if measured else "COVERAGE_PROCESS_CONFIG"
    return {
        **{name: value for name, value in os.environ.items() if name != left_out},
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # hundreds of processes compile once, wherever they run
        "PYTHONWARNINGS": "error",
        "LOG_LEVEL": "INFO",
        **changes,
    }


def manage(*args: str, seconds: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one `manage.py` command to its end, whatever that is; its output as text."""
    return subprocess.run(
        [sys.executable, str(MANAGE), *args],
        env=environment(measured=args[0] not in SCENES, **env),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


class Worker:
    """A `manage.py emq_worker` process, or that of another `command`, run by `before` if given.

    Its output (standard output and error in one) is gathered while it runs. Leaving the `with`
    block kills whatever is left of it, its children included.
    """

    READY = " ready: "

    def __init__(
        self, *args: str, command: str = "emq_worker", before: Sequence[str] = (), **env: str
    ) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._closed = False
        self.process = subprocess.Popen(
            [*before, sys.executable, str(MANAGE), command, *args],
            env=environment(measured=command not in SCENES, **env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._news:
                    self.lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        with self._news:
            return "".join(self.lines)

    def wait_for(self, text: str, *, seconds: float = PATIENCE) -> str:
        """The first line that contains `text`, as soon as it is printed."""

        def line() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: line() is not None or self._closed, seconds)
            found = line()
        assert found is not None, f"the process never printed {text!r}:\n{self.output}"
        return found

    def wait_ready(self) -> Self:
        """Wait until it takes jobs."""
        self.wait_for(self.READY)
        return self

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit status, once it has ended and all of its output has arrived."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.output}") from None
        self._reader.join(seconds)
        return status

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM: it is asked to stop."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process that was started: its supervisor, if it has one."""
        self.signal(signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL to the process and all its children at once, as when a machine dies."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_all()
        self.wait()
        if error is not None:
            # pytest shows this beside the failure.
            print(f"--- output of process {self.pid} ---\n{self.output}")

"""docs/tutorial.md: its files are those of the example, and its commands do what it says."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from tests.processes import ROOT, environment, wait_until
from tests.test_docs import Block, blocks, place

APP = ROOT / "testproject"
PAGE = blocks(ROOT / "docs" / "tutorial.md")
OURS = {"orders/tests.py": ROOT / "tests" / "orders" / "test_shop.py"}
WORKER = "python manage.py emq_worker"
URL = "redis://127.0.0.1:6379/1"


def files() -> dict[str, str]:
    """What the page says that the files are, by their paths; parts of one put together."""
    found: dict[str, list[str]] = {}
    for block in PAGE:
        if block.language == "python":
            label, _, text = block.text.partition("\n")
            found.setdefault(label.removeprefix("# ").partition(",")[0], []).append(text)
    return {path: "\n\n".join(parts) for path, parts in found.items()}


FILES = files()


@pytest.mark.parametrize("path", [path for path in FILES if path != "mysite/settings.py"])
def test_a_file_is_that_of_the_example(path):
    """Word by word; all of it."""
    assert FILES[path] == OURS.get(path, APP / path).read_text()


class Reader:
    """Somebody who does what the page says. Leaving the block ends the worker.

    :param folder: where the project is made. :param url: of the server to use.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.env = environment(
            measured=False, DJANGO_SETTINGS_MODULE="mysite.settings", LOG_LEVEL="WARNING"
        )
        self.worker: subprocess.Popen[bytes] | None = None
        self.last = self.said = ""  # the last command, and what it printed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def follow(self, block: Block) -> None:
        """Write a file, type commands, or look at what the last one says until it says that."""
        if block.language == "python":
            label, _, text = block.text.partition("\n")
            path = self.folder / label.removeprefix("# ").partition(",")[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = "," not in label
            with path.open("w" if fresh and path.name != "settings.py" else "a") as file:
                file.write(("" if fresh else "\n\n") + text.replace(URL, self.url))
        elif block.language == "sh":
            for line in block.text.splitlines():
                self.type(line)
        else:
            told = f"{place(block)}: what it says"
            wait_until(lambda: self.said == block.text or self.type(self.last), what=told)

    def type(self, line: str) -> None:
        """Run a command, and note what it prints; a worker goes on."""
        words = line.split()
        if words[0] == "cd":
            self.folder /= words[1]
        elif line.startswith(WORKER):
            self.worker = subprocess.Popen(
                [sys.executable, *words[1:]], cwd=self.folder, env=self.env, start_new_session=True
            )
        elif words[0] == "pkill":
            wait_until(lambda: self.paid() > 8, what="orders are paid")
            self.kill()
        elif words[0] != "pip":
            start = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
            command = [*start.get(words[0], words[:1]), *words[1:]]
            done = subprocess.run(
                command, cwd=self.folder, env=self.env, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            self.last, self.said = line, done.stdout

    def paid(self) -> int:
        """How many orders are paid."""
        query = "SELECT count(*) FROM orders_order WHERE payment != ''"
        with contextlib.closing(sqlite3.connect(self.folder / "db.sqlite3")) as shop:
            return shop.execute(query).fetchone()[0]

    def kill(self) -> None:
        """SIGKILL to the worker and its children, all at once."""
        if self.worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.worker.pid, signal.SIGKILL)
            self.worker.wait()


@pytest.mark.timeout(600)  # two dozen processes, one after the other
def test_what_the_page_says_happens(tmp_path, server):
    """From `startproject` to the kill, and to the tests of the shop."""
    with Reader(tmp_path, server.url) as reader:
        for block in PAGE:
            reader.follow(block)
        mails = [path.read_text() for path in (reader.folder / "shop" / "mails").iterdir()]
    assert sum(mail.count("Subject: Invoice 54\n") for mail in mails) == 1

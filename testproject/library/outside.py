"""The same files without the queue: what must come of each. Shared out over all cores."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from .measure import Figures, verdict

PR_SET_PDEATHSIG = 1


def die_with_the_parent() -> None:
    """Have this process told to end when its parent dies, by whatever signal (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def verdicts(root: Path, paths: Sequence[str]) -> Iterator[Iterable[tuple[str, Figures | str]]]:
    """Each path with what measuring that file comes to, in the order of the paths.

    The work begins at once, beside whatever the caller does, and yields to it: what the queue's
    workers leave of the cores is enough.
    """
    pool = ProcessPoolExecutor(
        max_workers=os.cpu_count(),
        # Not forked: the connections of this process are none of theirs.
        mp_context=get_context("spawn"),
        initializer=obey_the_parent,
    )
    try:
        todo = [root / path for path in paths]
        yield zip(paths, pool.map(verdict, todo, chunksize=8), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def obey_the_parent() -> None:
    """Leave Control-C to the parent, do not outlive it, and let others go first."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_the_parent()

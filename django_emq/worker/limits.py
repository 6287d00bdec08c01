"""Time limits of running jobs: what ends a run that takes longer than its timeout.

A run in the main thread is interrupted by a signal, also in the middle of a blocking call. In
another thread Python raises the exception at the next byte code. Both are asked for by one thread
of the process, which sleeps until the next limit ends.

The exception can come up in the middle of a call to a server, with half of an answer unread. So the
sockets of redis-py that the run is using are shut down at that moment, a query under way is
cancelled, and the runner drops the thread's database connections when the run has ended.
"""

from __future__ import annotations

import ctypes
import math
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType
from typing import Any

from django.db.backends.utils import CursorWrapper

from ..conf import Settings, settings
from ..exceptions import TimeLimitExceeded
from ..log import get_logger
from ..registry import AnyTask
from ..times import in_force

logger = get_logger("worker")

# Not SIGALRM, which tasks use for time limits of their own.
SIGNAL = signal.SIGVTALRM
# Seconds until it is tried again where the run was in the middle of what must not be interrupted;
# doubled each time.
AGAIN, AGAIN_MAX = 0.02, 1.0
CANCEL = 2.0  # seconds for a database to be told that a query is no longer wanted
# Modules whose locks would never be released if they were interrupted between two lines.
DELICATE = ("logging", "importlib._bootstrap", "importlib._bootstrap_external")

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


def of(task: AnyTask, queue: str, conf: Settings) -> tuple[float, float]:
    """Seconds of timeout and of kill_after for a job; 0.0 for none."""
    own = conf.queue(queue)
    return in_force(task.limits_ms, own.timeout, own.kill_after)


@lru_cache(maxsize=256)
def error_of(seconds: float) -> type[TimeLimitExceeded]:
    """The exception for a timeout: a class, since Python makes the object when it raises it."""
    kind = TimeLimitExceeded
    names = {"seconds": seconds, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), names)


class Guard:
    """One run under a limit. Made and ended by the thread that runs it.

    :ivar fired: the exception was raised, or is about to be. Once in a run at most.
    """

    __slots__ = ("again", "at", "due", "error", "fired", "ident", "is_main", "lock", "over")

    def __init__(self, seconds: float) -> None:
        self.at = monotonic() + seconds
        self.error = error_of(seconds)
        self.ident = threading.get_ident()
        self.is_main = self.ident == threading.main_thread().ident
        self.again = AGAIN
        self.due = self.fired = self.over = False
        self.lock = threading.Lock()

    def end(self) -> None:
        """The run has ended: nothing is raised for it once this has returned.

        An exception that was asked for and has not come up yet comes up in here, and leaves it as
        if the run had raised it. It is not taken back: the call for that makes Python (3.11, 3.12)
        look for an exception at every step from then on, and under a tracer for ever at one.
        """
        if self.is_main:
            self.over = True  # the handler of the signal runs in this very thread
            return
        with self.lock:
            self.over = True
        if self.fired:
            for _ in range(2):  # each round is a place where Python raises it
                pass


class Limits:
    """The limits of one process's runners.

    :ivar default: whether a task without a timeout of its own may have one by the settings.
    """

    def __init__(self) -> None:
        conf = settings()
        self.default = bool(conf.timeout or any(one.timeout for one in conf.queues.values()))
        self._running: dict[int, Guard] = {}  # by thread
        self._ring: SimpleQueue[bool] = SimpleQueue()
        self._wakes_at = math.inf
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()
        self._before: Any = None  # the signal's handler before ours
        self._installed = False

    def begin(self, seconds: float) -> Guard:
        """Have the calling thread interrupted in so many seconds, until `Guard.end`."""
        if self._watcher is None:
            self._start()
        guard = Guard(seconds)
        if guard.is_main and not self._installed:
            self._before = signal.signal(SIGNAL, self._interrupt)
            self._installed = True
        self._running[guard.ident] = guard
        if guard.at < self._wakes_at:
            self._ring.put(True)
        return guard

    def close(self) -> None:
        """End the thread, and give the signal back. Called in the main thread."""
        if self._watcher is not None:
            self._ring.put(False)
            self._watcher.join()
        if self._installed:
            signal.signal(SIGNAL, self._before)

    def _start(self) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="emq-limits", daemon=True)
                self._watcher.start()

    def _watch(self) -> None:
        """Sleep until a limit ends, and fire. No single error ends this.

        Not under a tracer: in Python 3.11 a traced thread stands still while an exception waits
        for another thread, which here may be waiting for this one.
        """
        sys.settrace(None)
        sys.setprofile(None)
        wanted = True
        while wanted:
            # Who begins while it is reckoned rings.
            self._wakes_at = math.inf
            ends = (g.at for g in tuple(self._running.values()) if not (g.over or g.fired))
            wakes_at = self._wakes_at = min(ends, default=math.inf)
            pause = None if wakes_at == math.inf else max(wakes_at - monotonic(), 0.0)
            with suppress(Empty):
                wanted = self._ring.get(timeout=pause)
            for guard in tuple(self._running.values()):
                if not (guard.over or guard.fired) and guard.at <= monotonic():
                    try:
                        self._fire(guard)
                    except Exception:
                        logger.exception("a time limit could not be kept")
                        guard.over = True

    def _fire(self, guard: Guard) -> None:
        """Interrupt a run; it is tried again as long as it is neither interrupted nor over."""
        guard.at, guard.again = monotonic() + guard.again, min(2 * guard.again, AGAIN_MAX)
        guard.due = True
        if guard.is_main:
            signal.pthread_kill(guard.ident, SIGNAL)
            return
        with guard.lock:  # the run does not end meanwhile
            frame = sys._current_frames().get(guard.ident)
            if guard.over or frame is None or is_delicate(frame):
                return
            links = list(links_of(frame))
            guard.fired = True
            _raise_in(ctypes.c_ulong(guard.ident), ctypes.py_object(guard.error))
            cut(links)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler, in the main thread: raise there, if the limit is the running job's.

        The signal of a run that has ended meanwhile does nothing.
        """
        guard = self._running.get(threading.get_ident())
        if guard is None or not guard.due or guard.over or guard.fired or is_delicate(frame):
            return
        guard.fired = True
        cut(links_of(frame))
        raise guard.error


def is_delicate(frame: FrameType | None) -> bool:
    """Whether a stack is in code whose locks an exception could leave locked, or in a __del__.

    What comes up there is lost: Python prints it and goes on.
    """
    while frame is not None:
        if frame.f_globals.get("__name__") in DELICATE or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def links_of(frame: FrameType | None) -> Iterator[Any]:
    """The links that a stack is using: sockets of redis-py, connections of a database's driver.

    Whoever has sent a command and not read its answer has what it was sent by among its local
    variables. The sockets themselves, and not who holds them: that one may have another one when
    the exception has come up and was caught.
    """
    while frame is not None:
        for value in tuple(frame.f_locals.values()):
            kind = type(value)  # never the value itself, which may be lazy
            if hasattr(kind, "send_packed_command") and hasattr(kind, "read_response"):
                yield getattr(value, "_sock", None)
            elif issubclass(kind, CursorWrapper):
                yield value.db.connection
        frame = frame.f_back


def cut(links: Iterable[Any]) -> None:
    """Let what a run waits for end, and see to it that its connections are not used again.

    A socket is only shut down here: its number must stay taken while a thread may read from it.
    redis-py closes it when it meets the end, at the latest when it takes it out of its pool.
    """
    for link in links:
        with suppress(Exception):
            if isinstance(link, socket.socket):
                link.shutdown(socket.SHUT_RDWR)
            else:
                _cancel(link)


def _cancel(connection: Any) -> None:
    """Have a database give up a query, where its driver can (psycopg)."""
    cancel = getattr(connection, "cancel_safe", None)
    if cancel is not None:
        cancel(timeout=CANCEL)
    elif hasattr(connection, "cancel"):
        connection.cancel()

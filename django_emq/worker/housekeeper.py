"""What a supervisor does beside its children, in a thread: for a worker that has none."""

from __future__ import annotations

import os
import signal
import threading
from time import monotonic

from ..connections import Client
from ..exceptions import EmqError, VersionFence
from ..log import Outage, get_logger
from ..reaper import Reaper
from .options import WorkerOptions
from .page import QUIET, RUN, STOP, STOP_NOW, Page
from .presence import BEAT_EVERY, SOON, Presence

logger = get_logger("worker")

COMMANDS = {"quiet": QUIET, "resume": RUN, "stop": STOP}


class Housekeeper:
    """Sweeps, and says that the worker is there.

    :ivar status: 1 when the version fence has stopped this process.
    """

    def __init__(self, client: Client, options: WorkerOptions, page: Page) -> None:
        self.reaper = Reaper(client, options.queues, interval=options.sweep_every)
        self.presence = Presence(client, options)
        self.status = 0
        self._sweep = options.sweep
        self._page = page
        self._jobs = 0
        self._beat_at = 0.0
        self._stop = threading.Event()

    def run(self) -> None:
        """Keep house until stopped. No single error ends this loop."""
        outage = Outage(logger, "housekeeper")
        while not self._stop.is_set():
            pause = 1.0
            try:
                pause = self.run_once()
                outage.over()
            except VersionFence as error:
                logger.critical("%s; stopping", error)
                self.status = 1
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except EmqError as error:
                outage.failed(error)
            except Exception:
                logger.exception("housekeeping: unexpected error; going on")
            self._stop.wait(pause)
        try:
            self.presence.leave()
        except EmqError as error:
            logger.info("leaving without a word: %s", error)

    def run_once(self) -> float:
        """One pass; answers the seconds until the next is due. Raises an EmqError."""
        pause = self.reaper.run_once() if self._sweep else BEAT_EVERY
        now = monotonic()
        if now >= self._beat_at:
            self._jobs += self._page.new_jobs()
            stopping = self._page.command in (STOP, STOP_NOW)
            word = self.presence.beat(jobs=self._jobs, stopping=stopping)
            if word:
                self._page.tell(COMMANDS[word])
            self._beat_at = now + (SOON if word else BEAT_EVERY)
        return min(pause, self._beat_at - now)

    def stop(self) -> None:
        """End `run` after the pass that is under way."""
        self._stop.set()

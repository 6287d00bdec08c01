"""What a supervisor does beside its children, in a thread: for a worker that has none."""

from __future__ import annotations

import threading
from time import monotonic

from ..connections import Client
from ..exceptions import EmqError
from ..log import get_logger
from ..reaper import Reaper
from .options import WorkerOptions
from .page import Page
from .presence import BEAT_EVERY, Presence

logger = get_logger("worker")


class Housekeeper:
    """Sweeps, and says that the worker is there."""

    def __init__(self, client: Client, options: WorkerOptions, page: Page) -> None:
        self.reaper = Reaper(client, options.queues, interval=options.sweep_every)
        self.presence = Presence(client, options)
        self._sweep = options.sweep
        self._page = page
        self._jobs = 0
        self._beat_at = 0.0
        self._stop = threading.Event()

    def run(self) -> None:
        """Keep house until stopped. No single error ends this loop."""
        while not self._stop.is_set():
            pause = BEAT_EVERY
            try:
                pause = self.run_once()
            except EmqError as error:
                logger.warning("housekeeping: %s; trying again", error)
            except Exception:
                logger.exception("housekeeping: unexpected error; going on")
            self._stop.wait(pause)
        try:
            self.presence.leave()
        except EmqError as error:
            logger.info("leaving without a word: %s", error)

    def run_once(self) -> float:
        """One pass; answers the seconds until the next is due."""
        pause = self.reaper.run_once() if self._sweep else BEAT_EVERY
        now = monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_EVERY
            self._jobs += self._page.new_jobs()
            self.presence.beat(jobs=self._jobs, stopping=False)
        return min(pause, self._beat_at - now)

    def stop(self) -> None:
        """End `run` after the pass that is under way."""
        self._stop.set()

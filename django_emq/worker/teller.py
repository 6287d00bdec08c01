"""A thread that calls the receivers of what only the server's answer tells."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from django.db import close_old_connections, connections

from .. import registry
from ..exceptions import EmqError, StaleToken
from ..signals import EmqSignal, job_dead, job_retried, job_stale, worker_stopping
from .outcome import Outcome

PATIENCE = 10.0  # seconds for receivers at the end of a process


class Teller:
    """Calls receivers one after the other, and never holds up who has something to tell.

    Only the courier calls it.
    """

    def __init__(self) -> None:
        self._told: SimpleQueue[tuple[EmqSignal, Any, dict[str, Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def verdict(self, outcome: Outcome, verdict: Any) -> None:
        """Tell what the server made of an outcome, if anybody wants to know."""
        signal: EmqSignal
        facts: dict[str, Any] = {"job": outcome.context}
        if isinstance(verdict, StaleToken):
            signal, facts["verb"], facts["reason"] = job_stale, outcome.verb, str(verdict)
        elif isinstance(verdict, EmqError):
            return
        elif verdict == "scheduled":
            signal, facts["reason"] = job_retried, outcome.details[1]
            facts["delay"] = outcome.details[0] / 1000
        elif verdict == "dead":
            signal, facts["reason"] = job_dead, outcome.details[1]
        elif outcome.verb == "bury":
            signal, facts["reason"] = job_dead, outcome.details[0]
        else:
            return
        if signal.receivers:
            self.tell(signal, registry.find(outcome.context.task), **facts)

    def stopping(self, **facts: Any) -> None:
        """Tell that the process takes no more jobs."""
        if worker_stopping.receivers:
            self.tell(worker_stopping, None, **facts)

    def tell(self, signal: EmqSignal, sender: Any, **facts: Any) -> None:
        """Have the receivers of a signal called."""
        self._told.put((signal, sender, facts))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="emq-teller", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for the receivers that are still to be called, for a while."""
        if self._thread is not None:
            self._told.put(None)
            self._thread.join(PATIENCE)

    def _run(self) -> None:
        while told := self._told.get():
            signal, sender, facts = told
            close_old_connections()
            signal.tell(sender, **facts)
            close_old_connections()
        connections.close_all()

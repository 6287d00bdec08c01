"""The supervisor: starts children, extends their leases, gives back what a dead one held.

It has one thread, so that it may fork at any time. The heartbeat beats here, outside the jobs'
processes: a task that holds the interpreter lock for three leases is not swept while its
process lives.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from .. import scripts
from ..connections import connect
from ..exceptions import Cancelled, EmqError, Refused, VersionFence
from ..log import Outage, get_logger
from ..reaper import Reaper
from . import hard_limits as limits
from .bell import Bell
from .child import SIGNALS, make_page, run_child, watch_signals
from .courier import RECYCLE
from .hygiene import before_fork
from .ledger import group
from .options import WorkerOptions
from .page import QUIET, RUN, STOP, STOP_NOW, Page
from .presence import BEAT_EVERY, SOON, Presence

logger = get_logger("worker")

PATIENCE = 5.0  # seconds after the grace in which a child must be gone
LOOK = 1.0  # seconds between two looks at the jobs that are to be killed when they take too long
QUICK = 1.0  # a child that lives shorter than this is replaced after a pause
CALL_MAX = 500
PAUSE = 0.05  # seconds between two looks at a job that is at its limit
KILLED, STALLED, UNHARMED = "killed", "stalled", "unharmed"  # what became of a dead child's jobs


@dataclass(eq=False)
class Child:
    """A process of the worker, as its supervisor sees it."""

    pid: int
    page: Page
    started_at: float = field(default_factory=monotonic)
    killed_at: float = 0.0  # when it was killed for a job that took too long


class Supervisor:
    """Runs a worker until it is told to stop.

    :param say: prints a line for people.
    """

    def __init__(self, options: WorkerOptions, *, say: Callable[[str], Any] = print) -> None:
        self.options = options
        self.say = say
        self.client = connect()
        self.reaper = Reaper(self.client, options.queues, interval=options.sweep_every)
        self.presence = Presence(self.client, options)
        self.children: dict[int, Child] = {}
        self._jobs = 0
        self.stopping = False
        self.status = 0
        self._bell = Bell()
        self._orphans: list[tuple[str, list[tuple[bytes, int]], str]] = []  # what dead ones held
        self._spawn_at = [0.0] * options.processes  # when to start children that are missing
        self._spawned = 0
        self._quick_deaths = 0
        self._every = options.extend_every
        self._extend_at = monotonic() + self._every
        self._beat_at = self._sweep_at = self._kill_at = self._look_at = 0.0
        self._said = False
        self._outage = Outage(logger, "supervisor")

    def run(self) -> int:
        """Work until stopped, and return the exit status. No single error ends this loop."""
        restore = watch_signals(self._bell.signal_fd)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # its number rings the bell
        try:
            while self.children or self._spawn_at:
                try:
                    self.step()
                except VersionFence as error:
                    logger.critical("%s; stopping", error)
                    self.status = 1
                    self.stop()
                    self._beat_at = monotonic() + BEAT_EVERY
                except EmqError as error:
                    self._outage.failed(error)
                    self._sleep()
                except Exception:
                    logger.exception("supervisor: unexpected error; going on in a second")
                    self._listen(1.0)
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            restore()
            self._farewell()
        return self.status

    def step(self) -> None:
        """Do what is due, then sleep until something is."""
        self._bury_children()
        if not (self.children or self._spawn_at):
            return
        now = monotonic()
        for at in [at for at in self._spawn_at if now >= at]:
            self._spawn_at.remove(at)
            self._spawn()
        if self.stopping and now >= self._kill_at:
            self._kill_children()
        if now >= self._look_at:
            self._look_at = self._keep_limits(now)
        if not self._said and self.children and all(c.page.is_ready for c in self._living()):
            self._said = True
            self.say(f"worker {self.options.name} ready: {self.options.served}")
        if now >= self._outage.retry_at:
            self._call(now)
        self._sleep()

    def _call(self, now: float) -> None:
        """What the server is needed for; what fails is due again at the next try."""
        called = True
        if now >= self._extend_at:
            called = self._extend(now)
            self._extend_at = now + self._every
        elif self._orphans:
            self._give_back()
        elif now >= self._beat_at:
            self._beat_at = now + (SOON if self._beat() else BEAT_EVERY)
        elif self.options.sweep and now >= self._sweep_at:
            self._sweep_at = now + self.reaper.run_once()
        else:
            called = False
        if called:
            self._outage.over()

    def _sleep(self) -> None:
        due = [self._extend_at, self._beat_at]
        if self.options.sweep:
            due.append(self._sweep_at)
        if self._orphans:
            due.append(0.0)
        due = [max(min(due), self._outage.retry_at), self._look_at, *self._spawn_at]
        if self.stopping:
            due.append(self._kill_at)
        if not self._said:
            due.append(monotonic() + 0.02)
        self._listen(min(due) - monotonic())

    def _listen(self, seconds: float) -> None:
        """Sleep until a signal comes, and do what it asks for."""
        signals, _ = self._bell.wait(seconds)
        for number in signals:
            if number in SIGNALS:
                self.stop(now_=self.stopping or number == signal.SIGQUIT)

    def stop(self, *, now_: bool = False) -> None:
        """Have all children finish what runs, within the grace, and end; `now_`: without it."""
        if not self.stopping:
            self.say(
                f"worker {self.options.name} stops: no new jobs, {len(self.children)} to finish"
            )
            self._beat_at = 0.0
        self.stopping = True
        self._spawn_at.clear()
        self._kill_at = monotonic() + (0.0 if now_ else self.options.grace) + PATIENCE
        for child in self._living():
            child.page.tell(STOP_NOW if now_ else STOP)
            os.kill(child.pid, signal.SIGTERM)

    # -- children -----------------------------------------------------------------------------

    def _living(self) -> list[Child]:
        return list(self.children.values())

    def _spawn(self) -> None:
        self._spawned += 1
        page = make_page(self.options)
        page.tell(QUIET if self.presence.quiet else RUN)
        before_fork()
        sys.stdout.flush()
        sys.stderr.flush()
        supervisor = os.getpid()
        pid = os.fork()
        if not pid:
            status = 70
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._bell.close()
                gc.freeze()  # Django and the project stay: no collection need look at them again
                status = run_child(self.options, page, number=self._spawned, supervisor=supervisor)
            except BaseException:
                logger.exception("child %d ends by an error", os.getpid())
            finally:
                logging.shutdown()
                sys.stdout.flush()
                os._exit(status)
        self.children[pid] = Child(pid, page)

    def _bury_children(self) -> None:
        """Take note of children that have ended, and see to what they held.

        As process 1 of a container this one is also the parent of what jobs left behind.
        """
        while self.children or os.getpid() == 1:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if child := self.children.pop(pid, None):
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        self._jobs += child.page.new_jobs()
        names, fates = self.options.queues, self._fates(child)
        for fate in (KILLED, STALLED, UNHARMED):
            jobs = (
                (names[q], i, t) for q, i, t in child.page.held() if fates.get(i, UNHARMED) == fate
            )
            self._orphans += [(queue, items, fate) for queue, items in group(jobs).items()]
        if self.stopping or (code == 0 and self.options.burst):
            return
        now = monotonic()
        if child.killed_at:
            self._spawn_at.append(now)
            return
        if code in (0, RECYCLE):
            why = "has reached its limit" if code else "was stopped by somebody"
            logger.info("child %d %s; replacing it", child.pid, why)
            self._spawn_at.append(now)
            return
        self._quick_deaths = self._quick_deaths + 1 if now - child.started_at < QUICK else 0
        deaths = self._quick_deaths
        pause = min(0.1 * 2 ** min(deaths, 10), 30.0) if deaths > 3 else 0.0
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        logger.error("child %d ended %s; starting another one in %.1f s", child.pid, how, pause)
        self._spawn_at.append(now + pause)

    @staticmethod
    def _fates(child: Child) -> dict[bytes, str]:
        """What is to become of jobs that a dead child had started.

        One of them may have killed it. If it was killed for a job that took too long, that one
        has failed, and the others are unharmed.
        """
        if child.killed_at:
            return dict.fromkeys(child.page.overdue(child.killed_at), KILLED)
        return dict.fromkeys(child.page.started(), STALLED)

    def _keep_limits(self, now: float) -> float:
        """Kill the children with a job that goes on after its limit; when to look again."""
        look_at = now + (LOOK if limits.may_kill() else BEAT_EVERY)
        for child in self._living():
            ends = min(child.page.limits(), default=look_at)
            if ends <= now and not child.killed_at:
                logger.error("child %d runs a job beyond its limit; killing it", child.pid)
                child.killed_at = now
                os.kill(child.pid, signal.SIGKILL)
            look_at = min(look_at, max(ends, now + PAUSE))
        return look_at

    def _kill_children(self) -> None:
        for child in self._living():
            logger.error("child %d does not end; killing it", child.pid)
            os.kill(child.pid, signal.SIGKILL)
        self._kill_at = monotonic() + PATIENCE

    # -- leases -------------------------------------------------------------------------------

    def _extend(self, now: float) -> bool:
        """Extend what the children hold, and tell them what they lost; whether they hold any."""
        holding = [self._extend_for(child, now) for child in self._living()]
        return any(holding)

    def _extend_for(self, child: Child, now: float) -> bool:
        lost: list[tuple[bytes, int, bool]] = []
        names = self.options.queues
        held = group((names[queue], job_id, token) for queue, job_id, token in child.page.held())

        def extend(entry: tuple[str, list[tuple[bytes, int]]]) -> None:
            queue, items = entry
            for start in range(0, len(items), CALL_MAX):
                part = items[start : start + CALL_MAX]
                verdicts = scripts.extend(self.client, queue, part, lease_ms=self.options.lease_ms)
                both = zip(part, verdicts, strict=True)
                lost.extend(
                    (*job, isinstance(verdict, Cancelled))
                    for job, verdict in both
                    if isinstance(verdict, Refused)
                )

        try:
            self.client.each(held.items(), extend)
            child.page.extended(now)
        finally:
            if lost:
                child.page.tell_lost(lost)
        return bool(held)

    def _give_back(self) -> None:
        """Give back what a dead child held: at once, counted as a stall where a job had started."""

        def give_back(orphans: tuple[str, list[tuple[bytes, int]], str]) -> None:
            queue, items, fate = orphans
            for start in range(0, len(items), CALL_MAX):
                part = items[start : start + CALL_MAX]
                if fate == KILLED:
                    limits.fail(self.client, queue, part)
                elif fate == STALLED:  # it may be what killed the child
                    scripts.extend(self.client, queue, part, lease_ms=0)
                else:
                    scripts.release(self.client, queue, part)
            if fate == STALLED:
                self.reaper.sweep(queue, trim=False)
            self._orphans.remove(orphans)

        self.client.each([*self._orphans], give_back)

    # -- word to people -----------------------------------------------------------------------

    def _beat(self) -> bool:
        """Say that the worker is there, and do what it is asked to; whether that was anything."""
        self._jobs += sum(child.page.new_jobs() for child in self._living())
        word = self.presence.beat(jobs=self._jobs, stopping=self.stopping, children=self.children)
        if word == "stop":
            self.stop()
        elif word:
            for child in self._living():
                child.page.tell(QUIET if self.presence.quiet else RUN)
        return bool(word)

    def _farewell(self) -> None:
        try:
            if self._orphans:
                self._give_back()
            self.presence.leave()
        except EmqError as error:
            logger.info("supervisor: leaving without a word: %s", error)
        self.client.close()
        self._bell.close()

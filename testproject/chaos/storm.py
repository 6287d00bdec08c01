"""One run: producers, workers and reapers at work, faults among them, and then calm."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from books import Unbalanced, balance, snapshot
from django.conf import settings
from django.core.management.base import CommandError
from django.test import override_settings
from library.show import say
from private_server import Server, private_server
from redis.exceptions import RedisError
from rich.console import Console

from django_emq import connections, scripts
from django_emq.keys import queue_keys

from .crew import POSTS, Lane, Staff
from .faults import FAULTS, Scene, Undo
from .ledger import Ledger
from .producers import Producer
from .report import Report, Rest
from .settings import EMQ
from .tasks import QUEUE

PRODUCERS = 2
PATIENCE = 90.0  # seconds without any progress, after all faults, after which something is wrong
LOOK_EVERY = 0.05  # seconds
CHECK_EVERY = 1.0  # seconds between two checks of the books
# What was acknowledged is on the disk: the queue is as durable as its server.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Storm:
    """One run of this many seconds; the seed decides on the faults and the jobs.

    :param folder: for ledger and logs.
    """

    def __init__(self, console: Console, *, seconds: float, seed: int, folder: Path) -> None:
        self.console = console
        self.seconds = seconds
        self.seed = seed
        self.folder = folder
        self.keys = queue_keys(QUEUE)
        self.ledger = Ledger(folder, self.keys)
        self.dice = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.checks = 0
        self.unbalanced: list[str] = []
        self._tokens: dict[str, int] = {}
        self._undo: list[tuple[float, Undo]] = []
        self._check_at = 0.0

    def run(self) -> Report:
        """All of it."""
        with ExitStack() as stack:
            server = stack.enter_context(private_server(DURABLE, own=True))
            assert server.socket is not None
            lanes = {
                name: stack.enter_context(Lane(server.socket))
                for name in ("producers", *(post.name for post in POSTS))
            }
            redis = server.client()
            before = memory(redis)
            stack.enter_context(connected(lanes["producers"].url))
            staff = Staff(self.folder, lanes, self.ledger.effects_path)
            producers = [Producer(self.seed * 100 + n) for n in range(PRODUCERS)]
            with staff:
                scene = Scene(self.dice, server, redis, staff, lanes)
                self._rage(scene, producers)
                self._calm(scene)
                for producer in producers:
                    producer.stop()
                self._drain(scene)
            self._look(redis)
            rest = self._reckon(redis)
            self._empty(server)
            server.restart()
            return Report(
                seed=self.seed,
                seconds=self.seconds,
                faults=dict(self.faults),
                started=staff.started,
                early=staff.early,
                deserters=[str(path) for path in staff.deserters],
                admitted={i: r for p in producers for i, r in p.admitted.items()},
                said=dict(sum((p.said for p in producers), Counter())),
                ledger=self.ledger,
                rest=rest,
                checks=self.checks,
                unbalanced=self.unbalanced,
                memory_before=before,
                memory_after=memory(redis),
                keys_left=self._left(redis),
            )

    # -- the run ------------------------------------------------------------------------------

    def _rage(self, scene: Scene, producers: list[Producer]) -> None:
        """Let faults happen, each kind once before any comes again."""
        scene.staff.fill()
        for producer in producers:
            producer.start()
        self._wait_for_work(scene)
        deck = self._deck()
        ends = time.monotonic() + self.seconds
        next_at = said_at = time.monotonic()
        while (now := time.monotonic()) < ends or len(self.faults) < len(set(FAULTS)):
            if now > ends + PATIENCE:
                raise CommandError(f"Too slow: of all faults only these came: {[*self.faults]}.")
            if now >= next_at:
                fault = next(deck)
                next_at = now + self.dice.uniform(0.2, 0.6)
                with suppress(RedisError):
                    harm = fault(scene)
                    self.faults[fault.__name__] += 1
                    if harm is not None:
                        self._undo.append((now + harm[0], harm[1]))
            if now >= said_at:
                said_at = now + 10
                done = sum(len(p.admitted) for p in producers)
                say(self.console, f"{sum(self.faults.values()):,} faults, {done:,} jobs admitted")
            self._undo_all(now)
            scene.staff.fill()
            self._look(scene.redis)
            time.sleep(LOOK_EVERY)

    def _deck(self) -> Iterator[Callable[[Scene], Any]]:
        while True:
            yield from self.dice.sample(FAULTS, len(FAULTS))

    def _wait_for_work(self, scene: Scene) -> None:
        """Until the first job has run: a slow machine takes seconds to start the processes."""
        ends = time.monotonic() + PATIENCE
        while not self.ledger.effects_path.stat().st_size:
            if time.monotonic() > ends:
                raise CommandError(f"No job has run. The logs are in {self.folder}.")
            scene.staff.fill()
            time.sleep(LOOK_EVERY)

    def _undo_all(self, now: float) -> None:
        due = [undo for at, undo in self._undo if at <= now]
        self._undo = [(at, undo) for at, undo in self._undo if at > now]
        for undo in due:
            with suppress(RedisError):
                undo()

    def _look(self, redis: Any) -> None:
        """Copy the trail, and check the books now and then: they must balance at any time."""
        with suppress(RedisError):
            self.ledger.follow(redis)
            if time.monotonic() < self._check_at:
                return
            self._check_at = time.monotonic() + CHECK_EVERY
            state = snapshot(redis, self.keys.base)
            self.checks += 1
            try:
                self._tokens = balance(state, self._tokens)
            except Unbalanced as error:  # told at the end, also when it is mended by then
                self.unbalanced.append(str(error))

    def _calm(self, scene: Scene) -> None:
        """The end of all faults."""
        self._undo_all(float("inf"))
        for lane in scene.lanes.values():
            lane.calm()
        patient(lambda: scene.redis.config_set("maxmemory", 0))

    def _drain(self, scene: Scene) -> None:
        """Until nothing waits and nothing runs."""
        left, moved_at, idle = -1, time.monotonic(), 0
        say(self.console, "no more faults; what is left is run")
        while idle < 3:
            scene.staff.fill()
            self._look(scene.redis)
            found = patient(lambda: self._waiting(scene.redis))
            idle = idle + 1 if not found else 0
            if found != left:
                left, moved_at = found, time.monotonic()
            if time.monotonic() - moved_at > PATIENCE:
                raise CommandError(f"{left} jobs are stuck. The logs are in {self.folder}.")
            time.sleep(0.2)

    def _waiting(self, redis: Any) -> int:
        sets = (self.keys.pending, self.keys.active, self.keys.schedule)
        return sum(redis.zcard(key) for key in sets)

    # -- the reckoning ------------------------------------------------------------------------

    def _reckon(self, redis: Any) -> Rest:
        """What is left on the server when all is done."""
        state = snapshot(redis, self.keys.base)
        totals = {name.decode(): int(n) for name, n in redis.hgetall(self.keys.metrics).items()}
        return Rest(state, totals)

    def _empty(self, server: Server) -> None:
        """Take the queue away, by the verbs that an operator has for it."""
        with connected(server.url):
            client = connections.client()
            scripts.pause(client, QUEUE, by="chaos")
            while scripts.obliterate(client, QUEUE):
                pass

    def _left(self, redis: Any) -> list[str]:
        """Kinds of the keys that the queue leaves for a while: what callers are remembered by."""
        keys = [key.decode().removeprefix(self.keys.base) for key in redis.keys("*")]
        return sorted({key.partition(":")[0] if ":" in key else key for key in keys})


def memory(redis: Any) -> int:
    """Bytes that a server uses that has just been started: data and nothing else."""
    return int(patient(lambda: redis.info("memory"))["used_memory"])


def patient(ask: Callable[[], Any]) -> Any:
    """The answer of the server, which may be about to start."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except RedisError:
            if time.monotonic() > ends:
                raise
            time.sleep(LOOK_EVERY)


@contextmanager
def connected(url: str) -> Iterator[None]:
    """The queue of this process is at this URL meanwhile."""
    alias = EMQ["CACHE_ALIAS"]
    caches = {**settings.CACHES, alias: {**settings.CACHES[alias], "LOCATION": url}}
    with override_settings(CACHES=caches, EMQ=EMQ):
        yield

"""The relay: pushes what a crash left in the outbox. Any number may run at once.

Who stored the rows pushes them right after the commit; a relay finds only those of processes that
died in between, or for which the server was away.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from django.db import Error, OperationalError, close_old_connections
from django.db import connections as databases
from django.db.models import Count, Exists, ExpressionWrapper, Min, OuterRef, QuerySet, Sum
from django.db.models.fields import DurationField
from django.db.models.functions import Now

from . import commit, registry
from .conf import settings
from .connections import Client
from .exceptions import EmqError
from .log import Outage, get_logger
from .models import Outbox
from .outbox import BATCH, QueueRefused, push

logger = get_logger("relay")

INTERVAL = 5.0  # seconds between two looks of a worker
BATCH_MAX = 500
YIELDS_MAX = 100  # transactions that a relay may lose to others in one pass


def watched() -> tuple[str, ...]:
    """The databases whose outbox the settings or a task use; none when all of them are off."""
    conf = settings()
    named = [conf.outbox, *(queue.outbox for queue in conf.queues.values())]
    named += [registry.get(name).outbox or False for name in registry.names()]
    return tuple(dict.fromkeys(commit.home() if n is True else n for n in named if n))


class Relay:
    """Pushes the rows of outboxes.

    :param databases: their aliases.
    :param interval: seconds between two passes, at most.
    :param batch: rows in one push.
    """

    def __init__(
        self,
        client: Client,
        databases: tuple[str, ...],
        *,
        interval: float = INTERVAL,
        batch: int = BATCH,
    ) -> None:
        self.client = client
        self.databases = databases
        self.interval = interval
        self.batch = min(batch, BATCH_MAX)
        self.pushed = 0  # rows
        self._broken: set[str] = set()
        self._stop = threading.Event()

    def run(self) -> None:
        """Push until stopped. No single error ends this loop."""
        outage = Outage(logger, "relay")
        while not self._stop.is_set():
            try:
                self.run_once()
                outage.over()
            except EmqError as error:
                if not self._stop.is_set():
                    outage.failed(error)
            except Exception:
                logger.exception("relay: unexpected error; going on")
            self._stop.wait(self.interval * random.uniform(0.75, 1.0))
        databases.close_all()

    def stop(self) -> None:
        """End `run` after the push that is under way."""
        self._stop.set()

    def run_once(self) -> None:
        """Push all that waits, of each database that answers. Raises an EmqError."""
        close_old_connections()
        for database in self.databases:
            try:
                self.drain(database)
            except Error as error:
                self._fails(database, error)
            else:
                self._works(database)
        close_old_connections()

    def drain(self, database: str) -> None:
        """Push all that waits in one database; raises what the server and the database raise."""
        locks = databases[database].features.has_select_for_update_skip_locked
        refused: dict[str, EmqError] = {}  # by queue; the others must not wait for it
        yields = YIELDS_MAX

        def choose(rows: QuerySet[Outbox]) -> Iterable[Outbox]:
            return self._choose(rows.exclude(queue__in=refused), lock=locks)

        while not self._stop.is_set():
            try:
                pushed = push(self.client, database, choose, locked=locks)
            except QueueRefused as error:
                refused[error.queue] = error
                continue
            except OperationalError:
                # MySQL may find two relays in a deadlock, and end the transaction of one. Its rows
                # are still there, and are pushed once more, which the server notices.
                yields -= 1
                if not yields or not databases[database].is_usable():
                    raise
                continue
            self.pushed += pushed
            if not pushed:
                break
        for refusal in refused.values():
            raise refusal

    def _choose(self, rows: QuerySet[Outbox], *, lock: bool) -> list[Outbox]:
        """The oldest rows, those of one transaction in their order and by one relay at a time.

        Only the first row of each transaction is locked: who has it, has those after it. A
        transaction whose first row another relay has is passed over, its first row being there as
        long as that relay is at work.
        """
        before = rows.filter(batch=OuterRef("batch"), id__lt=OuterRef("id"))
        firsts = rows.filter(~Exists(before)).order_by("id")
        if lock:
            firsts = firsts.select_for_update(skip_locked=True)
        heads = list(firsts[: self.batch])
        batches = {row.batch for row in heads}
        ids = [row.id for row in heads]
        others = rows.filter(batch__in=batches).exclude(id__in=ids).order_by("id")
        return sorted([*heads, *others[: self.batch]], key=lambda row: row.id)

    def _fails(self, database: str, error: Error) -> None:
        if database not in self._broken:
            self._broken.add(database)
            logger.error(
                "relay: the outbox of database %s cannot be read: %s; trying again", database, error
            )

    def _works(self, database: str) -> None:
        if database in self._broken:
            self._broken.discard(database)
            logger.info("relay: the outbox of database %s is back", database)


@contextmanager
def relaying(
    client: Client, *, enabled: bool = True, begin: Callable[[], object] = bool
) -> Iterator[None]:
    """Run a relay in a thread during the block, if the project uses an outbox.

    In a thread of its own, because a database that hangs must hold up neither leases nor sweeps.

    :param begin: called first in that thread.
    """
    aliases = watched() if enabled else ()
    if not aliases:
        yield
        return
    relay = Relay(client, aliases)

    def run() -> None:
        begin()
        relay.run()

    thread = threading.Thread(target=run, name="emq-relay", daemon=True)
    thread.start()
    try:
        yield
    finally:
        relay.stop()
        thread.join(1.0)  # what is under way may be cut off anywhere


class Waiting(NamedTuple):
    """What waits in the outbox of one database.

    :ivar oldest_s: seconds since the oldest row was stored, by that database's clock, or None.
    """

    database: str
    rows: int
    jobs: int
    oldest_s: float | None


def waiting(database: str) -> Waiting:
    """What waits in an outbox now. Raises what the database raises."""
    facts = Outbox.objects.using(database).aggregate(
        rows=Count("id"),
        jobs=Sum("count"),
        age=ExpressionWrapper(Now() - Min("stored_at"), output_field=DurationField()),
    )
    age: timedelta | None = facts["age"]
    return Waiting(
        database, facts["rows"], facts["jobs"] or 0, None if age is None else age.total_seconds()
    )

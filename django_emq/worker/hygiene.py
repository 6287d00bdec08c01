"""What Django does around a request, done around a job.

Connections that died or grew too old are closed before a job and after it, as
`django.db.close_old_connections` does. A thread that never opened one pays nothing for it.
"""

from __future__ import annotations

import decimal
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

from django.core.cache import close_caches
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.signals import connection_created

IDLE = 1.0  # seconds after which a connection may have died unnoticed


def fresh_context() -> Callable[[], Context]:
    """What makes a context for each job like that of the caller now.

    What a job sets (language, time zone, decimal context, its own variables) is gone after it.
    """
    base, numbers = copy_context(), decimal.getcontext().copy()

    def make() -> Context:
        context = base.copy()
        # The variable is copied, but not the object in it, which a job would change for all.
        context.run(decimal.setcontext, numbers.copy())
        return context

    return make


class Hygiene:
    """Knows which threads have opened a database connection since it was switched on."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._own: set[int] = set()
        self.needed = False  # some thread has opened a connection
        self.strangers = False  # a thread that is not a runner has opened a connection
        connection_created.connect(self._opened)

    def adopt(self) -> None:
        """Make the calling thread one that is cleaned by `clean`."""
        self._own.add(threading.get_ident())

    def _opened(self, **_: Any) -> None:
        self._local.opened = self.needed = True
        if threading.get_ident() not in self._own:
            self.strangers = True

    def clean(self) -> None:
        """Close what is broken or too old, and forget logged queries. Before and after a job."""
        if getattr(self._local, "opened", False):
            reset_queries()
            close_old_connections()
            for connection in connections.all(initialized_only=True):
                # What a job closed underneath Django; known without asking the database.
                if getattr(connection.connection, "closed", False):
                    connection.close()

    def rouse(self) -> None:
        """Close what has died while the thread was idle, so that the next job does not meet it."""
        if getattr(self._local, "opened", False):
            for connection in connections.all(initialized_only=True):
                idle = connection.connection is not None and not connection.in_atomic_block
                if idle and not connection.is_usable():
                    connection.close()
                pool = getattr(connection, "pool", None)  # psycopg's, one for all threads
                if pool and not pool.closed:
                    pool.check()

    def drop(self) -> None:
        """Close all that the thread has open, after a run that was interrupted: nobody knows where.

        The next job gets new wrappers too, for the old ones may believe in a transaction.
        """
        for connection in connections.all(initialized_only=True):
            with suppress(Exception):
                connection.close()
            with suppress(AttributeError):
                del connections[connection.alias]

    def rest(self) -> None:
        """Close the caches' connections, as at the end of a request. When there is no job."""
        close_caches()

    def leave(self) -> None:
        """Close all connections of the calling thread, which ends."""
        connections.close_all()


def before_fork() -> None:
    """Close the connections of this thread, and the pools: a child must not share their sockets.

    A pool has threads too, which no child inherits.
    """
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        if close_pool := getattr(connection, "close_pool", None):
            close_pool()

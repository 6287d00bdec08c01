"""When a job is sent: at once, or after the commit of the transaction that its call is part of.

    using(...), @task(...)  before  EMQ["QUEUES"][queue]  before  EMQ
    outbox                  before  on_commit

A truthy `outbox` means a row in the caller's transaction (`django_emq.outbox`), a truthy
`on_commit` a hook of Django's. Each may name a database; True means the one that Django would take.
"""

from __future__ import annotations

import difflib
from typing import NamedTuple

from django.db import DEFAULT_DB_ALIAS, connections

from .conf import Settings
from .exceptions import InvalidOption
from .registry import AnyTask


class Plan(NamedTuple):
    """A job waits for the commit of a database, in its outbox or in this process's memory."""

    database: str
    outbox: bool


def plan(task: AnyTask, queue: str, conf: Settings, *, at_once: bool = True) -> Plan | None:
    """What a job of this task waits for; None when it is sent now.

    :param at_once: whether it may be sent now although a transaction is open.
    Raises InvalidOption for a database that is not in DATABASES.
    """
    own = conf.queue(queue) if conf.queues else conf
    outbox, on_commit = task.outbox, task.on_commit
    if outbox is None:  # who says on_commit himself, does not mean the outbox of the settings
        outbox = own.outbox if on_commit is None else False
    if outbox:
        return Plan(home() if outbox is True else known(outbox), outbox=True)
    if on_commit is None:
        on_commit = own.on_commit
    on_commit = on_commit or not at_once
    if not on_commit:
        return None
    database = DEFAULT_DB_ALIAS if on_commit is True else known(on_commit)
    return Plan(database, outbox=False) if _is_open(database) else None


def known(database: str) -> str:
    """The alias, if it is one of DATABASES; else raises InvalidOption."""
    if database in connections.settings:
        return database
    near = difflib.get_close_matches(database, connections.settings, n=1)
    way_out = f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(connections)}."
    raise InvalidOption(f"There is no database {database!r} in DATABASES. {way_out}")


def home() -> str:
    """The database of the outbox where none is named: that which the routers write it to."""
    from django.db import router

    from .models import Outbox

    return router.db_for_write(Outbox)


def _is_open(database: str) -> bool:
    """Whether this thread has a transaction open there. Opens no connection."""
    connection = connections[database]
    if connection.in_atomic_block:
        return True
    # With autocommit off there is no commit to wait for: `on_commit` says so to the caller.
    return connection.connection is not None and not connection.get_autocommit()

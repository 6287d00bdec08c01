"""What can be wrong with an outbox: in the settings and tasks, and in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections as databases
from django.db import router

from . import commit, conf, registry
from .exceptions import InvalidOption
from .models import Outbox
from .relay import watched


def check_aliases(**kwargs: object) -> list[CheckMessage]:
    """E013, E014: the databases that tasks name exist, and may have the table."""
    found: list[CheckMessage] = []
    for name in registry.names():
        task = registry.get(name)
        for option in ("on_commit", "outbox"):
            alias = getattr(task, option)
            try:
                if isinstance(alias, str):
                    commit.known(alias)
            except InvalidOption as error:
                found.append(
                    Error(
                        f"The task {name} has {option}={alias!r}. {error}",
                        hint="True takes the database that Django would take.",
                        id="django_emq.E013",
                    )
                )
    if found or conf.problems():
        return found
    return [
        Error(
            f"The outbox is in the database {alias!r}, but the database routers do not allow its "
            "table there: let allow_migrate answer True or None for the app django_emq.",
            hint="Or name another database in EMQ['OUTBOX'].",
            id="django_emq.E014",
        )
        for alias in watched()
        if not router.allow_migrate_model(alias, Outbox)
    ]


def check_tables(**kwargs: Any) -> list[CheckMessage]:
    """W006, with ``check --database``: the table is there."""
    asked: Sequence[str] = kwargs.get("databases") or ()
    if check_aliases() or conf.problems():
        return []
    return [
        Warning(
            f"The outbox is in the database {alias!r}, which has no table "
            f"{Outbox._meta.db_table!r}: each enqueue that uses it will fail.",
            hint=f"Run manage.py migrate django_emq --database {alias}.",
            id="django_emq.W006",
        )
        for alias in watched()
        if alias in asked and not has_table(alias)
    ]


def has_table(alias: str) -> bool:
    """Whether a database has the outbox's table. Raises what the database raises."""
    return Outbox._meta.db_table in databases[alias].introspection.table_names()

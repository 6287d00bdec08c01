"""An outbox on SQLite, and one on a PostgreSQL of our own."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def cluster() -> Iterator[str]:
    """The folder of a PostgreSQL of our own."""
    from tests import postgres

    with postgres.cluster() as folder:
        yield folder


@pytest.fixture
def pg(cluster, django_db_blocker):
    """The alias of an empty outbox on PostgreSQL, for this test alone."""
    from django.db import connections
    from django.db.migrations.executor import MigrationExecutor

    from django_emq.models import Outbox
    from tests import postgres

    with postgres.alias("pg", cluster), django_db_blocker.unblock():
        MigrationExecutor(connections["pg"]).migrate([("django_emq", "0003_effect")])
        yield "pg"
        Outbox.objects.using("pg").delete()


@pytest.fixture
def alias():
    """The alias of an empty outbox: that on SQLite, unless a class has another one."""
    return "default"


@pytest.fixture
def task(alias):
    """A task whose jobs go through that outbox."""
    from tests.probe import tasks

    return tasks.mark.using(outbox=alias)


@pytest.fixture
def left(monkeypatch):
    """Rows stay in the outbox, as those of a process that was killed after its commit."""
    from django_emq import outbox

    monkeypatch.setattr(outbox, "_away_until", float("inf"))

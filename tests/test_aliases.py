"""CACHES read without a connection, as the client reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django_redis.pool import ConnectionFactory

from django_emq import aliases
from tests.check_cases import alias, found, ids


@pytest.mark.parametrize(
    ("location", "options"),
    [
        ("redis://localhost", {}),
        ("redis://localhost/3", {}),
        ("redis://localhost/3/", {}),
        ("redis://localhost/3?db=4", {}),
        ("redis://localhost:7000?db=4", {}),
        ("redis://localhost/three", {}),
        ("redis://localhost/three", {"CONNECTION_POOL_KWARGS": {"db": 5}}),
        ("redis://localhost/3", {"CONNECTION_POOL_KWARGS": {"db": 5, "port": 7000}}),
        ("redis://", {"CONNECTION_POOL_KWARGS": {"host": "far", "port": 7000}}),
        ("redis://localhost", {"DB": 5, "db": 6}),
        ("unix:///run/some%20where/s?db=7", {}),
        ("unix:///3", {}),
    ],
)
def test_a_database_is_read_as_the_client_reads_it(location: str, options: Any) -> None:
    """What django-redis would connect to, is what W002 compares."""
    with override_settings(CACHES={"emq": alias(location, **options)}):
        read = aliases.read("emq")
    factory = ConnectionFactory(options)
    pool = factory.get_connection_pool(factory.make_connection_params(location))
    kwargs = pool.connection_kwargs
    assert read is not None
    (database,) = read.databases
    server = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    assert (database.server, database.number) == (server, kwargs.get("db") or 0)


def test_one_socket_by_two_paths_is_one_server(tmp_path: Path) -> None:
    """/var/run is a link to /run on most systems."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    messages = found(
        queue=alias(f"unix://{tmp_path}/run/s?db=1"), other=alias(f"unix://{tmp_path}/link/s?db=1")
    )
    assert ids(messages) == ["W002"]

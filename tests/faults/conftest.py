"""A server for each test here, which the test may stop, fill, cut off and reconfigure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from private_server import Server, private_server

from django_emq import connections
from tests.proxy import Proxy


@pytest.fixture(autouse=True)
def lone(settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The test's own server; this process and all workers that the test starts use it."""
    # What was written outlives a kill of the server.
    with private_server(["--appendonly", "yes"], own=True) as server:
        point_at(settings, server.url)
        monkeypatch.setenv("EMQ_URL", server.url)
        yield server
        connections.reset()


@pytest.fixture
def client(lone: Server):
    """The handle that `django_emq` itself uses."""
    return connections.client()


@pytest.fixture
def proxy(lone: Server) -> Iterator[Proxy]:
    """A proxy in front of the server. Who is to use it is told so: nobody is by itself."""
    assert lone.socket is not None
    with Proxy(lone.socket) as proxy:
        yield proxy


def point_at(settings, url: str) -> None:
    """Have this process use the server at a URL."""
    alias = {**settings.CACHES["emq"], "LOCATION": url}
    settings.CACHES = {**settings.CACHES, "emq": alias}

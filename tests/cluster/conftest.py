"""One cluster for all of these tests; each finds it empty, and this process uses it."""

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.cluster.servers import Cluster, cluster
from tests.helpers import point_at


@pytest.fixture(scope="package")
def _cluster() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def nodes(_cluster: Cluster, settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster. This process and all workers that the test starts use it."""
    from django_emq import connections

    point_at(settings, _cluster.url, **_cluster.options)
    monkeypatch.setenv("EMQ_URL", _cluster.url)
    monkeypatch.setenv("EMQ_ALIAS", json.dumps({"OPTIONS": _cluster.options}))
    yield _cluster
    connections.reset()
    for node in _cluster.primaries:
        with contextlib.suppress(Exception):
            node.ask("FLUSHALL")


@pytest.fixture
def client(nodes: Cluster):
    """The handle that `django_emq` itself uses."""
    from django_emq import connections

    return connections.client()

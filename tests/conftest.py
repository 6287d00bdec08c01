"""A server of our own for the whole run, and a clean database on it for each test."""

import contextlib
import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
import redis as redis_py
from private_server import NoServer, Server, private_server

from tests.helpers import point_at
from tests.processes import Probe
from tests.proxy import Proxy

SERVER = pytest.StashKey[Server]()
# Files that take a minute or more. They begin, so that at the end neither half waits for the other.
LONG = {
    "test_bench.py", "test_browser.py", "test_chaos.py", "test_demo.py", "test_growth.py",
    "test_killed.py", "test_lost_replies.py", "test_outages.py", "test_tutorial.py",
    "test_worker.py",
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Start the server, then Django, whose settings ask where the server is.

    In a parallel run each process has its own of both, and the one that hands out the tests none.
    """
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    # What a shell runs in the background ignores Control-C, and our workers would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-tests-"))
    try:
        server = stack.enter_context(private_server())
    except NoServer as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SERVER] = server
    os.environ["EMQ_URL"] = server.url
    os.environ["EMQ_DB"] = f"{folder}/db.sqlite3"
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; for the rest the order that has been drawn."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_report_header(config: pytest.Config) -> str:
    if SERVER not in config.stash:
        return "servers: one for each process"
    with contextlib.closing(config.stash[SERVER].client()) as client:
        facts = client.info("server")
    name = facts.get("server_name", "redis")
    return f"server: {name} {facts.get(f'{name}_version')} at {config.stash[SERVER].url}"


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    """The run's server: `url`, `socket`, `pid`, `client()`, `restart()`."""
    return pytestconfig.stash[SERVER]


@pytest.fixture(scope="session")
def _sweeper(server: Server) -> Iterator[redis_py.Redis]:
    with contextlib.closing(server.client()) as client:
        yield client


@pytest.fixture(scope="session")
def django_db_modify_db_settings_xdist_suffix() -> None:
    """Every process of a parallel run has a folder, and so a database file, of its own."""


@pytest.fixture(autouse=True)
def _clean(_sweeper: redis_py.Redis) -> Iterator[None]:
    """Each test begins on an empty database. It is ours: `private_server` sees to that."""
    yield
    _sweeper.flushdb()
    from django_emq import connections

    connections.reset()  # what the process remembers of the database is gone with it


@pytest.fixture
def lone(settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for this test alone, which it may stop, fill, cut off and reconfigure.

    This process and all workers that the test starts use it.
    """
    from django_emq import connections

    # What was written outlives a kill of the server.
    with private_server(["--appendonly", "yes"], own=True) as server:
        point_at(settings, server.url)
        monkeypatch.setenv("EMQ_URL", server.url)
        yield server
        connections.reset()


@pytest.fixture
def proxy(lone: Server) -> Iterator[Proxy]:
    """A proxy in front of `lone`. Who is to use it is told so: nobody is by itself."""
    assert lone.socket is not None
    with Proxy(lone.socket) as proxy:
        yield proxy


@pytest.fixture
def client(request: pytest.FixtureRequest):
    """The handle that `django_emq` itself uses."""
    from django_emq import connections

    if "lone" in request.fixturenames:
        request.getfixturevalue("lone")  # first, in whatever order the test names them
    return connections.client()


@pytest.fixture
def redis(client):
    """The redis-py client below `client`, to seed and to look."""
    return client.raw


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Where the tasks of `tests.probe` leave their marks, in this process and in workers."""
    probe = Probe(tmp_path / "probe")
    monkeypatch.setenv("PROBE_FILE", str(probe.path))
    return probe

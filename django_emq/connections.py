"""Our own way to the server: a private pool derived from the project's django-redis alias.

The pool never repeats a call by itself: a script whose reply was lost may have run, and only
its verb knows whether running it again is harmless. It has time-outs of its own, and always
answers bytes. Replies become verdicts here and nowhere else (`typed`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from importlib import import_module, resources
from typing import Any, TypeVar

from django.core.signals import setting_changed
from django_redis import get_redis_connection

from .conf import settings
from .exceptions import (
    DamagedRow,
    EmqError,
    JobGone,
    JobHeld,
    KindRefused,
    NotInState,
    OutcomeUnknown,
    RateLimited,
    ServerError,
    ServerRefused,
    StaleToken,
    VersionFence,
)

T = TypeVar("T")
Parse = Callable[[Any], Any]

# One pool holds as many connections as threads call at once; the server sets the real bound.
MAX_CONNECTIONS = 10_000
TRAIL_MAX = 10_000  # entries of a queue's trail, about

_REFUSALS: dict[str, type[EmqError]] = {
    "EMQSTALE": StaleToken,
    "EMQGONE": JobGone,
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
    "ClusterDownError",
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
    if names & {"ConnectionError", "TimeoutError", "OSError"}:
        return OutcomeUnknown(f"No answer from the server, the call may have run: {text}")
    return ServerError(f"The server answered with an error: {text}")


class Client:
    """One private connection pool to the server of a cache alias.

    :param raw: the client of redis-py (or valkey) over the private pool; for plain reads.
    :param prefix: first word of every key.
    :param trail: what the scripts write into the trail: ``off``, ``notable`` or ``all``.
    :param dead_max: how many dead jobs a queue keeps.
    """

    def __init__(
        self, raw: Any, prefix: str, trail: str = "notable", dead_max: int = 10_000
    ) -> None:
        self.raw = raw
        self.dead_max = dead_max
        self.prefix = prefix
        self.trail_max = 0 if trail == "off" else TRAIL_MAX
        self.trail_all = TRAIL_MAX if trail == "all" else 0
        self.known_queues: dict[str, float] = {}  # in the registry, and until when
        self._warm: set[str] = set()
        errors = import_module(type(raw).__module__.split(".")[0] + ".exceptions")
        self.noscript: type[Exception] = errors.NoScriptError
        #: What the client package raises: catch it where `raw` is used, and pass it to `failed`.
        self.failures: tuple[type[Exception], ...] = (errors.RedisError, OSError)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Any], parse: Parse) -> Any:
        """Run a script by EVALSHA; on a cold server load it once and call again.

        Raises an EmqError. Errors inside an array are left to `parse`, which makes the answer.
        """
        rest = (len(keys), *keys, *args)
        try:
            reply = self._ask("EVALSHA", script.sha, *rest)
            if isinstance(reply, self.noscript):
                self.raw.execute_command("SCRIPT LOAD", script.source)
                reply = self._ask("EVALSHA", script.sha, *rest)
            if isinstance(reply, self.noscript):  # somebody empties the cache meanwhile
                reply = self._ask("EVAL", script.source, *rest)
        except self.failures as error:
            raise self.failed(error) from error
        if isinstance(reply, Exception):
            raise typed(reply)
        return parse(reply)

    def _ask(self, *command: Any) -> Any:
        try:
            return self.raw.execute_command(*command)
        except self.noscript as error:
            return error

    def warm(self, scripts: Iterable[Script]) -> None:
        """Load the scripts that this client has never used and the server does not know."""
        new = [script for script in scripts if script.sha not in self._warm]
        if new:
            known = self.raw.execute_command("SCRIPT EXISTS", *(script.sha for script in new))
            for script, there in zip(new, known, strict=True):
                if not there:
                    self.raw.execute_command("SCRIPT LOAD", script.source)
                self._warm.add(script.sha)

    def read(self, ask: Callable[[Any], T]) -> T:
        """Answer what `ask` reads with the client of the package; raises an EmqError."""
        try:
            return ask(self.raw)
        except self.failures as error:
            raise self.failed(error) from error

    def failed(self, error: Exception) -> EmqError:
        """Type an error, and let go of connections that lead to a demoted server."""
        if type(error).__name__ == "ReadOnlyError":
            self.raw.connection_pool.disconnect()
        return typed(error)

    def close(self) -> None:
        """Close all connections of the pool."""
        self.raw.connection_pool.disconnect()


Noted = tuple[Script, tuple[Any, ...], Parse]


class Batch:
    """Several scripts in one round trip: the verbs of `scripts` take it in place of a Client.

    >>> batch = Batch(client)
    >>> scripts.complete(batch, "mail", [("JOB…", 1, "")])
    >>> scripts.claim(batch, "mail", …)
    >>> verdicts, claims = batch.send()
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.prefix = client.prefix
        self.trail_max, self.trail_all = client.trail_max, client.trail_all
        self.dead_max = client.dead_max
        self.calls: list[Noted] = []

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Any], parse: Parse) -> Any:
        """Note the call; its answer is in the list that `send` returns."""
        self.calls.append((script, (len(keys), *keys, *args), parse))

    def send(self) -> list[Any]:
        """Send all calls; return their answers in order, EmqErrors in place.

        The calls run in their order: scripts that are used for the first time are loaded before.
        What a server has forgotten since is answered with NOSCRIPT and did not run: those scripts
        are loaded, and those calls alone are sent again. Raises OutcomeUnknown when the connection
        broke.
        """
        client = self.client
        try:
            client.warm({script for script, _, _ in self.calls})
            replies = self._send("EVALSHA", self.calls)
            for command in ("EVALSHA", "EVAL"):  # EVAL where somebody empties the cache meanwhile
                cold = [i for i, reply in enumerate(replies) if isinstance(reply, client.noscript)]
                if not cold:
                    break
                for script in {self.calls[i][0] for i in cold}:
                    client.raw.execute_command("SCRIPT LOAD", script.source)
                again = self._send(command, [self.calls[i] for i in cold])
                for i, reply in zip(cold, again, strict=True):
                    replies[i] = reply
        except client.failures as error:
            raise client.failed(error) from error
        return [
            client.failed(reply) if isinstance(reply, Exception) else parse(reply)
            for reply, (_, _, parse) in zip(replies, self.calls, strict=True)
        ]

    def _send(self, command: str, calls: list[Noted]) -> list[Any]:
        pipeline = self.client.raw.pipeline(transaction=False)
        for script, rest, _ in calls:
            name = script.sha if command == "EVALSHA" else script.source
            pipeline.execute_command(command, name, *rest)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies


def derive(raw: Any, *, timeout: float) -> Any:
    """A client like `raw` over a pool of its own: no repeats, this socket time-out, bytes.

    :param timeout: seconds to connect, and to wait for a reply.
    """
    pool = raw.connection_pool
    package = type(raw).__module__.split(".")[0]
    retry = import_module(package + ".retry").Retry(
        import_module(package + ".backoff").NoBackoff(), 0
    )
    own = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": retry,
        "decode_responses": False,
    }
    if hasattr(pool, "sentinel_manager"):
        return pool.sentinel_manager.master_for(
            pool.service_name, **{**_inherited(pool.connection_kwargs), **own}
        )
    pool_class = import_module(package + ".connection").ConnectionPool
    return type(raw)(
        connection_pool=pool_class(
            connection_class=pool.connection_class,
            max_connections=MAX_CONNECTIONS,
            **{**_inherited(pool.connection_kwargs), **own},
        )
    )


def _inherited(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a connection keeps of the alias: where and who, but no policy of repeats."""
    dropped = {"retry_on_timeout", "retry_on_error", "connection_pool", "client_name"}
    return {name: value for name, value in kwargs.items() if name not in dropped}


def connect(*, timeout: float | None = None) -> Client:
    """A new private client; the caller closes it.

    :param timeout: seconds for one call; the setting SOCKET_TIMEOUT by default.
    """
    conf = settings()
    raw = get_redis_connection(conf.cache_alias, write=True)
    own = derive(raw, timeout=timeout or conf.socket_timeout)
    return Client(own, conf.prefix, conf.trail, conf.dead_max)


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

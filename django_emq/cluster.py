"""The way to a Redis or Valkey Cluster: a connection factory for the alias, and our own client.

All keys of a queue are in one slot, so each script runs on one node; what several queues need is
divided by node here. The client of redis-py knows which node has a slot and follows it when it
moves. Whether a call is repeated after a lost reply is decided where it always is, by the verbs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from time import monotonic
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from redis import __version__ as redis_version
from redis import exceptions
from redis.crc import key_slot

from .connections import Client, Noted, warm_up
from .exceptions import EmqError, ServerError
from .keys import reserve_keys, whole
from .pools import MAX_CONNECTIONS, inherited, never, outside

T = TypeVar("T")

LOOK_EVERY = 0.2  # seconds between two looks at which node has which slot
MOVED = (exceptions.AskError, exceptions.ConnectionError, exceptions.TimeoutError, OSError)
PART = 1 << 64  # cursors of one node; the number of the node stands above
_lock = threading.Lock()


class ClusterConnectionFactory:
    """For OPTIONS["CONNECTION_FACTORY"] of an alias whose server is a cluster.

    OPTIONS["STARTUP_NODES"], a list of (host, port), names further nodes that can be asked for the
    others, when the one of LOCATION is away.
    """

    _clusters: ClassVar[dict[str, Any]] = {}  # by URL, as django-redis keeps pools

    def __init__(self, options: Mapping[str, Any]) -> None:
        if int(redis_version.partition(".")[0]) < 6:  # which repeat calls, whatever they are told
            raise ImproperlyConfigured(
                f"A cluster needs redis-py 6 or newer, and this is {redis_version}."
            )
        self.options = options

    def connect(self, url: str) -> Any:
        """The cluster client for the cache itself, one for each process and URL."""
        named = {
            "username": "USERNAME",
            "password": "PASSWORD",
            "socket_timeout": "SOCKET_TIMEOUT",
            "socket_connect_timeout": "SOCKET_CONNECT_TIMEOUT",
        }
        options = {name: self.options[o] for name, o in named.items() if self.options.get(o)}
        options |= {"retry": never(), **self.options.get("CONNECTION_POOL_KWARGS", {})}
        with _lock:
            if url not in self._clusters:
                self._clusters[url] = self._cluster(url, options)
            return self._clusters[url]

    def disconnect(self, connection: Any) -> None:
        """Close the connections of a client that `connect` has made."""
        connection.disconnect_connection_pools()

    def private_client(self, url: str, timeout: float, *rest: Any) -> ClusterClient:
        """What `connections.connect` answers: no repeats, time-outs of our own, bytes."""
        options = {
            "username": self.options.get("USERNAME"),
            "password": self.options.get("PASSWORD"),
            **inherited(self.options.get("CONNECTION_POOL_KWARGS", {})),
        }
        parsed = import_module("redis.connection").parse_url(url)
        in_path = {"host", "port", "db", "username", "password", "connection_class"}
        options |= {name: value for name, value in inherited(parsed).items() if name not in in_path}
        options |= {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": never(),
            "decode_responses": False,
            "max_connections": MAX_CONNECTIONS,
            # One node that is away with its slots is no reason to leave the other queues alone.
            "require_full_coverage": False,
        }
        plain = urlsplit(url)._replace(query="").geturl()
        return ClusterClient(Lazy(lambda: self._cluster(plain, options)), *rest)

    def _cluster(self, url: str, options: Mapping[str, Any]) -> Any:
        cluster: Any = import_module("redis.cluster")
        nodes = [cluster.ClusterNode(*node) for node in self.options.get("STARTUP_NODES", ())]
        return cluster.RedisCluster(url=url, startup_nodes=nodes, **options)


def forget() -> None:
    """Leave the cache's clients to the parent: for a process that was forked."""
    global _lock
    _lock = threading.Lock()
    ClusterConnectionFactory._clusters.clear()


os.register_at_fork(after_in_child=forget)


class Lazy:
    """The cluster client of redis-py, made at its first use; that one asks the cluster at once.

    It is made anew from the nodes of the settings when none of those that it knew answers: all of
    them may have got other addresses.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        made = self._made
        if made is None:
            with self._lock:
                made = self._made = self._made or self._make()
        return getattr(made, name)

    def forget(self) -> Any:
        """Leave the client that there is, if any, to those who use it now; answers it."""
        with self._lock:
            made, self._made = self._made, None
        return made


class ClusterClient(Client):
    """The client of a cluster: finds the node for each call, and the calls for each node."""

    shards = True

    def __init__(self, raw: Lazy, *rest: Any) -> None:
        super().__init__(raw, *rest, errors=exceptions)
        # This one is no RedisError: no node of the cluster answers, or none has the slot.
        self.failures = (*self.failures, exceptions.RedisClusterException)
        self._warm_at: dict[str, set[str]] = {}  # scripts by node
        self._look_at = 0.0  # when the slots may be looked for again

    def words(self, keys: Sequence[str], args: Sequence[Any]) -> tuple[Any, ...]:
        """Name a key that nobody writes as well, see `keys.whole`.

        A slot moves key by key, and a script reaches rows that it has not named. With this key no
        script runs on a node that has only a part of them: it is refused before its first step.
        """
        first: Any = keys[0] if keys else reserve_keys(self.prefix).base
        nobody = whole(first.decode("utf-8", "replace") if isinstance(first, bytes) else first)
        keys = (*keys, nobody) if nobody else keys
        return (len(keys), *keys, *args)

    def _ask(self, *command: Any) -> Any:
        """Send a command to the node that has its key; follows a redirection."""
        try:
            return self.raw.execute_command(*command)
        except self.noscript as error:
            return error

    def trip(self, command: str, calls: Sequence[Noted]) -> list[Any]:
        """Send calls, those of one node in one round trip; errors in place of replies.

        Also an error of the connection is one: the other nodes have done what they were asked.
        What was redirected did not run, and is sent again alone.
        """
        replies: list[Any] = [None] * len(calls)
        by_node: dict[Any, list[int]] = {}
        for at, (_, words, _) in enumerate(calls):
            try:
                by_node.setdefault(self._owner(words[1]), []).append(at)
            except self.failures as error:
                replies[at] = error
        for node, places in by_node.items():
            answers = self._trip_to(node, command, [calls[at] for at in places])
            for at, answer in zip(places, answers, strict=True):
                replies[at] = answer
        for at, reply in enumerate(replies):
            if isinstance(reply, exceptions.AskError):  # or MOVED, which is one
                script, words, _ = calls[at]
                name = script.sha if command == "EVALSHA" else script.source
                try:
                    replies[at] = self._ask(command, name, *words)
                except self.failures as error:
                    replies[at] = error
        return replies

    def _trip_to(self, node: Any, command: str, calls: Sequence[Noted]) -> list[Any]:
        try:
            raw = self.raw.get_redis_connection(node)
            warm = self._warm_at.setdefault(node.name, set())
            warm_up(raw, {script for script, _, _ in calls}, warm)
            pipeline = raw.pipeline(transaction=False)
            for script, words, _ in calls:
                name = script.sha if command == "EVALSHA" else script.source
                pipeline.execute_command(command, name, *words)
            return list(pipeline.execute(raise_on_error=False))
        except self.failures as error:
            failure = self.failed(error)
            return [failure for _ in calls]

    def gather(self, build: Callable[[Any], object]) -> list[Any]:
        """The answers to reads, those of one node in one round trip.

        TIME, which names no key, is asked of the node of the first read: the clock of its queue.
        """
        noted = self.nodes()[0][1].pipeline(transaction=False)
        build(noted)
        commands = list(noted.command_stack)
        first = next((args[1] for args, _ in commands if len(args) > 1), "")
        by_node: dict[Any, list[int]] = {}
        for at, (args, _) in enumerate(commands):
            by_node.setdefault(self._owner(args[1] if len(args) > 1 else first), []).append(at)
        replies: list[Any] = [None] * len(commands)
        for node, places in by_node.items():
            pipeline = self.raw.get_redis_connection(node).pipeline(transaction=False)
            for at in places:
                args, options = commands[at]
                pipeline.execute_command(*args, **options)
            for at, reply in zip(places, pipeline.execute(raise_on_error=False), strict=True):
                args, options = commands[at]
                moved = isinstance(reply, exceptions.AskError) and len(args) > 1
                replies[at] = self.raw.execute_command(*args, **options) if moved else reply
        return replies

    def _owner(self, key: str | bytes) -> Any:
        """The node that has the slot of a key, as far as is known."""
        return self.raw.nodes_manager.get_node_from_slot(self.raw.keyslot(key))

    def _look_again(self) -> None:
        """Ask the cluster which node has which slot: a replica may have taken over."""
        if monotonic() < self._look_at:  # somebody has just done it
            return
        try:
            self.raw.nodes_manager.initialize()
        except self.failures:
            self.raw.forget()
        self._look_at = monotonic() + LOOK_EVERY

    def load(self, calls: Iterable[Noted]) -> None:
        """Load the scripts of calls, each on the node that has the keys."""
        for node, script in {(self._owner(words[1]), script) for script, words, _ in calls}:
            self.raw.get_redis_connection(node).execute_command("SCRIPT LOAD", script.source)

    def warm(self, calls: Iterable[Noted]) -> None:
        """Nothing yet: `trip` does it, node by node."""

    def each(self, things: Iterable[T], work: Callable[[T], object]) -> None:
        """Go on with the other queues where one fails, and raise that at the end."""
        failure: EmqError | None = None
        for thing in things:
            try:
                work(thing)
            except ServerError as error:
                failure = error
        if failure:
            raise failure

    def apart(self, keys: Sequence[str]) -> list[list[str]]:
        """Divide keys by their slots."""
        slots: dict[int, list[str]] = {}
        for key in keys:
            slots.setdefault(key_slot(key.encode()), []).append(key)
        return list(slots.values())

    def connection(self, key: str) -> Any:
        """A new connection, outside of the pools, to the node that has a key."""
        return outside(self.at(key))

    def at(self, key: str) -> Any:
        """The raw client of the node that has a key."""
        return self.raw.get_redis_connection(self._owner(key))

    def nodes(self) -> list[tuple[str, Any]]:
        """The primaries in the order of their slots."""
        slots = self.raw.nodes_manager.slots_cache
        primaries = dict.fromkeys(slots[slot][0] for slot in sorted(slots))
        return [(node.name, self.raw.get_redis_connection(node)) for node in primaries]

    @property
    def options(self) -> dict[str, Any]:
        """With which options the connections are made."""
        found: dict[str, Any] = self.raw.get_connection_kwargs()
        return found

    def scan(self, cursor: int, count: int, match: str | None = None) -> tuple[int, list[bytes]]:
        """One step of SCAN, node after node."""

        def step(raw: Any) -> tuple[int, list[bytes]]:
            nodes = self.nodes()
            at, here = divmod(cursor, PART)
            if at >= len(nodes):
                return 0, []
            next_, keys = nodes[at][1].scan(here, match=match, count=count)
            if not next_ and (at := at + 1) == len(nodes):
                return 0, keys
            return at * PART + next_, keys

        return self.read(step)

    def failed(self, error: Exception) -> EmqError:
        """Type an error, and find out where the slots are when it may mean that they moved."""
        if isinstance(error, exceptions.RedisClusterException):
            self.raw.forget()
        elif isinstance(error, MOVED):
            self._look_again()
        return super().failed(error)

    def close(self) -> None:
        """Close all connections, if there are any."""
        if made := self.raw.forget():
            made.disconnect_connection_pools()

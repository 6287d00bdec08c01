"""Servers that know of each other: a cluster, and a primary with replicas and sentinels.

Each is a `private_server` with a port of its own, so it is gone at the end, whatever ends first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from private_server import Server, private_server
from redis.crc import key_slot

from django_emq.keys import queue_keys
from tests.processes import wait_until

SLOTS = 16384
NODE_TIMEOUT = 1000  # ms after which a silent node is taken for dead
AT_ONCE = ["--repl-diskless-sync-delay", "0"]  # not after waiting for further replicas


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, nor the one 10000 above, below those of outgoing connections."""
    found: list[int] = []
    candidates = iter(random.sample(range(11_000, 22_000), 2000))
    while len(found) < count:
        port = next(candidates)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for one in (port, port + 10_000):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", one))
            found.append(port)
    return found


@dataclass
class Node:
    """A server that other servers reach at a port."""

    port: int
    server: Server
    id: str = ""

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, *words: Any) -> Any:
        """One command, straight to this node."""
        with contextlib.closing(self.server.client()) as client:
            return client.execute_command(*words)

    def info(self, section: str = "replication") -> dict[str, Any]:
        with contextlib.closing(self.server.client()) as client:
            return client.info(section)

    def kill(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGKILL)


@contextlib.contextmanager
def nodes(count: int, *args: str) -> Iterator[list[Node]]:
    """So many servers, started at the same time."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        ports = free_ports(count)
        files = [arg for arg in args[:1] if not arg.startswith("-")]
        rest = args[len(files) :]
        made = [private_server([*files, "--port", str(p), *rest], own=True) for p in ports]
        servers = list(pool.map(lambda one: one.__enter__(), made))
        for one in made:
            stack.push(one)
        yield [Node(port, server) for port, server in zip(ports, servers, strict=True)]


class Cluster:
    """Three primaries, the last of which has a replica at first."""

    def __init__(self, members: list[Node]) -> None:
        self.nodes = members
        for node in members:
            node.id = node.ask("CLUSTER", "MYID").decode()
        bounds = [SLOTS * part // 3 for part in range(4)]
        for epoch, node in enumerate(members[:3]):
            node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[epoch], bounds[epoch + 1] - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch + 1)
        for node in members[1:]:
            members[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        wait_until(lambda: all(self._known_to(node) == len(members) for node in members))
        members[3].ask("CLUSTER", "REPLICATE", members[2].id)
        wait_until(self.is_sound)

    def _known_to(self, node: Node) -> int:
        known = node.ask("CLUSTER", "NODES").splitlines()
        return len([line for line in known if b"handshake" not in line])

    def is_sound(self) -> bool:
        """Whether all nodes are there, agree, and the replica is up to date."""
        return (
            all("cluster_state:ok" in str(node.ask("CLUSTER", "INFO")) for node in self.nodes)
            and len({str(sorted(self.slots(node))) for node in self.nodes}) == 1
            and self.replica.info()["master_link_status"] == "up"
        )

    def slots(self, node: Node) -> list[tuple[int, int, int]]:
        """First slot, last slot and port of their primary, as one node sees it."""
        return [(int(a), int(b), int(p[1])) for a, b, p, *_ in node.ask("CLUSTER", "SLOTS")]

    @property
    def replica(self) -> Node:
        return next(node for node in self.nodes if node.info()["role"] == "slave")

    @property
    def primaries(self) -> list[Node]:
        """In the order of their slots, as the first node sees it."""
        ports = dict.fromkeys(port for _, _, port in sorted(self.slots(self.nodes[0])))
        return [node for port in ports for node in self.nodes if node.port == port]

    @property
    def url(self) -> str:
        return f"redis://{self.nodes[0].name}/0"

    @property
    def options(self) -> dict[str, object]:
        """OPTIONS of the alias."""
        return {
            "CONNECTION_FACTORY": "django_emq.cluster.ClusterConnectionFactory",
            "STARTUP_NODES": [("127.0.0.1", node.port) for node in self.nodes[1:]],
        }

    def owner(self, queue: str) -> Node:
        """The node that has the slot of a queue."""
        slot = slot_of(queue)
        ports = (port for a, b, port in self.slots(self.nodes[0]) if a <= slot <= b)
        port = next(ports)
        return next(node for node in self.nodes if node.port == port)

    def queues(self) -> list[str]:
        """A queue on each primary, in their order; names that were not answered before."""
        found: dict[int, str] = {}
        while len(found) < 3:
            name = f"q{next(_numbers)}"
            found.setdefault(self.owner(name).port, name)
        return [found[node.port] for node in self.primaries]

    def move(self, queue: str, target: Node, *, between: Callable[[], object]) -> None:
        """Move the slot of a queue, key by key, as redis-cli does; `between` is called half-way."""
        source, slot = self.owner(queue), slot_of(queue)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        moved = 0
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            moved += 1
            if moved == 2:
                between()
        assert moved > 1
        for node in (target, source, *self.nodes):
            if node.info()["role"] == "master":
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        wait_until(self.is_sound)


def slot_of(queue: str) -> int:
    return int(key_slot(queue_keys(queue).pending.encode()))


_numbers = itertools.count()


@dataclass
class Trio:
    """A primary with a replica, and three sentinels that watch them."""

    servers: list[Node]
    sentinels: list[Node]

    @property
    def primary(self) -> Node:
        """The one that the sentinels name, if most of them agree."""
        told = []
        for node in self.sentinels:
            with contextlib.suppress(Exception):
                told.append(int(node.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]))
        port = max(told, key=told.count)
        return next(node for node in self.servers if node.port == port)

    @property
    def replica(self) -> Node:
        return next(node for node in self.servers if node != self.primary)

    def is_sound(self) -> bool:
        """Whether there is a primary, and a replica that is up to date and known to all."""
        primary, replica = self.primary, self.replica
        with contextlib.suppress(Exception):
            return (
                primary.info()["role"] == "master"
                and replica.info()["role"] == "slave"
                and replica.info()["master_link_status"] == "up"
                and all(node.ask("SENTINEL", "REPLICAS", SERVICE) for node in self.sentinels)
                and all(node.ask("SENTINEL", "CKQUORUM", SERVICE) for node in self.sentinels)
            )
        return False

    @property
    def url(self) -> str:
        return f"redis://{SERVICE}/0"

    @property
    def options(self) -> dict[str, object]:
        """OPTIONS of the alias."""
        return {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [("127.0.0.1", node.port) for node in self.sentinels],
            "SENTINEL_KWARGS": {"socket_timeout": 0.5, "socket_connect_timeout": 0.5},
        }


SERVICE = "jobs"
SENTINEL = """
sentinel monitor {service} 127.0.0.1 {port} 2
sentinel down-after-milliseconds {service} 1000
sentinel failover-timeout {service} 4000
"""


@contextlib.contextmanager
def sentinels() -> Iterator[Trio]:
    """A primary, its replica, and three sentinels that agree on both."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-sentinels-"))
        primary, replica = stack.enter_context(nodes(2, *AT_ONCE))
        replica.ask("REPLICAOF", "127.0.0.1", primary.port)
        watching = []
        for number in range(3):
            file = Path(folder, f"{number}.conf")
            file.write_text(SENTINEL.format(service=SERVICE, port=primary.port))
            watching += stack.enter_context(nodes(1, str(file), "--sentinel"))
        trio = Trio([primary, replica], watching)
        wait_until(trio.is_sound)
        yield trio


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster of three primaries and one replica."""
    enabled = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT)]
    calm = ["--cluster-replica-validity-factor", "0", *AT_ONCE]
    with nodes(4, *enabled, *calm) as members:
        yield Cluster(members)

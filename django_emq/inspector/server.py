"""The server itself: version, memory, persistence, and whether it has our scripts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import scripts
from ..connections import Client
from ..keys import reserve_keys
from ._read import ask, number, text, texts
from .queues import many_totals

CONFIG = (
    "maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save", "timeout",
    "tcp-keepalive", "maxclients", "min-replicas-to-write",
)  # fmt: skip
# What the queues count of the jobs that a script has moved, where they do.
COUNTERS = {
    "audit": "mended", "cancel": "cancelled", "claim": "claimed", "complete": "completed",
    "discard": "discarded", "enqueue": "enqueued", "promote": "promoted", "reap": "reaped",
    "release": "released", "remove": "removed", "reprocess": "reprocessed",
    "requeue": "requeued", "retry": "failed", "snooze": "snoozed", "trim": "trimmed",
}  # fmt: skip
SCAN_COUNT = 1000  # keys looked at in one step


@dataclass(frozen=True, slots=True)
class ScriptFact:
    """One of our scripts on this server."""

    name: str
    sha: str
    loaded: bool | None  # None when the server does not tell
    size: int  # bytes of its source


@dataclass(frozen=True, slots=True)
class Strangers:
    """Keys in our database that are not ours, among those that were looked at."""

    count: int
    examined: int
    example: str
    complete: bool  # whether all keys were looked at


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself. What its ACL refuses is left out and named in `refused`."""

    fence: str  # the version that its keys belong to; '' when nothing was written yet
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    scripts: list[ScriptFact] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    evalsha: dict[str, Any] = field(default_factory=dict)  # calls, usec_per_call, failed_calls, …
    database: int = 0
    clock_ahead_s: float = 0.0  # the server's clock against this host's
    round_trip_s: float = 0.0  # which is also how exact that is
    is_socket: bool = False  # a unix socket: no network between
    node: str = ""  # its address, where it is one of the nodes of a cluster

    @property
    def name(self) -> str:
        """Product and version."""
        for product in ("valkey", "redis"):
            if version := self.info.get(f"{product}_version"):
                if product == "redis" and self.info.get("server_name") == "valkey":
                    continue
                return f"{product.capitalize()} {version}"
        return ""

    @property
    def policy(self) -> str:
        """What the server does when it is full; 'unknown' where it does not tell."""
        told = self.config.get("maxmemory-policy") or self.info.get("maxmemory_policy")
        return str(told or "unknown")


def servers(client: Client) -> list[ServerFacts]:
    """Ask each server about itself: the nodes of a cluster that take writes, or the only one."""
    (found,) = ask(client, lambda p: [p.get(reserve_keys(client.prefix).version)], loose=True)
    nodes = client.read(lambda raw: client.nodes())
    return [_facts(client, found, name, node) for name, node in nodes]


def server(client: Client) -> ServerFacts:
    """Ask the server about itself, in three round trips; of a cluster the first node."""
    return servers(client)[0]


def _facts(client: Client, found: Any, name: str, node: Any) -> ServerFacts:
    table = list(scripts.SCRIPTS.values())

    def send(raw: Any) -> Any:
        pipeline = node.pipeline(transaction=False)
        pipeline.info()
        pipeline.config_get(*CONFIG)
        pipeline.script_exists(*(script.sha for script in table))
        pipeline.info("commandstats")
        return pipeline.execute(raise_on_error=False)

    info, config, loaded, stats = client.read(send)
    names = {"GET": found, "INFO": info, "CONFIG GET": config, "SCRIPT EXISTS": loaded}
    flags = loaded if isinstance(loaded, list) else [None] * len(table)
    ahead, trip = _clock(client, node)
    way = client.options
    return ServerFacts(
        fence=text(found),
        info=info if isinstance(info, dict) else {},
        config=_settings(config),
        scripts=[
            ScriptFact(script.name, script.sha, None if there is None else bool(there), size)
            for script, there in zip(table, flags, strict=True)
            for size in [len(script.source)]
        ],
        refused=[name for name, reply in names.items() if isinstance(reply, Exception)],
        evalsha=stats.get("cmdstat_evalsha", {}) if isinstance(stats, dict) else {},
        database=number(way.get("db")),
        clock_ahead_s=ahead,
        round_trip_s=trip,
        is_socket="path" in way,
        node=name,
    )


def strangers(client: Client, *, scans: int = 10) -> Strangers:
    """Look for keys that are not the queue's, among about `scans` thousand of the database."""
    ours = (f"{client.prefix}:{{".encode(), f"{{{client.prefix}}}:".encode())
    cursor = count = examined = 0
    example = ""
    for _ in range(scans):
        cursor, keys = client.scan(cursor, SCAN_COUNT)
        examined += len(keys)
        for key in keys:
            if not key.startswith(ours):
                count += 1
                example = example or text(key)
        if not cursor:
            break
    return Strangers(count, examined, example[:80], complete=not cursor)


def moved(client: Client, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """How many jobs each script has moved, and which counter of the queues says so.

    The server counts its EVALSHA calls, but not by script, and the queue does not pay for a
    counter of calls with every job. So this counts jobs: a claim of fifty is fifty.
    """
    sums: dict[str, int] = {}
    for counters in many_totals(client, names):
        for name, value in counters.items():
            sums[name] = sums.get(name, 0) + value
    return {script: (sums.get(counter, 0), counter) for script, counter in COUNTERS.items()}


def _clock(client: Client, node: Any) -> tuple[float, float]:
    """How far the server's clock is ahead of ours, and the round trip, in seconds."""
    began, started = time.time(), time.monotonic()
    seconds, micros = client.read(lambda raw: node.time())
    trip = time.monotonic() - started
    return seconds + micros / 1e6 - (began + trip / 2), trip


def _settings(config: Any) -> dict[str, str]:
    if not isinstance(config, dict):
        return {}
    if all(isinstance(name, str) for name in config):  # redis-py has decoded it
        return {name: str(value) for name, value in config.items()}
    return texts(config)

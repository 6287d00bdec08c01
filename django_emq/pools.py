"""Pools of our own, made like that of the alias, by a policy of our own: no call is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

# One pool holds as many connections as threads call at once; the server sets the real bound.
MAX_CONNECTIONS = 10_000
SENTINEL_SECONDS = 1.0  # for a sentinel, where the alias says nothing: there are others to ask


def never(package: str = "redis") -> Any:
    """The policy of a client package that repeats nothing."""
    retry = import_module(package + ".retry").Retry
    return retry(import_module(package + ".backoff").NoBackoff(), 0)


def derive(raw: Any, *, timeout: float) -> Any:
    """A client like `raw` over a pool of its own: no repeats, this socket time-out, bytes.

    :param timeout: seconds to connect, and to wait for a reply.
    """
    pool = raw.connection_pool
    package = type(raw).__module__.split(".")[0]
    own = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": never(package),
        "decode_responses": False,
    }
    options = {**inherited(pool.connection_kwargs), **own}
    if hasattr(pool, "sentinel_manager"):
        manager = _sentinels(pool.sentinel_manager, own)
        return manager.master_for(pool.service_name, **options)
    pool_class = import_module(package + ".connection").ConnectionPool
    return type(raw)(
        connection_pool=pool_class(
            connection_class=pool.connection_class, max_connections=MAX_CONNECTIONS, **options
        )
    )


def outside(raw: Any) -> Any:
    """A new connection as the pool of a client would make it, which the pool does not count.

    A pool counts what it has made and ends at its bound; who makes a connection after each error
    of a long outage would come to it.
    """
    pool = raw.connection_pool
    return pool.connection_class(**pool.connection_kwargs)


def inherited(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a connection keeps of the alias: where and who, but no policy of repeats."""
    dropped = {"retry", "retry_on_timeout", "retry_on_error", "connection_pool", "client_name"}
    return {name: value for name, value in kwargs.items() if name not in dropped}


def _sentinels(manager: Any, own: Mapping[str, Any]) -> Any:
    """The same sentinels, asked once each: where one died with its machine, the next one knows."""
    asked = [one.connection_pool.connection_kwargs for one in manager.sentinels]
    seconds = min(own["socket_timeout"], SENTINEL_SECONDS)
    options = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        **manager.sentinel_kwargs,
        "retry": own["retry"],
    }
    return type(manager)(
        [(one["host"], one["port"]) for one in asked],
        min_other_sentinels=manager.min_other_sentinels,
        sentinel_kwargs=options,
    )

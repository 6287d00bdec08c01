"""System checks of the alias that leads to the server.

An Info is about something that an ordinary cache reacts to and the queue does not, since its
connections are its own (`pools.derive`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Info, Warning
from django_redis.client import HerdClient, ShardClient

from . import aliases
from .aliases import Alias
from .conf import Settings

# Options of an alias that name a class.
CLASSES = (
    "CLIENT_CLASS",
    "CONNECTION_FACTORY",
    "CONNECTION_POOL_CLASS",
    "PARSER_CLASS",
    "REDIS_CLIENT_CLASS",
)
# Options that shape the pool, which django-redis keeps by URL alone.
POOL_OPTIONS = (
    "CONNECTION_FACTORY",
    "CONNECTION_POOL_CLASS",
    "CONNECTION_POOL_KWARGS",
    "PARSER_CLASS",
    "PASSWORD",
    "REDIS_CLIENT_CLASS",
    "SENTINELS",
    "SENTINEL_KWARGS",
    "SOCKET_CONNECT_TIMEOUT",
    "SOCKET_TIMEOUT",
    "USERNAME",
)
# What the valkey client needs to work under django-redis.
VALKEY = {
    "REDIS_CLIENT_CLASS": "valkey.Valkey",
    "CONNECTION_POOL_CLASS": "valkey.ConnectionPool",
    "PARSER_CLASS": "valkey.connection.DefaultParser",
}


# -- the alias --------------------------------------------------------------------------------


def backend(alias: Alias | None, values: Settings) -> list[CheckMessage]:
    """E001, E002: there is an alias, and django-redis serves it."""
    if alias is None:
        name = values.cache_alias
        close = difflib.get_close_matches(name, django_settings.CACHES, n=1)
        other = f" Or did you mean EMQ['CACHE_ALIAS'] = {close[0]!r}?" if close else ""
        return [
            Error(
                f"The queue uses the cache alias {name!r}, which is not in CACHES. Add it there.",
                hint=f"{_snippet(name)}{other}",
                id="django_emq.E001",
            )
        ]
    if not alias.is_django_redis:
        backend = django_settings.CACHES[alias.name].get("BACKEND")
        fact = "is not django-redis" if alias.backend else "cannot be imported"
        return [
            Error(
                f"The queue uses the cache alias {alias.name!r}, whose BACKEND {backend!r} {fact}. "
                "The queue needs an alias of django-redis: give it one of its own.",
                hint=_snippet(alias.name),
                id="django_emq.E002",
            )
        ]
    return []


def _location(alias: Alias, values: Settings) -> list[CheckMessage]:
    """E003: the URLs are URLs."""
    if not alias.urls:
        fact = "has no LOCATION"
    elif bad := [i for i, url in enumerate(alias.urls, 1) if not aliases.split_url(url)]:
        # The URL itself may hold a password and is not shown.
        fact = f"has a LOCATION whose URL number {bad[0]} is not one of a server"
    elif not _uses_valkey(alias) and any(url.startswith("valkey") for url in alias.urls):
        fact = "has a valkey:// LOCATION, which the client redis-py refuses"
    elif _is_cluster(alias) and any(
        one.number or one.server.startswith("/") for one in alias.databases
    ):
        fact = "leads to a cluster, which knows database 0 and no unix socket"
    else:
        return []
    return [
        Error(
            f"The cache alias {alias.name!r} {fact}. Give a URL that begins with redis://, "
            "rediss:// or unix://.",
            hint="For instance redis://127.0.0.1:6379/1, also for a Valkey server. A comma "
            "separates URLs: write a comma inside a password as %2C.",
            id="django_emq.E003",
        )
    ]


def _classes(alias: Alias, values: Settings) -> list[CheckMessage]:
    """E004, E005, E007: the classes exist, and hand out one client of one server."""
    found: list[CheckMessage] = [
        Error(
            f"The cache alias {alias.name!r} has {option} {alias.options[option]!r}, which cannot "
            "be imported. Install its package, or correct the path.",
            hint="All that the queue needs is the default: leave the option out.",
            id="django_emq.E007",
        )
        for option in CLASSES
        if alias.options.get(option) and aliases.imported(alias.options[option]) is None
    ]
    client = aliases.imported(alias.options.get("CLIENT_CLASS"))
    use = "Leave CLIENT_CLASS out, or use 'django_redis.client.DefaultClient' or 'SentinelClient'."
    if aliases.is_subclass(client, ShardClient):
        found.append(
            Error(
                f"The cache alias {alias.name!r} uses ShardClient, which spreads keys over servers "
                "and hands out no client. The keys of a queue must be on one server: use another "
                "CLIENT_CLASS.",
                hint=use,
                id="django_emq.E004",
            )
        )
    if aliases.is_subclass(client, HerdClient):
        found.append(
            Error(
                f"The cache alias {alias.name!r} uses HerdClient, which is made for an ordinary "
                "cache: it changes how values are stored and when they expire. The queue needs an "
                "alias of its own with another CLIENT_CLASS.",
                hint=use,
                id="django_emq.E005",
            )
        )
    return found


def _valkey(alias: Alias, values: Settings) -> list[CheckMessage]:
    """E006: the valkey client returns errors as values when it is given redis-py's parser."""
    if not _uses_valkey(alias):
        return []
    missing = [option for option in VALKEY if not _is_valkey(_class_of(alias, option))]
    if not missing:
        return []
    return [
        Error(
            f"The cache alias {alias.name!r} uses the valkey client without its own "
            f"{' and '.join(missing)}. Errors of the server then come back as if they were "
            "answers, and a refused job would look like a finished one: set all three options, "
            "or none.",
            hint=", ".join(f"{option!r}: {path!r}" for option, path in VALKEY.items())
            + ". Or remove them: redis-py, the default, works with Valkey.",
            id="django_emq.E006",
        )
    ]


def _class_of(alias: Alias, option: str) -> Any:
    if option == "PARSER_CLASS" and "parser_class" in alias.pool_kwargs:
        return alias.pool_kwargs["parser_class"]
    return aliases.imported(alias.options.get(option))


def _is_valkey(cls: Any) -> bool:
    return any(base.__module__.split(".")[0] == "valkey" for base in getattr(cls, "__mro__", ()))


def _is_cluster(alias: Alias) -> bool:
    factory = aliases.imported(alias.options.get("CONNECTION_FACTORY"))
    return hasattr(factory, "private_client")


def _uses_valkey(alias: Alias) -> bool:
    return any(_is_valkey(_class_of(alias, option)) for option in VALKEY)


# -- what else lives where the queue lives ----------------------------------------------------


def _flush(alias: Alias, values: Settings) -> list[CheckMessage]:
    """W001, W002: cache.clear() is FLUSHDB, which takes the queue along."""
    found: list[CheckMessage] = []
    if alias.name == "default":
        found.append(
            Warning(
                "The queue uses the cache alias 'default'. cache.clear() sends FLUSHDB there, "
                "which deletes all jobs: give the queue an alias of its own.",
                hint=_snippet(alias.name),
                id="django_emq.W001",
            )
        )
    sharing = [other for other in aliases.others(alias) if other.databases & alias.databases]
    if sharing:
        names = " and ".join(repr(other.name) for other in sharing)
        shared = {one for other in sharing for one in other.databases & alias.databases}
        where = " and ".join(sorted(map(str, shared)))
        found.append(
            Warning(
                f"The queue's cache alias {alias.name!r} leads to the same database as {names}: "
                f"{where}. cache.clear() sends FLUSHDB there, whatever the KEY_PREFIX, which "
                "deletes all jobs: give the queue a database, or a server, of its own.",
                hint=f"Database {_free_number()} is not used in CACHES. It is the number at the "
                "end of the URL (redis://host:6379/N, unix:///path?db=N); django-redis does not "
                "read OPTIONS['DB'].",
                id="django_emq.W002",
            )
        )
    return found


def _shared_pool(alias: Alias, values: Settings) -> list[CheckMessage]:
    """W003: django-redis keeps one pool a URL; the alias that connects first shapes it."""
    found: list[CheckMessage] = []
    for other in aliases.others(alias):
        if not other.is_django_redis or not set(other.urls) & set(alias.urls):
            continue
        differing = [o for o in POOL_OPTIONS if other.options.get(o) != alias.options.get(o)]
        if differing:
            found.append(
                Warning(
                    f"The cache aliases {alias.name!r} and {other.name!r} have the same URL, but "
                    f"differ in {', '.join(differing)}. django-redis keeps one pool a URL, so both "
                    "get the options of the one that connects first: give the queue a URL of its "
                    "own.",
                    hint=f"Another database number ({_free_number()} is not used in CACHES), or "
                    "'?client_name=emq' at the end of the URL, makes it another one.",
                    id="django_emq.W003",
                )
            )
    return found


# -- settings of the alias that the queue does not follow -------------------------------------


def _replicas(alias: Alias, values: Settings) -> list[CheckMessage]:
    """I001"""
    if len(alias.urls) < 2:
        return []
    return [
        Info(
            f"The cache alias {alias.name!r} lists {len(alias.urls)} servers. The queue uses the "
            "first one only, for reading too: it must be the primary.",
            hint="List the primary alone, or use Sentinel for failover.",
            id="django_emq.I001",
        )
    ]


def _retry(alias: Alias, values: Settings) -> list[CheckMessage]:
    """I002"""
    options = ("retry", "retry_on_timeout", "retry_on_error")
    found = [o for o in options if alias.pool_kwargs.get(o) and not _never(alias.pool_kwargs[o])]
    found += [f"?{o}" for o in options if any(map(_is_on, alias.query(o)))]
    if not found:
        return []
    return [
        Info(
            f"The cache alias {alias.name!r} has a retry policy ({', '.join(found)}). The queue "
            "does not follow it: a client that repeats a call without an answer would run a "
            "script twice, so the queue's own connections never do, and the queue repeats only "
            "what is safe to repeat.",
            hint="Your own scripts through get_redis_connection are still repeated. Remove the "
            "policy, unless the alias serves something else that needs it.",
            id="django_emq.I002",
        )
    ]


def _timeouts(alias: Alias, values: Settings) -> list[CheckMessage]:
    """I003"""
    found = [
        *(o for o in ("SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT") if alias.options.get(o)),
        *(o for o in ("socket_timeout", "socket_connect_timeout") if o in alias.pool_kwargs),
        *(f"?{o}" for o in ("socket_timeout", "socket_connect_timeout") if alias.query(o)),
    ]
    if not found:
        return []
    return [
        Info(
            f"The cache alias {alias.name!r} sets {', '.join(found)}. The queue does not follow "
            f"it: its own connections wait EMQ['SOCKET_TIMEOUT'], now {values.socket_timeout} s, "
            "to connect and for a reply, and longer only where they block for work.",
            hint="Set EMQ['SOCKET_TIMEOUT'], and remove it from the alias.",
            id="django_emq.I003",
        )
    ]


def _close(alias: Alias, values: Settings) -> list[CheckMessage]:
    """I004"""
    everywhere = getattr(django_settings, "DJANGO_REDIS_CLOSE_CONNECTION", False)
    if not alias.options.get("CLOSE_CONNECTION", everywhere):
        return []
    option = f"CLOSE_CONNECTION of the cache alias {alias.name!r}"
    if "CLOSE_CONNECTION" not in alias.options:
        option = "DJANGO_REDIS_CLOSE_CONNECTION"
    return [
        Info(
            f"{option} closes the pool of a cache after each request, also under a thread that is "
            "using it. The queue's own connections are not in that pool and stay open.",
            hint="Nothing to do for the queue. Without it, a cache saves a connection a request.",
            id="django_emq.I004",
        )
    ]


def _never(retry: Any) -> bool:
    """Whether a Retry object allows no retries at all."""
    retries = getattr(retry, "get_retries", None)
    return retries is not None and retries() == 0


def _is_on(value: str) -> bool:
    return value.upper() not in ("", "0", "F", "FALSE", "N", "NO")


# -- ways out ---------------------------------------------------------------------------------


def _free_number() -> int:
    """The lowest database number, from 1 up, that no alias uses."""
    entries = map(aliases.read, django_settings.CACHES)
    used = {one.number for alias in entries if alias for one in alias.databases}
    return next(number for number in range(1, len(used) + 2) if number not in used)


def _snippet(name: str) -> str:
    """What to paste into the settings. Other code clears 'default', so that is never it."""
    own = "emq" if name == "default" else name
    entry = (
        f'CACHES["{own}"] = {{"BACKEND": "django_redis.cache.RedisCache", '
        f'"LOCATION": "redis://127.0.0.1:6379/{_free_number()}"}}'
    )
    return entry if own == name else f'{entry} and EMQ["CACHE_ALIAS"] = "{own}"'


ALL: tuple[Callable[[Alias, Settings], list[CheckMessage]], ...] = (
    _location,
    _classes,
    _valkey,
    _flush,
    _shared_pool,
    _replicas,
    _retry,
    _timeouts,
    _close,
)

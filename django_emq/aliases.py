"""What CACHES says about an alias, read without opening a connection.

The system checks need it: which class serves the alias, which server and database its URLs lead
to, and with which options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from django.conf import settings as django_settings
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache

SCHEMES = ("redis", "rediss", "unix")
VALKEY_SCHEMES = ("valkey", "valkeys")


@dataclass(frozen=True, slots=True)
class Database:
    """One database of one server, spelled in one way however the URL spells it."""

    server: str
    number: int

    def __str__(self) -> str:
        return f"{self.server}, database {self.number}"


@dataclass(frozen=True, slots=True)
class Alias:
    """One entry of CACHES."""

    name: str
    backend: Any  # the class, or None when it cannot be imported
    urls: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def is_django_redis(self) -> bool:
        """Whether the backend is that of django-redis, or derived from it."""
        return is_subclass(self.backend, RedisCache)

    @property
    def pool_kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the connection pool; what the URL says goes before them."""
        if self.is_django_redis:
            return as_dict(self.options.get("CONNECTION_POOL_KWARGS"))
        return self.options

    def query(self, name: str) -> list[str]:
        """The values that the URLs give to a parameter."""
        urls = filter(None, map(split_url, self.urls))
        return [value for url in urls for value in parse_qs(url.query).get(name, [])]

    @property
    def databases(self) -> set[Database]:
        """Where the URLs lead. A URL that cannot be read leads nowhere."""
        return {
            Database(server, _number(url, self.pool_kwargs))
            for url in filter(None, map(split_url, self.urls))
            for server in self._servers(url)
        }

    def _servers(self, url: SplitResult) -> list[str]:
        """The server of a URL and others of its cluster, or a name for each of its sentinels."""
        if url.scheme == "unix":
            return [os.path.realpath(unquote(url.path))]
        host = url.hostname or str(self.pool_kwargs.get("host", ""))
        if isinstance(self.options.get("SENTINELS"), (list, tuple)):
            return [f"{host} at sentinel {one}" for one in self._addresses("SENTINELS")]
        own = _address(host, url.port or self.pool_kwargs.get("port"))
        return [own, *self._addresses("STARTUP_NODES")]

    def _addresses(self, option: str) -> list[str]:
        """What a list of (host, port) names; what is no pair names nothing."""
        given = self.options.get(option)
        pairs = given if isinstance(given, (list, tuple)) else ()
        pairs = [one for one in pairs if isinstance(one, (list, tuple)) and len(one) == 2]
        return [_address(str(host), port) for host, port in pairs]


def read(name: str) -> Alias | None:
    """The alias of this name, or None when CACHES has none."""
    entry: Any = django_settings.CACHES.get(name)
    if entry is None:
        return None
    backend = imported(entry.get("BACKEND"))
    urls = entry.get("LOCATION") or ()
    if isinstance(urls, str):
        # django-redis splits at commas, Django's own Redis cache at semicolons too.
        urls = re.split("," if is_subclass(backend, RedisCache) else "[;,]", urls)
    elif not isinstance(urls, (list, tuple, set)):
        urls = ()
    return Alias(name, backend, tuple(map(str, urls)), as_dict(entry.get("OPTIONS")))


def others(alias: Alias) -> list[Alias]:
    """All other aliases, by name."""
    found = (read(name) for name in sorted(django_settings.CACHES) if name != alias.name)
    return [other for other in found if other is not None]


def imported(path: Any) -> Any:
    """What a dotted path leads to, or None."""
    try:
        return import_string(path)
    except Exception:  # the module is not ours and may raise anything
        return None


def as_dict(value: object) -> Mapping[str, Any]:
    """The value if it is a dict; an empty one otherwise: a check must not fall over a mistake."""
    return value if isinstance(value, Mapping) else {}


def is_subclass(thing: Any, base: type) -> bool:
    """Whether `thing` is a class derived from `base`."""
    return isinstance(thing, type) and issubclass(thing, base)


def split_url(url: str) -> SplitResult | None:
    """The parts of a server's URL, or None when it is not one."""
    try:
        parts = urlsplit(url)
        readable = parts.port is None or parts.port > 0
    except ValueError:
        return None
    return parts if readable and parts.scheme in SCHEMES + VALKEY_SCHEMES else None


def _address(host: str, port: Any) -> str:
    host = host.lower()
    if host in ("", "127.0.0.1", "::1"):
        host = "localhost"
    return f"{host}:{port or 6379}"


def _number(url: SplitResult, pool_kwargs: Mapping[str, Any]) -> int:
    """As the client reads it: ``?db=``, else the path, else the pool's own argument, else 0.

    A path that is no number counts for nothing there, and so it does here.
    """
    query = parse_qs(url.query).get("db", [""])[0]
    path = "" if url.scheme == "unix" else unquote(url.path).replace("/", "")
    for number in (query, path, pool_kwargs.get("db")):
        if str(number).isdecimal():
            return int(str(number))
    return 0

"""Mistakes in the settings, each with the ids that it must bring up, and near misses with none."""

from __future__ import annotations

import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis
import valkey
from django.core.checks import CheckMessage, run_checks
from django.test import override_settings
from django_redis.client import HerdClient, ShardClient
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_emq.backend import EMQBackend

REDIS = "django_redis.cache.RedisCache"
CORE = "django.core.cache.backends.redis.RedisCache"
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
BACKEND = "django_emq.backend.EMQBackend"
MARK = "tests.probe.tasks.mark"
URL = "redis://127.0.0.1:6379/1"
CLUSTER = "django_emq.cluster.ClusterConnectionFactory"
VALKEY = {
    "REDIS_CLIENT_CLASS": "valkey.Valkey",
    "CONNECTION_POOL_CLASS": "valkey.ConnectionPool",
    "PARSER_CLASS": "valkey.connection.DefaultParser",
}


class OwnBackend(EMQBackend):
    """A project's own subclass."""


class OwnShardClient(ShardClient):
    """A project's own subclass."""


class OwnHerdClient(HerdClient):
    """A project's own subclass."""


class OwnValkey(valkey.Valkey):
    """A project's own subclass."""


def alias(location: Any = URL, backend: str = REDIS, **options: Any) -> dict[str, Any]:
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


def pool(**kwargs: Any) -> dict[str, Any]:
    return alias(CONNECTION_POOL_KWARGS=kwargs)


def without(option: str) -> dict[str, str]:
    return {name: path for name, path in VALKEY.items() if name != option}


def found(
    emq: Any = None, *, queue: Any = None, close: Any = None, tasks: Any = None, **others: Any
) -> list[CheckMessage]:
    """The messages for these aliases beside an ordinary one in memory.

    :param queue: the entry of the alias 'emq'; False for none.
    :param close: DJANGO_REDIS_CLOSE_CONNECTION.
    :param tasks: the entry 'default' of TASKS.
    """
    entries = {"default": LOCMEM, "emq": alias() if queue is None else queue, **others}
    entries = {name: copy.deepcopy(entry) for name, entry in entries.items() if entry}
    more = {} if close is None else {"DJANGO_REDIS_CLOSE_CONNECTION": close}
    more["TASKS"] = {"default": tasks or {"BACKEND": BACKEND}}
    with override_settings(EMQ=emq or {}, CACHES=entries, **more):
        return run_checks(tags=["emq"])


def ids(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("django_emq.") for message in messages]


# What makes each id appear, alone or with the others named.
FIRES: list[tuple[str, dict[str, Any]]] = [
    ("E001", {"queue": False}),
    ("E001", {"emq": {"CACHE_ALIAS": "jobs"}}),
    ("E002", {"queue": LOCMEM}),
    ("E002", {"queue": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}),
    ("E002", {"queue": alias(backend=CORE)}),
    ("E002", {"queue": alias(backend="no.such.Cache")}),
    ("E002", {"emq": {"CACHE_ALIAS": "default"}}),
    ("E003", {"queue": {"BACKEND": REDIS}}),
    ("E003", {"queue": alias("")}),
    ("E003", {"queue": alias([])}),
    ("E003", {"queue": alias(6379)}),
    ("E003", {"queue": alias("localhost:6379")}),
    ("E003", {"queue": alias("http://localhost:6379/1")}),
    ("E003", {"queue": alias("redis://localhost:port/1")}),
    ("E003", {"queue": alias("redis://localhost:0/1")}),
    ("E003", {"queue": alias("redis://[::1/1")}),
    ("E003", {"queue": alias("valkey://127.0.0.1:6379/1")}),
    ("E003 I001", {"queue": alias("redis://:pass,word@localhost/1")}),
    ("E003", {"queue": alias(CONNECTION_FACTORY=CLUSTER)}),
    ("E003", {"queue": alias("unix:///run/s", CONNECTION_FACTORY=CLUSTER)}),
    ("E004", {"queue": alias(CLIENT_CLASS="django_redis.client.ShardClient")}),
    ("E004", {"queue": alias(CLIENT_CLASS="tests.check_cases.OwnShardClient")}),
    ("E005", {"queue": alias(CLIENT_CLASS="django_redis.client.HerdClient")}),
    ("E005", {"queue": alias(CLIENT_CLASS="tests.check_cases.OwnHerdClient")}),
    ("E006", {"queue": alias(**without("PARSER_CLASS"))}),
    ("E006", {"queue": alias(**without("CONNECTION_POOL_CLASS"))}),
    ("E006", {"queue": alias(**without("REDIS_CLIENT_CLASS"))}),
    ("E006", {"queue": alias(REDIS_CLIENT_CLASS="tests.check_cases.OwnValkey")}),
    ("E006", {"queue": alias(**VALKEY | {"PARSER_CLASS": "redis.connection.DefaultParser"})}),
    (
        "E006",
        {
            "queue": alias(
                **VALKEY,
                CONNECTION_POOL_KWARGS={"parser_class": redis.connection.DefaultParser},
            )
        },
    ),
    *(
        ("E007", {"queue": alias(**{option: "no.such.Thing"})})
        for option in ("CLIENT_CLASS", "CONNECTION_FACTORY", "CONNECTION_POOL_CLASS")
    ),
    ("E007", {"queue": alias(PARSER_CLASS=redis.connection.DefaultParser)}),
    ("E010", {"emq": {"LEASES": 5}}),
    ("E010", {"emq": {"QUEUES": {"mail": {"PREFIX": "x"}}}}),
    ("E011", {"emq": {"MAX_ATTEMPTS": 0}}),
    ("E011", {"emq": {"BACKOFF": "no.such.policy"}}),
    ("E012", {"emq": {"DEFAULT_QUEUE": "emq"}}),
    ("E012", {"emq": {"QUEUES": {"mail": {"PARTITIONS": 2}, "mail.5": {}}}}),
    ("E016", {"emq": {"MIDDLEWARE": ["tests.check_cases.nothing_here"]}}),
    ("E016", {"emq": {"MIDDLEWARE": ["no.such.module"]}}),
    ("E016", {"emq": {"MIDDLEWARE": ["tests.check_cases.__name__"]}}),
    ("E030", {"emq": {"SCHEDULES": {"x": {"task": "no.such.task", "every": 60}}}}),
    ("E030", {"emq": {"SCHEDULES": {"x": {"task": MARK, "every": 60, "queue": "emq"}}}}),
    ("E011", {"emq": {"SCHEDULES": {"x": {"task": MARK, "cron": "61 * * * *"}}}}),
    ("E011", {"emq": {"SCHEDULES": {"x": {"task": MARK, "cron": "@daily", "tz": "Mars"}}}}),
    ("E013", {"emq": {"QUEUES": {"numbered": {"PARTITIONS": 2}}}}),
    ("E020", {"tasks": {"BACKEND": BACKEND, "OPTIONS": {"RESULT_TLL": 60}}}),
    ("E020", {"tasks": {"BACKEND": "tests.check_cases.OwnBackend", "OPTIONS": {"LEASE": 60}}}),
    ("E021", {"tasks": {"BACKEND": BACKEND, "OPTIONS": {"RESULT_TTL": 0}}}),
    ("E021", {"tasks": {"BACKEND": BACKEND, "OPTIONS": {"BACKOFF": "no.such.policy"}}}),
    ("E021", {"tasks": {"BACKEND": BACKEND, "OPTIONS": [60]}}),
    ("E021", {"tasks": {"BACKEND": BACKEND, "QUEUES": ["the mail"]}}),
    ("E021", {"tasks": {"BACKEND": BACKEND, "QUEUES": ["emq"]}}),
    ("W001", {"emq": {"CACHE_ALIAS": "default"}, "default": alias(), "queue": False}),
    ("W002", {"other": alias(URL, CORE)}),
    ("W002", {"other": alias("redis://localhost/1", REDIS)}),
    ("W002", {"other": alias("rediss://user:secret@LOCALHOST:6379?db=1", CORE)}),
    ("W002", {"other": alias("redis://[::1]:6379/1", REDIS)}),
    ("W002", {"other": alias(["redis://elsewhere/1", URL], CORE)}),
    ("W002", {"other": alias("redis://elsewhere/1;redis://localhost/1", CORE)}),
    ("W002", {"other": alias("redis://elsewhere/1,redis://localhost/1", REDIS)}),
    ("W002", {"other": alias("redis://localhost", CORE, db=1)}),
    ("W002", {"other": alias("redis://localhost", REDIS, CONNECTION_POOL_KWARGS={"db": 1})}),
    ("W002", {"other": alias("redis://localhost:6379/1", "third.party.Cache")}),
    ("W002", {"queue": alias("redis://localhost/emq"), "other": alias("redis://localhost/0")}),
    ("W002", {"queue": alias("redis://localhost", DB=1), "other": alias("redis://localhost/0")}),
    ("W002", {"queue": alias("unix:///run/s?db=2"), "other": alias("unix:///run/../run/s?db=2")}),
    (
        "W002",
        {
            "queue": alias("redis://main/1", SENTINELS=[("a", 26379), ("b", 26379)]),
            "other": alias("redis://main/1?x=y", SENTINELS=[("c", 26379), ("b", 26379)]),
        },
    ),
    (
        "W002",
        {
            "queue": alias("redis://a/0", CONNECTION_FACTORY=CLUSTER, STARTUP_NODES=[("b", 6379)]),
            "other": alias("redis://c", CONNECTION_FACTORY=CLUSTER, STARTUP_NODES=[("b", 6379)]),
        },
    ),
    ("W002 W003", {"other": alias(PASSWORD="secret")}),
    ("W002 W003 I003", {"queue": alias(SOCKET_TIMEOUT=1), "other": alias()}),
    ("W002 W003", {"other": alias([URL, "redis://replica/1"], PARSER_CLASS="x.Y")}),
    ("W004", {"emq": {"LEASE": 7}}),
    ("W004", {"emq": {"SOCKET_TIMEOUT": 10, "QUEUES": {"mail": {"MAX_ATTEMPTS": 2}}}}),
    ("W004", {"emq": {"QUEUES": {"quick": {"LEASE": 2}}}}),
    ("W005", {"emq": {"EFFECT_TTL": 86400}}),
    ("W005", {"emq": {"EFFECT_TTL": 3600, "DEAD_TTL": 3600}}),
    ("I001", {"queue": alias([URL, "redis://replica:6379/1"])}),
    ("I001", {"queue": alias(f"{URL},redis://replica:6379/1")}),
    ("I002", {"queue": pool(retry=Retry(NoBackoff(), 3))}),
    ("I002", {"queue": pool(retry=Retry(NoBackoff(), -1))}),
    ("I002", {"queue": pool(retry_on_timeout=True)}),
    ("I002", {"queue": pool(retry_on_error=[ConnectionError])}),
    ("I002", {"queue": alias(f"{URL}?retry_on_timeout=true")}),
    ("I002", {"queue": alias(f"{URL}?retry_on_error=x")}),
    ("I003", {"queue": alias(SOCKET_TIMEOUT=1)}),
    ("I003", {"queue": alias(SOCKET_CONNECT_TIMEOUT=60)}),
    ("I003", {"queue": pool(socket_timeout=None)}),
    ("I003", {"queue": pool(socket_connect_timeout=1)}),
    ("I003", {"queue": alias(f"{URL}?socket_timeout=0.5")}),
    ("I004", {"close": True}),
    ("I004", {"queue": alias(CLOSE_CONNECTION=True)}),
]

# The near misses: what looks like the mistake and is none.
SILENT: list[tuple[str, dict[str, Any]]] = [
    ("E001", {"queue": False, "emq": {"CACHE_ALIAS": "jobs"}, "jobs": alias()}),
    ("E002", {"queue": alias(CLIENT_CLASS="django_redis.client.DefaultClient")}),
    ("E002", {"queue": {"BACKEND": REDIS, "LOCATION": URL}}),
    ("E003", {"queue": alias([URL])}),
    ("E003", {"queue": alias("rediss://user:p%2Cw@host.example:6380/0")}),
    ("E003", {"queue": alias("unix:///run/valkey/s?db=1")}),
    ("E003", {"queue": alias("valkey://127.0.0.1:6379/1", **VALKEY)}),
    (
        "E004 E005",
        {"queue": alias(CLIENT_CLASS="django_redis.client.SentinelClient", SENTINELS=[("a", 1)])},
    ),
    ("E004 E005", {"other": alias("redis://b/1", CLIENT_CLASS="django_redis.client.ShardClient")}),
    ("E006", {"queue": alias(**VALKEY)}),
    ("E006", {"queue": alias(REDIS_CLIENT_CLASS="redis.Redis")}),
    (
        "E006",
        {
            "queue": alias(
                **without("PARSER_CLASS"),
                CONNECTION_POOL_KWARGS={"parser_class": valkey.connection.DefaultParser},
            )
        },
    ),
    ("E007", {"queue": alias(PARSER_CLASS="redis.connection.DefaultParser")}),
    ("E007", {"other": alias("redis://b/1", CLIENT_CLASS="no.such.Thing")}),
    ("E010 E011", {"emq": {"LEASE": 60, "QUEUES": {"mail": {"LEASE": 60}}}}),
    ("E012", {"emq": {"PREFIX": "shop", "DEFAULT_QUEUE": "emq"}}),
    ("E016", {"emq": {"MIDDLEWARE": ["tests.probe.around.counted"]}}),
    ("E030", {"emq": {"SCHEDULES": {"x": {"task": MARK, "every": 60}, "y": None}}}),
    ("E012 E013", {"emq": {"QUEUES": {"mail": {"PARTITIONS": 2}, "numbered": {}, "mail.x": {}}}}),
    ("E020", {"tasks": {"BACKEND": "no.such.Backend", "OPTIONS": {"RESULT_TLL": 60}}}),
    (
        "E020 E021",
        {
            "tasks": {
                "BACKEND": BACKEND,
                "QUEUES": [],
                "OPTIONS": {"RESULT_TTL": timedelta(days=7), "MAX_ATTEMPTS": 3, "BACKOFF": 60},
            }
        },
    ),
    ("W001", {"default": alias("redis://localhost/0")}),
    ("W002", {"other": alias("redis://localhost:6379/2")}),
    ("W002", {"other": alias("redis://localhost:6380/1")}),
    ("W002", {"other": alias("redis://elsewhere:6379/1", CORE)}),
    ("W002", {"other": alias("redis://localhost", CORE, db=2)}),
    ("W002", {"other": alias("redis://localhost/2", CORE, db=1)}),
    ("W002", {"other": alias("redis://localhost?db=2", CORE)}),
    ("W002", {"other": alias("redis://localhost", REDIS, DB=1)}),
    ("W002", {"queue": alias("unix:///run/s?db=2"), "other": alias("unix:///run/s?db=1")}),
    ("W002", {"queue": alias("unix:///run/a?db=1"), "other": alias("unix:///run/b?db=1")}),
    ("W002", {"other": alias("127.0.0.1:11211", "django.core.cache.backends.memcached.X")}),
    ("W002", {"other": alias(Path("/tmp/cache"), "django.core.cache.backends.filebased.X")}),
    (
        "W002",
        {
            "queue": alias("redis://main/1", SENTINELS=[("a", 26379)]),
            "other": alias("redis://main/1?x=y", SENTINELS=[("b", 26379)]),
        },
    ),
    ("W002", {"one": alias("redis://localhost/2"), "other": alias("redis://localhost/2")}),
    ("E003", {"queue": alias("redis://a:6379/0", CONNECTION_FACTORY=CLUSTER)}),
    ("E003", {"queue": alias("rediss://a:6379", CONNECTION_FACTORY=CLUSTER)}),
    ("W003", {"other": alias(f"{URL}?client_name=emq", PASSWORD="secret")}),
    ("W003", {"other": alias(KEY_PREFIX="x", SERIALIZER="x.Y", IGNORE_EXCEPTIONS=True)}),
    ("W003", {"other": alias(URL, CORE, PASSWORD="secret")}),
    ("W003", {"one": alias("redis://b/2"), "other": alias("redis://b/2", PASSWORD="secret")}),
    ("W004", {"emq": {"LEASE": 7.6}}),
    ("W005", {"emq": {"EFFECT_TTL": 3601, "DEAD_TTL": 3600}}),
    ("W004", {"emq": {"SOCKET_TIMEOUT": 1, "LEASE": 2, "QUEUES": {"quick": {"LEASE": 1.6}}}}),
    ("I001", {"queue": alias([URL])}),
    ("I002", {"queue": pool(retry=Retry(NoBackoff(), 0), retry_on_timeout=False)}),
    ("I002", {"queue": alias(f"{URL}?retry_on_timeout=false", retry_on_timeout=True)}),
    ("I002", {"other": alias("redis://b/1?retry_on_timeout=true")}),
    ("I003", {"queue": alias(SOCKET_TIMEOUT=None)}),
    ("I003", {"other": alias("redis://b/1", SOCKET_TIMEOUT=1)}),
    ("I004", {"close": False}),
    ("I004", {"close": True, "queue": alias(CLOSE_CONNECTION=False)}),
]

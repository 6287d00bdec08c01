"""System checks: each id fires for its mistake, stays silent beside it, and has a section."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings
from django_redis import get_redis_connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_emq import connections
from tests.check_cases import FIRES, REDIS, SILENT, URL, VALKEY, alias, found, ids, pool, without

ROOT = Path(__file__).parent.parent
SOURCE = "".join(
    (ROOT / "django_emq" / name).read_text()
    for name in ("checks.py", "alias_checks.py", "task_options.py")
)
PAGE = (ROOT / "docs" / "checks.md").read_text()
ID = re.compile(r"\bdjango_emq\.([EWI]\d{3})\b")
IDS = sorted(set(ID.findall(SOURCE)))
# Those about databases have their trials in tests/outbox.
OTHERS = set(ID.findall((ROOT / "django_emq" / "outbox_checks.py").read_text()))


@pytest.mark.parametrize(("expected", "setup"), FIRES)
def test_a_mistake_is_found(expected: str, setup: dict[str, Any]) -> None:
    """These ids and no others, each with a hint."""
    messages = found(**setup)
    assert ids(messages) == expected.split()
    assert all(message.hint for message in messages)


@pytest.mark.parametrize(("quiet", "setup"), SILENT)
def test_what_only_looks_like_the_mistake_is_not_reported(
    quiet: str, setup: dict[str, Any]
) -> None:
    """A check that cries wolf is silenced, and then it is of no use."""
    assert not set(quiet.split()) & set(ids(found(**setup)))


def test_each_id_has_a_case_in_both_tables() -> None:
    """A check without a trial could be dead code, one without a near miss a nuisance."""
    assert {one for expected, _ in FIRES for one in expected.split()} == set(IDS)
    assert {one for quiet, _ in SILENT for one in quiet.split()} == set(IDS)


def test_each_id_has_a_section_and_each_section_an_id() -> None:
    """docs/checks.md is where a message is explained."""
    sections = re.findall(r"^### django_emq\.(\w+)$", PAGE, re.MULTILINE)
    assert sorted(sections) == sorted({*IDS, *OTHERS})
    assert not OTHERS & set(IDS)  # two checks with one id


def test_a_good_project_hears_nothing() -> None:
    """An alias of its own on a database of its own: no message of any level."""
    assert found() == []
    assert found(default=alias("redis://127.0.0.1:6379/0")) == []


def test_the_test_project_hears_nothing() -> None:
    """The settings that this repository shows to its users."""
    assert run_checks(tags=["emq"]) == []


# -- the words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "message", "hint"),
    [
        (
            {"queue": False, "default": alias("redis://localhost/1")},
            ["'emq'", "not in CACHES", "Add it"],
            ['CACHES["emq"] = {"BACKEND": "django_redis.cache.RedisCache", ', ":6379/2"],
        ),
        (
            {"emq": {"CACHE_ALIAS": "jobz"}, "queue": False, "jobs": alias()},
            ["'jobz'"],
            ['CACHES["jobz"]', "did you mean EMQ['CACHE_ALIAS'] = 'jobs'?"],
        ),
        (
            {"emq": {"CACHE_ALIAS": "default"}},
            ["'default'", "LocMemCache", "is not django-redis"],
            ['CACHES["emq"] = ', ':6379/2"}', 'EMQ["CACHE_ALIAS"] = "emq"'],
        ),
        (
            {"queue": alias(backend="no.such.Cache")},
            ["'no.such.Cache' cannot be imported"],
            ['CACHES["emq"] = '],
        ),
        (
            {"queue": alias("redis://localhost/1,localhost:6379")},
            ["'emq'", "URL number 2", "redis://, rediss:// or unix://"],
            ["%2C"],
        ),
        ({"queue": alias("")}, ["'emq' has no LOCATION"], ["redis://127.0.0.1:6379/1"]),
        ({"queue": alias("valkey://a/1")}, ["valkey:// LOCATION"], ["also for a Valkey server"]),
        (
            {"queue": alias(**without("PARSER_CLASS"))},
            ["without its own PARSER_CLASS."],
            list(VALKEY.values()),
        ),
        (
            {"queue": alias(PARSER_CLASS=VALKEY["PARSER_CLASS"])},
            ["without its own REDIS_CLIENT_CLASS and CONNECTION_POOL_CLASS."],
            ["redis-py"],
        ),
        ({"queue": alias(PARSER_CLASS="a.B")}, ["'emq' has PARSER_CLASS 'a.B'"], ["leave"]),
        (
            {"other": alias("redis://user:secret@localhost/1"), "third": alias(URL)},
            ["'emq'", "'other' and 'third'", "localhost:6379, database 1.", "FLUSHDB"],
            ["Database 2 is not used"],
        ),
        (
            {"queue": alias(PASSWORD="a"), "other": alias(PASSWORD="b", SOCKET_TIMEOUT=3)},
            ["'emq'", "'other'", "PASSWORD, SOCKET_TIMEOUT"],
            ["?client_name=emq", "2 is not used"],
        ),
        (
            {"emq": {"LEASE": 60, "QUEUES": {"quick": {"LEASE": 3}}}},
            ["EMQ['SOCKET_TIMEOUT'] is 5 s", "EMQ['QUEUES']['quick']['LEASE'] is 3 s"],
            ["two thirds"],
        ),
        (
            {"queue": alias(f"{URL}?retry_on_timeout=1", CONNECTION_POOL_KWARGS={"retry": 1})},
            ["(retry, ?retry_on_timeout)", "own connections never do"],
            ["get_redis_connection"],
        ),
        (
            {"queue": alias(SOCKET_TIMEOUT=1), "emq": {"SOCKET_TIMEOUT": 2}},
            ["sets SOCKET_TIMEOUT.", "now 2 s"],
            ["EMQ['SOCKET_TIMEOUT']"],
        ),
        ({"close": True}, ["DJANGO_REDIS_CLOSE_CONNECTION closes"], ["Nothing to do"]),
        (
            {"queue": alias(CLOSE_CONNECTION=True), "close": True},
            ["CLOSE_CONNECTION of the cache alias 'emq' closes"],
            ["Nothing to do"],
        ),
    ],
)
def test_a_message_names_the_thing_the_fact_and_the_way_out(
    setup: dict[str, Any], message: list[str], hint: list[str]
) -> None:
    """Somebody who reads the message alone, at night, can mend it."""
    messages = found(**setup)
    (this,) = (one for one in messages if all(words in one.msg for words in message))
    assert [words for words in hint if words not in str(this.hint)] == []


def test_no_message_shows_a_password() -> None:
    """Checks end up in build logs."""
    url = "redis://user:secret@127.0.0.1:6379/1"
    texts = [
        f"{message.msg} {message.hint}"
        for entry in (
            alias(url, PASSWORD="secret"),
            alias(f"{url},secret@nowhere", PASSWORD="secret"),
            pool(password="secret", retry_on_timeout=True, socket_timeout=1),
        )
        for message in found(queue=entry, other=alias(url, PASSWORD="another secret"))
    ]
    assert len(texts) > 6
    assert [text for text in texts if "secret" in text] == []


def test_a_mistake_in_the_shape_does_not_break_the_checks() -> None:
    """OPTIONS that are no dict, sentinels that are no pairs: there is something to say yet."""
    entry = {"BACKEND": REDIS, "LOCATION": URL, "OPTIONS": ["x"]}
    assert found(queue=entry) == []
    for sentinels in (["host:26379"], [("host",)], [None], 5):
        assert found(queue=alias(CONNECTION_POOL_KWARGS=[1], SENTINELS=sentinels)) == []


# -- against the real client ---------------------------------------------------------------------


def test_what_the_infos_say_of_our_connections_is_true() -> None:
    """No repeats, the queue's own time-outs, a pool of its own: I002, I003, I004."""
    entry = alias(
        f"{URL}?retry_on_timeout=true&client_name=infos",  # no other test's pool
        SOCKET_TIMEOUT=1,
        CONNECTION_POOL_KWARGS={"retry": Retry(NoBackoff(), 3)},
    )
    with override_settings(CACHES={"emq": entry}, EMQ={"SOCKET_TIMEOUT": 4}):
        alias_pool = get_redis_connection("emq").connection_pool
        own = connections.connect().raw.connection_pool
    assert alias_pool.connection_kwargs["retry_on_timeout"] is True
    assert "retry_on_timeout" not in own.connection_kwargs
    assert own.connection_kwargs["retry"].get_retries() == 0
    assert own.connection_kwargs["socket_timeout"] == 4
    assert own.connection_kwargs["socket_connect_timeout"] == 4
    assert own is not alias_pool


def test_shard_client_hands_out_no_client() -> None:
    """The reason for E004."""
    entry = alias(f"{URL}?client_name=shard", CLIENT_CLASS="django_redis.client.ShardClient")
    with override_settings(CACHES={"emq": entry}), pytest.raises(NotImplementedError):
        get_redis_connection("emq")


def test_no_check_opens_a_connection(tmp_path: Path) -> None:
    """Also with every mistake at once: nobody knocks at the server."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(f"{tmp_path}/s")
        urls = [f"redis://127.0.0.1:{tcp.getsockname()[1]}/1", f"unix://{tmp_path}/s?db=1"]
        for server in (tcp, unix):
            server.listen()
            server.setblocking(False)
        for client in ("DefaultClient", "ShardClient", "HerdClient"):
            entry = alias(
                urls,
                CLIENT_CLASS=f"django_redis.client.{client}",
                SOCKET_TIMEOUT=1,
                CONNECTION_POOL_KWARGS={"retry_on_timeout": True},
            )
            assert len(found({"LEASE": 0}, queue=entry, other=alias(urls), close=True)) >= 7
        for server in (tcp, unix):
            with pytest.raises(BlockingIOError):
                server.accept()

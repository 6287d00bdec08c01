"""emq_doctor: each mistake of the server brings up its finding, and a good server none."""

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings
from private_server import Server, private_server

from django_emq import connections, doctor, inspector, scripts
from django_emq.inspector import ServerFacts
from tests.conformance.wire import enqueue_one
from tests.processes import ROOT

PAGE = ROOT / "docs" / "doctor.md"
GOOD = {
    "maxmemory": "1gb",
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "tcp-keepalive": "60",
    "timeout": "0",
}


def ids(findings) -> list[str]:
    return sorted(str(one.id).removeprefix("django_emq.") for one in findings)


def run(*args: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    out = io.StringIO()
    try:
        call_command("emq_doctor", *args, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """One whose settings may be changed: that of the other tests may be somebody's."""
    with private_server(own=True) as server:
        yield server


@pytest.fixture
def client(own_server, settings):
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": own_server.url}
    settings.CACHES = {**settings.CACHES, "emq": alias}
    yield connections.client()
    connections.client().raw.flushdb()


@pytest.fixture
def configure(client):
    """Set the server's settings for this test: `configure(**{"timeout": "5"})`."""

    def set_all(**values: str) -> None:
        for name, value in {**GOOD, **values}.items():
            client.raw.config_set(name, value)

    return set_all


@pytest.fixture
def facts(client, configure) -> ServerFacts:
    """What a good server says of itself."""
    configure()
    return inspector.server(client)


def test_a_good_server_has_nothing(client, facts, queue):
    """Nothing, also with jobs on it."""
    enqueue_one(client, queue)
    scripts.register(client, [queue])
    for role in doctor.ROLES:
        assert doctor.examine(client, facts, role=role) == []
    status, output = run()
    assert (status, output.splitlines()[1:]) == (0, ["Nothing is wrong."])


# What the server is told, and the finding that it brings up.
CONFIGS = [
    ({"maxmemory-policy": "allkeys-lru"}, "D010"),
    ({"maxmemory-policy": "volatile-ttl"}, "D010"),
    ({"maxmemory": "0"}, "D012"),
    ({"appendonly": "no"}, "D020"),
    ({"appendfsync": "no"}, "D021"),
    ({"timeout": "59"}, "D030"),
]


@pytest.mark.parametrize(("values", "found"), CONFIGS)
def test_what_the_server_is_told(client, configure, values, found):
    """Asked of a real server, and told in both forms; an error is the exit status."""
    configure(**values)
    findings = doctor.examine(client, inspector.server(client))
    assert ids(findings) == [found]
    status, output = run("--json")
    answer = json.loads(output)
    assert [one["id"] for one in answer["findings"]] == [f"django_emq.{found}"]
    assert status == (answer["findings"][0]["severity"] == "error")
    assert found in run()[1]


def info(**values: Any) -> Callable[[ServerFacts], ServerFacts]:
    return lambda facts: replace(facts, info={**facts.info, **values})


def config(**values: str) -> Callable[[ServerFacts], ServerFacts]:
    named = {name.replace("_", "-"): value for name, value in values.items()}
    return lambda facts: replace(facts, config={**facts.config, **named})


# What is changed in a good server's words, and the findings that it brings up.
WORDS: list[tuple[Callable[[ServerFacts], ServerFacts], list[str]]] = [
    (info(redis_version="6.2.14"), ["D002"]),
    (info(redis_version="7.0.0"), []),
    (info(cluster_enabled=1), ["D003"]),
    (info(redis_mode="sentinel"), ["D003"]),
    (info(role="slave", master_host="other"), ["D004"]),
    (info(loading=1), ["D005"]),
    (info(used_memory=0.76 * 2**30), ["D011"]),
    (info(used_memory=0.74 * 2**30), []),
    (info(aof_last_write_status="err"), ["D022"]),
    (info(rdb_last_bgsave_status="err"), ["D022"]),
    (info(connected_slaves=2), ["D023"]),
    (lambda f: config(min_replicas_to_write="1")(info(connected_slaves=2)(f)), []),
    (config(appendonly="no", save="3600 1"), ["D021"]),
    (config(timeout="60"), []),
    (config(maxclients="1"), ["D032"]),
    (lambda f: replace(config(tcp_keepalive="0")(f), is_socket=False), ["D031"]),
    (lambda f: replace(config(tcp_keepalive="0")(f), is_socket=True), []),
    (lambda f: replace(f, clock_ahead_s=2.5), ["D033"]),
    (lambda f: replace(f, clock_ahead_s=-3600.0), ["D033"]),
    (lambda f: replace(f, clock_ahead_s=1.5), []),
    (lambda f: replace(f, clock_ahead_s=2.5, round_trip_s=0.9), []),
    (lambda f: replace(f, round_trip_s=1.5), ["D034"]),
    (lambda f: replace(f, refused=["INFO"], info={}), ["D041"]),
    (lambda f: replace(f, fence="echomq:5"), ["D051"]),
    (lambda f: replace(f, fence=scripts.VERSION), []),
    (info(number_of_cached_scripts=1001), ["D052"]),
    (lambda f: replace(f, info={}, config={}), []),
    (lambda f: replace(f, config={}), []),
]


@pytest.mark.parametrize(("change", "found"), WORDS)
def test_what_the_server_says(facts, change, found):
    assert ids(doctor.judge(change(facts))) == found


def test_memory_is_an_error_before_it_is_full(facts):
    """Three quarters are a warning, nine tenths an error."""
    for share, serious in ((0.8, False), (0.95, True)):
        (finding,) = doctor.judge(info(used_memory=share * 2**30)(facts))
        assert finding.is_serious() is serious


def test_policies_differ_in_harm(facts):
    """Without a limit it is a matter for tomorrow; and only some policies drop jobs."""
    for policy, limit, serious, word in (
        ("allkeys-lfu", "1gb", True, "jobs with them"),
        ("volatile-lru", "1gb", True, "may run twice"),
        ("allkeys-lfu", "0", False, "no maxmemory yet"),
    ):
        given = config(maxmemory_policy=policy)(info(maxmemory=int(limit == "1gb") << 30)(facts))
        finding = next(f for f in doctor.judge(given) if str(f.id).endswith("D010"))
        assert finding.is_serious() is serious
        assert word in finding.msg


def test_neighbours_are_found(client, redis, facts, queue):
    """Keys of strangers, of a queue with another prefix too; how many, and one of them."""
    enqueue_one(client, queue)
    redis.set(":1:session\x1b[2J", "x")
    redis.set("myapp:{q}:pending", "x")
    (finding,) = doctor.examine(client, facts)
    assert ids([finding]) == ["D050"]
    assert "2 of the" in finding.msg
    output = run()[1]
    assert "D050" in output
    assert "\x1b" not in output


def test_a_server_that_is_not_there(tmp_path, settings):
    """One finding, the settings' findings beside it, and status 1."""
    settings.CACHES = {
        **settings.CACHES,
        "emq": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"unix://{tmp_path}/nowhere?db=0",
        },
    }
    settings.EMQ = {"SOCKET_TIMEOUT": 12}
    status, output = run("--json")
    answer = json.loads(output)
    assert status == 1
    assert [one["id"] for one in answer["findings"]] == ["django_emq.D001", "django_emq.W004"]
    assert answer["server"] == ""


def test_mistakes_in_the_settings_come_first(settings):
    """With an alias that is none nobody is asked."""
    settings.EMQ = {"CACHE_ALIAS": "nobody"}
    status, output = run()
    assert status == 1
    assert "django_emq.E001" in output


def test_a_silenced_finding_is_silent(client, configure):
    """As a system check."""
    configure(appendonly="no")
    with override_settings(SILENCED_SYSTEM_CHECKS=["django_emq.D020"]):
        assert run()[0] == 0


def test_each_finding_has_a_section():
    """And no section is about another one."""
    source = (ROOT / "django_emq" / "doctor.py").read_text()
    known = {f"D{int(n):03}" for n in re.findall(r"(?:_error|_warning|_info|say)\(\s*(\d+),",
                                                 source)}  # fmt: skip
    assert len(known) > 20
    assert set(re.findall(r"^### django_emq\.(D\d+)$", PAGE.read_text(), re.MULTILINE)) == known


def test_facts_and_fixes_are_sentences(client, facts):
    """One each, whatever the server says."""
    for change, _ in WORDS:
        for one in doctor.judge(change(facts)):
            assert re.fullmatch(r".+[^.]\.", one.msg), one.msg
            assert re.fullmatch(r".+[^.]\.", str(one.hint)), one.hint


def test_nothing_is_changed(client, redis, facts, queue):
    """Asking writes no key."""
    enqueue_one(client, queue)
    before = {key: redis.dump(key) for key in redis.keys("*")}
    run("--role", "operator")
    assert {key: redis.dump(key) for key in redis.keys("*")} == before

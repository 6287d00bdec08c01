"""The project's own options of the cache alias change nothing for the queue."""

import importlib.util

import pytest
from django.core.cache import caches

import django_emq as emq
from django_emq import connections, inspector
from tests.helpers import QUEUE, burst, point_at
from tests.probe import tasks, verdicts
from tests.processes import wait_until
from tests.variant import variant

OPTIONS: dict[str, dict[str, object]] = {
    "defaults": {},
    "decode_responses": {"CONNECTION_POOL_KWARGS": {"decode_responses": True}},
    "protocol 2": {"CONNECTION_POOL_KWARGS": {"protocol": 2}},
    "protocol 3": {"CONNECTION_POOL_KWARGS": {"protocol": 3}},
    "hiredis": {"PARSER_CLASS": "redis._parsers._HiredisParser"},
    "python parser": {"PARSER_CLASS": "redis._parsers._RESP2Parser"},
    "retries": {"CONNECTION_POOL_KWARGS": {"retry_on_timeout": True}},
    "serializer": {
        "SERIALIZER": "django_redis.serializers.json.JSONSerializer",
        "COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor",
    },
    "ignore exceptions": {"IGNORE_EXCEPTIONS": True},
}
MORE = {"serializer": {"KEY_PREFIX": "shop", "VERSION": 7}}


@pytest.mark.parametrize("name", OPTIONS)
def test_B60_other_client_options_of_the_same_alias(probe, client, settings, tmp_path, name):
    """Enqueue, run, fail, retry, keep, with every verdict as it is with the defaults.

    A life of each kind of job stands for the whole suite; `EMQ_ALIAS` runs all of it under
    other options. With no server an enqueue raises, whatever the cache does.
    """
    alias = {
        **settings.CACHES["emq"],
        "OPTIONS": OPTIONS[name],
        **MORE.get(name, {}),
    }
    settings.CACHES = {**settings.CACHES, "emq": alias}
    caches["emq"].set("of the project", {"a": [1]})
    made = emq.enqueue_many(
        [
            tasks.mark.job("a"),
            tasks.boom_until.job(2, "b"),
            verdicts.aanswer.job("kept"),
            verdicts.ask_bury.job("no use"),
        ]
    )
    tasks.mark.using(run_in=600, priority=3).enqueue("later")
    burst(**variant(CACHES=settings.CACHES))
    assert sorted(probe.marks()) == ["a", "b", "b"]
    now = connections.client()
    counts = inspector.counts(now, QUEUE)
    assert counts == {"pending": 0, "active": 0, "schedule": 1, "dead": 1, "done": 1}
    assert inspector.row(now, QUEUE, made[2].id)["result"] == '"kept"'
    assert inspector.row(now, QUEUE, made[3].id)["last_error"] == "no use"
    assert caches["emq"].get("of the project") == {"a": [1]}
    if name in ("defaults", "ignore exceptions"):
        point_at(settings, f"unix://{tmp_path}/nothing", **OPTIONS[name])
        with pytest.raises(emq.OutcomeUnknown, match="No answer from the server"):
            tasks.mark.enqueue("a")


def test_hiredis_is_what_is_installed():
    """Otherwise the trial of both parsers is one of the same parser twice."""
    assert importlib.util.find_spec("hiredis")


def test_eight_threads_need_no_larger_pool_of_the_alias(settings):
    """The alias's max_connections does not bound the queue's own pool."""
    from concurrent.futures import ThreadPoolExecutor

    options = {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}
    settings.CACHES = {**settings.CACHES, "emq": {**settings.CACHES["emq"], "OPTIONS": options}}
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: tasks.mark.enqueue(i), range(200)))
    assert {job.status for job in made} == {"enqueued"}
    wait_until(lambda: inspector.counts(connections.client(), QUEUE)["pending"] == 200)

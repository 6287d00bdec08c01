"""Field reports of lost jobs, as far as they are not among the trials of faults."""

import pytest
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.management import call_command
from private_server import with_database

import django_emq as emq
from django_emq import connections, inspector
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import books_balance, claim_one, enqueue_one, given, lapse
from tests.helpers import QUEUE, children, is_running
from tests.probe import tasks
from tests.processes import Worker, wait_until
from tests.variant import variant

FORMS = {
    "missing": (lambda redis, key: redis.delete(key), "it is missing"),
    "string": (lambda redis, key: redis.delete(key) and redis.set(key, "x"), "holds a string"),
    "no-number": (
        lambda redis, key: redis.hset(key, mapping={"attempts": "abc", "payload": "{}"}),
        "attempts is no whole number",
    ),
}


def test_B03_damaged_row_at_the_head(probe, client, redis):
    """The good job behind it runs once, the bad one is in the morgue and says what is wrong.

    The three forms are three queues of one worker.
    """
    bad = {}
    for form, (harm, _) in FORMS.items():
        first, _ = emq.enqueue_many(tasks.mark.using(queue=form).job(x) for x in ("bad", form))
        harm(redis, queue_keys(form).job(first.id))
        bad[form] = first.id
    with Worker(*FORMS) as worker:
        assert sorted(probe.wait_for(3)) == sorted(FORMS)
        (child,) = children(worker.pid)
        tasks.mark.using(queue="missing").enqueue("next")
        assert probe.wait_for(4)[3] == "next"
        wait_until(lambda: all(inspector.counts(client, q)["active"] == 0 for q in FORMS))
        assert children(worker.pid) == [child]
        assert is_running(worker.pid)
    for form, job_id in bad.items():
        assert inspector.counts(client, form)["dead"] == 1
        error = inspector.row(client, form, job_id)["last_error"]
        assert error.startswith("damaged row: ")
        assert FORMS[form][1] in error
        assert sum(job_id in line for line in worker.lines if "ERROR" in line) <= 1
        books_balance(client, form)


@pytest.mark.parametrize("keep_ms", [0, 60_000])
def test_B04_late_finish_before_the_next_claim(client, redis, queue, keep_ms):
    """Of the two answers ours is (b), each time: accepted, and the id leaves pending at once."""
    for _ in range(20):
        job_id = enqueue_one(client, queue)
        assert given(claim_one(client, queue)) == (job_id, "work", 1)
        lapse(client, queue, job_id, 1)
        tokens = books_balance(client, queue)
        assert inspector.state(client, queue, job_id) == "pending"
        assert wire.complete(client, queue, job_id, 1, keep_ms=keep_ms) == 1
        assert claim_one(client, queue) is None
        books_balance(client, queue, tokens)
        if not keep_ms:
            assert redis.hgetall(queue_keys(queue).job(job_id)) == {}
        redis.delete(queue_keys(queue).done, queue_keys(queue).job(job_id))


def test_B07_cache_clear_empties_the_queue(probe, settings, lone):
    """`check` warns of the alias that the cache uses; a database of one's own survives clear()."""
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": lone.url}
    own = {**alias, "LOCATION": with_database(lone.url, 1)}

    def warnings():
        return [message.id for message in run_checks(tags=["emq"]) if message.level >= 30]

    settings.CACHES = {"default": alias}
    settings.EMQ = {"CACHE_ALIAS": "default"}
    emq.enqueue_many(tasks.mark.job(i) for i in range(10))
    assert warnings() == ["django_emq.W001"]
    settings.CACHES, settings.EMQ = {"default": alias, "emq": alias}, {}
    assert warnings() == ["django_emq.W002"]

    settings.CACHES = {"default": alias, "emq": own}
    assert warnings() == []
    call_command("check", "--tag", "emq")
    client = connections.client()
    emq.enqueue_many(tasks.mark.job(i) for i in range(10))
    with lone.client() as admin:
        assert admin.dbsize()
        caches["default"].clear()
        assert admin.dbsize() == 0
    assert inspector.counts(client, QUEUE)["pending"] == 10

    with Worker("--lease", "1", **variant(CACHES=settings.CACHES)) as worker:
        probe.wait_for(10)
        tasks.mark_then_nap.enqueue("held", 1)
        probe.wait_for(11)
        client.raw.flushdb()
        worker.wait_for("is gone")
        tasks.mark.enqueue("after")
        assert probe.wait_for(12)[10:] == ["held", "after"]
    assert "ERROR" not in worker.output
    assert "Traceback" not in worker.output


def test_B09_a_task_this_worker_does_not_know(probe, client):
    """Three failures, dead with its name, the good one runs; a worker that has the code runs it.

    Two jobs of two queues at once: the second worker knows the task of one of them.
    """
    gone = tasks.mark.using(queue="alone").enqueue("never")
    late = tasks.mark.using(queue="later").enqueue("late")
    for job in (gone, late):
        row = queue_keys(job.queue).job(job.id)
        client.raw.hset(row, "payload", '{"task":"shop.tasks.gone"}')
    for queue in ("alone", "later"):
        tasks.mark.using(queue=queue).enqueue("good")
    # Only the first attempt of the second job: its worker waits for long before the next.
    queues = {"later": {"BACKOFF": 600}}
    settings = {"BACKOFF": 0.2, "MAX_ATTEMPTS": 3, "QUEUES": queues}
    with Worker("alone", "later", **variant(EMQ=settings)) as worker:
        wait_until(lambda: inspector.state(client, "alone", gone.id) == "dead")
        wait_until(lambda: inspector.row(client, "later", late.id).get("failures") == "1")
        assert probe.wait_for(2) == ["good", "good"]
        tasks.mark.using(queue="alone").enqueue("next")
        probe.wait_for(3)
    row = inspector.row(client, "alone", gone.id)
    assert row["failures"] == "3"
    assert "shop.tasks.gone" in row["last_error"]
    assert "Traceback" not in worker.output
    # The release that has the task: here, by the name under which our own worker knows it.
    client.raw.hset(
        queue_keys("later").job(late.id),
        "payload",
        '{"task":"tests.probe.tasks.mark","args":["late"]}',
    )
    client.raw.zadd(queue_keys("later").schedule, {late.id: 1})
    with Worker("later"):
        assert probe.wait_for(4)[3] == "late"
        wait_until(lambda: sum(inspector.counts(client, "later").values()) == 0)
    assert probe.marks().count("late") == 1

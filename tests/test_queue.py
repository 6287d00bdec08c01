"""Enqueueing: every way in, every option, every refusal."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

import django_emq as emq
from django_emq import admission, connections, inspector, registry, scripts
from django_emq.exceptions import ServerError
from django_emq.ids import is_job_id, mint
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import members
from tests.helpers import QUEUE, burst
from tests.probe import tasks

HOUR_MS = 3_600_000


def now_ms(client):
    seconds, micros = client.raw.time()
    return seconds * 1000 + micros // 1000


def due_in_ms(client, job):
    """Milliseconds of the server's clock until a scheduled job falls due."""
    return client.raw.zscore(queue_keys(job.queue).schedule, job.id) - now_ms(client)


# -- ways in ----------------------------------------------------------------------------------


def test_enqueue_answers_the_job(client):
    """Id, queue, task and verdict; the row holds what a worker needs and no more."""
    job = tasks.mark.enqueue("a")
    assert is_job_id(job.id)
    assert (job.queue, job.task) == (QUEUE, "tests.probe.tasks.mark")
    assert (job.status, job.error) == ("enqueued", None)
    assert inspector.row(client, QUEUE, job.id) == {
        "state": "pending",
        "attempts": "0",
        "payload": '{"task":"tests.probe.tasks.mark","args":["a"]}',
    }


def test_all_ways_lead_in(probe, client):
    """By object, by name, by method, in bulk, and the async forms of each."""

    async def asynchronous():
        await tasks.mark.aenqueue(5)
        await emq.aenqueue(tasks.mark, 6)
        await emq.aenqueue("tests.probe.tasks.mark", x=7)
        await emq.aenqueue_many([tasks.mark.job(8), tasks.mark.job(x=9)])
        return [
            await emq.aenqueue_in(3600, tasks.mark, 10),
            await emq.aenqueue_at(timezone.now() + timedelta(hours=1), tasks.mark, 11),
        ]

    tasks.mark.enqueue(0)
    tasks.mark.enqueue(x=1)
    emq.enqueue(tasks.mark, 2)
    emq.enqueue("tests.probe.tasks.mark", 3)
    emq.enqueue_many([tasks.mark.job(4)])
    later = asyncio.run(asynchronous())
    later.append(emq.enqueue_in(timedelta(hours=1), "tests.probe.tasks.mark", 12))
    later.append(emq.enqueue_at(timezone.now() + timedelta(hours=1), tasks.mark, 13))
    burst()
    assert probe.marks() == [str(i) for i in range(10)]
    for job in later:
        assert due_in_ms(client, job) == pytest.approx(HOUR_MS, abs=30_000)


def test_a_task_is_still_a_function(probe):
    """Calling it runs it here and now."""
    tasks.mark(1)
    asyncio.run(tasks.aprobe(2))
    assert probe.marks() == ["1", "2"]
    assert tasks.boom_until.__doc__.startswith("Fail until")
    assert tasks.boom_until.__wrapped__ is tasks.boom_until.func


def test_enqueue_many_answers_in_order(client):
    """Over several queues and chunks, one Job each, in the order given; none is no work."""
    jobs = [tasks.mark.using(queue=f"q{i % 3}").job(i) for i in range(1700)]
    made = emq.enqueue_many(iter(jobs))
    assert [job.queue for job in made] == [f"q{i % 3}" for i in range(1700)]
    assert {job.status for job in made} == {"enqueued"}
    for i in range(3):
        pending = list(members(client, f"q{i}", "pending"))
        assert pending == [job.id for job in made if job.queue == f"q{i}"]
    assert emq.enqueue_many([]) == []


def test_a_long_call_that_is_refused(client):
    """It raises what the server says, nothing of it is stored, and the next call is as ever."""
    tasks.mark.enqueue("known")
    pending = queue_keys(QUEUE).pending
    client.raw.rename(pending, "aside")
    client.raw.set(pending, "of another type")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        emq.enqueue_many(tasks.mark.job(i) for i in range(2300))
    client.raw.rename("aside", pending)
    assert client.raw.zcard(pending) == 1
    made = emq.enqueue_many(tasks.mark.job(i) for i in range(1200))
    assert {job.status for job in made} == {"enqueued"}
    assert inspector.totals(client, QUEUE)["enqueued"] == client.raw.zcard(pending) == 1201


def test_enqueue_many_is_few_calls(client):
    """500 jobs of one queue are one call."""
    tasks.mark.enqueue("known")
    before = calls(client)
    emq.enqueue_many(tasks.mark.job(i) for i in range(1000))
    assert calls(client) - before == 2


def calls(client):
    return client.raw.info("commandstats")["cmdstat_evalsha"]["calls"]


def test_using_makes_a_copy(client):
    """The task itself stays as it is."""
    copy = tasks.mark.using(queue="other", priority=7, max_attempts=2, max_stalls=1)
    assert (tasks.mark.queue, tasks.mark.priority) == (None, 0)
    job = copy.enqueue("a")
    row = inspector.row(client, "other", job.id)
    assert (row["priority"], row["max_attempts"], row["max_stalls"]) == ("7", "2", "1")
    assert members(client, "other", "pending") == {job.id: -7}


def test_delays_are_by_the_servers_clock(client):
    """run_in: seconds or a timedelta from the server's now; run_at: an instant; past is now."""
    assert due_in_ms(client, tasks.mark.using(run_in=3600).enqueue(1)) == pytest.approx(
        HOUR_MS, abs=5000
    )
    delta = timedelta(hours=1)
    assert due_in_ms(client, tasks.mark.using(run_in=delta).enqueue(1)) == pytest.approx(
        HOUR_MS, abs=5000
    )
    when = datetime(2099, 1, 1, tzinfo=timezone.get_fixed_timezone(60))
    job = tasks.mark.using(run_at=when).enqueue(1)
    assert members(client, QUEUE, "schedule")[job.id] == when.timestamp() * 1000
    for options in ({"run_in": 0}, {"run_at": datetime(2001, 1, 1, tzinfo=UTC)}):
        job = tasks.mark.using(**options).enqueue(1)
        assert inspector.state(client, QUEUE, job.id) == "pending"
    with_both = tasks.mark.using(run_in=5)
    assert emq.enqueue_at(when, with_both, 1).status == "enqueued"


def test_the_default_queue_is_a_setting(client, settings):
    """A task without a queue goes to DEFAULT_QUEUE."""
    settings.EMQ = {"DEFAULT_QUEUE": "main"}
    assert tasks.mark.enqueue(1).queue == "main"
    assert inspector.counts(connections.client(), "main")["pending"] == 1


def test_a_prefix_of_ones_own(settings, client):
    """PREFIX takes the place of `emq` in every key."""
    settings.EMQ = {"PREFIX": "shop"}
    tasks.mark.enqueue(1)
    keys = {key.decode() for key in connections.client().raw.keys("*")}
    assert keys
    assert all(key.startswith(("shop:{default}:", "{shop}:")) for key in keys)


def test_duplicates_are_told(client):
    """An id that is there already changes nothing; its verdict is `duplicate`."""
    from django_emq.jobs import NewJob
    from django_emq.queue import push

    job = tasks.mark.enqueue("a")
    again = [NewJob(mint(), '{"task":"new"}'), NewJob(job.id, '{"task":"other"}')]
    assert push(client, QUEUE, again) == [1, 0]
    assert "other" not in inspector.row(client, QUEUE, job.id)["payload"]


# -- refusals ---------------------------------------------------------------------------------

NAIVE = datetime(2099, 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 101}, "priority is 101. Use a whole number from -100 to 100"),
        ({"priority": -101}, "priority is -101"),
        ({"priority": 1.0}, "priority is 1.0"),
        ({"priority": True}, "priority is True"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"queue": "two words"}, "'two words' is not allowed. Use 1 to 128"),
        ({"queue": ""}, "'' is not allowed"),
        ({"queue": "x" * 129}, "is not allowed"),
        ({"queue": "br{ce"}, "'br{ce' is not allowed"),
        ({"queue": "emq"}, "'emq' is reserved"),
        ({"queue": 7}, "7 is not allowed"),
        ({"run_in": -1}, "run_in is -1 seconds"),
        ({"run_in": "soon"}, "run_in is 'soon'"),
        ({"run_in": True}, "run_in is True"),
        ({"run_in": float("nan")}, "run_in is nan"),
        ({"run_in": 1e12}, "run_in is 1000000000000.0 seconds. Use 0 up to a hundred years"),
        ({"run_at": NAIVE}, "Use an aware datetime"),
        ({"run_at": 1_700_000_000}, "Use an aware datetime"),
        ({"run_in": 1, "run_at": timezone.now()}, "Both run_in and run_at are given"),
        ({"max_attempts": 0}, "max_attempts is 0. Use a whole number from 1 to 1000"),
        ({"max_attempts": 1001}, "max_attempts is 1001"),
        ({"max_stalls": "3"}, "max_stalls is '3'"),
        ({"priorty": 3}, "There is no option 'priorty'. Did you mean 'priority'?"),
        ({"lease": 3}, "There is no option 'lease'"),
        ({"zzz": 3}, "There is no option 'zzz'. Use one of: queue, priority"),
    ],
)
def test_refused_options(client, options, message):
    """ValueError that names the option, its value and what is allowed; nothing is stored."""
    with pytest.raises(emq.InvalidOption) as caught:
        tasks.mark.using(**options).enqueue("a")
    assert isinstance(caught.value, ValueError)
    assert message in str(caught.value)
    assert client.raw.dbsize() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": 0.5}, "lease is 0.5"),
        ({"lease": "long"}, "lease is 'long'"),
        ({"result_ttl": -1}, "result_ttl is -1"),
        ({"backoff": object()}, "is no policy"),
        ({"backoff": -1}, "-1"),
        ({"max_retries": 3}, "There is no option 'max_retries'"),
        ({"run_in": 3}, "There is no option 'run_in'"),
        ({"ques": "mail"}, "Did you mean 'queue'?"),
    ],
)
def test_refused_options_of_the_decorator(options, message):
    """A mistake shows when the module is imported."""
    with pytest.raises(emq.InvalidOption) as caught:
        emq.task(**options)(tasks.nap.func)
    assert message in str(caught.value)


def test_unknown_tasks_are_refused(client):
    """LookupError with the nearest name there is."""
    with pytest.raises(emq.UnknownTask) as caught:
        emq.enqueue("tests.probe.tasks.makr", 1)
    assert isinstance(caught.value, LookupError)
    assert "Did you mean 'tests.probe.tasks.mark'?" in str(caught.value)
    with pytest.raises(emq.UnknownTask, match="INSTALLED_APPS"):
        emq.enqueue_in(5, "zzz", 1)
    assert client.raw.dbsize() == 0


def test_local_functions_are_no_tasks():
    """A worker could not find them again."""

    def local():
        pass

    for func in (local, lambda: None):
        with pytest.raises(emq.InvalidTask, match="Move it to the level of its module"):
            emq.task(func)
    for thing in (7, "name"):
        with pytest.raises(emq.InvalidTask, match="is no function"):
            emq.task(thing)


def test_one_name_for_two_functions_is_refused():
    """The message names both places; the same function again (a reload) is no second one."""
    with pytest.raises(emq.InvalidTask) as caught:
        emq.task(name="tests.probe.tasks.mark")(tasks.nap.func)
    assert "is defined twice: in tests.probe.tasks.mark and in tests.probe.tasks.nap" in str(
        caught.value
    )
    assert registry.get("tests.probe.tasks.mark") is tasks.mark
    emq.task(backoff=3)(tasks.mark_then_die.func)
    assert registry.get("tests.probe.tasks.mark_then_die").backoff == 3
    registry.register(tasks.mark_then_die)


def test_tasks_have_names_in_order():
    """The registry can be listed."""
    names = registry.names()
    assert names == sorted(names)
    assert "tests.probe.tasks.mark" in names


def test_enqueue_many_validates_everything_first(client):
    """One bad argument in the thousandth job, in the second queue: nothing at all is stored."""
    jobs = [tasks.mark.job(i) for i in range(1000)]
    jobs.append(tasks.mark.using(queue="other").job({1, 2}))
    with pytest.raises(emq.InvalidArguments, match=r"args\[0\]: set"):
        emq.enqueue_many(jobs)
    with pytest.raises(emq.PayloadTooLarge):
        emq.enqueue_many([tasks.mark.job("a"), tasks.mark.job("x" * 2_000_000)])
    assert client.raw.dbsize() == 0


def test_a_refusal_by_the_server_is_in_its_job(client, monkeypatch):
    """The others are stored; `enqueue` raises it."""
    from django_emq import ids, queue

    minted = [ids.mint() for _ in range(3)]
    client.raw.set(queue_keys(QUEUE).job(minted[1]), "something else")
    monkeypatch.setattr(queue, "mint", iter([*minted, minted[1]]).__next__)
    one, two, three = emq.enqueue_many(tasks.mark.job(i) for i in range(3))
    assert [job.status for job in (one, two, three)] == ["enqueued", "refused", "enqueued"]
    assert isinstance(two.error, emq.EmqError)
    assert "something else" in str(two.error)
    with pytest.raises(emq.Refused):
        tasks.mark.enqueue("a")


def test_a_queue_is_entered_again_after_a_minute(client, redis, queue, monkeypatch):
    """Somebody has emptied the server: the queue is listed again, at no command an enqueue."""
    task = tasks.mark.using(queue=queue)
    task.enqueue("first")
    before = wire.calls(client, "evalsha")
    for n in range(5):
        task.enqueue(n)
    assert wire.calls(client, "evalsha") == before + 5
    redis.flushdb()
    task.enqueue("a")
    assert inspector.queues(client) == []
    now = admission.monotonic()
    monkeypatch.setattr(admission, "monotonic", lambda: now + admission.KNOWN)
    task.enqueue("b")
    task.enqueue("c")
    assert inspector.queues(client) == [queue]
    assert redis.get("{emq}:version") == scripts.VERSION.encode()
    assert wire.calls(client, "evalsha") == before + 9


def test_a_foreign_version_is_refused(client):
    """A server of another version is left alone, by name of both."""
    connections.client().known_queues.clear()
    client.raw.set("{emq}:version", "other:7")
    with pytest.raises(emq.VersionFence) as caught:
        tasks.mark.enqueue("a")
    assert "other:7" in str(caught.value)
    assert client.raw.dbsize() == 1


def test_cas(client):
    """Written only while the key still holds what was read; an absent key is never written."""
    assert emq.cas("k", "a", "b") is False
    assert client.raw.get("k") is None
    client.raw.set("k", "a")
    assert emq.cas("k", "x", "b") is False
    assert emq.cas("k", b"a", b"b\xff") is True
    assert client.raw.get("k") == b"b\xff"
    client.raw.delete("k")
    client.raw.rpush("k", "a")
    with pytest.raises(emq.EmqError):
        emq.cas("k", "a", "b")


def test_the_public_names():
    """`import django_emq as emq` offers what it lists, and says what it has not."""
    for name in emq.__all__:
        assert getattr(emq, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'enqeue'"):
        _ = emq.enqeue

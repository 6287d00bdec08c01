"""What became of a job: looked up, and waited for without polling."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

import django_emq as emq
from django_emq import answers, inspector, listening, scripts
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from tests.conformance import wire
from tests.conformance.wire import books_balance, claim_one, complete, enqueue_one, row
from tests.helpers import QUEUE, burst
from tests.operator_cases import HOLDERS, job_in
from tests.probe import tasks, telling, verdicts
from tests.processes import PATIENCE, Worker, wait_until

ENDS = {
    "complete": (lambda c, q, i: complete(c, q, i, 1), "gone", "done"),
    "kept": (lambda c, q, i: complete(c, q, i, 1, keep_ms=60_000), "done", ""),
    "complete a swept one": (
        lambda c, q, i: (wire.lapse(c, q, i, 1), complete(c, q, i, 1)),
        "gone",
        "done",
    ),
    "discard": (lambda c, q, i: wire.discard(c, q, i, 1), "gone", "discarded"),
    "bury": (lambda c, q, i: wire.bury(c, q, i, 1), "dead", ""),
    "retry": (lambda c, q, i: wire.retry(c, q, i, 1, maximum=1), "dead", ""),
    "reap": (
        lambda c, q, i: (
            wire.extend(c, q, i, 1, lease_ms=0),
            scripts.reap(c, q, max_stalls=1),
        ),
        "dead",
        "",
    ),
    "cancel": (lambda c, q, i: scripts.cancel(c, q, [i]), "dead", ""),
    "remove": (lambda c, q, i: scripts.remove(c, q, [i], force=True), "gone", "removed"),
    "drain": (
        lambda c, q, i: (wire.release(c, q, i, 1), scripts.drain(c, q, "pending")),
        "gone",
        "removed",
    ),
    "obliterate": (
        lambda c, q, i: (scripts.pause(c, q), scripts.obliterate(c, q, force=True)),
        "gone",
        "removed",
    ),
    "claim finds it expired": (
        lambda c, q, i: (
            wire.release(c, q, i, 1),
            c.raw.hset(queue_keys(q).job(i), "expires_at", 1),
            claim_one(c, q),
        ),
        "dead",
        "",
    ),
    "claim finds it damaged": (
        lambda c, q, i: (
            wire.release(c, q, i, 1),
            c.raw.hdel(queue_keys(q).job(i), "payload"),
            claim_one(c, q),
        ),
        "dead",
        "",
    ),
}


def waiters(client, queue, job_id):
    return row(client, queue, job_id).get("waiters", "").split()


def no_lists(client, queue):
    """Whether no waiter's list is left that would stay."""
    lists = client.raw.keys(queue_keys(queue).waiter("*"))
    return all(0 < client.raw.pttl(key) <= 60_000 for key in lists)


@pytest.mark.parametrize("way", ENDS)
def test_whatever_ends_a_job_tells_those_who_wait(client, queue, way):
    """Each waiter has one word; their names and lists go."""
    act, state, word = ENDS[way]
    job_id = job_in(client, queue, "active")
    for name in ("one", "two", "two"):
        assert scripts.wait(client, queue, job_id, name) == "active"
    assert waiters(client, queue, job_id) == ["one", "two"]
    act(client, queue, job_id)
    said = word or state
    lists = [queue_keys(queue).waiter(name) for name in ("one", "two")]
    assert [client.raw.lrange(key, 0, -1) for key in lists] == [[said.encode()]] * 2
    assert no_lists(client, queue)
    assert "waiters" not in row(client, queue, job_id)
    assert scripts.wait(client, queue, job_id, "late") == ("absent" if state == "gone" else state)
    assert not client.raw.exists(queue_keys(queue).waiter("late"))


@pytest.mark.parametrize("verb", ["snooze", "release", "extend", "progress", "log"])
def test_what_ends_no_job_tells_nobody(client, queue, verb):
    job_id = job_in(client, queue, "active")
    scripts.wait(client, queue, job_id, "one")
    HOLDERS[verb](client, queue, job_id, 1)
    assert waiters(client, queue, job_id) == ["one"]
    assert not client.raw.exists(queue_keys(queue).waiter("one"))


def test_a_failed_attempt_is_no_end(client, queue):
    """Nor is another life after the end: it has waiters of its own."""
    job_id = job_in(client, queue, "active")
    scripts.wait(client, queue, job_id, "one")
    assert wire.retry(client, queue, job_id, 1, delay_ms=0) == "scheduled"
    assert waiters(client, queue, job_id) == ["one"]
    assert claim_one(client, queue).token == 2
    wire.bury(client, queue, job_id, 2)
    scripts.reprocess(client, queue, [job_id])
    assert waiters(client, queue, job_id) == []
    assert scripts.wait(client, queue, job_id, "two") == "pending"


def test_a_row_notes_so_many_waiters(client, queue):
    """The newest; the others ask again."""
    job_id = enqueue_one(client, queue)
    for n in range(5):
        scripts.wait(client, queue, job_id, f"w{n}", keep=3)
    assert waiters(client, queue, job_id) == ["w2", "w3", "w4"]


def test_what_was_never_waited_for_pays_nothing(client, queue):
    """No list, no field."""
    job_id = job_in(client, queue, "active")
    complete(client, queue, job_id, 1, keep_ms=60_000)
    assert not {"ties", "waiters"} & row(client, queue, job_id).keys()
    assert not client.raw.keys(queue_keys(queue).waiter("*"))


# -- looking ----------------------------------------------------------------------------------


def test_a_result_is_what_the_row_says(client):
    """By the job, by its id, and by its id and queue; the value is that which JSON makes of it."""
    job = verdicts.answer.enqueue("plain")
    before = job.result()
    assert (before.state, before.ended, before.value, before.attempts) == (
        "pending",
        False,
        None,
        0,
    )
    burst()
    for found in (before.refresh(), emq.result(job), emq.result(job.id), emq.result(job.id, QUEUE)):
        assert (found.state, found.ended, found.attempts, found.queue) == ("done", True, 1, QUEUE)
        assert found.value == {"sum": 3, "text": "\u00e4\ud83d", "list": [1.5, None, True]}
        assert found.get(timeout=0) == found.value
        assert found.enqueued_at < found.started_at.replace(microsecond=999_999)
        assert found.started_at <= found.finished_at
        assert found.task == verdicts.answer.name


def test_no_result_says_why():
    """In the morgue with its error, not finished, or gone."""
    dead = tasks.boom.using(max_attempts=1).enqueue("no luck")
    free = tasks.nap.enqueue(0)
    burst()
    late = tasks.nap.enqueue(0)
    with pytest.raises(emq.JobDied, match="is in the morgue: ValueError: no luck") as died:
        dead.result().get(timeout=0)
    assert "raise ValueError" in died.value.result.traceback
    with pytest.raises(emq.JobGone, match="result_ttl"):
        free.result().get(timeout=0)
    with pytest.raises(TimeoutError, match="is still pending after 0 s") as slow:
        late.result().get(timeout=0)
    assert isinstance(slow.value, emq.NotFinished)
    assert slow.value.result.id == late.id
    assert emq.result("JOBnever").state == "gone"


def test_results_of_partitions_are_found(settings, client):
    """By the job, by the id alone, and under the name that people use."""
    settings.EMQ = {**settings.EMQ, "QUEUES": {"events": {"PARTITIONS": 3}}}
    jobs = [verdicts.echo.using(queue="events").enqueue(n) for n in range(5)]
    assert {job.result().state for job in jobs} == {"pending"}
    assert [emq.result(job.id, "events").queue for job in jobs] == [job.queue for job in jobs]
    assert [emq.result(job.id).queue for job in jobs] == [job.queue for job in jobs]


# -- waiting ----------------------------------------------------------------------------------


def test_a_hundred_wait_for_one_job(client, probe, tmp_path):
    """All get the value, none polls, and nothing of them is left but lists that end."""
    job = telling.answer_later.enqueue(str(tmp_path / "go"), [1, "two"])
    with ThreadPoolExecutor(100) as pool:
        values = [pool.submit(emq.result(job.id).get, PATIENCE) for _ in range(100)]
        wait_until(lambda: len(waiters(client, QUEUE, job.id)) == 100, what="100 waiters")
        calls = wire.calls(client, "evalsha")
        with Worker() as worker:
            probe.wait_for(1)
            (tmp_path / "go").touch()
            assert [value.result(PATIENCE) for value in values] == [[1, "two"]] * 100
            assert worker.process.poll() is None
    assert wire.calls(client, "evalsha") - calls < 5 * 100
    assert not client.raw.keys(queue_keys(QUEUE).waiter("*"))
    assert waiters(client, QUEUE, job.id) == []
    books_balance(client, QUEUE)


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("return", emq.JobGone, "was completed, and its result is not kept"),
        ("discard", emq.JobGone, "was dropped by its task"),
        ("bury", emq.JobDied, "no use"),
        ("fail", emq.JobDied, "ValueError: no luck"),
    ],
)
def test_a_waiter_hears_how_it_ended(client, probe, tmp_path, how, error, text):
    """Also where nothing of the job is left to be looked at."""
    job = telling.end_later.enqueue(str(tmp_path / "go"), how)
    with ThreadPoolExecutor(1) as pool:
        value = pool.submit(job.result().get, PATIENCE)
        with Worker():
            probe.wait_for(1)
            wait_until(lambda: waiters(client, QUEUE, job.id), what="a waiter")
            (tmp_path / "go").touch()
            with pytest.raises(error, match=text):
                value.result(PATIENCE)


def test_a_wait_has_an_end(client, queue):
    """NotFinished, which is a TimeoutError; no word is left over for the next wait."""
    job_id = enqueue_one(client, queue)
    with pytest.raises(emq.NotFinished, match=r"still pending after 0\.05 s"):
        emq.result(job_id, queue).wait(0.05)
    assert claim_one(client, queue)
    complete(client, queue, job_id, 1)
    assert emq.result(job_id, queue).wait(PATIENCE).state == "gone"
    assert no_lists(client, queue)


def test_many_tasks_of_one_loop_wait(client, queue):
    """An event loop goes on meanwhile: 50 waits of one thread, for one job."""

    async def main():
        job_id = enqueue_one(client, queue)
        known = await emq.aresult(job_id, queue)
        waits = [asyncio.create_task(known.await_(PATIENCE)) for _ in range(50)]
        while len(waiters(client, queue, job_id)) < 50:
            await asyncio.sleep(0.01)
        claim_one(client, queue)
        scripts.complete(client, queue, [(job_id, 1, "7")], keep_ms=60_000)
        ends = await asyncio.gather(*waits)
        assert await known.aget(PATIENCE) == 7
        return ends

    assert {end.value for end in asyncio.run(main())} == {7}


def test_a_cancelled_wait_leaves_no_connection(client, queue):
    """The task of a client that has gone away."""

    async def main():
        job_id = enqueue_one(client, queue)
        wait = asyncio.create_task(emq.result(job_id, queue).await_())
        while not client.raw.client_list() or not blocked(client):
            await asyncio.sleep(0.01)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(main())
    wait_until(lambda: not blocked(client), what="the connection to be closed")


def blocked(client):
    return client.raw.info("clients")["blocked_clients"]


def test_a_waiter_that_was_forgotten_asks_again(client, queue, monkeypatch):
    """Its name is lost, as with a failover: it hears of the end at its next look."""
    monkeypatch.setattr(answers, "BEAT", 0.2)
    job_id = enqueue_one(client, queue)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(emq.result(job_id, queue).wait, PATIENCE)
        wait_until(lambda: waiters(client, queue, job_id), what="a waiter")
        client.raw.hdel(queue_keys(queue).job(job_id), "waiters")
        wait_until(lambda: waiters(client, queue, job_id), what="the same waiter")
        claim_one(client, queue)
        client.raw.hdel(queue_keys(queue).job(job_id), "waiters")
        complete(client, queue, job_id, 1, keep_ms=60_000)
        assert end.result(PATIENCE).state == "done"


def test_waiters_outlast_a_restart_of_the_server(lone, client, queue):
    """Connections break under the wait; they are made anew, and the name is noted again."""
    job_id = enqueue_one(client, queue)
    with ThreadPoolExecutor(5) as pool:
        ends = [pool.submit(emq.result(job_id, queue).wait, PATIENCE) for _ in range(5)]
        wait_until(lambda: len(waiters(client, queue, job_id)) == 5, what="the waiters")
        lone.restart()
        wait_until(lambda: lone.client().info("clients")["blocked_clients"] == 5, what="them again")
        claim_one(client, queue)
        complete(client, queue, job_id, 1, keep_ms=60_000)
        assert {end.result(PATIENCE).state for end in ends} == {"done"}


def test_a_server_that_stays_away(lone, client, queue, monkeypatch):
    """The wait ends with an error that says so, not with one that says the job is slow."""
    monkeypatch.setattr(answers, "AWAY", 0.1)
    job_id = enqueue_one(client, queue)
    known = emq.result(job_id, queue)
    os.kill(lone.pid, signal.SIGKILL)
    with pytest.raises(emq.ServerError):
        known.wait(PATIENCE)


def test_a_waiter_that_was_killed_harms_nobody(client, queue):
    """Its name goes with the end of the job, and its list soon after."""
    job_id = enqueue_one(client, queue)
    listener = listening.Listener(client, queue, job_id)
    listener.register()
    listener.arm(5)
    listener.drop()
    done = threading.Thread(target=emq.result(job_id, queue).wait, args=(PATIENCE,))
    done.start()
    wait_until(lambda: len(waiters(client, queue, job_id)) == 2, what="the second waiter")
    claim_one(client, queue)
    complete(client, queue, job_id, 1)
    done.join(PATIENCE)
    assert not done.is_alive()
    assert no_lists(client, queue)
    assert inspector.state(client, queue, job_id) == "absent"


# -- how long ---------------------------------------------------------------------------------


def test_each_outcome_has_its_time(client):
    """The row knows that of its death, and a sweep obeys it; the other is the worker's."""
    done, dead = telling.by_outcome.enqueue(False), telling.by_outcome.enqueue(True)
    burst()
    assert {row(client, QUEUE, job.id)["dead_ms"] for job in (done, dead)} == {"60000"}
    left = client.raw.zscore(queue_keys(QUEUE).done, done.id) - wire.now_ms(client)
    assert 500_000 < left <= 600_000
    reaper = Reaper(client, (QUEUE,), interval=1)
    reaper.run_once()
    assert dead.result().state == "dead"
    client.raw.zincrby(queue_keys(QUEUE).dead, -60_000, dead.id)
    Reaper(client, (QUEUE,), interval=1).run_once()
    assert dead.result().state == "gone"
    assert done.result().state == "done"


@pytest.mark.parametrize(
    ("ttl", "text"),
    [
        ({"success": 1}, "result_ttl has 'success'. The outcomes are 'done' and 'dead'"),
        ({"dead": 0}, r"result_ttl\['dead'\] is 0"),
        ({"done": -1}, r"result_ttl\['done'\] is -1"),
        ({"done": "1"}, r"result_ttl\['done'\] is '1'"),
        (-1, "result_ttl is -1"),
        ("1", "result_ttl is '1'"),
    ],
)
def test_a_time_that_is_none(ttl, text):
    with pytest.raises(emq.InvalidOption, match=text):
        emq.task(result_ttl=ttl)(telling.report.func)


def test_times_that_are_some():
    """Timedeltas too; a task can still be hashed."""
    ttl = {"done": timedelta(minutes=1), "dead": timedelta(days=1)}
    task = replace(telling.report, result_ttl=ttl)
    assert (task.keep_ms, task.fields) == (60_000, ("dead_ms", 86_400_000))
    assert replace(telling.report, result_ttl={"dead": 1}).keep_ms == 0
    assert hash(task)

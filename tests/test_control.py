"""Quiet, resume, stop: from the word on the server to what a worker does."""

import os
import signal

import pytest

import django_emq as emq
from django_emq import inspector, scripts
from django_emq.exceptions import InvalidOption
from django_emq.keys import reserve_keys
from django_emq.scripts import WORD_MS
from django_emq.worker.presence import rss_mb
from tests.conformance.wire import claim_one, given
from tests.helpers import QUEUE, children, lease_ends
from tests.operator_cases import everything
from tests.probe import tasks
from tests.processes import Worker, wait_until

SOON = {"BEAT_EVERY": "0.2"}


def the_worker(client):
    (worker,) = inspector.workers(client)
    return worker


def ask(client, word):
    """Ask the only worker, and wait until it says that it has obeyed."""
    state = {"quiet": "quiet", "resume": "running", "stop": "stopping"}[word]
    wait_until(lambda: inspector.workers(client))
    assert scripts.control(client, the_worker(client).id, word, by="anna ada")
    wait_until(lambda: the_worker(client).state == state)


def held(client):
    return inspector.counts(client, QUEUE)["active"]


# -- the word ---------------------------------------------------------------------------------


@pytest.mark.parametrize("word", scripts.WORDS)
def test_a_word_waits_for_the_next_beat(client, redis, word):
    """The beat answers it as often as it asks, until its time is up; another one replaces it."""
    facts = {"state": "elsewhere"}
    assert scripts.beat(client, "w1", ttl_ms=30_000, facts=facts) == ("", "")
    assert scripts.control(client, "w1", "stop", by="bert") is True
    assert scripts.control(client, "w1", word, by="anna ada") is True
    worker = the_worker(client)
    assert (worker.asked, worker.asked_by) == (word, "anna ada")
    for _ in range(2):
        assert scripts.beat(client, "w1", ttl_ms=30_000, facts=facts) == (word, "anna ada")
    assert 0 < redis.pttl(reserve_keys().word("w1")) <= WORD_MS


def test_a_word_that_was_obeyed_is_not_asked_any_more(client):
    """The list shows a word while the worker's state is another one."""
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"state": "running"})
    scripts.control(client, "w1", "quiet", by="anna")
    assert the_worker(client).asked == "quiet"
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"state": "quiet"})
    assert (the_worker(client).asked, the_worker(client).asked_by) == ("", "")


def test_a_worker_that_leaves_takes_its_word_with_it(client, redis):
    """Nothing is left that another one could take for its own."""
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"state": "running"})
    scripts.control(client, "w1", "stop")
    scripts.beat(client, "w1", ttl_ms=0, facts={})
    assert redis.keys("*") == []


def test_there_must_be_such_a_worker(client):
    """A word for a worker that has left, or never was, is not kept."""
    assert scripts.control(client, "w1", "quiet", by="anna") is False
    assert everything(client) == {}


@pytest.mark.parametrize("word", ["", "Quiet", "run", "stop now"])
def test_other_words_are_refused(client, word):
    """Before anything is sent."""
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"state": "running"})
    before = everything(client)
    with pytest.raises(InvalidOption, match="Use quiet, resume, stop"):
        scripts.control(client, "w1", word)
    assert everything(client) == before


@pytest.mark.parametrize("damage", [b"dance anna", b"\xff\xfe", b""])
def test_a_strangers_word_is_none(client, redis, damage):
    """What we did not leave there is not obeyed, and takes no list with it."""
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"state": "running"})
    redis.set(reserve_keys().word("w1"), damage)
    assert the_worker(client).asked == ""
    assert scripts.beat(client, "w1", ttl_ms=30_000, facts={}) == ("", "")


def test_a_word_of_the_wrong_type(client, redis):
    """It stops neither the beat nor the list, and the next word takes its place."""
    scripts.beat(client, "w1", ttl_ms=30_000, facts={"state": "running"})
    redis.rpush(reserve_keys().word("w1"), "stop")
    assert the_worker(client).asked == ""
    assert scripts.beat(client, "w1", ttl_ms=30_000, facts={"state": "running"}) == ("", "")
    assert scripts.control(client, "w1", "quiet") is True
    assert the_worker(client).asked == "quiet"


# -- the worker -------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_quiet_worker(probe, client, processes):
    """It finishes what it holds, claims nothing, and goes on extending; resumed, it claims.

    Meanwhile it tells its memory, that of its children included.
    """
    long = tasks.mark_then_nap.enqueue("long", 4)
    with Worker("--processes", processes, "--lease", "1", **SOON) as worker:
        probe.wait_for(1)
        ask(client, "quiet")
        pids = children(worker.pid)
        memory = sum(rss_mb(pid) for pid in (worker.pid, *pids))
        assert int(the_worker(client).facts["rss_mb"]) == pytest.approx(memory, rel=0.3)
        emq.enqueue_many(tasks.mark.job(n) for n in range(20))
        # The long job outlasts its first lease by far: somebody extends it.
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
        assert inspector.state(client, QUEUE, long.id) == "absent"
        assert inspector.totals(client, QUEUE).get("reaped", 0) == 0
        assert probe.marks() == ["long"]
        assert inspector.counts(client, QUEUE)["pending"] == 20
        ask(client, "resume")
        assert sorted(probe.wait_for(21)) == sorted(["long", *map(str, range(20))])
        assert children(worker.pid) == pids
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 21)
    told = [line.split(" worker ")[-1] for line in worker.lines if "asks" in line]
    assert [line.split(": ")[1].strip() for line in told] == [
        "quiet, as anna ada asks", "resume, as anna ada asks",
    ]  # fmt: skip


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_quiet_worker_keeps_house(client, queue, processes):
    """Leases that lapse are swept, and what falls due is made ready: for other workers."""
    with Worker("--processes", processes, "--lease", "1", QUEUE, **SOON) as worker:
        worker.wait_ready()
        ask(client, "quiet")
        first = tasks.mark.enqueue("held")
        assert given(claim_one(client, QUEUE, lease_ms=200))[0] == first.id
        due = tasks.mark.using(run_in=0.2).enqueue("due")
        wait_until(lambda: inspector.counts(client, QUEUE)["pending"] == 2)
        assert inspector.state(client, QUEUE, due.id) == "pending"
        why = inspector.why(client, QUEUE, first.id).reasons
        assert f"All workers that serve '{QUEUE}' are quiet or stopping: they take no jobs." in why


def test_a_wake_that_a_quiet_worker_takes_is_passed_on(probe, client):
    """An idle worker waits for a wake when it is asked; the next job goes to another worker."""
    with Worker(**SOON) as quiet:
        quiet.wait_ready()
        ask(client, "quiet")
        with Worker("--processes", "0") as other:
            other.wait_ready()
            for n in range(5):
                tasks.mark.enqueue(n)
                probe.wait_for(n + 1, seconds=4)


def test_a_child_that_replaces_another_one_is_quiet_too(probe, client):
    """The supervisor remembers, whatever becomes of its children."""
    with Worker(**SOON) as worker:
        worker.wait_ready()
        ask(client, "quiet")
        (child,) = children(worker.pid)
        tasks.mark.enqueue("a")
        os.kill(child, signal.SIGKILL)
        worker.wait_for("starting another one")
        wait_until(lambda: children(worker.pid) not in ([], [child]))
        beats = the_worker(client).beat_at
        wait_until(lambda: the_worker(client).beat_at > beats)
        assert probe.marks() == []
        ask(client, "resume")
        assert probe.wait_for(1) == ["a"]


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_worker_that_is_asked_to_stop(probe, client, processes):
    """It finishes what runs, hands back the rest and exits with 0, as at a SIGTERM."""
    running = tasks.mark_then_nap.enqueue("long", 2)
    with Worker("--processes", processes, **SOON) as worker:
        probe.wait_for(1)
        waiting = tasks.mark.enqueue("later")
        ask(client, "stop")
        assert lease_ends(client, running.id) is not None
        assert worker.wait() == 0
    assert probe.marks() == ["long"]
    assert inspector.state(client, QUEUE, running.id) == "absent"
    assert inspector.state(client, QUEUE, waiting.id) == "pending"
    assert inspector.workers(client) == []
    assert "stop, as anna ada asks" in worker.output


def test_a_worker_that_is_started_again_is_not_quiet(probe, client):
    """Also when it has the same name: the word was for the one before."""
    with Worker("--name", "w-7", **SOON) as worker:
        worker.wait_ready()
        ask(client, "quiet")
        before = the_worker(client).id
        worker.terminate()
        assert worker.wait() == 0
    with Worker("--name", "w-7", **SOON):
        tasks.mark.enqueue("a")
        assert probe.wait_for(1) == ["a"]
        assert the_worker(client).state == "running"
        assert the_worker(client).id != before

"""The server did it, and the reply was lost: asking again does it no second time."""

import pytest

import django_emq as emq
from django_emq import connections, inspector
from django_emq.exceptions import OutcomeUnknown
from django_emq.keys import queue_keys
from django_emq.ticker import Ticker
from tests.conformance.wire import books_balance
from tests.helpers import QUEUE, burst, children, point_at
from tests.probe import tasks
from tests.processes import Worker, wait_until
from tests.proxy import Act


@pytest.fixture
def behind(settings, proxy):
    """This process goes through the proxy, its workers do not."""
    point_at(settings, proxy.url)
    tasks.mark.enqueue("known")  # the queue is registered, the script loaded
    return proxy


def count(client, queue=QUEUE):
    return sum(inspector.counts(client, queue).values())


@pytest.mark.parametrize("act", [Act.CUT_AFTER, Act.CUT_BEFORE])
@pytest.mark.parametrize("losses", [1, 2])
def test_B11_reply_of_the_enqueue_is_lost(probe, client, behind, act, losses):
    """The call returns, and one job exists; fifty of a bulk enqueue are fifty; so with a delay.

    The alias has the repeats that django-redis sets by default. Also when the request is lost.
    """
    rule = behind.on("enqueue", act, times=losses)
    job = tasks.mark.enqueue("a")
    assert rule.fired.is_set()
    assert job.status == "enqueued"
    assert count(client) == 2
    assert inspector.state(client, QUEUE, job.id) == "pending"

    rule = behind.on("enqueue", act, times=losses)
    made = emq.enqueue_many(tasks.mark.job(i) for i in range(50))
    assert rule.fired.is_set()
    assert {job.status for job in made} == {"enqueued"}
    assert len({job.id for job in made}) == 50
    assert count(client) == 52

    rule = behind.on("enqueue", act, times=losses)
    late = emq.enqueue_in(600, tasks.mark, "late")
    assert rule.fired.is_set()
    assert inspector.state(client, QUEUE, late.id) == "scheduled"
    assert inspector.totals(client, QUEUE)["enqueued"] == count(client) == 53
    burst()
    assert sorted(probe.marks()) == sorted(["known", "a", *map(str, range(50))])


@pytest.mark.parametrize("act", [Act.CUT_AFTER, Act.CUT_BEFORE])
@pytest.mark.parametrize("passed", [0, 1, 3])
def test_replies_of_a_long_call_are_lost(client, behind, act, passed):
    """Two round trips are under way when the link breaks: each job is there once, in its place."""
    rule = behind.on("enqueue", act, times=2, after=passed)
    made = emq.enqueue_many(tasks.mark.job(i) for i in range(2300))
    assert rule.fired.is_set()
    assert {job.status for job in made} == {"enqueued"}
    pending = client.raw.zrange(queue_keys(QUEUE).pending, 0, -1)
    assert [job.id.encode() for job in made] == pending[1:]  # before them the one that is known
    assert inspector.totals(client, QUEUE)["enqueued"] == count(client) == 2301


def test_no_reply_to_a_long_call(client, behind):
    """The link stays away: the error names the first job of which nothing is known."""
    behind.on("enqueue", Act.CUT_AFTER, times=9, after=2)
    with pytest.raises(emq.OutcomeUnknown, match="no answer after 3 tries") as caught:
        emq.enqueue_many(tasks.mark.job(i) for i in range(2300))
    (job_id,) = (word for word in str(caught.value).split() if word.startswith("JOB"))
    pending = client.raw.zrange(queue_keys(QUEUE).pending, 0, -1)
    assert pending.index(job_id.encode()) in (1 + 500, 1 + 1000)  # the first lot was answered
    assert len(pending) <= 1 + 2000  # and nothing was sent after that


def test_the_job_is_done_before_the_call_is_repeated(probe, client, behind):
    """A quick worker has finished the job, its row is gone: the repeat makes no new one."""
    with Worker() as worker:
        worker.wait_ready()
        probe.wait_for(1)
        for i in range(5):
            behind.on("enqueue", Act.CUT_AFTER)
            assert tasks.mark.enqueue(i).status == "enqueued"
        probe.wait_for(6)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 6)
    assert sorted(probe.marks()) == ["0", "1", "2", "3", "4", "known"]
    assert inspector.totals(client, QUEUE)["enqueued"] == 6


def test_no_reply_at_all(client, behind):
    """Every repeat lost: the error says that the outcome is unknown, and names the job."""
    behind.on("enqueue", Act.CUT_AFTER, times=3)
    with pytest.raises(emq.OutcomeUnknown) as caught:
        tasks.mark.enqueue("a")
    text = str(caught.value)
    assert "no answer after 3 tries" in text
    (job_id,) = (word for word in text.split() if word.startswith("JOB"))
    assert inspector.state(client, QUEUE, job_id) == "pending"
    assert count(client) == 2


def test_a_swallowed_reply(client, behind, settings):
    """A link that is silent instead of closed: the time-out ends the wait, the repeat succeeds."""
    settings.EMQ = {"SOCKET_TIMEOUT": 0.3}
    rule = behind.on("enqueue", Act.SWALLOW)
    assert tasks.mark.enqueue("a").status == "enqueued"
    assert rule.fired.is_set()
    assert count(connections.client()) == 2


@pytest.mark.parametrize("act", [Act.CUT_AFTER, Act.CUT_BEFORE])
def test_B13_reply_of_the_complete_is_lost(probe, client, proxy, act):
    """One mark, counted once, no error, no second run, and the next job is taken."""
    with Worker("--lease", "30", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        (child,) = children(worker.pid)
        rule = proxy.on("complete", act)
        tasks.mark.enqueue("a")
        assert rule.fired.wait(20)
        wait_until(lambda: count(client) == 0)
        tasks.mark.enqueue("next")
        probe.wait_for(2)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 2)
        assert children(worker.pid) == [child]
        worker.terminate()
        assert worker.wait() == 0
    assert probe.marks() == ["a", "next"]
    totals = inspector.totals(client, QUEUE)
    assert (totals["claimed"], totals.get("failed", 0), totals.get("stale", 0)) == (2, 0, 0)
    assert "ERROR" not in worker.output
    assert "refused" not in worker.output
    assert "gone" not in worker.output


@pytest.mark.parametrize("verb", ["retry", "snooze", "discard", "bury"])
def test_the_reply_of_another_settlement(probe, client, proxy, verb):
    """Each verdict is sent again and taken once."""
    from tests.probe import verdicts

    task, arguments, marks = {
        # Due before the call is sent again, it would be claimed again, and the call refused.
        "retry": (verdicts.ask_retry, (2,), 2),
        "snooze": (verdicts.ask_snooze, (0.01, 1), 2),
        "discard": (verdicts.ask_discard, (), 0),
        "bury": (verdicts.ask_bury, ("no use",), 0),
    }[verb]
    with Worker("--lease", "30", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        rule = proxy.on(verb, Act.CUT_AFTER)
        job = task.enqueue(*arguments)
        assert rule.fired.wait(20)
        end = "dead" if verb == "bury" else "absent"
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == end)
        tasks.mark.enqueue("next")
        probe.wait_for(marks + 1)
        worker.terminate()
        assert worker.wait() == 0
    totals = inspector.totals(client, QUEUE)
    assert totals["claimed"] == (3 if marks else 2)
    assert totals.get("failed", 0) == (1 if verb == "retry" else 0)
    assert "refused" not in worker.output
    books_balance(client, QUEUE)


@pytest.mark.parametrize("losses", [1, 3])
def test_the_reply_of_a_claim(probe, client, proxy, losses):
    """The same jobs are answered again: no token is burnt, no job is left to its lease."""
    with Worker("--lease", "60", "--threads", "4", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        tasks.mark.enqueue("warm")
        probe.wait_for(1)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
        rule = proxy.on("claim", Act.CUT_AFTER, times=losses)
        emq.enqueue_many(tasks.mark_job.job() for _ in range(10))
        assert rule.fired.wait(20)
        lines = probe.wait_for(11)[1:]
        wait_until(lambda: count(client) == 0)
    assert {line.split()[1] for line in lines} == {"1"}  # tokens
    assert inspector.totals(client, QUEUE)["claimed"] == 11
    assert "ERROR" not in worker.output


def test_the_reply_of_a_claim_at_the_end(probe, client, proxy):
    """Stopped before it could ask again: the jobs come back by way of the supervisor."""
    with Worker("--lease", "60", "--grace", "1", EMQ_URL=proxy.url) as worker:
        worker.wait_ready()
        rule = proxy.on("claim", Act.CUT_AFTER)
        tasks.mark.enqueue("a")
        assert rule.fired.wait(20)
        worker.terminate()
        assert worker.wait() == 0
    books_balance(client, QUEUE)
    # Run in the grace, or handed back; not left to the lease.
    assert inspector.counts(client, QUEUE)["active"] == 0


def test_the_reply_of_an_extension(probe, client, proxy):
    """The next extension comes in time; the job keeps its lease."""
    with Worker("--lease", "2", EMQ_URL=proxy.url):
        tasks.mark_then_nap_then_mark_token.enqueue("a", 3)
        probe.wait_for(1)
        rule = proxy.on("extend", Act.CUT_AFTER)
        assert rule.fired.wait(20)
        assert probe.wait_for(2)[1] == "a token 1"
    assert inspector.totals(client, QUEUE).get("reaped", 0) == 0


@pytest.mark.parametrize("act", [Act.CUT_AFTER, Act.CUT_BEFORE])
def test_the_answer_to_a_cancel_is_lost(client, behind, act):
    """It is asked again, and finds the job cancelled: by itself."""
    job = tasks.mark.enqueue("a")
    rule = behind.on("cancel", act, times=1)
    assert emq.cancel(job) is True
    assert rule.fired.is_set()
    assert inspector.totals(client, QUEUE)["cancelled"] == 1


def test_reply_of_a_tick_is_lost(client, behind, settings):
    """The ticker does not know whether it ran; who ticks next finds that it did, or does it."""
    plan = {"task": "tests.probe.tasks.mark", "every": 3600}
    settings.EMQ = {**settings.EMQ, "SCHEDULES": {"x": plan}}
    ticker = Ticker(connections.client())
    ticker.declare([QUEUE])
    for jobs, act in enumerate((Act.CUT_AFTER, Act.CUT_BEFORE), start=2):
        client.raw.zincrby(queue_keys(QUEUE).repeat, -3_600_000, "x")
        rule = behind.on("enqueue", act)
        with pytest.raises(OutcomeUnknown):
            ticker.tick(QUEUE)
        assert rule.fired.is_set()
        for _ in range(2):
            Ticker(client).tick(QUEUE)
        assert count(client) == jobs  # the first is that of `behind`

"""What a run says of itself: how far it has come, and lines of its log."""

import asyncio
import json
import logging
import threading
from io import StringIO

import pytest
from django.core.management import call_command

import django_emq as emq
from django_emq import inspector, scripts
from django_emq.calls import SCRIPTS
from django_emq.connections import Script
from django_emq.context import JobContext, enter
from django_emq.jobs import Claimed
from django_emq.keys import queue_keys
from django_emq.notes import LINE_MAX, JobLogHandler, Notes, Progress, read_progress
from django_emq.worker.notebook import EVERY
from django_emq.worker.outcome import Outcome
from tests.conformance import wire
from tests.conformance.wire import books_balance, enqueue_some, members, row
from tests.helpers import QUEUE, burst
from tests.probe import telling
from tests.processes import Worker, wait_until
from tests.test_trips import Yard


def progress_of(client, job_id, queue=QUEUE):
    return read_progress(row(client, queue, job_id).get("progress", ""))


def log_of(client, job_id, queue=QUEUE):
    """Its lines, without their times."""
    return [line[20:] for line in inspector.job(client, queue, job_id).logs]


# -- a worker ---------------------------------------------------------------------------------


def test_a_loop_may_say_it_at_every_step(client, probe, tmp_path):
    """Fifty thousand times: few commands, the newest is there while the job runs, and at its end.

    Of the log the newest hundred lines are.
    """
    many, before = 50_000, wire.calls(client, "publish")
    job = telling.count_to.enqueue(many, str(tmp_path / "go"))
    with Worker() as worker:
        probe.wait_for(1)
        last = Progress(many, many, f"step {many}")
        wait_until(lambda: progress_of(client, job.id) == last, what="the last step")
        wait_until(lambda: len(log_of(client, job.id)) == 100, what="the log")
        seconds = wire.now_ms(client) / 1000 - int(row(client, QUEUE, job.id)["started_at"]) / 1000
        assert wire.calls(client, "publish") - before <= seconds / EVERY + 2
        out = StringIO()
        call_command("emq_stats", stdout=out)
        assert f"{many}/{many} (100 %) step {many}" in out.getvalue()
        out = StringIO()
        call_command("emq_why", job.id, stdout=out)
        assert f"Its task says how far it is: {many}/{many} (100 %) step {many}." in out.getvalue()
        (tmp_path / "go").touch()
        assert job.result().wait(60).progress == last
        assert worker.process.poll() is None
    assert log_of(client, job.id) == [f"line {n}" for n in range(many - 99, many + 1)]


def test_what_a_short_job_says_is_there_when_it_is_done(client, probe):
    """The settlement does not overtake it; neither does that of an async job."""
    jobs = [telling.count_to.enqueue(3) for _ in range(20)]
    async_job = telling.acount_to.enqueue(7)
    burst()
    assert {job.result().state for job in (*jobs, async_job)} == {"done"}
    for job in jobs:
        assert progress_of(client, job.id) == Progress(3, 3, "step 3")
        assert log_of(client, job.id) == ["line 1", "line 2", "line 3"]
    assert progress_of(client, async_job.id) == Progress(7, 7, "done")
    assert log_of(client, async_job.id) == ["from a thread"]
    books_balance(client, QUEUE)


def test_a_run_that_has_lost_its_job_hears_it_soon(client, probe, tmp_path):
    """Its next line is refused, long before the next extension; nothing of it is stored."""
    job = telling.say_until_lost.enqueue(str(tmp_path / "go"))
    with Worker("--lease", "3600", "--processes", "0", "--threads", "2"):
        probe.wait_for(1)
        scripts.requeue(client, QUEUE, [job.id])
        wait_until(lambda: "token 3" in probe.marks(), what="the next run")
        (tmp_path / "go").touch()
        wait_until(lambda: "lost" in probe.marks(), what="the run to be told")
    assert not client.raw.exists(queue_keys(QUEUE).logs(job.id))


def test_secrets_are_taken_out(client):
    """Of the arguments that REDACT names; and both outlive the run that has said it."""
    job = telling.fail_saying.enqueue("I know", password="hunter2")
    burst()
    assert inspector.state(client, QUEUE, job.id) == "absent"
    job = telling.fail_saying.using(max_attempts=1).enqueue("I know", password="hunter2")
    burst()
    assert progress_of(client, job.id) == Progress(1, 4, "I know ••••••")
    assert log_of(client, job.id) == ["login with ••••••"]


# -- the trips --------------------------------------------------------------------------------


@pytest.fixture
def yard(client, queue):
    yard = Yard(client, (queue,))
    yield yard
    yard.trips.close()


def held(client, queue, yard, count=1):
    """Contexts of jobs that are held."""
    enqueue_some(client, queue, count)
    yard.trips.leave(count)
    yard.trips.arrive()
    noted = yard.trips.notebook.noted.append
    return [JobContext(job, 60, lambda: 0.0, noted) for job in yard.brought()]


def test_many_jobs_share_a_trip_and_a_call(client, queue, yard):
    """Progress of twenty jobs is one call, their lines are another."""
    jobs = held(client, queue, yard, 20)
    for job in jobs:
        for n in range(10):
            job.progress(n, 10)
            job.log(str(n))
    calls = wire.calls(client, "evalsha")
    assert yard.trips.due(0, low=False)
    yard.trips.leave(0)
    assert yard.trips.arrive()
    assert wire.calls(client, "evalsha") - calls == 2
    assert {progress_of(client, job.id, queue) for job in jobs} == {Progress(9, 10)}
    assert all(log_of(client, job.id, queue) == [*"0123456789"] for job in jobs)
    jobs[0].progress(10, 10)
    assert yard.trips.notebook.at > 0.0
    yard.trips.notebook.at = float("inf")  # not so soon again
    assert not yard.trips.due(0, low=False)
    yard.trips.notebook.at = 0.0
    assert yard.trips.due(0, low=False)


def test_the_last_word_goes_before_the_settlement(client, queue, yard):
    """Of the jobs that end with a trip, whatever the time; of others not before it is time."""
    one, two = held(client, queue, yard, 2)
    yard.trips.notebook.at = float("inf")
    one.progress(1, 1)
    two.progress(1, 2)
    yard.trips.outbox.append(Outcome("complete", one, ("",), 60_000))
    yard.trips.leave(0)
    assert yard.trips.arrive()
    assert progress_of(client, one.id, queue) == Progress(1, 1)
    assert progress_of(client, two.id, queue) is None
    assert list(yard.trips.notebook.noted) == [two]


def test_a_lost_trip_is_said_again(client, queue, yard):
    """The newest progress and all lines, in their order, with what has been said since."""
    (job,) = held(client, queue, yard)
    job.progress(1, 3)
    job.log("first")
    job.log("second")
    line = yard.trips._line._connection
    line.send_command("CLIENT", "ID")
    client.raw.client_kill_filter(_id=line.read_response())
    yard.trips.leave(0)
    job.log("third")
    if yard.trips.under_way:  # it has left, and the server will not read it
        assert not yard.trips.arrive()
    yard.trips.notebook.at = 0.0
    yard.trips.leave(0)
    assert yard.trips.arrive()
    assert progress_of(client, job.id, queue) == Progress(1, 3)
    assert log_of(client, job.id, queue) == ["first", "second", "third"]


@pytest.mark.parametrize("verb", ["progress", "log"])
def test_what_cannot_be_stored_holds_up_nothing(client, queue, yard, monkeypatch, caplog, verb):
    """One line of log however often it is tried, and the settlement goes through."""
    jobs = held(client, queue, yard, 2)
    with monkeypatch.context() as patch:
        patch.setitem(SCRIPTS, verb, Script(verb, b"return redis.error_reply('ERR no room')"))
        for job in jobs:
            job.progress(1, 3)
            job.log("a line")
            yard.trips.outbox.append(Outcome("complete", job, ("",)))
            yard.trips.leave(0)
            assert yard.trips.arrive()
    assert caplog.text.count("what jobs say of themselves cannot be stored") == 1
    assert not yard.outage.retry_at
    assert not members(client, queue, "active")


def test_a_refusal_is_told_unless_the_job_has_ended(client, queue):
    """Its own settlement has gone with it, and is refused for itself."""
    lost = []
    yard = Yard(client, (queue,))
    yard.trips.notebook._lost = lambda context, cancelled: lost.append(context)
    one, two = held(client, queue, yard, 2)
    scripts.requeue(client, queue, [one.id, two.id])
    one.log("a line")
    two.log("a line")
    yard.trips.outbox.append(Outcome("complete", one, ("",)))
    yard.trips.leave(0)
    assert yard.trips.arrive()
    assert lost == [two]
    assert not client.raw.exists(queue_keys(queue).logs(one.id), queue_keys(queue).logs(two.id))
    yard.trips.close()


# -- a job ------------------------------------------------------------------------------------


class Job(JobContext):
    """One that can be asked whom it has told."""

    __slots__ = ("told",)


@pytest.fixture
def job():
    told = []
    job = Job(Claimed(b"JOBa", b"{}", 1, 0, "q", 0.0), 15.0, lambda: 0.0, told.append)
    job.told = told
    return job


def test_the_worker_is_told_once_until_it_takes_it(job):
    for n in range(100):
        job.progress(n, 100)
        job.log("a line")
    assert job.told == [job]
    step, lines = job.notes.take()
    assert (step, len(lines)) == ((99, 100, ""), 100)
    assert job.notes.take() == (None, [])
    job.log("one more")
    assert job.told == [job, job]


@pytest.mark.parametrize("bad", ["3", None, float("nan"), float("inf"), 10**400, [3]])
def test_what_is_no_number_is_refused_where_it_is_said(job, bad):
    with pytest.raises(emq.InvalidOption, match="done is"):
        job.progress(bad, 10)
    if bad is not None:
        with pytest.raises(emq.InvalidOption, match="total is"):
            job.progress(1, bad)


def test_of_a_run_that_lost_its_lease_nothing_goes(job):
    job.lose()
    job.log("a line")
    job.progress(1)
    assert job.told == []


def test_threads_may_begin_at_once(job):
    """No line is lost, and there is one set of notes."""
    ready = threading.Barrier(8)

    def say(n):
        ready.wait()
        job.log(str(n))

    threads = [threading.Thread(target=say, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(text for _, text in job.notes.take()[1]) == [*"01234567"]


@pytest.mark.parametrize("text", ["x" * 100_000, "\0\ud800 bell \a", ""])
def test_a_line_that_is_long_or_odd(job, text):
    """Cut, and such that the server can store it."""
    job.log(text)
    (line,) = job.notes.take()[1]
    written = job.notes.line(line, b"{}")
    assert len(written.encode()) <= LINE_MAX
    assert "\0" not in written


def test_pythons_logging_may_go_there(job):
    """Inside of a job; outside of one the handler does nothing."""
    logger = logging.getLogger("shop")
    handler = JobLogHandler()
    logger.addHandler(handler)
    try:
        logger.warning("outside")

        async def inside():
            enter(job)
            logger.warning("inside %d", 7)

        asyncio.run(inside())
    finally:
        logger.removeHandler(handler)
    assert [text for _, text in job.notes.take()[1]] == ["inside 7"]


@pytest.mark.parametrize(
    ("text", "expected", "percent"),
    [
        ('{"done":3,"total":4,"note":"a"}', Progress(3, 4, "a"), 75),
        ('{"done":3}', Progress(3, None), None),
        ('{"done":9,"total":4}', Progress(9, 4), 100),
        ('{"done":1,"total":0}', Progress(1, 0), None),
        ("64", Progress(64, 100), 64),
        ("50%", Progress(50, 100), 50),
        ("half", Progress(note="half"), None),
        ("NaN", Progress(note="NaN"), None),
        ("-3", Progress(note="-3"), None),
        ("true", Progress(note="true"), None),
        ('{"done":"3"}', Progress(note='{"done":"3"}'), None),
        ("[" * 5000, Progress(note="[" * 5000), None),
    ],
)
def test_a_progress_is_read_whoever_wrote_it(text, expected, percent):
    assert read_progress(text) == expected
    assert expected.percent == percent


def test_a_progress_for_people():
    said = [Progress(3, 10, "page 3"), Progress(1.5, 3.0), Progress(7), Progress(note="half")]
    assert [*map(str, said)] == ["3/10 (30 %) page 3", "1.5/3 (50 %)", "7", "half"]


def test_a_progress_as_the_row_keeps_it():
    notes = Notes()
    assert json.loads(notes.written((3, None, ""), b"{}")) == {"done": 3}
    assert json.loads(notes.written((True, 2.5, "é" * 500), b"{}"))["note"].startswith("é" * 30)

"""What `django_emq.testing` gives the tests of a project."""

import unittest
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.test import TestCase

from django_emq import connections, inspector, schedules, scripts
from django_emq.conf import settings as conf
from django_emq.exceptions import InvalidOption, JobGone, StaleToken
from django_emq.models import Effect
from django_emq.testing import EmqMixin
from tests.conformance.wire import pass_ms
from tests.probe import effects as tasks
from tests.probe.models import Payment
from tests.probe.tasks import mark, mark_planned

pytestmark = pytest.mark.django_db


def payments():
    return list(Payment.objects.order_by("pk").values_list("order_id", "amount"))


# -- schedules --------------------------------------------------------------------------------


@pytest.fixture
def declared(monkeypatch):
    """Two schedules of the code: each hour, and 02:30 in Berlin."""
    monkeypatch.setattr(schedules, "_decorated", {})
    schedules.every(hours=1, name="hourly", args=["h"])(mark_planned)
    schedules.cron("30 2 * * *", tz="Europe/Berlin", name="nightly", args=["n"])(mark_planned)


def planned(emq):
    return [f"{job.args[0]} {job.planned_at:%d %H:%M}" for job in emq.waiting()]


NIGHT = datetime(2026, 10, 24, 22, 30, tzinfo=UTC)


def test_schedules_tick_as_time_is_advanced(emq, declared):
    """Each time, in order; started ones only; and nothing by starting."""
    emq.schedules(at=NIGHT)
    assert emq.waiting() == []
    emq.advance(2 * 3600)
    assert planned(emq) == ["h 24 23:00", "h 25 00:00", "n 25 00:30"]
    emq.advance(3600)
    assert planned(emq)[3:] == ["h 25 01:00"]  # 02:30 comes a second time, and is not fired again


def test_schedules_that_were_not_started_do_not_tick(emq, declared):
    """A test of something else is not disturbed by what the code declares."""
    emq.advance(86_400)
    emq.schedules("nightly")
    emq.advance(86_400)
    assert [job.args for job in emq.waiting()] == [["n"]]


def test_a_job_of_a_schedule_knows_its_time(emq, declared, probe):
    """That of the test."""
    schedules.every(hours=1, name="plain")(mark_planned)
    emq.schedules("plain", at=NIGHT)
    emq.advance(1800)
    emq.run_until_empty()
    assert probe.marks() == [f"{NIGHT.timestamp() + 1800:.0f}"]


@pytest.mark.parametrize(
    ("names", "at", "said"),
    [
        (["daily"], NIGHT, "no schedule 'daily'. There are: hourly, nightly."),
        (["hourly"], datetime(2026, 1, 1), "Use an aware datetime"),
    ],
)
def test_what_cannot_be_started_is_said(emq, declared, names, at, said):
    with pytest.raises(InvalidOption, match=said):
        emq.schedules(*names, at=at)


def test_too_many_times_are_an_error(emq, declared):
    """A test that advances by a year by mistake says so at once."""
    emq.schedules("hourly")
    with pytest.raises(AssertionError, match="1000 times of schedules in one advance"):
        emq.advance(365 * 86_400)


# -- the sandbox ------------------------------------------------------------------------------


def test_each_test_has_keys_of_its_own(redis, emq):
    """Other jobs on the server are not seen, and none of ours are left."""
    tasks.pay.enqueue(1, 100)
    assert conf().prefix == emq.prefix
    assert {key.partition(b":")[0] for key in redis.keys("*")} <= {
        emq.prefix.encode(),
        b"{%b}" % emq.prefix.encode(),
    }
    emq.empty()
    assert redis.keys() == []
    tasks.pay.enqueue(1, 100)
    assert len(emq.waiting()) == 1


def test_the_sandbox_is_gone_after_the_test(redis):
    class Case(EmqMixin, TestCase):
        def test(self):
            tasks.pay.enqueue(1, 100)
            self.emq.assert_enqueued(tasks.pay)

    result = Case("test").run(unittest.TestResult())
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])
    assert conf().prefix == "emq"
    assert redis.keys("*test-*") == []


# -- looking ----------------------------------------------------------------------------------


def test_assert_enqueued_finds_a_job(emq):
    tasks.pay.enqueue(1, amount=100)
    tasks.pay.using(queue="slow", run_in=timedelta(hours=1)).enqueue(2, amount=200)
    assert emq.assert_enqueued(tasks.pay, args=(1,)).kwargs == {"amount": 100}
    found = emq.assert_enqueued(tasks.pay, match=lambda job: job.kwargs["amount"] > 100, count=1)
    assert (found.queue, found.args, round(found.due_in, -2)) == ("slow", [2], 3600)
    emq.assert_enqueued(tasks.pay.name, kwargs={"amount": 200}, count=1)
    emq.assert_enqueued(tasks.pay, count=2)


@pytest.mark.parametrize(
    "wrong",
    [{"args": [3]}, {"kwargs": {}}, {"match": lambda job: job.due_in}, {"count": 2}, {"count": 0}],
)
def test_assert_enqueued_tells_what_there_is(emq, wrong):
    tasks.pay.enqueue(1, amount=100)
    with pytest.raises(
        AssertionError, match=r"\n  tests.probe.effects.pay\(1, amount=100\) on def"
    ):
        emq.assert_enqueued(tasks.pay, **wrong)


def test_assert_enqueued_with_nothing_there(emq):
    with pytest.raises(AssertionError, match=r"No such job of .*pay among .* enqueued: Nothing\."):
        emq.assert_enqueued(tasks.pay)


def test_what_waits_for_a_commit_is_enqueued_by_commits(emq):
    with emq.commits():
        with transaction.atomic():
            transaction.on_commit(lambda: tasks.pay.enqueue(1, 100))
        assert emq.waiting() == []
    emq.assert_enqueued(tasks.pay, args=[1, 100])


# -- running ----------------------------------------------------------------------------------


def test_jobs_run_in_the_transaction_of_the_test(emq):
    """And those that they enqueue; async ones too."""
    tasks.chain.enqueue(3)
    tasks.apay.using(queue="other").enqueue(9, 9)
    ran = emq.run_until_empty()
    assert [(run.verb, run.token) for run in ran] == [("complete", 1)] * 4
    assert payments() == [(3, 1), (2, 1), (1, 1), (9, 9)]
    assert transaction.get_connection().in_atomic_block
    assert emq.waiting() == []


@pytest.mark.parametrize("option", ["on_commit", "outbox"])
def test_what_a_job_commits_is_committed(emq, option):
    """What it enqueues after its commit runs too, once, though the test never commits."""
    tasks.pay_and_go_on.enqueue(1, option)
    with emq.commits():
        ran = emq.run_until_empty()
    assert [run.task.rpartition(".")[2] for run in ran] == ["pay_and_go_on", "pay"]
    assert emq.waiting() == []
    assert payments() == [(1, 1), (1, 100)]
    assert transaction.get_connection().run_on_commit == []


def test_explore_of_what_is_enqueued_after_a_commit(emq):
    """Also where the first job is: nothing is lost by a crash beside it."""

    def check():
        assert sorted(payments()) == [(1, 1), (1, 100)]

    task = tasks.pay_and_go_on.using(outbox=True)
    assert len(emq.explore(lambda: task.enqueue(1, "outbox"), check)) > 5


def test_an_error_is_raised_when_the_run_is_settled(emq):
    job = tasks.fail.enqueue("boom")
    with pytest.raises(ValueError, match="boom"):
        emq.run_until_empty()
    row = inspector.row(connections.client(), job.queue, job.id)
    assert (row["failures"], row["state"]) == ("1", "scheduled")
    assert emq.run_until_empty() == []
    (run,) = emq.run_until_empty(scheduled=True, raises=False)
    assert (run.verb, run.token, str(run.error)) == ("retry", 2, "boom")
    assert inspector.state(connections.client(), job.queue, job.id) == "dead"


def test_a_verdict_is_no_error(emq):
    tasks.snooze_once.enqueue()
    verbs = [run.verb for run in emq.run_until_empty(scheduled=True)]
    assert verbs == ["snooze", "complete"]


@pytest.mark.parametrize(
    ("verb", "runs"),
    [("requeue", [(1, StaleToken), (3, type(None))]), ("remove", [(1, JobGone)])],
)
def test_a_late_run_is_told_of(emq, verb, runs):
    tasks.lose_itself.enqueue(verb)
    assert [(run.token, type(run.refused)) for run in emq.run_until_empty()] == runs


def test_time_passes_without_waiting(emq):
    tasks.pay.using(run_in=3600).enqueue(1, 100)
    emq.advance(3590)
    assert emq.run_until_empty() == []
    emq.advance(11)
    assert len(emq.run_until_empty()) == 1


def test_a_paused_queue_is_not_waited_for(emq):
    job = tasks.pay.enqueue(1, 100)
    scripts.pause(connections.client(), job.queue)
    assert emq.run_until_empty(scheduled=True) == []


def test_a_job_without_end_is_noticed(emq, monkeypatch):
    monkeypatch.setattr("django_emq.testing.sandbox.JOBS_MAX", 5)
    tasks.for_ever.enqueue()
    with pytest.raises(AssertionError, match="5 runs, and no end: .*for_ever goes on"):
        emq.run_until_empty()


def test_inline_runs_each_job_at_once(emq):
    """Also one that a job enqueues, after it; not one that waits for a time."""
    with emq.inline():
        tasks.chain.enqueue(2)
        assert payments() == [(2, 1), (1, 1)]
        tasks.pay.using(run_in=60).enqueue(7, 7)
        with pytest.raises(ValueError, match="boom"):
            tasks.fail.enqueue("boom")
    tasks.pay.enqueue(8, 8)
    assert len(payments()) == 2


def test_a_payload_that_is_not_signed_is_refused_as_by_a_worker(emq, settings):
    tasks.pay.enqueue(1, 100)
    settings.EMQ = {**settings.EMQ, "SIGN_PAYLOADS": True}
    (run,) = emq.run_until_empty(raises=False)
    assert (run.verb, payments()) == ("bury", [])


# -- crashing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["INSERT INTO", "probe_payment", "UPDATE", "RELEASE", "complete"])
def test_a_crash_rolls_back_and_the_job_runs_again(emq, point):
    job = tasks.pay.enqueue(1, 100)
    with emq.crash_at(point):
        ran = emq.run_until_empty(raises=False)
    assert [(run.id, run.token, run.verb) for run in ran] == [
        (job.id, 1, "crash"),
        (job.id, 2, "complete"),
    ]
    assert payments() == [(1, 100)]
    assert Effect.objects.get().token == (1 if point == "complete" else 2)


def test_a_commit_that_never_comes_is_a_rollback(emq):
    tasks.pay_in_one_transaction.enqueue(1, 100)
    with emq.crash_at("RELEASE"):
        assert len(emq.run_until_empty(raises=False)) == 2
    assert payments() == [(1, 100)]


def test_a_crash_that_never_comes_is_an_error(emq):
    tasks.pay_carelessly.enqueue(1, 100)
    with (
        pytest.raises(AssertionError, match=r"No run came to 'no such'.*\n.*INSERT.*\n  complete"),
        emq.crash_at("no such"),
    ):
        emq.run_until_empty()


def one_payment():
    assert payments() == [(1, 100)]


def test_explore_finds_nothing_wrong_with_an_effect(emq):
    """At each statement and before the settlement, by a crash and by another run."""
    tried = emq.explore(lambda: tasks.pay.enqueue(1, 100), one_payment)
    assert not any(": SAVEPOINT" in name for name in tried)
    kinds = [name.split(":")[0].rpartition(" ")[0] for name in tried]
    assert kinds.count("crash at") > 5
    assert kinds.count("another run at") >= 1
    assert tried[-1] == f"another run at {kinds.count('crash at') - 1}: complete"
    assert (payments(), Effect.objects.count(), emq.waiting()) == ([], 0, [])


@pytest.mark.parametrize(
    ("task", "note"),
    [
        (tasks.pay_carelessly, "explored: another run at 0: INSERT INTO"),
        (tasks.pay_twice, "explored: another run at 1: INSERT INTO"),
    ],
)
def test_explore_finds_what_is_wrong(emq, task, note):
    with pytest.raises(AssertionError) as caught:
        emq.explore(lambda: task.enqueue(1, 100), one_payment)
    assert caught.value.__notes__[-1].startswith(note)
    assert payments() == []


def test_explore_says_so_when_a_calm_run_is_wrong(emq):
    with pytest.raises(AssertionError) as caught:
        emq.explore(lambda: tasks.pay.enqueue(2, 100), one_payment)
    assert caught.value.__notes__[-1] == "explored: no disturbance"


@pytest.mark.django_db(transaction=True)
def test_explore_without_a_transaction_around_it(emq):
    """Its own is the one that is rolled back."""
    assert len(emq.explore(lambda: tasks.pay.enqueue(1, 100), one_payment)) > 5
    with pytest.raises(AssertionError):
        emq.explore(lambda: tasks.pay_twice.enqueue(1, 100), one_payment)
    assert payments() == []


def test_explore_bounds_what_it_tries(emq, monkeypatch):
    monkeypatch.setattr("django_emq.testing.sandbox.POINTS_MAX", 3)
    with pytest.raises(AssertionError, match="points, more than 3"):
        emq.explore(lambda: tasks.pay.enqueue(1, 100), one_payment)


def test_a_job_that_falls_due_between_two_looks(emq, probe, monkeypatch):
    """It was not due when a job was asked for, and is when the time until it is asked for."""
    mark.using(run_in=0.05).enqueue("a")
    run_next = emq._run_next

    def slowly():
        ran = run_next()
        pass_ms(emq._client, 60)
        return ran

    monkeypatch.setattr(emq, "_run_next", slowly)
    emq.run_until_empty(scheduled=True)
    assert probe.marks() == ["a"]

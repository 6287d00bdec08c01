"""What becomes of a job when its task has ended, in one way or another."""

import json
import re
import time

import pytest

import django_emq as emq
from django_emq import inspector, scripts
from django_emq.ids import mint
from django_emq.jobs import NewJob
from django_emq.keys import queue_keys
from tests.conformance.wire import books_balance
from tests.helpers import QUEUE, burst
from tests.probe import tasks, verdicts
from tests.processes import Worker, wait_until
from tests.variant import variant


def push(client, payload):
    """Enqueue a payload as it is, as another program might."""
    job = NewJob(mint(), payload)
    assert scripts.enqueue(client, QUEUE, [job], request=job.id, producer="test") == [1]
    return job.id


def dead_row(client, job):
    """The row of a job that must be in the morgue."""
    job_id = job if isinstance(job, str) else job.id
    assert inspector.state(client, QUEUE, job_id) == "dead"
    return inspector.row(client, QUEUE, job_id)


# -- verdicts that a task raises ---------------------------------------------------------------


def test_retry_counts_a_failure_and_waits_as_told(probe, client):
    """emq.Retry(in_=0): the second attempt follows at once, with the next token."""
    verdicts.ask_retry.enqueue(0)
    burst()
    assert probe.marks() == ["attempt 1 token 1", "attempt 2 token 2"]
    assert inspector.totals(client, QUEUE)["retried"] == 1


def test_retry_keeps_its_reason_and_its_delay(probe, client):
    """The job waits in `schedule` for in_ seconds; the row says why."""
    job = verdicts.ask_retry.enqueue(600, reason="451 from the mail server")
    burst()
    assert inspector.state(client, QUEUE, job.id) == "scheduled"
    row = inspector.row(client, QUEUE, job.id)
    assert (row["failures"], row["last_error"]) == ("1", "451 from the mail server")
    seconds, micros = client.raw.time()
    due = client.raw.zscore(queue_keys(QUEUE).schedule, job.id) / 1000
    assert 590 < due - seconds - micros / 1e6 <= 600
    assert "Traceback" not in row.get("traceback", "")


def test_retry_ends_in_the_morgue(client):
    """A retry is a failure: max_attempts bounds it."""
    job = verdicts.always_retry.enqueue()
    burst()
    row = dead_row(client, job)
    assert (row["failures"], row["attempts"], row["last_error"]) == ("2", "2", "not yet")


def test_snooze_spends_no_attempt(probe, client):
    """Three snoozes under max_attempts=1: four runs, always the first attempt."""
    verdicts.ask_snooze.using(max_attempts=1).enqueue(0.01, 3)
    with Worker() as worker:
        probe.wait_for(4)
        wait_until(lambda: inspector.totals(client, QUEUE).get("completed") == 1)
        worker.terminate()
        assert worker.wait() == 0
    assert probe.marks() == [f"attempt 1 token {n}" for n in (1, 2, 3, 4)]
    assert inspector.totals(client, QUEUE).get("failed", 0) == 0


def test_discard_drops_the_job(probe, client):
    """emq.Discard leaves no row; `except Exception` in a task does not swallow it."""
    job = verdicts.ask_discard.enqueue()
    burst()
    assert inspector.state(client, QUEUE, job.id) == "absent"
    assert probe.marks() == []
    assert inspector.totals(client, QUEUE)["discarded"] == 1


def test_bury_goes_to_the_morgue_at_once(client):
    """emq.Bury: no further attempt, with the task's reason or a word that says who did it."""
    given, silent = verdicts.ask_bury.enqueue("wrong address"), verdicts.ask_bury.enqueue()
    burst()
    row = dead_row(client, given)
    assert (row["attempts"], row["last_error"]) == ("1", "wrong address")
    assert dead_row(client, silent)["last_error"] == "buried by its task"


# -- failures and their backoff ----------------------------------------------------------------


def test_failures_end_in_the_morgue(probe, client):
    """max_attempts failures, then dead with the last error and its traceback."""
    job = verdicts.fail_fast.enqueue()
    output = burst()
    assert probe.marks() == ["1", "2", "3"]
    row = dead_row(client, job)
    assert (row["attempts"], row["failures"]) == ("3", "3")
    assert row["last_error"] == "ValueError: no luck"
    assert 'raise ValueError("no luck")' in row["traceback"]
    assert output.count(job.id) == 3


def test_a_task_without_backoff_waits_as_the_settings_say(client):
    """The queue's BACKOFF goes before that of EMQ, the task's own before both."""
    here = tasks.boom.enqueue()
    there = tasks.boom.using(queue="slow").enqueue()
    own = verdicts.fail_fast.enqueue()
    settings = {"BACKOFF": 100, "QUEUES": {"slow": {"BACKOFF": 3000}}}
    burst(QUEUE, "slow", **variant(EMQ=settings))
    now = client.raw.time()[0]
    waits = {
        name: client.raw.zscore(queue_keys(name).schedule, job.id) / 1000 - now
        for name, job in ((QUEUE, here), ("slow", there))
    }
    assert waits[QUEUE] == pytest.approx(100, abs=10)
    assert waits["slow"] == pytest.approx(3000, abs=10)
    assert inspector.state(client, QUEUE, own.id) == "dead"


def test_the_queues_max_attempts(client):
    """MAX_ATTEMPTS of a queue holds for its jobs, the task's own goes before."""
    settings = {"BACKOFF": 0, "QUEUES": {QUEUE: {"MAX_ATTEMPTS": 2}}}
    job, own = tasks.boom.enqueue(), tasks.boom.using(max_attempts=4).enqueue()
    burst(**variant(EMQ=settings))
    assert dead_row(client, job)["failures"] == "2"
    assert dead_row(client, own)["failures"] == "4"


def test_a_callable_backoff_is_asked(probe, client):
    """It gets the number of failures and the error."""
    job = verdicts.fail_with_callable.enqueue()
    burst()
    assert probe.marks()[:2] == ["backoff 1 KeyError", "backoff 2 KeyError"]
    assert dead_row(client, job)["last_error"] == "KeyError: 'gone'"


def test_backoff_none_means_no_retry(client):
    """A callable that answers None sends the job to the morgue, with its error."""
    job = verdicts.fail_for_good.enqueue()
    burst()
    row = dead_row(client, job)
    assert (row["attempts"], row["last_error"]) == ("1", "ValueError: no use to try again")
    assert "Traceback" in row["traceback"]


def test_a_backoff_that_cannot_be_imported_costs_no_worker(probe, client):
    """The failure is kept, and the process lives."""
    job = verdicts.fail_with_lost_policy.enqueue()
    tasks.mark.enqueue("next")
    with Worker() as worker:
        probe.wait_for(1)
        wait_until(lambda: inspector.counts(client, QUEUE)["active"] == 0)
        assert "child" not in worker.output
    row = inspector.row(client, QUEUE, job.id)
    assert row["failures"] == "1"
    assert row.get("stalls", "0") == "0"


# -- what cannot be run or stored ---------------------------------------------------------------


BAD_PAYLOADS = [
    b"\x80\x04\x95 a pickle",
    b"",
    b"{",
    b"[]",
    b"7",
    b"null",
    b'{"args":[]}',
    b'{"task":7}',
    b'{"task":"tests.probe.tasks.mark","args":{"0":"a"}}',
    b'{"task":"tests.probe.tasks.mark","kwargs":["x"]}',
    b'{"task":"\xff"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("processes", ["0", "1"])
def test_bad_payloads_are_buried(client, probe, processes):
    """What is no payload is run by nobody and read by no unsafe loader."""
    jobs = [push(client, payload) for payload in BAD_PAYLOADS]
    tasks.mark.enqueue("good")
    output = burst("--processes", processes)
    rows = [dead_row(client, job) for job in jobs]
    assert {row["attempts"] for row in rows} == {"1"}
    assert all("bad payload" in row["last_error"] for row in rows)
    assert probe.marks() == ["good"]
    assert "Traceback" not in output


def test_wrong_arguments_are_a_failure(client):
    """A call that does not fit the function fails like any other error."""
    job = push(client, '{"task":"tests.probe.tasks.mark","args":[1,2,3]}')
    burst(**variant(EMQ={"MAX_ATTEMPTS": 1}))
    assert "TypeError" in dead_row(client, job)["last_error"]


ERRORS = {
    "unspeakable": "tests.probe.verdicts.Unspeakable: (its text could not be read)",
    "exit": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt",
    "group": "ExceptionGroup: several (2 sub-exceptions)",
    "nothing": "ValueError",
}


@pytest.mark.parametrize("processes", ["0", "1"])
def test_B56_exception_or_result_that_cannot_be_stored(probe, client, processes):
    """Each is a failure, retried once and then dead with a text; the worker takes the next job.

    So is a result that is no JSON or too large, where it is to be kept; else it is dropped.
    """
    task = verdicts.raise_one if processes == "1" else verdicts.araise_one
    jobs = {kind: task.enqueue(kind) for kind in ERRORS}
    results = {kind: verdicts.answer.enqueue(kind) for kind in ("object", "large")}
    free = verdicts.forget.enqueue("ran")
    tasks.mark.enqueue("next")
    output = burst("--processes", processes)
    assert probe.marks() == ["ran", "next"]
    rows = {kind: dead_row(client, job) for kind, job in jobs.items()}
    failed = {kind: dead_row(client, job) for kind, job in results.items()}
    assert {row["failures"] for row in (*rows.values(), *failed.values())} == {"2"}
    assert {kind: row["last_error"] for kind, row in rows.items()} == ERRORS
    no_json, large = failed["object"]["last_error"], failed["large"]["last_error"]
    assert "TypeError: The result cannot be kept: Object of type object is not JSON" in no_json
    assert "10000002 bytes, MAX_PAYLOAD allows 1048576" in large
    assert inspector.state(client, QUEUE, free.id) == "absent"
    assert "KeyError: 'two'" in rows["group"]["traceback"]
    assert "child" not in output
    books_balance(client, QUEUE)


def test_results_are_kept_for_their_time(client):
    """result_ttl keeps the row in `done`, with the result as JSON."""
    plain, none = verdicts.answer.enqueue("plain"), verdicts.answer.enqueue("none")
    asynchronous = verdicts.aanswer.enqueue([1])
    burst()
    assert {inspector.state(client, QUEUE, j.id) for j in (plain, none, asynchronous)} == {"done"}
    rows = {j.id: inspector.row(client, QUEUE, j.id) for j in (plain, none, asynchronous)}
    expected = {"sum": 3, "text": "\u00e4\ud83d", "list": [1.5, None, True]}
    assert json.loads(rows[plain.id]["result"]) == expected
    assert rows[none.id]["result"] == "null"
    assert rows[asynchronous.id]["result"] == "[1]"
    left = client.raw.zscore(queue_keys(QUEUE).done, plain.id) / 1000 - client.raw.time()[0]
    assert 580 < left <= 601
    books_balance(client, QUEUE)


# -- the log -------------------------------------------------------------------------------------


def test_log_lines_carry_id_task_token_and_duration(probe):
    """At DEBUG each settled job has a line, a failed one has it at WARNING."""
    good, bad = tasks.mark.enqueue("a"), tasks.boom.enqueue("no luck")
    output = burst(LOG_LEVEL="DEBUG")
    (line,) = [line for line in output.splitlines() if good.id in line and "complete" in line]
    assert "DEBUG" in line
    assert re.search(r"tests\.probe\.tasks\.mark \(token 1\) after \d+\.\d{3} s", line)
    (line,) = [line for line in output.splitlines() if bad.id in line]
    assert "WARNING" in line
    assert re.search(r"boom \(token 1\) failed after \d+\.\d{3} s, runs again in", line)
    assert "ValueError: no luck" in line


@pytest.mark.parametrize("task", [tasks.mark_then_nap, verdicts.mark_nap_boom])
def test_a_refused_settlement_is_info_with_both_tokens(probe, client, task):
    """The lease was lost meanwhile: no error, no retry, and the other holder's job untouched."""
    job = task.enqueue("a", 1)
    with Worker("--no-sweep", "--lease", "30") as worker:
        probe.wait_for(1)
        scripts.extend(client, QUEUE, [(job.id, 1)], lease_ms=0)
        time.sleep(0.01)  # the lease must have lapsed
        assert scripts.reap(client, QUEUE, max_stalls=9).returned == [job.id]
        (stolen,) = scripts.claim(client, QUEUE, worker="other", request="1", lease_ms=60_000).jobs
        assert stolen.token == 2
        line = worker.wait_for("refused for job")
        tasks.mark.enqueue("next")
        probe.wait_for(2)
    assert "INFO" in line
    assert job.id in line
    assert "yours 1, row 2" in line
    assert "ERROR" not in worker.output
    row = inspector.row(client, QUEUE, job.id)
    assert (row["state"], row["attempts"], row.get("failures", "0")) == ("active", "2", "0")
    assert scripts.complete(client, QUEUE, [(job.id, 2, "")]) == [1]


def test_the_run_can_see_that_its_lease_is_lost(probe, client):
    """check() raises, hooks and receivers are called; an async task is cancelled."""
    jobs = [verdicts.mark_when_lost.enqueue(), verdicts.amark_when_cancelled.enqueue()]
    with Worker("--no-sweep", "--lease", "1", "--threads", "2") as worker:
        probe.wait_for(2)
        scripts.extend(client, QUEUE, [(job.id, 1) for job in jobs], lease_ms=0)
        time.sleep(0.01)  # the leases must have lapsed
        scripts.reap(client, QUEUE, max_stalls=9)
        scripts.claim(client, QUEUE, worker="other", request="1", lease_ms=60_000, count=2)
        assert sorted(probe.wait_for(7)[2:]) == [
            "cancelled",
            "hook",
            "lost",
            "signal tests.probe.verdicts.amark_when_cancelled",
            "signal tests.probe.verdicts.mark_when_lost",
        ]
        worker.wait_for("lease lost")
        line = worker.wait_for("release refused for job")
    assert jobs[0].id in line
    assert "ERROR" not in worker.output


def test_verdicts_refuse_bad_times():
    """A wrong in_ is an error in the task, where the mistake is."""
    for wrong in (-1, True, "soon", float("nan"), 1e10):
        with pytest.raises(emq.InvalidOption, match="in_ is"):
            emq.Retry(in_=wrong)
        with pytest.raises(emq.InvalidOption, match="in_ is"):
            emq.Snooze(wrong)

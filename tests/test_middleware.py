"""Middleware: what is run around each job."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_emq import inspector
from django_emq.middleware import chains
from tests.helpers import QUEUE
from tests.probe import around, tasks
from tests.processes import Worker, manage
from tests.variant import variant


def run(probe, *names):
    """The marks of a plain and of an async job that run within these."""
    tasks.mark.enqueue("plain job")
    tasks.aprobe.enqueue(x="async job")
    paths = [f"tests.probe.around.{name}" for name in names]
    with Worker("--burst", **variant(EMQ={"MIDDLEWARE": paths})) as worker:
        worker.wait()
    marks = probe.marks()
    at = marks.index("plain job") if "plain job" in marks else None
    return marks, at, worker


def test_plain_and_async_jobs_are_run_within_both(probe, client):
    """The first is the outermost; one for plain jobs is adapted to async ones."""
    marks, _, _ = run(probe, "both", "counted")
    assert sorted(marks) == sorted(
        [
            *("both plain True", "plain before mark ['plain job'] {}", "plain job", "plain after"),
            *("both async True", "plain before aprobe [] {'x': 'async job'}", "async job"),
            "plain after",
        ]
    )
    ours = [mark for mark in marks if "async" not in mark and mark != "plain after"]
    assert ours == ["both plain True", "plain before mark ['plain job'] {}", "plain job"]
    assert inspector.totals(client, QUEUE)["completed"] == 2


def test_one_for_async_jobs_is_adapted_to_plain_ones(probe, client):
    """A change of threads, and no change for the task: it knows its job."""
    marks, at, _ = run(probe, "waits", "both")
    assert marks.count("waits") == 2
    assert marks[at - 2 : at] == ["waits", "both plain True"] or "both plain True" in marks
    assert "both async True" in marks
    assert inspector.totals(client, QUEUE)["completed"] == 2


def test_one_may_answer_in_place_of_the_task(probe, client):
    """A class with async instances: neither task runs, both jobs are done."""
    marks, _, _ = run(probe, "Instead")
    assert sorted(marks) == ["instead of aprobe", "instead of mark"]
    assert inspector.totals(client, QUEUE)["completed"] == 2


def test_what_one_raises_the_job_has_raised(probe, client):
    """Bury goes to the morgue."""
    marks, _, worker = run(probe, "refuses")
    assert marks == []
    assert inspector.counts(client, QUEUE)["dead"] == 2
    assert "not today" in worker.output


def test_the_jobs_of_tests_run_within_it(emq, settings, probe):
    """The fixture for projects does as a worker does."""
    settings.EMQ = {**settings.EMQ, "MIDDLEWARE": ["tests.probe.around.counted"]}
    emq.run_until_empty()
    tasks.mark.enqueue("a")
    emq.run_until_empty()
    assert probe.marks() == ["plain before mark ['a'] {}", "a", "plain after"]


def test_a_liar_is_found_out():
    """Said to do async jobs, it makes a plain function of a coroutine function."""
    with pytest.raises(ImproperlyConfigured, match="async_capable"):
        chains(["tests.probe.around.liar"])
    assert around.liar(len)([]) == 0


def test_no_worker_starts_with_one_that_is_not_there(client):
    """The check says which."""
    done = manage("emq_worker", "--burst", **variant(EMQ={"MIDDLEWARE": ["no.such.thing"]}))
    assert done.returncode == 1
    assert "E016" in done.stderr
    assert "no.such.thing" in done.stderr

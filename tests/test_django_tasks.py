"""The backend for Django's tasks API: the suite for backends, and what is this backend's own."""

import logging
import runpy
import sys
from contextvars import copy_context
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import transaction
from django.test import TestCase, override_settings
from django.utils import timezone

import django_emq as emq
from django_emq import compat, inspector, operators, queue, registry, scripts
from django_emq.backend import EMQBackend, EMQContext, EMQTask
from django_emq.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from django_emq.conformance import TaskBackendSuite, tasks
from django_emq.context import enter
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from tests import helpers
from tests.helpers import QUEUE
from tests.probe import native
from tests.probe import tasks as own
from tests.test_on_commit import rolled_back

BACKENDS = compat.BaseTaskBackend.__module__.removesuffix(".base")
READY, RUNNING, FAILED, SUCCESSFUL = TaskResultStatus


def burst() -> None:
    """Run what is ready in this process, in threads of their own, and return when nothing is."""
    options = ("--burst", "--processes", "0", "--threads", "2", "--no-sweep")
    call_command("emq_worker", *options, verbosity=0)


class TestConformance(TaskBackendSuite, TestCase):
    """Every case, with a worker in this process."""

    def run_enqueued(self) -> None:
        burst()


@override_settings(TASKS={"default": {"BACKEND": f"{BACKENDS}.immediate.ImmediateBackend"}})
class TestSuite(TaskBackendSuite, TestCase):
    """The suite asks for no more than Django's own backend does."""


@pytest.fixture
def signals():
    """What receivers of Django's signals are told: name, id, status and attempts."""
    told = []

    def started(task_result, **_):
        told.append(("started", task_result.id, task_result.status, task_result.attempts))

    def finished(task_result, **_):
        told.append(("finished", task_result.id, task_result.status, task_result.attempts))

    task_started.connect(started)
    task_finished.connect(finished)
    yield told
    task_started.disconnect(started)
    task_finished.disconnect(finished)


def ended(result):
    burst()
    result.refresh()
    return result


# -- attempts ---------------------------------------------------------------------------------


def test_a_failed_attempt_is_repeated(probe, signals):
    """An error and a worker for each attempt; one start each, and one end."""
    result = ended(native.flaky.enqueue(2))
    assert (result.status, result.return_value) == (SUCCESSFUL, [3, 3, 3, False])
    assert result.attempts == len(result.worker_ids) == 3
    assert all(result.worker_ids)
    assert [error.exception_class_path for error in result.errors] == ["builtins.LookupError"] * 2
    assert [f"attempt {n}" in error.traceback for n, error in enumerate(result.errors, 1)] == [
        True,
        True,
    ]
    assert result.started_at < result.last_attempted_at <= result.finished_at
    assert probe.marks() == ["LookupError after 1", "LookupError after 2"]
    assert signals == [
        *(("started", result.id, RUNNING, n) for n in (1, 2, 3)),
        ("finished", result.id, SUCCESSFUL, 3),
    ]


def test_the_last_attempt_fails(probe, signals):
    """FAILED at max_attempts, with all of the errors; and the queue's own books say the same."""
    result = ended(native.flaky.enqueue(9))
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 3, 3)
    assert signals[-1] == ("finished", result.id, FAILED, 3)
    assert len(signals) == 4
    assert native.flaky.get_result(result.id) == result


def test_between_two_attempts_the_job_is_ready(client):
    """Not finished, with the error of the first one."""
    result = native.flaky.using(backoff=600).enqueue(1)
    (job,) = scripts.claim(client, QUEUE, worker="w", request=1, lease_ms=1000).jobs
    result.refresh()
    assert (result.status, result.worker_ids, result.finished_at) == (RUNNING, ["w"], None)
    scripts.retry(client, QUEUE, [(job.id, 1, 600_000, "KeyError: 'x'", "T")], max_attempts=3)
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (READY, False, 1)
    assert asdict(result)["errors"] == [
        {"exception_class_path": "builtins.KeyError", "traceback": "T"}
    ]


@pytest.mark.parametrize("task", [native.robbed, native.arobbed])
def test_a_run_that_lost_its_lease_tells_nothing(client, signals, task):
    """The result is that of the job, which another worker holds now."""
    result = ended(task.enqueue())
    assert signals == [("started", result.id, RUNNING, 1)]
    assert (result.status, result.attempts) == (RUNNING, 2)
    assert result.worker_ids[1] == "thief"
    scripts.complete(client, QUEUE, [(result.id, 2, "7")], keep_ms=60_000)
    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, 7)


def test_a_snooze_is_an_attempt_without_an_error(signals):
    """Two claims, no error, one end."""
    result = ended(native.snoozing.enqueue())
    assert (result.return_value, result.errors, result.attempts) == (2, [], 2)
    assert [name for name, *_ in signals] == ["started", "started", "finished"]


def test_a_discarded_job_has_failed_and_is_gone(signals):
    """It leaves no trace, as everywhere in the queue."""
    result = native.unwanted.enqueue()
    burst()
    assert signals[-1] == ("finished", result.id, FAILED, 1)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_jobs_that_others_ended(client):
    """Cancelled by an operator, or lost too often: FAILED, with the reason as the error."""
    cancelled, lost, forced = [tasks.nothing.enqueue() for _ in range(3)]
    operators.cancel(client, QUEUE, [cancelled.id], by="anna")
    claims = scripts.claim(client, QUEUE, worker="w", request=1, lease_ms=60_000, count=2).jobs
    held = [(job.id, job.token) for job in claims]
    scripts.extend(client, QUEUE, held[:1], lease_ms=0)
    scripts.reap(client, QUEUE, max_stalls=1)
    operators.requeue(client, QUEUE, [forced.id])
    for result in (cancelled, lost, forced):
        result.refresh()
    assert (cancelled.status, cancelled.attempts) == (FAILED, 0)
    assert asdict(cancelled)["errors"] == [
        {
            "exception_class_path": "django_emq.exceptions.Bury",
            "traceback": "cancelled by anna",
        }
    ]
    assert (lost.status, lost.attempts) == (FAILED, 1)
    assert lost.errors[0].exception_class is emq.StaleToken
    assert lost.errors[0].traceback.startswith("stalled")
    # The operator raised the token: that attempt had no worker.
    assert (forced.status, forced.worker_ids, forced.errors) == (READY, ["w", ""], [])


def test_very_many_attempts_stay_countable(client, redis):
    """The row keeps the first and the newest workers, and the number of all."""
    result = tasks.nothing.enqueue()
    key = queue_keys(QUEUE).job(result.id)
    claims = "".join(f"worker-{n}@{n}\n" for n in range(1, 1501))
    redis.hset(key, mapping={"claims": claims, "attempts": 1501, "worker": "w", "started_at": 5})
    for request in range(3):
        (job,) = scripts.claim(client, QUEUE, worker="w", request=request, lease_ms=1000).jobs
        scripts.release(client, QUEUE, [(job.id, job.token)])
    assert redis.hstrlen(key, "claims") <= 16 * 1024
    result.refresh()
    assert result.attempts == job.token == 1504
    assert result.worker_ids[0] == "worker-1"
    assert result.worker_ids[-2:] == ["w", "w"]
    assert result.worker_ids[1] == ""
    assert result.started_at == datetime.fromtimestamp(0.001, UTC)


@pytest.mark.parametrize("verb", ["retry", "bury"])
def test_very_long_errors_are_bounded(client, redis, verb):
    """The newest are kept, and the last one always."""
    result = tasks.nothing.enqueue()
    key = queue_keys(QUEUE).job(result.id)
    old = "".join(f'["retry","old {n}","{"x" * 10_000}"]\n' for n in range(9))
    redis.hset(key, "errors", old)
    (job,) = scripts.claim(client, QUEUE, worker="w", request=1, lease_ms=1000).jobs
    trace = "\x01" * 16_000  # six times as long in JSON
    if verb == "retry":
        scripts.retry(client, QUEUE, [(job.id, 1, 0, "new: é", trace)], max_attempts=1)
    else:
        scripts.bury(client, QUEUE, [(job.id, 1, "new: é", trace)])
    result.refresh()
    assert [error.traceback for error in result.errors] == [trace]


def test_other_jobs_keep_no_history(client):
    """The plain job's row has none of the fields."""
    job = own.mark.using(max_attempts=9).enqueue(1)
    for request in range(2):
        (claimed,) = scripts.claim(client, QUEUE, worker="w", request=request, lease_ms=9).jobs
        scripts.retry(client, QUEUE, [(job.id, claimed.token, 0, "e", "t")], max_attempts=9)
    assert not {"backend", "claims", "errors"} & set(inspector.row(client, QUEUE, job.id))


# -- what a worker runs -----------------------------------------------------------------------


def test_a_path_leads_to_tasks_only(probe, client):
    """A plain function, a function of a module that no app has, and a path to nothing."""
    paths = ["tests.probe.native.plain", "os.getcwd", "antigravity.fly", "tests.probe.native.no"]
    for path in paths:
        with pytest.raises(emq.UnknownTask):
            registry.get(path)
    assert "antigravity" not in sys.modules
    job = queue.enqueue(registry.Task(native.plain, "tests.probe.native.plain"), 1)
    burst()
    assert probe.marks() == []
    assert inspector.row(client, QUEUE, job.id)["last_error"].startswith(
        "django_emq.exceptions.UnknownTask"
    )


def test_a_module_that_breaks_is_a_failed_attempt(monkeypatch, tmp_path):
    """It belongs to an app and cannot be imported: the reason is in the error."""
    (tmp_path / "broken.py").write_text("1 / 0")
    import tests.probe as package

    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    with pytest.raises(emq.UnknownTask, match=r"broken raises ZeroDivisionError"):
        registry.get("tests.probe.broken.task")


def test_a_job_needs_a_backend_that_is_this_one(settings):
    """Without an alias of EMQBackend in TASKS the tasks of Django's API are not run."""
    dummy = f"{BACKENDS}.dummy.DummyBackend"
    both = {"default": {"BACKEND": dummy}, "emq": {"BACKEND": "django_emq.backend.EMQBackend"}}
    settings.TASKS = both
    assert registry.get(tasks.nothing.module_path).keep_ms == 86_400_000
    result = tasks.echo.using(backend="emq").enqueue(1)
    assert ended(result).return_value == [[1], {}]
    with pytest.raises(TaskResultDoesNotExist):
        EMQBackend("third", {}).get_result(result.id)
    settings.TASKS = {"default": {"BACKEND": dummy}}
    with pytest.raises(emq.UnknownTask):
        registry.get(tasks.nothing.module_path)


def test_in_the_tests_of_a_project(probe, signals, emq):
    """`django_emq.testing` runs them as it runs the queue's own, signals included."""
    result = native.flaky.enqueue(1)
    emq.run_until_empty(raises=False)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (SUCCESSFUL, 2, 1)
    assert [name for name, *_ in signals] == ["started", "started", "finished"]
    with emq.inline():
        assert tasks.aecho.get_result(tasks.aecho.enqueue(1).id).return_value == [[1], {}]


def test_both_kinds_share_a_queue(probe):
    """Jobs of Django's tasks and of the queue's own, in one worker and one batch."""
    results = []
    for n in range(20):
        results.append(tasks.echo.enqueue(n))
        results.append(tasks.aecho.enqueue(n))
        own.mark.enqueue(n)
    emq.enqueue("django_emq.conformance.tasks.echo", "by name")
    burst()
    assert sorted(map(int, probe.marks())) == list(range(20))
    for number, result in enumerate(results):
        result.refresh()
        assert result.return_value == [[number // 2], {}]


@pytest.mark.parametrize(
    ("lost", "raised"),
    [("removed", emq.JobGone), ("robbed", emq.StaleToken), ("away", emq.Snooze)],
)
def test_a_run_that_must_not_begin(probe, client, settings, signals, lost, raised):
    """Its row is gone, another worker has the job, or the server is away: the task is not called.

    The last is no failure: the job waits for the server.
    """
    result = native.wait_for_go.enqueue("x")
    (job,) = scripts.claim(client, QUEUE, worker="w", request=1, lease_ms=60_000).jobs
    if lost == "removed":
        operators.remove(client, QUEUE, [result.id], force=True)
    elif lost == "robbed":
        operators.requeue(client, QUEUE, [result.id])
    else:
        helpers.point_at(settings, "redis://127.0.0.1:1/0")
    scope = copy_context()
    scope.run(enter, emq.JobContext(job, 60, lambda: 0.0))
    run = registry.get(native.wait_for_go.module_path).func
    with pytest.raises(raised):
        scope.run(run, "x")
    assert (probe.marks(), signals) == ([], [])


def test_an_async_job_is_told_before_its_process_ends(probe):
    """Also when the receiver is slow and nothing else is left to do."""
    native.slowly_told.enqueue()
    assert "Traceback" not in helpers.burst()
    assert probe.marks() == ["told"]


def test_a_receiver_that_raises_costs_nothing(caplog):
    """The job is settled, the worker goes on, and the log has the traceback."""

    def breaks(**_):
        raise RuntimeError("a receiver")

    task_finished.connect(breaks)
    try:
        with caplog.at_level(logging.ERROR, "django_emq"):
            results = [tasks.nothing.enqueue(), tasks.anothing.enqueue(), tasks.nothing.enqueue()]
            burst()
    finally:
        task_finished.disconnect(breaks)
    for result in results:
        result.refresh()
        assert result.status == SUCCESSFUL
    assert caplog.text.count("a receiver failed at the end of") == 3


def test_secrets_stay_out_of_results(signals):
    """By the name of the parameter, also behind a context; in the row and for receivers."""
    result = ended(native.login.enqueue("hunter2"))
    assert "hunter2" not in result.errors[0].traceback
    assert "no user has" in result.errors[0].traceback


# -- options ----------------------------------------------------------------------------------


def test_options_of_a_task_reach_its_row(client):
    """By `using`, and by the decorator where Django hands them on."""
    task = tasks.nothing.using(max_attempts=7, max_stalls=8, lease=timedelta(seconds=90))
    assert isinstance(task, EMQTask)
    row = inspector.row(client, QUEUE, task.enqueue().id)
    assert (row["max_attempts"], row["max_stalls"], row["lease_ms"]) == ("7", "8", "90000")
    assert 90_000 in registry.leases()
    assert inspector.row(client, QUEUE, tasks.nothing.enqueue().id)["max_attempts"] == "1"
    if django.VERSION < (6, 0) or django.VERSION >= (6, 1):
        declared = compat.task(max_attempts=4)(native.plain)
        assert inspector.row(client, QUEUE, declared.enqueue().id)["max_attempts"] == "4"


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_stalls": 1001},
        {"lease": 0.5},
        {"backoff": -1},
        {"run_after": timedelta(seconds=-1)},
    ],
)
def test_bad_options_of_a_task(options):
    """InvalidTask, where the task is declared."""
    with pytest.raises(InvalidTask):
        tasks.nothing.using(**options)


def test_a_queue_that_no_key_can_have(settings):
    """Also where QUEUES allows any."""
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
    with pytest.raises(InvalidTask, match="Queue name 'the mail' is not allowed"):
        tasks.nothing.using(queue_name="the mail")
    result = tasks.nothing.using(queue_name="any-queue").enqueue()
    assert tasks.nothing.get_result(result.id) == result


def test_a_result_is_found_though_its_queue_left_the_settings(settings):
    """QUEUES says what may be enqueued, not what was."""
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["a", "b"]}}
    result = tasks.nothing.using(queue_name="b").enqueue()
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
    assert tasks.nothing.get_result(result.id) == result


def test_run_after_a_time_span(client):
    """From now by the server's clock; the result has the instant."""
    before = timezone.now()
    result = tasks.nothing.using(run_after=timedelta(hours=1)).enqueue()
    hour = result.task.run_after - before
    assert timedelta(hours=1) <= hour < timedelta(hours=1, minutes=5)
    assert tasks.nothing.get_result(result.id) == result
    (row,) = inspector.page(client, QUEUE, "schedule").rows
    assert 3300 < row.left_s <= 3600


def test_without_time_zones(settings):
    """USE_TZ = False: all times are naive, and equal when they are read again."""
    settings.USE_TZ = False
    later = datetime(2036, 1, 1)
    result = tasks.nothing.using(run_after=later).enqueue()
    assert result.enqueued_at.tzinfo is None
    assert tasks.nothing.get_result(result.id) == result
    done = ended(tasks.nothing.enqueue())
    assert done.finished_at.tzinfo is None


def test_results_are_kept_for_their_time(settings, client):
    """RESULT_TTL, then gone; and no more of them than DONE_MAX."""
    options = {"OPTIONS": {"RESULT_TTL": timedelta(hours=2)}}
    settings.TASKS = {"default": {**settings.TASKS["default"], **options}}
    results = [ended(tasks.nothing.enqueue()) for _ in range(3)]
    rows = inspector.page(client, QUEUE, "done").rows
    assert all(7000 < row.left_s <= 7200 for row in rows)
    settings.EMQ = {**settings.EMQ, "DONE_MAX": 1}
    Reaper(client, (QUEUE,), interval=1).run_once()
    with pytest.raises(TaskResultDoesNotExist):
        results[0].refresh()
    results[2].refresh()
    assert [row.id for row in inspector.page(client, QUEUE, "done").rows] == [results[2].id]


def test_bad_options_of_the_backend(settings):
    """The first enqueue says what the checks say; declaring a task and the checks still work."""
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"RESULT_TLL": 5}}}
    task = tasks.nothing.using(priority=1)
    with pytest.raises(ImproperlyConfigured, match="'RESULT_TTL'"):
        task.enqueue()
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_emq"]
    (message,) = task_backends["default"].check()
    assert message.id == "django_emq.E020"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["on_commit", "outbox"])
def test_after_the_commit(way):
    """The result is known before, can be read after, and never is after a rollback."""
    task = tasks.echo.using(**{way: True})
    with rolled_back():
        never = task.enqueue(0)
    with transaction.atomic():
        result = task.enqueue(1)
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
    before = asdict(result)
    result.refresh()
    assert asdict(result) == before
    assert ended(result).return_value == [[1], {}]
    with pytest.raises(TaskResultDoesNotExist):
        never.refresh()


def test_a_queue_in_partitions(settings):
    """The result names the queue that people know."""
    settings.EMQ = {**settings.EMQ, "QUEUES": {"default": {"PARTITIONS": 3}}}
    results = [tasks.echo.using(partition_key=f"k{n}").enqueue(n) for n in range(6)]
    burst()
    for number, result in enumerate(results):
        result.refresh()
        assert result.return_value == [[number], {}]
        assert tasks.echo.get_result(result.id).task.queue_name == "default"


def test_nan_is_no_json():
    """It is refused with its place, since a worker could not read it."""
    with pytest.raises(emq.InvalidArguments, match=r"args\[0\]: nan is not JSON"):
        tasks.nothing.enqueue(float("nan"))


def test_keys_become_text():
    """As JSON has them, in what the caller sees too."""
    result = tasks.echo.enqueue({1: {None: 2}})
    assert result.args == [{"1": {"null": 2}}]
    assert ended(result).return_value == [result.args, {}]


def test_the_context_is_the_queues_own(client):
    """Beside Django's fields it has the token and the job."""
    assert issubclass(EMQContext, compat.TaskContext)
    assert ended(native.flaky.enqueue(0)).return_value == [1, 1, 1, False]


def test_without_the_package(monkeypatch):
    """Django 5.2 without the backport: one sentence; later Djangos never look for it."""
    monkeypatch.setitem(sys.modules, "django_tasks", None)
    if django.VERSION >= (6, 0):
        assert runpy.run_path(compat.__file__)["LOGGER"] == "django.tasks"
        return
    with pytest.raises(ImportError, match=r"pip install 'django-emq\[tasks\]'"):
        runpy.run_path(compat.__file__)

"""Time limits: a run that takes too long fails, and nothing else is harmed by it."""

import gc
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest

import django_emq as emq
from django_emq import conf, inspector, registry
from django_emq.worker.hard_limits import fail
from django_emq.worker.limits import SIGNAL, Limits, of
from tests.conformance import wire
from tests.conformance.wire import claims
from tests.helpers import QUEUE, burst
from tests.probe import limits, tasks
from tests.processes import ROOT, Worker, environment, wait_until

WAYS = {"main thread": "1", "thread": "2"}
THREADS = pytest.mark.parametrize("threads", WAYS.values(), ids=WAYS)


def totals(client):
    return inspector.totals(client, QUEUE)


def errors(client):
    """The last error of each dead job."""
    return [row.error for row in inspector.page(client, QUEUE, "dead").rows]


@contextmanager
def registered(task):
    """The task is known under its name during the block."""
    registry.register(task)
    try:
        yield
    finally:
        del registry._tasks[task.name]


def over(seconds):
    return (
        "django_emq.exceptions.TimeLimitExceeded: The job ran longer than its timeout of "
        f"{seconds} s."
    )


# -- the soft limit ---------------------------------------------------------------------------


@THREADS
def test_a_run_that_takes_too_long_fails(probe, client, threads):
    """With a reason, and a traceback that says where it was; an `except Exception` is no way out.

    In the main thread a call to the system is interrupted too.
    """
    slow = [limits.spin, limits.swallow, *([limits.sleep] if threads == "1" else [])]
    emq.enqueue_many([*(task.job(task.func.__name__) for task in slow), tasks.mark.job("next")])
    burst("--threads", threads)
    assert sorted(probe.marks()) == sorted(["next", *(task.func.__name__ for task in slow)])
    assert errors(client) == [over(0.2)] * len(slow)
    for row in inspector.page(client, QUEUE, "dead").rows:
        assert "tests/probe/limits.py" in inspector.row(client, QUEUE, row.id)["traceback"]
    assert (totals(client)["failed"], totals(client)["completed"]) == (len(slow), 1)


@THREADS
def test_a_task_may_catch_the_limit(probe, client, threads):
    """And end well, or go on with its connections; it is not raised a second time."""
    limits.tidy.enqueue("x")
    limits.catch_and_ask.enqueue("y", "no-such-list")
    burst("--threads", threads)
    assert sorted(probe.marks()) == ["x 0.2 0.0", "y"]
    assert totals(client)["completed"] == 2


@THREADS
def test_a_limit_in_the_middle_of_a_call_to_redis(probe, client, threads):
    """Jobs that come after it, on the same threads, get the answers to their own questions."""
    limits.wait_for_redis.enqueue("x", "no-such-list")
    emq.enqueue_many([limits.ask.job(n) for n in range(4)])
    burst("--threads", threads)
    assert sorted(probe.marks()) == ["0", "1", "2", "3", "x"]
    assert errors(client) == [over(0.2)]


@THREADS
def test_a_log_handler_is_not_interrupted(probe, client, threads):
    """Its lock would stay locked, and the whole process stand still at its next line."""
    limits.log_slowly.enqueue("x")
    burst("--threads", threads)
    assert probe.marks() == ["x logged", "x ended"]
    assert errors(client) == [over(0.2)]


def test_an_async_task_is_cancelled(probe, client):
    """Those beside it on the loop are not."""
    emq.enqueue_many([limits.atidy.job("x"), tasks.anap_then_mark.job(0.5, "beside")])
    burst()
    assert probe.marks() == ["x", "beside"]
    assert errors(client) == [over(0.2)]


# -- whose limit ------------------------------------------------------------------------------


def test_limits_come_from_the_task_or_the_settings(settings):
    """Those of the task go first; 0 is none, and without a timeout nothing is killed."""
    queues = {"calm": {"TIMEOUT": None}, "strict": {"TIMEOUT": 1, "KILL_AFTER": None}}
    settings.EMQ = {**settings.EMQ, "TIMEOUT": 10, "KILL_AFTER": 5, "QUEUES": queues}

    def found(queue, **options):
        return of(emq.Task(print, "p", **options), queue, conf.settings())

    assert [found(queue) for queue in ("other", "calm", "strict")] == [(10, 5), (0, 0), (1, 0)]
    assert found("calm", timeout=2, kill_after=1) == (2, 1)
    assert found("other", timeout=timedelta(seconds=2)) == (2, 5)
    assert found("other", timeout=0) == (0, 0)
    assert found("other", timeout=2, kill_after=0) == (2, 0)
    assert Limits().default


@pytest.mark.parametrize("name", ["timeout", "kill_after"])
@pytest.mark.parametrize("value", [-1, True, "5", float("inf")])
def test_what_is_no_time_is_refused(name, value):
    with pytest.raises(emq.InvalidOption, match=f"{name} is"):
        emq.Task(print, "p", **{"timeout": 1, name: value})


def test_kill_after_needs_a_timeout():
    with pytest.raises(emq.InvalidOption, match="from whose end it counts. Give both"):
        emq.Task(print, "p", kill_after=5)


# -- the end of a run -------------------------------------------------------------------------


@contextmanager
def limits_in(place):
    """Limits of this process, and what calls a function in the main thread or in another one."""
    own, raised = Limits(), []

    def call(function):
        if place == "main":
            function()
            return
        thread = threading.Thread(target=lambda: raised.append(_outcome(function)))
        thread.start()
        thread.join()
        if raised[-1]:
            raise raised[-1]

    try:
        yield own, call
    finally:
        own.close()


def _outcome(function):
    try:
        function()
    except BaseException as error:
        return error


PLACES = pytest.mark.parametrize("place", ["main", "thread"])


@PLACES
def test_a_limit_at_the_very_end_of_a_run_stays_in_it(place):
    """Whenever it comes, it comes out of the run, or never: not into what follows."""
    leaks, caught = [], [0, 0]

    def spin(end):  # a function of its own, as a task is: see docs/limits.md on Python 3.13
        while time.monotonic() < end:
            pass

    def work():
        for number in range(1500):
            try:
                guard = own.begin(0.0002 + number % 10 * 0.00003)
                # Most end with their limit, a few later, and one far too late.
                end = guard.at + (60 if number == 700 else number % 3 * 0.0001)
                try:
                    spin(end)
                finally:
                    guard.end()
            except emq.TimeLimitExceeded:
                caught[1] += 1
            else:
                caught[0] += 1
            try:  # the next run would begin here
                sum(range(200))
            except BaseException as error:
                leaks.append((number, error))

    every = sys.getswitchinterval()
    gc.disable()  # Python loses what comes up in a callback of its collector
    sys.setswitchinterval(0.000001)  # threads take turns between any two steps
    try:
        with limits_in(place) as (own, call):
            call(work)
    finally:
        sys.setswitchinterval(every)
        gc.enable()
    assert leaks == []
    assert sum(caught) == 1500
    assert caught[1] > 0


def test_a_run_that_ends_while_it_is_looked_at():
    """The look at its variables takes time: its end waits for the exception."""
    looked, leaks = threading.Event(), []

    class Kind(type):
        def __getattr__(cls, name):
            looked.set()
            time.sleep(0.1)
            raise AttributeError(name)

    class Slow(metaclass=Kind):
        pass

    def work():
        guard = own.begin(0.01)
        try:
            while not looked.is_set():
                _thing = Slow()
        finally:
            guard.end()

    def run_and_go_on():
        with pytest.raises(emq.TimeLimitExceeded):
            work()
        try:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass
        except BaseException as error:
            leaks.append(error)

    with limits_in("thread") as (own, call):
        call(run_and_go_on)
    assert leaks == []


TRACED = """
import threading
import time

import django

django.setup()

from django_emq.exceptions import TimeLimitExceeded
from django_emq.worker.limits import Limits

looked = threading.Event()


class Kind(type):
    def __getattr__(cls, name):  # as the run's variables are looked at
        looked.set()
        time.sleep(0.1)
        raise AttributeError(name)


class Slow(metaclass=Kind):
    pass


def trace(frame, event, arg):
    return trace


def endless():
    while True:
        pass


def until_looked_at():
    thing = Slow()
    while not looked.is_set():
        pass


def run():
    for work in (endless, endless, until_looked_at):
        try:
            guard = own.begin(0.05)
            try:
                work()
            finally:
                guard.end()
        except TimeLimitExceeded:
            print(work.__name__)


threading.settrace(trace)
own = Limits()
thread = threading.Thread(target=run)
thread.start()
thread.join()
own.close()
"""


def test_a_limit_under_a_tracer():
    """A debugger, or coverage: it is kept there too, and the threads of the process go on.

    In a process of its own, since one that stands still cannot be saved.
    """
    ended = subprocess.run(
        [sys.executable, "-c", TRACED],
        cwd=ROOT / "testproject",
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "endless\nendless\nuntil_looked_at\n")


def test_the_signal_of_another_run_does_nothing():
    """One that comes late, when the next run with a limit is under way, or from a stranger."""
    with limits_in("main") as (own, _):
        guard = own.begin(60)
        signal.raise_signal(SIGNAL)
        guard.end()
        assert not guard.fired


@pytest.mark.parametrize("next_one", [False, True])
def test_a_signal_that_comes_after_the_end_does_nothing(next_one):
    """It was sent in time, and the main thread came to it late: after the run, or in the next."""
    with limits_in("main") as (own, _):
        guard = own.begin(0.01)
        signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
        try:
            wait_until(lambda: SIGNAL in signal.sigpending())
            guard.end()
            guards = [own.begin(60)] if next_one else []
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
        for one in guards:
            one.end()
        assert not any(one.fired for one in (guard, *guards))


@PLACES
def test_a_limit_that_ends_in_a_del_is_not_lost(place):
    """Python would print the exception and go on."""

    class Slow:
        def __del__(self):
            time.sleep(0.2)

    def work():
        guard = own.begin(0.05)
        end = time.monotonic() + 10
        try:
            Slow()
            while time.monotonic() < end:
                pass
        finally:
            guard.end()

    with limits_in(place) as (own, call), pytest.raises(emq.TimeLimitExceeded):
        call(work)


@PLACES
def test_a_connection_with_an_unread_answer_is_not_used_again(redis, place):
    """redis-py gives it back to its pool, if the limit comes between a command and its answer."""
    pool = redis.connection_pool

    def work():
        guard = own.begin(0.05)
        try:
            link = pool.get_connection()
            try:
                link.send_command("BLPOP", "no-such-list", 1)
                while True:
                    pass
            finally:
                pool.release(link)
        finally:
            guard.end()

    with limits_in(place) as (own, call):
        with pytest.raises(emq.TimeLimitExceeded):
            call(work)
        assert redis.echo("mine") == b"mine"


# -- the hard limit ---------------------------------------------------------------------------


@pytest.mark.parametrize("task", [limits.stuck, limits.astuck])
def test_a_run_that_goes_on_is_killed_with_its_process(probe, client, task):
    """Its attempt fails, and what else that process held goes back unharmed, and runs."""
    with Worker("--threads", "2") as worker:
        worker.wait_ready()
        job = task.enqueue("x")
        emq.enqueue_many([limits.unlimited.job(n, 1.5) for n in range(3)])
        worker.wait_for("runs a job beyond its limit; killing it")
        wait_until(lambda: totals(client).get("completed") == 3)
        line = worker.wait_for("was django_emq.exceptions.TimeLimitExceeded: killed after")
    assert f"job {job.id} of tests.probe.limits.{task.func.__name__} was " in line
    assert line.endswith(": dead\n")
    assert [row.id for row in inspector.page(client, QUEUE, "dead").rows] == [job.id]
    assert errors(client) == [
        "django_emq.exceptions.TimeLimitExceeded: killed after 0.4 s, for it went on after its "
        "timeout of 0.1 s"
    ]
    # Not one of the others was taken for what killed the process.
    assert (totals(client)["failed"], totals(client).get("reaped", 0)) == (1, 0)
    assert totals(client)["released"] > 0


def test_a_killed_job_is_tried_again(client, queue):
    """With the task's backoff; but code of the project is not run where it may have hung."""
    task = emq.Task(print, "p", timeout=1, kill_after=2, backoff=60)
    with registered(task):
        job = task.using(queue=queue).enqueue()
        (claimed,) = claims(client, queue).jobs
        fail(client, queue, [(claimed.id, claimed.token)])
        (row,) = inspector.page(client, queue, "schedule").rows
        assert (row.id, row.failures) == (job.id, 1)
        assert "killed after 3 s" in row.error
        assert 50 < row.left_s <= 60
        fail(client, queue, [(claimed.id, claimed.token)])  # the answer was lost
        assert inspector.totals(client, queue)["failed"] == 1


@pytest.mark.parametrize("backoff", [lambda failures, error: 1 / 0, "no.such.backoff"])
def test_a_backoff_of_the_project_is_not_asked_for_a_killed_job(client, queue, backoff):
    task = emq.Task(print, "p", timeout=1, kill_after=2, backoff=backoff)
    with registered(task):
        task.using(queue=queue).enqueue()
        (claimed,) = claims(client, queue).jobs
        fail(client, queue, [(claimed.id, claimed.token)])
        (row,) = inspector.page(client, queue, "schedule").rows
        assert 0 <= row.left_s <= 5


def test_a_killed_job_that_nobody_can_read_has_failed_too(client, queue):
    """Its task is not here any more, or its row is gone: that ends nothing."""
    wire.enqueue_one(client, queue)
    (claimed,) = claims(client, queue).jobs
    fail(client, queue, [(claimed.id, claimed.token), (b"JOB0", 1)])
    assert inspector.totals(client, queue)["failed"] == 1


def test_a_worker_without_child_processes_says_what_it_cannot_do(client):
    assert "--processes 0: kill_after has no effect" in burst("--processes", "0")

"""A run is told that its lease is lost."""

import threading
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

import django_emq as emq
from django_emq.context import JobContext
from django_emq.jobs import Call, Claimed
from django_emq.signals import lease_lost
from django_emq.worker.hygiene import Hygiene
from django_emq.worker.limits import Limits
from django_emq.worker.outcome import failed
from django_emq.worker.page import Page
from django_emq.worker.runner import LoopRunner
from django_emq.worker.work import Work
from tests.processes import PATIENCE


@pytest.fixture
def job():
    return JobContext(Claimed(b"JOBa", b"{}", 1, 0, "q", 0.0), 15.0, lambda: 0.0)


@pytest.fixture
def receiver():
    """Connects a receiver of the signal for this test."""
    connected = []

    def connect(function):
        lease_lost.connect(function)
        connected.append(function)

    yield connect
    for function in connected:
        lease_lost.disconnect(function)


def threads():
    return {thread for thread in threading.enumerate() if thread.name == "emq-lost"}


def test_check_raises_once_the_lease_is_lost(job):
    job.check()
    job.lose()
    with pytest.raises(emq.LeaseLost, match=r"of job JOBa of \? \(token 1\) was lost"):
        job.check()


def test_a_run_that_ends_by_it_is_no_failure(job):
    """The hand-back is refused, since the lease is lost; were it not, no failure is counted."""
    assert failed(job, None, emq.LeaseLost())[:3] == ("release", job, ())


def test_an_except_exception_does_not_swallow_it():
    assert not issubclass(emq.LeaseLost, Exception)


def test_nobody_asked_and_no_thread_is_started(job):
    before = threads()
    job.lose()
    assert threads() == before


def test_hooks_and_receivers_are_called_in_another_thread(job, receiver, caplog):
    """One that raises is logged, and the others are called."""
    called, over = [], threading.Event()

    def note(what):
        called.append(what)
        assert threading.current_thread().name == "emq-lost"

    def last(sender, job, **kwargs):
        note(job)
        over.set()

    def broken(**kwargs):
        raise ValueError("a receiver")

    job.on_lost(lambda: note("first"))
    job.on_lost(lambda: 1 / 0)
    job.on_lost(lambda: note("second"))
    receiver(broken)
    receiver(last)
    job.lose()
    assert over.wait(PATIENCE)
    for thread in threads():
        thread.join(PATIENCE)
    assert called == ["second", "first", job]
    assert "a hook of job JOBa of ? (token 1) for the lost lease raised" in caplog.text
    assert "of lease_lost raised: ValueError('a receiver')" in caplog.text


def test_a_hook_that_comes_late_is_called_at_once(job):
    job.lose()
    called = []
    job.on_lost(lambda: called.append(threading.current_thread()))
    assert called == [threading.current_thread()]


def test_an_async_job_that_is_lost_before_it_starts_never_does():
    """It waits for a loop that is busy; its place is free for the next one."""
    outcomes, busy, free, ran = SimpleQueue(), threading.Event(), threading.Event(), []

    async def block():
        busy.set()
        free.wait(PATIENCE)

    async def run(number):
        ran.append(number)

    desk = SimpleNamespace(
        page=Page(2),
        hygiene=Hygiene(),
        limits=Limits(),
        dropped=set(),
        deliver=outcomes.put,
        lease=15.0,
        work=Work(),
    )
    loop = LoopRunner(desk, range(2))

    def submit(function, *args):
        job = Claimed(b"JOB%d" % len(args), b"{}", 1, 0, "q", 0.0)
        context = JobContext(job, 15.0, lambda: 0.0)
        loop.submit(context, Call("t", list(args), {}), emq.Task(function, "t"))
        return job

    submit(block)
    assert busy.wait(PATIENCE)
    lost = submit(run, 1)
    assert not loop.cancel(lost)
    desk.dropped.add(lost)
    free.set()
    submit(run, 2)
    outcomes.get(timeout=PATIENCE)
    outcomes.get(timeout=PATIENCE)
    loop.stop()
    assert (ran, desk.dropped) == ([2], set())

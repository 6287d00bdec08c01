"""Schedules in the field: several tickers, wrong clocks, and processes that come and go."""

import contextlib
import json

import pytest

from django_emq import inspector
from tests.conformance.wire import books_balance, members, now_ms
from tests.helpers import QUEUE
from tests.processes import Worker, manage, wait_until

PLANNED = "tests.probe.tasks.mark_planned"


def declaring(**plans):
    """The environment of a process whose settings have these schedules."""
    return {"EMQ_MORE": json.dumps({"SCHEDULES": plans})}


def every(seconds, task=PLANNED, **options):
    return {"task": task, "every": seconds, **options}


def settled(client, count):
    """Wait until so many jobs are completed, in the books too."""
    wait_until(lambda: inspector.totals(client, QUEUE).get("completed", 0) >= count)


def test_B24_the_same_tick_by_several_schedulers(client, probe):
    """Five workers tick a schedule of a second: each planned time is marked once, none is left out.

    The report's is one of two seconds over twenty; ten times are waited for here.
    """
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            worker = Worker("--processes", "0", **declaring(x=every(1, misfire="fire_all")))
            stack.enter_context(worker)
        marks = probe.wait_for(10)
        settled(client, 10)
    times = sorted(map(int, probe.marks()))
    assert times == list(range(times[0], times[0] + len(times)))
    assert len(marks) >= 10
    books_balance(client, QUEUE)


@pytest.mark.parametrize("wrong", ["-3", "3", "3600"])
def test_B44_the_clock_of_the_worker_is_wrong(client, probe, wrong):
    """By 3 s or an hour: each time fires once, in order, and not before it; the chain goes on.

    The report's rule of two seconds over twenty is one of a second over four.
    """
    env = {**declaring(x=every(1, misfire="fire_all")), "PROBE_CLOCK": wrong}
    with Worker("--processes", "0", **env) as worker:
        worker.wait_ready()
        marks = [*map(int, probe.wait_for(4))]
        assert marks[-1] * 1000 <= now_ms(client)
        assert marks == list(range(marks[0], marks[0] + len(marks)))
        probe.wait_for(len(marks) + 1)
        worker.terminate()
        assert worker.wait() == 0, worker.output
    ((_, planned),) = members(client, QUEUE, "repeat").items()
    done = sorted(map(int, probe.marks()))
    assert done == list(range(done[0], done[0] + len(done)))
    # What was enqueued and not run any more is between the last mark and the next time.
    waiting = inspector.counts(client, QUEUE)["pending"]
    assert planned == (done[-1] + 1 + waiting) * 1000


def test_B47_rule_registered_again_at_every_start(client, probe):
    """Starts of all kinds, two at once: one rule, and no run; then its new time; then no rule.

    The report's twenty starts are six here, and the rule is one of the settings, which every
    process reads. Only what ticks enters it.
    """
    digest = {"task": PLANNED, "cron": "0 6 1 1 *", "tz": "UTC"}

    def start(*args, **plans):
        done = manage(*args, **declaring(**plans))
        assert done.returncode == 0, done.stderr

    with Worker("--burst", **declaring(digest=digest)) as one:
        start("emq_reaper", "--once", digest=digest)
        assert one.wait() == 0, one.output
    for command in (("check",), ("emq_stats",), ("emq_reaper", "--once")):
        start(*command, digest=digest)
    (first,) = members(client, QUEUE, "repeat").values()
    assert inspector.totals(client, QUEUE) == {}
    start("emq_reaper", "--once", digest={**digest, "cron": "0 7 1 1 *"})
    assert members(client, QUEUE, "repeat") == {"digest": first + 3_600_000}
    start("emq_reaper", "--once")
    assert members(client, QUEUE, "repeat") == {}
    assert inspector.totals(client, QUEUE) == {}
    assert probe.marks() == []

"""Field reports of jobs that ran twice, as far as they are not among the trials of faults."""

import random
import threading
import time

import pytest

from django_emq import inspector, scripts
from django_emq.exceptions import EmqError, StaleToken
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    claim_one,
    complete,
    enqueue_one,
    given,
    lapse,
    now_ms,
    pass_ms,
    reap,
    retry,
)
from tests.helpers import QUEUE, again_and_again
from tests.probe import verdicts
from tests.processes import Worker, wait_until

ROUNDS = 2000
LEASE_MS = 3


class Race:
    """Three threads that fire one call each at the end of the lease, round after round."""

    def __init__(self, client, queue) -> None:
        self.client, self.queue = client, queue
        self.job_id, self.ends = "", 0.0
        self.answers: dict[str, object] = {}
        self.failed: list[BaseException] = []
        self.start, self.end = threading.Barrier(4), threading.Barrier(4)
        calls = {
            "complete": lambda: complete(client, queue, self.job_id, 1),
            "retry": lambda: retry(client, queue, self.job_id, 1, delay_ms=1000),
            "reap": lambda: reap(client, queue),
        }
        for number, (verb, call) in enumerate(calls.items()):
            dice = random.Random(number)
            threading.Thread(target=self._fire, args=(verb, call, dice), daemon=True).start()

    def _fire(self, verb, call, dice) -> None:
        while True:
            self.start.wait()
            if not self.job_id:
                return
            time.sleep(max(self.ends + dice.uniform(-0.0005, 0.0005) - time.monotonic(), 0))
            try:
                self.answers[verb] = call()
            except EmqError as error:
                self.answers[verb] = error
            self.end.wait()

    def round(self) -> dict[str, object]:
        """One job, claimed; what the three calls answered."""
        self.job_id = enqueue_one(self.client, self.queue)
        assert claim_one(self.client, self.queue, lease_ms=LEASE_MS).token == 1
        self.ends = time.monotonic() + LEASE_MS / 1000
        self.answers = {}
        self.start.wait()
        self.end.wait()
        return self.answers

    def over(self) -> None:
        self.job_id = ""
        self.start.wait()


def test_B16_sweep_acts_on_an_old_picture(client, queue):
    """2,000 rounds of complete, retry and reap at the end of a lease: one of them moves the job.

    The one pair that may both act is a sweep and then a complete: a finish before the next claim
    is welcome (B04). A lease of 3 ms, not of 50, and calls within half a millisecond of its end.
    """
    race, seen = Race(client, queue), set()
    for _ in range(ROUNDS):
        answers = race.round()
        state = wire.snapshot(client, queue)
        places = [name for name in wire.SETS if race.job_id in state[name]]
        acted = {
            verb for verb, answer in answers.items() if answer in (1, "scheduled", [race.job_id])
        }
        others = [answers[verb] for verb in answers if verb not in acted]
        assert all(isinstance(a, EmqError) or a in (0, []) for a in others), answers
        if acted == {"reap"}:
            assert places == ["pending"]
        elif acted == {"retry"}:
            assert places == ["schedule"]
        else:
            assert acted in ({"complete"}, {"complete", "reap"}), answers
            assert (places, state["rows"]) == ([], {}), "a retired id is back"
        seen.add(frozenset(acted))
        books_balance(client, queue)
        for name in places:
            scripts.drain(client, queue, name)
    race.over()
    assert seen >= {frozenset({"complete"}), frozenset({"retry"})}, "no race took place"


@pytest.mark.parametrize("verb", ["retry", "snooze", "release", "bury", "discard", "extend"])
def test_B19_late_retry_of_a_job_that_is_queued_again(client, queue, verb):
    """Swept and not claimed again: the old token is refused by each verb, the job runs once more.

    Never is it in two sets, by a look every 10 ms.
    """
    job_id = enqueue_one(client, queue, max_attempts=5)
    assert given(claim_one(client, queue)) == (job_id, "work", 1)
    with again_and_again(lambda: books_balance(client, queue)):
        lapse(client, queue, job_id, 1)
        late = {"retry": {"delay_ms": 1000}, "snooze": {"delay_ms": 1000}}.get(verb, {})
        with pytest.raises(StaleToken, match="not held"):
            getattr(wire, verb)(client, queue, job_id, 1, **late)
        runs, ends = 0, now_ms(client) + 1200  # beyond the time of the refused retry
        while now_ms(client) < ends and (verb == "retry" or not runs):
            scripts.promote(client, queue)
            if job := claim_one(client, queue):
                runs += 1
                assert job.token == 2
                complete(client, queue, job_id, job.token)
            pass_ms(client, 5)
    assert runs == 1
    assert books_balance(client, queue) == {}


def test_B22_job_due_later_than_the_lease_time(probe, client):
    """It waits in the schedule, not in a worker: one run, token 1, in time.

    All times are halved: lease 1 s, delay 4.5 s, four worker processes.
    """
    with Worker("--lease", "1", "--processes", "4") as worker:
        worker.wait_ready()
        before = now_ms(client)
        job = verdicts.mark_token.using(run_in=4.5).enqueue("due")
        key = queue_keys(QUEUE).job(job.id)
        due = client.raw.zscore(queue_keys(QUEUE).schedule, job.id)
        assert before + 4500 <= due <= now_ms(client) + 4500
        while client.raw.hget(key, "attempts") == b"0":
            state = inspector.state(client, QUEUE, job.id)
            assert state == "scheduled" or now_ms(client) >= due
            time.sleep(0.01)
        assert probe.wait_for(1) == ["due token 1"]
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "done")
        started = int(inspector.row(client, QUEUE, job.id)["started_at"])
    assert due <= started <= before + 6000
    assert probe.marks() == ["due token 1"]

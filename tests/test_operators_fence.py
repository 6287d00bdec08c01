"""The operators' verbs and the fence: whoever runs the job is refused, and cannot race."""

from collections.abc import Callable

import pytest

from django_emq import inspector, scripts
from django_emq.exceptions import JobGone
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    bury,
    claim_one,
    complete,
    enqueue_one,
    extend,
    given,
    pass_ms,
    reap,
    retry,
    row,
)
from tests.operator_cases import HOLDERS, ask, each_holder, everything, job_in, refused
from tests.probe import tasks
from tests.processes import Worker, wait_until

# -- those who hold, or held, the job ---------------------------------------------------------


@each_holder
@pytest.mark.parametrize("verb", ["requeue", "cancel"])
def test_the_token_of_a_held_job_moves_first(client, queue, verb, name):
    """The copy that runs is refused by its token, and the new token holds nothing either.

    What it asks between its beginning and its end tells it of a cancel.
    """
    job_id = job_in(client, queue, "active")
    assert ask(client, queue, verb, job_id) == 1
    told = verb == "cancel" and name in ("extend", "progress", "log")
    why = "cancelled" if told else "token mismatch"
    words = f"{name.capitalize()} {why} (yours 1, row 2)"
    assert refused(client, queue, name, job_id, 1) == words
    assert "not held" in refused(client, queue, name, job_id, 2)
    if verb == "cancel":
        scripts.reprocess(client, queue, [job_id])
    assert given(claim_one(client, queue)) == (job_id, "work", 3)
    words = f"{name.capitalize()} token mismatch (yours 1, row 3)"
    assert refused(client, queue, name, job_id, 1) == words
    books_balance(client, queue)


@each_holder
def test_the_run_of_a_removed_job_is_refused(client, redis, queue, name):
    """Its row is gone, and nothing is made again of what the run says."""
    job_id = job_in(client, queue, "active")
    wire.log(client, queue, job_id, 1, "line")
    assert ask(client, queue, "remove by force", job_id) == 1
    before = everything(client)
    if name == "complete":
        assert complete(client, queue, job_id, 1) == 0
    else:
        with pytest.raises(JobGone, match=f"^{name.capitalize()} job gone$"):
            HOLDERS[name](client, queue, job_id, 1)
    assert everything(client) == before
    assert redis.keys(queue_keys(queue).jobs + "*") == []


def stall(client, queue, job_id: str, token: int) -> None:
    """Have a job die because its lease lapsed: the only death that its holder may not know of."""
    extend(client, queue, job_id, token, lease_ms=0)
    assert reap(client, queue, max_stalls=1) == []


DEATHS: dict[str, Callable[..., object]] = {
    "failed": lambda c, q, i, t: retry(c, q, i, t, maximum=1),
    "buried": bury,
    "stalled": stall,
    "cancelled": lambda c, q, i, t: scripts.cancel(c, q, [i]),
}


@each_holder
@pytest.mark.parametrize("death", DEATHS)
def test_the_holder_of_the_last_life_is_refused(client, queue, death, name):
    """The token is kept, and yet the one who had it cannot settle the job's new life."""
    job_id = job_in(client, queue, "active")
    DEATHS[death](client, queue, job_id, 1)
    token = books_balance(client, queue)[job_id]
    assert ask(client, queue, "reprocess", job_id) == 1
    assert books_balance(client, queue) == {job_id: token}
    text = refused(client, queue, name, job_id, token)
    assert f"not held, settled before by reprocess (yours {token}" in text or (
        name in ("progress", "log") and "not held (yours" in text
    )
    assert given(claim_one(client, queue)) == (job_id, "work", token + 1)
    assert "settled" not in row(client, queue, job_id)
    assert complete(client, queue, job_id, token + 1) == 1


def test_the_holder_of_a_scheduled_job_that_is_requeued(client, queue):
    """Its token need not move: nobody holds it, and the next claim raises it."""
    job_id = job_in(client, queue, "scheduled")
    assert ask(client, queue, "requeue", job_id) == 1
    for name in HOLDERS:
        assert "not held" in refused(client, queue, name, job_id, 1)
    assert given(claim_one(client, queue)) == (job_id, "work", 2)


def test_a_claim_that_is_repeated_gives_no_requeued_job(client, queue):
    """The same request again is given what it still holds, and that is not this one any more."""
    first, second = enqueue_one(client, queue), enqueue_one(client, queue)

    def claim() -> list[tuple[str, str, int] | None]:
        asked = scripts.claim(client, queue, worker="w", request="r", lease_ms=9000, count=2)
        return [given(job) for job in asked.jobs]

    assert len(claim()) == 2
    assert ask(client, queue, "requeue", first) == 1
    assert claim() == [(second, "work", 1)]
    books_balance(client, queue)


def test_an_updated_job_is_not_completed_by_an_older_run(client, queue):
    """The run whose lease was swept has read the old payload: it cannot stand for the new one."""
    job_id = job_in(client, queue, "swept")
    scripts.update(client, queue, job_id, "new")
    assert "settled before by update (yours 1, row 1)" in refused(
        client, queue, "complete", job_id, 1
    )
    assert given(claim_one(client, queue)) == (job_id, "new", 2)
    assert complete(client, queue, job_id, 2) == 1


# -- with a worker that runs the job ----------------------------------------------------------


@pytest.fixture
def ways(request) -> tuple[str, ...]:
    """A worker with a supervisor, and one without; two jobs at once, a lease of a second."""
    return ("--processes", request.param, "--threads", "2", "--lease", "1")


each_way = pytest.mark.parametrize("ways", ["0", "1"], indirect=True)


def events(client, queue) -> list[tuple[str, str, str]]:
    """What the trail says, oldest first: event, the row's token, the caller's."""
    return [(e.event, e.token, e.yours) for e in inspector.trail(client, queue)][::-1]


@each_way
def test_a_worker_that_claims_again_what_it_still_runs(client, queue, probe, ways):
    """The same process has both runs: the first is refused, the second keeps its lease."""
    job_id = tasks.mark_then_nap_then_mark_token.using(queue=queue).enqueue("a", 2).id
    with Worker(queue, *ways, "--no-sweep") as worker:
        probe.wait_for(1)
        pass_ms(client, 1500)
        assert ask(client, queue, "requeue", job_id) == 1
        probe.wait_for(2)
        wait_until(lambda: ("refused", "3", "1") in events(client, queue), what="the refusal")
        # The lease lasts a second. It must be extended for the second that is left of the run.
        while probe.marks().count("a token 3") == 0:
            assert scripts.reap(client, queue, max_stalls=9).returned == []
            assert len(probe.marks()) < 5
            pass_ms(client, 20)
        wait_until(lambda: scripts.state(client, queue, job_id) == "absent", what="the verdict")
        worker.terminate()
        assert worker.wait() == 0
    assert sorted(probe.marks()) == ["a", "a", "a token 1", "a token 3"]
    assert events(client, queue) == [("requeued", "2", ""), ("refused", "3", "1")]


@each_way
def test_an_async_run_that_is_taken_away(client, queue, probe, ways):
    """The run that lost the job is cancelled, and not the one that has it."""
    job_id = tasks.anap_then_mark.using(queue=queue).enqueue(2, "a").id
    with Worker(queue, *ways, "--no-sweep") as worker:
        wait_until(lambda: scripts.state(client, queue, job_id) == "active", what="a claim")
        assert ask(client, queue, "requeue", job_id) == 1
        wait_until(lambda: scripts.state(client, queue, job_id) == "absent", what="the verdict")
        assert probe.marks() == ["a"]
        worker.terminate()
        assert worker.wait() == 0
    assert "failed" not in [event for event, *_ in events(client, queue)]


@each_way
@pytest.mark.parametrize("verb", ["cancel", "remove by force"])
def test_a_run_that_is_taken_away(client, queue, probe, ways, verb):
    """Nothing can stop a thread, so the task goes on; but its outcome is refused."""
    job_id = tasks.mark_then_nap_then_mark_token.using(queue=queue).enqueue("a", 0.5).id
    with Worker(queue, *ways) as worker:
        probe.wait_for(1)
        assert ask(client, queue, verb, job_id) == 1
        probe.wait_for(2)
        tasks.mark.using(queue=queue).enqueue("next")
        probe.wait_for(3)
        worker.terminate()
        assert worker.wait() == 0
    assert probe.marks() == ["a", "a token 1", "next"]
    assert scripts.state(client, queue, job_id) == ("dead" if verb == "cancel" else "absent")
    books_balance(client, queue)
    if verb == "cancel":
        assert events(client, queue) == [("cancelled", "2", ""), ("refused", "2", "1")]
    else:
        assert events(client, queue) == [("removed", "1", "")]

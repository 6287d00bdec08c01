"""Jobs that hang on the end of others: what is admitted, when, once, and with what."""

import asyncio

import pytest
from django.db import transaction

import django_emq
from django_emq import chains, inspector, scripts
from django_emq.conf import settings as conf
from django_emq.exceptions import InvalidOption, JobGone, PayloadTooLarge, UnknownTask
from django_emq.jobs import decode
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import claim_one, row
from tests.helpers import burst
from tests.probe import chained as tasks

pytestmark = pytest.mark.django_db
QUEUE = "default"


def ids(jobs):
    return [job.id for job in jobs]


def row_of(emq, job):
    return row(emq._client, job.queue, job.id)


def members_of(emq, name):
    keys = queue_keys(QUEUE, emq.prefix)
    found = emq._client.raw.zrange(getattr(keys, name), 0, -1, withscores=True)
    return {member.decode(): score for member, score in found}


# -- what people write ------------------------------------------------------------------------


def test_a_chain_passes_its_values_on(emq, probe):
    """Each job begins when the one before has succeeded, and has what that returned."""
    job = django_emq.chain(
        tasks.first.job(5), tasks.link.job("a"), tasks.link.job("b", add=10)
    ).enqueue()
    assert [one.status for one in job.chain] == ["enqueued", "chained", "chained"]
    assert ids(job.chain) == sorted(ids(job.chain))
    assert [one.id for one in emq.waiting()] == [job.id]
    ran = emq.run_until_empty()
    assert [one.id for one in ran] == ids(job.chain)
    assert probe.marks() == ["first 5", "a after 5", "b after 6"]
    assert not any(wire.snapshot(emq._client, QUEUE).values())
    totals = inspector.totals(emq._client, QUEUE)
    assert (totals["enqueued"], totals["completed"]) == (3, 3)


def test_async_jobs_are_links_too(emq, probe):
    job = asyncio.run(
        django_emq.chain(tasks.first.job(1), tasks.alink.job("a"), tasks.link.job("b")).aenqueue()
    )
    emq.run_until_empty()
    assert probe.marks() == ["first 1", "a after 1", "b after 2"]
    assert len(job.chain) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_callbacks_of_a_task(emq, probe, fails):
    """Named at the decorator, by a path; the failed one is told the error."""
    job = tasks.decorated.enqueue(fails)
    one, other = (job.on_success, job.on_failure)
    assert [len(one), len(other)] == [1, 1]
    ran = emq.run_until_empty()
    assert ids(ran) == [job.id, (other if fails else one)[0].id]
    assert probe.marks() == [f"told after {'it fails' if fails else 'decorated'}"]


def test_the_job_before_is_known(emq, probe):
    """`previous` has its id, and a job that nobody was before has none."""
    tasks.first.using(on_success=[tasks.tell.job("one"), tasks.tell]).enqueue()
    emq.run_until_empty()
    assert probe.marks() == ["first 1", "one after 1", "told after 1"]
    left = decode(b'{"task":"t"}\n{"id":"JOB1","value":[1,2.5,"\\u00e4"]}').previous
    assert left == django_emq.Previous("JOB1", [1, 2.5, "ä"], None)
    assert decode(b'{"task":"t"}\n').previous is None
    with pytest.raises(ValueError, match="bad payload"):
        decode(b'{"task":"t"} x')


def test_the_rest_does_not_run_when_a_link_dies(emq, probe):
    """A dead link keeps the rest; given another life, it goes on with it."""
    job = django_emq.chain(
        tasks.fail_until.using(on_failure=tasks.tell).job("CHAIN_OPEN"), tasks.tell.job("last")
    ).enqueue()
    emq.run_until_empty(raises=False)
    assert probe.marks() == ["told after ValueError: CHAIN_OPEN"]
    kept = row_of(emq, job)
    assert kept["state"] == "dead"
    assert chains.hung(kept, "on_success", QUEUE) == [job.chain[1]]
    assert kept["next"] == job.on_failure[0].id
    assert "on_failure" not in kept
    # A second death is told nobody: its id was given once.
    scripts.reprocess(emq._client, QUEUE, [job.id])
    emq.run_until_empty(raises=False)
    assert len(probe.marks()) == 1


def test_another_life_goes_on_with_the_chain(emq, probe, monkeypatch):
    job = django_emq.chain(tasks.fail_until.job("CHAIN_OPEN"), tasks.tell.job("last")).enqueue()
    emq.run_until_empty(raises=False)
    monkeypatch.setenv("CHAIN_OPEN", "1")
    scripts.reprocess(emq._client, QUEUE, [job.id])
    assert ids(emq.run_until_empty()) == ids(job.chain)
    assert probe.marks() == ["last after CHAIN_OPEN"]


@pytest.mark.parametrize(
    ("task", "error"),
    [(tasks.fail, "ValueError: boom"), (tasks.bury, "no use"), (tasks.unspeakable, "TypeError")],
)
def test_every_death_is_a_failure(emq, probe, task, error):
    """By an error, at the task's own wish, or because its value cannot be passed on."""
    task.using(
        max_attempts=1, on_success=tasks.tell.job("good"), on_failure=tasks.tell.job("bad")
    ).enqueue()
    emq.run_until_empty(raises=False)
    (mark,) = probe.marks()
    assert mark.startswith(f"bad after {error}")


def test_a_value_that_nobody_wants_need_not_be_json(emq):
    """As without a chain: only a next job makes it one."""
    tasks.unspeakable.using(on_failure=tasks.tell).enqueue()
    assert [one.verb for one in emq.run_until_empty()] == ["complete"]


def test_lost_leases_end_in_a_failure(emq, probe):
    """The sweep that buries a job admits what hangs on it."""
    job = tasks.first.using(max_stalls=1, on_failure=tasks.tell.job("lost")).enqueue()
    claim_one(emq._client, QUEUE, lease_ms=1)
    wire.pass_ms(emq._client, 2)
    assert wire.reap(emq._client, QUEUE) == []
    assert row_of(emq, job)["next"] == job.on_failure[0].id
    emq.run_until_empty()
    (mark,) = probe.marks()
    assert mark.startswith("lost after stalled: the worker was lost")


@pytest.mark.parametrize("verb", ["cancel", "remove", "drain", "discard"])
def test_what_is_neither_success_nor_failure_admits_nothing(emq, probe, verb):
    """An operator's word, and a task that drops its own job: nothing of the chain is left."""
    task = tasks.drop if verb == "discard" else tasks.first
    job = django_emq.chain(task.job(), tasks.tell.job(), on_failure=tasks.tell).enqueue()
    if verb == "drain":
        scripts.drain(emq._client, QUEUE, "pending")
    elif verb != "discard":
        getattr(scripts, verb)(emq._client, QUEUE, [job.id])
    emq.run_until_empty()
    assert probe.marks() == []
    if verb != "cancel":
        assert not any(wire.snapshot(emq._client, QUEUE).values())
        return
    scripts.reprocess(emq._client, QUEUE, [job.id])
    emq.run_until_empty()
    assert probe.marks() == ["first 1", "told after 1"]


def test_a_kept_row_says_what_came_after(emq):
    """Its result stays for its time, and what hung on it is no longer in it."""
    job = tasks.first.using(on_success=tasks.tell, on_failure=tasks.tell)
    object.__setattr__(job, "keep_ms", 60_000)
    made = job.enqueue()
    (claimed,) = wire.claim_some(emq._client, QUEUE, 1)
    scripts.complete(emq._client, QUEUE, [(claimed.id, 1, "7")], keep_ms=60_000)
    kept = row_of(emq, made)
    assert (kept["result"], kept["next"]) == ("7", made.on_success[0].id)
    assert not {"on_success", "on_failure"} & set(kept)
    assert row_of(emq, made.on_success[0])["after"] == made.id


def test_options_of_the_next_job_hold(emq, probe):
    """Priority, time, maxima and the rest of its own chain are as they would be without one."""
    later = tasks.link.using(
        priority=-7, max_attempts=3, run_in=60, fence_key="ü:1", on_failure=tasks.tell
    )
    job = django_emq.chain(tasks.first.job(), later.job("x"), tasks.tell.job()).enqueue()
    before = wire.now_ms(emq._client)
    emq.run_until_empty()
    (_, second, third) = job.chain
    assert second.on_failure[0].status == "chained"
    there = row_of(emq, second)
    assert (there["state"], there["priority"]) == ("scheduled", "-7")
    assert (there["max_attempts"], there["fence_key"]) == ("3", "ü:1")
    due = members_of(emq, "schedule")[second.id]
    assert before + 60_000 <= due <= wire.now_ms(emq._client) + 60_000
    assert chains.hung(there, "on_success", QUEUE) == [third]
    assert chains.hung(there, "on_failure", QUEUE) == [*second.on_failure]


def test_many_chains_in_one_call(emq, probe):
    """`enqueue_many` takes them, and answers the first of each."""
    made = django_emq.enqueue_many(
        django_emq.chain(tasks.first.job(n), tasks.link.job(n)) for n in range(3)
    )
    assert [len(job.chain) for job in made] == [2, 2, 2]
    emq.run_until_empty()
    assert sorted(probe.marks()) == sorted(
        [f"first {n}" for n in range(3)] + [f"{n} after {n}" for n in range(3)]
    )


@pytest.mark.parametrize("how", ["on_commit", "outbox"])
def test_a_chain_is_part_of_a_transaction(emq, probe, how):
    """Sent as a whole after the commit; after a rollback there is nothing of it."""
    one = django_emq.chain(tasks.first.job(), tasks.tell.job()).using(**{how: True})
    with emq.commits(), transaction.atomic():
        job = one.enqueue()
        assert [link.status for link in job.chain] == ["deferred", "chained"]
        assert emq.waiting() == []
    assert ids(emq.run_until_empty()) == ids(job.chain)


def test_a_chain_of_a_hundred(emq, probe):
    """As long as it may be: the row's size grows with the number of jobs, not with its power."""
    many = [tasks.first.job(0), *(tasks.link.job(n) for n in range(100))]
    job = django_emq.chain(*many).enqueue()
    assert len(row_of(emq, job)["on_success"]) < 100 * 200
    emq.run_until_empty()
    assert probe.marks()[-1] == "99 after 99"
    with pytest.raises(InvalidOption, match=r"More than 100 jobs hang on one of .*\.first"):
        django_emq.chain(*many, tasks.tell.job()).enqueue()


def test_what_leads_back_to_itself_is_refused(emq):
    with pytest.raises(InvalidOption, match=r"lead back to tests\.probe\.chained\.loop"):
        tasks.loop.enqueue()
    assert emq.waiting() == []


def test_what_cannot_be_hung_is_refused(emq, settings):
    """Before anything is stored, with the way out."""
    with pytest.raises(InvalidOption, match="on_success is 5. Use a task, its name"):
        tasks.first.using(on_success=5)
    with pytest.raises(UnknownTask, match="no.such.task"):
        tasks.first.using(on_success="no.such.task").enqueue()
    with pytest.raises(InvalidOption, match="no jobs"):
        django_emq.chain()
    with pytest.raises(django_emq.InvalidArguments):
        tasks.first.using(on_failure=tasks.tell.job(object())).enqueue()
    settings.EMQ = {**settings.EMQ, "MAX_PAYLOAD": 1000}
    with pytest.raises(PayloadTooLarge, match="hang on one of"):
        tasks.first.using(
            on_success=[tasks.tell.job("x" * 600), tasks.tell.job("x" * 600)]
        ).enqueue()
    assert emq.waiting() == []


def test_signed_chains(emq, probe, settings):
    """Each link has a signature of its own, which covers its arguments and not what it was left."""
    settings.EMQ = {**settings.EMQ, "SIGN_PAYLOADS": True}
    job = django_emq.chain(tasks.first.job(), tasks.link.job("x"), tasks.tell.job()).enqueue()
    emq.run_until_empty()
    assert probe.marks() == ["first 1", "x after 1", "told after 2"]
    assert len(job.chain) == 3


# -- other queues, and partitions --------------------------------------------------------------


def test_a_next_job_of_another_queue(emq, probe):
    """Admitted there by way of a list in the queue of the job before, at once and once."""
    job = django_emq.chain(
        tasks.first.using(queue="one").job(4),
        tasks.link.using(queue="two").job("x"),
        tasks.tell.job(),
    ).enqueue()
    assert [link.queue for link in job.chain] == ["one", "two", QUEUE]
    assert ids(emq.run_until_empty()) == ids(job.chain)
    assert probe.marks() == ["first 4", "x after 4", "told after 5"]
    for name in ("one", "two", QUEUE):
        assert not emq._client.raw.exists(queue_keys(name, emq.prefix).onward)
        assert inspector.totals(emq._client, name)["enqueued"] == 1


@pytest.mark.parametrize("link", [tasks.link, tasks.alink])
def test_a_burst_runs_chains_to_their_end(client, probe, link):
    """Also those that lead from queue to queue and back: what a run still hands onward is ready."""
    names = ["one", "two", "one", "two", "one"]
    jobs = [link.using(queue=name).job(name) for name in names[1:]]
    django_emq.chain(tasks.first.using(queue="one").job(1), *jobs).enqueue()
    burst("one", "two")
    assert probe.marks() == ["first 1", "two after 1", "one after 2", "two after 3", "one after 4"]


def test_partitions_are_kept(emq, settings, probe):
    """Without a key a link stays in the partition of the job before; a key has its own."""
    settings.EMQ = {**settings.EMQ, "QUEUES": {"events": {"PARTITIONS": 16}}}
    first = tasks.first.using(queue="events", partition_key="a")
    near, keyed = (
        tasks.link.using(queue="events"),
        tasks.tell.using(queue="events", partition_key="b"),
    )
    job = django_emq.chain(first.job(1), near.job("near"), keyed.job()).enqueue()
    one, two, three = (link.queue for link in job.chain)
    assert one == two != three
    assert {conf().whole(name) for name in (one, two, three)} == {"events"}
    assert ids(emq.run_until_empty()) == ids(job.chain)


# -- what people see --------------------------------------------------------------------------


def test_the_trail_tells_who_came_before(emq, probe, settings):
    """After a failure always; after a success with TRAIL at "all", as for other good news."""
    settings.EMQ = {**settings.EMQ, "TRAIL": "all"}
    job = tasks.decorated.enqueue(True)
    emq.run_until_empty()
    told = inspector.why(emq._client, QUEUE, job.on_failure[0].id).history
    assert any(f"was enqueued: after the failure of job {job.id}" in line for line in told)
    job = tasks.decorated.enqueue()
    emq.run_until_empty()
    told = inspector.why(emq._client, QUEUE, job.on_success[0].id).history
    assert any(f"was enqueued: after the success of job {job.id}" in line for line in told)
    with pytest.raises(JobGone):
        inspector.why(emq._client, QUEUE, job.on_failure[0].id)

"""Unique jobs as a project uses them: options, keys, answers, and every way to enqueue."""

from __future__ import annotations

import io
import logging

import pytest
from django.core.management import call_command
from django.db import transaction

import django_emq as emq
from django_emq import inspector, outbox, scripts, signals
from django_emq.compat import task_enqueued
from django_emq.exceptions import InvalidArguments, InvalidOption
from django_emq.keys import queue_keys
from django_emq.partitions import number_of
from django_emq.ticker import Ticker, run_now
from tests.conformance import wire
from tests.helpers import QUEUE
from tests.probe import tasks as plain
from tests.probe import unique as tasks


def key_of(task, *args, **kwargs):
    return task.rule.key(task.name, args, kwargs)


# -- the key ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((1,), {}), ((), {"user_id": 1, "kind": "full"})),
        (((1, "full"), {}), ((), {"kind": "full", "user_id": 1})),
    ],
)
def test_all_arguments(one, other):
    """However they are given: by place, by name, or left to their default."""
    assert tasks.sync.rule.key("t", *one) == tasks.sync.rule.key("t", *other)


def test_what_makes_another_key():
    """Another value, another type of value, another task."""
    keys = [key_of(tasks.sync, value) for value in (1, 2, "1", None, True, [1], {"a": 1})]
    keys.append(key_of(tasks.mail, 1))
    assert len(set(keys)) == len(keys)


def test_a_key_of_some_arguments():
    assert key_of(tasks.mail, 1, "a") == key_of(tasks.mail, 1, text="b")
    two = tasks.sync.using(unique=["kind", "user_id"])
    assert key_of(two, 1, "a") != key_of(two, 1, "b")
    free = tasks.check.using(unique="port")
    assert key_of(free, "a", port=1) == key_of(free, "b", port=1)
    with pytest.raises(InvalidArguments, match="argument 'port' is not given"):
        key_of(free, "a")


def test_a_key_that_a_function_makes():
    assert key_of(tasks.check, "db", port=1) == "tests.probe.unique.check:hc-db"
    for answer in ("", None, 5):
        with pytest.raises(InvalidOption, match=rf"answered {answer!r}. Return a text"):
            key_of(tasks.check.using(unique=lambda host, answer=answer: answer), "db")


def test_arguments_that_do_not_fit_the_task():
    """They are refused here, where the mistake is: no key can be made of them."""
    with pytest.raises(InvalidArguments, match="No unique key can be made for .*too many"):
        tasks.sync.enqueue(1, 2, 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"unique": "nobody"}, "unique names 'nobody', which is no argument .* has: user_id, kind"),
        ({"unique": 5}, "unique is 5. Use True, the name of an argument"),
        ({"unique": []}, r"unique is \[\]. Use True"),
        ({"unique": None, "unique_for": 5}, "and unique is not given. Add it"),
        ({"on_conflict": "ignore"}, "on_conflict is 'ignore'. Use one of: reject, replace"),
        ({"unique_until": "end"}, "unique_until is 'end'. Use one of: start, finish"),
        ({"unique_until": "start", "unique_for": 5}, "Both unique_for and unique_until"),
        ({"unique_for": 0}, "unique_for is 0. Use a timedelta or seconds"),
        ({"max_wait": 5}, "max_wait goes with on_conflict='debounce', not with 'reject'"),
        ({"on_conflict": "throttle"}, "on_conflict='throttle' needs unique_for, its window"),
        ({"on_conflict": "debounce"}, "on_conflict='debounce' needs unique_for, its window"),
        ({"on_conflict": "keep_last", "unique_for": 5}, "holds the key until the job has ended"),
        ({"partition_key": "x"}, "the partition follows from the unique key"),
        (
            {"on_conflict": "debounce", "unique_for": 5, "run_in": 5},
            "on_conflict='debounce' says when the job runs",
        ),
    ],
)
def test_options_that_do_not_go_together(options, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        tasks.sync.using(**options)


def test_unique_can_be_switched_off(client):
    """For one call, whatever the task says besides."""
    assert [tasks.index.using(unique=False).enqueue(1, 1).status for _ in "ab"] == ["enqueued"] * 2


# -- the answer -------------------------------------------------------------------------------


def test_the_answer_names_the_holder(client):
    first = tasks.sync.enqueue(1)
    again = tasks.sync.enqueue(user_id=1, kind="full")
    assert (first.status, first.holder) == ("enqueued", "")
    assert (again.status, again.id, again.holder) == ("duplicate", first.id, first.id)
    newer = tasks.sync.using(on_conflict="replace").enqueue(1)
    assert (newer.status, newer.holder) == ("replaced", first.id)
    assert newer.id != first.id


def test_keep_last_names_whom_it_waits_for(client):
    first = tasks.index.enqueue(1, 1)
    wire.claim_one(client, QUEUE)
    second = tasks.index.enqueue(1, 2)
    assert (second.status, second.holder) == ("enqueued", first.id)


def test_the_signal_is_for_jobs_that_came_in(client):
    told = []

    def receiver(job, **facts):
        told.append(job.id)

    signals.job_enqueued.connect(receiver)
    try:
        first = tasks.sync.enqueue(1)
        tasks.sync.enqueue(1)
        many = emq.enqueue_many([tasks.sync.job(1), tasks.sync.job(2)])
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert told == [first.id, many[1].id]


# -- every way in -----------------------------------------------------------------------------


def test_in_bulk(client):
    """Two equal ones in one call: the second is told of the first; plain jobs come in beside."""
    plain = tasks.sync.using(unique=False)
    made = emq.enqueue_many([tasks.sync.job(1), plain.job(1), tasks.sync.job(1), tasks.mail.job(1)])
    assert [job.status for job in made] == ["enqueued", "enqueued", "duplicate", "enqueued"]
    assert made[2].id == made[2].holder == made[0].id
    assert inspector.counts(client, QUEUE)["pending"] == 3


def test_later_jobs(client):
    """A job that waits for its time holds the key as well."""
    first = emq.enqueue_in(3600, tasks.sync, 1)
    assert tasks.sync.enqueue(1).holder == first.id
    due = tasks.sync.using(on_conflict="replace", run_in=60).enqueue(1)
    assert (due.status, list(wire.members(client, QUEUE, "schedule"))) == ("replaced", [due.id])


def test_a_reply_that_was_lost(client, monkeypatch):
    """The call is sent again, and answered as the first time: no duplicate of itself."""
    send = scripts.enqueue_unique
    calls = []

    def lose(*args, **kwargs):
        calls.append(send(*args, **kwargs))
        if len(calls) == 1:
            raise emq.OutcomeUnknown
        return calls[-1]

    monkeypatch.setattr(scripts, "enqueue_unique", lose)
    job = tasks.sync.enqueue(1)
    assert (job.status, calls) == ("enqueued", [[1], [1]])


@pytest.mark.django_db(transaction=True)
def test_after_the_commit(client, caplog):
    """The caller is answered before anybody knows; the log says what became of it."""
    holder = tasks.sync.enqueue(1)
    with caplog.at_level(logging.INFO, "django_emq"), transaction.atomic():
        job = emq.enqueue_on_commit(tasks.sync, 1)
        assert job.status == "deferred"
    assert f"job {job.id} of {tasks.sync.name} was a duplicate: job {holder.id}" in caplog.text
    assert f"job {holder.id} holds the key" in why(job.id)


@pytest.mark.django_db(transaction=True)
def test_by_the_outbox(client, caplog, monkeypatch):
    """The same, and the row is gone: it was taken. What it says of the key outlives the wait."""
    stored = tasks.sync.using(outbox=True)
    with caplog.at_level(logging.INFO, "django_emq"), transaction.atomic():
        first, second = stored.enqueue(1), stored.enqueue(1)
    assert list(wire.members(client, QUEUE, "pending")) == [first.id]
    assert f"a job was a duplicate: job {first.id} holds its unique key" in caplog.text
    assert outbox.Outbox.objects.count() == 0
    assert f"job {first.id} holds the key" in why(second.id)


def test_the_partition_follows_from_the_key(client, settings):
    """Calls with one key meet, whatever their ids; keys are spread."""
    settings.EMQ = {"QUEUES": {"events": {"PARTITIONS": 8}}}
    task = tasks.sync.using(queue="events")
    made = [task.enqueue(user) for user in range(20)]
    assert all(task.enqueue(user).id == job.id for user, job in enumerate(made))
    assert len({job.queue for job in made}) > 3
    number = number_of(queue_keys("x").unique(key_of(task, 3)).rpartition(":")[2], 8)
    assert made[3].queue == f"events.{number}"


def test_by_a_schedule(client, queue, settings):
    """A job that still runs is not overlapped: its tick passes, and the schedule goes on."""
    plan = {"task": tasks.sync.name, "args": [1], "every": 3600, "queue": queue}
    settings.EMQ = {**settings.EMQ, "SCHEDULES": {"x": plan}}
    ticker = Ticker(client)
    ticker.declare([queue])
    keys = queue_keys(queue)
    for _ in range(2):
        client.raw.zincrby(keys.repeat, -3_600_000, "x")
        planned = client.raw.zscore(keys.repeat, "x")
        ticker.tick(queue)
    assert ticker.fired == 1
    (job_id,) = wire.members(client, queue, "pending")
    record = client.raw.hmget(keys.record("x"), "last_job", "last_planned")
    assert record == [job_id.encode(), f"{planned:.0f}".encode()]
    assert wire.members(client, queue, "repeat")["x"] > planned
    again = run_now(client, queue, "x")
    assert (again.status, again.id) == ("duplicate", job_id)
    wire.claim_one(client, queue)
    wire.complete(client, queue, job_id, 1)
    assert run_now(client, queue, "x").status == "enqueued"


def test_in_a_chain(client):
    """The first job may be unique: a duplicate's chain does not come either. A later may not."""
    first = emq.chain(tasks.sync.job(1), plain.mark.job(2)).enqueue()
    again = emq.chain(tasks.sync.job(1), plain.mark.job(2)).enqueue()
    assert (len(first.chain), again.chain, again.holder) == (2, [again], first.id)
    with pytest.raises(InvalidOption, match=r"sync is unique.*Use .using\(unique=False\)"):
        emq.chain(plain.mark.job(2), tasks.sync.job(1)).enqueue()


@pytest.mark.django_db
def test_the_face_of_django(client):
    """The result of a duplicate is that of the job that is there; nobody is told of a new one."""
    from tests.probe import native

    told = []

    def receiver(task_result, **facts):
        told.append(task_result.id)

    task_enqueued.connect(receiver)
    try:
        first = native.charge.enqueue(7, note="a")
        again = native.charge.enqueue(order=7, note="b")
    finally:
        task_enqueued.disconnect(receiver)
    assert (again.id, again.kwargs) == (first.id, {"note": "a"})
    assert told == [first.id]


@pytest.mark.django_db
def test_the_face_of_django_when_the_holder_is_gone(client):
    """A key that is held for a time, of a job whose row is gone: its id, and nothing more."""
    from tests.probe import native

    task = native.charge.using(unique_for=60)
    first = task.enqueue(7)
    scripts.remove(client, QUEUE, [first.id])
    assert task.enqueue(7).id == first.id


# -- faces ------------------------------------------------------------------------------------


def why(job_id):
    out = io.StringIO()
    call_command("emq_why", job_id, queue=QUEUE, stdout=out)
    return out.getvalue()


def test_why_tells_of_duplicates(client):
    """At the holder how many, and at the first refused id who holds the key."""
    (first, _, _) = emq.enqueue_many(tasks.sync.job(1) for _ in range(3))
    assert "2 duplicates were refused: this job holds the key." in why(first.id)
    job_id = inspector.trail(client, QUEUE)[0].id
    assert f"A duplicate was refused: job {first.id} holds the key." in why(job_id)


def test_why_tells_of_what_was_replaced(client):
    first = tasks.index.enqueue(1, 1)
    second = tasks.index.enqueue(1, 2)
    assert f"job {second.id} came in its place" in why(first.id)


def test_why_tells_who_is_waited_for(client):
    first = tasks.index.enqueue(1, 1)
    wire.claim_one(client, QUEUE)
    second = tasks.index.enqueue(1, 2)
    assert f"It waits behind job {first.id}, which holds its unique key" in why(second.id)


def test_the_trail_is_not_flooded(client):
    """A thousand duplicates would push all else out of it: the first of a holder is noted."""
    for _ in range(5):
        tasks.remind.enqueue(1)
    assert [entry.event for entry in inspector.trail(client, QUEUE)] == ["duplicate"]
    client.trail_all = client.trail_max
    tasks.remind.enqueue(1)
    assert len(inspector.trail(client, QUEUE)) == 2


def test_a_sandbox_lets_windows_end(probe, emq):
    """Time that passes there passes for keys, too."""
    assert tasks.remind.enqueue(1).status == "enqueued"
    emq.run_until_empty()
    assert tasks.remind.enqueue(1).status == "duplicate"
    emq.advance(3601)
    assert tasks.remind.enqueue(1).status == "enqueued"


def test_a_sandbox_lets_silence_end(probe, emq):
    """A debounced job runs after its window, with the newest arguments, or after max_wait."""
    tasks.save.enqueue(1, "a")
    emq.advance(20)
    tasks.save.enqueue(1, "b")
    emq.advance(20)
    assert emq.run_until_empty() == []
    emq.assert_enqueued(tasks.save, args=[1, "b"], count=1)
    for text in "cd":
        tasks.save.enqueue(1, text)
        emq.advance(15)
    emq.run_until_empty()
    assert probe.marks() == ["1 d"]

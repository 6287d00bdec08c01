"""Field reports of data that came out other than it went in."""

import hashlib

import pytest

import django_emq as emq
from django_emq import inspector, scripts
from django_emq.exceptions import EmqError, KindRefused
from django_emq.ids import mint
from django_emq.jobs import NewJob, decode, encode
from django_emq.keys import queue_keys
from tests.admin.yard import url
from tests.conformance import wire
from tests.conformance.wire import admit, books_balance, claim_one, lapse, pass_ms, retry
from tests.helpers import QUEUE, burst
from tests.probe import tasks, verdicts

# What a decode and encode in the server's JSON library would spoil.
DELICATE = {
    "tags": [],
    "o": {},
    "id": 9007199254740993,
    "big": 15947634569000323,
    "neg": -130775545883395173,
    "f": 1.0,
    "d": 0.1,
    "n": None,
    "s": "\u2028",
}


def test_B51_payload_altered_inside_the_script(probe, client, redis, queue):
    """The same bytes in the row after each verb, and the same arguments in the task."""
    text = encode("shop.tasks.check", [DELICATE], DELICATE, limit=10_000)
    job = NewJob(mint(), text)
    digest = hashlib.sha256(text.encode()).digest()

    def same(verb):
        stored = redis.hget(queue_keys(queue).job(job.id), "payload")
        assert hashlib.sha256(stored).digest() == digest, verb

    def claimed(token):
        got = claim_one(client, queue)
        assert got.token == token
        call = decode(got.payload)
        assert repr((call.args, call.kwargs)) == repr(([DELICATE], DELICATE))
        same("claim")

    assert admit(client, queue, job) == [1]
    same("enqueue")
    claimed(1)
    retry(client, queue, job.id, 1, delay_ms=1)
    same("retry")
    pass_ms(client, 5)
    assert scripts.promote(client, queue) == 1
    same("promote")
    claimed(2)
    lapse(client, queue, job.id, 2)
    same("reap")
    claimed(3)
    wire.snooze(client, queue, job.id, 3, 600_000)
    same("snooze")
    assert scripts.requeue(client, queue, [job.id]) == [1]
    same("requeue")
    claimed(4)
    wire.release(client, queue, job.id, 4)
    same("release")
    claimed(5)
    assert retry(client, queue, job.id, 5, maximum=1) == "dead"
    same("death")
    assert scripts.reprocess(client, queue, [job.id]) == [1]
    same("reprocess")
    assert scripts.cancel(client, queue, [job.id]) == [1]
    same("cancel")
    assert scripts.reprocess(client, queue, [job.id]) == [1]
    claimed(6)
    wire.complete(client, queue, job.id, 6, keep_ms=60_000)
    same("complete")
    books_balance(client, queue)

    verdicts.mark_repr.enqueue(DELICATE)
    emq.enqueue_in(0.001, verdicts.mark_repr, DELICATE)
    burst()
    assert probe.wait_for(2) == [repr(DELICATE)] * 2


def test_B55_text_that_cannot_be_stored(probe, client, admin_client):
    """It is stored in escaped form, and the job goes its way; the argument comes back as it was."""
    jobs = {kind: verdicts.raise_one.enqueue(kind) for kind in ("surrogate", "huge")}
    verdicts.mark_repr.enqueue("\ud83d")
    tasks.mark.enqueue("next")
    output = burst()
    assert probe.marks() == [repr("\ud83d"), "next"]
    assert "Traceback" not in output
    assert "child" not in output
    rows = {kind: inspector.row(client, QUEUE, job.id) for kind, job in jobs.items()}
    assert {(row["state"], row["failures"]) for row in rows.values()} == {("dead", "2")}
    assert rows["surrogate"]["last_error"] == "ValueError: bad \\udc80 \\x00 name"
    huge = rows["huge"]
    assert huge["last_error"].startswith("ValueError: \u0645\u0645")
    assert "bytes left out" in huge["last_error"]
    for field in ("last_error", "traceback"):
        assert len(huge[field].encode()) <= 16 * 1024
    for job in jobs.values():
        page = admin_client.get(url("queue_job", queue=QUEUE, job_id=job.id))
        assert page.status_code == 200
    page = admin_client.get(url("queue_job", queue=QUEUE, job_id=jobs["surrogate"].id))
    assert "bad \\udc80 \\x00 name" in page.content.decode()
    books_balance(client, QUEUE)


# Each id of the report, as text: callers cannot give one, so a stranger must.
IDS = ["poll:7", "123", "00123", "a b", "ünï", "x" * 300, "", "a{b}c", "x\n", "../y", "None"]


@pytest.mark.parametrize("name", IDS)
def test_B57_job_ids_with_special_form(client, redis, queue, admin_client, name):
    """Ids are minted, never given: there is no option for one, and each other form is refused.

    So '123' and 123 are no two rows, and no two ids share one.
    """
    for given in (name, 123, None):
        with pytest.raises(ValueError, match="option 'id'"):
            tasks.mark.using(id=given)
    assert admit(client, queue, wire.new()) == [1]  # the queue is known
    before = wire.snapshot(client, queue)
    verdict = admit(client, queue, NewJob(name, "{}"))[0]
    assert isinstance(verdict, KindRefused)
    assert "Job id must start with JOB" in str(verdict)
    assert inspector.state(client, queue, name) == "absent"
    for verb in (scripts.remove, scripts.reprocess, scripts.requeue, scripts.cancel):
        (answer,) = verb(client, queue, [name])
        assert isinstance(answer, EmqError)
    if name and "/" not in name:
        page = admin_client.get(url("queue_job", queue=queue, job_id=name))
        assert page.status_code == 404
    assert wire.snapshot(client, queue) == before

"""SIGN_PAYLOADS: what was not enqueued with the project's key is never run."""

import json

import pytest
from django.test import override_settings

from django_emq import inspector, scripts, signing
from django_emq import queue as api
from django_emq.exceptions import ForgedPayload
from django_emq.ids import mint
from django_emq.jobs import NewJob
from django_emq.keys import queue_keys
from tests.conformance.wire import admit, claim_some, row
from tests.helpers import burst
from tests.probe import tasks
from tests.variant import variant

ON = {"SIGN_PAYLOADS": True}


def payload(redis, job) -> bytes:
    return redis.hget(queue_keys(job.queue).job(job.id), "payload")


@pytest.fixture
def signed(settings):
    settings.EMQ = {**settings.EMQ, **ON}


def test_off_it_leaves_no_trace(redis, queue):
    job = tasks.mark.using(queue=queue).enqueue(1)
    assert json.loads(payload(redis, job)) == {"task": "tests.probe.tasks.mark", "args": [1]}


def test_a_signed_payload_is_still_json(redis, queue, signed):
    """With the signature beside task and arguments; what reads it need not know of it."""
    job = tasks.mark.using(queue=queue).enqueue(1)
    body = json.loads(payload(redis, job))
    assert len(body.pop("sig")) == signing.SIZE
    assert body == {"task": "tests.probe.tasks.mark", "args": [1]}
    signing.check(payload(redis, job), job.id.encode())


def forged(name: str, good: bytes, other: bytes) -> bytes:
    """A payload that is not what was enqueued."""
    begin = len(signing.HEAD) + signing.SIZE + len(signing.TAIL)
    return {
        "unsigned": b"{" + good[begin:],
        "altered": good.replace(b'"args":[1]', b'"args":[2]'),
        "another job's": other,
        "another signature": other[:begin] + good[begin:],
        "empty signature": b'{"sig":"",' + good[begin:],
        "cut": good[:20],
        "only the head": signing.HEAD.encode(),
        "no text": signing.HEAD.encode() + b"\xff" * 60,
        "sig behind": b"{" + good[begin:-1] + b"," + good[1 : begin - 1] + b"}",
        "nothing": b"",
    }[name]


FORGERIES = [
    "unsigned", "altered", "another job's", "another signature", "empty signature", "cut",
    "only the head", "no text", "sig behind", "nothing",
]  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused(redis, queue, signed, name):
    job, other = (tasks.mark.using(queue=queue).enqueue(1) for _ in range(2))
    bad = forged(name, payload(redis, job), payload(redis, other))
    with pytest.raises(ForgedPayload):
        signing.check(bad, job.id.encode())


def test_forgeries_go_to_the_morgue_and_are_never_run(client, redis, queue, probe, signed):
    """Sync and async; the sound ones beside them run."""
    good = tasks.mark.using(queue=queue).enqueue("good")
    for task in (tasks.mark, tasks.aprobe):
        bad = task.using(queue=queue).enqueue("bad")
        body = payload(redis, bad).replace(b'"bad"', b'"evil"')
        redis.hset(queue_keys(queue).job(bad.id), "payload", body)
    admit(client, queue, NewJob(mint(), '{"task":"tests.probe.tasks.mark","args":["evil"]}'))
    burst(queue, **variant(EMQ=ON))
    assert probe.marks() == ["good"]
    assert inspector.counts(client, queue) == {
        "pending": 0, "active": 0, "schedule": 0, "dead": 3, "done": 0,
    }  # fmt: skip
    page = inspector.page(client, queue, "dead")
    assert {one.error_class for one in page.rows} == {"django_emq.exceptions.ForgedPayload"}
    assert inspector.state(client, queue, good.id) == "absent"


def test_keys_are_rotated(redis, queue, signed):
    """The old key is good while it is among the fallbacks, and for nothing else."""
    with override_settings(SECRET_KEY="old"):
        job = tasks.mark.using(queue=queue).enqueue(1)
    body, job_id = payload(redis, job), job.id.encode()
    with pytest.raises(ForgedPayload):
        signing.check(body, job_id)
    with override_settings(SECRET_KEY_FALLBACKS=["older", "old"]):
        signing.check(body, job_id)
        new = tasks.mark.using(queue=queue).enqueue(1)
    signing.check(payload(redis, new), new.id.encode())


def test_the_first_step_runs_what_is_not_signed(redis, queue, settings):
    """But nothing that carries a wrong signature."""
    plain = payload(redis, tasks.mark.using(queue=queue).enqueue(1))
    settings.EMQ = {"SIGN_PAYLOADS": "sign"}
    job = tasks.mark.using(queue=queue).enqueue(1)
    body = payload(redis, job)
    signing.check(body, job.id.encode())
    signing.check(plain, job.id.encode())
    with pytest.raises(ForgedPayload):
        signing.check(body.replace(b"[1]", b"[2]"), job.id.encode())


def test_it_survives_failure_and_another_life(client, redis, queue, probe, signed):
    """Retries, the morgue and an operator change nothing of it."""
    job = tasks.boom_until.using(queue=queue, max_attempts=1).enqueue(9, "x")
    burst(queue, **variant(EMQ=ON))
    assert inspector.state(client, queue, job.id) == "dead"
    assert "ForgedPayload" not in row(client, queue, job.id)["last_error"]
    assert scripts.reprocess(client, queue, [job.id]) == [1]
    (claimed,) = claim_some(client, queue, 1)
    signing.check(claimed.payload, claimed.id)


def test_the_editor_signs_what_it_saves(client, redis, queue, db, signed):
    """The new arguments run; the old signature is gone."""
    from django.contrib.auth.models import User
    from django.test import Client as Browser

    from tests.admin.yard import url

    job = tasks.mark.using(queue=queue, run_in=60).enqueue(1)
    browser = Browser()
    browser.force_login(User.objects.create_superuser("anna"))
    address = url("queue_edit", queue=queue, job_id=job.id)
    assert browser.post(address, {"args": "[2]", "kwargs": "{}"}).status_code == 302
    body = payload(redis, job)
    assert (json.loads(body)["args"], body.count(b'"sig"')) == ([2], 1)
    signing.check(body, job.id.encode())


def test_every_face_signs(redis, queue, signed):
    """Many at once, delayed, and by name."""
    jobs = api.enqueue_many(tasks.mark.using(queue=queue).job(n) for n in range(3))
    jobs.append(api.enqueue_in(60, tasks.mark.using(queue=queue), 1))
    for job in jobs:
        signing.check(payload(redis, job), job.id.encode())

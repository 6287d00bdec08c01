"""Markup in arguments, errors and names is shown as text, on every page."""

import json

import pytest
from django.urls import reverse

from django_emq import scripts
from django_emq.ids import mint
from tests.admin.yard import admit, kill, payload, url

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
LINK = "javascript:alert(1)"
QUOTES = "\"'><b>name</b>"
RAW = (IMAGE, SCRIPT, "<b>name</b>", "onerror=alert(1)>", f'href="{LINK}')


@pytest.fixture
def nasty(client, redis, queue):
    """Markup wherever a stranger could have put it; the dead job."""
    (job_id,) = kill(
        client, queue, [payload(IMAGE, IMAGE, {QUOTES: SCRIPT}, link=LINK)], error=SCRIPT
    )
    key = f"emq:{{{queue}}}:job:{job_id}"
    names = {"progress": IMAGE, "result": json.dumps({IMAGE: SCRIPT}), "worker": QUOTES}
    redis.hset(key, mapping={**names, QUOTES: IMAGE, "traceback": SCRIPT})
    redis.rpush(f"{key}:logs", IMAGE, SCRIPT)
    redis.sadd("{emq}:queues", QUOTES, IMAGE)
    redis.zadd(f"emq:{{{queue}}}:dead", {QUOTES: 1, f"JOB{IMAGE}": 2})
    redis.xadd(
        f"emq:{{{queue}}}:trail", {"event": IMAGE, "id": job_id, "note": SCRIPT, "by": QUOTES}
    )
    admit(client, queue, [payload(SCRIPT, IMAGE) for _ in range(2)])
    scripts.claim(client, queue, worker=QUOTES, request=mint(), lease_ms=15_000, count=1)
    facts = {"queues": f"{queue} {IMAGE}", "state": IMAGE, "version": SCRIPT, "jobs": QUOTES}
    scripts.beat(client, QUOTES, ttl_ms=60_000, facts=facts)
    scripts.pause(client, queue, by=QUOTES, why=IMAGE)
    return job_id


def test_B86_markup_in_arguments_errors_and_names(operator, client, queue, nasty):
    """Every page, confirmation and message: escaped there, raw nowhere."""
    pages = [
        operator.get(reverse("admin:index")),
        operator.get(url("queue_changelist")),
        operator.get(url("queue_changelist") + f"?q={IMAGE}"),
        *(
            operator.get(url("queue_set", queue=queue, name=name))
            for name in ("pending", "active", "schedule", "dead", "done")
        ),
        operator.get(url("queue_set", queue=queue, name="dead"), {"task": IMAGE, "error": QUOTES}),
        operator.get(url("queue_job", queue=queue, job_id=nasty)),
        operator.get(url("queue_job", queue=queue, job_id=QUOTES)),
        operator.get(url("queue_edit", queue=queue, job_id=nasty)),
        operator.get(url("morgue_changelist")),
        operator.get(url("worker_changelist")),
        operator.get(url("server_changelist")),
        operator.post(
            url("queue_act", queue=queue),
            {"action": "remove", "set": "dead", "scope": "selected", "ids": [QUOTES, IMAGE]},
        ),
        operator.post(
            url("queue_act", queue=queue),
            {"action": "remove", "set": "dead", "scope": "all", "task": IMAGE, "error": SCRIPT},
        ),
        operator.post(
            url("queue_edit", queue=queue, job_id=nasty), {"args": IMAGE, "kwargs": SCRIPT}
        ),
    ]
    sent = {"action": "requeue", "set": "dead", "scope": "selected", "ids": [nasty, QUOTES]}
    pages.append(operator.post(url("queue_act", queue=queue), sent, follow=True))
    for page in pages:
        assert page.status_code == 200
        assert page["Content-Type"].startswith("text/html")  # there are no others
        for raw in RAW:
            assert raw not in page.content.decode(), page.request["PATH_INFO"]
    job = pages[9].content.decode()
    assert "&lt;img src=x onerror=alert(1)&gt;" in job
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in job


@pytest.mark.parametrize("view", ["queue_change", "queue_job", "queue_act"])
def test_errors_are_text_too(operator, queue, nasty, view):
    """404 and 400 pages carry no markup of the address or form."""
    names = {"queue": queue if view != "queue_change" else IMAGE}
    if view == "queue_job":
        names["job_id"] = IMAGE
    page = (
        operator.post(url(view, **names), {"action": IMAGE, "set": SCRIPT})
        if view == "queue_act"
        else operator.get(url(view, **names))
    )
    assert page.status_code in (400, 404)
    for raw in RAW:
        assert raw not in page.content.decode()


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"[]", b'{"task": 1}', b"", b"[" * 100_000, b'{"task": "x", "args": 5}']
)
def test_a_payload_that_cannot_be_read(operator, redis, yard, body):
    """The pages say so, and the editor does not pretend."""
    job_id = yard.dead[0]
    redis.hset(f"emq:{{{yard.queue}}}:job:{job_id}", "payload", body)
    page = operator.get(url("queue_job", queue=yard.queue, job_id=job_id))
    assert page.status_code == 200
    assert "cannot be read" in page.content.decode()
    assert operator.get(url("queue_set", queue=yard.queue, name="dead")).status_code == 200
    assert operator.get(url("morgue_changelist")).status_code == 200
    target = url("queue_edit", queue=yard.queue, job_id=job_id)
    page = operator.post(target, {"args": "[]", "kwargs": "{}"})
    assert "cannot be read" in page.content.decode()
    assert redis.hget(f"emq:{{{yard.queue}}}:job:{job_id}", "payload") == body


def test_rows_of_another_type(operator, redis, yard):
    """A string where a row should be takes no page with it."""
    key = f"emq:{{{yard.queue}}}:job:{yard.dead[0]}"
    redis.delete(key)
    redis.set(key, "not a row")
    for address in (
        url("queue_job", queue=yard.queue, job_id=yard.dead[0]),
        url("queue_set", queue=yard.queue, name="dead"),
        url("morgue_changelist"),
    ):
        assert operator.get(address).status_code == 200


@pytest.mark.parametrize("score", ["inf", "-inf", "9e18", "-5"])
def test_scores_that_are_no_times(operator, redis, yard, score):
    for name in ("active", "schedule", "dead", "done"):
        job_id = getattr(yard, name)[0]
        redis.zadd(f"emq:{{{yard.queue}}}:{name}", {job_id: score})
        assert operator.get(url("queue_set", queue=yard.queue, name=name)).status_code == 200
        page = operator.get(url("queue_job", queue=yard.queue, job_id=job_id))
        assert page.status_code == 200
    for name in ("morgue", "worker"):
        assert operator.get(url(f"{name}_changelist")).status_code == 200

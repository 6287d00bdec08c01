"""What the page of a job says of its chain, and what an edit leaves of it."""

import json

import django_emq as emq
from django_emq import scripts, signing
from django_emq.jobs import decode
from tests.admin.yard import texts, url
from tests.conformance.wire import claim_one, row
from tests.probe import chained

SECRET = "hunter22"


def page_of(operator, job):
    return operator.get(url("queue_job", queue=job.queue, job_id=job.id)).content.decode()


def test_the_pages_of_a_chain_lead_to_each_other(operator, client, queue):
    """Before: what hangs on it, by id and task. After: links both ways, and what was left."""
    first = chained.first.using(queue=queue, max_attempts=1, on_failure=chained.tell)
    second = chained.link.using(queue=queue)
    job = emq.chain(first.job(), second.job("x", add=2)).enqueue()
    scripts.register(client, [queue])
    text = page_of(operator, job)
    assert job.chain[1].id in text
    assert "tests.probe.chained.link" in text
    assert job.on_failure[0].id in text
    assert 'emq-quiet">default</span>' in text  # the callback goes to another queue
    claim_one(client, queue)
    left = json.dumps({"password": SECRET, "sum": 7})
    scripts.complete(client, queue, [(job.id, 1, left)], keep_ms=60_000)
    text = page_of(operator, job)
    assert f"?q={job.chain[1].id}" in text
    text = page_of(operator, job.chain[1])
    assert f"?q={job.id}" in text
    assert "&quot;sum&quot;: 7" in text
    assert SECRET not in text
    found = operator.get(url("queue_changelist"), {"q": job.chain[1].id})
    assert found.headers["Location"] == url("queue_job", queue=queue, job_id=job.chain[1].id)


def test_the_arguments_of_later_jobs_are_not_shown_raw(operator, queue):
    """They wait as a text in a field of the row, secrets and all."""
    later = chained.tell.job({"password": SECRET})
    job = chained.first.using(queue=queue, on_success=later).enqueue()
    assert SECRET not in page_of(operator, job)


def test_an_edit_keeps_the_chain(operator, client, queue, settings):
    """What the job was left stays, and the mark that it passes its value on. It is signed anew."""
    settings.EMQ = {**settings.EMQ, "SIGN_PAYLOADS": True}
    first, second = chained.first.using(queue=queue), chained.link.using(queue=queue)
    job = emq.chain(first.job(), second.job("x"), chained.tell.job()).enqueue()
    scripts.register(client, [queue])
    claim_one(client, queue)
    scripts.complete(client, queue, [(job.id, 1, "7")])
    edit = url("queue_edit", queue=queue, job_id=job.chain[1].id)
    was = operator.get(edit).context["form"]["was"].value()
    data = {"args": json.dumps(["y"]), "kwargs": "{}", "was": was}
    assert "was changed" in texts(operator.post(edit, data, follow=True))[0]
    payload = row(client, queue, job.chain[1].id)["payload"].encode()
    call = decode(payload)
    assert (call.args, call.passes, call.previous) == (["y"], True, emq.Previous(job.id, 7))
    signing.check(payload, job.chain[1].id.encode())

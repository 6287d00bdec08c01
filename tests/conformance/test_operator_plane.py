"""Section 6.3, operator plane: scenario 25."""

from django_emq import inspector, scripts

from .wire import claim_one, enqueue_one, given


def test_25_queue_pause(client, queue):
    """Given J, when the queue is paused, claimed and resumed, then nothing, then (J, `p`, 1)."""
    job_id = enqueue_one(client, queue, "p")
    scripts.pause(client, queue)
    assert claim_one(client, queue) is None
    assert inspector.counts(client, queue)["pending"] == 1
    assert scripts.resume(client, queue) is True
    assert given(claim_one(client, queue)) == (job_id, "p", 1)

"""Section 6.3, operator plane: scenarios 25 to 32; and 40, dedup release, of section 6.4."""

import json

import pytest

from django_emq import inspector, scripts
from django_emq.exceptions import JobGone, JobHeld, NotInState, StaleToken
from django_emq.ids import mint
from django_emq.jobs import UniqueKey
from django_emq.keys import digest, queue_keys
from tests.conformance import wire

from .wire import claim_one, enqueue_one, enqueue_some, given, members, new, retry, row

SETS = ("pending", "active", "schedule", "dead")


def test_25_queue_pause(client, queue):
    """Given J, when the queue is paused, claimed and resumed, then nothing, then (J, `p`, 1)."""
    job_id = enqueue_one(client, queue, "p")
    scripts.pause(client, queue)
    assert claim_one(client, queue) is None
    assert inspector.counts(client, queue)["pending"] == 1
    assert scripts.resume(client, queue) is True
    assert given(claim_one(client, queue)) == (job_id, "p", 1)


def test_26_drain(client, redis, queue):
    """Given one claimed and three pending, when drained, then 3; the claimed one stays."""
    claimed = enqueue_one(client, queue)
    claim_one(client, queue)
    drained = enqueue_some(client, queue, 3)
    assert scripts.drain(client, queue, "pending") == 3
    asked = ("pending", "active")
    assert inspector.counts(client, queue, asked) == {"pending": 0, "active": 1}
    assert inspector.state(client, queue, claimed) == "active"
    assert redis.exists(queue_keys(queue).job(drained[0])) == 0


def test_27_obliterate(client, queue):
    """Given one pending, when obliterated, then not paused; when paused first, then all is gone."""
    enqueue_one(client, queue)
    with pytest.raises(NotInState, match="^Not paused$"):
        scripts.obliterate(client, queue)
    assert inspector.counts(client, queue)["pending"] == 1
    scripts.pause(client, queue)
    assert scripts.obliterate(client, queue) is False  # nothing more is left
    assert inspector.counts(client, queue, SETS) == dict.fromkeys(SETS, 0)


def test_28_update_data(client, queue):
    """Given J with `old`, when updated to `new`, then that is its payload; a missing id is gone."""
    job_id = enqueue_one(client, queue, "old")
    scripts.update(client, queue, job_id, "new")
    assert row(client, queue, job_id)["payload"] == "new"
    with pytest.raises(JobGone):
        scripts.update(client, queue, mint(), "new")


def test_29_update_progress(client, redis, queue):
    """Given J and a subscriber, when `50` is said, then it is in the row and one message comes.

    Ours is fenced: only the holder says how far it is. So J is claimed first, and what comes
    without its token is refused.
    """
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    with redis.pubsub() as subscriber:
        subscriber.subscribe(queue_keys(queue).events)
        assert subscriber.get_message(timeout=1)["type"] == "subscribe"
        wire.progress(client, queue, job_id, 1, "50")
        message = subscriber.get_message(timeout=1)
        assert subscriber.get_message(timeout=0.05) is None
    assert row(client, queue, job_id)["progress"] == "50"
    assert json.loads(message["data"]) == {"event": "progress", "job": job_id, "progress": "50"}
    with pytest.raises(JobGone):
        wire.progress(client, queue, mint(), 1, "50")
    with pytest.raises(StaleToken, match=r"\(yours 2, row 1\)"):
        wire.progress(client, queue, job_id, 2, "50")


def test_30_job_logs(client, queue):
    """Given J, when three lines are logged, the last with keep 2, then the newest two are left.

    Ours is fenced like progress. It always keeps a number of lines, 100 where none is given.
    """
    job_id = enqueue_one(client, queue)
    claim_one(client, queue)
    assert wire.log(client, queue, job_id, 1, "line-1") == 1
    assert wire.log(client, queue, job_id, 1, "line-2") == 2
    assert inspector.job(client, queue, job_id).logs == ["line-1", "line-2"]
    assert wire.log(client, queue, job_id, 1, "line-3", keep=2) == 2
    assert inspector.job(client, queue, job_id).logs == ["line-2", "line-3"]
    with pytest.raises(JobGone):
        wire.log(client, queue, mint(), 1, "line-1")
    with pytest.raises(JobGone):
        inspector.job(client, queue, mint())
    with pytest.raises(StaleToken, match=r"\(yours 2, row 1\)"):
        wire.log(client, queue, job_id, 2, "line-4")


def test_31_remove_job(client, queue):
    """Given J free and J2 held, when both are removed, then J is absent, and J2 is locked.

    The contract's J2 is pending with a lock set by hand, which its own consumer never sets. Ours
    is held when it is in `active`; it stays there. J's unique key goes with it.
    """
    held = enqueue_one(client, queue)
    claim_one(client, queue)
    free = unique_one(client, queue, "dedup-7")
    assert inspector.unique(client, queue, "dedup-7") == free
    assert scripts.one(scripts.remove(client, queue, [free])) == 1
    assert inspector.unique(client, queue, "dedup-7") is None
    assert inspector.state(client, queue, free) == "absent"
    with pytest.raises(JobHeld):
        scripts.one(scripts.remove(client, queue, [held]))
    assert inspector.state(client, queue, held) == "active"


def test_32_reprocess_job(client, queue):
    """Given one dead and one pending, when both are reprocessed, then one lives, one is not dead.

    The token is kept, as in the contract. The score of a job without a priority is 0 there too.
    """
    dead = enqueue_one(client, queue)
    claim_one(client, queue)
    assert retry(client, queue, dead, 1, maximum=1) == "dead"
    pending = enqueue_one(client, queue)
    assert scripts.one(scripts.reprocess(client, queue, [dead])) == 1
    assert inspector.state(client, queue, dead) == "pending"
    assert members(client, queue, "pending")[dead] == 0
    fields = row(client, queue, dead)
    assert (fields["state"], fields["attempts"]) == ("pending", "1")
    assert "last_error" not in fields
    with pytest.raises(NotInState, match="^Not dead$"):
        scripts.one(scripts.reprocess(client, queue, [pending]))
    assert inspector.state(client, queue, pending) == "pending"


def test_40_dedup_release(client, redis, queue):
    """Given J and a unique key of another job, when J is removed, then only J's own key goes."""
    job_id, other = unique_one(client, queue, "conf-dedup"), mint()
    orphan = queue_keys(queue).unique("conf-orphan")
    redis.set(orphan, other)
    assert scripts.one(scripts.remove(client, queue, [job_id])) == 1
    assert redis.get(orphan) == other.encode()
    assert inspector.unique(client, queue, "conf-orphan") == other
    assert inspector.unique(client, queue, "conf-dedup") is None


def unique_one(client, queue, key):
    """Enqueue a job with a unique key; its id."""
    job = new()._replace(unique=UniqueKey(digest(key), "finish", 0, "reject", 0))
    assert scripts.enqueue_unique(client, queue, [job], request=job.id, producer="p") == [1]
    return job.id

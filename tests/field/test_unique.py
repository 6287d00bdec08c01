"""Field reports of unique jobs."""

import pytest

from django_emq import inspector, scripts
from tests.conformance import wire
from tests.helpers import QUEUE
from tests.probe import unique

# How the holder of a key ends without having run, or for good.
ENDS = {
    "dead": lambda client, job: wire.bury(client, QUEUE, job.id, 1),
    "deleted": lambda client, job: scripts.remove(client, QUEUE, [job.id], only="schedule"),
    "cleared": lambda client, job: scripts.drain(client, QUEUE, "pending"),
}


@pytest.mark.parametrize("end", ENDS)
def test_B31_dead_or_deleted_job_blocks_its_unique_key(client, end):
    """The key is free at once, and the next job with it runs.

    While a job with that key is pending, scheduled or active the call answers its id and says so.
    """
    first = unique.check.using(run_in=60 if end == "deleted" else None).enqueue("1")
    assert unique.check.enqueue("1").id == first.id
    if end == "dead":
        wire.claim_one(client, QUEUE)
        assert unique.check.enqueue("1").status == "duplicate"
    ENDS[end](client, first)
    again = unique.check.enqueue("1")
    assert (again.status, again.holder) == ("enqueued", "")
    assert wire.claim_one(client, QUEUE).id.decode() == again.id
    assert wire.complete(client, QUEUE, again.id, 1) == 1
    assert inspector.unique(client, QUEUE, "tests.probe.unique.check:hc-1") is None

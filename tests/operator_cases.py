"""What the tests of the operators' verbs share: the verbs, the states, and who holds a token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_emq import scripts
from django_emq.exceptions import StaleToken
from django_emq.ids import mint
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.conformance.wire import (
    bury,
    claim_one,
    complete,
    enqueue_one,
    extend,
    given,
    lapse,
    retry,
)

Verb = Callable[..., list[object]]
# What an operator asks of several jobs in one call.
VERBS: dict[str, Verb] = {
    "reprocess": scripts.reprocess,
    "requeue": scripts.requeue,
    "cancel": scripts.cancel,
    "remove": scripts.remove,
    "remove by force": lambda c, q, ids, **o: scripts.remove(c, q, ids, force=True, **o),
}
# What the holder of a token may say of its job.
HOLDERS: dict[str, Callable[..., object]] = {
    "complete": complete,
    "retry": retry,
    "extend": extend,
    "snooze": wire.snooze,
    "release": wire.release,
    "bury": bury,
    "discard": wire.discard,
    "progress": lambda c, q, i, t: wire.progress(c, q, i, t, "50"),
    "log": lambda c, q, i, t: wire.log(c, q, i, t, "line"),
}
each_holder = pytest.mark.parametrize("name", HOLDERS)


def job_in(client, queue, state: str, **fields: object) -> str:
    """A job in this state; all but the pending one have been claimed, with token 1."""
    if state == "absent":
        return mint()
    # First in its order, so that it is what the claim takes.
    job_id = enqueue_one(client, queue, **{"priority": 9, **fields})
    if state == "pending":
        return job_id
    if state == "ghost":
        client.raw.delete(queue_keys(queue).job(job_id))
        return job_id
    assert given(claim_one(client, queue)) == (job_id, "work", 1)
    if state == "swept":
        lapse(client, queue, job_id, 1)
    elif state == "lapsed":
        extend(client, queue, job_id, 1, lease_ms=0)
    elif state == "scheduled":
        wire.snooze(client, queue, job_id, 1, 60_000)
    elif state == "dead":
        retry(client, queue, job_id, 1, maximum=1)
    elif state == "done":
        complete(client, queue, job_id, 1, keep_ms=60_000)
    elif state == "row alone":
        client.raw.zrem(queue_keys(queue).active, job_id)
    return job_id


def everything(client) -> dict[bytes, bytes]:
    """All that the server holds, counters and trail included."""
    raw = client.raw
    return {key: raw.dump(key) for key in raw.keys("*")}


def kinds(verdicts: list[object]) -> list[object]:
    """Verdicts, refusals by their class."""
    return [type(v) if isinstance(v, Exception) else v for v in verdicts]


def ask(client, queue, verb: str, job_id: str, **options: object) -> object:
    """The verdict on one job; raises a refusal."""
    if verb == "update":
        return scripts.update(client, queue, job_id, "new", **options)
    return scripts.one(VERBS[verb](client, queue, [job_id], **options))


def refused(client, queue, name: str, job_id: str, token: int) -> str:
    """The text of a holder's refusal, which moved nothing."""
    before = wire.snapshot(client, queue)
    with pytest.raises(StaleToken) as refusal:
        HOLDERS[name](client, queue, job_id, token)
    assert wire.snapshot(client, queue) == before
    return str(refusal.value)


def counter(client, queue, name: str) -> int:
    """One of the queue's counters."""
    return int(client.raw.hget(queue_keys(queue).metrics, name) or 0)

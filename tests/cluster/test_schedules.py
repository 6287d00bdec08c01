"""Schedules on a cluster: each is in the slot of its queue, and all are entered and ticked."""

from django_emq import inspector
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper


def test_schedules_on_all_nodes(client, settings):
    """By a reaper of all queues, which learns of them from what the code declares."""
    queues = ["alpha", "beta", "gamma", "delta"]
    assert len({client.at(queue_keys(queue).repeat) for queue in queues}) > 1
    plan = {"task": "tests.probe.tasks.mark", "args": [1], "every": 3600}
    plans = {f"of {queue}": {**plan, "queue": queue} for queue in queues}
    settings.EMQ = {**settings.EMQ, "SCHEDULES": plans}
    reaper = Reaper(client, (), interval=9)
    reaper.run_once()
    assert sorted(one.name for one in inspector.schedules(client)) == sorted(plans)
    for queue in queues:
        client.raw.zincrby(queue_keys(queue).repeat, -3_600_000, f"of {queue}")
    reaper.run_once()
    assert reaper.ticker.fired == len(queues)
    assert [inspector.counts(client, queue)["pending"] for queue in queues] == [1] * len(queues)
    assert all(one.last_job for one in inspector.schedules(client))

"""Schedules for tasks of Django's own API."""

import django_emq as emq
from django_emq import connections, inspector, schedules
from django_emq.compat import TaskResultStatus, task_backends
from django_emq.keys import queue_keys
from django_emq.ticker import Ticker
from tests.conformance.wire import members
from tests.helpers import QUEUE
from tests.probe import native


def test_a_task_of_django_has_a_schedule(client, monkeypatch):
    """By a decorator above Django's: its job has a result like any other of its jobs."""
    monkeypatch.setattr(schedules, "_decorated", {})
    assert emq.every(hours=1, name="x", args=[1])(native.wait_for_go) is native.wait_for_go
    ticker = Ticker(connections.client())
    ticker.declare([QUEUE])
    client.raw.zincrby(queue_keys(QUEUE).repeat, -3_600_000, "x")
    ticker.tick(QUEUE)
    (job_id,) = members(client, QUEUE, "pending")
    assert inspector.row(client, QUEUE, job_id)["backend"] == "default"
    result = task_backends["default"].get_result(job_id)
    assert (result.status, result.args) == (TaskResultStatus.READY, [1])

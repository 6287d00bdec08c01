"""What the tests of the outbox share."""

import pytest

from django_emq import scripts
from django_emq.keys import queue_keys
from django_emq.models import Outbox
from django_emq.relay import Relay
from tests.helpers import QUEUE

on_sqlite = pytest.mark.django_db(transaction=True)


def rows(alias):
    return list(Outbox.objects.using(alias).order_by("id"))


def drain(client, alias, **options):
    """What a relay does; how many rows it pushed."""
    one = Relay(client, (alias,), **options)
    one.drain(alias)
    return one.pushed


def work(client, queue=QUEUE):
    """Run and finish all jobs that are ready, as a worker would; their ids in order."""
    claims = scripts.claim(client, queue, worker="w", request="r", lease_ms=60_000, count=1000)
    scripts.complete(client, queue, [(job.id, job.token, "") for job in claims.jobs])
    client.raw.delete(queue_keys(queue).claims("w"))
    return [job.id.decode() for job in claims.jobs]

"""How fast the outbox is on PostgreSQL, by hand: `pytest -q -s tests/outbox/measure.py`."""

import uuid
from time import perf_counter

from django.db import connections as databases
from django.db import transaction

import django_emq as emq
from django_emq.models import Outbox
from tests.outbox.boxes import drain
from tests.probe import tasks

JOBS, CALLS = 100_000, 5_000


def per_second(count, work):
    """How many of `count` things `work` does in a second."""
    started = perf_counter()
    work()
    return count / (perf_counter() - started)


def bare_rows(alias):
    """As many rows, one for each job, by nothing but Django's bulk_create."""
    payload = '{"task":"tests.probe.tasks.mark","args":[1]}'
    rows = (
        Outbox(id=uuid.uuid4(), batch=uuid.uuid4(), queue="default", count=1, jobs=payload)
        for _ in range(JOBS)
    )
    with transaction.atomic(alias):
        Outbox.objects.using(alias).bulk_create(rows, batch_size=1000)


def bare_executemany(alias):
    """The same by the driver alone."""
    rows = [(uuid.uuid4(), '{"task":"tests.probe.tasks.mark","args":[1]}') for _ in range(JOBS)]
    with transaction.atomic(alias), databases[alias].cursor() as cursor:
        cursor.execute("create temporary table bare (id uuid primary key, jobs text)")
        cursor.executemany("insert into bare values (%s, %s)", rows)


def test_measure(client, pg, left):
    """Jobs a second, stored and relayed, many in a call and one; beside bare inserts."""
    task = tasks.mark.using(outbox=pg)

    def store():
        with transaction.atomic(pg):
            emq.enqueue_many(task.job(i) for i in range(JOBS))

    def store_singly():
        for start in range(0, CALLS, 10):
            with transaction.atomic(pg):
                for i in range(start, start + 10):
                    task.enqueue(i)

    bare = per_second(JOBS, lambda: bare_rows(pg))
    Outbox.objects.using(pg).delete()
    driver = per_second(JOBS, lambda: bare_executemany(pg))
    stored = per_second(JOBS, store)
    relayed = per_second(JOBS, lambda: drain(client, pg))
    singly = per_second(CALLS, store_singly)
    relayed_singly = per_second(CALLS, lambda: drain(client, pg))
    client.raw.flushdb()
    direct = per_second(JOBS, lambda: emq.enqueue_many(tasks.mark.job(i) for i in range(JOBS)))
    print(
        f"\nbulk_create, a row a job      {bare:>9,.0f} jobs/s"
        f"\nexecutemany, a row a job      {driver:>9,.0f}"
        f"\nstored, {JOBS:,} in a call   {stored:>9,.0f}   {stored / bare:.1f} times bulk_create"
        f"\nrelayed, these                {relayed:>9,.0f}   {relayed / bare:.1f} times bulk_create"
        f"\nstored, one a call            {singly:>9,.0f}"
        f"\nrelayed, these                {relayed_singly:>9,.0f}"
        f"\nenqueue_many, no outbox       {direct:>9,.0f}"
    )

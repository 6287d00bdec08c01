"""How fast jobs are admitted."""

from __future__ import annotations

import gc
from time import perf_counter

import django_emq as emq
from django_emq import connections, inspector, scripts
from django_emq.batches import Batch
from django_emq.ids import mint
from django_emq.jobs import NewJob

from .drains import Figures
from .lab import Lab, Miscount, lab
from .sizes import Sizes
from .tasks import noop

BLOCKS = 8  # the two loops take turns, so that both have the same share of a busy machine


def one_by_one(sizes: Sizes) -> Figures:
    """Jobs a second, one call a job: by `enqueue`, and by a bare loop that sends the same."""
    block = sizes.calls // BLOCKS
    ours = floor = 0.0
    with lab(1) as bench:
        _by_enqueue(block)
        _by_bare_loop(bench, block)
        for _ in range(BLOCKS):
            ours += _by_enqueue(block)
            floor += _by_bare_loop(bench, block)
        _check(bench, 2 * block * (BLOCKS + 1))
    return {"enqueue_one": block * BLOCKS / ours, "enqueue_floor": block * BLOCKS / floor}


def _by_enqueue(count: int) -> float:
    gc.collect()
    start = perf_counter()
    for job in range(count):
        noop.enqueue(job)
    return perf_counter() - start


def _by_bare_loop(bench: Lab, count: int) -> float:
    """The calls of the same script, all made beforehand."""
    calls = []
    for job in range(count):
        new = NewJob(mint(), f'{{"task":"{noop.name}","args":[{job}]}}')
        batch = Batch(connections.client())  # only notes the call
        scripts.enqueue(batch, bench.queue, [new], request=new.id, producer="floor")
        script, call, _ = batch.calls[0]
        calls.append((script.sha, *call))
    gc.collect()
    start = perf_counter()
    for call in calls:
        bench.redis.evalsha(*call)
    return perf_counter() - start


def many(sizes: Sizes) -> Figures:
    """Jobs a second in one call of `enqueue_many`."""
    with lab(1) as bench:
        emq.enqueue_many(noop.job(job) for job in range(1000))
        gc.collect()
        start = perf_counter()
        emq.enqueue_many(noop.job(job) for job in range(sizes.bulk))
        seconds = perf_counter() - start
        _check(bench, sizes.bulk + 1000)
    return {"enqueue_many": sizes.bulk / seconds}


def bytes_per_job(sizes: Sizes) -> Figures:
    """Memory of the server for one job that waits."""
    with lab(1) as bench:
        emq.enqueue_many(noop.job(job) for job in range(1000))
        before = bench.info("memory", "used_memory")
        emq.enqueue_many(noop.job(job) for job in range(sizes.waiting))
        after = bench.info("memory", "used_memory")
        _check(bench, sizes.waiting + 1000)
    return {"bytes_per_job": (after - before) / sizes.waiting}


def _check(bench: Lab, jobs: int) -> None:
    waiting = inspector.counts(connections.client(), bench.queue, ("pending",))["pending"]
    if waiting != jobs:
        raise Miscount(f"{waiting:,} jobs wait, not {jobs:,}.")

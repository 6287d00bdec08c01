"""Workers killed in the middle of chains: every link runs, and none is admitted twice."""

from collections import defaultdict

import django_emq as emq
from django_emq import inspector
from django_emq.keys import queue_keys
from tests.conformance.wire import books_balance
from tests.helpers import QUEUE
from tests.probe import chained
from tests.processes import Worker, wait_until

CHAINS = 200
KILLS = (60, 180, 330, 480)  # marks after which all processes of a worker are killed


def test_chains_survive_the_death_of_their_workers(probe, client):
    """200 chains of 3, the second link in another queue for each fourth; SIGKILL, four times.

    Each link has run, under the id that was given out before anything ran, with the value of the
    one before; each was admitted once, whatever runs of it were cut off.
    """

    def link(chain, number):
        elsewhere = number == 1 and chain % 4 == 0
        return chained.step.using(queue="other" if elsewhere else None, max_stalls=99).job(
            chain, number
        )

    made = emq.enqueue_many(
        emq.chain(*(link(chain, number) for number in range(3))) for chain in range(CHAINS)
    )
    for marks in KILLS:
        with Worker("--lease", "1", "--processes", "2", QUEUE, "other") as worker:
            wait_until(lambda marks=marks: len(probe.marks()) >= marks, what=f"{marks} marks")
            worker.kill_all()
    with Worker("--lease", "1", QUEUE, "other"):
        wait_until(
            lambda: sum(totals(client, "completed")) == 3 * CHAINS, what="the end of all chains"
        )
    ran = defaultdict(set)
    for mark in probe.marks():
        chain, number, job_id, before = mark.split()
        ran[int(chain), int(number)].add((job_id, int(before)))
    for chain, job in enumerate(made):
        for number, one in enumerate(job.chain):
            assert ran[chain, number] == {(one.id, number)}
    assert len(ran) == 3 * CHAINS
    assert totals(client, "enqueued") == [3 * CHAINS - CHAINS // 4, CHAINS // 4]
    for name in (QUEUE, "other"):
        assert books_balance(client, name) == {}
        assert not client.raw.exists(queue_keys(name).onward)


def totals(client, counter):
    return [inspector.totals(client, name).get(counter, 0) for name in (QUEUE, "other")]

"""The courier's trips: two under way, and what becomes of them when the connection breaks."""

from queue import SimpleQueue

import pytest

from django_emq import inspector
from django_emq.calls import SCRIPTS
from django_emq.connections import Script
from django_emq.context import JobContext
from django_emq.keys import queue_keys
from django_emq.log import Outage, get_logger
from django_emq.worker.appetite import CHUNK
from django_emq.worker.child import make_page
from django_emq.worker.ledger import Ledger
from django_emq.worker.options import WorkerOptions
from django_emq.worker.outcome import Outcome
from django_emq.worker.teller import Teller
from django_emq.worker.trips import MUCH, Trips
from tests.conformance.wire import books_balance, enqueue_some, members
from tests.processes import wait_until


class Yard:
    """Trips of a worker that is not there: what they bring lies in `inbox`."""

    def __init__(self, client, queues):
        options = WorkerOptions(queues=queues, lease=60)
        self.ledger = Ledger(make_page(options), queues)
        self.inbox = SimpleQueue()
        self.outage = Outage(get_logger("worker"), "w")
        self.trips = Trips(client, options, "w", self.ledger, self.inbox, self.outage, Teller())

    def brought(self):
        """Jobs that have come since the last call, oldest first."""
        return [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]

    def deliver(self, jobs):
        for job in jobs:
            context = JobContext(job, 60, lambda: 0.0)
            self.trips.outbox.append(Outcome("complete", context, ("",)))


@pytest.fixture
def yard(client, queue):
    yard = Yard(client, (queue,))
    yield yard
    yard.trips.close()


def totals(client, queue):
    found = inspector.totals(client, queue)
    return {name: found.get(name, 0) for name in ("claimed", "completed", "stale")}


def test_two_trips_bring_different_jobs(client, queue, yard):
    """The second leaves before the first has come back; each answer goes to its own trip."""
    ids = enqueue_some(client, queue, 2 * MUCH + 3)
    yard.trips.leave(MUCH)
    assert yard.trips.due(MUCH, low=True)
    yard.trips.leave(MUCH)
    assert yard.trips.asked == 2 * MUCH
    assert not yard.trips.due(MUCH, low=True)  # no third
    assert yard.trips.arrive()
    assert [job.id.decode() for job in yard.brought()] == ids[:MUCH]
    assert yard.trips.arrive()
    assert [job.id.decode() for job in yard.brought()] == ids[MUCH : 2 * MUCH]
    assert not yard.trips.under_way
    assert yard.trips.idle()


def test_little_waits_for_the_trip_under_way(client, queue, yard):
    """One outcome, or a few jobs, are not worth a second trip; alone they leave at once."""
    enqueue_some(client, queue, 10)
    yard.trips.leave(9)
    assert not yard.trips.due(MUCH - 1, low=True)
    yard.trips.arrive()
    jobs = yard.brought()
    yard.trips.leave(1)
    yard.deliver(jobs)
    assert not yard.trips.due(0, low=True)
    yard.trips.arrive()
    assert yard.trips.due(0, low=True)
    yard.deliver(yard.brought())
    assert yard.trips.settle_all()
    assert totals(client, queue) == {"claimed": 10, "completed": 10, "stale": 0}


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_both_trips_are_lost_with_the_connection(client, queue, yard, sent):
    """Whatever of them was carried out is given again, and nothing else is: no job twice.

    The server closes the connection once it has carried out so many of them.
    """
    ids = enqueue_some(client, queue, 4 * CHUNK)
    for _ in range(2):
        yard.trips.leave(CHUNK)
        yard.trips.arrive()
    first = yard.brought()
    yard.deliver(first)
    line = yard.trips._line._connection
    line.send_command("CLIENT", "ID")
    ident = line.read_response()

    for number in range(1, 3):
        if number > sent:
            client.raw.client_kill_filter(_id=ident)
        if number == 1 or yard.trips.under_way:
            yard.trips.leave(CHUNK)
        if number <= sent:
            claimed = (2 + number) * CHUNK
            wait_until(lambda n=claimed: totals(client, queue)["claimed"] == n)
    if yard.trips.under_way:
        line.disconnect()  # the answers have come, and nobody will read them
        assert not yard.trips.arrive()
    assert not yard.trips.under_way  # one is lost with the other
    assert len(yard.trips.outbox) == 2 * CHUNK
    assert yard.outage.retry_at

    jobs = list(first)
    for _ in range(5):
        yard.trips.leave(4 * CHUNK - len(jobs))
        yard.trips.arrive()
        jobs += yard.brought()
    assert yard.trips.settle_all()
    assert sorted(job.id.decode() for job in jobs) == ids
    assert {job.token for job in jobs} == {1}
    assert totals(client, queue) == {"claimed": 4 * CHUNK, "completed": 2 * CHUNK, "stale": 0}
    assert set(members(client, queue, "active")) == set(ids[2 * CHUNK :])
    assert not yard.outage.retry_at
    books_balance(client, queue)


def test_an_answer_that_cannot_be_read(client, queue, yard, monkeypatch):
    """A fault of ours: both trips are sent again, and no answer is taken for another one."""
    ids = enqueue_some(client, queue, 2 * MUCH)
    yard.trips.leave(MUCH)
    yard.trips.arrive()
    yard.deliver(yard.brought())
    with monkeypatch.context() as patch:
        patch.setitem(SCRIPTS, "claim", Script("claim", b"return {1}"))
        yard.trips.leave(1)
    yard.trips.leave(MUCH)
    with pytest.raises(StopIteration):
        yard.trips.arrive()
    assert not yard.trips.under_way
    assert len(yard.trips.outbox) == MUCH
    yard.trips.leave(2 * MUCH)
    yard.trips.arrive()
    assert yard.trips.settle_all()
    assert [job.id.decode() for job in yard.brought()] == ids[MUCH:]
    assert totals(client, queue) == {"claimed": 2 * MUCH, "completed": MUCH, "stale": 0}


def test_a_wake_outlives_the_trip_that_it_sent(client):
    """It was taken, and lost with the connection: the queue is asked again, and wakes the next."""
    names = ("first", "second")
    here = Yard(client, names)
    here.trips.leave(0)
    here.trips.arrive()
    here.trips.woken = {"second"}
    here.trips.leave(0)
    here.trips._line._connection.disconnect()
    assert not here.trips.arrive()
    (waits,) = enqueue_some(client, "second", 1)
    client.raw.delete(queue_keys("second").wake)
    here.trips.leave(0)
    assert here.trips.arrive()
    assert client.raw.llen(queue_keys("second").wake) == 1
    assert set(members(client, "second", "pending")) == {waits}
    here.trips.close()


def test_each_queue_has_its_turn(client):
    """What the first queue does not have is asked of the next, beside another trip too."""
    names = ("first", "second")
    here = Yard(client, names)
    first, second = (enqueue_some(client, name, 2 * MUCH) for name in names)
    here.trips.leave(MUCH)
    here.trips.leave(2 * MUCH)
    assert here.trips.arrive()
    assert here.trips.arrive()
    assert [job.id.decode() for job in here.brought()] == [*first, *second[:MUCH]]
    assert not here.trips.dry
    here.trips.leave(2 * MUCH)
    assert here.trips.arrive()
    assert here.trips.dry
    here.deliver(here.ledger.jobs)
    assert here.trips.settle_all()
    assert [totals(client, name)["completed"] for name in names] == [2 * MUCH, 2 * MUCH]
    here.trips.close()

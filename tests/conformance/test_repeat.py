"""Section 6: scenario 16, repeat, and what its weakness G-3 was; and P, the pump."""

from django_emq import scripts
from django_emq.ids import is_job_id
from django_emq.keys import queue_keys
from django_emq.repeats import FIELDS, Tick
from django_emq.ticker import Ticker, job_of

from .wire import claim_some, complete, members, now_ms, pass_ms


def test_16_repeat(client, queue):
    """Given `report`, every 10 ms, when fired twice, then two minted ids in order; then cancelled.

    Ours fires and advances in one script, under the id that it is given.
    """
    entry = {"every_ms": 10, "template": "daily", "first_ms": 0}
    assert scripts.repeat_register(client, queue, "report", **entry)
    assert not scripts.repeat_register(client, queue, "report", **entry)
    ids = []
    for _ in range(2):
        (due,) = scripts.repeat_due(client, queue, batch=10).schedules
        assert (due.name, due.record["template"]) == ("report", "daily")
        job = job_of(queue, "report", due.record, due.planned)
        tick = Tick("report", due.planned, due.planned + 10, due.planned, "")
        done = scripts.enqueue(client, queue, [job], request=job.id, producer="p", tick=tick)
        assert done == [1]
        ids.append(job.id)
        pass_ms(client, 20)
    assert is_job_id(ids[0])
    assert ids[0] < ids[1]
    claimed = claim_some(client, queue, 10)
    assert [(c.id.decode(), c.payload) for c in claimed] == [(i, b"daily") for i in ids]
    assert [complete(client, queue, i, 1) for i in ids] == [1, 1]
    assert scripts.repeat_cancel(client, queue, "report") is True
    assert scripts.repeat_cancel(client, queue, "report") is False


def test_16_the_period_does_not_drift(client, queue):
    """G-3: the next time is computed from the time before, whenever that was fired."""
    first = int(now_ms(client)) - 12
    scripts.repeat_register(client, queue, "report", every_ms=5, template="x", first_ms=first)
    for _ in range(3):
        pass_ms(client, 7)
        Ticker(client).tick(queue)
        ((name, score),) = members(client, queue, "repeat").items()
        assert (name, (score - first) % 5) == ("report", 0)
    assert len(claim_some(client, queue, 10)) == 3  # those that were missed are one


def test_16_advance(client, redis, queue):
    """Advancing sets the next time of what is there; a name that has no record goes."""
    scripts.repeat_register(client, queue, "report", every_ms=10, template="x", first_ms=0)
    assert scripts.repeat_advance(client, queue, "report", 2_000_000_000_000)
    assert members(client, queue, "repeat") == {"report": 2_000_000_000_000}
    assert not scripts.repeat_advance(client, queue, "report", 5, was=1)
    redis.delete(queue_keys(queue).record("report"))
    assert not scripts.repeat_advance(client, queue, "report", 5)
    assert members(client, queue, "repeat") == {}


def test_P_a_dangling_name_goes_while_the_live_one_fires(client, redis, queue):
    """Given a name without a record and a live schedule, when ticked, then one job and one name."""
    scripts.repeat_register(client, queue, "live", every_ms=60_000, template="x", first_ms=0)
    redis.zadd(queue_keys(queue).repeat, {"dangling": 0})
    ticker = Ticker(client)
    assert 0 < ticker.tick(queue) <= 60_000
    assert ticker.fired == 1
    assert list(members(client, queue, "repeat")) == ["live"]
    assert len(claim_some(client, queue, 10)) == 1


def test_fields_are_those_of_the_script():
    """What Python names is what the script reads, in its order."""
    source = scripts.SCRIPTS["repeat_due"].source.decode()
    assert ", ".join(f"'{name}'" for name in FIELDS) in source


def test_16_nothing_is_due_before_its_time(client, queue):
    """By the server's clock; the answer says how long that is."""
    soon = int(now_ms(client)) + 60_000
    scripts.repeat_register(client, queue, "report", every_ms=1, template="x", first_ms=soon)
    due = scripts.repeat_due(client, queue)
    assert due.schedules == []
    assert 0 < due.next_ms <= 60_000

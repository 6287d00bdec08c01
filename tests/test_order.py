"""In which order jobs run: priority, place, weights of queues."""

from collections import Counter
from random import Random

import pytest
from django.core.management import CommandError, call_command

import django_emq as emq
from django_emq import inspector, scripts
from django_emq.management.commands._base import read_weights
from django_emq.worker import turns as turns_module
from django_emq.worker.turns import LOOK_EVERY, Turns
from tests.conformance import wire
from tests.conformance.wire import claim_one, enqueue_one, enqueue_some, lapse, members
from tests.helpers import burst
from tests.probe import tasks
from tests.processes import Worker


def order_of(client, queue):
    """The ids in the order in which they are claimed, one at a time."""
    ids = []
    while job := claim_one(client, queue):
        ids.append(job.id.decode())
    return ids


# -- within a queue ---------------------------------------------------------------------------


def test_priority_is_strict_and_equal_ones_come_in_their_order(client, queue):
    """From 100 down to -100, whatever came when: 0 is among the others."""
    priorities = [0, -100, 100, 1, -1, 0, 100, -100]
    found = [(enqueue_one(client, queue, priority=p), p) for p in priorities]
    expected = [job_id for job_id, _ in sorted(found, key=lambda one: -one[1])]
    assert order_of(client, queue) == expected


@pytest.mark.parametrize("way", ["one by one", "at once", "for one time"])
def test_B49_equal_scores_are_no_spelling_order(client, queue, way):
    """Twelve jobs of one moment run in the order of their calls; the morgue is by time of death."""
    if way == "at once":
        ids = enqueue_some(client, queue, 12)
    elif way == "for one time":
        ids = enqueue_some(client, queue, 12, due=str(int(wire.now_ms(client)) + 2))
        wire.pass_ms(client, 3)
    else:
        ids = [enqueue_one(client, queue) for _ in range(12)]
    assert order_of(client, queue) == ids
    deaths = ids[::-1] if way == "at once" else ids[6:] + ids[:6]
    for job_id in deaths:
        wire.bury(client, queue, job_id, 1)
        wire.pass_ms(client, 1)
    shown = inspector.page(client, queue, "dead", newest=True).rows
    assert [row.id for row in shown] == deaths[::-1]
    scripts.trim(client, queue, dead_max=5, dead_ttl_ms=10**9)
    assert [*members(client, queue, "dead")] == deaths[-5:]


BACK = {
    "retry": lambda c, q, i: wire.retry(c, q, i, 1, delay_ms=0),
    "snooze": lambda c, q, i: wire.snooze(c, q, i, 1, 0),
    "release": lambda c, q, i: wire.release(c, q, i, 1),
    "reap": lambda c, q, i: lapse(c, q, i, 1),
    "requeue": lambda c, q, i: scripts.requeue(c, q, [i]),
}


@pytest.mark.parametrize("verb", BACK)
def test_what_comes_back_goes_before_younger_ones(client, queue, verb):
    """It keeps its id, which is its place: before all of its priority that came after it."""
    first = enqueue_one(client, queue)
    claim_one(client, queue)
    younger = enqueue_some(client, queue, 3)
    urgent = enqueue_one(client, queue, priority=1)
    BACK[verb](client, queue, first)
    wire.pass_ms(client, 1)
    assert order_of(client, queue) == [urgent, first, *younger]


# -- among queues -----------------------------------------------------------------------------


def test_without_weights_the_first_queue_is_served_first(client, probe):
    """The next one has its turn only when the first has nothing more."""
    for name in ("b", "a"):
        emq.enqueue_many(tasks.mark.using(queue=name).job(name) for _ in range(300))
    burst("a", "b")
    assert probe.marks() == ["a"] * 300 + ["b"] * 300


class Load:
    """Queues that are asked as a courier does: the first gives what it has, the next the rest."""

    def __init__(self, turns):
        self.turns = turns
        self.has = dict.fromkeys(turns.queues, 10**9)
        self.given = Counter()
        self.asked = Counter()

    def claim(self, want):
        given = {}
        for queue in self.turns.next(set(), set()):
            if not want:
                break
            given[queue] = min(want, self.has[queue])
            self.has[queue] -= given[queue]
            want -= given[queue]
            self.asked[queue] += 1
        self.given.update(given)
        self.turns.took(given)


@pytest.fixture
def clock(monkeypatch):
    """Stands still; a test moves it on."""
    now = [1000.0]
    monkeypatch.setattr(turns_module, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("sizes", [(1, 1), (1, 250), (250, 250)])
def test_shares_are_those_of_the_weights(sizes):
    """While all have work: to within one claim, whatever the claims' sizes."""
    dice = Random(1)
    weights = {"mail": 5, "default": 2, "slow": 1}
    load = Load(Turns(tuple(weights), weights))
    while load.given.total() < 80_000:
        load.claim(dice.randint(*sizes))
    for name, weight in weights.items():
        assert abs(load.given[name] / load.given.total() - weight / 8) < 0.01
    assert load.asked["slow"] > 0


def test_turns_are_smooth():
    """No queue waits for a whole round of another one."""
    load = Load(Turns(("mail", "default"), {"mail": 3, "default": 1}))
    firsts = []
    for _ in range(40):
        firsts.append(load.turns.next(set(), set())[0])
        load.claim(1)
    assert "mail mail mail mail mail" not in " ".join(firsts)
    assert "default default" not in " ".join(firsts)


def test_an_idle_queues_share_goes_to_the_others(clock):
    """It saves nothing up: when it has work again, it has its share, and no more."""
    load = Load(Turns(("mail", "default", "slow"), {"mail": 6, "default": 3}))
    load.has["mail"] = 0
    for _ in range(1000):
        load.claim(1)
        clock[0] += 0.01
    assert load.given["default"] == pytest.approx(750, abs=2)
    assert load.given["slow"] == pytest.approx(250, abs=2)
    # A look now and then, and not with each claim.
    assert load.asked["mail"] == pytest.approx(1000 * 0.01 / LOOK_EVERY, rel=0.1)
    load.has["mail"] = 10**9
    load.given.clear()
    clock[0] += 2 * LOOK_EVERY
    for _ in range(1000):
        load.claim(1)
    assert load.given["mail"] == pytest.approx(600, abs=3)
    assert load.given["default"] == pytest.approx(300, abs=3)


def test_a_queue_that_had_nothing_is_asked_at_once_when_others_have_not_enough(clock):
    """The clock does not move: it is asked all the same."""
    load = Load(Turns(("mail", "default"), {"mail": 1, "default": 9}))
    load.has["default"] = 0
    load.claim(1)
    load.claim(1)
    load.has.update(mail=0, default=5)
    load.claim(5)
    assert load.given["default"] == 5


@pytest.mark.parametrize("names", [("mail", "default"), ("default", "mail")])
def test_new_work_is_seen_beside_a_single_other_queue(clock, names):
    """That one always has enough; which of the two was named first does not matter."""
    load = Load(Turns(names, {"mail": 1, "default": 1}))
    load.has["mail"] = 0
    for _ in range(9):
        load.claim(1)
    load.has["mail"] = 10**9
    load.given.clear()
    clock[0] += 2 * LOOK_EVERY
    for _ in range(100):
        load.claim(1)
    assert load.given["mail"] == pytest.approx(50, abs=2)


def test_partitions_have_a_weight_together(settings):
    """Turns among them, and the share of the whole."""
    settings.EMQ = {"QUEUES": {"events": {"PARTITIONS": 4}}}
    parts = [f"events.{n}" for n in range(4)]
    load = Load(Turns(("mail", *parts), {"events": 3}))
    while load.given.total() < 8000:
        load.claim(5)
    assert load.given["mail"] == pytest.approx(2000, rel=0.01)
    for part in parts:
        assert load.given[part] == pytest.approx(1500, rel=0.05)


def test_a_worker_keeps_to_the_weights(client, probe):
    """Three queues full of jobs, with 5, 2 and 1: the first 800 that run are in these shares."""
    weights = {"a": 5, "b": 2, "c": 1}
    for name in weights:
        emq.enqueue_many(tasks.nap_then_mark.using(queue=name).job(0.005, name) for _ in range(700))
    names = [f"{name}:{weight}" for name, weight in weights.items()]
    with Worker(*names, "--threads", "4", "--name", "weighed") as worker:
        worker.wait_ready()
        shares = Counter(probe.wait_for(800)[:800])
        assert "worker weighed ready: a:5, b:2, c" in worker.output
    for name, weight in weights.items():
        assert abs(shares[name] - 100 * weight) < 80
    assert min(shares.values()) > 50


def test_weights_are_read():
    """Each queue once; one without a weight has 1."""
    assert read_weights(["mail:3", "default", "mail"]) == (("mail", "default"), {"mail": 3})
    assert read_weights(["a", "b"]) == (("a", "b"), {})


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["mail:0"], "The weight of queue 'mail' is '0'. Use a whole number from 1 to 999."),
        (["mail:"], "The weight of queue 'mail' is ''"),
        (["mail:1000"], "is '1000'"),
        (["mail:x"], "is 'x'"),
        (["mail:2", "mail:3"], "Queue 'mail' has two weights. Give it one."),
        (["events.1:2", "events.2:3"], "Queue 'events' has two weights"),
        (["a b:2"], "Queue name 'a b' is not allowed"),
    ],
)
def test_bad_weights_are_refused(settings, names, sentence):
    settings.EMQ = {"QUEUES": {"events": {"PARTITIONS": 4}}}
    with pytest.raises(CommandError, match=sentence):
        call_command("emq_worker", *names)

"""Pages over many jobs and workers read a page's worth, in few round trips."""

import time

import pytest

from django_emq import inspector, scripts
from django_emq.connections import Client
from tests.admin.test_actions import act
from tests.admin.yard import url
from tests.helpers import seed

MANY = 20_000


def gather(client, queue, many):
    """So many dead jobs and as many scheduled ones, 500 workers, 20 queues."""
    seed(client, queue, "dead", many, score=1_700_000_000_000, step=1)
    seed(client, f"{queue}-0", "schedule", many, score=1_700_000_000_000, step=1)
    scripts.register(client, [queue, *(f"{queue}-{n}" for n in range(19))])
    for n in range(500):
        facts = {"queues": queue, "pid": n, "state": "running"}
        scripts.beat(client, f"w-{n}", ttl_ms=60_000, facts=facts)
    return queue


@pytest.fixture
def crowd(client, queue):
    """A tenth of what the field report has."""
    return gather(client, queue, MANY)


@pytest.fixture
def trips(monkeypatch):
    """How many round trips were made since it was emptied."""
    made = []
    for name in ("read", "run"):
        whole = getattr(Client, name)

        def counted(self, *args, whole=whole):
            made.append(args)
            return whole(self, *args)

        monkeypatch.setattr(Client, name, counted)
    return made


def commands(redis):
    return {
        name.removeprefix("cmdstat_"): fact["calls"]
        for name, fact in redis.info("commandstats").items()
    }


PAGES = [
    ("queue_changelist", {}, None),
    ("queue_changelist", {"p": "x"}, None),
    ("queue_set", {}, 1),
    ("queue_set", {"p": "4000"}, 4000),
    ("queue_set", {"p": "999999"}, 4000),
    ("queue_set", {"p": "x"}, 1),
    ("queue_set", {"p": "-1"}, 1),
    ("queue_set", {"p": "9" * 40}, 1),
    ("morgue_changelist", {}, None),
    ("worker_changelist", {}, None),
    ("server_changelist", {}, None),
]


def test_B90_pages_with_many_jobs_and_workers(operator, client, redis, queue, trips):
    """200,000 dead and scheduled jobs, 500 workers, 20 queues: each page is quick.

    Under a second of this process, at most 15 round trips, no KEYS, no whole set; a page beyond
    the end, or that is none, is the last or the first.
    """
    crowd = gather(client, queue, 200_000)
    for address, query, number in PAGES:
        names = {"queue": crowd, "name": "dead"} if address == "queue_set" else {}
        operator.get(url(address, **names))  # templates are compiled, the connection is made
        redis.config_resetstat()
        trips.clear()
        begun = time.process_time()  # the clock on the wall measures the machine's other work too
        page = operator.get(url(address, **names), query)
        assert time.process_time() - begun < 1, address
        assert page.status_code == 200
        assert len(trips) <= 15, address
        looks = {"keys", "scan", "zscan", "sscan"} & set(commands(redis))
        assert looks <= ({"scan"} if address == "server_changelist" else set())
        assert redis.info("stats")["total_net_output_bytes"] < 3_000_000, address
        if number is not None:
            assert page.context["page"].number == number
            assert len(page.context["rows"]) == 50


def test_the_last_page_is_right(operator, crowd, client):
    """The last page shows what is left, in order, and a page beyond it the same."""
    key = f"emq:{{{crowd}}}:dead"
    oldest = [one.decode() for one in client.raw.zrange(key, 0, 6)]
    client.raw.zremrangebyrank(key, 7, 16)  # 19,990 are left: 399 pages of 50, and 40
    last = operator.get(url("queue_set", queue=crowd, name="dead"), {"p": "400"})
    beyond = operator.get(url("queue_set", queue=crowd, name="dead"), {"p": "12345"})
    rows = [row.id for row in last.context["rows"]]
    assert len(rows) == 40
    assert rows[-7:] == oldest[::-1]
    assert [row.id for row in beyond.context["rows"]] == rows


def test_the_pages_together_are_the_set(client, crowd, trips):
    """Each job is on one page, in the order of the set, and a page is three round trips."""
    key = f"emq:{{{crowd}}}:dead"
    for newest in (False, True):
        ids = []
        for number in range(1, 41):
            trips.clear()
            page = inspector.page(client, crowd, "dead", number, size=500, newest=newest)
            assert len(trips) <= 3
            ids += [row.id for row in page.rows]
        assert ids == [one.decode() for one in client.raw.zrange(key, 0, -1, desc=newest)]


def test_requeue_all_of_many(operator, client, crowd):
    """20,000 jobs: bounded batches, all of them once."""
    page = act(operator, crowd, "requeue", "dead", scope="all")
    assert [str(one) for one in page.context["messages"]] == [f"{MANY} jobs were requeued."]
    assert inspector.counts(client, crowd) == {
        "pending": MANY, "active": 0, "schedule": 0, "dead": 0, "done": 0,
    }  # fmt: skip


def test_a_filter_looks_at_a_bounded_part(client, crowd, trips):
    """Nothing matches, so it would look for ever; it stops when its time is up, and goes on."""
    wanted = inspector.Filter(task="no such task")
    found = inspector.find(client, crowd, "dead", wanted, seconds=0.0)
    assert (found.rows, found.examined) == ([], 500)
    seen, calls = found.examined, 1
    while found.next:
        found = inspector.find(client, crowd, "dead", wanted, after=found.next, seconds=0.3)
        seen, calls = seen + found.examined, calls + 1
    assert seen == MANY
    assert calls > 2

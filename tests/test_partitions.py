"""One queue over several hash tags: where jobs go, who serves them, figures of the whole."""

import io
import json
from collections import Counter
from time import monotonic

import pytest
from django.core.management import CommandError, call_command

import django_emq as emq
from django_emq import conf, connections, inspector, scripts, whole
from django_emq.admission import push, push_many
from django_emq.exceptions import NotInState
from django_emq.ids import mint
from django_emq.jobs import NewJob
from django_emq.keys import queue_keys
from django_emq.partitions import families, folded, number_of
from django_emq.worker.bell import Wake
from django_emq.worker.child import make_page
from django_emq.worker.courier import Courier
from django_emq.worker.options import WorkerOptions
from django_emq.worker.turns import Turns
from tests.conformance.wire import books_balance, bury, claim_one, enqueue_one, extend
from tests.helpers import burst, point_at
from tests.probe import tasks
from tests.processes import Worker, wait_until
from tests.proxy import Act
from tests.variant import variant

COUNT = 8
PARTS = [f"events.{n}" for n in range(COUNT)]
EMQ = {"QUEUES": {"events": {"PARTITIONS": COUNT, "MAX_ATTEMPTS": 7}}}
send = tasks.mark.using(queue="events")


def fewer(count):
    return {"QUEUES": {"events": {"PARTITIONS": count}}}


@pytest.fixture(autouse=True)
def parted(settings):
    """The queue `events` has eight partitions."""
    settings.EMQ = EMQ


def command(name, *args):
    out = io.StringIO()
    call_command(name, *args, stdout=out, stderr=out)
    return out.getvalue()


def each(client, queue, name="pending"):
    return inspector.counts(client, queue, (name,))[name]


# -- where a job goes -------------------------------------------------------------------------


def test_a_key_has_the_same_partition_everywhere():
    """In every process and for ever: these are not to change."""
    keys = ["customer-7", "customer-8", "", "ü", "JOB0001", "\udcff"]
    assert [number_of(key, 8) for key in keys] == VECTORS
    assert [number_of(key, 1) for key in keys] == [0] * 6


VECTORS = [0, 1, 5, 2, 6, 0]


def test_keys_are_spread_evenly_and_few_move():
    """With a partition more, one key in so many moves, and to the new one."""
    before = [number_of(f"k{n}", 8) for n in range(8000)]
    after = [number_of(f"k{n}", 9) for n in range(8000)]
    assert set(before) == set(range(8))
    assert 850 < min(Counter(before).values()) <= max(Counter(before).values()) < 1150
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {8}
    assert 740 < len(moved) < 1040


def test_jobs_are_spread_by_their_ids(client):
    """Each is in the partition that it names, and these have what its queue has set."""
    jobs = [send.enqueue(n) for n in range(40)]
    assert {job.queue for job in jobs} <= set(PARTS)
    assert len({job.queue for job in jobs}) > 4
    for job in jobs:
        assert inspector.state(client, job.queue, job.id) == "pending"
    assert conf.settings().queue("events.3").max_attempts == 7
    assert conf.settings().queue("events.x").max_attempts == 5
    assert set(inspector.queues(client)) == {job.queue for job in jobs}


def test_jobs_of_one_key_are_in_one_partition(client):
    """In the order in which they came, however they are enqueued."""
    task = send.using(partition_key="customer-7")
    jobs = [task.enqueue(1), emq.enqueue_in(600, task, 2), *emq.enqueue_many([task.job(3)])]
    assert {job.queue for job in jobs} == {f"events.{number_of('customer-7', COUNT)}"}
    assert inspector.newest(client, jobs[0].queue) == [jobs[2].id, jobs[0].id]


def test_a_key_without_partitions_means_nothing(client):
    """So code stays when the setting goes."""
    assert tasks.mark.using(queue="mail", partition_key="7").enqueue(1).queue == "mail"


@pytest.mark.parametrize("key", ["", 7, b"7"])
def test_a_key_is_a_text(key):
    with pytest.raises(emq.InvalidOption, match="Use a text, for instance 'customer-7'"):
        send.using(partition_key=key)


def test_a_partition_may_be_named(client):
    """For whoever wants to: it is an ordinary queue."""
    assert tasks.mark.using(queue="events.3").enqueue(1).queue == "events.3"


# -- many at once -----------------------------------------------------------------------------


def test_many_are_one_round_trip(client, redis):
    """One script call for each partition, all of them in one trip; the answers in order."""
    unsent = [send.job(n) for n in range(400)]
    emq.enqueue_many(unsent)  # the partitions are in the registry now
    calls, reads = evalshas(redis), redis.info("stats")["total_reads_processed"]
    made = emq.enqueue_many(unsent)
    reads = redis.info("stats")["total_reads_processed"] - reads
    assert evalshas(redis) - calls == COUNT
    # What is longer than the server's buffer of 16 KB takes several reads; a trip for each
    # partition would not be fewer than the text has buffers and the partitions together.
    assert reads - 2 <= 12
    assert {inspector.state(client, job.queue, job.id) for job in made[::20]} == {"pending"}
    assert {job.status for job in made} == {"enqueued"}
    assert each(client, "events") == 800


def evalshas(redis):
    return redis.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_more_than_a_step_of_one_partition(client):
    """Jobs of one key in steps of 500, those of other queues beside them, and each once."""
    one = send.using(partition_key="x")
    made = emq.enqueue_many([*(one.job(n) for n in range(1100)), *(send.job(n) for n in range(50))])
    assert [job.status for job in made] == ["enqueued"] * 1150
    assert each(client, "events") == 1150
    assert each(client, made[0].queue) >= 1100
    assert inspector.totals(client, "events")["enqueued"] == 1150


def test_verdicts_keep_their_order(client):
    """What is there already, and what is refused, is told of the right job."""
    jobs = [NewJob(mint(), "{}") for _ in range(6)]
    push(client, "events.1", [jobs[3]])
    bad = NewJob("NOT" + mint()[3:], "{}")
    lots = {"events.0": jobs[:2], "events.1": [jobs[2], jobs[3], bad], "events.2": jobs[4:]}
    verdicts = push_many(client, lots)
    assert verdicts["events.0"] == verdicts["events.2"] == [1, 1]
    assert verdicts["events.1"][:2] == [1, 0]
    assert isinstance(verdicts["events.1"][2], emq.Refused)


@pytest.mark.parametrize("act", [Act.CUT_AFTER, Act.CUT_BEFORE])
def test_a_lost_reply_makes_no_job_twice(settings, client, proxy, probe, act):
    """The whole round trip is repeated, also when quick workers have done the jobs by then."""
    point_at(settings, proxy.url)
    emq.enqueue_many(send.job("known") for _ in range(60))
    with Worker("events", **variant(EMQ=EMQ)) as worker:
        worker.wait_ready()
        probe.wait_for(60)

        def done():
            wait_until(lambda: not any(inspector.counts(client, "events").values()))

        rule = proxy.on("enqueue", act)
        made = emq.enqueue_many(send.job(n) for n in range(30))
        assert rule.fired.is_set()
        assert {job.status for job in made} == {"enqueued"}
        probe.wait_for(90)
        done()
    assert sorted(probe.marks()[60:], key=int) == [str(n) for n in range(30)]
    assert inspector.totals(client, "events")["enqueued"] == 90


def test_one_partition_that_refuses_raises(client, redis):
    """The error is not lost among the answers of the others."""
    redis.set(queue_keys("events.2").pending, "x")
    lots = {part: [NewJob(mint(), "{}")] for part in PARTS}
    with pytest.raises(emq.ServerError):
        push_many(client, lots)
    redis.delete(queue_keys("events.2").pending)
    assert each(client, "events") == COUNT - 1


# -- workers ----------------------------------------------------------------------------------


def test_a_worker_serves_all_partitions(client, probe):
    """With the order of each key, and it says its name once."""
    keys = [f"c{n % 5}" for n in range(60)]
    emq.enqueue_many(send.using(partition_key=key).job(f"{key} {n}") for n, key in enumerate(keys))
    with Worker("events", **variant(EMQ=EMQ)) as worker:
        assert worker.wait_ready().output.count("ready: events\n") == 1
        marks = probe.wait_for(60)
        wait_until(lambda: inspector.totals(client, "events").get("completed") == 60)
        wait_until(lambda: inspector.workers(client), what="its first beat")
        assert inspector.workers(client)[0].queues == PARTS
        assert folded(inspector.workers(client)[0].queues) == ["events"]
    for key in set(keys):
        numbers = [int(mark.split()[1]) for mark in marks if mark.split()[0] == key]
        assert numbers == sorted(numbers)
    for part in PARTS:
        books_balance(client, part)


def test_a_worker_of_one_partition(client, probe):
    """It leaves the others alone, and a task sees where it was claimed."""
    mark = tasks.mark_job.using(queue="events")
    jobs = emq.enqueue_many(mark.job() for _ in range(200))
    own = {job.id for job in jobs if job.queue == "events.3"}
    burst("events.3", **variant(EMQ=EMQ))
    seen = [line.split() for line in probe.marks()]
    assert {line[0] for line in seen} == own
    assert {line[3] for line in seen} == {"events.3"}
    assert each(client, "events") == 200 - len(own)


def test_a_flooded_partition_starves_no_other(client, probe):
    """A long row of jobs in one partition; those of the others are among the first to run."""
    flood = NewJob("", '{"task":"tests.probe.tasks.nap_then_mark","args":[0.005,"flood"]}')
    push(client, "events.0", [flood._replace(id=mint()) for _ in range(300)])
    lone = flood._replace(payload='{"task":"tests.probe.tasks.mark","args":["lone"]}')
    for part in PARTS[1:]:
        push(client, part, [lone._replace(id=mint())])
    burst("events", **variant(EMQ=EMQ))
    marks = probe.marks()
    assert Counter(marks) == {"flood": 300, "lone": COUNT - 1}
    assert max(at for at, mark in enumerate(marks) if mark == "lone") < 250


def blocked(redis):
    return redis.info("clients")["blocked_clients"] == 1


def test_one_job_costs_an_idle_worker_few_claims(client, redis, probe):
    """It asks the partition that woke it, the next one, and once more the one that had a job."""
    args = ("events", "--processes", "0", "--no-sweep", "--lease", "60")
    with Worker(*args, **variant(EMQ=EMQ)) as worker:
        worker.wait_ready()
        wait_until(lambda: blocked(redis), what="an idle worker")
        redis.config_resetstat()
        for n in range(5):
            send.using(partition_key=f"k{n}").enqueue(n)
            probe.wait_for(n + 1)
            wait_until(lambda n=n: inspector.totals(client, "events").get("completed") == n + 1)
            wait_until(lambda: blocked(redis), what="an idle worker")
        # Each claim begins with a GET of what its worker was given last.
        claims = redis.info("commandstats")["cmdstat_get"]["calls"]
    # Five times three, a whole look should the pop have ended between, and a beat with two GETs.
    assert claims <= 5 * 3 + COUNT + 2


def test_turns_are_taken():
    """Each partition is the first in turn, queues stay in their order, and a wake goes first."""
    parts = {f"events.{n}" for n in range(3)}
    queues = ["mail", *sorted(parts), "other"]
    turns = Turns(queues)
    nobody, everybody = set(), set(queues)
    assert turns.split
    seen = [tuple(turns.next(nobody, everybody)) for _ in range(6)]
    assert {order[0] for order in seen} == {"mail"}
    assert {order[-1] for order in seen} == {"other"}
    assert Counter(order[1] for order in seen) == dict.fromkeys(parts, 2)
    order = turns.next({"events.1"}, everybody)
    assert (order[0], set(order)) == ("events.1", everybody)
    assert turns.next({"events.1"}, nobody) == ["events.1"]
    assert set(turns.next({"events.1"}, {"events.2"})) == {"events.1", "events.2"}
    assert len(turns.next({"mail"}, nobody)) == 3
    firsts = {tuple(turns.next(nobody, nobody)) for _ in range(6)}
    assert firsts == {("mail", part, "other") for part in parts}
    assert {turns.all()[1] for _ in range(6) if turns.next({"events.1"}, nobody)} == parts


def test_what_was_rich_is_asked_again():
    """Who had as much as was wanted did not say when it has more: a retry, for instance."""
    turns = Turns(PARTS)
    turns.told("events.5", rich=True)
    orders = [list(turns.next(set(), set())) for _ in range(COUNT)]
    assert all("events.5" in order and len(order) <= 2 for order in orders)
    turns.told("events.5", rich=False)
    assert {len(turns.next(set(), set())) for _ in range(COUNT)} == {1}


def test_a_worker_without_partitions_pays_nothing():
    """Its order is the one that it was given."""
    turns = Turns(("mail", "events.3"))
    assert not turns.split
    assert turns.next({"mail"}, set()) is turns.next(set(), {"mail"}) is turns.all()
    assert turns.all() == ("mail", "events.3")


@pytest.fixture
def couriers(client):
    """Makes one that is not started, and has looked at all partitions once."""
    made = []

    def make(**options):
        options = WorkerOptions(queues=tuple(PARTS), lease=60, **options)
        made.append(Courier(client, options, make_page(options), leave=lambda status: None))
        made[-1]._trips.turns._turn = 0
        assert claim(made[-1]) == COUNT
        return made[-1]

    yield make
    for courier in made:
        courier._wake.drop()
        courier._trips.close()
        courier.bell.close()


def claim(courier, *woken, want=1):
    """One trip for so many jobs; how many claims it sent."""
    trips, before = courier._trips, evalshas(courier.client.raw)
    trips.woken |= set(woken)
    trips.leave(want)
    assert trips.arrive()
    return evalshas(courier.client.raw) - before


def test_a_wake_does_not_make_a_worker_forget(couriers):
    """When another partition will have more, of which it was told before."""
    courier = couriers()
    tasks.mark.using(queue="events.2", run_in=5).enqueue("late")
    assert claim(courier, "events.2") == 1
    due = courier._trips.look_at
    assert due < monotonic() + 6
    assert claim(courier, "events.5") == 1
    assert courier._trips.look_at == due
    courier._trips.look_again()
    assert claim(courier) == COUNT
    assert courier._trips.look_at != due


def test_who_had_a_job_is_asked_again(couriers):
    """Once more, beside the one whose turn it is: then it says when it has more."""
    courier = couriers()
    tasks.mark.using(queue="events.5").enqueue(1)
    assert claim(courier, "events.5") == 1
    assert claim(courier) == 2
    assert claim(courier) == 1


def test_a_burst_asks_all(couriers):
    """It is over when nobody has more, and sleeps on no wake."""
    courier = couriers(burst=True)
    assert claim(courier) == COUNT
    assert claim(couriers()) == 1


def test_a_pop_that_ends_with_nothing_looks_everywhere(couriers, client, redis):
    """A wake may have been lost with the worker that took it."""
    courier = couriers()
    courier._wake = Wake(client, courier._trips.turns, 0.1, courier.bell)
    push(client, "events.6", [NewJob(mint(), "{}")])
    redis.delete(queue_keys("events.6").wake)
    courier._wake.arm()
    courier._answered(courier._rest(30))
    assert claim(courier, want=2) == COUNT
    assert courier.inbox.qsize() == 1


# -- the number of partitions is changed ------------------------------------------------------


def test_what_is_left_is_served_after_a_change(client, probe):
    """Fewer partitions, and a queue that was one before: workers go on with what is there."""
    tasks.mark.using(queue="events.6").enqueue("beyond")
    tasks.mark.using(queue="events.5", run_in=0.1).enqueue("due")
    push(client, "events", [NewJob(mint(), '{"task":"tests.probe.tasks.mark","args":["old"]}')])
    scripts.register(client, ["events.7", "events.x"])  # one that was used, and is empty
    with Worker("events", **variant(EMQ=fewer(2))) as worker:
        worker.wait_ready()
        assert sorted(probe.wait_for(3)) == ["beyond", "due", "old"]
        served = inspector.workers(client)[0].queues
        assert served == ["events.0", "events.1", "events", "events.5", "events.6"]


def test_the_whole_counts_what_is_left(client, settings):
    """Also in partitions that the setting no longer knows."""
    emq.enqueue_many(send.job(n) for n in range(200))
    settings.EMQ = fewer(2)
    assert each(client, "events") == 200
    assert len(inspector.parts(client, "events")) == COUNT
    settings.EMQ = fewer(12)
    assert each(client, "events") == 200
    assert len(inspector.parts(client, "events")) == 12


# -- the whole --------------------------------------------------------------------------------


def test_figures_of_the_whole(client):
    """Sums, and the oldest of all."""
    first = enqueue_one(client, "events.4")
    for n in range(20):
        send.enqueue(n)
    claimed = claim_one(client, "events.4")
    assert claimed.id == first.encode()
    assert bury(client, "events.4", first, claimed.token) == 1
    send.using(run_in=600).enqueue("later")
    oldest = max(one.oldest_s or 0 for one in inspector.overview(client, PARTS))
    stats = inspector.stats(client, "events")
    assert stats.queue == "events"
    assert stats.oldest_s >= oldest > 0
    assert stats.counts == {"pending": 20, "active": 0, "schedule": 1, "dead": 1, "done": 0}
    assert stats.counts == inspector.counts(client, "events")
    assert stats.totals == inspector.totals(client, "events")
    assert (stats.totals["enqueued"], stats.totals["dead"]) == (22, 1)
    assert stats.in_per_minute > 5
    assert stats.partitions == tuple(PARTS)
    assert not stats.paused


def test_pause_and_resume_the_whole(client, probe):
    """No partition is claimed, used or not; one that is paused alone is told of."""
    emq.enqueue_many(send.job(n) for n in range(3))  # most partitions were never used
    assert whole.pause(client, "events", by="ada", why="deploy")
    assert not whole.pause(client, "events", by="eve")
    stats = inspector.stats(client, "events")
    assert (stats.paused, stats.paused_by, stats.paused_why) == (True, "ada", "deploy")
    assert {one.paused for one in inspector.overview(client, PARTS)} == {True}
    assert set(inspector.queues(client)) == set(PARTS)
    burst("events", **variant(EMQ=EMQ))
    assert probe.marks() == []
    assert whole.resume(client, "events", by="ada")
    assert not whole.resume(client, "events")
    scripts.pause(client, "events.3", by="bob", why="odd")
    stats = inspector.stats(client, "events")
    assert (stats.paused, stats.paused_why) == (True, "Only 1 of 8 partitions. odd")
    assert "events is paused since" in command("emq_stats")


def test_drain_the_whole(client):
    """In bounded steps, through all partitions."""
    emq.enqueue_many(send.job(n) for n in range(100))
    assert whole.drain(client, "events", "pending", batch=30) == 30
    assert each(client, "events") == 70
    said = command("emq_drain", "events", "pending", "--no-input")
    assert said.splitlines()[-1] == "70 jobs deleted."
    assert each(client, "events") == 0


def test_obliterate_the_whole(client):
    """All of it, in bounded steps; nothing of it while a partition is open or holds a job."""
    emq.enqueue_many(send.job(n) for n in range(100))
    with pytest.raises(NotInState, match="ot paused"):
        whole.obliterate(client, "events")
    whole.pause(client, "events")
    scripts.resume(client, "events.7")
    with pytest.raises(NotInState, match="ot paused"):
        whole.obliterate(client, "events")
    held = claim_one(client, "events.7")
    scripts.pause(client, "events.7")
    with pytest.raises(NotInState, match="ctive jobs"):
        whole.obliterate(client, "events")
    assert held is not None
    assert each(client, "events") == 99
    calls = 1
    while whole.obliterate(client, "events", force=True, batch=5):
        calls += 1
    assert calls > 2
    assert inspector.queues(client) == []
    assert [key for key in client.raw.keys("emq:*") if b"sent:" not in key
            and b"claims:" not in key] == []  # fmt: skip


def test_verbs_of_the_whole_take_any_queue(client):
    """A queue without partitions is its own whole."""
    tasks.mark.using(queue="mail").enqueue(1)
    assert whole.pause(client, "mail")
    assert inspector.stats(client, "mail").partitions == ()
    assert whole.drain(client, "mail", "pending") == 1
    assert whole.resume(client, "mail")
    whole.pause(client, "mail")
    assert not whole.obliterate(client, "mail")
    assert inspector.queues(client) == []


# -- the commands -----------------------------------------------------------------------------


def test_stats_show_the_whole_or_each(client):
    """One row for the queue, or with --partitions one for each."""
    emq.enqueue_many([*(send.job(n) for n in range(200)), tasks.mark.using(queue="mail").job(1)])
    rows = [line.split()[:2] for line in command("emq_stats").splitlines()[1:3]]
    assert rows == [["events", "200"], ["mail", "1"]]
    (facts,) = json.loads(command("emq_stats", "events", "--json"))["queues"]
    assert facts["counts"]["pending"] == 200
    assert facts["partitions"] == PARTS
    rows = [line.split() for line in command("emq_stats", "--partitions").splitlines()[1:10]]
    assert [row[0] for row in rows] == [*PARTS, "mail"]
    assert sum(int(row[1]) for row in rows[:-1]) == 200
    rows = command("emq_stats", "events", "--partitions").splitlines()[1:9]
    assert [row.split()[0] for row in rows] == PARTS


def test_why_finds_the_partition(client):
    """By the id alone or with the queue's name, and by the trail when the row is gone."""
    job = emq.enqueue_many(send.job(n) for n in range(20))[7]
    for args in ((), ("--queue", "events"), ("--queue", job.queue)):
        assert f"Job {job.id} of queue {job.queue} is pending" in command("emq_why", job.id, *args)
    assert scripts.remove(client, job.queue, [job.id], by="ada") == [1]
    said = command("emq_why", job.id, "--queue", "events")
    assert "was removed by ada" in said
    assert f"of queue {job.queue} is absent" in said
    for args in ((), ("--queue", "events")):
        with pytest.raises(CommandError, match="has a job|has no job"):
            command("emq_why", mint(), *args)


def test_fsck_checks_all_partitions(client, redis):
    """One name, every partition."""
    redis.zadd(queue_keys("events.4").pending, {"JOB0": 0})
    scripts.register(client, PARTS)
    with pytest.raises(SystemExit):
        command("emq_fsck", "events")
    assert "1 found wrong, 1 mended" in command("emq_fsck", "events", "--repair")
    assert "0 found wrong" in command("emq_fsck", "events")


def test_the_reaper_sweeps_all_partitions(client):
    """Of one name, with the limits of its queue."""
    enqueue_one(client, "events.6")
    job = claim_one(client, "events.6")
    assert extend(client, "events.6", job.id.decode(), job.token, lease_ms=0) == 1
    assert command("emq_reaper", "events", "--once").startswith("reaped 1,")


def test_names_for_people():
    """Partitions by number, one name for all of them, and only when all are there."""
    names = ["mail", "events.10", "events.2", "events", "eventsx.1"]
    assert families(names) == {
        "events": ["events", "events.2", "events.10"], "eventsx.1": ["eventsx.1"], "mail": ["mail"],
    }  # fmt: skip
    assert folded(["mail", *PARTS, "events.9", "b"]) == ["mail", "events", "b"]
    assert folded(PARTS[:7]) == PARTS[:7]
    assert folded([]) == []


# -- the settings -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 65, 1.5, True, "8"])
def test_a_number_of_partitions(settings, value):
    settings.EMQ = fewer(value)
    (problem,) = conf.problems()
    assert problem.sentence.endswith("Give a whole number of partitions from 1 to 64.")


def test_it_is_set_for_single_queues(settings):
    settings.EMQ = {"PARTITIONS": 8}
    (problem,) = conf.problems()
    assert "PARTITIONS holds for single queues: move it to their entries" in problem.sentence


@pytest.mark.parametrize(
    ("emq_", "where"),
    [
        ({"QUEUES": {**EMQ["QUEUES"], "events.0": {}}}, "EMQ['QUEUES']['events.0']"),
        ({"QUEUES": {**EMQ["QUEUES"], "events.63": {"LEASE": 9}}}, "EMQ['QUEUES']['events.63']"),
        ({**EMQ, "DEFAULT_QUEUE": "events.1"}, "EMQ['DEFAULT_QUEUE']"),
    ],
)
def test_a_name_that_is_taken(settings, emq_, where):
    """A queue called like a partition would get its jobs."""
    settings.EMQ = emq_
    (problem,) = conf.problems()
    assert (problem.kind, problem.setting) == ("contradiction", where)
    assert "rename one of the two" in problem.sentence


@pytest.mark.parametrize("name", ["events.x", "events.007", "events.", "event.0", "events.0.1"])
def test_a_name_that_only_looks_like_it(settings, name):
    settings.EMQ = {"QUEUES": {**EMQ["QUEUES"], name: {}}}
    assert conf.problems() == []


@pytest.mark.parametrize(("length", "wrong"), [(126, 0), (127, 1), (128, 1)])
def test_names_of_partitions_have_room(settings, length, wrong):
    settings.EMQ = {"QUEUES": {"x" * length: {"PARTITIONS": 8}, "y" * 128: {}}}
    assert len(conf.problems()) == wrong
    if wrong:
        assert "more than 128 characters" in conf.problems()[0].sentence


def test_the_default_queue_may_have_partitions(settings, client):
    settings.EMQ = {"QUEUES": {"default": {"PARTITIONS": 2}}}
    assert tasks.mark.enqueue(1).queue in ("default.0", "default.1")
    connections.reset()


# -- the admin --------------------------------------------------------------------------------


@pytest.fixture
def operator(db):
    """Somebody who may do everything, in a browser."""
    from django.contrib.auth.models import User
    from django.test import Client as Browser

    browser = Browser()
    browser.force_login(User.objects.create_superuser("anna"))
    return browser


def rows(page):
    return {one.queue: (one.counts["pending"], serving) for one, serving in page.context["queues"]}


def test_the_page_shows_the_whole(client, operator):
    """One row with sums leads to the partitions; a partition without a worker is seen in it."""
    from tests.admin.yard import url

    emq.enqueue_many([*(send.job(n) for n in range(200)), tasks.mark.using(queue="mail").job(1)])
    scripts.beat(client, "w-1", ttl_ms=60_000, facts={"queues": " ".join([*PARTS, "mail"])})
    scripts.beat(client, "w-2", ttl_ms=60_000, facts={"queues": " ".join(PARTS[:7])})
    page = operator.get(url("queue_changelist"))
    assert rows(page) == {"events": (200, 1), "mail": (1, 1)}
    text = page.content.decode()
    assert 'href="?of=events">events</a>' in text
    assert "8 partitions" in text
    page = operator.get(url("queue_changelist"), {"of": "events"})
    assert list(rows(page)) == PARTS
    assert sum(pending for pending, _ in rows(page).values()) == 200
    assert [serving for _, serving in rows(page).values()] == [2] * 7 + [1]
    assert "Partitions of events" in page.content.decode()
    assert url("queue_change", queue="events.3") in page.content.decode()
    assert rows(operator.get(url("queue_changelist"), {"of": "no"})) == {}
    page = operator.get(url("worker_changelist")).content.decode()
    assert "events, mail" in page


def test_the_page_pauses_the_whole(client, operator):
    """By one button, and a single partition by its own."""
    from tests.admin.yard import url

    send.enqueue(1)
    address = url("queue_pause", queue="events")
    page = operator.post(address, {"to": "pause", "next": "queues"}, follow=True)
    assert page.context["queues"][0][0].paused
    assert {one.paused for one in inspector.overview(client, PARTS)} == {True}
    address = url("queue_pause", queue="events.3")
    page = operator.post(address, {"to": "resume", "next": "queues"}, follow=True)
    assert list(rows(page)) == PARTS
    assert [one.queue for one, _ in page.context["queues"] if not one.paused] == ["events.3"]
    assert operator.post(url("queue_pause", queue="no")).status_code == 404


def test_the_page_stays_within_its_round_trips(client, operator, monkeypatch, settings):
    """Whatever the number of partitions; families are not torn by the pages."""
    from tests.admin.yard import url

    settings.EMQ = {"QUEUES": {name: {"PARTITIONS": 64} for name in ("a", "b", "c")}}
    for name in ("a", "b", "c"):
        scripts.register(client, conf.settings().parts(name))
    operator.get(url("queue_changelist"))
    made = []
    for name in ("read", "run"):
        real = getattr(connections.Client, name)

        def counted(self, *args, real=real):
            made.append(args)
            return real(self, *args)

        monkeypatch.setattr(connections.Client, name, counted)
    page = operator.get(url("queue_changelist"), {"p": "2"})
    assert len(made) <= 15
    assert page.context["pages"] == 3
    assert list(rows(page)) == ["b"]


def test_a_job_is_found_by_its_id(client, operator):
    """The search knows the partitions."""
    from tests.admin.yard import url

    job = send.enqueue(1)
    page = operator.get(url("queue_changelist"), {"q": job.id})
    assert page.url == url("queue_job", queue=job.queue, job_id=job.id)

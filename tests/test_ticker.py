"""Schedules on the server: who declares them, who ticks, and what one planned time becomes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import django_emq as emq
from django_emq import connections, inspector, partitions, registry, schedules, scripts, signing
from django_emq.conf import settings as emq_settings
from django_emq.exceptions import ForgedPayload, InvalidOption, InvalidTask, JobGone, NotInState
from django_emq.jobs import decode
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from django_emq.repeats import OFF, Tick
from django_emq.ticker import Ticker, job_of, now_ms, run_now, switch
from tests.conformance.wire import calls, claim_some, members, row, snapshot
from tests.probe import tasks

MARK = "tests.probe.tasks.mark"
HOUR = 3_600_000


@pytest.fixture
def declare(settings):
    """Have the settings declare schedules, as a process knows them that starts now."""

    def declare(*queues, since=None, **plans):
        settings.EMQ = {**settings.EMQ, "SCHEDULES": plans}
        ticker = Ticker(connections.client())
        ticker._since = since
        ticker._declared.update(queues if since else ())
        ticker.declare(queues)
        return ticker

    return declare


def plan(queue, **options):
    return {"task": MARK, "args": [1], "every": 3600, "queue": queue, **options}


def set_back(client, queue, name, ms):
    """Move the next time of a schedule into the past, by so much; what it is then."""
    key = queue_keys(queue).repeat
    client.raw.zincrby(key, -ms, name)
    return int(client.raw.zscore(key, name))


def names(client, queue):
    return sorted(members(client, queue, "repeat"))


def known(client, queue):
    """All that the server knows of the schedules of a queue, and its jobs."""
    entries = members(client, queue, "repeat")
    records = {name: scripts_record(client, queue, name) for name in entries}
    return entries, records, snapshot(client, queue)


# -- declaring --------------------------------------------------------------------------------


def test_declaring_fires_nothing(client, queue, declare):
    """The first time is after now, at a multiple of the period."""
    declare(queue, x=plan(queue))
    now = now_ms(client)
    assert members(client, queue, "repeat") == {"x": (now // HOUR + 1) * HOUR}
    assert inspector.totals(client, queue) == {}


def test_declaring_again_changes_nothing(client, redis, queue, declare):
    """And writes nothing, so that a worker starts on a full server."""
    declare(queue, x=plan(queue))
    before, written = known(client, queue), calls(client, "hset") + calls(client, "zadd")
    declare(queue, x=plan(queue))
    assert known(client, queue) == before
    assert calls(client, "hset") + calls(client, "zadd") == written


def test_other_arguments_keep_the_next_time(client, queue, declare):
    """Only other times make another next time."""
    declare(queue, x=plan(queue))
    planned = set_back(client, queue, "x", 5)
    declare(queue, x=plan(queue, args=[2]))
    assert members(client, queue, "repeat") == {"x": planned}
    assert '"args":[2]' in scripts_record(client, queue, "x")["template"]
    declare(queue, x=plan(queue, every=60))
    assert members(client, queue, "repeat")["x"] % 60_000 == 0
    declare(queue, x={"task": MARK, "queue": queue, "cron": "@daily", "tz": "UTC"})
    assert members(client, queue, "repeat")["x"] % (24 * HOUR) == 0
    assert "every_ms" not in scripts_record(client, queue, "x")


def scripts_record(client, queue, name):
    fields = client.raw.hgetall(queue_keys(queue).record(name))
    return {field.decode(): value.decode() for field, value in fields.items()}


def test_an_older_process_does_not_bring_back_what_a_newer_one_removed(client, queue, declare):
    """In a rolling deploy old workers declare anew too, once a minute."""
    now = now_ms(client)
    declare(queue, since=now, x=plan(queue), y=plan(queue))
    declare(queue, since=now + 1000, y=plan(queue, every=60))
    assert names(client, queue) == ["y"]
    before = known(client, queue)
    declare(queue, since=now, x=plan(queue), y=plan(queue))
    assert known(client, queue) == before


def test_removing_leaves_what_is_not_of_the_code(client, queue, declare):
    """A plain registration, and what the database knows."""
    scripts.repeat_register(client, queue, "plain", every_ms=10, template="x", first_ms=0)
    one = schedules.placed("stored", schedules.Plan(task=MARK, every_ms=60_000), emq_settings())
    entry = one.entry(now_ms(client))
    record = {**entry.record, "source": "database"}
    scripts.declare(client, queue, "database", [entry._replace(record=record)])
    declare(queue, x=plan(queue))
    declare(queue)
    assert names(client, queue) == ["plain", "stored"]


def test_the_database_does_not_change_one_of_the_code(client, queue, declare):
    """Whose name it has; the code takes the place of one of the database."""
    one = schedules.placed("x", schedules.Plan(task=MARK, every_ms=60_000), emq_settings())
    entry = one.entry(now_ms(client))
    assert scripts.declare(client, queue, "database", [entry]).entered == 1
    declare(queue, x=plan(queue))
    assert scripts_record(client, queue, "x")["source"] == "code"
    assert scripts.declare(client, queue, "database", [entry]).entered == 0


def test_settings_go_before_decorators(settings, monkeypatch):
    """The same name: another rule, or none."""
    monkeypatch.setattr(schedules, "_decorated", {})
    assert emq.cron("@daily")(tasks.mark) is tasks.mark
    emq.every(minutes=10, name="often", args=[1])(tasks.mark)
    emq.every(hours=1, name="gone")(tasks.mark)
    settings.EMQ = {
        **settings.EMQ, "SCHEDULES": {"often": {"task": MARK, "every": 60}, "gone": None}
    }  # fmt: skip
    found = schedules.declared()
    assert {name: str(one.rule) for name, one in found.items()} == {
        "often": "every 0:01:00",
        MARK: "@daily (UTC)",
    }


def test_two_decorators_need_two_names(monkeypatch):
    """A module that is loaded again is no second one."""
    monkeypatch.setattr(schedules, "_decorated", {})
    emq.cron("@daily")(tasks.mark)
    with pytest.raises(InvalidOption, match="Give one of them another name="):
        emq.every(hours=1)(tasks.mark)
    with pytest.raises(InvalidOption, match="another name="):
        emq.every(hours=1, name=MARK)(tasks.boom)
    emq.cron("@hourly")(emq.Task(tasks.mark.func, MARK))
    assert schedules.declared()[MARK].cron == "@hourly"


@pytest.mark.parametrize(
    ("decorate", "error", "said"),
    [
        (lambda: emq.cron("@daily")(tasks.mark.func), InvalidTask, "Put the schedule above @emq.t"),
        (lambda: emq.cron("nonsense")(tasks.mark), InvalidOption, "cannot be read"),
        (lambda: emq.cron("@daily", tz="Mars")(tasks.mark), InvalidOption, "no time zone 'Mars'"),
        (lambda: emq.cron("@daily", misfire="x")(tasks.mark), InvalidOption, "misfire is 'x'"),
        (lambda: emq.cron("@daily", args=[{1}])(tasks.mark), TypeError, "does not survive JSON"),
        (lambda: emq.cron("@daily", name="a\nb")(tasks.mark), InvalidOption, "is not allowed"),
        (lambda: emq.every()(tasks.mark), InvalidOption, "The period is 0 s"),
        (lambda: emq.every(seconds=float("nan"))(tasks.mark), InvalidOption, "every is nan"),
    ],
)
def test_a_bad_decorator_is_an_error_at_import(monkeypatch, decorate, error, said):
    """With the thing, the fact and the way out."""
    monkeypatch.setattr(schedules, "_decorated", {})
    with pytest.raises(error, match=said):
        decorate()
    assert schedules._decorated == {}


def test_partitions_keep_a_schedule_together(client, settings, declare):
    """It is in one partition, that of its name; so are all of its jobs."""
    settings.EMQ = {**settings.EMQ, "QUEUES": {"events": {"PARTITIONS": 4}}}
    parts = emq_settings().parts("events")
    ticker = declare(*parts, x=plan("events"))
    (where,) = [part for part in parts if names(client, part)]
    assert where == partitions.partition("events", partitions.number_of("x", 4))
    set_back(client, where, "x", HOUR)
    ticker.tick(where)
    assert inspector.counts(client, where)["pending"] == 1


# -- ticking ----------------------------------------------------------------------------------


def test_a_tick_is_a_job(client, queue, declare):
    """Of the task, with its options, for the planned time, and the next time is the one after."""
    ticker = declare(queue, x=plan(queue, priority=7, kwargs={"y": 2}))
    planned = set_back(client, queue, "x", HOUR)
    assert 0 < ticker.tick(queue) <= HOUR
    assert members(client, queue, "repeat") == {"x": planned + HOUR}
    (job,) = claim_some(client, queue, 5)
    call = decode(job.payload)
    assert (call.task, call.args, call.kwargs) == (MARK, [1], {"y": 2})
    assert call.planned_at == planned
    fields = row(client, queue, job.id.decode())
    assert (fields["priority"], fields["planned_at"], fields["schedule"]) == (
        "7",
        str(planned),
        "x",
    )
    record = scripts_record(client, queue, "x")
    assert (record["last_job"], record["last_planned"]) == (job.id.decode(), str(planned))


def test_what_hangs_on_a_task_hangs_on_its_scheduled_jobs(client, queue, declare, monkeypatch):
    """A job of a schedule is made as any other: callbacks with ids of their own, every time."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    first = registry.register(replace(tasks.mark, name="first", on_success=tasks.boom))
    ticker = declare(queue, x=plan(queue, task=first.name, misfire="fire_all"))
    set_back(client, queue, "x", 2 * HOUR)
    ticker.tick(queue)
    rows = [row(client, queue, i) for i in members(client, queue, "pending")]
    assert len({one["on_success"] for one in rows}) == 2
    assert all("tests.probe.tasks.boom" in one["on_success"] for one in rows)


def test_nothing_to_tick_costs_no_command(client, queue):
    """The sweep that looks at the leases anyway sees that there is no schedule."""
    reaper = Reaper(client, (queue,), interval=9)
    reaper.run_once()
    before = calls(client, "evalsha")
    reaper.run_once()
    assert calls(client, "evalsha") - before == 2  # reap and promote


def test_a_sweep_wakes_for_the_next_tick(client, queue, declare):
    """Not only once an interval."""
    declare(queue, x=plan(queue, every=2))
    reaper = Reaper(client, (queue,), interval=9)
    assert reaper.run_once() <= 2.001
    reaper.ticker.fired = 0
    set_back(client, queue, "x", 2000)
    assert reaper.run_once() <= 2.001
    assert reaper.ticker.fired == 1


@pytest.mark.parametrize("misfire", ["fire_once", "fire_all"])
def test_ten_tickers_at_once(client, queue, declare, misfire):
    """Each planned time is one job, and no time is left out."""
    declare(queue, x=plan(queue, every=60, misfire=misfire), y=plan(queue, misfire=misfire))
    first = set_back(client, queue, "x", 20 * 60_000)
    set_back(client, queue, "y", HOUR)
    gate = threading.Barrier(10)

    def tick(_):
        ticker = Ticker(connections.client())
        gate.wait(30)
        ticker.tick(queue)
        return ticker.fired

    with ThreadPoolExecutor(10) as pool:
        fired = sum(pool.map(tick, range(10)))
    jobs = [row(client, queue, i) for i in members(client, queue, "pending")]
    assert fired == len(jobs)
    times = sorted(int(one["planned_at"]) for one in jobs if one["schedule"] == "x")
    expected = range(first, first + 20 * 60_000, 60_000)
    assert times == (list(expected) if misfire == "fire_all" else [expected[-1]])
    assert len(jobs) == len(times) + 1


def test_a_tick_of_a_rule_that_has_changed_is_refused(client, queue, declare):
    """Who computed with the old one changes nothing, and does not undo the new one."""
    declare(queue, x=plan(queue))
    planned = set_back(client, queue, "x", HOUR)
    (due,) = scripts.repeat_due(client, queue).schedules
    declare(queue, x=plan(queue, args=[2]))
    job = job_of(queue, "x", due.record, planned)
    tick = Tick("x", planned, planned + HOUR, planned, due.record["rule"])
    before = known(client, queue)
    for late in (tick, tick._replace(name="no such")):
        with pytest.raises(NotInState, match="gone, or it was changed"):
            scripts.enqueue(client, queue, [job], request="r", producer="p", tick=late)
    assert known(client, queue) == before


def test_a_tick_is_not_made_before_its_time(client, queue, declare):
    """By the server's clock, whatever a ticker believes; and not twice."""
    declare(queue, x=plan(queue))
    (planned,) = map(int, members(client, queue, "repeat").values())
    record = scripts_record(client, queue, "x")
    job = job_of(queue, "x", record, planned)
    tick = Tick("x", planned, planned + HOUR, planned, record["rule"])
    with pytest.raises(NotInState, match="not due"):
        scripts.enqueue(client, queue, [job], request="r", producer="p", tick=tick)
    late = tick._replace(was=planned - HOUR, next_ms=planned)
    with pytest.raises(NotInState, match="made by somebody else"):
        scripts.enqueue(client, queue, [job], request="r", producer="p", tick=late)
    assert inspector.counts(client, queue)["pending"] == 0


@pytest.mark.parametrize(("misfire", "count"), [("fire_once", 1), ("skip", 0), ("fire_all", 72)])
def test_B46_everything_was_off_for_hours(client, queue, declare, misfire, count):
    """Six hours late: one job, none, or 72; the next time is the regular one; no time twice.

    The times are set back on the server, so that now is two minutes past one.
    """
    ticker = declare(queue, x=plan(queue, every=300, misfire=misfire))
    now = now_ms(client)
    last = now - 120_000
    client.raw.zadd(queue_keys(queue).repeat, {"x": last - 71 * 300_000})
    ticker.tick(queue)
    jobs = [row(client, queue, i) for i in members(client, queue, "pending")]
    times = sorted(int(one["planned_at"]) for one in jobs)
    assert len(times) == len(set(times)) == count
    assert not times or times[-1] == last
    assert members(client, queue, "repeat") == {"x": last + 300_000}
    ticker.tick(queue)
    assert inspector.counts(client, queue)["pending"] == count


def test_a_crash_between_two_steps_loses_nothing(client, queue, declare, monkeypatch):
    """A ticker that dies after it looked has changed nothing: the next one makes the tick."""
    ticker = declare(queue, x=plan(queue))
    set_back(client, queue, "x", HOUR)
    monkeypatch.setattr(
        scripts, "enqueue", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        ticker.tick(queue)
    monkeypatch.undo()
    assert inspector.counts(client, queue)["pending"] == 0
    for _ in range(2):
        Ticker(client).tick(queue)
    assert inspector.counts(client, queue)["pending"] == 1


def test_a_schedule_that_cannot_be_kept_harms_no_other(client, redis, queue, declare, caplog):
    """A zone that this machine lacks: said once, left alone; no sweep spins for it."""
    ticker = declare(
        queue, x={"task": MARK, "queue": queue, "cron": "@daily", "tz": "UTC"}, y=plan(queue)
    )
    redis.hset(queue_keys(queue).record("x"), "tz", "Mars")
    for name in "xy":
        set_back(client, queue, name, 24 * HOUR)
    assert ticker.tick(queue) > 0
    assert ticker.tick(queue) > 0
    assert inspector.counts(client, queue)["pending"] == 1
    assert caplog.text.count("schedule x cannot be kept: There is no time zone 'Mars' here") == 1
    assert names(client, queue) == ["x", "y"]


def test_a_task_that_is_unknown_is_said_once(client, queue, declare, caplog):
    """The others are declared. (`check` says it before: E030.)"""
    plans = {"x": plan(queue, task="no.such.task"), "y": plan(queue)}
    ticker = declare(queue, **plans)
    ticker.declare([queue])
    assert names(client, queue) == ["y"]
    assert caplog.text.count("schedule x cannot be kept: There is no task") == 1


def test_a_ticker_that_does_not_know_the_task_leaves_it_to_others(client, queue, declare, caplog):
    """Of another release, for instance: said once, and the tick stays due."""
    ticker = declare(queue, x=plan(queue))
    planned = set_back(client, queue, "x", HOUR)
    known = registry._tasks.pop(MARK)
    try:
        assert ticker.tick(queue) == -1
        assert ticker.tick(queue) == -1
    finally:
        registry._tasks[MARK] = known
    assert caplog.text.count("schedule x cannot be kept: There is no task") == 1
    assert members(client, queue, "repeat") == {"x": planned}
    assert ticker.tick(queue) > 0
    assert inspector.counts(client, queue)["pending"] == 1


def test_signed_payloads(client, redis, queue, settings, declare):
    """A ticker signs what the code declared, and not what somebody wrote on the server."""
    settings.EMQ = {**settings.EMQ, "SIGN_PAYLOADS": True}
    ticker = declare(queue, x=plan(queue))
    planned = set_back(client, queue, "x", HOUR)
    ticker.tick(queue)
    (job,) = claim_some(client, queue, 5)
    signing.check(job.payload, job.id)
    call = decode(job.payload)
    assert (call.task, call.args, call.planned_at) == (MARK, [1], planned)
    record = scripts_record(client, queue, "x")
    for forged in ('{"task":"x"}', record["template"].replace("[1]", "[2]")):
        redis.hset(queue_keys(queue).record("x"), "template", forged)
        with pytest.raises(ForgedPayload):
            run_now(client, queue, "x")


# -- what operators do ------------------------------------------------------------------------


def test_switched_off_it_stays_off(client, queue, declare):
    """Over a deploy and a change of its times. Switched on it makes up for nothing."""
    ticker = declare(queue, x=plan(queue))
    assert switch(client, queue, "x", on=False, by="anna")
    declare(queue, x=plan(queue, every=60))
    assert members(client, queue, "repeat") == {"x": OFF}
    assert ticker.tick(queue) == -1
    assert Reaper(client, (queue,), interval=9).sweep(queue) == -1
    assert switch(client, queue, "x", on=True, by="ben")
    (following,) = members(client, queue, "repeat").values()
    assert 0 < following - now_ms(client) <= 60_000
    trail = [(one.event, one.note, one.by) for one in inspector.trail(client, queue)]
    assert trail[:2] == [("switched_on", "x", "ben"), ("switched_off", "x", "anna")]
    assert not switch(client, queue, "no such", on=False)
    with pytest.raises(JobGone, match="has no schedule 'no such'"):
        switch(client, queue, "no such", on=True)


def test_run_now(client, queue, declare):
    """One job more; the next time stays, also of one that is off."""
    declare(queue, x=plan(queue))
    before = members(client, queue, "repeat")
    job = run_now(client, queue, "x")
    switch(client, queue, "x", on=False)
    run_now(client, queue, "x")
    assert (job.task, job.queue) == (MARK, queue)
    assert inspector.counts(client, queue)["pending"] == 2
    assert before["x"] > now_ms(client)
    assert scripts_record(client, queue, "x")["last_job"] > job.id


def test_drain_leaves_schedules_and_obliterate_removes_them(client, queue, declare):
    """As the contract says; workers that run enter those of the code again within a minute."""
    ticker = declare(queue, x=plan(queue))
    set_back(client, queue, "x", HOUR)
    ticker.tick(queue)
    assert scripts.drain(client, queue, "pending") == 1
    assert names(client, queue) == ["x"]
    scripts.pause(client, queue)
    assert not scripts.obliterate(client, queue)
    left = client.raw.scan_iter(queue_keys(queue).base + "*")
    assert all(b":sent:" in key for key in left)  # memories of calls end by themselves
    ticker.declare([queue])
    assert names(client, queue) == ["x"]


def test_a_unique_task_does_not_overlap_with_itself(client, queue, declare, monkeypatch):
    """While its last job goes on a tick makes none, and the schedule goes on."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    one = registry.register(replace(tasks.mark, name="one", unique=True))
    ticker = declare(queue, x=plan(queue, task=one.name))
    for _ in range(2):
        planned = set_back(client, queue, "x", 2 * HOUR)
        ticker.tick(queue)
        assert members(client, queue, "repeat")["x"] > planned
        assert inspector.counts(client, queue)["pending"] == 1
    assert ticker.fired == 1

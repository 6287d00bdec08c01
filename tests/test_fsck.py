"""emq_fsck: each kind of damage made by hand is found and mended, and nothing else is touched."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from django.core.management import call_command
from private_server import private_server

from django_emq import connections, inspector, scripts, upkeep
from django_emq.exceptions import ServerRefused
from django_emq.ids import mint
from django_emq.inspector.jobs import STATES
from django_emq.keys import queue_keys, reserve_keys
from tests.conformance import wire
from tests.conformance.wire import (
    books_balance,
    claim_some,
    enqueue_some,
    given,
    members,
    now_ms,
    row,
    snapshot,
)
from tests.operator_cases import job_in
from tests.processes import Worker, wait_until

YEARS_MS = 10 * 366 * 86_400_000


@dataclass
class Yard:
    """A queue with a sound job in each set, and what a test needs to damage it."""

    client: object
    queue: str
    jobs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scripts.register(self.client, [self.queue])
        for state in ("active", "scheduled", "dead", "done", "pending"):
            self.jobs[state] = job_in(self.client, self.queue, state)
        self.keys = queue_keys(self.queue)
        self.redis = self.client.raw

    def move(self, job_id: str, *, out_of: str = "", into: str = "", score: float = 1) -> str:
        if out_of:
            self.redis.zrem(getattr(self.keys, out_of), job_id)
        if into:
            self.redis.zadd(getattr(self.keys, into), {job_id: score})
        return job_id

    def set(self, job_id: str, **fields: object) -> str:
        self.redis.hset(self.keys.job(job_id), mapping=fields)
        return job_id

    def drop(self, job_id: str, *fields: str) -> str:
        if fields:
            self.redis.hdel(self.keys.job(job_id), *fields)
        else:
            self.redis.delete(self.keys.job(job_id))
        return job_id

    def everywhere(self, job_id: str) -> str:
        for name in inspector.SETS:
            self.move(job_id, into=name)
        return job_id

    def replace(self, job_id: str, value: str = "stranger") -> str:
        self.redis.set(self.keys.job(job_id), value)
        return job_id


@pytest.fixture
def yard(client, queue):
    return Yard(client, queue)


def fsck(*args: str) -> tuple[int, str]:
    """Exit status and output."""
    out = io.StringIO()
    try:
        call_command("emq_fsck", *args, stdout=out, stderr=io.StringIO())
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def findings(client, queue: str) -> list[inspector.Finding]:
    return list(inspector.audit(client, [queue]))


def orphan(where: str, **fields: object) -> Callable[[Yard], str]:
    """The row of a job in this state, taken out of its set."""

    def damage(yard: Yard) -> str:
        job_id = yard.jobs[where]
        yard.move(job_id, out_of={"scheduled": "schedule"}.get(where, where))
        return yard.set(job_id, **fields) if fields else job_id

    return damage


# What is done to a sound queue, the kind of finding, and the set in which the job ends.
DAMAGE: list[tuple[str, Callable[[Yard], str], str, str]] = [
    ("ghost", lambda y: y.move(mint(), into="pending"), "no-row", ""),
    ("ghost in two", lambda y: y.move(y.move(mint(), into="dead"), into="done"), "no-row", ""),
    ("row lost", lambda y: y.drop(y.jobs["active"]), "no-row", ""),
    ("pending orphan", orphan("pending"), "no-set", "pending"),
    ("held orphan", orphan("active"), "no-set", "pending"),
    ("due orphan", orphan("scheduled"), "no-set", "dead"),
    ("retried orphan", orphan("scheduled", settled="retry"), "no-set", "pending"),
    ("dead orphan", orphan("dead"), "no-set", "dead"),
    ("done orphan", orphan("done"), "no-set", "done"),
    ("nonsense orphan", orphan("pending", state="x"), "no-set", "pending"),
    ("damaged orphan", orphan("pending", attempts="x"), "no-set", "dead"),
    ("orphan of no kind", lambda y: y.replace(y.move(mint())), "no-set", "dead"),
    ("stranger's row", lambda y: y.set("evil", state="pending", attempts="0", payload="{}"),
     "no-set", "dead"),
    ("pending and active", lambda y: y.move(y.jobs["active"], into="pending"), "two-sets",
     "active"),
    ("pending and dead", lambda y: y.move(y.jobs["pending"], into="dead"), "two-sets", "pending"),
    ("done and pending", lambda y: y.move(y.jobs["done"], into="pending"), "two-sets", "done"),
    ("in all", lambda y: y.everywhere(y.set(y.jobs["pending"], state="?")), "two-sets",
     "pending"),
    ("two, damaged", lambda y: y.move(y.drop(y.jobs["pending"], "payload"), into="schedule"),
     "two-sets", "dead"),
    ("wrong word", lambda y: y.set(y.jobs["dead"], state="pending"), "state", "dead"),
    ("no word", lambda y: y.drop(y.jobs["scheduled"], "state"), "state", "schedule"),
    ("no payload", lambda y: y.drop(y.jobs["pending"], "payload"), "damaged", "dead"),
    ("bad token", lambda y: y.set(y.jobs["active"], attempts="007"), "damaged", "dead"),
    ("no row but a text", lambda y: y.replace(y.jobs["scheduled"]), "damaged", "dead"),
    ("no job id", lambda y: y.move(y.set("x\n\x00", state="pending", attempts="0", payload="{}"),
     into="pending"), "damaged", "dead"),
    ("held without token", lambda y: y.set(y.jobs["active"], attempts="0"), "token", "pending"),
    ("lease for ever", lambda y: y.move(y.jobs["active"], into="active", score=float("inf")),
     "time", "active"),
    ("lease of years", lambda y: y.move(y.jobs["active"], into="active",
     score=now_ms(y.client) + YEARS_MS), "time", "active"),
    ("never due", lambda y: y.move(y.jobs["scheduled"], into="schedule", score=float("inf")),
     "time", "dead"),
    ("death to come", lambda y: y.move(y.jobs["dead"], into="dead",
     score=now_ms(y.client) + YEARS_MS), "time", "dead"),
    ("kept for ever", lambda y: y.move(y.jobs["done"], into="done", score=float("inf")),
     "time", "done"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "kind", "ends_in"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE]
)
def test_damage_is_found_and_mended(client, yard, damage, kind, ends_in):
    """One finding, about that id; afterwards the books balance, and the others are untouched."""
    others = {s: row(client, yard.queue, i) for s, i in yard.jobs.items()}
    job_id = damage(yard)
    (found,) = findings(client, yard.queue)
    assert (found.kind, found.id) == (kind, job_id.encode().decode("utf-8", "backslashreplace"))
    before = snapshot(client, yard.queue)
    assert fsck(yard.queue)[0] == 1
    assert snapshot(client, yard.queue) == before, "a look changes nothing"

    status, output = fsck(yard.queue, "--repair")
    assert status == 0, output
    assert "1 found wrong, 1 mended" in output
    assert findings(client, yard.queue) == []
    places = [s for s in inspector.SETS if job_id in members(client, yard.queue, s)]
    assert places == ([ends_in] if ends_in else [])
    assert {
        s: row(client, yard.queue, i) for s, i in yard.jobs.items() if i != job_id
    } == {s: r for s, r in others.items() if yard.jobs[s] != job_id}  # fmt: skip
    if ends_in:
        after = row(client, yard.queue, job_id)
        assert after["state"] == STATES.get(ends_in, ends_in)
        rows = before["rows"][job_id]
        token = rows.get(b"attempts", b"0") if isinstance(rows, dict) else b"0"
        assert after["attempts"] == token.decode(), "tokens neither fall nor grow"
    assert fsck(yard.queue)[0] == 0


def test_a_mended_job_runs(client, yard):
    """An orphan that is put back is claimed, with a token above its last one."""
    job_id = orphan("active")(yard)
    client.raw.delete(yard.keys.wake)
    assert fsck("--repair")[0] == 0
    assert client.raw.llen(yard.keys.wake) == 1
    assert (job_id, "work", 2) in [given(job) for job in claim_some(client, yard.queue, 9)]
    books_balance(client, yard.queue)


def test_a_lost_lease_comes_back(client, yard):
    """The lease that is given in place of one for ever is one that lapses."""
    yard.move(yard.jobs["active"], into="active", score=float("inf"))
    assert fsck("--repair")[0] == 0
    (score,) = members(client, yard.queue, "active").values()
    assert 0 < score - now_ms(client) <= 15_000


def test_the_morgue_says_why(client, yard):
    """And the trail says that it was mended; the counter counts it."""
    job_id = yard.drop(yard.jobs["pending"], "payload")
    assert fsck("--repair")[0] == 0
    assert row(client, yard.queue, job_id)["last_error"] == "damaged row: payload is missing"
    (entry,) = (e for e in inspector.trail(client, yard.queue) if e.event == "mended")
    assert (entry.id, entry.note) == (job_id, "damaged > dead")
    assert inspector.totals(client, yard.queue)["mended"] == 1
    assert any("mended" in line for line in inspector.why(client, yard.queue, job_id).history)


def foreign(name: str, kind: str) -> Callable[[Yard], str]:
    def damage(yard: Yard) -> str:
        key = yard.keys.base + name
        yard.redis.delete(key)
        yard.redis.set(key, "x") if kind == "string" else yard.redis.rpush(key, "x")
        return key

    return damage


def keep(name: str) -> Callable[[Yard], str]:
    def damage(yard: Yard) -> str:
        key = yard.keys.base + name
        yard.redis.delete(key)
        if name.startswith("metrics"):
            yard.redis.hset(key, "claimed", 1)
        else:
            yard.redis.set(key, "1")
        return key

    return damage


def orphan_key(name: str, value: str | None) -> Callable[[Yard], str]:
    def damage(yard: Yard) -> str:
        key = yard.keys.base + name
        yard.redis.set(key, value) if value else yard.redis.rpush(key, "line")
        return key

    return damage


def bad_counter(yard: Yard) -> str:
    yard.redis.hset(yard.keys.metrics, "claimed", "-5")
    return yard.keys.metrics


KEYS: list[tuple[Callable[[Yard], str], str]] = [
    *((foreign(name, "string"), "type") for name in ("wake", "meta", "metrics", "trail", "onward")),
    *(
        (foreign(name, "list"), "type")
        for name in ("limiter", "sent:p", "claims:w", "fence:x", "metrics:9")
    ),
    *((keep(name), "ttl") for name in ("limiter", "sent:p", "claims:w", "fence:x", "metrics:9")),
    (orphan_key("job:JOB9:logs", None), "logs"),
    (orphan_key("unique:abc", "JOB9"), "unique"),
    (bad_counter, "counter"),
]


@pytest.mark.parametrize(("damage", "kind"), KEYS)
def test_a_bad_key_is_found_and_mended(client, yard, damage, kind):
    """And no job is touched by it."""
    before = snapshot(client, yard.queue)
    key = damage(yard)
    (found,) = findings(client, yard.queue)
    assert (found.kind, found.id) == (kind, key)
    assert fsck("--repair")[0] == 0
    assert findings(client, yard.queue) == []
    assert snapshot(client, yard.queue) == before


@pytest.mark.parametrize("name", inspector.SETS)
def test_a_set_that_is_none(client, yard, name):
    """A text in the place of a set: its jobs are brought back from their rows."""
    foreign(name, "string")(yard)
    status, output = fsck("--repair")
    assert status == 0, output
    assert findings(client, yard.queue) == []
    books_balance(client, yard.queue)
    assert sum(inspector.counts(client, yard.queue).values()) == 5


def test_a_queue_that_nobody_knows(client, yard):
    """Its keys are enough to find it, and then its jobs are looked at too."""
    client.raw.delete(reserve_keys().queues)
    job_id = orphan("pending")(yard)
    ghost = yard.move(mint(), into="pending")
    wake = foreign("wake", "string")(yard)
    assert {(f.kind, f.id) for f in inspector.audit(client)} == {
        ("registry", yard.queue),
        ("no-set", job_id),
        ("no-row", ghost),
        ("type", wake),
    }
    assert fsck("--repair")[0] == 0
    assert inspector.queues(client) == [yard.queue]
    books_balance(client, yard.queue)


def test_what_has_put_itself_right_is_left_alone(client, redis, yard):
    """Between the look and the cure the job may move, and the key may get its time."""
    job_id = orphan("pending")(yard)
    keys = [foreign("wake", "string")(yard), keep("sent:p")(yard), keep("claims:w")(yard)]
    lines = orphan_key("job:JOB9:logs", None)(yard)
    holder = orphan_key("unique:abc", "JOB7")(yard)
    bad_counter(yard)
    found = findings(client, yard.queue)
    assert len(found) == 7
    yard.move(job_id, into="pending", score=0)
    redis.delete(keys[0])
    redis.rpush(keys[0], "1")
    redis.expire(keys[1], 1000)
    redis.expire(keys[2], 1000)
    yard.set("JOB9", attempts="0")
    redis.set(holder, "JOB8")
    redis.hset(yard.keys.metrics, "claimed", 7)
    before = {key: redis.dump(key) for key in redis.keys("*")}
    for one in found:
        one.mend(client)
    assert {key: redis.dump(key) for key in redis.keys("*")} == before
    assert redis.pttl(keys[1]) <= 1_000_000
    assert redis.exists(lines)


def test_what_belongs_to_a_job_is_left_alone(client, yard):
    """Its log, its unique key, and what has a time to live."""
    (held,) = members(client, yard.queue, "active")
    wire.log(client, yard.queue, held, 1, "line")
    client.raw.set(yard.keys.unique("k"), held)
    client.raw.set(yard.keys.base + "from-tomorrow", "?")
    assert list(inspector.audit(client)) == []


def test_other_queues_and_strangers_are_left_alone(client, yard, queue):
    """With a queue named, only its keys count; what is not the queue's never does."""
    other = Yard(client, f"{queue}-other")
    damaged = orphan("pending")(other)
    client.raw.set("emq:{not a queue}:pending", "x")
    client.raw.set(":1:session", "x")
    assert findings(client, queue) == []
    assert fsck(queue, "--repair")[0] == 0
    assert [f.id for f in inspector.audit(client)] == [damaged]
    assert [f.id for f in inspector.audit(client, [queue, other.queue])] == [damaged]
    assert list(inspector.audit(client, [queue, f"{queue}-third"])) == []


def test_json_is_one_object_a_line(client, yard):
    job_id = orphan("pending")(yard)
    status, output = fsck("--json")
    found, total = map(json.loads, output.splitlines())
    assert status == 1
    assert found["kind"] == "no-set"
    assert (found["id"], found["sets"], found["mended"]) == (job_id, {}, False)
    assert found["row"]["state"] == "pending"
    assert (total["found"], total["mended"], total["entries"]) == (1, 0, 4)


def test_many_are_walked_in_steps(client, redis, queue):
    """No call looks at more than 200 jobs, none reads a set, and each damage is found once."""
    scripts.register(client, [queue])
    ids = [i for _ in range(5) for i in enqueue_some(client, queue, 500)]
    keys = queue_keys(queue)
    for job_id in ids[::100]:
        redis.hset(keys.job(job_id), "state", "dead")
    redis.zrem(keys.pending, *ids[50::100])
    redis.config_resetstat()
    found = list(inspector.audit(client))
    assert sorted(f.id for f in found) == sorted(ids[::50])
    stats = redis.info("commandstats")
    assert not {"cmdstat_keys", "cmdstat_zrange", "cmdstat_zrangebyscore"} & set(stats)
    assert stats["cmdstat_evalsha"]["calls"] >= 2 * len(ids) / upkeep.AUDIT_MAX


def test_no_false_finding_while_workers_run(client, redis, queue, probe):
    """Jobs move through every set at full speed, and the books are in order at each look."""
    from tests.probe import tasks

    jobs = [tasks.mark.using(queue=queue).job(n) for n in range(3000)]
    later = [tasks.mark.using(queue=queue, run_in=1).job(n) for n in range(500)]
    import django_emq as emq

    looks = 0
    with Worker(queue, "--threads", "4") as worker:
        worker.wait_ready()
        for start in range(0, 3000, 300):
            emq.enqueue_many([*jobs[start : start + 300], *later[start // 6 : start // 6 + 50]])
            assert list(inspector.audit(client)) == []
            looks += 1
        wait_until(
            lambda: inspector.totals(client, queue).get("completed") == 3500, what="all jobs"
        )
        assert list(inspector.audit(client)) == []
    assert looks == 10


def test_a_full_server_can_be_mended(settings):
    """What brings jobs back needs no memory that a full server would refuse."""
    with private_server(own=True) as server:
        alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        settings.CACHES = {**settings.CACHES, "emq": alias}
        client = connections.client()
        yard = Yard(client, "full")
        for where in ("pending", "active", "dead", "done"):
            orphan(where)(yard)
        yard.replace(yard.jobs["scheduled"])
        yard.move(mint(), into="pending")
        client.raw.config_set("maxmemory", 1)
        with pytest.raises(ServerRefused):
            enqueue_some(client, "full", 1)
        status, output = fsck("--repair")
        assert status == 0, output
        assert "6 found wrong, 6 mended" in output
        books_balance(client, "full")

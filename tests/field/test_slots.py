"""B83: what each script declares, and what it really touches."""

import re
import threading
from typing import Self

from django.core.management import call_command
from redis.crc import key_slot

import django_emq as emq
from django_emq import chains, rights, scripts
from django_emq.jobs import UniqueKey
from django_emq.keys import digest, queue_keys, reserve_keys
from django_emq.reaper import Reaper
from django_emq.repeats import Entry
from tests.conformance import wire
from tests.conformance.wire import claim_one, enqueue_one, enqueue_some, lapse, new, pass_ms

LINE = re.compile(r"\+?[\d.]+ \[\d+ ([^\]]*)\] (.*)")
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
KEYLESS = {"TIME", "PUBLISH"}
END = "the end of the watch"


class Watch:
    """What the server carries out, script by script, between `with` and its end.

    :ivar calls: name of the script, keys that it declared, and the commands that it called.
    """

    def __init__(self, server) -> None:
        self.server = server
        self.calls: list[tuple[str, list[str], list[list[str]]]] = []
        self._names = {script.sha: name for name, script in scripts.SCRIPTS.items()}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self.server.client() as client, client.monitor() as monitor:
            self._ready.set()
            while END not in (line := str(monitor.connection.read_response())):
                self._take(line)

    def _take(self, line: str) -> None:
        match = LINE.search(line)
        if match is None:
            return
        words = WORD.findall(match[2])
        if match[1] == "lua":
            self.calls[-1][2].append(words)
        elif words and words[0].upper() == "EVALSHA":
            self.calls.append((self._names[words[1]], words[3 : 3 + int(words[2])], []))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *error) -> None:
        with self.server.client() as client:
            client.echo(END)
        self._thread.join()


def live(client, queue):
    """Each verb once at least, on a queue that has something for it."""
    again = new()._replace(unique=UniqueKey(digest("k"), "finish", 0, "keep_last", 0))
    for _ in range(4):
        wire.claim_some(client, queue, 1)
        job = again._replace(id=new().id)
        scripts.enqueue_unique(client, queue, [job], request=job.id, producer="p")
    scripts.cancel(client, queue, [*wire.members(client, queue, "active")])
    (last,) = wire.claim_some(client, queue, 1)
    wire.complete(client, queue, last.id.decode(), 1)
    one_more = chains.packed([chains.packed(("elsewhere", "JOB1", "{}", 0, ""))])
    job_id = enqueue_one(client, queue, fence_key="a", on_success=one_more, ties=1)
    scripts.wait(client, queue, job_id, "one")
    claim_one(client, queue)
    wire.progress(client, queue, job_id, 1, "half")
    wire.log(client, queue, job_id, 1, "a line")
    wire.extend(client, queue, job_id, 1)
    wire.release(client, queue, job_id, 1)
    claim_one(client, queue)
    wire.snooze(client, queue, job_id, 2, 1)
    pass_ms(client, 3)
    scripts.promote(client, queue)
    claim_one(client, queue)
    wire.retry(client, queue, job_id, 3, delay_ms=1)
    pass_ms(client, 3)
    claim_one(client, queue)
    lapse(client, queue, job_id, 4)
    wire.complete(client, queue, job_id, 4, keep_ms=1)
    scripts.onward(client, queue)
    scripts.onward(client, queue, admitted=["JOB1"], batch=0)
    one, two, three, four = enqueue_some(client, queue, 4)
    wire.claim_some(client, queue, 4)
    wire.bury(client, queue, one, 1)
    wire.discard(client, queue, two, 1)
    wire.complete(client, queue, three, 1)
    assert wire.retry(client, queue, four, 1, maximum=1) == "dead"
    scripts.reprocess(client, queue, [one])
    scripts.cancel(client, queue, [one])
    enqueue_one(client, queue, due="+60000")
    (late,) = wire.members(client, queue, "schedule")
    scripts.update(client, queue, late, "{}")
    scripts.requeue(client, queue, [late])
    scripts.remove(client, queue, [late])
    scripts.state(client, queue, one)
    scripts.forget(client, queue, ["p"], grace_ms=1)
    scripts.gate(client, queue)
    scripts.trim(client, queue, dead_max=1, dead_ttl_ms=10**9)
    Reaper(client, (queue,), interval=1).run_once()
    scripts.drain(client, queue, "dead")
    enqueue_one(client, queue)
    client.raw.zadd(queue_keys(queue).pending, {"JOB0000000000000000000000": 0})
    call_command("emq_fsck", "--repair", queue)
    client.raw.set(queue_keys(queue).metrics + ":1", "x")
    call_command("emq_fsck", "--repair", queue)
    scripts.repeat_register(client, queue, "a", every_ms=60_000, template="x", first_ms=0)
    scripts.repeat_register(client, queue, "b", every_ms=1, template="x", first_ms=0)
    scripts.declare(client, queue, "code", [Entry("c", 1, {"every_ms": 1, "source": "code"})])
    Reaper(client, (queue,), interval=1).run_once()
    scripts.repeat_advance(client, queue, "a", 0, by="anna")
    scripts.repeat_cancel(client, queue, "a")
    scripts.pause(client, queue)
    scripts.resume(client, queue)
    scripts.pause(client, queue)
    scripts.obliterate(client, queue, force=True)


def test_B83_cluster_and_strict_servers(client, redis, server, capsys):
    """Each call touches one slot only, and what it declares, or what stands beside that.

    The documented exceptions are made from a declared key or from the prefix of the rows: a row
    and its log lines, the list of who waits for its end, the number of a resource or the unique key
    that it names, where a job waits behind another one, the counters of one minute, and what a
    worker said of itself. No script spans two queues.
    """
    queues = ("alpha", "beta")
    slots = {queue: key_slot(queue_keys(queue).pending.encode()) for queue in queues}
    assert len(set(slots.values())) == 2
    scripts.register(client, queues)
    for name in scripts.SCRIPTS.values():
        redis.script_load(name.source)
    with Watch(server) as watch:
        scripts.register(client, queues)
        for queue in queues:
            live(client, queue)
        rights.demand(client, queues, rights.WORKER)
        scripts.beat(client, "w", ttl_ms=60_000, facts={"pid": 1, "queues": "alpha"})
        scripts.control(client, "w", "quiet")
        scripts.unregister(client, "beta")
        emq.cas(queue_keys("alpha").meta, "a", "b")
    facts = reserve_keys()
    seen = set()
    for name, declared, commands in watch.calls:
        seen.add(name)
        touched = set(declared)
        for words in commands:
            touched |= keys_of(redis, words)
        assert len({key_slot(key.encode()) for key in touched}) <= 1, (name, touched)
        for key in touched - set(declared):
            base = key[: key.index("}") + 2]
            assert re.fullmatch(
                r"job:[0-9A-Za-z]+(:logs)?|waiter:one|metrics:\d+|fence:a|worker:w|repeat:\w+"
                r"|unique:\w+|schedule|wake",
                key[len(base) :],
            ), name
            assert any(one.startswith(base) for one in declared) or name == "mend", (name, key)
        assert not any(facts.version in key for key in touched) or name == "register"
    assert seen == set(scripts.SCRIPTS), "a verb that this test does not watch: see `live`"


def keys_of(redis, words):
    """The keys of a command, as the server itself finds them."""
    if words[0].upper() in KEYLESS:
        return set()
    return {key if isinstance(key, str) else key.decode() for key in redis.command_getkeys(*words)}

"""The state machine: any order of all verbs on a real server, and the model beside it."""

from __future__ import annotations

from typing import Any

from books import SETS
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_emq import scripts, upkeep
from django_emq.chains import packed
from django_emq.jobs import NewJob, UniqueKey
from django_emq.keys import reserve_keys
from tests.model.look import pass_ms
from tests.model.sides import A_LITTLE, UNIT, queues
from tests.model.ticking import RepeatRules

WORKERS = ("w1", "w2", "w3")
PRODUCERS = ("p1", "p2")


units = st.integers(1, 2).map(lambda n: n * UNIT)
# What a number stands for is looked up when its turn comes: an id or a token of this example.
picks = st.integers(0, 2**16)
some = st.lists(picks, min_size=1, max_size=4)
some_time = st.sampled_from((1, 0, 2))
few = st.sampled_from((500, 2, 1))
letters = st.sampled_from("ab")
nexts = st.lists(st.sampled_from(("", "+", "far", "deep", "known")), max_size=2)
# What a conflict leads to, and until when such a job holds its key.
unique = st.sampled_from(
    [
        *[(c, until) for c in ("reject", "replace") for until in ("finish", "start", "time")],
        *[("keep_last", "finish")] * 3,
        ("throttle", "time"),
        ("debounce", "start"),
    ]
)


class Machine(RepeatRules):
    """One queue. What each rule does is done on both sides."""

    @initialize(waiting=st.integers(1, 4), held=st.integers(1, 3), success=nexts, failure=nexts)
    def begin(self, waiting, held, success, failure):
        """Something to act on, whichever rules come."""
        jobs = []
        for n in range(waiting + held):
            fields = self._hung(success, failure, UNIT) if n % 2 else ()
            jobs.append(NewJob(self._mint(), "first", n % 2 * 5, "", fields))
        self._enqueue("p1", jobs)
        self._claim({"worker": "w1", "request": "first", "lease_ms": UNIT, "count": held, "due": 1})

    # -- producers ----------------------------------------------------------------------------

    @rule(
        producer=st.sampled_from(PRODUCERS),
        dues=st.lists(st.sampled_from(("", "", "+", "at", "past")), min_size=1, max_size=3),
        wait=units,
        priority=st.sampled_from((0, 0, 5, -5)),
        own=st.sets(
            st.sampled_from(("max_attempts", "max_stalls", "lease_ms", "history", "fence_key"))
        ),
        known=st.booleans(),
        pick=picks,
    )
    def enqueue(self, producer, dues, wait, priority, own, known, pick):
        """New jobs; sometimes an id that is known, one twice, or one that is no job's."""
        fields: list[tuple[str, Any]] = []
        for name in sorted(own):
            if name == "history":  # as rows of Django's tasks have one
                fields += [("claims", ""), ("errors", "")]
            elif name == "fence_key":
                fields += [(name, pick % 2), ("ties", "1")]
            else:
                fields.append((name, 3 * UNIT if name == "lease_ms" else 1 + pick % 2))
        at = {"": "", "+": f"+{wait}", "at": f"{self.time + wait:.0f}", "past": "1000"}
        pairs = tuple(part for pair in fields for part in pair)
        jobs = [NewJob(self._mint(), f"work {pick}", priority, at[due], pairs) for due in dues]
        if known:
            jobs.append(NewJob(self.id(pick), "again", 0, "", ()))
            jobs.append(NewJob("ORD00001" if pick % 2 else jobs[0].id, "again", 0, "", ()))
        self._enqueue(producer, jobs)

    def _mint(self) -> str:
        self.ids.append(f"JOB{len(self.ids):05}")
        return self.ids[-1]

    def _enqueue(self, producer: str, jobs: list[NewJob], verb: str = "enqueue") -> None:
        self.requests[producer] = {
            "jobs": jobs,
            "producer": producer,
            "request": f"r{next(queues)}",
        }
        self.verbs[producer] = verb
        self.do(verb, **self.requests[producer])

    @rule(
        producer=st.sampled_from(PRODUCERS),
        dues=st.lists(st.sampled_from(("", "", "+")), min_size=1, max_size=3),
        wait=units,
        keys=st.lists(letters, min_size=3, max_size=3),
        mode=unique,
        plain=st.booleans(),
        pick=picks,
    )
    def enqueue_unique(self, producer, dues, wait, keys, mode, plain, pick):
        """Jobs with one of two keys; sometimes one without, and an id that is known."""
        conflict, until = mode
        jobs = []
        for due, key in zip(dues, keys, strict=False):
            due = f"+{wait}" if due or conflict == "debounce" else ""
            key = UniqueKey(key, until, wait, conflict, 2 * UNIT)
            jobs.append(NewJob(self._mint(), f"only {pick}", pick % 2, due, (), key))
        if plain:
            jobs.append(NewJob(self._mint(), "work", 0, "", ()))
            jobs.append(NewJob(self.id(pick), "again", 0, "", (), jobs[0].unique))
        self._enqueue(producer, jobs, "enqueue_unique")

    @rule(
        producer=st.sampled_from(PRODUCERS),
        later=st.booleans(),
        wait=units,
        expires=st.sampled_from(("", "", "+", "at", "past")),
        success=nexts,
        failure=nexts,
        priority=st.sampled_from((0, 5)),
        maximum=st.booleans(),
        key=st.sampled_from((None, None, "a", "b")),
        keep_last=st.booleans(),
    )
    def enqueue_tied(
        self, producer, later, wait, expires, success, failure, priority, maximum, key, keep_last
    ):
        """A job that has no time for ever, or others hang on it; it may have a unique key."""
        at = {"+": f"+{wait}", "at": f"{self.time + wait:.0f}", "past": f"{self.time - wait:.0f}"}
        fields = ["ties", "1", *(("max_attempts", 2) * maximum)]
        fields += ("expires_at", at[expires]) if expires else ()
        fields += self._hung(success, failure, wait)
        mode = ("finish", 0, "keep_last") if keep_last else ("start", 0, "replace")
        unique = UniqueKey(key, *mode, 0) if key else ()
        due = f"+{UNIT}" if later else ""
        job = NewJob(self._mint(), "in time", priority, due, tuple(fields), unique)
        self._enqueue(producer, [job], "enqueue_unique" if key else "enqueue")

    def _hung(self, success: list[str], failure: list[str], wait: int) -> tuple[Any, ...]:
        """Fields of a row on which next jobs hang."""
        fields: list[Any] = ["ties", 1]
        fields += ("on_success", self._hang(success, wait)) if success else ()
        fields += ("on_failure", self._hang(failure, wait)) if failure else ()
        return tuple(fields) if success or failure else ()

    def _hang(self, kinds: list[str], wait: int) -> str:
        """Next jobs, as a row has them: now, later, elsewhere, with more, known."""
        texts = []
        for kind in kinds:
            fields: list[Any] = ["expires_at", f"+{3 * UNIT}", "ties", 1] if kind == "+" else []
            if kind == "deep":
                fields = ["on_success", self._hang(["far", ""], wait), "ties", 1]
            elif kind == "far":
                fields = ["max_attempts", 2, "expires_at", f"+{wait}"]
            due = f"+{wait}" if kind in ("+", "far") else ""
            there = "elsewhere" if kind == "far" else ""
            next_id = self.ids[0] if kind == "known" else self._mint()
            texts.append(packed([there, next_id, "next", 5 * (due == ""), due, *fields]))
        return packed(texts)

    @rule(producer=st.sampled_from(PRODUCERS))
    def enqueue_again(self, producer):
        """The reply was lost: the same call again."""
        if producer in self.requests:
            self.do(self.verbs[producer], **self.requests[producer])

    # -- workers ------------------------------------------------------------------------------

    @rule(
        worker=st.sampled_from(WORKERS),
        lease_ms=units,
        count=st.sampled_from((3, 2, 1, 0)),
        due=st.sampled_from((1, 200)),
    )
    def claim(self, worker, lease_ms, count, due):
        call = {"worker": worker, "request": f"c{next(queues)}", "lease_ms": lease_ms}
        self._claim({**call, "count": count, "due": due})

    @rule()
    def listen(self):
        """An idle worker takes the wake, as its blocking pop does."""
        self.client.raw.lpop(self.keys.wake)
        self._compare(self.model.hush)

    @rule(worker=st.sampled_from(WORKERS))
    def claim_again(self, worker):
        """The reply was lost: the same call again."""
        if worker in self.requests:
            self._claim(self.requests[worker])

    def _claim(self, call: dict[str, Any]) -> None:
        self.requests[call["worker"]] = call
        _, jobs = self.do("claim", **call)
        self.tokens += [(job_id, token) for job_id, _, token, _ in jobs]

    @rule(picks=some, keep_ms=st.sampled_from((0, UNIT)), said=st.booleans())
    def complete(self, picks, keep_ms, said):
        items = [(*self.item(pick), "42" if pick % 3 else "") for pick in picks]
        if said:
            self.do("log", [(*items[0][:2], "the last line")])
        self.do("complete", items, keep_ms=keep_ms)

    @rule(picks=some, wait=units, maximum=st.integers(1, 3), trace=st.sampled_from(("", "trace")))
    def retry(self, picks, wait, maximum, trace):
        items = [(*self.item(pick), wait, "boom", trace) for pick in picks]
        self.do("retry", items, max_attempts=maximum)

    @rule(picks=some, wait=units, from_now=st.booleans())
    def snooze(self, picks, wait, from_now):
        due = f"+{wait}" if from_now else f"{self.time + wait:.0f}"
        self.do("snooze", [(*self.item(pick), due) for pick in picks])

    @rule(picks=some)
    def release(self, picks):
        self.do("release", [self.item(pick) for pick in picks])

    @rule(picks=some, trace=st.sampled_from(("", "trace")))
    def bury(self, picks, trace):
        self.do("bury", [(*self.item(pick), "no use", trace) for pick in picks])

    @rule(picks=some, said=st.booleans())
    def discard(self, picks, said):
        items = [self.item(pick) for pick in picks]
        if said:
            self.do("log", [(*items[0], "the last line")])
        self.do("discard", items)

    @rule(picks=some, lease_ms=st.sampled_from((0, UNIT, 2 * UNIT)))
    def extend(self, picks, lease_ms):
        self.do("extend", [self.item(pick) for pick in picks], lease_ms=lease_ms)

    @rule(picks=some)
    def progress(self, picks):
        self.do("progress", [(*self.item(pick), f"{pick} %") for pick in picks])

    @rule(picks=some, keep=st.integers(1, 3))
    def log(self, picks, keep):
        self.do("log", [(*self.item(pick), f"line {pick}") for pick in picks], keep=keep)

    @rule(producer=st.sampled_from(PRODUCERS), key=letters, behind=st.booleans())
    def overtake(self, producer, key, behind):
        """A job with a key has begun; now another one has the key, or waits behind it."""
        mode = ("finish", 0, "keep_last") if behind else ("start", 0, "replace")
        until = UniqueKey(key, *mode, 0)
        self._enqueue(producer, [NewJob(self._mint(), "only", 5, "", (), until)], "enqueue_unique")
        call = {"worker": "w1", "request": f"c{next(queues)}", "lease_ms": UNIT}
        self._claim({**call, "count": 3, "due": 1})
        self._enqueue(producer, [NewJob(self._mint(), "only", 5, "", (), until)], "enqueue_unique")

    # -- time, and sweepers -------------------------------------------------------------------

    @rule(n=some_time)
    def time_passes(self, n):
        """A lease or a wait, or two of them; or nothing."""
        if ms := n * (UNIT + A_LITTLE):
            pass_ms(self.client, self.keys, ms)
            self._compare(lambda: self.model.pass_ms(ms))

    @rule(n=some_time, batch=few)
    def promote(self, n, batch):
        self.time_passes(n)
        self.do("promote", batch=batch)

    @rule(n=some_time, batch=few, max_stalls=st.integers(1, 3))
    def reap(self, n, batch, max_stalls):
        self.time_passes(n)
        self.do("reap", max_stalls=max_stalls, batch=batch)

    @rule(admitted=st.booleans(), batch=st.sampled_from((0, 10_000)))
    def onward(self, admitted, batch):
        """Next jobs for another queue are told, and forgotten once they are there."""
        ids = sorted(self.model.away)[:2] if admitted else ["JOBnever"]
        self.do("onward", admitted=ids, batch=batch)

    @rule(n=some_time, batch=few, dead_max=st.integers(0, 2), ttl=units)
    def trim(self, n, batch, dead_max, ttl):
        self.time_passes(n)
        self.do("trim", dead_max=dead_max, dead_ttl_ms=ttl, batch=batch)

    # -- operators ----------------------------------------------------------------------------

    @rule(picks=some, only=st.sampled_from(("", "active", "schedule")))
    def requeue(self, picks, only):
        self.do("requeue", [self.id(pick) for pick in picks], by="ada", only=only)

    @rule(picks=some, only=st.sampled_from(("", "active", "schedule", "pending")))
    def cancel(self, picks, only):
        self.do("cancel", [self.id(pick) for pick in picks], by="ada", only=only)

    @rule(picks=some, dead=st.booleans())
    def reprocess(self, picks, dead):
        ids = [self.id(pick, "dead" if dead else "") for pick in picks]
        self.do("reprocess", ids, by="ada")

    @rule(picks=some, force=st.booleans(), only=st.sampled_from(("", "", *SETS)))
    def remove(self, picks, force, only):
        ids = [self.id(pick) for pick in picks]
        self.do("remove", ids, by="ada", force=force, only=only)

    @rule(name=st.sampled_from(("dead", "done", "schedule", "pending")), batch=few)
    def drain(self, name, batch):
        self.do("drain", name, by="ada", batch=batch)

    @rule(force=st.booleans(), batch=few, pause=st.booleans())
    def obliterate(self, force, batch, pause):
        if pause:
            self.do("pause", by="ada", why="the end")
        if self.do("obliterate", force=force, batch=batch) is False:
            self.since = ""  # a new trail begins

    @rule(pick=picks, was=st.sampled_from((None, "first")))
    def update(self, pick, was):
        self.do("update", self.id(pick), f"work {pick}", by="ada", was=was)

    @rule(pause=st.sampled_from((False, False, True)))
    def pause(self, pause):
        if pause:
            self.do("pause", by="ada", why="a move")
        else:
            self.do("resume", by="ada")

    @rule(
        concurrency=st.sampled_from((None, None, 3, 1)),
        most=st.sampled_from((None, None, 3, 1)),
        duration=units,
    )
    def limit(self, concurrency, most, duration):
        """What an operator sets by hand."""
        limits = {"concurrency": concurrency, "max": most, "duration": most and duration}
        self.client.raw.hdel(self.keys.meta, *limits)
        set_ = {name: value for name, value in limits.items() if value}
        if set_:
            self.client.raw.hset(self.keys.meta, mapping=set_)

        def step() -> None:
            self.model.meta = {n: v for n, v in self.model.meta.items() if n not in limits} | set_

        self._compare(step)

    @rule(picks=some, waiter=letters, keep=st.sampled_from((200, 1)))
    def wait(self, picks, waiter, keep):
        """Somebody waits for the ends of some jobs."""
        for pick in picks:
            self.do("wait", self.id(pick), waiter, keep=keep)

    @rule(pick=picks, worker=st.sampled_from(WORKERS), there=st.booleans(), value=letters)
    def ask(self, pick, worker, there, value):
        """What only looks, and what is beside the queue."""
        for name in SETS:
            ids = [job.id.encode() for job in self.model.inside(name)]
            assert upkeep.audit(self.client, self.queue, ids, found_in=name) == []
            assert upkeep.audit(self.client, self.queue, ids) == []
        self.do("gate")
        self.do("state", self.id(pick))
        self._beat(worker, there)
        if there:
            self.client.raw.set("elsewhere", value)
            self.model.key = value
        found = scripts.cas(self.client, "elsewhere", "a", "b")
        self._same(found, self.model.cas("elsewhere", "a", "b"), "cas")
        stored = self.client.raw.get("elsewhere")
        self._same(stored and stored.decode(), self.model.key, "the key of cas")

    def _beat(self, worker: str, there: bool) -> None:
        """A worker says that it is there and hears what it is asked to do, or signs off."""
        reserve, raw, name = reserve_keys(), self.client.raw, self.queue.encode()
        known = raw.exists(reserve.worker(worker)) == 1
        assert scripts.control(self.client, worker, "quiet", by="ada") is known
        scripts.register(self.client, [self.queue])
        facts = {"host": "h", "queues": self.queue}
        asked = scripts.beat(self.client, worker, ttl_ms=there * UNIT, facts=facts)
        assert asked == (("quiet", "ada") if known else ("", ""))
        assert (raw.hget(reserve.worker(worker), "host") == b"h") is there
        assert (raw.zscore(reserve.workers, worker) is not None) is there
        assert raw.smembers(reserve.queues) == {name}
        assert raw.get(reserve.version) == scripts.VERSION.encode()
        served = raw.zcard(reserve.workers) > 0
        assert scripts.unregister(self.client, self.queue) is not served
        assert raw.sismember(reserve.queues, name) == served
        self._compare()

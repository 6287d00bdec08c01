"""Ticking: enters the schedules of the code on the server, and enqueues what is due.

Any number may tick. The server's clock says what is due, and the script lets one of them in for
each planned time. Python only computes which time follows which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from . import registry, rules, schedules, scripts, signing
from .admission import came_in, introduce, job_after, verb_of
from .batches import Batch
from .connections import Client
from .exceptions import EmqError, JobGone, NotInState
from .ids import mint
from .jobs import Job, NewJob, decode
from .keys import queue_keys
from .log import get_logger
from .queue import make
from .repeats import FIELDS, OFF, DueSchedule, Tick

logger = get_logger("ticker")

BATCH = 100  # schedules of a queue in one round trip
PRODUCER = "tick"  # every tick is a call of its own, so one memory is enough for all


class Ticker:
    """Enters and ticks the schedules of queues."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.fired = 0
        self._since: int | None = None  # when this process first spoke, by the server's clock
        self._declared: set[str] = set()  # queues that have schedules of ours
        self._broken: set[tuple[str, str, str]] = set()  # told of once

    def declare(self, queues: Iterable[str], *, everywhere: bool = False) -> None:
        """Enter the schedules of the code in these queues, and remove those that it has no more.

        Costs nothing for queues without any, but for the first call. Raises an EmqError.

        :param everywhere: in all queues that the code has schedules for, too.
        """
        found, wrong = schedules.by_queue(schedules.declared())
        for name, error in wrong.items():
            self._tell(name, "", "", error)
        names = dict.fromkeys([*queues, *(found if everywhere else ())])
        if self._since is not None:
            names = dict.fromkeys(q for q in names if q in found or q in self._declared)
        if not names:
            return
        now = now_ms(self.client)
        self._since = now if self._since is None else self._since

        def declare(queue: str) -> None:
            entries = [one.entry(now) for one in found.get(queue, ())]
            if entries:
                introduce(self.client, [queue])
                self._declared.add(queue)
            done = scripts.declare(self.client, queue, "code", entries, since=self._since)
            if any(done):
                logger.info("queue %s: %d schedules entered or changed, %d removed", queue, *done)

        self.client.each(names, declare)

    def tick(self, queue: str) -> int:
        """Enqueue what is due in a queue; the ms until the next time of a schedule, -1 for none."""
        due = scripts.repeat_due(self.client, queue, batch=BATCH)
        times = [due.next_ms] if due.next_ms >= 0 else []
        batch = Batch(self.client)
        for one in due.schedules:
            try:
                following = self._fire(batch, queue, one, due.now_ms)
            except Exception as error:  # a unique key may be made by code of the project
                self._tell(one.name, queue, one.record["rule"], error)
            else:
                times.append(following - due.now_ms)
        for answer in batch.send() if batch.calls else ():
            if isinstance(answer, EmqError) and not isinstance(answer, NotInState):
                raise answer
            self.fired += came_in(answer[0]) if isinstance(answer, list) else 0
        if batch.calls and len(due.schedules) == BATCH:
            return 0
        return max(min(times), 1) if times else -1

    def _fire(self, batch: Batch, queue: str, one: DueSchedule, now: int) -> int:
        """Note the calls for one that is due; its next time. Raises for a record with a fault."""
        name, planned, record = one
        rule = rules.read(record)
        if rule is None:
            logger.warning("queue %s: schedule %s has no times; removed", queue, name)
            scripts.repeat_cancel(batch, queue, name)
            return now + rules.EVERY_MAX
        ticks, following = rules.fires(rule, record["misfire"], planned, now)
        if ticks != [planned]:
            logger.info(
                "queue %s: schedule %s missed its time %s; jobs now: %d, next time: %s",
                queue, name, rules.instant(planned), len(ticks), rules.instant(following),
            )  # fmt: skip
        if not ticks:
            scripts.repeat_advance(batch, queue, name, following, was=planned)
        was = planned
        for tick, then in zip(ticks, [*ticks[1:], following], strict=True):
            job = job_of(queue, name, record, tick)
            enter = Tick(name, was, then, tick, record["rule"])
            admit = verb_of([job])
            admit(batch, queue, [job], request=job.id, producer=PRODUCER, tick=enter)
            was = then
        return following

    def _tell(self, name: str, queue: str, rule: str, error: Exception) -> None:
        if (queue, name, rule) not in self._broken:
            self._broken.add((queue, name, rule))
            logger.error("schedule %s cannot be kept: %s", name, error)


def job_of(queue: str, name: str, record: dict[str, str], planned: int) -> NewJob:
    """The job of a schedule for one of its times, as its task is declared here and now.

    Raises UnknownTask, ForgedPayload, ValueError.
    """
    template = signing.opened(record["template"], schedules.seal_of(queue, name))
    fields = ("planned_at", planned, "schedule", name)
    if not record["rule"]:  # a plain `repeat_register` may have any payload
        job_id = mint()
        return NewJob(job_id, signing.sealed(template, job_id), fields=fields)
    call = decode(template.encode())
    task = registry.get(call.task)
    if task.queue != queue:  # what a row needs beside its options does not depend on the queue
        moved = replace(task, queue=queue)
        object.__setattr__(moved, "fields", task.fields)
        task = moved
    new = make(task, call.args, call.kwargs).new
    payload = signing.opened(new.payload, new.id)
    payload = signing.sealed(f'{{"planned_at":{planned},{payload[1:]}', new.id)
    priority = int(record["priority"] or 0)
    return new._replace(payload=payload, priority=priority, fields=(*new.fields, *fields))


# -- for people -------------------------------------------------------------------------------


def run_now(client: Client, queue: str, name: str) -> Job:
    """Enqueue a job of a schedule now, between its times; raises JobGone without such a schedule.

    It stands for the present time, and the schedule goes on as before.
    """
    record, now = _record(client, queue, name), now_ms(client)
    job = job_of(queue, name, record, now)
    tick = Tick(name, None, 0, now, record["rule"])
    admit = verb_of([job])
    verdict = scripts.one(admit(client, queue, [job], request=job.id, producer=PRODUCER, tick=tick))
    return job_after(Job(job.id, queue, decode(job.payload.encode()).task), verdict)


def switch(client: Client, queue: str, name: str, *, on: bool, by: str = "") -> bool:
    """Switch a schedule on or off; whether there is one. It stays so after a deploy.

    Switched on, it goes on with its next time: what was left out is not made up for.
    """
    if not on:
        return scripts.repeat_advance(client, queue, name, OFF, by=by or "?")
    rule = rules.read(_record(client, queue, name))
    following = OFF if rule is None else rule.first(now_ms(client))
    return scripts.repeat_advance(client, queue, name, following, by=by or "?")


def now_ms(client: Client) -> int:
    """The server's clock."""
    seconds, micros = client.read(lambda raw: raw.time())
    return int(seconds) * 1000 + int(micros) // 1000


def _record(client: Client, queue: str, name: str) -> dict[str, str]:
    key = queue_keys(queue, client.prefix).record(name)
    values = client.read(lambda raw: raw.hmget(key, FIELDS))
    if not any(values):
        raise JobGone(f"Queue {queue!r} has no schedule {name!r}.")
    return {
        field: (value or b"").decode("utf-8", "backslashreplace")
        for field, value in zip(FIELDS, values, strict=True)
    }

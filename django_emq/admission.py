"""Admission: jobs go to the server, again where a reply was lost, and to replicas where wanted.

Every call names itself by the first of its jobs, so it may be sent twice: the server answers the
repeat from memory.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from time import monotonic
from typing import Any

from . import connections, scripts
from .batches import Batch, line_of
from .conf import Settings, settings
from .connections import Client
from .exceptions import EmqError, OutcomeUnknown, TooFewReplicas
from .jobs import Conflict, Job, NewJob
from .registry import AnyTask
from .waiting import Waiting

PAUSES = (0.05, 0.5)  # seconds before the call is sent again, when its reply was lost
CHUNK = 500  # jobs in one script call
ROUND = 5000  # jobs in one round trip, about
DEPTH = 2  # round trips under way at once
# Seconds after which a process enters a queue again: somebody may have emptied the server since.
KNOWN = 60.0

Lots = dict[str, list[NewJob]]
Verdict = scripts.Verdict | Conflict
Verdicts = dict[str, list[Verdict]]
# Jobs of one queue that were sent in one call, and how many replicas have them.
Sent = tuple[str, list[NewJob], Waiting]


def admit(lots: Lots, replicas: Mapping[str, int]) -> tuple[Verdicts, list[Sent]]:
    """Admit any number of jobs by queue: verdicts by queue, in order, and what `confirm` takes.

    Each 500 jobs of a queue are one step on the server; steps of several queues share a round
    trip, and two round trips are under way at once, but for those that wait for replicas.

    :param replicas: how many shall have the jobs of a queue; queues that wait for none may lack.
    """
    conf, client = settings(), connections.client()
    found: Verdicts = {queue: [] for queue in lots}
    sent: list[Sent] = []
    for queue, count in replicas.items():
        for start in range(0, len(lots.get(queue, ())) if count else 0, CHUNK):
            jobs = lots[queue][start : start + CHUNK]
            wait = waiting(client, queue, count, conf)
            found[queue] += push(client, queue, jobs, wait)
            if wait:
                sent.append((queue, jobs, wait))
    rest = {queue: jobs for queue, jobs in lots.items() if not replicas.get(queue)}
    for answered in _push_all(client, deque(_rounds(rest))):
        for queue, verdicts in answered.items():
            found[queue] += verdicts
    return found, sent


def _rounds(lots: Lots) -> Iterator[Lots]:
    """Up to 500 jobs of each queue at a time.

    No queue twice in a round trip: of a producer's calls to a queue only the last is remembered.
    """
    longest = max(map(len, lots.values()), default=0)
    for start in range(0, longest, CHUNK):
        one: Lots = {}
        for queue, jobs in lots.items():
            if part := jobs[start : start + CHUNK]:
                one[queue] = part
            if sum(map(len, one.values())) >= ROUND:
                yield one
                one = {}
        if one:
            yield one


def _push_all(client: Client, rounds: deque[Lots]) -> Iterator[Verdicts]:
    """Make one round trip after another; while the server works on one, the next is sent.

    Neighbours go under different names, since of a name only the last call is remembered. What a
    broken connection leaves without an answer is sent again under its own name, one by one.
    """
    if len(rounds) < 2:  # needs no line
        yield from (push_many(client, lots) for lots in rounds)
        return
    line, names = line_of(client), deque(_name() for _ in range(DEPTH))
    under_way: deque[tuple[Lots, str]] = deque()
    try:
        while rounds or under_way:
            try:
                while rounds and len(under_way) < DEPTH:
                    under_way.append((rounds.popleft(), names[0]))
                    names.rotate()
                    introduce(client, under_way[-1][0])
                    line.post(_batch(client, *under_way[-1]))
                verdicts = _verdicts(under_way[0][0], line.collect())
                under_way.popleft()
                yield verdicts
            except OutcomeUnknown:
                line.drop()
                while under_way:
                    yield _push(client, *under_way.popleft())
            except EmqError:
                with suppress(EmqError):  # whoever catches it finds nothing still on its way
                    while line.in_the_air:
                        line.collect()
                raise
    finally:
        line.drop()
        _idle.extend(names)


def push(
    client: Client, queue: str, jobs: list[NewJob], waiting: Waiting | None = None
) -> list[Verdict]:
    """Admit up to 500 jobs of one queue, again if the reply is lost.

    :param waiting: what waits for replicas. While too few have the jobs, it keeps the name under
        which they were sent: sent again, they are answered from memory.
    """
    return push_many(client, {queue: jobs}, waiting)[queue]


def push_many(client: Client, lots: Lots, waiting: Waiting | None = None) -> Verdicts:
    """Admit up to 500 jobs of each queue in one round trip, again if a reply is lost."""
    producer = (waiting and waiting.producer) or _name()
    try:
        return _push(client, lots, producer, waiting)
    finally:
        if waiting and waiting.is_short:
            waiting.producer = producer
        else:
            _idle.append(producer)


def _name() -> str:
    """A producer that makes no other call now."""
    try:
        return _idle.pop()
    except IndexError:
        return secrets.token_hex(6)


def _push(client: Client, lots: Lots, producer: str, waiting: Waiting | None = None) -> Verdicts:
    """Send lots under a name, again if a reply is lost."""
    pauses = iter(PAUSES)
    while True:
        try:
            introduce(client, lots)
            return _send(client, waiting, lots, producer)
        except OutcomeUnknown as error:
            pause = next(pauses, None)
            if pause is None:
                queue, jobs = next(iter(lots.items()))
                raise OutcomeUnknown(
                    f"Queue {queue!r}: no answer after {len(PAUSES) + 1} tries, so it is "
                    f"unknown whether job {jobs[0].id} was stored: {error}"
                ) from error
            time.sleep(pause)


def introduce(client: Client, queues: Iterable[str]) -> None:
    """Check the version fence and enter queues in the registry, once a minute."""
    now = monotonic()
    if new := [queue for queue in queues if now >= client.known_queues.get(queue, 0.0)]:
        scripts.register(client, new)
        client.known_queues.update(dict.fromkeys(new, now + KNOWN))


def _send(client: Client, waiting: Waiting | None, lots: Lots, producer: str) -> Verdicts:
    """One script call a queue; raises the first error of any: all may be sent again."""
    if len(lots) == 1:  # needs no pipeline
        ((queue, jobs),) = lots.items()
        way = waiting or client
        return {queue: verb_of(jobs)(way, queue, jobs, request=jobs[0].id, producer=producer)}
    return _verdicts(lots, _batch(client, lots, producer).send())


def _batch(client: Client, lots: Lots, producer: str) -> Batch:
    batch = Batch(client)
    for queue, jobs in lots.items():
        verb_of(jobs)(batch, queue, jobs, request=jobs[0].id, producer=producer)
    return batch


def _verdicts(lots: Lots, answers: list[Any]) -> Verdicts:
    failed = [answer for answer in answers if isinstance(answer, EmqError)]
    if failed:
        raise next((error for error in failed if isinstance(error, OutcomeUnknown)), failed[0])
    return dict(zip(lots, answers, strict=True))


def verb_of(jobs: Iterable[NewJob]) -> Callable[..., Any]:
    """The verb that admits these jobs; the plain one knows nothing of unique keys."""
    return scripts.enqueue_unique if any(map(_unique_of, jobs)) else scripts.enqueue


_unique_of = attrgetter("unique")


def came_in(verdict: Verdict) -> bool:
    """Whether the server has the job by this call, or by the same one sent before."""
    if isinstance(verdict, Conflict):
        return verdict.word != "duplicate"
    return not isinstance(verdict, EmqError)


def job_after(job: Job, verdict: Verdict) -> Job:
    """The job, as enqueue answers it after this verdict."""
    if isinstance(verdict, EmqError):
        return replace(job, status="refused", error=verdict)
    if not isinstance(verdict, Conflict):
        return job if verdict == 1 else replace(job, status="duplicate")
    other = verdict.holder
    if verdict.word == "duplicate":  # what was to follow this job does not come either
        return Job(other, job.queue, job.task, "duplicate", holder=other)
    return replace(
        job, status="replaced" if verdict.word == "replaced" else "enqueued", holder=other
    )


# -- replicas ---------------------------------------------------------------------------------


def replicas_of(task: AnyTask, queue: str, conf: Settings) -> int:
    """How many replicas shall have a job before enqueue answers."""
    if task.wait_replicas is not None:
        return task.wait_replicas
    return conf.queue(queue).wait_replicas if conf.queues else conf.wait_replicas


def waiting(client: Client, queue: str, replicas: int, conf: Settings) -> Waiting | None:
    """What waits for so many replicas; None for none."""
    if not replicas:
        return None
    seconds = conf.queue(queue).wait_timeout or min(1.0, conf.socket_timeout / 2)
    return Waiting(client, replicas, seconds)


def confirm(made: list[Job], sent: list[Sent]) -> list[Job]:
    """Answer the jobs; raise TooFewReplicas where some of those that were sent lack replicas."""
    short = [one for one in sent if one[2].is_short]
    if not short:
        return made

    def again() -> list[Job]:
        for queue, jobs, waiting in short:
            push(waiting.client, queue, jobs, waiting)
        return confirm(made, short)

    _, _, worst = min(short, key=lambda one: one[2].acknowledged)
    ids = [job.id for _, jobs, _ in short for job in jobs]
    what = f"Job {ids[0]} is" if len(ids) == 1 else f"{len(ids)} jobs, from {ids[0]} on, are"
    raise TooFewReplicas(
        f"{what} admitted in queue {short[0][0]!r}, but only {worst.acknowledged} of "
        f"{worst.replicas} replicas have said so within {worst.seconds:g} s. Call again() of this "
        "exception to send the same and wait again: that makes no second job."
        + (f" The server refused to wait: {worst.why}" if worst.why else ""),
        made,
        worst.replicas,
        worst.acknowledged,
        again,
    )


# The server remembers the last call of each producer. A producer makes one call at a time, so
# there are as many as this process ever made calls at once, not as many as it had threads.
_idle: deque[str] = deque()
os.register_at_fork(after_in_child=_idle.clear)

"""Chains: jobs that hang on the end of another one, and are admitted by the step that ends it.

They are made, ids and all, when the first of them is enqueued, and travel in its row. The format is
that which the scripts read: a list of texts, each behind its length in bytes, so that a payload
stays what it is at any depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from . import partitions, registry, signing
from .conf import Settings
from .exceptions import InvalidOption, PayloadTooLarge
from .ids import mint
from .jobs import Job, NewJob, decode, encode
from .keys import check_queue
from .registry import Next, One, Unsent

HUNG_MAX = 100  # jobs that may hang on one, at any depth


class Made(NamedTuple):
    """A job to be admitted, its queue, and the jobs that hang on its end."""

    queue: str
    new: NewJob
    on_success: tuple[Job, ...] = ()
    on_failure: tuple[Job, ...] = ()


def chain(*jobs: One, on_failure: Next = None) -> Unsent:
    """Several jobs, each to be admitted on the success of the one before it.

    >>> emq.chain(fetch.job(url), parse.job(), store.job()).enqueue().chain

    Answers the first one, not enqueued yet, with the others hanging on it. What a task has in its
    own `on_success` is kept.

    :param on_failure: what is admitted when any of them dies, and has no `on_failure` of its own.
    """
    if not jobs:
        raise InvalidOption("chain() has no jobs. Give it some: emq.chain(one.job(), two.job()).")
    following: Unsent | None = None
    for link in map(unsent, reversed(jobs)):
        options: dict[str, Any] = {}
        if following is not None:
            options["on_success"] = (*registry.nexts(link.task.on_success), following)
        if on_failure is not None and link.task.on_failure is None:
            options["on_failure"] = on_failure
        following = link.using(**options)
    assert following is not None
    return following


def unsent(job: One) -> Unsent:
    """A job of a task that is given with its arguments, without, or by name."""
    if isinstance(job, Unsent):
        return job
    return Unsent(registry.get(job) if isinstance(job, str) else job, (), {})


class Weaver:
    """Makes a job and all that hangs on it.

    :param root: the first job, of whose task the errors speak.
    """

    def __init__(self, conf: Settings, root: Unsent) -> None:
        self._conf = conf
        self._root = root
        self._count = self._bytes = 0

    def weave(self, job: Unsent, beside: str | None = None) -> Made:
        """Make a job, and first what hangs on it.

        :param beside: queue on the server of the job that it hangs on. In the same queue it takes
            the same partition, unless it has a key of its own: then one step does both.
        Raises InvalidOption, PayloadTooLarge and what the arguments are refused with.
        """
        conf, task = self._conf, job.task
        queue = check_queue(task.queue or conf.default_queue, conf.prefix)
        job_id = mint()
        unique = () if task.rule is None else task.rule.of(task.name, job.args, job.kwargs)
        if beside is not None and task.partition_key is None and conf.whole(beside) == queue:
            queue = beside
        elif conf.queues:
            key = unique.digest if unique else task.partition_key
            queue = partitions.place(conf, queue, job_id, key)
        fields, marks = list(task.fields), dict[str, bool]()
        hung: dict[str, tuple[Job, ...]] = {}
        for name in ("on_success", "on_failure"):
            made = [
                (one, self._hang(unsent(one), queue)) for one in registry.nexts(getattr(task, name))
            ]
            if made:
                fields += (name, packed(_text(one, queue) for _, one in made))
                marks["passes"] = marks.get("passes", False) or name == "on_success"
                marks["onward"] = marks.get("onward", False) or any(
                    m.queue != queue for _, m in made
                )
            hung[name] = tuple(job_of(m, unsent(one).task.name, "chained") for one, m in made)
        if marks:
            fields += ("ties", "1")
        marks = {name: True for name, there in marks.items() if there}
        payload = encode(task.name, job.args, job.kwargs, limit=conf.max_payload, marks=marks)
        if conf.sign_payloads:
            payload = signing.sealed(payload, job_id)
        new = NewJob(job_id, payload, task.priority, task.due, tuple(fields), unique)
        return Made(queue, new, **hung)

    def _hang(self, job: Unsent, beside: str) -> Made:
        """Make a job that hangs on another one, within the bounds of what may hang there."""
        root = self._root.task.name
        self._count += 1
        if self._count > HUNG_MAX:
            raise InvalidOption(
                f"More than {HUNG_MAX} jobs hang on one of {root}. Make the chain shorter; or does "
                f"its on_success or on_failure lead back to {job.task.name}?"
            )
        if job.task.rule is not None:
            raise InvalidOption(
                f"{job.task.name} is unique, and a job that hangs on the end of another one cannot "
                f"be: nobody would be there to be told of a conflict. Use .using(unique=False)."
            )
        made = self.weave(job, beside)
        self._bytes += len(made.new.payload)
        if self._bytes > self._conf.max_payload:
            raise PayloadTooLarge(
                f"The payloads of the jobs that hang on one of {root} have more than "
                f"{self._conf.max_payload} bytes, which MAX_PAYLOAD allows them together. Store "
                "the data and pass their keys, or raise the setting."
            )
        return made


def job_of(made: Made, task: str, status: str) -> Job:
    """What enqueue answers for a job."""
    return Job(
        made.new.id,
        made.queue,
        task,
        status,
        on_success=made.on_success,
        on_failure=made.on_failure,
    )


def _text(made: Made, beside: str) -> str:
    """A job as the row has it that it hangs on."""
    new, queue = made.new, made.queue
    parts = ("" if queue == beside else queue, new.id, new.payload, new.priority, new.due)
    return packed((*parts, *new.fields))


def packed(texts: Iterable[Any]) -> str:
    """A list of texts in one: each behind its length in bytes.

    >>> packed(["a", "bé"])
    '1:a3:bé'
    """
    return "".join(f"{len(text.encode())}:{text}" for text in map(str, texts))


def unpacked(data: bytes) -> list[str]:
    """The texts that `packed` has put into one. Raises ValueError for anything else."""
    texts, at = [], 0
    while at < len(data):
        size, colon, _ = data[at : at + 10].partition(b":")
        begin = at + len(size) + 1
        at = begin + int(size)
        if not colon or not size.isdigit() or at > len(data):
            raise ValueError("this is no list of texts")
        texts.append(data[begin:at].decode())
    return texts


def hung(row: Mapping[str, str], field: str, queue: str) -> list[Job]:
    """The jobs in a row's `on_success` or `on_failure`; none when that is damaged.

    :param queue: that of the row.
    """
    try:
        jobs = [unpacked(text.encode()) for text in unpacked(row.get(field, "").encode())]
        return [
            Job(job_id, there or queue, decode(payload.encode()).task, "chained")
            for there, job_id, payload, *_ in jobs
        ]
    except ValueError:
        return []

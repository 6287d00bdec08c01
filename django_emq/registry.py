"""Tasks: the functions that may be run as jobs, by name. A worker runs no other."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, Generic, ParamSpec, TypeVar, overload

from .backoff import resolve
from .exceptions import InvalidOption, InvalidTask, UnknownTask
from .jobs import Job, check_priority, due_at, due_in
from .keys import check_queue
from .options import (
    check_commit,
    check_fence_key,
    check_partition_key,
    check_whole,
    milliseconds_or_0,
)
from .times import Seconds, expiry, lifetimes, limits, milliseconds, seconds_of
from .unique import Rule, rule

P = ParamSpec("P")
R = TypeVar("R")
Unique = bool | str | list[str] | tuple[str, ...] | Callable[..., str] | None

_tasks: dict[str, Task[..., Any]] = {}
_leases: set[int] = set()
_kills: set[bool] = set()
# Who else may know a task by its name: the backend for Django's tasks, where it is in use.
finders: list[Callable[[str], Task[..., Any] | None]] = []


@dataclass(frozen=True)
class Task(Generic[P, R]):
    """A function that may be run as a job. Calling it runs the function here and now.

    Made by `task`; `using` makes a copy with other options. Times are seconds or timedeltas.

    :ivar queue: queue of its jobs; None for the setting DEFAULT_QUEUE.
    :ivar priority: -100 to 100; higher runs first, equal ones in the order of enqueueing.
    :ivar max_attempts: failures before the morgue; None for the queue's MAX_ATTEMPTS.
    :ivar max_stalls: lost leases before the morgue; None for the queue's MAX_STALLS.
    :ivar backoff: what `backoff.resolve` takes; None for the queue's BACKOFF.
    :ivar lease: how long a claim holds; None for the worker's.
    :ivar expires: when a job that has not begun is given up: a time from its enqueueing by the
        server's clock, or an aware datetime; None for never.
    :ivar timeout: how long a run may take until `TimeLimitExceeded` is raised in it; None for the
        queue's TIMEOUT, 0 for no limit.
    :ivar kill_after: how long after that the process of a run that goes on is killed; None for
        the queue's KILL_AFTER, 0 for never.
    :ivar result_ttl: how long the row is kept with the result; 0 deletes it at once. By outcome:
        ``{"done": 3600, "dead": 86400}``, where the second is how long a dead job stays in the
        morgue, if that is shorter than DEAD_TTL.
    :ivar wait_replicas: how many replicas shall have the job before enqueue answers; None for the
        queue's WAIT_REPLICAS.
    :ivar fence_key: the resource that the job writes to, for instance ``invoice:42``: each claim
        for it is given a higher number, whatever the job; see `JobContext.fence`.
    :ivar on_commit: whether a job is sent after the commit; True, False, or the alias of a
        database whose commit it is; None for the queue's ON_COMMIT.
    :ivar outbox: whether it is stored in the caller's transaction; as `on_commit`.
    :ivar on_success: what is enqueued when a job of it is completed, by the same step: a task, its
        name, a job with arguments (`job`), or a list of these; see `chains.chain`.
    :ivar on_failure: the same when a job of it goes to the morgue, but for an operator's `cancel`.
    :ivar idempotent: whether a second run does no harm, as its author says; see `emq_explain`.
    :ivar run_in: time from now by the server's clock. :ivar run_at: an aware datetime.
    :ivar partition_key: jobs of one key are in one partition of the queue, if it has any; None
        spreads by the job's id, and for unique jobs follows from their key.
    :ivar unique: what the unique key of a job is made of: True for all arguments, the name of one,
        several names, or a function of the arguments that answers a text; None for no key.
    :ivar unique_for: how long a job holds its key from the enqueue on, whatever becomes of it; the
        window of ``throttle`` and ``debounce``.
    :ivar unique_until: or until it has ended (``finish``, the default) or is claimed (``start``).
    :ivar on_conflict: what is done where another job holds the key: ``reject`` (the default),
        ``replace``, ``keep_last``, ``throttle`` or ``debounce``.
    :ivar max_wait: how long ``debounce`` may put a job off; None for ten windows.
    """

    func: Callable[P, R]
    name: str
    queue: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    max_stalls: int | None = None
    backoff: Any = None
    lease: Seconds | None = None
    expires: Seconds | datetime | None = None
    timeout: Seconds | None = None
    kill_after: Seconds | None = None
    result_ttl: Seconds | Mapping[str, Seconds] = field(default=0, hash=False)
    wait_replicas: int | None = None
    fence_key: str | None = None
    on_commit: bool | str | None = None
    outbox: bool | str | None = None
    on_success: Next = field(default=None, repr=False, compare=False)
    on_failure: Next = field(default=None, repr=False, compare=False)
    idempotent: bool | None = None
    run_in: Seconds | None = None
    run_at: datetime | None = None
    partition_key: str | None = None
    unique: Unique = None
    unique_for: Seconds | None = None
    unique_until: str | None = None
    on_conflict: str | None = None
    max_wait: Seconds | None = None
    is_async: bool = field(init=False, repr=False, compare=False)
    keep_ms: int = field(init=False, repr=False, compare=False)
    lease_ms: int = field(init=False, repr=False, compare=False)
    limits_ms: tuple[int | None, int | None] = field(init=False, repr=False, compare=False)
    is_timed: bool = field(init=False, repr=False, compare=False)
    due: str = field(init=False, repr=False, compare=False)
    fields: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    rule: Rule | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        unique = self._rule()
        due = self._due(unique)
        keep_ms, dead_ms = lifetimes(self.result_ttl)
        lease_ms = 0 if self.lease is None else milliseconds("lease", self.lease, least=1)
        for name, value in (
            ("is_async", iscoroutinefunction(self.func)),
            ("keep_ms", keep_ms),
            ("lease_ms", lease_ms),
            ("limits_ms", limits(self.timeout, self.kill_after)),
            ("is_timed", self.timeout is not None),
            ("due", due),
            ("fields", tuple(self._fields(lease_ms, dead_ms, due))),
            ("rule", unique),
            ("unique", tuple(self.unique) if isinstance(self.unique, list) else self.unique),
            ("__doc__", self.func.__doc__),
            ("__wrapped__", self.func),
        ):
            object.__setattr__(self, name, value)

    def _check(self) -> None:
        if self.queue is not None:
            check_queue(self.queue, prefix="")  # whether it is reserved is for the settings to say
        check_priority(self.priority)
        check_whole("wait_replicas", self.wait_replicas, 0, 100)
        check_whole("max_attempts", self.max_attempts, 1, 1000)
        check_whole("max_stalls", self.max_stalls, 1, 1000)
        check_fence_key(self.fence_key)
        check_commit("on_commit", self.on_commit)
        check_commit("outbox", self.outbox)
        check_partition_key(self.partition_key)
        for name in ("on_success", "on_failure"):
            _check_nexts(name, getattr(self, name))
        if self.idempotent not in (None, True, False):
            raise InvalidOption(f"idempotent is {self.idempotent!r}. Use True or False.")
        if not isinstance(self.backoff, str):  # a path is imported when it is needed
            resolve(self.backoff)
        if self.run_in is not None and self.run_at is not None:
            raise InvalidOption("Both run_in and run_at are given. Use one of them.")

    def _due(self, unique: Rule | None) -> str:
        if self.run_in is not None:
            return due_in(seconds_of(self.run_in))
        if self.run_at is not None:
            return due_at(self.run_at)
        return f"+{unique.hold_ms}" if unique is not None and unique.max_wait_ms else ""

    def _fields(self, lease_ms: int, dead_ms: int, due: str) -> Iterator[str | int]:
        """Names and values of the row's fields that follow from the options."""
        if self.max_attempts is not None:
            yield from ("max_attempts", self.max_attempts)
        if self.max_stalls is not None:
            yield from ("max_stalls", self.max_stalls)
        if lease_ms:
            yield from ("lease_ms", lease_ms)
        if dead_ms:
            yield from ("dead_ms", dead_ms)
        if self.fence_key is not None:
            yield from ("fence_key", self.fence_key, "ties", 1)
        if self.expires is not None:
            yield from ("expires_at", expiry(self.expires, due), "ties", 1)

    def _rule(self) -> Rule | None:
        made = rule(
            self.func,
            unique=self.unique,
            hold_ms=milliseconds_or_0("unique_for", self.unique_for),
            until=self.unique_until,
            conflict=self.on_conflict,
            max_wait_ms=milliseconds_or_0("max_wait", self.max_wait),
        )
        if made is not None and self.partition_key is not None:
            raise InvalidOption(
                "Both unique and partition_key are given: the partition follows from the unique "
                "key. Leave partition_key out."
            )
        if made is not None and made.max_wait_ms and (self.run_in, self.run_at) != (None, None):
            raise InvalidOption(
                "on_conflict='debounce' says when the job runs. Leave run_in and run_at out."
            )
        return made

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.func(*args, **kwargs)

    def using(self, **options: Any) -> Task[P, R]:
        """A copy with other options, for instance ``send.using(queue="mail", run_in=60)``."""
        for option in options:
            if option not in USING:
                raise InvalidOption(_unknown("option", option, list(USING)))
        return replace(self, **options)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a job with these arguments; see `queue.enqueue`."""
        from . import queue

        return queue.enqueue(self, *args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue`, awaited."""
        from . import queue

        return await queue.aenqueue(self, *args, **kwargs)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> Unsent:
        """A job that is not enqueued yet, for `enqueue_many`, chains and callbacks."""
        return Unsent(self, args, kwargs)


AnyTask = Task[..., Any]


@dataclass(frozen=True, slots=True)
class Unsent:
    """A task and the arguments of one job that is not enqueued yet."""

    task: AnyTask
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def using(self, **options: Any) -> Unsent:
        """The same job with other options; see `Task.using`."""
        return replace(self, task=self.task.using(**options)) if options else self

    def enqueue(self) -> Job:
        """Enqueue it; see `queue.enqueue`."""
        return self.task.enqueue(*self.args, **self.kwargs)

    async def aenqueue(self) -> Job:
        """`enqueue`, awaited."""
        return await self.task.aenqueue(*self.args, **self.kwargs)


One = Unsent | AnyTask | str
Next = One | list[One] | tuple[One, ...] | None


def nexts(value: Next) -> Sequence[One]:
    """What an option `on_success` or `on_failure` names, as a list."""
    if value is None:
        return ()
    return value if isinstance(value, (list, tuple)) else (value,)


def _check_nexts(option: str, value: Any) -> None:
    for one in nexts(value):
        if not isinstance(one, (Unsent, Task, str)):
            raise InvalidOption(
                f"{option} is {value!r}. Use a task, its name, task.job(…) with arguments, or a "
                "list of these."
            )


# The lease belongs to the task: workers take the time between two extensions from it.
DECORATOR = (
    "queue", "priority", "max_attempts", "max_stalls", "wait_replicas", "fence_key",
    "on_commit", "outbox", "on_success", "on_failure", "expires",
    "unique", "unique_for", "unique_until", "on_conflict", "max_wait",
    "backoff", "lease", "result_ttl", "idempotent", "timeout", "kill_after",
)  # fmt: skip
USING = (*DECORATOR[:16], "run_in", "run_at", "partition_key")


@overload
def task(func: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(
    *,
    name: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    max_attempts: int | None = None,
    max_stalls: int | None = None,
    backoff: Any = None,
    lease: Seconds | None = None,
    expires: Seconds | datetime | None = None,
    timeout: Seconds | None = None,
    kill_after: Seconds | None = None,
    result_ttl: Seconds | Mapping[str, Seconds] = 0,
    wait_replicas: int | None = None,
    fence_key: str | None = None,
    on_commit: bool | str | None = None,
    outbox: bool | str | None = None,
    on_success: Next = None,
    on_failure: Next = None,
    idempotent: bool | None = None,
    unique: Unique = None,
    unique_for: Seconds | None = None,
    unique_until: str | None = None,
    on_conflict: str | None = None,
    max_wait: Seconds | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(func: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a function a task: ``@emq.task`` or ``@emq.task(queue="mail", max_attempts=10)``.

    The options are those of `Task`. Its name is the path of the function, or `name`.
    Raises InvalidTask for a function that no worker could find again.
    """
    for option in options:
        if option not in DECORATOR:
            raise InvalidOption(_unknown("option", option, ["name", *DECORATOR]))

    def decorate(func: Callable[P, R]) -> Task[P, R]:
        return register(Task(func, name or _path(func), **options))

    return decorate if func is None else decorate(func)


def register(task: Task[P, R]) -> Task[P, R]:
    """Enter a task under its name; the same function may be entered again (a reload)."""
    known = _tasks.get(task.name)
    if known is not None and _origin(known.func) != _origin(task.func):
        raise InvalidTask(
            f"Task {task.name!r} is defined twice: in {_origin(known.func)} and in "
            f"{_origin(task.func)}. Give one of them another name=."
        )
    _tasks[task.name] = task
    return task


def get(name: str) -> Task[..., Any]:
    """The task of this name. Raises UnknownTask with the nearest known one."""
    task = _tasks.get(name) or _look(name)  # without a second call, for it is asked for each job
    if task is None:
        raise UnknownTask(_unknown("task", name, list(_tasks)))
    return task


def find(name: str) -> Task[..., Any] | None:
    """The task of this name, or None; looks for no near one, as every row of a page asks."""
    try:
        return _look(name)
    except UnknownTask:  # a finder knows why it cannot be run
        return None


def _look(name: str) -> Task[..., Any] | None:
    task = _tasks.get(name)
    if task is None and finders:
        return next(filter(None, (look(name) for look in finders)), None)
    return task


def note_lease(lease_ms: int) -> None:
    """Remember a lease that a task has which is not entered here."""
    _leases.add(lease_ms)


def leases() -> set[int]:
    """The leases that tasks have of their own, in ms."""
    return {task.lease_ms for task in _tasks.values() if task.lease_ms} | _leases


def note_kill() -> None:
    """Remember that a task has a kill_after which is not entered here."""
    _kills.add(True)


def may_kill() -> bool:
    """Whether a task has a kill_after."""
    return bool(_kills) or any(task.limits_ms[1] for task in _tasks.values())


def dead_times() -> bool:
    """Whether some task says how long its dead jobs stay in the morgue."""
    return any("dead_ms" in task.fields for task in _tasks.values())


def names() -> list[str]:
    """Names of all tasks, in order."""
    return sorted(_tasks)


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    if near:
        return f"There is no {what} {name!r}. Did you mean {near[0]!r}?"
    if what == "task":
        return (
            f"There is no task {name!r} here. Is its module named tasks.py, in an app of "
            "INSTALLED_APPS, or imported by one?"
        )
    return f"There is no {what} {name!r}. Use one of: {', '.join(known)}."


def _path(func: Any) -> str:
    if not callable(func) or not hasattr(func, "__qualname__") or not hasattr(func, "__module__"):
        raise InvalidTask(f"{func!r} is no function. Decorate a function of a module.")
    if "<locals>" in func.__qualname__ or "<lambda>" in func.__qualname__:
        raise InvalidTask(
            f"{func.__module__}.{func.__qualname__} is defined inside a function, where no worker "
            "could find it. Move it to the level of its module."
        )
    return f"{func.__module__}.{func.__qualname__}"


def _origin(func: Any) -> str:
    return f"{func.__module__}.{func.__qualname__}"

"""The values that travel: what a job is before it is admitted, and when it is claimed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from .exceptions import InvalidArguments, InvalidOption, PayloadTooLarge

if TYPE_CHECKING:
    from .answers import Result

PRIORITY_MIN, PRIORITY_MAX = -100, 100
DEPTH_MAX = 200  # levels of lists and dicts in the arguments
# Bytes of an error text that a row keeps. With what the server puts beside it, it fits into a block
# of 16 KB of its allocator; the next size is 20 KB.
ERROR_MAX = 16 * 1024 - 64

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode = json.JSONDecoder().raw_decode


@dataclass(slots=True, eq=False)
class Claimed:
    """A job as `claim` answers it. Two claims of one job are two things."""

    id: bytes
    payload: bytes = field(repr=False)  # arguments may be secret
    token: int  # the number that every later step must carry
    failures: int  # failures counted before this run
    queue: str
    claimed_at: float  # when the claim was sent, on this machine's monotonic clock
    fence: int = 0  # the number of the resource that the job names (fence_key); 0 for none


class Claims(NamedTuple):
    """The answer of one claim."""

    next_ms: int  # ms until more may be had without a wake; -1 for no such time
    receipt: bytes  # b"<request> <id>:<token> …", what a repeat of the call would be given
    jobs: list[Claimed]


class Reaped(NamedTuple):
    """The answer of one reap."""

    next_ms: int  # ms until the next lease may lapse; -1 when no job is held
    returned: list[str]  # ids back in pending
    dead: list[str]  # ids that reached max_stalls
    onward: int = 0  # jobs of chains that are to be admitted to other queues
    tick_ms: int = -1  # ms until the next time of a schedule; -1 for none


class UniqueKey(NamedTuple):
    """What a job says of its unique key; `unique.Rule` makes it.

    :ivar digest: SHA-256 of the key, in hex.
    :ivar until: until when the job holds it: ``start``, ``finish``, or ``time``.
    :ivar hold_ms: how long, for ``time``. :ivar conflict: what is done where another job holds it.
    :ivar max_wait_ms: how long a job may be put off by later ones, for ``debounce``.
    """

    digest: str
    until: str
    hold_ms: int
    conflict: str
    max_wait_ms: int


NO_KEY = UniqueKey("", "", 0, "", 0)


class Conflict(NamedTuple):
    """The verdict of an enqueue that met another job with the same unique key.

    :ivar word: ``duplicate``: this job did not come in; ``replaced``: it did, in the place of the
        other one; ``behind``: it did, and waits until the other one has ended.
    :ivar holder: id of the other one.
    """

    word: str
    holder: str


class NewJob(NamedTuple):
    """A job to be admitted."""

    id: str
    payload: str
    priority: int = 0
    due: str = ""  # '' now, '+ms' from now by the server's clock, 'ms' since 1970
    fields: tuple[Any, ...] = ()  # further fields of the row: name, value, name, value …
    unique: tuple[Any, ...] = ()  # parts of a UniqueKey


@dataclass(frozen=True, slots=True)
class Job:
    """One call of a task, as enqueue answers it.

    :ivar id: the job's id, 25 bytes, the key to everything about it.
    :ivar status: ``enqueued``; ``duplicate`` (it was there already: `id` is that of the job that is
        there); ``replaced`` (it is there, and another one with its unique key is not any more);
        ``refused``; ``deferred`` (it is sent after the commit; nothing of it is left when the
        transaction is rolled back); or ``chained`` (it is admitted when the job that it hangs on
        has ended).
    :ivar error: why it was refused.
    :ivar holder: the job that held its unique key when it was enqueued; '' where none did.
    :ivar on_success: jobs that are admitted when this one is completed.
    :ivar on_failure: jobs that are admitted when it dies.
    """

    id: str
    queue: str
    task: str
    status: str = field(default="enqueued", compare=False)
    error: Exception | None = field(default=None, compare=False)
    holder: str = field(default="", compare=False)
    on_success: tuple[Job, ...] = field(default=(), compare=False, repr=False)
    on_failure: tuple[Job, ...] = field(default=(), compare=False, repr=False)

    @property
    def chain(self) -> list[Job]:
        """This job and those that follow, each on the success of the one before it."""
        return [self, *(self.on_success[-1].chain if self.on_success else ())]

    def result(self) -> Result:
        """What is known of the job; see `answers.result`."""
        from .answers import result

        return result(self)

    async def aresult(self) -> Result:
        """`result`, awaited."""
        from .answers import aresult

        return await aresult(self)


class Previous(NamedTuple):
    """What the job before left to the next one of its chain.

    :ivar id: of the job before. :ivar value: what it returned. :ivar error: why it died, if it did.
    """

    id: str
    value: Any = None
    error: str | None = None


class Call(NamedTuple):
    """What a payload says: which task to run, and with what.

    :ivar passes: whether its value is for a next job. :ivar onward: whether one that hangs on it is
        of another queue. :ivar previous: what the job before left.
    `planned_at` is the time that a job of a schedule stands for, in ms; 0 for others.
    """

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    passes: bool = False
    onward: bool = False
    previous: Previous | None = None
    planned_at: int = 0


def encode(
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    limit: int,
    marks: Mapping[str, bool] | None = None,
) -> str:
    """The payload of a job: JSON with ``task``, and ``args`` and ``kwargs`` where there are any.

    :param limit: bytes that it may have.
    :param marks: what else a worker must know before the job has ended.
    Raises InvalidArguments with the path of the first value that would not come back from JSON
    as it went in, PayloadTooLarge with both sizes.
    """
    body: dict[str, Any] = {"task": task}
    if args:
        body["args"] = [_sound(v, "args", (i,)) for i, v in enumerate(args)]
    if kwargs:
        body["kwargs"] = {k: _sound(v, "kwargs", (k,)) for k, v in kwargs.items()}
    if marks:
        body.update(marks)
    try:
        payload = _encode(body)
    except ValueError as error:  # an int with more digits than Python turns into text
        raise InvalidArguments(
            f"The arguments of {task} cannot be written as JSON: {error}."
        ) from error
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"The payload of {task} has {len(payload)} bytes, MAX_PAYLOAD allows {limit}. "
            "Store the data and pass its key, or raise the setting."
        )
    return payload


def decode(payload: bytes) -> Call:
    """Read a payload. Raises ValueError with what is wrong with it.

    That of a job which was admitted at the end of another one has a second line, by the script that
    did so: what that job left.
    """
    previous = None
    try:
        text = payload.decode()
        body, end = _decode(text)  # twice as fast as `loads`, which allows for blanks
        if end < len(text) and (rest := text[end:].strip()):
            left = json.loads(rest)
            previous = Previous(left["id"], left.get("value"), left.get("error"))
        task, args, kwargs = body["task"], body.get("args", []), body.get("kwargs", {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"bad payload: {type(error).__name__}: {error}") from error
    if not (isinstance(task, str) and isinstance(args, list) and isinstance(kwargs, dict)):
        raise ValueError("bad payload: it needs a text 'task', a list 'args' and a dict 'kwargs'")
    # The call and nothing else, as most are: this is done for each job.
    if previous is None and len(body) == 1 + ("args" in body) + ("kwargs" in body):
        return Call(task, args, kwargs)
    passes, onward = body.get("passes") is True, body.get("onward") is True
    planned_at = body.get("planned_at")
    planned_at = planned_at if type(planned_at) is int else 0
    return Call(task, args, kwargs, passes, onward, previous, planned_at)


def read(payload: bytes) -> Call:
    """`decode` for people: refuses what is nested deeper than the queue would have admitted.

    A worker hands such arguments on as they are; what walks through them to show them cannot.
    """
    call = decode(payload)
    level: list[Any] = [call.args, call.kwargs]
    for _ in range(DEPTH_MAX + 2):
        level = [v for item in level if isinstance(item, (dict, list)) for v in _inner(item)]
        if not level:
            return call
    raise ValueError(f"bad payload: it is nested deeper than {DEPTH_MAX} levels")


def _inner(item: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return item.values() if isinstance(item, dict) else item


def sound(value: Any, root: str) -> Any:
    """Return the value if JSON gives it back as it is, else raise InvalidArguments.

    :param root: what the value is called in the error.
    """
    return _sound(value, root, ())


def _sound(value: Any, root: str, path: tuple[Any, ...]) -> Any:
    """Return the value if JSON gives it back as it is, else raise InvalidArguments."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise _refused(root, path, f"{value!r} is not JSON. Pass None or a text")
    if len(path) > DEPTH_MAX:
        raise _refused(root, (), f"it is nested deeper than {DEPTH_MAX} levels. Flatten it")
    if type(value) is list:
        for i, item in enumerate(value):
            _sound(item, root, (*path, i))
        return value
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise _refused(
                    root, (*path, key), f"JSON has only text keys, not {_kind(key)}. Use a str"
                )
            _sound(item, root, (*path, key))
        return value
    raise _refused(root, path, f"{_kind(value)} does not survive JSON. {_way_out(value)}")


def _refused(root: str, path: tuple[Any, ...], why: str) -> InvalidArguments:
    return InvalidArguments(root + "".join(f"[{step!r}]" for step in path) + f": {why}.")


def _kind(value: Any) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _way_out(value: Any) -> str:
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return "Pass its primary key, and read it in the task"
    if isinstance(value, (tuple, set, frozenset)):
        return "Pass a list"
    if hasattr(value, "isoformat"):
        return "Pass .isoformat(), and parse it in the task"
    return "Pass a str, int, float, bool, None, list or dict"


def check_priority(priority: Any) -> int:
    """Return the priority, or raise InvalidOption."""
    if type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidOption(
            f"priority is {priority!r}. Use a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}; "
            "higher runs first."
        )
    return priority


def due_in(seconds: float) -> str:
    """When a job is due, as a time from now by the server's clock."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidOption(f"run_in is {seconds!r}. Use seconds or a timedelta.")
    if not 0 <= seconds <= 3_153_600_000:
        raise InvalidOption(f"run_in is {seconds!r} seconds. Use 0 up to a hundred years.")
    return f"+{math.ceil(seconds * 1000)}"


def due_at(when: datetime) -> str:
    """When a job is due, as an instant. Raises InvalidOption for a naive datetime."""
    if not isinstance(when, datetime) or when.utcoffset() is None:
        raise InvalidOption(
            f"run_at is {when!r}. Use an aware datetime, for instance "
            "timezone.now() + timedelta(hours=1)."
        )
    return str(max(math.ceil(when.timestamp() * 1000), 0))


def shorten(text: str, limit: int = ERROR_MAX) -> str:
    """The text as a row may keep it: no more than `limit` bytes, head and tail kept.

    What UTF-8 cannot carry (lone surrogates) is escaped.
    """
    data = text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    if len(data) > limit:
        half = (limit - 64) // 2
        cut = f"\n… {len(data) - 2 * half} bytes left out …\n".encode()
        data = data[:half] + cut + data[-half:]
    return data.decode("utf-8", "ignore")

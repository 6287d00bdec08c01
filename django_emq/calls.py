"""How a verb calls its script: one EVALSHA, keys and arguments in the order of the Lua file.

What `scripts` and `operators` are made of. Nobody else calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from .batches import Batch
from .connections import Client, Script, typed
from .exceptions import EmqError, InvalidOption
from .jobs import Conflict
from .keys import Keys, queue_keys
from .waiting import Waiting

T = TypeVar("T")
Verdict = int | EmqError
Token = int
Way = Client | Batch | Waiting

BATCH_MAX = 1000

NAMES = (
    "audit beat bury cancel cas claim complete control declare discard drain enqueue "
    "enqueue_unique extend forget gate log mend obliterate onward pause progress promote reap "
    "register release remove repeat_advance repeat_cancel repeat_due repeat_register reprocess "
    "requeue resume retry rights snooze state trim unregister update wait"
)
SCRIPTS = {name: Script(name) for name in NAMES.split()}


def verdicts(reply: list[Any]) -> list[Any]:
    """One verdict a job; a refusal as an exception object in its place."""
    return [typed(item) if isinstance(item, Exception) else item for item in reply]


def texts(reply: list[Any]) -> list[Any]:
    """The same for verbs that answer a word a job."""
    return [typed(v) if isinstance(v, Exception) else v.decode() for v in reply]


def answers(reply: list[Any]) -> list[Any]:
    """The same for enqueue_unique: a number, or a word and the id of another job."""
    return [_answer(v.decode()) if isinstance(v, bytes) else typed(v) for v in reply]


def _answer(text: str) -> int | Conflict:
    word, _, holder = text.partition(" ")
    return Conflict(word, holder) if holder else int(word)


def _same(reply: Any) -> Any:
    return reply


def run(
    client: Way,
    verb: str,
    keys: Sequence[str],
    args: Sequence[Any],
    parse: Callable[[Any], Any] = _same,
) -> Any:
    """Call the script of a verb; what `parse` makes of its reply. Raises an EmqError."""
    return client.run(SCRIPTS[verb], keys, args, parse)


def keys_of(client: Way, queue: str) -> Keys:
    """The keys of a queue under the prefix of the client."""
    return queue_keys(queue, client.prefix)


def settle(
    client: Way,
    verb: str,
    keys: Sequence[str],
    options: Sequence[Any],
    items: Iterable[Sequence[Any]],
    parse: Callable[[Any], Any] = verdicts,
) -> list[Any]:
    """Call a verb that takes several jobs: options, then the parts of each item, flat."""
    args = list(options)
    count = 0
    for item in items:
        args += item
        count += 1
    if not count:
        return []
    bounded(verb, count)
    result: list[Any] = run(client, verb, keys, args, parse)
    return result


def batch_of(batch: int) -> int:
    """How many jobs one call may take, given how many were asked for."""
    return max(1, min(batch, BATCH_MAX))


def bounded(verb: str, count: int) -> None:
    """Raise InvalidOption for more jobs than one call may take."""
    if count > BATCH_MAX:
        raise InvalidOption(f"{verb} takes at most {BATCH_MAX} jobs in one call, not {count}.")


def one(verdicts: list[T | EmqError]) -> T:
    """The only verdict of a call for one job; raised when it is a refusal."""
    (verdict,) = verdicts
    if isinstance(verdict, EmqError):
        raise verdict
    return verdict

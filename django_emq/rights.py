"""What a user of the server must be allowed, and what of it is missing.

The commands are read from the scripts themselves, so this list cannot fall behind them. The
server answers for its own user (`redis.acl_check_cmd` in a script, which needs no right of its
own), and nothing is carried out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from . import upkeep
from .connections import Client
from .exceptions import ServerRefused
from .keys import Keys, queue_keys, reserve_keys
from .scripts import SCRIPTS

PRODUCER = ("register", "enqueue", "forget")  # of unique jobs: needs more, see docs/security.md
# A worker's jobs enqueue others, and report on themselves.
WORKER = (
    *PRODUCER, "enqueue_unique", "claim", "complete", "retry", "snooze", "release", "bury",
    "discard", "extend", "progress", "log", "beat", "promote", "reap", "onward", "trim",
    "declare", "repeat_due", "repeat_advance", "repeat_cancel",
)  # fmt: skip
REAPER = (
    *PRODUCER, "enqueue_unique", "promote", "reap", "onward", "trim",
    "declare", "repeat_due", "repeat_advance", "repeat_cancel",
)  # fmt: skip
OPERATOR = (
    *PRODUCER, "enqueue_unique", "reprocess", "requeue", "cancel", "remove", "drain",
    "obliterate", "update", "pause", "resume", "state", "control", "unregister", "audit", "mend",
    "declare", "repeat_register", "repeat_advance", "repeat_cancel",
)  # fmt: skip
# What the admin's pages and the commands read beside the scripts: of a key, and of the server.
READS = (
    "EXISTS", "GET", "GETRANGE", "HGET", "HGETALL", "HMGET", "HSTRLEN", "LRANGE", "PTTL",
    "SISMEMBER", "SMEMBERS", "TYPE", "XREVRANGE", "ZCARD", "ZRANGE", "ZRANK",
    "ZREVRANGE", "ZSCAN", "ZSCORE",
)  # fmt: skip
QUESTIONS = ("CONFIG GET save", "INFO", "SCAN 0")
# How many words follow the key, where it is not two: a server (Redis 8.6) counts them when asked.
# Of DEL and EXISTS each would be a key.
AFTER = {
    **dict.fromkeys(
        ("DEL", "EXISTS", "GET", "HGETALL", "HLEN", "LLEN", "PTTL", "SMEMBERS", "TYPE", "ZCARD"), 0
    ),
    **dict.fromkeys(("HGET", "HSTRLEN", "INCRBY", "SISMEMBER", "ZSCORE"), 1),
    "XADD": 3,
}
PARTS = {"SCRIPT", "CONFIG", "CLUSTER"}  # commands that are allowed by their second word
_CALLED = re.compile(rb"redis\.p?call\('([A-Z]+)'")


@cache
def commands(verbs: tuple[str, ...]) -> tuple[str, ...]:
    """The commands that the scripts of these verbs call, in order."""
    return tuple(sorted({c.decode() for v in verbs for c in _CALLED.findall(SCRIPTS[v].source)}))


def missing(
    client: Client, queues: Iterable[str], verbs: tuple[str, ...], *, also: Sequence[str] = ()
) -> list[str]:
    """What the client's user lacks, a sentence each; raises ServerRefused where scripts are.

    :param verbs: PRODUCER, WORKER, REAPER or OPERATOR. A worker waits for work too, and an operator
        reads.
    :param also: further commands, on a key of the queue.
    """
    keys = [queue_keys(name, client.prefix) for name in queues]
    if not keys:
        return []
    asked: list[tuple[str, ...]] = [_call(name, keys[0]) for name in (*commands(verbs), *also)]
    asked += [("SCRIPT", "LOAD", "return"), ("SCRIPT", "EXISTS", "0"), ("EVAL", "return", "0")]
    asked += [("BLPOP", keys[0].wake, "1")] if verbs == WORKER else []
    if client.shards:
        asked += [("CLUSTER", "SLOTS"), ("COMMAND",), ("ASKING",)]
    if verbs == OPERATOR:
        asked += [_call(name, keys[0]) for name in READS]
        asked += [tuple(name.split()) for name in QUESTIONS]
    asked = list(dict.fromkeys(asked))
    verdicts = upkeep.allowed(client, asked)
    refused = [words for words, fine in zip(asked, verdicts, strict=True) if not fine]
    about_keys = [words for words in asked if words[1:2] == (keys[0].job("JOB0"),)]
    who = f"The server's user {user(client)!r}"
    if set(about_keys) <= set(refused):
        return [_keys_sentence(who, [keys[0].base + "*"], client.prefix)]
    if refused:
        names = ["|".join(w[:2]) if w[0] in PARTS else w[0] for w in refused]
        grants = [f"+{name.lower()}" for name in names]
        grants += [f"&{client.prefix}:*"] if "PUBLISH" in names else []
        return [f"{who} may not call {', '.join(names)}. Give it {' '.join(grants)}"]
    lacking = _lacking_keys(client, keys)
    return [_keys_sentence(who, lacking, client.prefix)] if lacking else []


def demand(
    client: Client, queues: Sequence[str], verbs: tuple[str, ...], *, also: Sequence[str] = ()
) -> None:
    """Raise ServerRefused with the sentence on what the user of the client lacks."""
    for sentence in missing(client, queues, verbs, also=also):
        raise ServerRefused(f"{sentence}. The whole list is in docs/security.md.")


def user(client: Client) -> str:
    """The name under which the client signs in; 'default' where it gives none."""
    return str(client.options.get("username") or "default")


def _call(command: str, keys: Keys) -> tuple[str, ...]:
    """A command as it could be sent: the server looks for keys in the words."""
    if command == "TIME":
        return (command,)
    if command == "PUBLISH":
        return (command, keys.events, "x")
    return (command, keys.job("JOB0"), *"1" * AFTER.get(command, 2))


def _lacking_keys(client: Client, queues: Sequence[Keys]) -> list[str]:
    """The keys that may not be written, one of each kind."""
    reserve = reserve_keys(client.prefix)
    names = [reserve.version, reserve.queues, reserve.workers, reserve.worker("w")]
    for keys in queues:
        names += [keys.pending, keys.active, keys.schedule, keys.dead, keys.done, keys.wake]
        names += [keys.meta, keys.metrics, keys.minute(0), keys.trail, keys.limiter]
        names += [keys.repeat, keys.record("x")]
        names += [keys.job("JOB0"), keys.logs("JOB0"), keys.sent("p"), keys.claims("w")]
        names += [keys.fence("x"), keys.onward]
    verdicts = upkeep.allowed(client, [("ZADD", name, "1", "x") for name in names])
    return [name for name, fine in zip(names, verdicts, strict=True) if not fine]


def _keys_sentence(who: str, names: Sequence[str], prefix: str) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{who} may not write {shown}. Give it ~{prefix}:* ~{{{prefix}}}:* &{prefix}:*"

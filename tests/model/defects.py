"""Defects of the scripts, planted one at a time: each must be caught by the model.

A defect is a few small replacements in the text of one script. Each must find its place exactly
once: else the script has changed, and the defect must be written anew for it.
"""

from __future__ import annotations

from typing import NamedTuple

from django_emq.connections import Script
from django_emq.scripts import SCRIPTS


class Defect(NamedTuple):
    """What is wrong, in words; in which script; the texts, old and new; what must happen too."""

    what: str
    script: str
    swaps: tuple[tuple[str, str], ...]
    friends: tuple[str, ...] = ()


class NoPlace(Exception):
    """A replacement does not find its place exactly once."""


def plant(defect: Defect) -> Script:
    """The script with the defect in it."""
    text = SCRIPTS[defect.script].source.decode()
    for old, new in defect.swaps:
        if (count := text.count(old)) != 1:
            raise NoPlace(
                f"Defect '{defect.what}': {old!r} is {count} times in {defect.script}.lua, not "
                "once. Write it anew for the script as it is now, in tests/model/defects.py."
            )
        text = text.replace(old, new)
    return Script(defect.script, text.encode())


TOKEN = ("row[1] ~= token", "false")
HELD = ("not leases[i]", "false")
AN_HOUR = ("local now = time[1] * 1000", "local now = 3600000 + time[1] * 1000")


def _defects() -> list[Defect]:
    found = []

    def defect(script: str, what: str, *swaps: tuple[str, str]) -> None:
        found.append(Defect(what, script, swaps))

    # The fence.
    for verb in ("complete", "retry", "snooze", "release", "bury", "discard", "extend"):
        defect(verb, "the token is not checked", TOKEN)
    for verb in ("retry", "snooze", "release", "bury", "discard", "extend"):
        defect(verb, "it is not checked that the job is held", HELD)
    for verb in ("progress", "log"):
        defect(
            verb, "the token is not checked", ("elseif row[1] ~= token then", "elseif false then")
        )
        held = "not redis.call('ZSCORE', active, id)"
        defect(verb, "it is not checked that the job is held", (held, "false"))
    defect("extend", "ZADD without XX, and no look at the lease", HELD, ("'XX', ", ""))
    defect("claim", "the token is not raised", ("'attempts', 1)", "'attempts', 0)"))
    defect("claim", "the mark of the last settlement stays", ("'HDEL', key, 'settled'", "'TIME'"))
    for verb in ("retry", "snooze", "release", "bury"):
        defect(verb, "the settlement leaves no mark", (f"'settled', '{verb}'", "'unmarked', '1'"))
    raised = "token = redis.call('HINCRBY', jobs .. id, 'attempts', 1)"
    for verb in ("requeue", "cancel"):
        defect(verb, "the token of a held job stays", (raised, ""))
    defect("reprocess", "the token is forgotten", ("'failures', 'stalls'", "'attempts', 'stalls'"))
    mark = "'state', 'pending', 'settled', 'reprocess'"
    defect("reprocess", "the holder of the last life may complete", (mark, "'state', 'pending'"))
    held = "force ~= '1' and redis.call('ZSCORE', active, id)"
    defect("remove", "a held job goes without force", (held, "false"))
    defect(
        "update", "a held job gets another payload", ("redis.call('ZSCORE', active, id)", "false")
    )
    for verb, place in {"requeue": "set", "cancel": "names[set]", "remove": "where"}.items():
        elsewhere = f"only ~= '' and {place} ~= only then"
        defect(verb, "what is elsewhere by now is moved too", (elsewhere, "false then"))
    defect("update", "another payload than the one that was read goes", ("was ~= ''", "false"))
    defect("unregister", "a queue that is served goes off the list", ("return 0", ""))

    # One place.
    for verb in ("retry", "snooze", "release", "bury", "discard"):
        defect(verb, "ZREM is missing", ("redis.call('ZREM', active, id)", ""))
    defect("complete", "ZREM is missing", ("'ZREM', active", "'ZMSCORE', active"))
    defect("complete", "a swept job stays in pending", ("'ZREM', pending", "'ZMSCORE', pending"))
    defect("reap", "ZREM is missing", ("'ZREM', active", "'ZMSCORE', active"))
    defect("promote", "ZREM is missing", ("'ZREM', schedule", "'ZMSCORE', schedule"))
    for verb in ("trim", "drain"):
        defect(verb, "the rows stay", ("redis.call('DEL', unpack(rows))", ""))
    rows = "redis.call('DEL', jobs .. id, jobs .. id .. ':logs')"
    for verb in ("discard", "remove"):
        defect(verb, "the row stays", (rows, ""))
    defect("discard", "the log lines stay", (rows, "redis.call('DEL', jobs .. id)"))
    logs = "keys[#keys + 1] = jobs .. id .. ':logs'"
    defect("complete", "the log lines stay", (logs, ""))
    defect("complete", "the row stays", ("redis.call('DEL', unpack(keys))", ""))
    defect("snooze", "the state of the row stays", ("'state', 'scheduled', ", ""))

    # The history that some rows keep.
    defect("claim", "no claim is kept", ("claims_with(past[2], past[3], past[4])", "past[2]"))
    defect(
        "retry",
        "no error is kept",
        ("errors_with(move[6], 'retry', message, traceback)", "move[6]"),
    )
    defect(
        "bury", "no error is kept", ("errors_with(move[5], 'bury', reason, traceback)", "move[5]")
    )

    # The clock, and what it is compared with.
    for verb in ("claim", "enqueue", "retry", "snooze", "extend", "reap", "promote"):
        defect(verb, "a clock that is an hour off", AN_HOUR)
    everything = ("active, '-inf', now", "active, '-inf', '+inf'")
    defect("reap", "leases that have not lapsed are swept", everything)
    everything = ("schedule, '-inf', now", "schedule, '-inf', '+inf'")
    defect("promote", "what is not due is promoted", everything)
    defect("claim", "what is not due is promoted", everything)
    defect("trim", "results go before their time", ("done, '-inf', now", "done, '-inf', '+inf'"))

    # Bounds and budgets.
    unbounded = ("'LIMIT', 0, batch)", "'LIMIT', 0, -1)")
    for verb in ("reap", "promote"):
        defect(verb, "the batch has no bound", unbounded)
    defect("drain", "the batch has no bound", ("ZRANGE', set, 0, batch - 1", "ZRANGE', set, 0, -1"))
    bound = ("ZRANGE', KEYS[set], 0, left - 1", "ZRANGE', KEYS[set], 0, -1")
    defect("obliterate", "the batch has no bound", bound)
    defect("claim", "what is promoted has no bound", ("'LIMIT', 0, due_max", "'LIMIT', 0, -1"))
    defect("retry", "a failure is not counted", ("whole(row[3], 0) + 1", "whole(row[3], 0)"))
    defect(
        "retry",
        "the job's own max_attempts is not obeyed",
        ("whole(row[4], max_attempts)", "max_attempts"),
    )
    defect("reap", "a lost lease is not counted", ("whole(row[3], 0) + 1", "whole(row[3], 0)"))
    defect(
        "reap",
        "a lost lease spends a failure",
        ("'state', 'pending', 'stalls'", "'state', 'pending', 'failures'"),
    )
    for verb in ("retry", "bury", "reap", "cancel"):
        defect(verb, "the morgue has no cap", ("over > 0", "false"))
    defect("reprocess", "the stalls of the last life stay", ("'stalls', ", ""))
    defect("claim", "a paused queue is claimed", ("if limits[1] then", "if false then"))
    defect(
        "claim",
        "the concurrency limit is off by one",
        ("concurrency - running, 0)", "concurrency - running + 1, 0)"),
    )
    defect(
        "claim",
        "the rate limit's window never ends",
        ("redis.call('PEXPIRE', limiter, duration)", ""),
    )
    defect(
        "obliterate",
        "a queue that is open is deleted",
        ("not redis.call('HGET', meta, 'paused')", "false"),
    )

    # Calls that are sent again.
    same = "== request .. ' ' then"
    defect("enqueue", "the same call is carried out again", (same, "== false then"))
    defect("claim", "the same call takes new jobs", (same, "== false then"))
    defect("enqueue", "a duplicate overwrites the row", ("redis.call('EXISTS', row) == 1", "false"))
    for verb in ("retry", "snooze", "release", "bury"):
        defect(verb, "sent again, it is refused", (f"row[2] == '{verb}'", "false"))

    # Schedules.
    made = "was ~= '-' and tonumber(score) ~= tonumber(was)"
    friends = ("repeat_register", "tick")
    for what, swap in {
        "a tick is made twice": (made, "false"),
        "a tick that is not due is made": ("was ~= '-' and tonumber(was) > now", "false"),
        "a schedule that was changed ticks": ("(is or '-') ~= rule", "false"),
        "the next time stays": ("redis.call('ZADD', KEYS[6], next_ms, name)", ""),
    }.items():
        found.append(Defect(what, "enqueue", (swap,), friends))
    taken = "redis.call('EXISTS', record) == 1"
    defect("repeat_register", "a name that is taken is registered again", (taken, "false"))
    friends = ("repeat_register",)
    for script, what, swap in (
        ("repeat_advance", "another time than the one that was read moves", ("was ~= ''", "false")),
        ("repeat_cancel", "the record stays", (", redis.call('DEL', record)", ", 0")),
        ("repeat_due", "what is not due is told", ("'-inf', now, 'W", "'-inf', '(inf', 'W")),
        (
            "reap",
            "the time of the next tick is not told",
            ("died, redis.call('HLEN', onward), until_tick()", "died, 0, -1"),
        ),
    ):
        found.append(Defect(what, script, (swap,), friends))

    # Order, wake and counters.
    for verb in ("release", "reap", "promote", "requeue", "reprocess"):
        number = {"release": 3, "requeue": 2, "reprocess": 2, "promote": 2, "reap": 2}[verb]
        row = "rows[i]" if verb == "promote" else "row"
        defect(verb, "the priority is forgotten", (f"0 - whole({row}[{number}], 0)", "0"))
    wake = "redis.call('LPUSH', wake, '1')"
    for verb in ("enqueue", "claim", "snooze", "release", "promote", "resume"):
        defect(verb, "no worker is woken", (wake, ""))
    awake = "redis.call('LLEN', wake) == 0"  # chains wake workers in these two as well
    defect("retry", "no worker is woken", (f"if earlier and {awake}", "if false"))
    defect("reap", "no worker is woken", (f"  if {awake} then", "  if false then"))
    for verb, name in {
        "enqueue": "enqueued",
        "claim": "claimed",
        "complete": "completed",
        "retry": "failed",
        "reap": "reaped",
        "discard": "stale",
        "remove": "removed",
    }.items():
        defect(verb, f"the counter {name} is not raised", (f"tally('{name}'", "tostring('no'"))
    return found


# Where a script frees the key of a job that ends.
FREES = {
    **dict.fromkeys(("complete", "discard", "bury", "cancel"), "\n  free(id)\n"),
    **dict.fromkeys(("retry", "remove", "drain"), "\n    free(id)\n"),
    **dict.fromkeys(("reap", "obliterate"), "\n      free(id)\n"),
}


def _of_unique_keys() -> list[Defect]:
    found = []

    def defect(script: str, what: str, *swaps: tuple[str, str]) -> None:
        found.append(Defect(what, script, swaps, ("enqueue_unique", "overtake", "cancel")))

    stranger = "redis.pcall('GET', base .. 'unique:' .. digest) ~= id"
    for script, call in FREES.items():
        defect(script, "the unique key is not freed", (call, "\n"))
        if script != "obliterate":  # the stranger goes as well
            defect(script, "the unique key of a stranger is freed", (stranger, "false"))
    for script in ("complete", "retry"):
        defect(script, "who waits behind it waits for ever", ("if due and", "if false and"))
    defect("reprocess", "the key is not taken again", ("redis.call('SET', key, id)", ""))
    defect(
        "reprocess", "the key of another job is taken", ("elseif holder then", "elseif nil then")
    )
    defect("requeue", "what waits behind a job runs beside it", ("elseif row[3]", "elseif nil"))
    verb = "enqueue_unique"
    same = "== request .. ' ' then"
    defect(verb, "the same call is carried out again", (same, "== false then"))
    defect(verb, "a clock that is an hour off", AN_HOUR)
    defect(verb, "no worker is woken", ("redis.call('LPUSH', wake, '1')", ""))
    defect(verb, "nobody holds a key", ("if holder then", "if nil then"))
    defect(verb, "a job that has ended holds its key", ("if lives and", "if true or"))
    defect(verb, "a job that has begun holds its key until the end", ("kind ~= 'start'", "true"))
    defect(verb, "a time ends with its job", ("PTTL', key) > 0", "PTTL', key) > 9e15"))
    defect(verb, "a time never ends", ("redis.call('PEXPIRE', key, ARGV[at + 6])", ""))
    defect(verb, "a running job is replaced", ("elseif holder.waits and", "elseif true and"))
    defect(verb, "what is replaced stays", ("redis.call('ZREM', schedule, id)", ""))
    defect(verb, "two wait behind one", ("return {holder.heir}, holder.id", "return {}, holder.id"))
    defect(verb, "it does not wait", ("  elseif waits then", "  elseif false then"))
    defect(verb, "it is put off for ever", ("math.min(due, since", "math.max(due, since"))
    defect(verb, "the first call is forgotten", ("holder and holder.since or now", "now"))
    for name in ("enqueued", "duplicates", "replaced"):
        defect(verb, f"the counter {name} is not raised", (f"tally('{name}'", "tostring('no'"))
    return found


def _of_resources() -> list[Defect]:
    raised = ("math.max(last + 1, now)", "math.max(last, now)")
    return [Defect("two claims for a resource get one number", "claim", (raised,))]


def _of_expiry() -> list[Defect]:
    found = []

    def defect(script: str, what: str, *swaps: tuple[str, str], friends: str = "") -> None:
        found.append(Defect(what, script, swaps, ("enqueue_tied", *friends.split())))

    defect("claim", "an expired job is handed out", ("if late < 0 then", "if true then"))
    defect(
        "claim", "what is still in its time expires", ("if late < 0 then", "if late ~= late then")
    )
    defect("claim", "an expired job leaves no mark", ("'settled', 'expire'", "'unmarked', '1'"))
    expired = ("  free(id)\n  note('died', id, token, why)", "  note('died', id, token, why)")
    defect("claim", "an expired job keeps its unique key", expired)
    defect("claim", "expired jobs fill the morgue", ("  keep_cap()\n", ""))
    wake = (" and buried + expired == 0 then", " then")
    defect("claim", "what waited behind an expired job wakes nobody", wake)
    defect("claim", "the counter expired is not raised", ("tally('expired'", "tostring('no'"))
    defect(
        "reprocess",
        "the expiry of the last life stays",
        ("'finished_at', 'expires_at'", "'finished_at'"),
    )
    for verb in ("enqueue", "enqueue_unique"):
        defect(verb, "an expiry counts from 1970", ("'%.0f', now + tonumber(", "'%.0f', tonumber("))
    return found


def _of_chains() -> list[Defect]:
    found = []

    def defect(script: str, what: str, *swaps: tuple[str, str]) -> None:
        found.append(Defect(what, script, swaps, ("enqueue_tied", "reprocess")))

    kept = ("chained[#chained + 1] = {id, nexts}", "")
    defect("complete", "the next job is not admitted", kept)
    for verb, jobs in {"bury": "move[6]", "retry": "move[7]", "reap": "nexts[id]"}.items():
        defect(verb, "the next job is not admitted", (f"admit_after(id, {jobs})", ""))
        success = ("hung(id, 'on_failure'", "hung(id, 'on_success'")
        defect(verb, "a failure admits what hangs on the success", success)
        once = ("redis.call('HDEL', jobs .. id, 'on_failure')", "")
        defect(verb, "each death admits the same jobs", once)
    failure = ("hung(id, 'on_success'", "hung(id, 'on_failure'")
    defect("complete", "a success admits what hangs on the failure", failure)
    defect(
        "retry",
        "a failure that is no death admits the next job",
        ("    if dies then\n      nexts =", "    if true then\n      nexts ="),
        ("note('failed', id, token, message)", "admit_after(id, move[7])"),
    )
    for verb in ("complete", "retry", "reap"):
        there = ("and redis.call('EXISTS', jobs .. job[2]) == 0 then", "then")
        defect(verb, "a next job that is there is admitted again", there)
        defect(verb, "nobody is woken for the next job", ("if ready > 0 and", "if false and"))
        delay = ("due and now + due or tonumber(job[5]) or 0", "0")
        defect(verb, "a next job comes before its time", delay)
        here = ("if job[1] ~= '' then", "if false then")
        defect(verb, "the next job of another queue comes into this one", here)
        expiry = ("string.format('%.0f', now + ms)", "ms")
        defect(verb, "the expiry of the next job counts from 1970", expiry)
    value = ("(left[id] == '' and 'null' or left[id])", "'null'")
    defect("complete", "what the job returned is not passed on", value)
    again = ("redis.call('HDEL', jobs .. id, 'on_success', 'on_failure')", "")
    defect("complete", "a kept row keeps what hung on it", again)
    defect(
        "onward", "what is there by now is told again", ("redis.call('HDEL', onward, ARGV[i])", "")
    )
    return found


# Where a script tells who waits for the end of a job.
TELLS = {
    **dict.fromkeys(("bury", "cancel"), "\n  tell(id, 'dead')\n"),
    "complete": "\n  tell(id, 'done')\n",
    "discard": "\n  tell(id, 'discarded')\n",
    "enqueue_unique": "\n  tell(id, 'replaced')\n",
    "retry": "\n    tell(id, 'dead')\n",
    **dict.fromkeys(("remove", "drain"), "\n    tell(id, 'removed')\n"),
    "reap": "\n      tell(id, 'dead')\n",
    "obliterate": "\n      tell(id, 'removed')\n",
    "claim": "\n  tell(id, 'dead')\n  return",
}


def _of_waiters() -> list[Defect]:
    found = []

    def defect(script: str, what: str, *swaps: tuple[str, str]) -> None:
        friends = ("wait", "enqueue_tied") if script == "claim" else ("wait", "enqueue_unique")
        found.append(Defect(what, script, swaps, friends))

    for script, call in TELLS.items():
        after = "\n  return" if script == "claim" else "\n"
        defect(script, "who waits is not told", (call, after))
    for script in ("complete", "bury", "discard"):
        ends = ("redis.pcall('PEXPIRE', list, 60000)", "")
        defect(script, "the list of a waiter never ends", ends)
        defect(
            script,
            "who waits is told twice",
            ("redis.pcall('RPUSH', list, word)", "redis.pcall('RPUSH', list, word, word)"),
        )
    defect("bury", "who was told waits on", ("redis.pcall('HDEL', jobs .. id, 'waiters')", ""))
    defect("wait", "who asks again is noted again", ("if name == waiter then", "if false then"))
    defect("wait", "any number may wait", ("math.max(#names - keep, 0) + 1", "1"))
    defect("wait", "the row does not say that somebody waits", ("'ties', '1', ", ""))
    over = ("or state == 'dead' or state == 'done' then", "then")
    defect("wait", "it is waited for a job that has ended", over)
    return found


DEFECTS = [
    *_defects(),
    *_of_unique_keys(),
    *_of_resources(),
    *_of_expiry(),
    *_of_chains(),
    *_of_waiters(),
]

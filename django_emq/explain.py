"""The guarantee sheet of a task: what holds for its jobs, and where it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from .backoff import Custom, Exponential, Policy, resolve
from .conf import QueueSettings, settings
from .exceptions import InvalidOption
from .redact import sensitive
from .registry import AnyTask
from .times import lifetimes
from .unique import Rule

SHOWN = 6  # waits between attempts; the rest go on alike
GUARDS = ("effect", "fenced_update", "idempotency_key")


@dataclass(slots=True)
class Sheet:
    """What holds for the jobs of a task, in words.

    :ivar facts: (heading, sentence), in the order in which they are read.
    :ivar warnings: what its author should think about again.
    """

    task: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def explain(task: AnyTask) -> Sheet:
    """The sheet of a task."""
    conf = settings()
    queue = task.queue or conf.default_queue
    own = conf.queue(queue)
    guards = [name for name in GUARDS if name in set(_names(_code(task.func)))]
    secret = sorted(_secret(task, conf.redact))
    sheet = Sheet(task.name)
    sheet.facts = [
        ("delivery", "At least once. A run that is cut off after its work is run again."),
        ("enqueueing", _enqueueing(task, own)),
        ("queue", queue + (f", spread over {own.partitions}" if own.partitions else "")),
        ("priority", f"{task.priority} (-100 to 100; higher runs first)"),
        ("lease", _lease(task, own)),
        ("failures", _failures(task, own, sheet)),
        ("lost leases", f"{_either(task.max_stalls, own.max_stalls)} lead to the morgue"),
        ("result", _result(task)),
        ("repeats", _repeats(task, guards, sheet)),
        ("secrets", ", ".join(secret) + " hidden" if secret else "no argument is hidden"),
    ]
    if task.rule is not None:
        sheet.facts.insert(2, ("unique", _unique(task.rule)))
    if secret:
        sheet.warnings.append(
            f"{', '.join(secret)}: hidden from pages and logs, but plain in the payload. Pass a "
            "key, and read the secret in the task."
        )
    return sheet


def _enqueueing(task: AnyTask, own: QueueSettings) -> str:
    if _either(task.outbox, own.outbox if task.on_commit is None else False):
        when = "stored in the caller's transaction (outbox), sent after its commit"
    elif _either(task.on_commit, own.on_commit):
        when = "after the commit of the caller's transaction, if one is open"
    else:
        when = "at once, also inside a transaction that may be rolled back"
    replicas = _either(task.wait_replicas, own.wait_replicas)
    return when + (f"; waits for {replicas} replicas" if replicas else "")


def _unique(rule: Rule) -> str:
    made = "a text of its own" if rule.made else ", ".join(rule.names) or "all arguments"
    until = {"time": f"{rule.hold_ms / 1000:g} s long", "start": "until it is claimed"}
    return (
        f"by {made}, {until.get(rule.until, 'until it has ended')}; on a conflict: {rule.conflict}"
    )


def _lease(task: AnyTask, own: QueueSettings) -> str:
    seconds = task.lease_ms / 1000 or own.lease
    return (
        f"{seconds:g} s, extended while the process lives; when a machine is lost, its jobs are "
        "back after that time. A job may run as long as it likes."
    )


def _failures(task: AnyTask, own: QueueSettings, sheet: Sheet) -> str:
    count = int(_either(task.max_attempts, own.max_attempts))
    if count == 1:
        sheet.warnings.append("max_attempts is 1: the first failure puts the job into the morgue.")
        return "the first leads to the morgue"
    try:
        policy = own.backoff if task.backoff is None else resolve(task.backoff)
    except InvalidOption as error:
        sheet.warnings.append(f"{error} Until it can be, the default policy is used.")
        return f"{count} lead to the morgue; waits by the default policy"
    return f"{count} lead to the morgue; waits between: {_waits(policy, count)}"


def _waits(policy: Policy, count: int) -> str:
    if isinstance(policy, Custom):
        return f"as {policy.function.__qualname__} says"
    waits = []
    for failures in range(1, min(count, SHOWN + 1)):
        if isinstance(policy, Exponential) and policy.jitter:
            waits.append(f"up to {policy.ceiling(failures):g} s")
        else:
            waits.append(f"{policy(failures, None) or 0:g} s")
    return ", ".join(waits) + (" …" if count > SHOWN + 1 else "")


def _result(task: AnyTask) -> str:
    _, dead_ms = lifetimes(task.result_ttl)
    dead = f"; a dead job stays in the morgue for {dead_ms / 1000:g} s" if dead_ms else ""
    if not task.keep_ms:
        return "not kept: the job is gone when it is done (result_ttl)" + dead
    return f"kept for {task.keep_ms / 1000:g} s" + dead


def _repeats(task: AnyTask, guards: list[str], sheet: Sheet) -> str:
    if task.is_async and set(guards) & {"effect", "fenced_update"}:
        sheet.warnings.append(
            "It is async, and uses Django's database through effect or fenced_update: call them "
            "in a function that sync_to_async runs."
        )
    parts = ["declared to bear a second run (idempotent)"] if task.idempotent else []
    parts += [f"uses {name}" for name in guards]
    if task.fence_key:
        parts.append(f"fenced as {task.fence_key}")
    if not parts:
        sheet.warnings.append(
            "Nothing says that a second run does no harm. Use emq.effect for what shall happen "
            "once in the database, emq.idempotency_key for a service that takes one, or declare "
            "idempotent=True when it bears one as it is."
        )
    return "; ".join(parts) or "unknown"


def _either(own: Any, general: Any) -> Any:
    return general if own is None else own


def _secret(task: AnyTask, redact: tuple[str, ...]) -> Iterator[str]:
    named = {name.casefold() for name in redact}
    own = sensitive(task.name)
    for name in inspect.signature(inspect.unwrap(task.func)).parameters:
        if own == "__ALL__" or name in own or name.casefold() in named:
            yield name


def _code(func: Any) -> CodeType | None:
    return getattr(inspect.unwrap(func), "__code__", None)


def _names(code: CodeType | None) -> Iterator[str]:
    """Names that a function, or a function inside of it, mentions."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _names(constant)

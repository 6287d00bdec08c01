"""System checks: what a project's settings get wrong, found before the first job.

They read settings and import classes; none of them opens a connection. Each id has a section in
``docs/checks.md``.
"""

from __future__ import annotations

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from . import alias_checks, aliases, conf, middleware, registry, schedules, task_options
from .conf import Settings

SETTING_IDS = {
    "unknown": "django_emq.E010",
    "value": "django_emq.E011",
    "contradiction": "django_emq.E012",
}


def check(**kwargs: object) -> list[CheckMessage]:
    """All checks of django_emq, in the order of the page."""
    values, problems = conf.read()
    found: list[CheckMessage] = [
        Error(problem.sentence, hint="All settings: docs/settings.md", id=SETTING_IDS[problem.kind])
        for problem in problems
    ]
    alias = aliases.read(values.cache_alias)
    found += _partitions(values)
    found += alias_checks.backend(alias, values)
    found += _leases(values) + _effects(values)
    found += task_options.check()
    found += _middleware(values) + _schedules()
    if alias is not None and alias.is_django_redis:
        for one in alias_checks.ALL:
            found += one(alias, values)
    return found


def _partitions(values: Settings) -> list[CheckMessage]:
    """E013: no task has a queue that is called like a partition of another queue."""
    queues = {name: registry.get(name).queue for name in registry.names()}
    return [
        Error(
            f"Task {name} has the queue {queue!r}. {conf.taken(queue, values.whole(queue))}",
            hint=f"Did you mean queue={values.whole(queue)!r}? partition_key says which partition "
            "takes a job.",
            id="django_emq.E013",
        )
        for name, queue in queues.items()
        if queue and values.whole(queue) != queue
    ]


def _middleware(values: conf.Settings) -> list[CheckMessage]:
    """E016: each middleware can be imported and called."""
    found: list[CheckMessage] = []
    for path in values.middleware:
        try:
            middleware.load(path)
        except ImproperlyConfigured as error:
            hint = "How one is written: docs/signals.md"
            found.append(Error(str(error), hint=hint, id="django_emq.E016"))
    return found


def _schedules() -> list[CheckMessage]:
    """E030: each schedule of the code can be kept: its task is known, its queue may have jobs."""
    if conf.problems():  # which tells of rules that cannot be read
        return []
    _, wrong = schedules.by_queue(schedules.declared())
    return [
        Error(
            f"Schedule {name!r} cannot be kept: {error}",
            hint="How one is written: docs/schedules.md",
            id="django_emq.E030",
        )
        for name, error in wrong.items()
    ]


def _leases(values: Settings) -> list[CheckMessage]:
    """W004: a call may hang for SOCKET_TIMEOUT; the lease must outlast one such call.

    Leases are extended when a third of them has gone. If that call gets no answer, the next must
    still come in time: lease / 3 + SOCKET_TIMEOUT < lease.
    """
    leases = {"EMQ['LEASE']": values.lease}
    for name, own in values.queues.items():
        if own.lease != values.lease:
            leases[f"EMQ['QUEUES'][{name!r}]['LEASE']"] = own.lease
    return [
        Warning(
            f"EMQ['SOCKET_TIMEOUT'] is {values.socket_timeout} s and {setting} is {lease} s. One "
            "call without an answer can use up the lease, and another worker would run the job "
            "too: make SOCKET_TIMEOUT shorter, or the lease longer.",
            hint="SOCKET_TIMEOUT below two thirds of the lease leaves time for a second call.",
            id="django_emq.W004",
        )
        for setting, lease in leases.items()
        if values.socket_timeout >= lease * 2 / 3
    ]


def _effects(values: Settings) -> list[CheckMessage]:
    """W005: a job may be given back from the morgue for as long as it is kept there."""
    fact = (
        "EMQ['EFFECT_TTL'] is not longer than DEAD_TTL. A job that is given back from the morgue "
        "would repeat an effect whose record is gone: make EFFECT_TTL longer."
    )
    hint = "Or leave it out: a year."
    wrong = values.effect_ttl <= values.dead_ttl
    return [Warning(fact, hint=hint, id="django_emq.W005")] if wrong else []

"""The backend for Django's own tasks API: `TASKS = {"default": {"BACKEND": …EMQBackend"}}`.

A thin face over `queue`: a task of Django becomes a `registry.Task`, and its result is read from
the job's row. What a worker runs for it is in `performing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ParamSpec, TypeVar, cast

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from . import connections, queue, registry, results
from .compat import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
)
from .exceptions import EmqError
from .ids import is_job_id, minted_at
from .performing import EMQContext, performer
from .registry import Unique
from .task_options import TaskOptions, messages, read_options
from .times import Seconds

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["EMQBackend", "EMQContext", "EMQTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EMQTask(AnyTask):
    """A task of Django's with the options of a job.

    Made by Django's ``@task(…)`` where that takes further options (Django 6.1, the backport), and
    elsewhere by ``task(function).using(…)``. Times are seconds or timedeltas.

    :ivar max_attempts: failures before the job has FAILED; None for the backend's MAX_ATTEMPTS.
    :ivar max_stalls: lost leases before that; None for the queue's MAX_STALLS.
    :ivar backoff: seconds, a timedelta, a policy of `backoff`, or a callable that takes the
        exception and the task result, and answers seconds or None for no further attempt.
    :ivar lease: how long a claim holds before it must be extended; None for the worker's.

    The others are those of `registry.Task`.
    """

    max_attempts: int | None = None
    max_stalls: int | None = None
    backoff: Any = None
    lease: Seconds | None = None
    expires: Seconds | datetime | None = None
    timeout: Seconds | None = None
    kill_after: Seconds | None = None
    wait_replicas: int | None = None
    fence_key: str | None = None
    on_commit: bool | str | None = None
    outbox: bool | str | None = None
    partition_key: str | None = None
    unique: Unique = None
    unique_for: Seconds | None = None
    unique_until: str | None = None
    on_conflict: str | None = None
    max_wait: Seconds | None = None

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> EMQTask:
        """A copy with other options; None leaves one as it is. Takes those of this class too."""
        changes = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            **options,
        }
        return replace(self, **{name: v for name, v in changes.items() if v is not None})


OWN = tuple({one.name for one in fields(EMQTask)} - {one.name for one in fields(AnyTask)})


class EMQBackend(BaseTaskBackend):
    """Runs Django's tasks as jobs of the queue; their results are read from the jobs' rows.

    ``OPTIONS``: ``RESULT_TTL``, seconds that a successful result is kept (a day); ``MAX_ATTEMPTS``
    and ``BACKOFF``, for tasks that have none of their own. ``QUEUES`` is Django's.
    """

    task_class = EMQTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @cached_property
    def emq_options(self) -> TaskOptions:
        """The OPTIONS, parsed. Raises ImproperlyConfigured for a bad one."""
        parsed, found = read_options(self.alias, self.options, self.queues)
        if found:
            raise ImproperlyConfigured(found[0].sentence)
        return parsed

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask for what cannot be enqueued here.

        A `run_after` may be a timedelta: from the enqueueing, by the server's clock.
        """
        plain = task
        if isinstance(task.run_after, timedelta):
            plain = replace(task, run_after=None)
        super().validate_task(plain)
        try:
            made = self.face(task)
        except EmqError as error:
            raise InvalidTask(str(error)) from error
        if made.lease_ms:
            registry.note_lease(made.lease_ms)
        if made.limits_ms[1]:
            registry.note_kill()

    def face(self, task: AnyTask, defaults: TaskOptions | None = None) -> registry.AnyTask:
        """The task as `queue.enqueue` takes it, with the fields that make its row a result."""
        run_after: Any = task.run_after
        run_in = run_after if isinstance(run_after, timedelta) else None
        run_at = run_after if run_in is None else None
        row: tuple[Any, ...] = ("backend", self.alias, "claims", "", "errors", "")
        if run_after is not None:
            due = run_at or timezone.now() + run_after
            row += ("run_after", due.isoformat())
        if run_at is not None and timezone.is_naive(run_at):  # without USE_TZ
            run_at = timezone.make_aware(run_at)
        # A task of Django's own class has none of these.
        own = {name: getattr(task, name, None) for name in OWN}
        if defaults is not None:
            own["max_attempts"] = own["max_attempts"] or defaults.max_attempts
            own["backoff"] = defaults.backoff if own["backoff"] is None else own["backoff"]
        made: registry.AnyTask = registry.Task(
            func=task.func,
            name=task.module_path,
            queue=task.queue_name,
            priority=int(task.priority),
            result_ttl=defaults.result_ttl if defaults is not None else 0,
            run_in=run_in,
            run_at=run_at,
            **own,
        )
        object.__setattr__(made, "fields", made.fields + row)
        if made.rule is not None and task.takes_context:
            object.__setattr__(made, "rule", replace(made.rule, skip=1))
        return made

    def enqueue(self, task: Task[P, R], args: Any, kwargs: Any) -> TaskResult[P, R]:
        """Enqueue a job of the task; see `queue.enqueue` for what it raises.

        Arguments are made JSON first, so what the caller sees is what the worker gets. Where
        another job holds its unique key, the result is that of the other job.
        """
        self.validate_task(task)
        args, kwargs = _json(args), _json(kwargs)
        face = self.face(task, self.emq_options)
        job = queue.enqueue(face, *args, **kwargs)
        is_new = job.status != "duplicate"
        if not is_new:
            with suppress(TaskResultDoesNotExist):  # it has ended, and its row is gone
                known: Any = self.get_result(job.id)
                return cast("TaskResult[P, R]", known)
        if isinstance(task.run_after, timedelta):
            row = dict(zip(face.fields[::2], face.fields[1::2], strict=True))
            task = replace(task, run_after=datetime.fromisoformat(row["run_after"]))
        result: TaskResult[P, R] = TaskResult(
            task=task,
            id=job.id,
            status=TaskResultStatus.READY,
            enqueued_at=results.local(minted_at(job.id)),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if is_new:
            task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """The result of a job that this backend enqueued, as its row tells it now.

        Raises TaskResultDoesNotExist for an id that there never was, or whose row is gone.
        """
        if isinstance(result_id, str) and is_job_id(result_id):
            where, row = results.read(connections.client(), result_id, self.queues)
            if row.get("backend") == self.alias.encode():
                return results.build(where, result_id, row)
        raise TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """What is wrong with this entry of TASKS; opens no connection.

        Nothing where the app is installed: there its own checks say so, under the tag ``emq``.
        """
        if apps.is_installed("django_emq"):
            return []
        return messages(read_options(self.alias, self.options, self.queues)[1])


def _json(value: Iterable[Any]) -> Any:
    """The value as the worker will read it. Raises TypeError for what JSON has no form for."""
    return json.loads(json.dumps(normalize_json(value)))


# By path: for which task, under which settings, and what a worker runs for it. Each job has a
# context of its own, and so Django makes a backend for each job: none of them can keep this.
_performers: dict[str, tuple[AnyTask, object, registry.AnyTask]] = {}


def find(name: str) -> registry.AnyTask | None:
    """What a worker runs for a job whose payload names a task of Django's; None for no such task.

    The name must lead to a Task object, and some alias of TASKS to this backend: no other
    function is ever called.
    """
    task = results.locate(name)
    if task is None:
        return None
    aliases = getattr(settings, "TASKS", None)
    known = _performers.get(name)
    if known is not None and known[0] is task and known[1] is aliases:
        return known[2]
    backend = task.get_backend()
    if not isinstance(backend, EMQBackend):  # a job of `using(backend=…)`
        others = [one for one in task_backends.all() if isinstance(one, EMQBackend)]
        if not others:
            return None
        backend = others[0]
    face = backend.face(task, backend.emq_options)
    made = performer(face, takes_context=task.takes_context)
    _performers[name] = (task, aliases, made)
    return made


registry.finders.append(find)

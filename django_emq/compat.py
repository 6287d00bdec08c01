"""Django's tasks API: `django.tasks`, or the backport `django-tasks` on Django 5.2.

Nothing else in the package imports either of them, and nothing but `backend`, `results` and
`conformance` imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        TaskResultStatus,
        default_task_backend,
        task,
        task_backends,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

    LOGGER = "django.tasks"
else:
    try:
        from django_tasks import (
            DEFAULT_TASK_BACKEND_ALIAS,
            TaskResultStatus,
            default_task_backend,
            exceptions,
            task,
            task_backends,
        )
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult
        from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as error:
        raise ImportError(
            "The backend for Django's tasks needs Django 6.0 or newer, or the package django-tasks "
            "on Django 5.2: pip install 'django-emq[tasks]'."
        ) from error

    # Releases of the backport up to 0.12 have names of their own for two exceptions.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    InvalidTaskBackend = (
        getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
    )
    LOGGER = "django_tasks"

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
    AnyContext = TaskContext[..., Any]
else:  # Django's own classes take no parameters
    AnyTask, AnyResult, AnyContext = Task, TaskResult, TaskContext

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "LOGGER",
    "AnyContext",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "normalize_json",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]

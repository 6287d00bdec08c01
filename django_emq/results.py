"""Results of Django's tasks: what a job's row says, as a `TaskResult`.

The row is the only record. Two reads of an unchanged row are equal, to the microsecond.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from datetime import datetime
from importlib import import_module
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils import timezone

from . import conf
from .compat import AnyResult, AnyTask, Task, TaskError, TaskResult, TaskResultStatus
from .connections import Client
from .exceptions import UnknownTask
from .ids import minted_at
from .inspector import first_row
from .inspector import queues as known_queues
from .inspector._read import instant, number, text
from .jobs import decode

FIELDS = (
    "backend", "state", "attempts", "payload", "priority", "run_after", "claims",
    "worker", "started_at", "finished_at", "errors", "last_error", "traceback", "result",
)  # fmt: skip
STATUS = {
    "active": TaskResultStatus.RUNNING,
    "dead": TaskResultStatus.FAILED,
    "done": TaskResultStatus.SUCCESSFUL,
}
# What `outcome.describe` begins a line with, where the error has a module.
CLASS_PATH = re.compile(r"[^\W\d][\w.<>]*(?=: |$)")
# What stands for an error that has no class: a verdict of the task, of a sweep or of an operator.
VERDICTS = {
    "retry": "django_emq.exceptions.Retry",
    "bury": "django_emq.exceptions.Bury",
    "discard": "django_emq.exceptions.Discard",
    "stalled": "django_emq.exceptions.StaleToken",
}


def read(
    client: Client, job_id: str, queues: Iterable[str], *, elsewhere: bool = True
) -> tuple[str, dict[str, Any]]:
    """Queue and row of a job that Django's tasks API enqueued; an empty row when there is none.

    One round trip where its queue is among those that are given, three where not.

    :param elsewhere: look into all other queues too.
    """
    asked = sorted(part for queue in queues for part in conf.settings().parts(queue))
    found = first_row(client, job_id, asked, FIELDS)
    if found is None and elsewhere:
        others = [q for q in known_queues(client) if q not in asked]
        found = first_row(client, job_id, others, FIELDS)
    return found or ("", {})


def build(queue: str, job_id: str, row: dict[str, Any]) -> AnyResult:
    """The result that a row tells of. Raises UnknownTask when its task is not here any more."""
    words = {name: text(value) for name, value in row.items()}
    call = decode(row["payload"])
    status = STATUS.get(words["state"], TaskResultStatus.READY)
    worker_ids, first_at = _claims(words)
    last_at = words.get("started_at")
    result: AnyResult = TaskResult(
        task=_task(call.task, queue, words),
        id=job_id,
        status=status,
        enqueued_at=local(minted_at(job_id)),
        started_at=local(instant(number(first_at)) if first_at else None),
        finished_at=local(instant(number(words["finished_at"]))) if status in ENDED else None,
        last_attempted_at=local(instant(number(last_at)) if last_at else None),
        args=call.args,
        kwargs=call.kwargs,
        backend=words["backend"],
        errors=_errors(words),
        worker_ids=worker_ids,
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", json.loads(words["result"] or "null"))
    return result


ENDED = {TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL}


def error_of(verb: str, message: str, traceback: str) -> TaskError:
    """An error as its row tells it: verb, one line that begins with its class, and traceback."""
    found = CLASS_PATH.match(message) if traceback or "." in message.partition(":")[0] else None
    path = found.group() if found else VERDICTS[verb]
    if "." not in path:
        path = f"builtins.{path}"
    return TaskError(exception_class_path=path, traceback=traceback or message)


def locate(path: str) -> AnyTask | None:
    """The Task object at a dotted path; None when there is none.

    Only modules that this process has loaded, or that belong to an installed app, are looked
    into: a path in a row never makes a process import anything else. Raises UnknownTask for a
    module of an app that cannot be imported.
    """
    name, _, attribute = path.rpartition(".")
    module = sys.modules.get(name)
    if module is None and _is_ours(name):
        try:
            module = import_module(name)
        except Exception as error:
            raise UnknownTask(f"There is no task {path!r}: {name} raises {error!r}.") from error
    found = vars(module).get(attribute) if module else None
    return found if isinstance(found, Task) else None


def _is_ours(module: str) -> bool:
    return any(f"{module}.".startswith(f"{app.name}.") for app in apps.get_app_configs())


def _task(path: str, queue: str, words: dict[str, str]) -> AnyTask:
    found = locate(path)
    if found is None:
        raise UnknownTask(f"There is no task {path!r} here. Was its function moved or renamed?")
    options: dict[str, Any] = {
        "priority": number(words.get("priority")),
        "queue_name": conf.settings().whole(queue),
        "backend": words["backend"],
        "run_after": datetime.fromisoformat(words["run_after"]) if "run_after" in words else None,
    }
    # Making a task means to validate it, which the usual job can do without.
    usual = all(getattr(found, name) == value for name, value in options.items())
    return found if usual else found.using(**options)


def _lines(words: dict[str, str], name: str) -> list[str]:
    # Not `splitlines`, which ends a line at more characters than the server does.
    return [line for line in words.get(name, "").split("\n") if line]


def _claims(words: dict[str, str]) -> tuple[list[str], str]:
    """Who claimed the job, one for each token; and when it was claimed first.

    Tokens that no worker had (an operator took the job away), and workers that the row has
    forgotten because there were very many, are ''.
    """
    token = number(words.get("attempts"))
    claims = [line.rpartition("@") for line in _lines(words, "claims")]
    if words.get("worker"):
        claims.append((words["worker"], "@", words.get("started_at", "")))
    workers = [worker for worker, _, _ in claims]
    missing = [""] * (token - len(workers))
    return workers[:1] + missing + workers[1:], claims[0][2] if claims else ""


def _errors(words: dict[str, str]) -> list[TaskError]:
    entries = [json.loads(line) for line in _lines(words, "errors")]
    last = words.get("last_error", "")
    if words["state"] == "dead" and last and (not entries or entries[-1][1] != last):
        # Neither a retry nor a task's wish ended it: a sweep or an operator did.
        verb = "stalled" if last.startswith("stalled") else "bury"
        return [*(error_of(*entry) for entry in entries), error_of(verb, last, "")]
    return [error_of(*entry) for entry in entries]


def local(when: datetime | None) -> datetime | None:
    """An instant as this project has its times: aware, or naive without USE_TZ."""
    return when if when is None or settings.USE_TZ else timezone.make_naive(when)

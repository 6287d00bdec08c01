"""Cancelling a job by its id, wherever it is."""

from __future__ import annotations

import time

from asgiref.sync import sync_to_async

from . import connections, inspector, scripts
from .admission import PAUSES
from .conf import settings
from .connections import Client
from .exceptions import InvalidOption, JobGone, OutcomeUnknown
from .ids import is_job_id
from .jobs import Job

BY_MAX = 200  # characters of who asks


def cancel(job: Job | str, *, by: str = "") -> bool:
    """Cancel a job, given as `enqueue` answered it or by its id: it goes to the morgue.

    A job that waits will never start. One that runs loses its token in the same step, so whatever
    its run reports is refused; the worker is told at its next extension.

    Answers whether the job is cancelled, also if it was before: False for one that has ended in
    another way, or is not there (any more). Raises InvalidOption for what is no id of a job,
    ServerError.

    :param by: who asks, for the row, the trail and `emq_why`.
    """
    job_id = job.id if isinstance(job, Job) else job
    if not isinstance(job_id, str) or not is_job_id(job_id):
        raise InvalidOption(f"{job_id!r} is no id of a job. Pass a Job, or the id of one.")
    queue, by = job.queue if isinstance(job, Job) else "", by[:BY_MAX]
    for pause in PAUSES:
        try:
            return _cancel(job_id, queue, by)
        except OutcomeUnknown:  # it may have been carried out: then it is found so
            time.sleep(pause)
    return _cancel(job_id, queue, by)


acancel = sync_to_async(cancel)


def _cancel(job_id: str, queue: str, by: str) -> bool:
    client = connections.client()
    names = settings().parts(queue) if queue else ()
    found = inspector.locate(client, job_id, names) if names else []
    for place in found or inspector.locate(client, job_id, inspector.queues(client)):
        (verdict,) = scripts.cancel(client, place, [job_id], by=by)
        if verdict == 1 or _was_cancelled(client, place, job_id):
            return True
    return False


def _was_cancelled(client: Client, queue: str, job_id: str) -> bool:
    try:
        return inspector.row(client, queue, job_id).get("settled") == "cancel"
    except JobGone:
        return False

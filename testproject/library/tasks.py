"""The demo's one task."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from django.db import transaction
from django.utils import timezone

import django_emq as emq

from .measure import measure
from .models import Run, SourceFile


# Two attempts: a file that does not parse will not parse the next time either, but a demo should
# show that a failed job is tried again before it goes to the morgue.
@emq.task(queue="library", max_attempts=2, backoff=0.5)
def measure_file(root: str, path: str) -> None:
    """Measure the file `path` of the folder `root`, and write down what was found."""
    job = emq.current_job()
    run = Run.objects.create(job=job.id, token=job.token, path=path, pid=os.getpid())
    try:
        figures = measure(Path(root, path))
    except Exception:
        end(run, Run.Outcome.FAILED)
        raise
    # A job may run more than once: its worker can die between this transaction and the word to
    # the server that it is done. So the effect is one that can be had only once, and the record
    # of who had it is part of the same transaction.
    with transaction.atomic():
        _, written = SourceFile.objects.get_or_create(
            path=path, defaults={**asdict(figures), "job": job.id, "token": job.token}
        )
        end(run, Run.Outcome.WRITTEN if written else Run.Outcome.REPEATED)


def end(run: Run, outcome: Run.Outcome) -> None:
    """Close the record of a run."""
    Run.objects.filter(pk=run.pk).update(outcome=outcome, ended_at=timezone.now())

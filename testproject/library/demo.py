"""The demo: one job for each file of the standard library, and a worker killed on the way."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models import Max, Min
from rich.console import Console

import django_emq as emq
from django_emq import connections, inspector

from .crew import Crew, Member
from .measure import Figures, python_files
from .models import Run, SourceFile
from .outside import verdicts
from .report import Kill, Report
from .show import Bar, say
from .tasks import measure_file

QUEUE = measure_file.queue or ""
LEASE = "3"  # seconds; so short that what the killed worker held is back soon
LOOK_EVERY = 0.05  # seconds
PATIENCE = 60.0  # seconds without any progress after which something is wrong
WORKER = ("emq_worker", QUEUE, "--processes", "1", "--lease", LEASE, "--no-sweep")


class Demo:
    """One demo: `run` does all of it and answers the report.

    :param root: folder whose Python files are measured.
    :param limit: at most so many of them, spread evenly; 0 for all.
    :param logs: folder for the logs of the workers.
    """

    def __init__(self, console: Console, root: Path, *, limit: int, logs: Path) -> None:
        self.console = console
        self.root = root
        self.logs = logs
        self.paths = spread(python_files(root), limit)
        self.jobs: dict[str, str] = {}  # paths by the ids of their jobs
        self.client = connections.client()
        self.before: dict[str, int] = {}  # lifetime counters of the queue
        self.kill: Kill | None = None

    def run(self) -> Report:
        """Measure all files, by the queue and, beside it, without it."""
        self.prepare()
        self.enqueue()
        with verdicts(self.root, self.paths) as outside:
            with Crew(self.logs) as crew:
                self.work(crew)
            expected = self.look_outside(outside)
        return self.report(expected)

    def prepare(self) -> None:
        """An empty database, and a queue that nobody else uses."""
        if not self.paths:
            raise CommandError(f"There is no Python file in {self.root}.")
        waiting = inspector.counts(self.client, QUEUE, ("pending", "active", "schedule"))
        if any(waiting.values()):
            raise CommandError(
                f"Queue {QUEUE!r} of this server holds jobs. Run the demo on another server; "
                "`make demo` starts one of its own."
            )
        self.before = inspector.totals(self.client, QUEUE)
        call_command("migrate", verbosity=0, interactive=False)
        SourceFile.objects.all().delete()
        Run.objects.all().delete()

    def enqueue(self) -> None:
        """One job for each file."""
        root = str(self.root)
        started = time.monotonic()
        made = emq.enqueue_many([measure_file.job(root, path) for path in self.paths])
        seconds = time.monotonic() - started
        for job, path in zip(made, self.paths, strict=True):
            if job.error is not None:
                raise job.error
            self.jobs[job.id] = path
        say(self.console, f"{len(made):,} jobs for the Python files of {self.root}")
        say(self.console, f"enqueued in {seconds * 1000:.0f} ms; two workers and a reaper run them")

    # -- the run ------------------------------------------------------------------------------

    def work(self, crew: Crew) -> None:
        """Let workers run the jobs; kill one half-way."""
        crew.hire("reaper", "emq_reaper", QUEUE, "--interval", "0.5")
        workers = [crew.hire(name, *WORKER, "--name", name) for name in ("demo-1", "demo-2")]
        total, idle = len(self.jobs), 0
        moved_at, last = time.monotonic(), -1
        with Bar(self.console, "queue", total) as bar:
            while idle < 3:
                done, left, note = self.progress()
                bar.show(done, note)
                if done >= total:
                    return
                if self.kill is None and done >= total / 2:
                    self.strike(crew, workers)
                # Counts of several sets are no single instant: one zero proves nothing.
                idle = idle + 1 if left == 0 else 0
                if done != last:
                    moved_at, last = time.monotonic(), done
                self.watch(crew, moved_at)
                time.sleep(LOOK_EVERY)

    def progress(self) -> tuple[int, int, str]:
        """How many jobs have ended, how many are in the queue, and where."""
        totals = self.totals()
        counts = inspector.counts(self.client, QUEUE)
        left = counts["pending"] + counts["active"] + counts["schedule"]
        done = totals["completed"] + totals["dead"]
        note = f"pending {counts['pending']}, active {counts['active']}, morgue {totals['dead']}"
        return done, left, note

    def totals(self) -> Counter[str]:
        """The queue's counters since the demo began."""
        totals = Counter(inspector.totals(self.client, QUEUE))
        totals.subtract(self.before)
        return totals

    def watch(self, crew: Crew, moved_at: float) -> None:
        """Stop the demo when a process has ended by itself, or when nothing moves any more."""
        if (member := crew.dropout()) is not None:
            tail = member.log.read_text(errors="replace")[-2000:]
            raise CommandError(f"{member.name} has ended by itself. Its log ends:\n{tail}")
        if time.monotonic() - moved_at > PATIENCE:
            raise CommandError(f"No job has ended for {PATIENCE:g} seconds.")

    def strike(self, crew: Crew, workers: list[Member]) -> None:
        """Kill one of the workers, if one is in the middle of a job, and start a fresh one."""
        for worker in workers:
            # Frozen first: what is seen now is still so when it dies.
            worker.signal_all(signal.SIGSTOP)
            held = self.held_by(worker)
            runs = Run.objects.filter(outcome=Run.Outcome.OPEN, job__in=held)
            running = [run for run in runs if worker.owns(run.pid)]
            if running:
                crew.kill(worker)
                break
            worker.signal_all(signal.SIGCONT)
        else:
            return  # between two jobs, both of them; the next look will find one
        self.kill = Kill(
            worker.name,
            running[0].pid,
            held=frozenset(held),
            running=frozenset(run.job for run in running),
        )
        crew.hire("demo-3", *WORKER, "--name", "demo-3")
        say(
            self.console,
            f"half-way: SIGKILL to worker {worker.name} (process {worker.pid} and its child "
            f"{running[0].pid}) in the middle of {running[0].path}; it held {len(held)} "
            f"job{'s' * (len(held) > 1)}. A fresh one is started.",
            "yellow",
        )

    def held_by(self, worker: Member) -> list[str]:
        """Ids of the jobs that a worker has claimed."""
        rows = inspector.held(self.client, [QUEUE])
        return [r.id for r in rows if r.fields.get("worker", "").startswith(f"{worker.name}-")]

    # -- the reckoning ------------------------------------------------------------------------

    def look_outside(
        self, outside: Iterable[tuple[str, Figures | str]]
    ) -> dict[str, Figures | str]:
        """What measuring the same files comes to without the queue."""
        found = {}
        with Bar(self.console, "check", len(self.paths)) as bar:
            for path, answer in outside:
                found[path] = answer
                bar.show(len(found), "the same, outside the queue")
        return found

    def report(self, expected: dict[str, Figures | str]) -> Report:
        """Hold what is in the database and in the morgue against what must be there."""
        runs = Run.objects.all()
        wrote = runs.filter(outcome=Run.Outcome.WRITTEN).values_list("path", flat=True)
        span = runs.aggregate(first=Min("started_at"), last=Max("ended_at"))
        ended = span["first"] and span["last"]
        return Report(
            expected=expected,
            results=dict(results()),
            morgue={self.jobs[r.id]: r.fields.get("last_error", "") for r in self.dead()},
            writes=Counter(wrote),
            kill=self.kill,
            repeated=self.repeated(),
            refused=runs.filter(outcome=Run.Outcome.REPEATED).count(),
            reaped=self.totals()["reaped"],
            seconds=(span["last"] - span["first"]).total_seconds() if ended else 0.0,
        )

    def dead(self) -> list[inspector.JobRow]:
        """Our jobs in the morgue, which may hold those of an earlier demo too."""
        page = inspector.page(self.client, QUEUE, "dead", size=len(self.jobs), newest=True)
        return [row for row in page.rows if row.id in self.jobs]

    def repeated(self) -> frozenset[str]:
        """Jobs that the killed worker held and had started, and that ran again elsewhere."""
        if self.kill is None:
            return frozenset()
        runs = Run.objects.filter(job__in=self.kill.held)
        started = {run.job: run.token for run in runs if run.pid == self.kill.pid}
        return frozenset(run.job for run in runs if run.token > started.get(run.job, run.token))


def results() -> Iterator[tuple[str, Figures]]:
    """What the database says of each file."""
    names = [field.name for field in fields(Figures)]
    for path, *figures in SourceFile.objects.values_list("path", *names):
        yield path, Figures(*figures)


def spread(paths: list[str], limit: int) -> list[str]:
    """At most `limit` of the paths, evenly spread; all for 0."""
    if not 0 < limit < len(paths):
        return paths
    return [paths[i * len(paths) // limit] for i in range(limit)]

"""Show queues and workers."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError
from django.db import Error

from django_emq import connections, inspector, relay
from django_emq.exceptions import EmqError
from django_emq.inspector import JobRow, QueueStats, Worker
from django_emq.notes import Progress
from django_emq.partitions import families, folded

from ._base import EmqCommand, all_parts, plain, read_queues, seconds

HELP = """\
Show the queues (jobs in each set, oldest waiting, jobs a minute), the jobs that run and say how far
they are, the workers, and what waits in the outbox, where one is used.

  manage.py emq_stats                  once
  manage.py emq_stats mail --watch     one queue, again every 2 seconds until Ctrl-C
  manage.py emq_stats --partitions     each partition of a queue, in place of their sum
  manage.py emq_stats --json           for scripts: one JSON object

in/min and out/min count enqueued and finished jobs over the last one to two minutes.
"""

FACTS = {  # of workers, and their headings
    "queues": "queues",
    "processes": "processes",
    "threads": "threads",
    "jobs": "jobs",
    "rss_mb": "MB",
    "state": "state",
}
CELL_MAX = 130  # characters: a queue's name has 128, and what is longer is no name of ours
HEADINGS = ("queue", "pending", "active", "schedule", "dead", "done", "oldest", "in/min", "out/min")


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("queues", nargs="*", metavar="queue", help="queues to show (all)")
        add("--watch", action="store_true", help="show again until Ctrl-C")
        add(
            "--interval",
            type=seconds,
            default=2.0,
            metavar="S",
            help="seconds between looks (2)",
        )
        add("--partitions", action="store_true", help="show each partition of a queue")
        add("--json", action="store_true", help="one JSON object (one a line with --watch)")

    def handle(self, *args: Any, **options: Any) -> None:
        queues = read_queues(options["queues"])
        try:
            while True:
                stats = self.read(queues, each=options["partitions"])
                self.show(stats, as_json=options["json"], clear=options["watch"])
                if not options["watch"]:
                    return
                time.sleep(max(options["interval"], 0.1))
        except KeyboardInterrupt:
            return
        except EmqError as error:
            raise CommandError(str(error)) from error

    def read(self, queues: tuple[str, ...], *, each: bool) -> list[QueueStats]:
        """The figures of one instant, of some queues or of all."""
        client = connections.client()
        if each:
            names = all_parts(client, queues) if queues else inspector.queues(client)
            return inspector.overview(client, [n for f in families(names).values() for n in f])
        names = queues or tuple(families(inspector.queues(client)))
        return [inspector.stats(client, name) for name in names]

    def show(self, stats: list[QueueStats], *, as_json: bool, clear: bool) -> None:
        """Print the figures, and the workers."""
        client = connections.client()
        workers = inspector.workers(client)
        parts = [part for one in stats for part in one.partitions or (one.queue,)]
        running = inspector.running(client, parts)
        outboxes = [outbox(alias) for alias in relay.watched()]
        if as_json:
            told = {
                "queues": [asdict(queue) for queue in stats],
                "running": [running_facts(row) for row in running],
                "workers": [asdict(worker) for worker in workers],
                "outboxes": outboxes,
            }
            self.say(json.dumps(told, default=str))
            return
        if clear and self.stdout.isatty():
            self.stdout.write("\x1b[2J\x1b[H", ending="")
        self.say(table([HEADINGS, *(queue_row(queue) for queue in stats)]))
        for queue in stats:
            if queue.paused:
                self.say(plain(pause_line(queue)))
        for facts in outboxes:
            self.say(plain(outbox_line(facts)))
        self.say("")
        if running:
            titles = ("job", "queue", "task", "runs for", "progress")
            self.say(table([titles, *(running_row(row) for row in running)]))
            self.say("")
        if workers:
            headings = ("worker", *FACTS.values(), "last beat")
            self.say(table([headings, *(worker_row(worker) for worker in workers)]))
        else:
            self.say("No worker is running.")


def queue_row(stats: QueueStats) -> tuple[str, ...]:
    """One line of the queues' table."""
    rate = stats.per_minute
    finished = rate.get("completed", 0) + rate.get("discarded", 0) + rate.get("dead", 0)
    return (
        stats.queue,
        *(f"{count:,}" for count in stats.counts.values()),
        "-" if stats.oldest_s is None else inspector.span(stats.oldest_s),
        f"{rate.get('enqueued', 0):,.0f}",
        f"{finished:,.0f}",
    )


def runs_for(row: JobRow) -> float:
    """Seconds since the job was claimed."""
    at = row.started_at
    return max(row.now_ms / 1000 - at.timestamp(), 0.0) if at else 0.0


def running_facts(row: JobRow) -> dict[str, Any]:
    """A job that says how far it has come, for scripts."""
    progress = row.progress or Progress()
    return {
        "id": row.id,
        "queue": row.queue,
        "task": row.task,
        "runs_s": runs_for(row),
        **progress._asdict(),
        "percent": progress.percent,
    }


def running_row(row: JobRow) -> tuple[str, ...]:
    """The same as a line of a table."""
    span = inspector.span(runs_for(row))
    return (row.id, row.queue, row.task or "?", span, str(row.progress or ""))


def pause_line(stats: QueueStats) -> str:
    """Since when, by whom and why a queue is paused."""
    parts = [f"{stats.queue} is paused"]
    if stats.paused_at is not None:
        parts.append(stats.paused_at.strftime("since %Y-%m-%d %H:%M:%S UTC"))
    if stats.paused_by:
        parts.append(f"by {stats.paused_by}")
    return " ".join(parts) + (f": {stats.paused_why}" if stats.paused_why else "")


def outbox(alias: str) -> dict[str, Any]:
    """What waits in the outbox of a database, or the error in its place."""
    try:
        return relay.waiting(alias)._asdict()
    except Error as error:
        return {"database": alias, "error": str(error).strip()}


def outbox_line(facts: dict[str, Any]) -> str:
    """How many rows wait in an outbox, and for how long."""
    name = f"outbox of {facts['database']}"
    if "error" in facts:
        return f"{name}: cannot be read: {facts['error']}"
    oldest = facts["oldest_s"]
    age = "" if oldest is None else f", the oldest {inspector.span(oldest)}"
    return f"{name}: {facts['rows']:,} rows, {facts['jobs']:,} jobs{age}"


def worker_row(worker: Worker) -> tuple[str, ...]:
    """One line of the workers' table."""
    facts = {**worker.facts, "queues": " ".join(folded(worker.queues)) or "?"}
    cells = (facts.get(name, "?") for name in FACTS)
    return (worker.id, *cells, worker.beat_at.strftime("%H:%M:%S UTC"))


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns: the first to the left, numbers to the right."""
    rows = [tuple(plain(cell, CELL_MAX) for cell in row) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)

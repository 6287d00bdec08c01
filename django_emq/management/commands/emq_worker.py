"""Run a worker."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from django.core.management.base import CommandError

from django_emq import connections, doctor, inspector, registry, rights, scripts
from django_emq.conf import settings
from django_emq.exceptions import EmqError
from django_emq.worker import hard_limits
from django_emq.worker.child import make_page, run_child
from django_emq.worker.housekeeper import Housekeeper
from django_emq.worker.options import WorkerOptions, default_name, lease_of
from django_emq.worker.supervisor import Supervisor

from ._base import EmqCommand, all_parts, natural, positive, read_weights, seconds

HELP = """\
Run jobs of one or more queues. The first queue is served first: the next one has its turn only
while the first has nothing ready. With weights all have their turns.

  manage.py emq_worker                        the default queue, one process
  manage.py emq_worker mail reports           two queues, mail before reports
  manage.py emq_worker mail:3 default:1       three jobs of mail for each one of default
  manage.py emq_worker events.3               one partition of a queue that has PARTITIONS
  manage.py emq_worker --processes 4          four processes under one supervisor
  manage.py emq_worker --threads 8            for jobs that wait: eight at once in a process
  manage.py emq_worker --processes 0          everything in this process, for a debugger
  manage.py emq_worker --burst                run what is ready, then exit

The first SIGTERM or SIGINT stops it: no new jobs, running ones are finished within --grace,
the rest is handed back. A second one, or SIGQUIT, hands everything back at once. Exit status 0;
1 when the server belongs to another version; 75 when a worker without child processes has
reached --max-jobs or --max-rss and wants to be started anew.
"""


class Command(EmqCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "queues",
            nargs="*",
            metavar="queue",
            help="queues to serve, the first one first; QUEUE:N gives weights",
        )
        add("--processes", type=natural, default=1, metavar="N", help="child processes (default 1)")
        add(
            "--threads", type=positive, default=1, metavar="N", help="jobs at once in a process (1)"
        )
        add("--lease", type=seconds, metavar="S", help="seconds a claim holds (setting LEASE)")
        add(
            "--grace",
            type=seconds,
            default=30,
            metavar="S",
            help="seconds to finish at a stop (30)",
        )
        add("--burst", action="store_true", help="exit when no job is ready")
        add(
            "--max-jobs",
            type=natural,
            default=0,
            metavar="N",
            help="replace a process after N jobs (0: never)",
        )
        add(
            "--max-rss",
            type=natural,
            default=0,
            metavar="MB",
            help="replace it above MB (0: never)",
        )
        add("--name", metavar="NAME", help="name of this worker (host and pid)")
        add("--no-sweep", action="store_true", help="leave all sweeping to emq_reaper")
        add("--reload", action="store_true", help="restart when code changes (needs watchfiles)")
        add(
            "--health-file",
            default="",
            metavar="FILE",
            help="touched while the server answers",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self.log_to_console(options["verbosity"])
        if options["reload"]:
            self.reload()
            return
        names, weights = read_weights(options["queues"] or [settings().default_queue])
        worker = replace(self.read(options, names), weights=weights)
        try:
            rights.demand(connections.client(), worker.queues, rights.WORKER)
            worker = replace(worker, queues=all_parts(connections.client(), names, busy=True))
            scripts.register(connections.client(), worker.queues)
        except EmqError as error:
            raise CommandError(f"The worker cannot start: {error}") from error
        self.warn_of_eviction()
        if not registry.names() and not registry.finders:
            self.stderr.write("No task is registered: every job will fail as unknown.")
        status = self.run_here(worker) if not worker.processes else self.supervise(worker)
        if status:
            sys.exit(status)

    def warn_of_eviction(self) -> None:
        """Say at the start if the server may drop jobs when it is full."""
        try:
            facts = inspector.server(connections.client())
        except EmqError:
            return
        for one in doctor.eviction(facts):
            self.stderr.write(f"{one.id}: {one.msg} {one.hint}")
        if facts.policy == "unknown":
            self.say("The server does not tell its maxmemory-policy: unknown.")

    def read(self, options: dict[str, Any], names: tuple[str, ...]) -> WorkerOptions:
        """Turn the options of the command line into those of the worker."""
        queues = tuple(dict.fromkeys(part for name in names for part in settings().parts(name)))
        lease = lease_of(queues) if options["lease"] is None else options["lease"]
        if lease < 1:
            raise CommandError(f"--lease is {lease:g}. Use at least 1 second.")
        name = options["name"] or default_name()
        if not re.fullmatch(r"[\w.@-]{1,64}", name, re.ASCII):
            raise CommandError(f"--name is {name!r}. Use up to 64 of A-Z a-z 0-9 . _ @ -")
        return WorkerOptions(
            queues=queues,
            lease=lease,
            processes=options["processes"],
            threads=options["threads"],
            grace=options["grace"],
            burst=options["burst"],
            max_jobs=options["max_jobs"],
            max_rss_mb=options["max_rss"],
            name=name,
            sweep=not options["no_sweep"],
            health_file=options["health_file"],
        )

    def supervise(self, worker: WorkerOptions) -> int:
        """Run children under a supervisor."""
        connections.reset()  # nothing to inherit
        return Supervisor(worker, say=self.say).run()

    def run_here(self, worker: WorkerOptions) -> int:
        """Run everything in this process."""
        if hard_limits.may_kill():
            self.stderr.write(
                "--processes 0: kill_after has no effect, for there is no supervisor that could "
                "kill this process. Use --processes 1."
            )
        self.say(f"worker {worker.name} ready: {worker.served}")
        page = make_page(worker)
        house = Housekeeper(connections.client(), worker, page)
        thread = threading.Thread(target=house.run, name="emq-housekeeper", daemon=True)
        thread.start()
        try:
            return run_child(worker, page) or house.status
        finally:
            house.stop()
            thread.join(worker.grace)

    def reload(self) -> None:
        """Run this command again without --reload, and anew whenever a Python file changes."""
        try:
            import watchfiles
        except ImportError as error:
            raise CommandError(
                "--reload needs the package watchfiles: pip install 'django-emq[reload]'"
            ) from error
        command = [sys.executable, *(a for a in sys.orig_argv[1:] if a != "--reload")]
        watchfiles.run_process(
            ".",
            target=subprocess.list2cmdline(command),
            target_type="command",
            watch_filter=watchfiles.PythonFilter(),
            sigint_timeout=60,
        )

"""Show the demo's data and the example shop in the Django admin, on this machine only."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand

from library.crew import Crew

# Known to everybody, and good for nothing else: the server listens on the loopback address only.
NAME = PASSWORD = "demo"
WORKER = ("emq_worker", "orders", "mail", "reports", "--processes", "1")


class Command(BaseCommand):
    help = "Serve the Django admin of the test project on 127.0.0.1, with a user to log in as."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, metavar="N", help="port (8000)")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        user, _ = User.objects.get_or_create(
            username=NAME, defaults={"is_staff": True, "is_superuser": True}
        )
        user.set_password(PASSWORD)
        user.save()
        self.stdout.write(f"http://127.0.0.1:{options['port']}/admin/")
        self.stdout.write(f"user {NAME}, password {PASSWORD}; Ctrl-C ends it")
        self.stdout.flush()
        with TemporaryDirectory() as logs, Crew(Path(logs)) as crew:
            crew.hire("shop", *WORKER)
            call_command(
                "runserver", f"127.0.0.1:{options['port']}", use_reloader=False, verbosity=0
            )

"""The backend for Django's tasks API: the suite for backends, run by real workers."""

from django.core.management import call_command
from django.test import TestCase

from django_emq.conformance import TaskBackendSuite


class TestConformance(TaskBackendSuite, TestCase):
    """Every case, with a worker in this process."""

    def run_enqueued(self) -> None:
        # In threads of their own: the database of this one is in the middle of a transaction.
        options = ("--burst", "--processes", "0", "--threads", "2", "--no-sweep")
        call_command("emq_worker", *options, verbosity=0)

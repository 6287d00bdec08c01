"""For the tests of a project: its jobs on a real server, run in the test, crashed where it matters.

    class OrderTests(EmqMixin, TestCase):
        def test_a_receipt_is_sent(self):
            with self.emq.commits():
                place_order(42)
            self.emq.assert_enqueued(send_receipt, args=[42])
            self.emq.run_until_empty()

Nothing is pretended: the scripts are those of production, on the server of the alias, under a
prefix of the test's own. Only the worker is another one: it runs one job at a time, in the test's
thread, database connection and transaction.
"""

from __future__ import annotations

from django.test import SimpleTestCase

from .points import Crash
from .sandbox import Ran, Sandbox, Waiting

__all__ = ["Crash", "EmqMixin", "Ran", "Sandbox", "Waiting"]


class EmqMixin(SimpleTestCase):
    """For a test case, before its own class: ``self.emq`` is a `Sandbox` of each test."""

    emq: Sandbox

    def setUp(self) -> None:
        """Open the sandbox."""
        super().setUp()
        self.emq = self.enterContext(Sandbox())

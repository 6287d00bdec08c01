"""What a backend does with a job that runs, and what it says of it afterwards."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from asgiref.sync import async_to_sync

from ..compat import LOGGER, AnyResult, AnyTask, TaskResultStatus, task_finished, task_started
from . import tasks
from .base import Base

FAILURES: list[tuple[AnyTask, list[Any], str, str]] = [
    (tasks.fails, ["ouch"], "builtins.ValueError", "ouch"),
    (tasks.afails, ["ouch"], "builtins.ValueError", "ouch"),
    (tasks.fails_with_an_error_inside, [], "builtins.ValueError", "ValueError: inside"),
    (tasks.exits, [], "builtins.SystemExit", "SystemExit: 1"),
    (tasks.answers_what_is_no_json, [], "builtins.TypeError", "Unsupported type"),
]


class Running(Base):
    """Groups 3, 9 and 10 of the contract: jobs run."""

    def test_a_job_that_succeeds(self) -> None:
        """Plain or async: its value, its times, one attempt by one worker, no error."""
        for one in (tasks.echo, tasks.aecho):
            with self.subTest(one.name):
                result = self.ended(one.enqueue(1, a={"b": None}))
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                self.assertTrue(result.is_finished)
                self.assertEqual(result.return_value, [[1], {"a": {"b": None}}])
                self.assertEqual((result.errors, result.attempts), ([], 1))
                self.assertEqual(len(result.worker_ids), 1)
                self.in_order(result)

    def test_a_value_of_none(self) -> None:
        """None is a value."""
        self.assertIsNone(self.ended(tasks.nothing.enqueue()).return_value)

    def test_jobs_that_fail(self) -> None:
        """FAILED, with the class and the traceback of what was raised, whatever that was."""
        for one, args, path, words in FAILURES:
            with self.subTest(one.name):
                result = self.ended(one.enqueue(*args))
                self.assertEqual(result.status, TaskResultStatus.FAILED)
                self.assertTrue(result.is_finished)
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    _ = result.return_value
                (error,) = result.errors
                self.assertEqual(error.exception_class_path, path)
                self.assertEqual(f"builtins.{error.exception_class.__name__}", path)
                self.assertIn("Traceback", error.traceback)
                self.assertIn(words, error.traceback)
                self.assertEqual(result.attempts, 1)
                self.in_order(result)

    def in_order(self, result: AnyResult) -> None:
        """The times of a finished job follow each other, and are there to stay."""
        times = (result.enqueued_at, result.started_at, result.finished_at)
        assert times[0] and times[1] and times[2]
        self.assertLessEqual(times[1], times[2])
        self.assertEqual(result.last_attempted_at, result.started_at)
        if self.backend.supports_get_result:
            before = asdict(result)
            result.refresh()
            self.assertEqual(asdict(result), before)
            async_to_sync(result.arefresh)()
            self.assertEqual(asdict(result), before)

    def test_the_context(self) -> None:
        """It knows the attempt, which is the first, and the result, which is running."""
        self.assertEqual(self.ended(tasks.attempt.enqueue()).return_value, 1)
        result = self.ended(tasks.own_id.enqueue())
        self.assertEqual(result.return_value, result.id)
        for key, value in {"status": "RUNNING", "finished_at": "None", "errors": "[]"}.items():
            self.assertEqual(self.ended(tasks.state.enqueue(key)).return_value, value)

    def test_signals(self) -> None:
        """One as it starts and one as it ends, from the class of the backend."""
        told: list[tuple[str, Any, str, str]] = []

        def started(sender: Any, task_result: AnyResult, **_: Any) -> None:
            told.append(("started", sender, task_result.id, task_result.status))

        def finished(sender: Any, task_result: AnyResult, **_: Any) -> None:
            told.append(("finished", sender, task_result.id, task_result.status))

        for signal, receiver in ((task_started, started), (task_finished, finished)):
            signal.connect(receiver)
            self.addCleanup(signal.disconnect, receiver)
        for one, end in ((tasks.nothing, "SUCCESSFUL"), (tasks.anothing, "SUCCESSFUL")):
            told.clear()
            result = self.ended(one.enqueue())
            expected = [("started", "RUNNING"), ("finished", end)]
            sender = type(self.backend)
            self.assertEqual(told, [(name, sender, result.id, status) for name, status in expected])

    def test_log_lines(self) -> None:
        """INFO as it starts and ends, ERROR with the traceback for a failure; no None."""
        with self.assertLogs(LOGGER, "INFO") as logs:
            good = self.ended(tasks.nothing.enqueue())
            bad = self.ended(tasks.fails.enqueue("ouch"))
        lines = [
            (record.levelno, record.getMessage().partition(" state=")[2])
            for record in logs.records
            if good.id in record.getMessage() or bad.id in record.getMessage()
        ]
        self.assertEqual(
            lines,
            [
                (logging.INFO, "RUNNING"),
                (logging.INFO, "SUCCESSFUL"),
                (logging.INFO, "RUNNING"),
                (logging.ERROR, "FAILED"),
            ],
        )
        self.assertIn("ValueError: ouch", logs.output[-1])
        # A traceback shows lines of code, and these may well say None.
        said = "".join(line for line in logs.output if good.id in line)
        self.assertNotIn("None", said)

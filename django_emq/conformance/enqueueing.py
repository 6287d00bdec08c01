"""What a backend does with a job as it is enqueued, and what it answers about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from ..compat import (
    LOGGER,
    AnyResult,
    AnyTask,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_enqueued,
)
from . import tasks
from .base import Base

WAYS: dict[str, Callable[..., AnyResult]] = {
    "enqueue": lambda one, *args, **kwargs: one.enqueue(*args, **kwargs),
    "aenqueue": lambda one, *args, **kwargs: async_to_sync(one.aenqueue)(*args, **kwargs),
}
BAD: list[Any] = [{1, 2}, datetime(2030, 1, 1), object()]


class Enqueueing(Base):
    """Groups 2, 3, 6, 7, 9 and 12 of the contract: jobs are enqueued, and not run."""

    def enqueued(self) -> list[AnyResult]:
        """A list that gets each result whose enqueueing the backend tells of."""
        told: list[AnyResult] = []

        def note(task_result: AnyResult, **_: Any) -> None:
            told.append(task_result)

        task_enqueued.connect(note)
        self.addCleanup(task_enqueued.disconnect, note)
        self.kept = note  # a signal holds its receivers weakly
        return told

    def test_a_result_of_each_kind_of_task(self) -> None:
        """By both ways, of plain and async functions: what the answer says."""
        for name, way in WAYS.items():
            for one in (tasks.nothing, tasks.anothing):
                with self.subTest(way=name, task=one.name):
                    result = way(one, 1, "two", three=[3])
                    self.assertEqual(result.task, one)
                    self.assertEqual(result.args, [1, "two"])
                    self.assertEqual(result.kwargs, {"three": [3]})
                    self.assertEqual(result.backend, "default")
                    self.assertIsInstance(result.id, str)
                    self.assertLess(len(result.id), 64)
                    self.assertIsNotNone(result.enqueued_at)

    def test_a_job_that_waits(self) -> None:
        """READY, not finished, with no times, errors, attempts and no value."""
        if not self.backend.supports_get_result:
            return  # it has run already
        result = tasks.nothing.enqueue()
        for _ in range(2):
            self.assertEqual(result.status, TaskResultStatus.READY)
            self.assertFalse(result.is_finished)
            self.assertEqual(
                (result.started_at, result.last_attempted_at, result.finished_at), (None,) * 3
            )
            self.assertEqual((result.errors, result.worker_ids, result.attempts), ([], [], 0))
            with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                _ = result.return_value
            result.refresh()

    def test_the_backend_is_called_with_names(self) -> None:
        """enqueue takes task, args and kwargs, by position or by name."""
        for result in (
            self.backend.enqueue(task=tasks.echo, args=[1], kwargs={"a": 2}),
            self.backend.enqueue(tasks.echo, [1], {"a": 2}),
        ):
            self.assertEqual((result.args, result.kwargs), ([1], {"a": 2}))

    def test_results_are_read_again(self) -> None:
        """get_result, by both ways, equals the answer; refresh changes nothing."""
        if not self.backend.supports_get_result:
            with self.assertRaises(NotImplementedError):
                self.backend.get_result("123")
            return
        later = tasks.nothing
        if self.backend.supports_defer:
            later = later.using(run_after=timezone.now() + timedelta(days=1))
        if self.backend.supports_priority:
            later = later.using(priority=5)
        for one in (tasks.nothing, tasks.anothing, later):
            result = one.enqueue(1, a=[None, 1.5, {"b": "ü"}])
            before = asdict(result)
            aget: Callable[..., AnyResult] = async_to_sync(one.aget_result)
            reads: list[AnyResult] = [
                one.get_result(result.id),
                aget(result.id),
                self.backend.get_result(result.id),
                async_to_sync(self.backend.aget_result)(result.id),
            ]
            for found in reads:
                self.assertEqual(found, result)
                self.assertEqual(asdict(found), before)
            result.refresh()
            self.assertEqual(asdict(result), before)
            async_to_sync(result.arefresh)()
            self.assertEqual(asdict(result), before)

    def test_results_that_never_were(self) -> None:
        """Whatever the id looks like."""
        if not self.backend.supports_get_result:
            return
        result = tasks.nothing.enqueue()
        neighbour = result.id[:-1] + ("1" if result.id[-1] == "0" else "0")
        ids = ("123", "", get_random_string(32), neighbour, result.id + "0")
        for missing in ids:
            with self.subTest(missing), self.assertRaises(TaskResultDoesNotExist):
                self.backend.get_result(missing)
            with self.subTest(missing), self.assertRaises(TaskResultDoesNotExist):
                async_to_sync(tasks.nothing.aget_result)(missing)

    def test_a_result_of_another_task(self) -> None:
        """A task answers for its own jobs only."""
        if not self.backend.supports_get_result:
            return
        result = tasks.nothing.enqueue()
        with self.assertRaises(TaskResultMismatch):
            tasks.echo.get_result(result.id)
        with self.assertRaises(TaskResultMismatch):
            async_to_sync(tasks.echo.aget_result)(result.id)

    def test_arguments_become_json(self) -> None:
        """What the caller sees is what a worker would read."""
        result = tasks.nothing.enqueue((1, (2,)), range(2), b"bytes", a=({"b": (3,)},))
        self.assertEqual(result.args, [[1, [2]], [0, 1], "bytes"])
        self.assertEqual(result.kwargs, {"a": [{"b": [3]}]})
        self.assertEqual(json.loads(json.dumps(result.args)), result.args)

    def test_arguments_that_are_no_json(self) -> None:
        """A TypeError by both ways, and nothing is enqueued."""
        told = self.enqueued()
        for way in WAYS.values():
            for bad in BAD:
                with self.subTest(bad=bad), self.assertRaisesMessage(TypeError, "Unsupported type"):
                    way(tasks.nothing, bad)
                with self.subTest(bad=bad), self.assertRaisesMessage(TypeError, "Unsupported type"):
                    way(tasks.nothing, a=[bad])
        self.assertEqual(told, [])

    def test_a_task_is_validated_again(self) -> None:
        """When it is enqueued: the settings may differ from when it was declared."""
        with self.configured(QUEUES=["other"]):
            for way in WAYS.values():
                with self.assertRaisesMessage(InvalidTask, "Queue 'default' is not valid"):
                    way(tasks.nothing)

    def test_the_enqueueing_is_told(self) -> None:
        """One signal, and one DEBUG line with the id."""
        for way in WAYS.values():
            told = self.enqueued()
            with self.assertLogs(LOGGER, "DEBUG") as logs:
                result = way(tasks.nothing)
            lines = [record for record in logs.records if "enqueued" in record.getMessage()]
            self.assertEqual([record.levelname for record in lines], ["DEBUG"])
            self.assertIn(result.id, lines[0].getMessage())
            self.assertEqual([one.id for one in told], [result.id])

    def test_a_transaction_is_not_waited_for(self) -> None:
        """Enqueueing is immediate, inside atomic() too."""
        told = self.enqueued()
        with transaction.atomic():
            result = tasks.nothing.enqueue()
            self.assertEqual([one.id for one in told], [result.id])
            if self.backend.supports_get_result:
                self.assertEqual(tasks.nothing.get_result(result.id).id, result.id)

    def test_a_job_is_due_when_it_is_due(self) -> None:
        """run_after in the past is now; in the future the job waits."""
        if not self.backend.supports_defer:
            return
        past = self.later(datetime(2001, 1, 1, tzinfo=UTC)).enqueue()
        future = self.later(timezone.now() + timedelta(days=1)).enqueue()
        self.assertEqual(self.ended(past).status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(self.ended(future).status, TaskResultStatus.READY)

    def later(self, when: datetime) -> AnyTask:
        """A task that is due at an instant."""
        return tasks.nothing.using(run_after=when)

"""What a backend says to tasks as they are declared, changed and called."""

from __future__ import annotations

import inspect
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.utils import timezone

from ..compat import (
    AnyContext,
    InvalidTask,
    InvalidTaskBackend,
    TaskError,
    default_task_backend,
    task_backends,
)
from ..compat import (
    task as django_task,
)
from . import tasks
from .base import Base

task: Any = django_task  # called with what its signature does not allow, too
EXTRA = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(task).parameters.values())


def plain() -> None:
    """A function of a module, to be declared a task."""


async def aplain() -> None:
    """The same, as a coroutine function."""


def with_context(context: AnyContext) -> None:
    """Has the parameter that takes_context asks for."""


class Declaring(Base):
    """Groups 1, 4, 5, 8, 11, 13 and 14 of the contract: no job runs."""

    def test_the_default_backend_is_the_alias_default(self) -> None:
        """One backend, by both ways, that knows its alias and options."""
        self.assertEqual(default_task_backend, task_backends["default"])
        self.assertIs(task_backends["default"], task_backends["default"])
        self.assertEqual(self.backend.alias, "default")
        with self.configured(OPTIONS={"of": "nobody"}):
            self.assertEqual(self.backend.options, {"of": "nobody"})

    def test_a_healthy_configuration_has_no_findings(self) -> None:
        """check() answers nothing."""
        self.assertEqual(list(self.backend.check()), [])

    def test_a_backend_that_is_not_there(self) -> None:
        """An alias that TASKS does not have, and a class that cannot be imported."""
        with self.assertRaisesMessage(InvalidTaskBackend, "doesn't exist"):
            tasks.nothing.using(backend="nowhere")
        with (
            self.configured(BACKEND="nowhere.Backend"),
            self.assertRaisesMessage(InvalidTaskBackend, "Could not find backend"),
        ):
            tasks.nothing.get_backend()

    def test_a_task_has_a_name_and_a_path(self) -> None:
        """Those of its function."""
        self.assertEqual(tasks.nothing.name, "nothing")
        self.assertEqual(tasks.nothing.module_path, f"{tasks.__name__}.nothing")

    def test_a_task_is_called_where_it_stands(self) -> None:
        """call and acall work for both kinds of functions, and enqueue nothing."""
        for one in (tasks.echo, tasks.aecho):
            with self.subTest(one.name):
                self.assertEqual(one.call(1, a=2), [(1,), {"a": 2}])
                self.assertEqual(async_to_sync(one.acall)(1, a=2), [(1,), {"a": 2}])

    def test_a_task_is_no_function(self) -> None:
        """It cannot be called directly."""
        self.assertFalse(callable(tasks.nothing))

    def test_what_can_be_a_task(self) -> None:
        """A function of a module; no builtin, method, or function of a function."""
        self.assertIsInstance(task(plain), self.backend.task_class)

        def inner() -> None: ...

        for function in (any, self.setUp, inner, lambda: None):
            with self.assertRaisesMessage(InvalidTask, "module level"):
                task(function)

    def test_an_async_function_needs_support(self) -> None:
        """supports_async_task says whether one can be a task."""
        if self.backend.supports_async_task:
            self.assertEqual(task(aplain).func, aplain)
        else:
            with self.assertRaisesMessage(InvalidTask, "does not support async"):
                task(aplain)

    def test_a_context_needs_a_parameter(self) -> None:
        """The first one, of the name context."""
        self.assertTrue(task(takes_context=True)(with_context).takes_context)
        with self.assertRaisesMessage(InvalidTask, "first argument of 'context'"):
            task(takes_context=True)(plain)

    def test_queues_are_those_of_the_settings(self) -> None:
        """Another one is refused; with an empty list none is."""
        with self.configured(QUEUES=["default", "other"]):
            self.assertEqual(task(queue_name="other")(plain).queue_name, "other")
            with self.assertRaisesMessage(InvalidTask, "Queue 'third' is not valid"):
                task(queue_name="third")(plain)
            with self.assertRaises(InvalidTask):
                tasks.nothing.using(queue_name="third")
        with self.configured(QUEUES=[]):
            self.assertEqual(task(queue_name="third")(plain).queue_name, "third")

    def test_priorities(self) -> None:
        """Whole numbers from -100 to 100, where they are supported."""
        supported = self.backend.supports_priority
        for priority in (-100, 0, 100) if supported else (0,):
            self.assertEqual(task(priority=priority)(plain).priority, priority)
        bad: list[Any] = [-101, 101, 3.1] if supported else [1, 100]
        for wrong in bad:
            with self.subTest(priority=wrong), self.assertRaisesMessage(InvalidTask, "priority"):
                tasks.nothing.using(priority=wrong)

    def test_run_after(self) -> None:
        """An aware instant, where it is supported."""
        later = timezone.now() + timedelta(hours=1)
        if not self.backend.supports_defer:
            with self.assertRaisesMessage(InvalidTask, "does not support run_after"):
                tasks.nothing.using(run_after=later)
            return
        self.assertEqual(tasks.nothing.using(run_after=later).run_after, later)
        with self.assertRaisesMessage(InvalidTask, "must be an aware datetime"):
            tasks.nothing.using(run_after=datetime(2030, 1, 1))

    def test_using_makes_another_task(self) -> None:
        """With what was asked for and the rest as it was; the first one stays."""
        with self.configured(QUEUES=["default", "other"]):
            before = task(plain)
            other = before.using(queue_name="other")
            self.assertIsNot(before, other)
            self.assertEqual((before.queue_name, other.queue_name), ("default", "other"))
            self.assertEqual(other.func, before.func)
            if self.backend.supports_priority:
                third = other.using(priority=5)
                self.assertEqual((third.queue_name, third.priority), ("other", 5))
                self.assertEqual(tasks.urgent.using(queue_name="other").priority, 7)
            if self.backend.supports_defer:
                at = datetime(2040, 1, 1, tzinfo=UTC)
                self.assertEqual(other.using(run_after=at).using(priority=0).run_after, at)
            self.assertEqual(before.using(), before)
            self.assertEqual(hash(before.using()), hash(before))

    def test_further_options_reach_the_class_of_the_task(self) -> None:
        """Where Django's decorator takes them; one that the class does not know is refused."""
        with self.assertRaises(TypeError):
            task(no_such_option=5)(plain)
        if EXTRA:
            with self.assertRaises(TypeError):
                task(run_after=timezone.now())(plain)

    def test_pickles(self) -> None:
        """Task and result come back equal, where Django's own do."""
        result = tasks.nothing.using(priority=0).enqueue(1)
        if hasattr(tasks.nothing, "_reconstruct"):
            self.assertEqual(pickle.loads(pickle.dumps(tasks.nothing)), tasks.nothing)
            copy: Any = pickle.loads(pickle.dumps(result))
            self.assertEqual(copy.id, result.id)
            self.assertEqual(copy.task, result.task)

    def test_an_error_that_leads_nowhere(self) -> None:
        """The class of an error is looked up when it is asked for."""
        found = TaskError(exception_class_path="builtins.ValueError", traceback="")
        self.assertIs(found.exception_class, ValueError)
        with self.assertRaises(ImportError):
            _ = TaskError(exception_class_path="no.such.Error", traceback="").exception_class
        with self.assertRaisesMessage(ValueError, "does not reference a valid exception"):
            _ = TaskError(exception_class_path="math.ceil", traceback="").exception_class

"""The field report on Django's tasks API."""

import asyncio
from datetime import UTC, datetime

import pytest

from django_emq.compat import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_emq.conformance import tasks
from tests.probe import native
from tests.processes import Worker, wait_until
from tests.variant import variant


def test_B116_the_contract_of_django_tasks(probe, settings):
    """Each clause of it, seen from this process while a worker runs in another one."""
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "other"]}}
    past = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidTask, match="must be an aware datetime"):
        tasks.echo.using(run_after=datetime(2026, 1, 1))
    with pytest.raises(TaskResultDoesNotExist):
        tasks.echo.get_result("unknown")
    backend = task_backends["default"]
    assert {name: getattr(backend, name) for name in dir(backend) if "supports" in name} == {
        "supports_async_task": True,
        "supports_defer": True,
        "supports_get_result": True,
        "supports_priority": True,
    }

    held = native.wait_for_go.enqueue("held")
    changed = tasks.echo.using(
        run_after=past, queue_name="other", priority=5, backend="default"
    ).enqueue(("a", 1), key=(2,))
    awaited = asyncio.run(tasks.aecho.aenqueue("b"))
    failing = tasks.fails.enqueue("ouch")
    context = tasks.own_id.enqueue()
    results = [held, changed, awaited, failing, context]
    assert {result.status for result in results} == {TaskResultStatus.READY}
    assert (changed.args, changed.kwargs) == ([["a", 1]], {"key": [2]})

    def all_end():
        for result in results:
            result.refresh()
        return all(result.is_finished for result in results)

    with Worker("default", "other", "--processes", "0", **variant(TASKS=settings.TASKS)):
        probe.wait_for(1)
        held.refresh()
        assert (held.status, held.attempts) == (TaskResultStatus.RUNNING, 1)
        probe.path.write_text("go\n")
        wait_until(all_end)

    assert held.return_value == "held"
    assert changed.return_value == [[["a", 1]], {"key": [2]}]
    assert (changed.task.queue_name, changed.task.priority) == ("other", 5)
    assert changed.task.run_after == past
    assert awaited.return_value == [["b"], {}]
    assert context.return_value == context.id
    assert failing.status == TaskResultStatus.FAILED
    (error,) = failing.errors
    assert error.exception_class is ValueError
    assert error.traceback.endswith("ValueError: ouch\n")
    for result in results:
        assert result.attempts == len(result.worker_ids) == 1
        assert result == result.task.get_result(result.id)

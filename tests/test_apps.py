"""The Django application: what happens at start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.checks import registry
from django.test import override_settings


def test_the_checks_are_registered() -> None:
    """`manage.py check --tag emq` runs them, and `--tag caches` too."""
    for tag in ("emq", "caches"):
        modules = {
            check.__module__ for check in registry.registry.get_checks() if tag in check.tags
        }
        assert "django_emq.checks" in modules


def test_the_application_finds_the_tasks_of_all_apps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """tasks.py of an app is imported at start; an app without one is no error."""
    for name, tasks in {"emq_app_with": "found = True\n", "emq_app_without": None}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        if tasks:
            (tmp_path / name / "tasks.py").write_text(tasks)
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = ["django_emq", "emq_app_with", "emq_app_without"]
    import emq_app_with

    assert emq_app_with.tasks.found


def test_an_error_in_tasks_py_is_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without the tasks of an app would bury its jobs."""
    (tmp_path / "emq_app_broken").mkdir()
    (tmp_path / "emq_app_broken" / "__init__.py").touch()
    (tmp_path / "emq_app_broken" / "tasks.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"),
        override_settings(INSTALLED_APPS=["django_emq", "emq_app_broken"]),
    ):
        pass

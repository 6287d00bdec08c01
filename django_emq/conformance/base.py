"""What the parts of the suite share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.test.utils import override_settings

from ..compat import AnyResult, BaseTaskBackend, task_backends

if TYPE_CHECKING:
    from django.test import SimpleTestCase as Case
else:
    Case = object


class Base(Case):
    """Hooks of `TaskBackendSuite`."""

    def run_enqueued(self) -> None:
        """Run in this process whatever is ready, and return when nothing is.

        Nothing to do for a backend that runs tasks as they are enqueued.
        """

    @property
    def backend(self) -> BaseTaskBackend:
        """The backend of the alias 'default' as it is configured now."""
        return task_backends["default"]

    def configured(self, **changes: Any) -> override_settings:
        """The alias 'default' with other settings, for a block."""
        return override_settings(TASKS={"default": {**settings.TASKS["default"], **changes}})

    def ended(self, result: AnyResult) -> AnyResult:
        """The result, once all that is enqueued has run."""
        self.run_enqueued()
        if self.backend.supports_get_result:
            result.refresh()
        return result

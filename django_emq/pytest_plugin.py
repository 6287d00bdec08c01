"""The fixture `emq`, which pytest finds by itself wherever django_emq is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import Sandbox


@pytest.fixture
def emq() -> Iterator[Sandbox]:
    """The queues of one test, on the real server: a `django_emq.testing.Sandbox`."""
    from .testing import Sandbox  # Django is not set up yet when this module is imported

    with Sandbox() as sandbox:
        yield sandbox

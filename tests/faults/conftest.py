"""Each test here has a server of its own."""

from __future__ import annotations

import pytest
from private_server import Server


@pytest.fixture(autouse=True)
def _lone(lone: Server) -> None:
    """Its own server also for a test that does not name it."""

"""The tests' settings with a trail of everything, and a short time-out."""

from tests.settings import *

globals()["EMQ"] = {**EMQ, "TRAIL": "all", "SOCKET_TIMEOUT": 1}

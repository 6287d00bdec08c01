"""The tests' settings: a trail of everything, a short time-out, and a queue in partitions."""

from tests.settings import *

globals()["EMQ"] = {
    **EMQ,
    "TRAIL": "all",
    "SOCKET_TIMEOUT": 1,
    "QUEUES": {"events": {"PARTITIONS": 8}},
}

"""The test project's settings with what the shop needs; `make serve` runs on them."""

from testproject.settings import *

globals()["EMQ"] = {
    **EMQ,
    # An enqueue is a row in the transaction that it is part of; workers send what a crash left.
    "OUTBOX": True,
    "SCHEDULES": {"nightly": {"task": "orders.tasks.nightly_report", "cron": "5 0 * * *"}},
}

"""The test project's settings with an outbox, for the shop: `make serve` runs on them."""

from testproject.settings import *

# An enqueue is a row in the transaction that it is part of; workers send what a crash left there.
globals()["EMQ"] = {**EMQ, "OUTBOX": True}

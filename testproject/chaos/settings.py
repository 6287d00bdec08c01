"""What the processes of a chaos run have: a short time-out, and a trail of everything."""

from testproject.settings import *

# Short, so that a run of seconds sees what happens after it. The trail is what the server itself
# says of each settlement that it accepted; `chaos.ledger` copies it while the run goes on.
globals()["EMQ"] = {**EMQ, "SOCKET_TIMEOUT": 1, "TRAIL": "all"}

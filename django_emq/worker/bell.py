"""What a courier sleeps on: its bell, rung by runners and signals, and the wake of its queues.

One blocking pop on `wake` is sent and not waited for. Its socket is watched beside the bell, so
an idle worker sends nothing, and a job that arrives wakes it in the time of one reply.
"""

from __future__ import annotations

import random
import selectors
import socket
from contextlib import suppress
from time import monotonic
from typing import Any

from ..connections import Client
from ..keys import queue_keys
from .turns import Turns

SLACK = 3.0  # seconds after which an overdue reply means a dead link


class Bell:
    """A pair of sockets: bytes written by other threads, and by signals, end a `wait`.

    A byte of 0 is a ring; another is the number of a signal (`signal.set_wakeup_fd`).
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self._near, selectors.EVENT_READ)

    def ring(self) -> None:
        """End the wait that is under way, or the next one."""
        with suppress(BlockingIOError):  # thousands of rings wait already
            self._far.send(b"\0")

    @property
    def signal_fd(self) -> int:
        """For `signal.set_wakeup_fd`."""
        return self._far.fileno()

    def wait(self, seconds: float) -> tuple[bytes, bool]:
        """Sleep; answer the numbers of signals that came, and whether another socket is ready."""
        signals, ready = b"", False
        for key, _ in self.selector.select(max(seconds, 0.0)):
            if key.fileobj is self._near:
                signals = self._near.recv(4096).replace(b"\0", b"")
            else:
                ready = True
        return signals, ready

    def close(self) -> None:
        """Give the sockets back."""
        self.selector.close()
        self._near.close()
        self._far.close()


class Wake:
    """The blocking pop on `wake`: a connection of its own with at most one BLPOP under way.

    :param beat: seconds after which the server answers "nothing"; a random part is taken off.
    """

    def __init__(self, client: Client, turns: Turns, beat: float, bell: Bell) -> None:
        self._client = client
        self._turns = turns
        self._keys = {queue: queue_keys(queue, client.prefix).wake for queue in turns.queues}
        self._queues = {key.encode(): queue for queue, key in self._keys.items()}
        self._beat = beat * random.uniform(0.75, 1.0)
        self._selector = bell.selector
        self._connection: Any = None
        self._socket: Any = None
        self.overdue_at = 0.0  # when the link must be taken for dead; 0.0 while none is awaited

    def arm(self) -> None:
        """Send the pop, if none is under way. Raises an EmqError when that fails."""
        if self.overdue_at:
            return
        try:
            if self._connection is None:
                self._connection = self._client.raw.connection_pool.make_connection()
                self._connection.connect()
                self._socket = self._connection._sock
                self._selector.register(self._socket, selectors.EVENT_READ)
            # The server takes the first list that has something, so none may always be last.
            keys = [self._keys[queue] for queue in self._turns.all()]
            self._connection.send_command("BLPOP", *keys, f"{self._beat:.3f}")
            self.overdue_at = monotonic() + self._beat + SLACK
        except self._client.failures as error:
            self.drop()
            raise self._client.failed(error) from error

    def collect(self) -> str:
        """Read the reply that has come: which queue it woke for, or ''. Raises an EmqError."""
        self.overdue_at = 0.0
        try:
            reply = self._connection.read_response()
            return self._queues[reply[0]] if reply else ""
        except self._client.failures as error:
            self.drop()
            raise self._client.failed(error) from error

    def drop(self) -> None:
        """Close the connection; the next `arm` makes a new one."""
        self.overdue_at = 0.0
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket = None
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

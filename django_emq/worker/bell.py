"""What a courier sleeps on: its bell, rung by runners and signals, and the wake of its queues.

A blocking pop on `wake` is sent and not waited for. Its socket is watched beside the bell, so an
idle worker sends nothing, and a job that arrives wakes it in the time of one reply.
"""

from __future__ import annotations

import random
import selectors
import socket
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

from ..connections import Client
from ..exceptions import EmqError
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

    def wait(self, seconds: float) -> tuple[bytes, list[Any]]:
        """Sleep; answer the numbers of signals that came, and the pops whose sockets are ready."""
        signals, ready = b"", []
        for key, _ in self.selector.select(max(seconds, 0.0)):
            if key.fileobj is self._near:
                signals = self._near.recv(4096).replace(b"\0", b"")
            else:
                ready.append(key.data)
        return signals, ready

    def close(self) -> None:
        """Give the sockets back."""
        self.selector.close()
        self._near.close()
        self._far.close()


class Pop:
    """A blocking pop on the wakes that are on one server: at most one BLPOP under way."""

    def __init__(self, client: Client, keys: list[str], beat: float, bell: Bell) -> None:
        self._client = client
        self.keys = keys
        self._beat = beat
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
                self._connection = self._client.connection(self.keys[0])
                self._connection.connect()
                self._socket = self._connection._sock
                self._selector.register(self._socket, selectors.EVENT_READ, self)
            self._connection.send_command("BLPOP", *self.keys, f"{self._beat:.3f}")
            self.overdue_at = monotonic() + self._beat + SLACK
        except self._client.failures as error:
            self.drop()
            raise self._client.failed(error) from error

    def order(self, places: dict[str, int]) -> None:
        """Have the wakes in another order: the server takes the first that has something."""
        self.keys.sort(key=places.__getitem__)

    def collect(self) -> str | None:
        """Read the reply that has come: the key of the wake, if it was one. Raises an EmqError."""
        self.overdue_at = 0.0
        try:
            reply = self._connection.read_response()
        except self._client.failures as error:
            self.drop()
            raise self._client.failed(error) from error
        return reply[0].decode() if reply else None

    def drop(self) -> None:
        """Close the connection; the next `arm` makes a new one."""
        self.overdue_at = 0.0
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket = None
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None


class Wake:
    """The blocking pops on `wake`: one for all queues, or on a cluster one for each slot.

    :param beat: seconds after which the server answers "nothing"; a random part is taken off.
    """

    def __init__(self, client: Client, turns: Turns, beat: float, bell: Bell) -> None:
        self._client = client
        self._turns = turns
        self._queues = {queue_keys(queue, client.prefix).wake: queue for queue in turns.queues}
        self._keys = {queue: key for key, queue in self._queues.items()}
        beat *= random.uniform(0.75, 1.0)
        self._pops = [Pop(client, keys, beat, bell) for keys in client.apart([*self._queues])]

    @property
    def overdue_at(self) -> float:
        """When the first link must be taken for dead; 0.0 while nothing is awaited."""
        return min((pop.overdue_at for pop in self._pops if pop.overdue_at), default=0.0)

    def arm(self) -> None:
        """Send what is not under way. Raises an EmqError when that fails."""
        if not self._turns.fixed:  # none may always be the last
            places = {self._keys[queue]: at for at, queue in enumerate(self._turns.all())}
            for pop in self._pops:
                pop.order(places)
        self._client.each(self._pops, Pop.arm)

    def collect(self, ready: Iterable[Pop]) -> tuple[set[str], set[str]]:
        """Read the replies that have come: the queues of which a wake was taken, and those that
        were waited for until the end, in vain.

        Raises an EmqError.
        """
        woken: set[str] = set()
        ended: set[str] = set()

        def read(pop: Pop) -> None:
            if key := pop.collect():
                woken.add(self._queues[key])
            else:
                ended.update(self._queues[key] for key in pop.keys)

        try:
            self._client.each(ready, read)
        except EmqError:
            if not woken:  # else the pop that failed is sent again with the others
                raise
        return woken, ended

    def drop(self) -> None:
        """Close all connections."""
        for pop in self._pops:
            pop.drop()

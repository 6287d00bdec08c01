"""One caller that waits for one job: its name in the job's row, and a list of its own.

The list is read with a blocking pop, over a connection of the caller's own, whose time-out is
longer than the pop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from . import scripts
from .connections import Client
from .exceptions import OutcomeUnknown
from .keys import queue_keys

# Seconds after which a waiter asks again: a failover may have lost its name, or its word.
BEAT = 5.0
SLACK = 3.0  # seconds after which an overdue answer means a dead link


class Listener:
    """Waits for the end of one job. Closed by `drop`."""

    def __init__(self, client: Client, queue: str, job_id: str) -> None:
        self._client = client
        self._queue = queue
        self._job_id = job_id
        self._name = secrets.token_hex(8)
        self._key = queue_keys(queue, client.prefix).waiter(self._name)
        self._connection: Any = None

    def register(self) -> str:
        """Have the name noted; where the job is, as `scripts.wait` says. Raises ServerError."""
        return scripts.wait(self._client, self._queue, self._job_id, self._name)

    def arm(self, seconds: float) -> None:
        """Send the pop. Raises ServerError."""
        try:
            if self._connection is None:
                self._connection = self._client.connection(self._key)
                self._connection.socket_timeout = BEAT + SLACK
                self._connection.connect()
            self._connection.send_command("BLPOP", self._key, f"{max(seconds, 0.001):.3f}")
        except self._client.failures as error:
            raise self._client.failed(error) from error

    def collect(self) -> str:
        """Read the answer: the word that was left, '' for none. Raises ServerError."""
        try:
            reply = self._connection.read_response()
        except self._client.failures as error:
            raise self._client.failed(error) from error
        return reply[1].decode() if reply else ""

    @property
    def socket(self) -> Any:
        """What is readable when the answer has come."""
        return self._connection._sock

    def has_answer(self) -> bool:
        """Whether a readable socket has the answer, and not only something of TLS."""
        try:
            return bool(self._connection.can_read(0))
        except self._client.failures as error:
            raise self._client.failed(error) from error

    def drop(self) -> None:
        """Close the connection; the next `arm` makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


class Pop:
    """A step of a wait: until the answer of a listener is there, called or awaited."""

    def __init__(self, listener: Listener, seconds: float) -> None:
        self._listener = listener
        self._seconds = seconds

    def __call__(self) -> str:
        """Wait in this thread."""
        return self._listener.collect()

    async def awaited(self) -> str:
        """Wait on the running event loop, which goes on meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds + SLACK):
                while True:
                    ready: asyncio.Future[None] = loop.create_future()
                    number = self._listener.socket.fileno()
                    loop.add_reader(number, _settle, ready)
                    try:
                        await ready
                    finally:
                        loop.remove_reader(number)
                    if self._listener.has_answer():
                        return self._listener.collect()
        except TimeoutError as error:
            raise OutcomeUnknown("The link to the server is silent.") from error


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class Pause:
    """A step of a wait: some seconds, slept or awaited."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self) -> None:
        """Sleep in this thread."""
        time.sleep(self._seconds)

    async def awaited(self) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(self._seconds)

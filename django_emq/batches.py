"""Several scripts in one round trip, and round trips that overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from .connections import Client, Noted, Parse, Script
from .exceptions import EmqError


class Batch:
    """Several scripts in one round trip: the verbs of `scripts` take it in place of a Client.

    >>> batch = Batch(client)
    >>> scripts.complete(batch, "mail", [("JOB…", 1, "")])
    >>> scripts.claim(batch, "mail", …)
    >>> verdicts, claims = batch.send()
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.prefix = client.prefix
        self.trail_max, self.trail_all = client.trail_max, client.trail_all
        self.dead_max = client.dead_max
        self.calls: list[Noted] = []

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Any], parse: Parse) -> Any:
        """Note the call; its answer is in the list that `send` returns."""
        self.calls.append((script, self.client.words(keys, args), parse))

    def send(self) -> list[Any]:
        """Send all calls; return their answers in order, EmqErrors in place.

        The calls run in their order: scripts that are used for the first time are loaded before.
        What a server has forgotten since is answered with NOSCRIPT and did not run: those scripts
        are loaded, and those calls alone are sent again. Raises OutcomeUnknown when the connection
        broke.
        """
        client = self.client
        try:
            client.warm(self.calls)
            return self.answers(client.trip("EVALSHA", self.calls))
        except client.failures as error:
            raise client.failed(error) from error

    def commands(self) -> list[tuple[Any, ...]]:
        """What `send` sends; its replies are for `answers`."""
        return [("EVALSHA", script.sha, *words) for script, words, _ in self.calls]

    def answers(self, replies: list[Any]) -> list[Any]:
        """What `send` returns, made of the replies; sends again what met a cold server."""
        client = self.client
        for command in ("EVALSHA", "EVAL"):  # EVAL where somebody empties the cache meanwhile
            cold = [i for i, reply in enumerate(replies) if isinstance(reply, client.noscript)]
            if not cold:
                break
            calls = [self.calls[i] for i in cold]
            client.load(calls)
            again = client.trip(command, calls)
            for i, reply in zip(cold, again, strict=True):
                replies[i] = reply
        return [
            client.failed(reply) if isinstance(reply, Exception) else parse(reply)
            for reply, (_, _, parse) in zip(replies, self.calls, strict=True)
        ]


class Line:
    """A connection of one's own, on which batches are posted and collected apart.

    The server works on what is posted while the answers before are read. All methods raise
    OutcomeUnknown when the connection breaks: nothing is known then of all that was posted and
    not collected, and the next `post` makes a new connection.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection: Any = None
        self._posted: deque[Batch] = deque()
        self._refused = False  # a call, by a server that may have been demoted since we connected

    def post(self, batch: Batch) -> None:
        """Send the calls of a batch."""
        client = self._client
        if self._refused and not self._posted:
            self.drop()
        try:
            client.warm(batch.calls)
            if self._connection is None:
                self._connection = client.connection("")
                self._connection.connect()
            packed = self._connection.pack_commands(batch.commands())
            # A health check would read a reply that belongs to a batch.
            self._connection.send_packed_command(packed, check_health=False)
            self._posted.append(batch)
        except client.failures as error:
            self.drop()
            raise client.failed(error) from error

    def collect(self) -> list[Any]:
        """Wait for the answers of the batch that was posted first: what `Batch.send` returns."""
        batch = self._posted.popleft()
        try:
            answers = batch.answers([self._read() for _ in batch.calls])
        except self._client.failures as error:
            self.drop()
            raise self._client.failed(error) from error
        self._refused = self._refused or any(isinstance(one, EmqError) for one in answers)
        return answers

    @property
    def in_the_air(self) -> int:
        """How many batches the server may be working on."""
        return len(self._posted)

    def _read(self) -> Any:
        try:
            return self._connection.read_response()
        except self._client.refusal as error:
            return error

    def drop(self) -> None:
        """Close the connection; the next `post` makes a new one."""
        self._posted.clear()
        self._refused = False
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None


class InTurn(Line):
    """A line that sends a batch when its answers are collected."""

    in_the_air = 0

    def post(self, batch: Batch) -> None:
        """Keep a batch until its turn."""
        self._posted.append(batch)

    def collect(self) -> list[Any]:
        """Send the batch that was posted first."""
        try:
            return self._posted.popleft().send()
        except EmqError:
            self.drop()  # those behind it, too: nobody waits for them any more
            raise


def line_of(client: Client) -> Line:
    """A line to the server of a client."""
    return InTurn(client) if client.shards else Line(client)

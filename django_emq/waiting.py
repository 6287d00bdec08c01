"""A call that waits until replicas have what it wrote (WAIT), on its own connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .connections import Client, Parse, Script

TRIES = 4  # cold scripts, or a slot that has moved: what is answered so did not run
REDIRECTED = {"AskError", "MovedError"}


class Waiting:
    """The verbs of `scripts` take it in place of a Client.

    :param replicas: how many replicas shall have it. :param seconds: how long that may take.
    :ivar acknowledged: how many had the last call when the server answered.
    :ivar why: why none has, where the server refused to wait.
    :ivar producer: who sent it, kept for a repeat.
    """

    def __init__(self, client: Client, replicas: int, seconds: float) -> None:
        self.client = client
        self.replicas = replicas
        self.seconds = seconds
        self.acknowledged = 0
        self.why = ""
        self.producer = ""
        self.prefix = client.prefix
        self.trail_max, self.trail_all = client.trail_max, client.trail_all
        self.dead_max = client.dead_max

    @property
    def is_short(self) -> bool:
        """Whether fewer replicas have it than shall."""
        return self.acknowledged < self.replicas

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Any], parse: Parse) -> Any:
        """Run a script, and wait for the replicas in the same round trip; raises an EmqError."""
        client = self.client
        words = client.words(keys, args)
        try:
            for number in range(TRIES):
                evalsha = number < TRIES - 1
                name = script.sha if evalsha else script.source
                pipeline = client.at(keys[0]).pipeline(transaction=False)
                pipeline.execute_command("EVALSHA" if evalsha else "EVAL", name, *words)
                pipeline.execute_command("WAIT", self.replicas, int(self.seconds * 1000))
                reply, count = pipeline.execute(raise_on_error=False)
                if isinstance(reply, client.noscript):
                    client.load([(script, words, parse)])
                elif type(reply).__name__ in REDIRECTED:
                    client.failed(reply)
                else:
                    break
        except client.failures as error:
            raise client.failed(error) from error
        if isinstance(reply, Exception):
            raise client.failed(reply)
        refused = isinstance(count, Exception)
        self.acknowledged, self.why = (0, str(count)) if refused else (count, "")
        return parse(reply)

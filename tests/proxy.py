"""A proxy in front of a server's unix socket that loses what a test tells it to lose."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from django_emq.scripts import SCRIPTS


class Act(Enum):
    """What is done with a request."""

    PASS = "pass it on, and its reply back"
    CUT_BEFORE = "close the connection; the server never sees the request"
    CUT_AFTER = "let the server carry it out, and close the connection in place of the reply"
    SWALLOW = "let the server carry it out, and never answer on this connection again"


class Rule:
    """What to do with the next calls of a script."""

    def __init__(self, verb: str, act: Act, times: int, then: Callable[[], None] | None) -> None:
        self.mark = SCRIPTS[verb].sha.encode()
        self.act = act
        self.left = times
        self.then = then
        self.fired = threading.Event()  # set once the rule has been used up

    def judge(self, data: bytes) -> Act:
        if not self.left or self.mark not in data:
            return Act.PASS
        self.left -= 1
        if self.then is not None:
            self.then()
        if not self.left:
            self.fired.set()
        return self.act


class Proxy:
    """Passes everything on at first. `url` is what django-redis takes as LOCATION."""

    def __init__(self, upstream: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="emq-proxy-")
        self._path = str(Path(self._folder.name) / "s")
        self.url = f"unix://{self._path}?db=0"
        self._upstream = upstream
        self._rules: list[Rule] = []
        self._refused = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def on(
        self, verb: str, act: Act, *, times: int = 1, then: Callable[[], None] | None = None
    ) -> Rule:
        """Do this with the next `times` requests that call the script; `then` runs with each."""
        rule = Rule(verb, act, times, then)
        self._rules.append(rule)
        return rule

    def refuse(self) -> None:
        """Cut all connections and refuse new ones, until `allow`."""
        self._refused = True
        self._loop.call_soon_threadsafe(self._cut)

    def allow(self) -> None:
        """Pass on again."""
        self._refused = False

    def freeze(self) -> None:
        """Pass nothing on and close nothing, as a network that drops packets."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        """Reset all connections, and pass on what comes over new ones."""

        def reset() -> None:
            self._cut()
            self._flows.set()

        self._loop.call_soon_threadsafe(reset)

    def lead_to(self, upstream: str) -> None:
        """New connections go to the server on this socket; the others stay where they are."""
        self._upstream = upstream

    def _cut(self) -> None:
        for link in self._links:
            link.cancel()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refused:
            writer.transport.abort()
            return
        up_reader, up_writer = await asyncio.open_unix_connection(self._upstream)
        act = Act.PASS

        async def requests() -> None:
            nonlocal act
            while data := await reader.read(1 << 20):
                await self._flows.wait()
                for rule in self._rules:
                    if act is Act.PASS:
                        act = rule.judge(data)
                if act is Act.CUT_BEFORE:
                    return
                up_writer.write(data)

        async def replies() -> None:
            while data := await up_reader.read(1 << 20):
                await self._flows.wait()
                if act is Act.CUT_AFTER:
                    return
                if act is Act.PASS:
                    writer.write(data)

        tasks = {asyncio.ensure_future(requests()), asyncio.ensure_future(replies())}
        self._links |= tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._links -= tasks
            writer.transport.abort()
            up_writer.transport.abort()

    def __enter__(self) -> Self:
        self._thread.start()
        serve = asyncio.start_unix_server(self._link, self._path, limit=1 << 20)
        self._server = asyncio.run_coroutine_threadsafe(serve, self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._folder.cleanup()

    async def _close(self) -> None:
        self._server.close()
        self._refused = True
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

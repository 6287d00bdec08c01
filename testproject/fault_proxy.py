"""A proxy in front of a server's unix socket that loses, delays and cuts what it is told to."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self


class Act(Enum):
    """What is done with a request."""

    PASS = "pass it on, and its reply back"
    CUT_BEFORE = "close the connection; the server never sees the request"
    CUT_AFTER = "let the server carry it out, and close the connection in place of the reply"
    SWALLOW = "let the server carry it out, and never answer on this connection again"


class FaultProxy:
    """Passes everything on at first. `url` is what django-redis takes as LOCATION.

    :ivar delay: seconds that each request waits before it is passed on.
    """

    def __init__(self, upstream: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="emq-proxy-")
        self._path = str(Path(self._folder.name) / "s")
        self.url = f"unix://{self._path}?db=0"
        self.delay = 0.0
        self._upstream = upstream
        self._refused = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._links: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def judge(self, data: bytes) -> Act:
        """What is done with a request. The base passes all on."""
        return Act.PASS

    def refuse(self) -> None:
        """Cut all connections and refuse new ones, until `allow`."""
        self._refused = True
        self.cut()

    def allow(self) -> None:
        """Pass on again."""
        self._refused = False

    def cut(self) -> None:
        """Close all connections, in whatever they are doing; new ones are taken."""
        self._loop.call_soon_threadsafe(self._cut)

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

    def half_close(self) -> None:
        """Say to all clients that nothing more will come; what they send is still passed on."""
        self._loop.call_soon_threadsafe(self._end)

    def _cut(self) -> None:
        for link in self._links:
            link.cancel()

    def _end(self) -> None:
        for client in self._clients:
            with suppress(OSError, RuntimeError):  # it has gone meanwhile
                client.write_eof()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refused:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self._upstream)
        except OSError:  # the server is away
            writer.transport.abort()
            return
        if self._refused:  # said while we were connecting
            writer.transport.abort()
            up_writer.transport.abort()
            return
        act = Act.PASS

        async def requests() -> None:
            nonlocal act
            while data := await reader.read(1 << 20):
                await self._flows.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if act is Act.PASS:
                    act = self.judge(data)
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
        self._clients.add(writer)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._links -= tasks
            self._clients.discard(writer)
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
        self._refused = True
        self._server.close()
        # A link lets go of its two connections when what it passes on is cancelled; cancelled
        # itself it would leave them open, for a garbage collection in some later test to find.
        while True:
            await asyncio.sleep(0)  # what has been accepted becomes a link, what was cut is closed
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                return
            self._cut()
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)

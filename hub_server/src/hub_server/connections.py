"""Connections and request bodies with limits and timeouts, so that no slow client holds a thread or a file.

A client may be silent for ``patience`` seconds in a head or an answer, and for five times as long in a body, which must
average 1,000 bytes a second. Bodies are received whole before a handler: up to 256 KiB in memory, else in a file of
``tmp/``, hashed on the way. uvicorn closes idle connections; it does not limit half-sent heads and unread answers.
"""

import asyncio
import time
from contextlib import suppress

import anyio
import h11
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from hub_server.storage.blobs import Body
from hub_server.storage.errors import HubError

_MOST_CONNECTIONS, _OPEN_FILES, _OTHER_FILES = 1000, 4096, 512
SLOWEST = 1000  # bytes in a second, once the first seconds of patience are over
_SILENCE = 5  # times the patience, in a body that is fast enough on the whole: a proxy may send it in bursts
_DRAIN_BYTES = 16 << 20


class TimedConnection(H11Protocol):
    """One client's connection. ``patience``: timeout in seconds for its headers, and for progress of an answer."""

    patience, most = 60.0, _MOST_CONNECTIONS
    connections: set["TimedConnection"]  # type: ignore[assignment]  # all of this class here

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """At the limit, close the connection that has been idle longest."""
        super().connection_made(transport)
        self._heard = self.loop.time()
        self._head_since: float | None = self._heard
        self._pauses, self._unread = 0, (0, 0)
        self._clock = self.loop.call_later(self.patience, self._check)
        if len(self.connections) > self.most:
            waiting = [other for other in self.connections if other.waits_for_client()]
            min(waiting, key=lambda other: other._heard).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note when a head begins."""
        self._heard = self.loop.time()
        super().data_received(data)
        if self._answering():
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self._heard

    def on_response_complete(self) -> None:
        """From here on the connection is idle, until the next head begins."""
        self._head_since = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say so, or close where HTTP does not allow it: when an answer has begun, and to HEAD."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def pause_writing(self) -> None:
        """Count that the client reads more slowly than we write."""
        self._pauses += 1
        super().pause_writing()

    def waits_for_client(self) -> bool:
        """Whether the client is the next to act: to send a head or a body, or to read."""
        return not self._answering() or self.cycle.more_body or self.transport.get_write_buffer_size() > 0

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _check(self) -> None:
        unread = self.transport.get_write_buffer_size(), self._pauses
        stuck = unread[0] > 0 and unread == self._unread
        late = self._head_since is not None and self.loop.time() - self._head_since >= self.patience
        if stuck or late:
            self.transport.abort()
            return
        self._unread = unread
        self._clock = self.loop.call_later(self.patience, self._check)


def connection_class(patience: float) -> type[TimedConnection]:
    """A connection class with this timeout, and as many connections as there are file descriptors for."""
    allowed = _OPEN_FILES
    with suppress(ModuleNotFoundError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = max(soft, min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    most = max(16, min(_MOST_CONNECTIONS, (allowed - _OTHER_FILES) // 2))  # each may hold a file open, too
    return type("Connection", (TimedConnection,), {"patience": patience, "most": most})


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class BodyReader:
    """Receives a request body with a timeout: 408 for a client that stops in the middle or is too slow."""

    def __init__(self, receive: Receive, patience: float):
        self._receive, self._patience = receive, patience
        self._started, self._size, self._more = time.monotonic(), 0, True

    async def into(self, body: Body, limit: int, threads: anyio.CapacityLimiter) -> None:
        """Fill ``body``; 413 as soon as it has more than ``limit`` bytes."""
        while chunk := await self._next():
            if self._size > limit:
                raise HubError(413, f"The request body is larger than {limit} bytes")
            if body.add(chunk):
                await anyio.to_thread.run_sync(body.write, limiter=threads)

    async def drain(self) -> None:
        """Read the rest of a body of ordinary size: a client that still sends does not read the answer."""
        most = self._size + _DRAIN_BYTES
        with suppress(HubError):
            while self._size < most and await self._next():
                pass

    async def _next(self) -> bytes:
        """The next bytes, none after the last."""
        while self._more:
            message = await self._in_time()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._more, chunk = message.get("more_body", False), message.get("body", b"")
            self._size += len(chunk)
            if chunk:
                return bytes(chunk)
        return b""

    async def _in_time(self) -> Message:
        allowed = self._started + self._patience + self._size / SLOWEST - time.monotonic()
        try:
            async with asyncio.timeout(min(allowed, _SILENCE * self._patience)):
                return await self._receive()
        except TimeoutError as error:
            self._more = False
            slow = f"less than {SLOWEST} bytes a second, or nothing for {_SILENCE * self._patience:g} seconds"
            raise HubError(408, f"The request body came too slowly: {slow}", headers={"Connection": "close"}) from error

"""Connections and request bodies with limits and timeouts: no slow client holds a thread or file.

A client may be silent for ``patience`` seconds in a head or an answer, and for five times as long
in a body, which must average 1,000 bytes a second. Bodies are received whole before a handler: up
to 256 KiB in memory, else in a file of ``tmp/``, hashed on the way. uvicorn closes idle
connections; it does not limit half-sent heads and unread answers.
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

_MOST_CONNECTIONS = 1000
_LEAST_CONNECTIONS = 16  # even with a lower limit of open files
_MANY_OPEN_FILES = 4096  # enough for all connections
_OTHER_OPEN_FILES = 512  # besides connections and the files that these read or write
LEAST_BYTES_PER_SECOND = 1000  # of a body, after the first seconds of patience
# A body may pause for this many times the patience, because a proxy may send a body in bursts.
_PAUSE_PATIENCES = 5
_DRAIN_BYTES = 16 << 20  # received of a refused body, so that its client reads the answer


class TimedConnection(H11Protocol):
    """One client's connection, with a timeout for the head of a request and for an answer.

    Attributes:
        patience: the timeout in seconds; an answer must make progress within the timeout.
        most: the most connections of the server.
        connections: all open connections of the server.
    """

    patience = 60.0
    most = _MOST_CONNECTIONS
    connections: set["TimedConnection"]  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer; beyond ``most`` connections, close the one that was idle longest."""
        super().connection_made(transport)
        self._last_receipt = self.loop.time()
        self._head_since: float | None = self._last_receipt  # None while no head is incomplete
        self._pauses = 0
        self._unread = (0, 0)  # (bytes of the answer that wait for the client, pauses)
        self._timer = self.loop.call_later(self.patience, self._check_progress)
        if len(self.connections) > self.most:
            # The new connection is idle, too, so the list has at least one.
            idle = [connection for connection in self.connections if connection.is_idle()]
            min(idle, key=lambda connection: connection._last_receipt).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and record the time when the head of a request begins."""
        self._last_receipt = self.loop.time()
        super().data_received(data)
        if self._is_answering():
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self._last_receipt

    def on_response_complete(self) -> None:
        """End an answer: the connection is idle until the next head begins."""
        self._head_since = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to a malformed request; after an answer has begun, close the connection."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def pause_writing(self) -> None:
        """Stop writing until the client has read, and count the pause as progress."""
        self._pauses += 1
        super().pause_writing()

    def is_idle(self) -> bool:
        """Return whether the server waits for the client: for a head, a body, or a read.

        A connection that is being closed is not idle.
        """
        if self.transport.is_closing():
            return False
        return (
            not self._is_answering()
            or self.cycle.more_body
            or self.transport.get_write_buffer_size() > 0
        )

    def _is_answering(self) -> bool:
        """Return whether a request has begun whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _check_progress(self) -> None:
        """Close the connection if its head is late or its answer makes no progress.

        The timer calls this every ``patience`` seconds. An answer makes no progress when it waits
        for the client with as many bytes as at the last call, and no writing was paused since.
        """
        unread_bytes = self.transport.get_write_buffer_size()
        unread = (unread_bytes, self._pauses)
        is_stuck = unread_bytes > 0 and unread == self._unread
        is_late = (
            self._head_since is not None and self.loop.time() - self._head_since >= self.patience
        )
        if is_stuck or is_late:
            self.transport.abort()
            return
        self._unread = unread
        self._timer = self.loop.call_later(self.patience, self._check_progress)


def make_connection_class(patience: float) -> type[TimedConnection]:
    """Return a connection class with the timeout ``patience`` in seconds, and with a limit.

    The limit of connections fits the limit of open files, which this function raises where the
    system allows it. Each connection takes up to two files: its socket and one that it reads or
    writes.
    """
    open_files = _raise_open_file_limit() - _OTHER_OPEN_FILES
    most = max(_LEAST_CONNECTIONS, min(_MOST_CONNECTIONS, open_files // 2))
    return type("Connection", (TimedConnection,), {"patience": patience, "most": most})


def _raise_open_file_limit() -> int:
    """Raise this process's limit of open files to ``_MANY_OPEN_FILES`` where the system allows it.

    Return the limit; ``_MANY_OPEN_FILES`` where there is none. A higher limit stays.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return _MANY_OPEN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:  # a negative number
        return _MANY_OPEN_FILES
    allowed = _MANY_OPEN_FILES
    if hard != resource.RLIM_INFINITY:
        allowed = min(hard, _MANY_OPEN_FILES)
    limit = max(soft, allowed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class BodyReader:
    """Receives the body of a request; raises HubError 408 for a client that stops or is too slow.

    ``patience``: the timeout in seconds (see the module).
    """

    def __init__(self, receive: Receive, patience: float):
        self._receive = receive
        self._patience = patience
        self._started = time.monotonic()
        self._size = 0
        self._has_more = True

    async def read_into(self, body: Body, limit: int, threads: anyio.CapacityLimiter) -> None:
        """Receive the whole body into ``body``.

        Raises HubError 413 beyond ``limit`` bytes, HubError 408, ClientGone, and OSError for a full
        disk. ``threads``: the limiter of the threads that write the body to the disk.
        """
        while chunk := await self._read_chunk():
            if self._size > limit:
                raise HubError(413, f"The request body is larger than {limit} bytes")
            if body.add(chunk):
                await anyio.to_thread.run_sync(body.write, limiter=threads)

    async def drop_rest(self) -> None:
        """Receive and drop the rest of a body, up to ``_DRAIN_BYTES``.

        A client reads no answer while it sends. A body that comes too slowly ends this without an
        error. Raises ClientGone.
        """
        most_bytes = self._size + _DRAIN_BYTES
        with suppress(HubError):  # the caller already has a refusal to answer
            while self._size < most_bytes and await self._read_chunk():
                pass

    async def _read_chunk(self) -> bytes:
        """Return the next bytes; empty after the last. Raises ClientGone, and HubError 408."""
        while self._has_more:
            message = await self._receive_in_time()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._has_more = message.get("more_body", False)
            chunk = message.get("body", b"")
            self._size += len(chunk)
            if chunk:
                return bytes(chunk)
        return b""

    async def _receive_in_time(self) -> Message:
        """Return the next ASGI message. Raises HubError 408 for a client that is too slow."""
        deadline = self._started + self._patience + self._size / LEAST_BYTES_PER_SECOND
        longest_pause = _PAUSE_PATIENCES * self._patience
        try:
            async with asyncio.timeout(min(deadline - time.monotonic(), longest_pause)):
                return await self._receive()
        except TimeoutError as error:
            self._has_more = False
            limits = (
                f"less than {LEAST_BYTES_PER_SECOND} bytes a second, "
                f"or nothing for {longest_pause:g} seconds"
            )
            problem = f"The request body came too slowly: {limits}"
            raise HubError(408, problem, headers={"Connection": "close"}) from error

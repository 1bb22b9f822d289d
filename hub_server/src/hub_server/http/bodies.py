"""Request bodies: received by the event loop, so that no thread waits for a slow client.

What has come of a body lies in memory up to 256 KiB, else in a file of ``tmp/``, hashed on the way. A handler meets it
whole. A client may say nothing for ``patience`` seconds, and may not be slower on the whole than 1,000 bytes a second.
"""

import asyncio
import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
from starlette.types import Message, Receive

from hub_server.storage.blobs import Blob
from hub_server.storage.refusals import HubError

SLOWEST = 1000  # bytes in a second, once the first seconds of patience are over
_PIECE = 256 << 10
_DRAIN_BYTES = 16 << 20


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Body:
    """A request body, whole or as far as it was received."""

    def __init__(self, folder: Path):
        self._path, self.on_disk, self._pending = folder / uuid.uuid4().hex, False, bytearray()
        self._digest, self.size = hashlib.sha256(), 0

    def add(self, chunk: bytes) -> bool:
        """Buffer the next bytes; whether it is time to ``write`` them to disk."""
        self._pending += chunk
        self.size += len(chunk)
        return len(self._pending) >= _PIECE

    def write(self) -> None:
        """Append the buffer to the temporary file."""
        self._digest.update(self._pending)
        with self._path.open("ab") as file:
            self.on_disk = True
            file.write(self._pending)
        self._pending = bytearray()

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in pieces."""
        if self.on_disk:
            with self._path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    yield chunk
        if self._pending:
            yield bytes(self._pending)

    def move(self, path: Path) -> Blob:
        """Leave the content as the file ``path``; the body is empty then."""
        self.write()
        self._path.replace(path)
        self.on_disk = False
        return Blob(self._digest.hexdigest(), self.size)

    def drop(self) -> None:
        """Remove the file of a content that is ``on_disk``."""
        self._path.unlink(missing_ok=True)


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
        """Take the rest of a body of ordinary size: a client that is still sending does not read the answer.

        One that stops gets the answer that there is, after the same patience.
        """
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
            async with asyncio.timeout(min(allowed, self._patience)):
                return await self._receive()
        except TimeoutError as error:
            self._more = False
            slow = f"less than {SLOWEST} bytes a second, or nothing for {self._patience:g} seconds"
            raise HubError(408, f"The request body came too slowly: {slow}", headers={"Connection": "close"}) from error

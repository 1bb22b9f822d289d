"""Connections with limits: timeouts of half-sent headers and unread answers, and how many may be open.

uvicorn waits for ever for the rest of a request's head and for a client that does not read its answer. Bodies have
their own clock (``bodies``), idle connections uvicorn's.
"""

import asyncio
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_CONNECTIONS, _OPEN_FILES, _OTHER_FILES = 1000, 4096, 512


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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(soft, min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    most = max(16, min(_MOST_CONNECTIONS, (allowed - _OTHER_FILES) // 2))  # each may hold a file open, too
    settings: dict[str, Any] = {"patience": patience, "most": most}
    return type("Connection", (TimedConnection,), settings)

"""The ASGI application: checks the host, finds the handler, runs it in a thread, words every failure.

Handlers are plain functions. They read the body through an iterator that fetches each chunk from the event loop, so
that a large upload flows to the disk without ever being in memory.
"""

import errno
import logging
import sqlite3
import time
import uuid
from collections.abc import Iterator

import anyio
from pydantic import ValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from hub.local.access import authenticate
from hub.local.call import Call, Hub
from hub.local.replies import HubError
from hub.local.routes import match

log = logging.getLogger("hub.local")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DRAIN_BYTES = 16 << 20


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class HubApp:
    """Serves ``hub`` under the given ``Host`` values and no others, so that no web page can reach it by a DNS trick."""

    def __init__(self, hub: Hub, hosts: set[str]):
        self._hub, self._hosts = hub, hosts
        # A slow upload keeps its thread; apart from the threads that feed downloads, so that it cannot starve them.
        self._threads = anyio.CapacityLimiter(64)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        started, headers = time.monotonic(), Headers(scope=scope)
        try:
            response = await anyio.to_thread.run_sync(self._answer, scope, receive, limiter=self._threads)
        except ClientGone:
            return
        request_id = headers.get("x-request-id") or headers.get("x-amzn-trace-id") or str(uuid.uuid4())
        response.headers["X-Request-Id"] = request_id
        elapsed, received = (time.monotonic() - started) * 1000, headers.get("content-length", "0")

        async def logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The path alone: query strings carry upload signatures.
                request = f"{scope['method']} {scope['raw_path'].decode('ascii', 'replace')}"
                log.info("%s %d %.0f ms, %s bytes received", request, message["status"], elapsed, received)
            await send(message)

        await response(scope, receive, logged)

    def _answer(self, scope: Scope, receive: Receive) -> Response:
        chunks = _body_chunks(receive)
        try:
            answer = self._handle(scope, chunks)
            return answer if isinstance(answer, Response) else JSONResponse(answer)
        except HubError as error:
            refusal = error
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"])) or "the request body"
            refusal = HubError(400, f"{place}: {problem['msg']}")
        except UnicodeError:
            refusal = HubError(400, "The request holds text that is not valid UTF-8")
        except (OSError, sqlite3.OperationalError) as error:
            if getattr(error, "errno", None) not in _NO_ROOM and "full" not in str(error):
                raise
            refusal = HubError(507, "The Hub's disk is full: free some space under its --root and send this again")
        # A client that is still sending does not read the answer: take the rest of a body of ordinary size.
        left = _DRAIN_BYTES
        while left > 0 and (chunk := next(chunks, b"")):
            left -= len(chunk)
        return refusal.response()

    def _handle(self, scope: Scope, chunks: Iterator[bytes]) -> Response | dict | list:
        headers, path = Headers(scope=scope), scope["raw_path"].decode("ascii")
        host = headers.get("host", "")
        if host not in self._hosts:
            # ``datasets`` asks datasets-server.<host> and takes a 404 for "no such service".
            raise HubError(404 if host.startswith("datasets-server.") else 421, "This local Hub has another address")
        query = QueryParams(scope["query_string"])
        # The tokens of Xet addresses are no tokens of users.
        token = None if path.startswith("/xet/") else headers.get("authorization")
        actor = authenticate(self._hub.database, token)
        handler, args = match(scope["method"], path)
        return handler(Call(self._hub, scope["method"], path, args, query, headers, f"http://{host}", actor, chunks))


def _body_chunks(receive: Receive) -> Iterator[bytes]:
    """The request body as it arrives; runs in a worker thread."""

    async def next_message() -> Message:
        return await receive()

    more = True
    while more:
        message = anyio.from_thread.run(next_message)
        if message["type"] == "http.disconnect":
            raise ClientGone
        more = message.get("more_body", False)
        if chunk := message.get("body", b""):
            yield chunk

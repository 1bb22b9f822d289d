"""The ASGI application: checks the Host header, routes a request, runs its handler in a thread, maps errors to answers.

Handlers are plain functions. One thread routes a request and limits its body; after the body has arrived
(``connections``), another runs the handler.
"""

import errno
import logging
import sqlite3
import time
import uuid
from http import HTTPStatus

import anyio
from pydantic import ValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from hub_server.connections import BodyReader, ClientGone
from hub_server.handlers.call import Call, Hub
from hub_server.handlers.pages import asks_for_page
from hub_server.handlers.routes import SLOW, Handler, body_limit, match
from hub_server.pages.rendering import error_page
from hub_server.storage.blobs import Body
from hub_server.storage.credentials import authenticate
from hub_server.storage.errors import HubError, repo_not_found

log = logging.getLogger("hub_server")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSABLE = (HubError, ValidationError, UnicodeError, OSError, sqlite3.IntegrityError, sqlite3.OperationalError)


class HubApp:
    """ASGI application of one Hub for the ``Host`` values in ``hosts`` only, against DNS rebinding.

    ``patience``: timeout in seconds for a client that is silent in the middle of its request.
    """

    def __init__(self, hub: Hub, hosts: set[str], patience: float):
        self._hub, self._hosts, self._patience = hub, hosts, patience
        # Other threads feed downloads, so that neither can starve the other.
        self._threads = anyio.CapacityLimiter(64)
        self._lanes = {handler: anyio.CapacityLimiter(4) for handler in SLOW}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        started, headers = time.monotonic(), Headers(scope=scope)
        try:
            response = await self._answer(scope, receive)
        except ClientGone:
            return
        except Exception:
            if not self._for_a_browser(scope):
                raise
            log.exception("a page failed")
            response = _page_of(HubError(500, "This page could not be rendered."), scope)
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

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        arrival, body = BodyReader(receive, self._patience), Body(self._hub.blobs.tmp)
        try:
            call, handler, limit = await anyio.to_thread.run_sync(self._admit, scope, body, limiter=self._threads)
            await arrival.into(body, limit, self._threads)
            answer = await anyio.to_thread.run_sync(handler, call, limiter=self._lanes.get(handler, self._threads))
            return answer if isinstance(answer, Response) else JSONResponse(answer)
        except _REFUSABLE as error:
            refusal = _refusal(error)
            await arrival.drain()
            shown = refusal.status >= HTTPStatus.BAD_REQUEST and self._for_a_browser(scope)
            return _page_of(refusal, scope) if shown else refusal.response()
        finally:
            if body.on_disk:  # gigabytes, maybe: to remove them takes a file system a while
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(body.drop, limiter=self._threads)

    def _for_a_browser(self, scope: Scope) -> bool:
        headers, path = Headers(scope=scope), scope["raw_path"].decode("ascii", "replace")
        known = headers.get("host", "") in self._hosts
        return known and asks_for_page(scope["method"], path, headers.get("accept", ""))

    def _admit(self, scope: Scope, body: Body) -> tuple[Call, Handler, int]:
        """Authenticate and route a request before its body is read, and limit its body (bytes)."""
        headers, path = Headers(scope=scope), scope["raw_path"].decode("ascii")
        host = headers.get("host", "")
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may see another end of the body
            raise HubError(400, "Content-Length beside Transfer-Encoding", headers={"Connection": "close"})
        if host not in self._hosts:
            # ``datasets`` asks datasets-server.<host> and takes a 404 for "no such service".
            raise HubError(404 if host.startswith("datasets-server.") else 421, "This local Hub has another address")
        query = QueryParams(scope["query_string"])
        # The tokens of Xet addresses are no tokens of users.
        token = None if path.startswith("/xet/") else headers.get("authorization")
        actor = authenticate(self._hub.database, token)
        handler, args = match(scope["method"], path)
        call = Call(self._hub, scope["method"], path, args, query, headers, f"http://{host}", actor, body)
        limit = body_limit(handler, call)
        if int(headers.get("content-length", "0")) > limit:  # the server has checked that it is a number
            raise HubError(413, f"The request body is larger than {limit} bytes")
        return call, handler, limit


def _page_of(refusal: HubError, scope: Scope) -> Response:
    """A refusal as a page for a browser, with the headers that clients read."""
    endpoint, path = f"http://{Headers(scope=scope)['host']}", scope["raw_path"].decode("ascii", "replace")
    answer = error_page(endpoint, path, refusal.status, refusal.message, refusal.code)
    known = refusal.response().headers
    answer.headers.update({name: value for name, value in known.items() if not name.startswith("content-")})
    return answer


def _refusal(error: Exception) -> HubError:
    """The HTTP error for an exception of a bad request or a full disk; raises every other one again."""
    if isinstance(error, HubError):
        return error
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the request body"
        return HubError(400, f"{place}: {problem['msg']}")
    if isinstance(error, UnicodeError):
        return HubError(400, "The request holds text that is not valid UTF-8")
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:  # the repo was just deleted
        return repo_not_found(anonymous=False)
    if getattr(error, "errno", None) not in _NO_ROOM and code != sqlite3.SQLITE_FULL:
        raise error
    return HubError(507, "The Hub's disk is full: free some space under its --root and send this again")

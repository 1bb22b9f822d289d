"""The ASGI application: routes a request, runs its handler in a thread, maps errors to answers.

Handlers are plain functions. One thread checks the Host header, routes a request and limits its
body; after the body has arrived (``connections``), another runs the handler.
"""

import errno
import logging
import sqlite3
import time
import uuid
from http import HTTPStatus
from typing import NamedTuple

import anyio
from pydantic import ValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from hub_server.connections import BodyReader, ClientGone
from hub_server.handlers.call import Call, Hub
from hub_server.handlers.pages import is_page_request
from hub_server.handlers.routes import SLOW, Handler, get_body_limit, match_route
from hub_server.pages.rendering import render_error_page
from hub_server.storage.blobs import Body
from hub_server.storage.credentials import authenticate
from hub_server.storage.errors import HubError, make_missing_repo_error

log = logging.getLogger("hub_server")
MAX_ID_CHARACTERS = 200  # of a request's id, which the answer repeats
HANDLER_THREADS = 64  # that run handlers at once
SLOW_HANDLER_THREADS = 4  # that run one slow handler at once
# Why the store cannot be written, by the number of the system's error
_STORE_PROBLEMS = {
    errno.ENOSPC: "The Hub's disk is full: free some space under its --root",
    errno.EDQUOT: "The Hub's disk quota is used up: free some space under its --root",
    errno.EFBIG: "The Hub may not write so large a file: raise its limit (ulimit -f)",
    errno.EACCES: "The Hub has no permission to write below its --root: change its permissions",
    errno.EPERM: "The Hub has no permission to write below its --root: change its permissions",
    errno.EROFS: "The Hub's --root is read-only: make it writable",
    errno.EMFILE: "The Hub has too many open files: raise its limit (ulimit -n)",
    errno.ENFILE: "The Hub's machine has too many open files: close some programs",
}
_SQLITE_PROBLEMS = {
    sqlite3.SQLITE_FULL: _STORE_PROBLEMS[errno.ENOSPC],
    sqlite3.SQLITE_READONLY: _STORE_PROBLEMS[errno.EROFS],
    sqlite3.SQLITE_CANTOPEN: "The Hub cannot open its index: check permissions below its --root, "
    "and the limit of open files (ulimit -n)",
    sqlite3.SQLITE_PERM: _STORE_PROBLEMS[errno.EACCES],
}
_SQLITE_PRIMARY_CODE = 0xFF  # the bits of an extended result code that hold the primary code
_REFUSABLE = (
    HubError,
    ValidationError,
    UnicodeError,
    OSError,
    sqlite3.IntegrityError,
    sqlite3.OperationalError,
)


class AdmittedCall(NamedTuple):
    """A routed call, its handler, and the limit of its body in bytes."""

    call: Call
    handler: Handler
    body_limit: int


class HubApp:
    """ASGI application of one Hub.

    Args:
        hub: the Hub's state.
        hosts: the accepted ``Host`` headers. Another value is refused, against DNS rebinding.
        patience: seconds after which a client that stops in its request gets 408.
    """

    def __init__(self, hub: Hub, hosts: set[str], patience: float):
        self._hub = hub
        self._hosts = hosts
        self._patience = patience
        # Downloads use threads of another limiter, so requests and downloads never wait for
        # each other.
        self._threads = anyio.CapacityLimiter(HANDLER_THREADS)
        self._slow_limiters = {
            handler: anyio.CapacityLimiter(SLOW_HANDLER_THREADS) for handler in SLOW
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        started = time.monotonic()
        headers = Headers(scope=scope)

        # Compute the answer. When a handler fails, a browser gets an error page; for other clients
        # uvicorn logs the exception and answers 500.
        try:
            response = await self._answer(scope, receive)
        except ClientGone:  # nobody reads an answer
            return
        except Exception:
            if not self._is_for_browser(scope):
                raise
            log.exception("a page failed")
            response = _render_refusal(HubError(500, "This page could not be rendered."), scope)
        request_id = headers.get("x-request-id") or headers.get("x-amzn-trace-id")
        response.headers["X-Request-Id"] = (request_id or str(uuid.uuid4()))[:MAX_ID_CHARACTERS]

        # Send it, with one line in the log.
        elapsed = (time.monotonic() - started) * 1000
        received = headers.get("content-length", "0")
        # The path alone: query strings carry upload signatures.
        request = f"{scope['method']} {_get_path(scope)}"

        async def send_and_log(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                log.info("%s %d %.0f ms, %s bytes received", request, status, elapsed, received)
            await send(message)

        await response(scope, receive, send_and_log)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        """Receive a request's body, run the handler in a thread, and return its answer.

        A refusal (``_REFUSABLE``) becomes an answer. Raises ClientGone, and any other exception of
        a handler.
        """
        reader = BodyReader(receive, self._patience)
        body = Body(self._hub.blobs.tmp)
        try:
            call, handler, limit = await anyio.to_thread.run_sync(
                self._admit, scope, body, limiter=self._threads
            )
            await reader.read_into(body, limit, self._threads)
            limiter = self._slow_limiters.get(handler, self._threads)
            answer = await anyio.to_thread.run_sync(handler, call, limiter=limiter)
            if isinstance(answer, Response):
                return answer
            return JSONResponse(answer)
        except _REFUSABLE as error:
            refusal = _convert_to_refusal(error)
            await reader.drop_rest()
            if refusal.status >= HTTPStatus.BAD_REQUEST and self._is_for_browser(scope):
                return _render_refusal(refusal, scope)
            return refusal.to_response()
        finally:
            if body.on_disk:  # a file system may take a while to remove gigabytes
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(body.drop, limiter=self._threads)

    def _is_for_browser(self, scope: Scope) -> bool:
        """Return whether a request is a browser's for a page of this Hub."""
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self._hosts:
            return False
        return is_page_request(scope["method"], _get_path(scope), headers.get("accept", ""))

    def _admit(self, scope: Scope, body: Body) -> AdmittedCall:
        """Authenticate and route a request before its body is read, and limit its body.

        Raises HubError: 400 for an ambiguous length, 404 or 421 for another host, 401 for an
        unknown token, 404 without a route, 413 for too long a body; and what the handler's body
        limit raises.
        """
        # Refuse ambiguous bodies and other hosts.
        headers = Headers(scope=scope)
        path = scope["raw_path"].decode("ascii")
        host = headers.get("host", "")
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may take another of the two for the end of the body (request smuggling).
            problem = "Content-Length beside Transfer-Encoding"
            raise HubError(400, problem, headers={"Connection": "close"})
        if host not in self._hosts:
            # ``datasets`` asks datasets-server.<host> and takes a 404 for "no such service".
            status = 404 if host.startswith("datasets-server.") else 421
            raise HubError(status, "This local Hub has another address")

        # Authenticate. Xet addresses have tokens of their own, which ``xet.require_repo`` checks.
        query = QueryParams(scope["query_string"])
        token = None if path.startswith("/xet/") else headers.get("authorization")
        actor = authenticate(self._hub.database, token)

        # Route, and limit the body.
        route, args = match_route(scope["method"], path)
        call = Call(
            hub=self._hub,
            method=scope["method"],
            path=path,
            args=args,
            query=query,
            headers=headers,
            endpoint=f"http://{host}",
            actor=actor,
            content=body,
        )
        limit = get_body_limit(route.handler, call)
        # The server has checked that the header is a number.
        if int(headers.get("content-length", "0")) > limit:
            raise HubError(413, f"The request body is larger than {limit} bytes")
        return AdmittedCall(call, route.handler, limit)


def _get_path(scope: Scope) -> str:
    """Return the path of a request, percent-encoded, without its query."""
    return scope["raw_path"].decode("ascii", "replace")


def _render_refusal(refusal: HubError, scope: Scope) -> Response:
    """Return a refusal as an error page with the headers of the refusal's JSON answer."""
    endpoint = f"http://{Headers(scope=scope)['host']}"
    page = render_error_page(
        endpoint, _get_path(scope), refusal.status, refusal.message, refusal.code
    )
    for name, value in refusal.to_response().headers.items():
        if not name.startswith("content-"):
            page.headers[name] = value
    return page


def _convert_to_refusal(error: Exception) -> HubError:
    """Return the HTTP error for a failed request; raise an error of the Hub itself again.

    400 for a bad request, 404 for a repo that was just deleted, 507 for a store that cannot be
    written.
    """
    if isinstance(error, HubError):
        return error
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, problem["loc"])) or "the request body"
        return HubError(400, f"{field}: {problem['msg']}")
    if isinstance(error, UnicodeError):
        return HubError(400, "The request holds text that is not valid UTF-8")
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    if sqlite_code == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:  # the repo was just deleted
        return make_missing_repo_error(anonymous=False)
    system_code = getattr(error, "errno", None)  # only an OSError has one
    store_problem = _STORE_PROBLEMS.get(system_code or 0)
    if store_problem is None and sqlite_code is not None:
        store_problem = _SQLITE_PROBLEMS.get(sqlite_code & _SQLITE_PRIMARY_CODE)
    if store_problem is None:
        raise error
    return HubError(507, f"{store_problem}, and send this again")

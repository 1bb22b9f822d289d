"""The ASGI application: routes a request, runs its handler in a thread, maps errors to answers.

Handlers are plain functions. A thread checks the Host header, routes a request and limits its body.
After the body has arrived (``connections``), another thread runs the handler. Routes match the raw
path, before percent-decoding: ``refs%2Fpr%2F1`` is one segment, and ``a%2Fb/c`` in a tree listing
is not ambiguous.
"""

import errno
import logging
import re
import sqlite3
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

import anyio
from pydantic import ValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from hub_server.connections import BodyReader, ClientGone
from hub_server.handlers import files, lfs, pages, repos, xet
from hub_server.handlers.call import Call, Hub
from hub_server.storage.blobs import Body
from hub_server.storage.credentials import authenticate
from hub_server.storage.errors import HubError, make_missing_repo_error, make_not_served_error

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
_API = re.compile(  # addresses that are no page
    r"/(?:api|xet|lfs-upload|uploads|papers|buckets)(?:/.*)?|.*/resolve/.*|.*\.git/.*"
)
_SQLITE_PRIMARY_CODE = 0xFF  # the bits of an extended result code that hold the primary code
_REFUSABLE = (
    HubError,
    ValidationError,
    UnicodeError,
    OSError,
    sqlite3.IntegrityError,
    sqlite3.OperationalError,
)


Handler = Callable[[Call], Response | dict | list]
JSON_LIMIT = 2 << 20


def refuse_short_repo_id(call: Call) -> Response:
    """Raise HubError 404 (401 without a token) for a repo id without a namespace."""
    raise make_missing_repo_error(anonymous=call.actor is None)


def refuse_unserved_path(call: Call) -> Response:
    """Raise HubError 404 for a service of the Hub that does not exist here."""
    raise make_not_served_error()


class Route(NamedTuple):
    """One call: its method, the pattern of its raw path, its name for tests, its handler."""

    method: str
    pattern: re.Pattern[str]
    name: str
    handler: Handler


_PATTERNS = {
    "{api}": r"/api/(?P<kind>models|datasets|spaces|kernels)/(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{web}": r"/(?:(?P<kind>datasets|spaces|kernels)/)?(?P<namespace>[^/]+)/(?P<name>[^/]+?)",
    "{owner}": r"/(?!(?:api|models|datasets|spaces|kernels|buckets|papers|uploads|lfs-upload|xet|-)"
    r"(?:/|$))(?P<namespace>[^/]+)",
    "{page}": r"/(?:(?P<kind>datasets)/)?(?!api/|lfs-upload/|xet/|papers/)"
    r"(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{rev}": r"(?P<revision>[^/]+)",
    "{ref}": r"(?P<ref>[^/]+)",
    "{xet}": r"/xet/(?P<space>[0-9a-f]{32})",
    "{upload}": r"/lfs-upload/(?P<repo>\d+)/(?P<oid>[0-9a-f]{64})/(?P<size>\d+)/(?P<part_bytes>\d+)"
    r"/(?P<upload>[0-9a-f]{32})",
}


def _compile_pattern(template: str) -> re.Pattern[str]:
    """Return the regular expression of a path template with names of ``_PATTERNS`` in it."""
    for name, regex in _PATTERNS.items():
        template = template.replace(name, regex)
    return re.compile(template)


# Tests use the names, so they stay when a handler is renamed.
_TABLE: list[tuple[str, str, str, Handler]] = [
    ("GET", r"/", "pages.front", pages.show_front),
    ("GET", r"/api/whoami-v2", "repos.whoami", repos.describe_user),
    ("POST", r"/api/repos/create", "repos.create", repos.create),
    ("DELETE", r"/api/repos/delete", "repos.delete", repos.delete),
    ("POST", r"/api/validate-yaml", "repos.validate_yaml", repos.validate_yaml),
    (
        "GET",
        r"/api/(?P<kind>models|datasets|spaces|kernels)",
        "repos.listing",
        repos.list_matching_repos,
    ),
    ("GET", r"{api}", "repos.info", repos.show_info),
    ("GET", r"{api}/revision/{rev}", "repos.info", repos.show_info),
    ("PUT", r"{api}/settings", "repos.settings", repos.update_settings),
    ("GET", r"{api}/tree/{rev}(?:/(?P<path>.+))?", "files.tree", files.list_folder),
    ("POST", r"{api}/paths-info/{rev}", "files.paths_info", files.describe_paths),
    ("POST", r"{api}/preupload/{rev}", "files.preupload", files.plan_upload),
    ("POST", r"{api}/commit/{rev}", "history.commit", repos.create_commit),
    ("GET", r"{api}/commits/{rev}", "history.commits", repos.list_commits),
    ("GET", r"{api}/refs", "history.refs", repos.list_branches_and_tags),
    ("POST", r"{api}/branch/{ref}", "history.create_branch", repos.create_branch),
    ("DELETE", r"{api}/branch/{ref}", "history.delete_branch", repos.delete_branch),
    ("POST", r"{api}/tag/{ref}", "history.create_tag", repos.create_tag),
    ("DELETE", r"{api}/tag/{ref}", "history.delete_tag", repos.delete_tag),
    ("GET", r"{api}/xet-write-token/{rev}", "xet.write_token", xet.create_write_token),
    ("POST", r"{xet}/v1/xorbs/default/(?P<hash>[0-9a-f]{64})", "xet.put_xorb", xet.store_xorb),
    ("POST", r"{xet}/v1/shards", "xet.put_shard", xet.store_shard),
    ("POST", r"{web}\.git/info/lfs/objects/batch", "lfs.batch", lfs.plan_transfers),
    ("PUT", r"{upload}/(?P<number>\d+)", "lfs.put", lfs.store_upload),
    ("POST", r"{upload}", "lfs.complete", lfs.finish_upload),
    ("GET", r"{web}/resolve/{rev}/(?P<path>.+)", "files.download", files.download),
    ("GET", r"{owner}", "pages.owner", pages.show_owner),
    ("GET", r"{page}(?:/commit/{rev})?", "pages.repo", pages.show_repo),
    ("GET", r"{page}/tree/{rev}(?:/(?P<path>.+))?", "pages.tree", pages.show_folder),
    ("GET", r"{page}/blob/{rev}/(?P<path>.+)", "pages.blob", pages.show_file),
    ("GET", r"{page}/report/{rev}", "pages.report", pages.show_report),
    ("*", r"{api}(?:/.*)?", "repos.not_found", repos.refuse_unknown_path),
    (
        "*",
        r"/api/(?:models|datasets)/[^/]+(?:/(?:revision|tree|refs|commits)/.+)?",
        "routes.no_such_repo",
        refuse_short_repo_id,
    ),
    (
        "GET",
        r"/(?:(?:datasets|spaces|kernels)/)?[^/]+/resolve/.+",
        "routes.no_such_repo",
        refuse_short_repo_id,
    ),
    (
        "*",
        r"/(?:api|papers|uploads|buckets)(?:/.+)?",
        "routes.no_such_service",
        refuse_unserved_path,
    ),
]
ROUTES = [
    Route(method, _compile_pattern(pattern), name, handler)
    for method, pattern, name, handler in _TABLE
]

# Called before the body is fetched: its limit in bytes, or a refusal.
_BODY_LIMITS: dict[Handler, Callable[[Call], int]] = {
    repos.create_commit: repos.get_commit_body_limit,
    lfs.store_upload: lfs.get_upload_body_limit,
    xet.store_shard: xet.get_body_limit,
    xet.store_xorb: xet.get_body_limit,
}

# Handlers that may take a second or more, or much memory, over a client's content: few run at once.
_SLOW: tuple[Handler, ...] = (
    pages.show_repo,
    pages.show_file,
    repos.validate_yaml,
    xet.store_shard,
)


def get_body_limit(handler: Handler, call: Call) -> int:
    """Return the limit in bytes of a call's body.

    Raises HubError for a call that is refused before its body is read (``_BODY_LIMITS``).
    """
    if handler in _BODY_LIMITS:
        return _BODY_LIMITS[handler](call)
    return JSON_LIMIT


def match_route(method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
    """Return the first route that fits a request, and the decoded parts of its path by name.

    A HEAD request takes the route of GET. Empty parts are left out; ``kind`` is ``models`` when the
    path has none. Raises HubError 404 without an X-Error-Code when no route fits, and UnicodeError
    for a part that is not UTF-8.
    """
    method = "GET" if method == "HEAD" else method
    for route in ROUTES:
        match = route.pattern.fullmatch(raw_path)
        if match is None or route.method not in ("*", method):
            continue
        groups = {key: value for key, value in match.groupdict().items() if value}
        args = {key: unquote(value, errors="strict") for key, value in groups.items()}
        args.setdefault("kind", "models")  # only models lie at the root of the endpoint
        return route, args
    raise HubError(404, "Sorry, we can't find the page you are looking for.")


class HubApp:
    """ASGI application of one Hub.

    Args:
        hub: the Hub's state.
        hosts: the accepted ``Host`` headers. Another value is refused, against DNS rebinding.
        patience: the timeout in seconds for a client that sends a body too slowly, which gets 408.
    """

    def __init__(self, hub: Hub, hosts: set[str], patience: float):
        self._hub = hub
        self._hosts = hosts
        self._patience = patience
        # Downloads use threads of another limiter, so requests and downloads never wait for
        # each other.
        self._threads = anyio.CapacityLimiter(HANDLER_THREADS)
        self._slow_limiters = {
            handler: anyio.CapacityLimiter(SLOW_HANDLER_THREADS) for handler in _SLOW
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; ignore events of other kinds, such as WebSockets."""
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

        # Send the answer, and log one line.
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

        An error of ``_REFUSABLE`` becomes an answer, unless the Hub itself is at fault. Raises
        ClientGone, and the errors of a handler that become no answer.
        """
        reader = BodyReader(receive, self._patience)
        body = Body(self._hub.blobs.tmp)
        try:
            call, handler = await anyio.to_thread.run_sync(
                self._admit, scope, body, limiter=self._threads
            )
            await reader.read_into(body, call.body_limit, self._threads)
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
        """Return whether a browser asks for a page of this Hub, not for an address of its API."""
        headers = Headers(scope=scope)
        return (
            headers.get("host", "") in self._hosts
            and scope["method"] in ("GET", "HEAD")
            and "text/html" in headers.get("accept", "")
            and not _API.fullmatch(_get_path(scope))
        )

    def _admit(self, scope: Scope, body: Body) -> tuple[Call, Handler]:
        """Authenticate and route a request before its body is read, and limit its body.

        The body in the returned call is empty. Raises HubError: 400 for an ambiguous length, 404 or
        421 for another host, 401 for an unknown token, 404 without a route, 413 for too long a
        body; and what ``get_body_limit`` raises. Raises UnicodeError for a path that is not UTF-8.
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
        call.body_limit = get_body_limit(route.handler, call)
        # The server has checked that the header is a number.
        if int(headers.get("content-length", "0")) > call.body_limit:
            raise HubError(413, f"The request body is larger than {call.body_limit} bytes")
        return call, route.handler


def _get_path(scope: Scope) -> str:
    """Return the path of a request, percent-encoded, without its query."""
    return scope["raw_path"].decode("ascii", "replace")


def _render_refusal(refusal: HubError, scope: Scope) -> Response:
    """Return a refusal as an error page, with the headers that its JSON answer would have."""
    endpoint = f"http://{Headers(scope=scope)['host']}"
    page = pages.render_error_page(
        endpoint, _get_path(scope), refusal.status, refusal.message, refusal.code
    )
    for name, value in refusal.to_response().headers.items():
        if not name.startswith("content-"):
            page.headers[name] = value
    return page


def _convert_to_refusal(error: Exception) -> HubError:
    """Return the HTTP error for an error of ``_REFUSABLE``; raise it if the Hub is at fault.

    A HubError is returned as it is. The status is 400 for a bad request, 404 for a repo that was
    just deleted, and 507 for a store that cannot be written or opened.
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

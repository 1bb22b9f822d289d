"""Fault injection, for tests of clients: hub-server serve --faults FAULTS.json

A fault is an error status, a dropped or cut connection or a slow answer, before or AFTER the request was handled: a
client must survive the loss of an answer to finished work. Each kind of request gets the faults in turn, the rarest
first. Wrong answers (a login page, nonsense, a redirect in circles) need a plan that names them: a client may believe a
200, so it can only fail in good order. The file is read again when it changes. Each fault is a line of the log, for
example ``fault history.commit 503 after``.
"""

import asyncio
import logging
import random
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hub_server.handlers.routes import REQUESTS, match, name_of
from hub_server.storage.errors import CommandError, HubError

log = logging.getLogger("hub_server.faults")
Kind = Literal["429", "429 retry-after", "429 quota", "409", "412", "500", "503", "dropped", "cut", "slow"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Wrong = Literal["html", "garbage", "{}", "[]", "null", "deep", "elsewhere", "circle", "drip"]
WRONG: tuple[Wrong, ...] = get_args(Wrong)
_JSON = {"{}": b"{}", "[]": b"[]", "null": b"null", "deep": b"[" * 100_000, "garbage": bytes(range(256)) * 4}
_PAGE = b"<!doctype html><title>Log in</title><p>Please log in to use this network"
# How the Hub says for how long: a number of seconds, or its rate limit (0 requests left, for 1 second).
_WAIT = {"retry-after": {"Retry-After": "1"}, "quota": {"RateLimit": '"api";r=0;t=1'}}


class Fault(NamedTuple):
    """One injected fault: an error status, a dropped or cut connection, a slow or a wrong answer."""

    kind: Kind | Wrong
    after: bool  # whether the request was handled all the same

    @property
    def when(self) -> str:
        """ "after" or "before", for the log."""
        return "after" if self.after else "before"


# A cut or slow answer needs one, so the request is handled.
EVERY = tuple(
    Fault(kind, after) for kind, after in product(KINDS, (False, True)) if after or kind not in ("cut", "slow")
)


class FaultPlan(BaseModel):
    """The JSON file: the share of requests to disturb, drawn by ``seed``; empty lists mean all but wrong answers.

    ``once``: each kind of request gets each fault one time. ``elsewhere``: the target of that redirect. A drip is one
    byte every ``slow_seconds``, without an end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seed: int = 0
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    requests: list[str] = []  # e.g. "history.commit": module and name of the handler
    kinds: list[Kind | Wrong] = []
    slow_seconds: Annotated[float, Field(ge=0)] = 0.5
    elsewhere: str = "http://127.0.0.1:9"
    once: bool = False


def request_kind(scope: Scope) -> str:
    """Module and name of the handler of a request; "unknown" without a handler."""
    try:
        handler, _ = match(scope["method"], scope["raw_path"].decode("ascii"))
    except (HubError, UnicodeError):
        return "unknown"
    return name_of(handler)


class FaultInjector:
    """ASGI middleware that injects the faults of a plan. Raises CommandError for a file that is not a plan."""

    def __init__(self, app: ASGIApp, path: Path):
        self._app, self._path = app, path
        self._drawn: Counter[tuple[str, Fault]] = Counter()
        self._read()

    def _read(self) -> None:
        try:
            self._written = self._path.stat().st_mtime_ns
            self._plan = FaultPlan.model_validate_json(self._path.read_bytes())
        except FileNotFoundError as error:
            raise CommandError(f"--faults {self._path}: no such file") from error
        except ValidationError as error:
            problem = f"{error.errors()[0]['msg']}; allowed: {(*KINDS, *WRONG)}"
            raise CommandError(f"--faults {self._path}: {problem}") from error
        unknown = set(self._plan.requests) - {*REQUESTS, "unknown"}
        if unknown:
            raise CommandError(f"--faults {self._path}: no such request: {min(unknown)}; allowed: {REQUESTS}")
        self._random = random.Random(self._plan.seed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or disturb it."""
        fault = self._draw(request_kind(scope)) if scope["type"] == "http" else None
        if fault is None:
            await self._app(scope, receive, send)
        elif fault.kind == "slow":
            await self._late(scope, receive, send)
        elif fault.kind in WRONG:
            await _drained(receive)
            await (self._drip if fault.kind == "drip" else self._wrong(fault.kind, scope))(scope, receive, send)
        elif fault.kind == "cut":
            await self._app(scope, receive, _Cut(send))
        else:
            await (self._app(scope, receive, _lost) if fault.after else _drained(receive))
            if fault.kind == "dropped":
                await _drop(send)
            else:
                await _refusal(fault.kind).response()(scope, receive, send)

    async def _late(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request after ``slow_seconds``, even if its client has timed out by then."""
        messages = [await receive()]
        while messages[-1].get("more_body", False):
            messages.append(await receive())
        messages.reverse()

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        await asyncio.sleep(self._plan.slow_seconds)
        await self._app(scope, replayed, send)

    def _wrong(self, kind: str, scope: Scope) -> ASGIApp:
        """An answer that a Hub never gives."""
        if kind in ("elsewhere", "circle"):
            path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode()
            host = self._plan.elsewhere if kind == "elsewhere" else ""
            return RedirectResponse(host + path + (f"?{query}" if query else ""), 307)
        if kind == "html":
            return Response(_PAGE, media_type="text/html")
        return Response(_JSON[kind], media_type="application/json")

    async def _drip(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send blanks, a valid start of JSON, as long as the client listens; only headers for a HEAD."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        gone = asyncio.create_task(_disconnected(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.wait([gone], timeout=max(self._plan.slow_seconds, 0.01))

    def _draw(self, request: str) -> Fault | None:
        """Draw the fault for this request, or None."""
        if self._path.stat().st_mtime_ns != self._written:
            self._read()
        plan = self._plan
        if (plan.requests and request not in plan.requests) or self._random.random() >= plan.share:
            return None
        open_to = [fault for fault in EVERY if not plan.kinds or fault.kind in plan.kinds]
        open_to += [Fault(kind, False) for kind in WRONG if kind in plan.kinds]
        least = min(self._drawn[request, fault] for fault in open_to)
        if plan.once and least:
            return None
        fault = self._random.choice([fault for fault in open_to if self._drawn[request, fault] == least])
        self._drawn[request, fault] += 1
        log.warning("fault %s %s %s", request, fault.kind, fault.when)
        return fault


class _Cut:
    """Sends the head of an answer and half of its first piece, then drops the connection."""

    def __init__(self, send: Send):
        self._send, self._head, self._done = send, dict[str, Any](), False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = dict(message)
        elif not self._done:
            self._done, body = True, message.get("body", b"")
            if len(body) > 1:
                await self._send(self._head)
                await self._send({**message, "body": body[: len(body) // 2], "more_body": True})
            await _drop(self._send)


def _refusal(kind: str) -> HubError:
    status, _, wait = kind.partition(" ")
    return HubError(int(status), f"Fault on purpose: {kind}", headers=_WAIT.get(wait))


async def _lost(message: Message) -> None:
    """An ASGI ``send`` that drops every message."""


async def _drained(receive: Receive) -> None:
    """Read the request body to its end: a client that is still sending does not read the answer."""
    while (await receive()).get("more_body", False):
        pass


async def _disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _drop(send: Send) -> None:
    """Close the connection. ASGI has no word for it; uvicorn's ``send`` is a method of its request, which has one."""
    send.__self__.transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(0)  # uvicorn learns of it in the next turn, and would else answer 500 for an app without answer

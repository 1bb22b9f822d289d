"""A Hub that injects faults, for tests of clients: ``FaultyLocalHub``, or as a command line
``python fault_injection.py FAULTS.json serve --root DIR``.

A fault is an error status, a dropped or cut connection or a slow answer, before or AFTER the
request was handled: a client must survive the loss of an answer to finished work. Each kind of
request gets the faults in turn, the rarest first. Wrong answers (a login page, nonsense, a redirect
in circles) need a plan that names them: a client may take a wrong 200 for a right one, so no retry
helps. The file is read again when it changes. Each fault is a line of the log, for example ``fault
history.commit 503 after``.
"""

import asyncio
import logging
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # for the command line

from hub_server import app, server
from hub_server.process import LocalHub
from hub_server.storage.errors import HubError

log = logging.getLogger("hub_server.faults")
REQUESTS = tuple(dict.fromkeys(route.name for route in app.ROUTES))
Kind = Literal[
    "429", "429 retry-after", "429 quota", "409", "412", "500", "503", "dropped", "cut", "slow"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
Wrong = Literal["html", "garbage", "{}", "[]", "null", "deep", "elsewhere", "circle", "drip"]
WRONG: tuple[Wrong, ...] = get_args(Wrong)
_JSON = {
    "{}": b"{}",
    "[]": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "garbage": bytes(range(256)) * 4,
}
_PAGE = b"<!doctype html><title>Log in</title><p>Please log in to use this network"
# Headers that name the wait after a 429: seconds, or the rate limit (0 requests left, for 1 second)
_WAIT = {"retry-after": {"Retry-After": "1"}, "quota": {"RateLimit": '"api";r=0;t=1'}}


class Fault(NamedTuple):
    """One fault: an error status, a dropped or cut connection, a slow or a wrong answer."""

    kind: Kind | Wrong
    after: bool  # True: the request is handled, and its answer is lost

    @property
    def when(self) -> str:
        """``after`` or ``before``: the time of the fault relative to the handler, for the log."""
        return "after" if self.after else "before"


# A fault that cuts or delays an answer needs an answer, so the request is always handled.
ALL_FAULTS = tuple(
    Fault(kind, after)
    for kind in KINDS
    for after in (False, True)
    if after or kind not in ("cut", "slow")
)


class FaultPlan(BaseModel):
    """The JSON file: the share of requests to disturb, drawn by ``seed``.

    Attributes:
        seed: the seed of all draws.
        share: the probability that a request gets a fault.
        requests: names in the route table, e.g. "history.commit"; empty: all.
        kinds: the faults; empty: all but wrong answers.
        slow_seconds: the delay of a slow answer, and the time between two bytes of a drip, which
            never ends.
        elsewhere: the origin that the redirect "elsewhere" leads to.
        once: whether each kind of request gets each fault one time only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seed: int = 0
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    requests: list[str] = []
    kinds: list[Kind | Wrong] = []
    slow_seconds: Annotated[float, Field(ge=0)] = 0.5
    elsewhere: str = "http://127.0.0.1:9"
    once: bool = False


def name_request(scope: Scope) -> str:
    """Return the name of a request's route, e.g. "history.commit"; "unknown" without a route."""
    try:
        route, _ = app.match_route(scope["method"], scope["raw_path"].decode("ascii"))
    except (HubError, UnicodeError):
        return "unknown"
    return route.name


class FaultInjector:
    """ASGI middleware that injects the faults of a plan. Raises ValidationError for a bad plan."""

    def __init__(self, app: ASGIApp, path: Path):
        self._app = app
        self._path = path
        self._counts: Counter[tuple[str, Fault]] = Counter()
        self._read_plan()

    def _read_plan(self) -> None:
        """Read the plan and start its random numbers anew."""
        self._plan_time = self._path.stat().st_mtime_ns
        self._plan = FaultPlan.model_validate_json(self._path.read_bytes())
        assert set(self._plan.requests) <= {*REQUESTS, "unknown"}, self._plan
        self._random = random.Random(self._plan.seed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or disturb it."""
        fault = self._draw(name_request(scope)) if scope["type"] == "http" else None

        if fault is None:
            await self._app(scope, receive, send)
        elif fault.kind == "slow":
            await self._answer_late(scope, receive, send)
        elif fault.kind == "cut":
            await self._app(scope, receive, _CutSend(send))
        else:
            await self._replace_answer(fault, scope, receive, send)

    async def _replace_answer(
        self, fault: Fault, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the fault in place of the answer; ``fault.after``: handle the request first."""
        if fault.after:
            await self._app(scope, receive, _drop_message)
        else:
            await _read_body(receive)
        if fault.kind == "drip":
            await self._send_drip(scope, receive, send)
        elif fault.kind in WRONG:
            await self._make_wrong_answer(fault.kind, scope)(scope, receive, send)
        elif fault.kind == "dropped":
            await _drop_connection(send)
        else:
            await _make_refusal(fault.kind).to_response()(scope, receive, send)

    async def _answer_late(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request after ``slow_seconds``, even if its client has timed out by then."""
        messages = [await receive()]
        while messages[-1].get("more_body", False):
            messages.append(await receive())
        messages.reverse()  # ``replay_message`` takes the first message from the end

        async def replay_message() -> Message:
            return messages.pop() if messages else await receive()

        await asyncio.sleep(self._plan.slow_seconds)
        await self._app(scope, replay_message, send)

    def _make_wrong_answer(self, kind: str, scope: Scope) -> ASGIApp:
        """Return a wrong answer (``WRONG``, but no drip) as an ASGI application."""
        if kind in ("elsewhere", "circle"):
            origin = self._plan.elsewhere if kind == "elsewhere" else ""
            query = scope["query_string"].decode()
            path = scope["raw_path"].decode("ascii")
            url = f"{origin}{path}?{query}" if query else f"{origin}{path}"
            return RedirectResponse(url, 307)
        if kind == "html":
            return Response(_PAGE, media_type="text/html")
        return Response(_JSON[kind], media_type="application/json")

    async def _send_drip(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send blanks, a valid start of JSON, as long as the client listens; HEAD gets headers."""
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        while not disconnect.done():
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.wait([disconnect], timeout=max(self._plan.slow_seconds, 0.01))

    def _draw(self, request: str) -> Fault | None:
        """Draw, count and log the fault for a request; None: no fault.

        A plan that has changed on disk is read first.
        """
        if self._path.stat().st_mtime_ns != self._plan_time:
            self._read_plan()
        plan = self._plan
        if (plan.requests and request not in plan.requests) or self._random.random() >= plan.share:
            return None

        # Choose among the faults that this kind of request had least often.
        candidates = [fault for fault in ALL_FAULTS if not plan.kinds or fault.kind in plan.kinds]
        candidates += [Fault(kind, False) for kind in WRONG if kind in plan.kinds]
        least = min(self._counts[request, fault] for fault in candidates)
        if plan.once and least:
            return None
        rarest = [fault for fault in candidates if self._counts[request, fault] == least]
        fault = self._random.choice(rarest)
        self._counts[request, fault] += 1
        log.warning("fault %s %s %s", request, fault.kind, fault.when)
        return fault


class _CutSend:
    """Sends the head of an answer and half of its first piece, then drops the connection."""

    def __init__(self, send: Send):
        self._send = send
        self._head: dict[str, Any] = {}
        self._is_cut = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = dict(message)
        elif not self._is_cut:
            self._is_cut = True
            body = message.get("body", b"")
            if len(body) > 1:
                half = body[: len(body) // 2]
                await self._send(self._head)
                await self._send({**message, "body": half, "more_body": True})
            await _drop_connection(self._send)


def _make_refusal(kind: str) -> HubError:
    """Return the error of a kind such as "503" or "429 retry-after": status, name of the wait."""
    status, _, wait = kind.partition(" ")
    return HubError(int(status), f"Fault on purpose: {kind}", headers=_WAIT.get(wait))


async def _drop_message(message: Message) -> None:
    """Drop a message of an answer: an ASGI ``send`` without an effect."""


async def _read_body(receive: Receive) -> None:
    """Read the request body to its end: a client that is still sending does not read the answer."""
    while (await receive()).get("more_body", False):
        pass


async def _wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _drop_connection(send: Send) -> None:
    """Close the connection without an answer.

    ASGI has no message for this. uvicorn's ``send`` is a method of its request object, which holds
    the transport.
    """
    send.__self__.transport.abort()  # type: ignore[attr-defined]
    # uvicorn sees the closed connection in the event loop's next turn. Without this turn it would
    # answer 500, because the application has sent nothing.
    await asyncio.sleep(0)


class FaultyLocalHub(LocalHub):
    """A local Hub that injects the faults of the plan in the JSON file ``plan``."""

    def __init__(self, plan: Path, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.program = (__file__, str(plan.absolute()))


if __name__ == "__main__":
    plan_file = Path(sys.argv.pop(1))
    make_app = app.HubApp
    app.HubApp = lambda *arguments: FaultInjector(make_app(*arguments), plan_file)
    server.main()

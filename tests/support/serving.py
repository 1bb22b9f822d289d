"""A server that answers to order: one of ``backend: openai``, or the part of a Hub that starts
jobs.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


Body = str | bytes | Iterable[bytes]  # an iterable: sent piece by piece, without a length
Reply = tuple[int, dict[str, str], Body] | None  # None: the connection is dropped without an answer


class _Threads(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that left before its answer is part of the tests; any other error shows as a
        dropped connection.
        """


class OrderedServer:
    """A real HTTP server on the loopback; ``reply(body, number)`` makes the answer to its request
    ``number``.

    owner: whose its one model is, as its list of models says.
    documents: what it answers to a GET of a path, else that list.
    """

    def __init__(
        self,
        reply: Callable[[dict[str, Any], int], Reply],
        owner: str = "somebody",
        documents: dict[str, object] | None = None,
    ):
        self.owner = owner
        self.documents = documents or {}
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []  # names in lower case
        self.paths: list[str] = []
        self.times: list[float] = []
        self._lock, self._reply = threading.Lock(), reply
        self._server = _Threads(("127.0.0.1", 0), self._handler())
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        ordered = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                models = {"object": "list", "data": [{"id": "m", "owned_by": ordered.owner}]}
                account = {
                    "name": "someone",
                    "orgs": [{"name": "acme"}],
                    "auth": {"accessToken": {"role": "write"}},
                }
                document = ordered.documents.get(self.path, models | account)
                self.answer(200, {}, json.dumps(document))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with ordered._lock:
                    number = len(ordered.bodies)
                    ordered.bodies.append(body)
                    ordered.headers.append(
                        {name.lower(): value for name, value in self.headers.items()}
                    )
                    ordered.paths.append(self.path)
                    ordered.times.append(time.monotonic())
                reply = ordered._reply(body, number)
                if reply is None:
                    self.connection.close()
                    return
                self.answer(*reply)

            def answer(self, status: int, headers: dict[str, str], text: Body) -> None:
                data = text.encode() if isinstance(text, str) else text
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                if isinstance(data, bytes):
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                for piece in [data] if isinstance(data, bytes) else data:
                    self.wfile.write(piece)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def ordered_server(
    reply: Callable[[dict[str, Any], int], Reply],
    owner: str = "somebody",
    documents: dict[str, object] | None = None,
) -> Iterator[OrderedServer]:
    server = OrderedServer(reply, owner, documents)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def completion(text: str, finish_reason: str = "stop", **choice: Any) -> Reply:
    """An answer of /v1/completions: 10 prompt tokens, 5 completion tokens."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choices = [{"index": 0, "text": text, "finish_reason": finish_reason, **choice}]
    return 200, {}, json.dumps({"object": "text_completion", "choices": choices, "usage": usage})


def chat_answer(text: str, **payload: Any) -> Reply:
    """An answer of /v1/chat/completions: 10 prompt tokens, 5 completion tokens."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    return 200, {}, json.dumps({"choices": [choice], "usage": usage, **payload})

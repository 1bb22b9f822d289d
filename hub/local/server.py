"""Running the Hub: one process per root, on 127.0.0.1 only, until it is told to stop."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from filelock import FileLock, Timeout

from hub.errors import InputError, RunError
from hub.local.access import Signer, add_user, keep_token
from hub.local.app import HubApp
from hub.local.blobs import BlobStore
from hub.local.call import Hub
from hub.local.database import Database
from hub.local.faults import Faults

HOST = "127.0.0.1"
TOKEN_FILE, READ_TOKEN_FILE = "token", "token_read"


@dataclass(frozen=True)
class Settings:
    """What ``serve`` is told."""

    root: Path
    port: int = 0
    user: str = "demo"
    orgs: tuple[str, ...] = ()
    part_bytes: int = 256 << 20
    stop_with_stdin: bool = False
    faults: Path | None = None


class _Server(uvicorn.Server):
    """A server that says when it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]):
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


def open_root(root: Path) -> Path:
    """Make ``root`` usable, or say in one line why it is not."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = root / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        hint = "give --root a folder that you may write to"
        raise InputError(f"--root {root}", f"cannot be written ({error.strerror})", hint=hint) from error
    return root


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """No other process serves or cleans ``root`` meanwhile, else RunError."""
    try:
        with FileLock(root / "lock", timeout=0):
            yield
    except Timeout as error:
        hint = "stop it, or give this one another --root"
        raise RunError(f"--root {root}", "another local Hub is serving this folder", hint=hint) from error


def serve(settings: Settings) -> None:
    """Serve until SIGTERM, SIGINT or, when asked, the end of stdin; prints the endpoint once it answers."""
    root = open_root(settings.root)
    with ExitStack() as stack:
        stack.enter_context(locked(root))
        listener = stack.enter_context(_listen(settings.port))
        database = Database(root / "hub.sqlite")
        stack.callback(database.close)
        blobs = BlobStore(root)
        blobs.sweep()
        add_user(database, settings.user, settings.orgs)
        keep_token(database, root / TOKEN_FILE, settings.user, "write")
        keep_token(database, root / READ_TOKEN_FILE, settings.user, "read")
        hub = Hub(root, database, blobs, Signer(root / "signing.key"), settings.part_bytes)
        _run(hub, listener, settings)


def _listen(port: int) -> socket.socket:
    # asyncio switches off Nagle's algorithm only where the protocol is spelt out; with it each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        problem = "is in use" if taken else f"cannot be opened ({getattr(error, 'strerror', None) or error})"
        raise InputError(f"--port {port}", problem, hint="use --port 0 to get a free one") from error
    return listener


def _run(hub: Hub, listener: socket.socket, settings: Settings) -> None:
    port = listener.getsockname()[1]

    def announce() -> None:
        print(f"endpoint http://{HOST}:{port}\ntoken_file {hub.root.resolve() / TOKEN_FILE}", flush=True)

    app = HubApp(hub, {f"{HOST}:{port}", f"localhost:{port}"})
    config = uvicorn.Config(
        Faults(app, settings.faults) if settings.faults else app,
        http="h11",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # Longer than clients keep idle connections, or they would meet one that is just being closed.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    server = _Server(config, announce)
    # uvicorn sends itself the signal again after its shutdown; by then there is nothing left to stop.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    if settings.stop_with_stdin:
        threading.Thread(target=_stop_at_end_of_stdin, args=(server,), daemon=True).start()
    asyncio.run(server.serve(sockets=[listener]))


def _stop_at_end_of_stdin(server: uvicorn.Server) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    server.should_exit = True


def log_to_stderr(*, verbose: bool) -> None:
    """Failures always, every request when ``verbose``; never tokens or query strings."""
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    logging.getLogger("hub.local").setLevel(logging.INFO if verbose else logging.WARNING)

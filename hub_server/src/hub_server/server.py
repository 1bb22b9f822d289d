"""The command line: ``hub-server serve`` and ``token``. One process per root, on 127.0.0.1 only."""

import asyncio
import errno
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from filelock import FileLock, Timeout
from typer.core import TyperGroup

from hub_server.storage.blobs import BlobStore
from hub_server.storage.credentials import Signer, add_user, ensure_token
from hub_server.storage.database import Database
from hub_server.storage.errors import CommandError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = logging.getLogger("hub_server")
HOST = "127.0.0.1"
GRACEFUL_STOP_SECONDS = 3  # for running requests, after a stop begins
FORCED_STOP_SECONDS = 4.5  # after a stop begins, the process ends even if a handler still runs
# Clients keep idle connections for a minute; a shorter time would close one that a client uses.
KEEP_ALIVE_SECONDS = 75


class Group(TyperGroup):
    """Commands whose failures are one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Print its CommandError or OSError in one line, and exit with a code."""
        try:
            return super().invoke(ctx)
        except (CommandError, OSError) as error:
            from hub_server.pages.readers import escape_hidden_characters

            print(f"error: {escape_hidden_characters(str(error))}", file=sys.stderr)
            raise typer.Exit(getattr(error, "exit_code", 1)) from None


# click keeps the line breaks of a paragraph that starts with a backspace.
app = typer.Typer(
    cls=Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""A Hugging Face Hub on this machine, for the demo, for tests and for work without a
    network.

    Start it, then point the official clients at it by their environment:

    \b
    hub-server serve --root local_hub --port 8765
    export HF_ENDPOINT=http://127.0.0.1:8765 HF_TOKEN_PATH=$PWD/local_hub/token
    export HF_HOME=$(mktemp -d)
    hf auth whoami

    The keys of a client's cache are repo ids: never share one HF_HOME between two Hubs.
    """,
)

Root = Annotated[Path, typer.Option(help="Folder of all data of the Hub; created when missing.")]
User = Annotated[str, typer.Option(help="The account; repos are named <user>/<name>.")]


@app.command()
def serve(
    root: Root,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    user: User = "demo",
    org: Annotated[
        list[str] | None, typer.Option(help="An organisation the user may write to; repeatable.")
    ] = None,
    part_bytes: Annotated[
        int,
        typer.Option(
            min=1 << 16, help="Large files above this size are uploaded in parts of this size."
        ),
    ] = 256 << 20,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log every request on stderr.")
    ] = False,
    stop_with_stdin: Annotated[
        bool,
        typer.Option(
            "--stop-with-stdin", help="Stop at the end of stdin, so as not to outlive the caller."
        ),
    ] = False,
    patience: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Timeout in seconds for a client that stops in the middle of a request "
            "or an answer.",
        ),
    ] = 60,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    When the Hub answers, stdout gets two lines: "endpoint http://127.0.0.1:PORT" and "token_file
    PATH". The token file (mode 0600) holds a token with the role "write"; ROOT/token_read one with
    the role "read". Later starts keep both.
    """
    from hub_server.app import HubApp
    from hub_server.handlers.call import Hub

    # Log failures, and every request when verbose. Tokens and query strings are never logged.
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    logging.getLogger("hub_server").setLevel(logging.INFO if verbose else logging.WARNING)
    with (
        lock_root(root),
        _open_listener(port) as listener,
        closing(Database(root / "hub.sqlite")) as database,
    ):
        # Open the store, the account and its tokens.
        blobs = BlobStore(root)
        blobs.remove_strays()
        add_user(database, user, tuple(org or ()))
        ensure_token(database, root / "token", user, "write")
        ensure_token(database, root / "token_read", user, "read")

        # Build the application for the port that was bound.
        port = listener.getsockname()[1]
        hub = Hub(database, blobs, Signer(root / "signing.key"), part_bytes)
        asgi = HubApp(hub, {f"{HOST}:{port}", f"localhost:{port}"}, patience)

        # The socket listens, so a client may connect before the server answers.
        print(f"endpoint http://{HOST}:{port}\ntoken_file {(root / 'token').resolve()}", flush=True)
        _run_server(asgi, listener, patience, stop_with_stdin=stop_with_stdin)


@app.command("token")
def create_token(
    root: Root,
    role: Annotated[Literal["read", "write"], typer.Option(help="What the token allows.")],
    user: User = "demo",
) -> None:
    """Make a new token and print the path of the file (mode 0600) that holds it.

    It works while the Hub runs. A user that does not exist yet is added.
    """
    _make_root(root)
    folder = root / "tokens"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{user}-{role}-{secrets.token_hex(3)}"
    with closing(Database(root / "hub.sqlite")) as database:
        add_user(database, user)
        ensure_token(database, path, user, role)
    print(path.resolve())


def _make_root(root: Path) -> None:
    """Create the folder ``root`` and its lock file where missing.

    Raises CommandError for a folder that cannot be written.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (root / "lock").touch()
    except OSError as error:
        hint = "give --root a folder that you may write to"
        problem = f"cannot be written ({error.strerror}); {hint}"
        raise CommandError(f"--root {root}: {problem}") from error


@contextmanager
def lock_root(root: Path) -> Iterator[None]:
    """Create ``root`` if missing, and lock it for this process during the block.

    Raises CommandError for a folder that cannot be written, or that another Hub has locked.
    """
    _make_root(root)
    try:
        with FileLock(root / "lock", timeout=0):
            yield
    except Timeout as error:
        hint = "stop it, or give this one another --root"
        problem = f"another local Hub is serving this folder; {hint}"
        raise CommandError(f"--root {root}: {problem}", exit_code=1) from error


def _open_listener(port: int) -> socket.socket:
    """Return a socket that listens on ``HOST``; port 0 takes a free port.

    Raises CommandError for a port that is in use, out of range or not allowed.
    """
    try:
        listener = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        problem = f"cannot be opened ({error})"
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            problem = "is in use"
        raise CommandError(f"--port {port}: {problem}; use --port 0 to get a free one") from error
    # With Nagle's algorithm each answer takes 40 ms; asyncio leaves it on for a given socket.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _run_server(
    asgi: "ASGIApp", listener: socket.socket, patience: float, *, stop_with_stdin: bool
) -> None:
    """Serve ``asgi`` until SIGTERM, SIGINT or, with ``stop_with_stdin``, the end of stdin.

    ``patience``: the timeout in seconds for a client that stops in the middle of a request or an
    answer.
    """
    import uvicorn

    from hub_server.connections import make_connection_class

    config = uvicorn.Config(
        asgi,
        http=make_connection_class(patience),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_STOP_SECONDS,
    )
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        if not server.should_exit:
            server.should_exit = True
            _start_forced_stop()

    def stop_at_end_of_stdin() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        stop()

    # While uvicorn serves, its own signal handlers call ``handle_exit``. Before and after that, the
    # handlers set here take the signals.
    server.handle_exit = stop  # type: ignore[assignment, method-assign]
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    if stop_with_stdin:
        threading.Thread(target=stop_at_end_of_stdin, daemon=True).start()
    asyncio.run(server.serve(sockets=[listener]))


def _start_forced_stop() -> None:
    """End this process after ``FORCED_STOP_SECONDS``, unless it ends before.

    Python cannot stop a thread, so a handler that never returns would keep the process alive. Blobs
    and the index are consistent at any moment, even after a SIGKILL, so the exit code is 0.
    """

    def end_process() -> None:
        log.error("stopped with a request unfinished; what was acknowledged is stored")
        os._exit(0)

    timer = threading.Timer(FORCED_STOP_SECONDS, end_process)
    timer.daemon = True
    timer.start()


def main() -> None:
    """Run the command ``hub-server``."""
    app(prog_name="hub-server")


if __name__ == "__main__":
    main()

"""The command line: ``python -m hub.local serve``, ``token`` and ``gc``."""

import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from hub.cli import new_app
from hub.local.access import add_user, keep_token
from hub.local.database import Database
from hub.local.gc import collect
from hub.local.server import Settings, locked, log_to_stderr, open_root
from hub.local.server import serve as run_server

# click keeps the line breaks of a paragraph that starts with a backspace.
app = new_app(
    """A Hugging Face Hub on this machine, for the demo, for tests and for work without a network.

    Start it, then point the official clients at it by their environment:

    \b
    python -m hub.local serve --root local_hub --port 8765
    export HF_ENDPOINT=http://127.0.0.1:8765 HF_TOKEN_PATH=$PWD/local_hub/token
    export HF_HOME=$(mktemp -d)
    hf auth whoami

    The clients' caches go by repo id alone: never share one HF_HOME between two Hubs.
    """
)

Root = Annotated[Path, typer.Option(help="Folder that holds everything the Hub knows; made when missing.")]
User = Annotated[str, typer.Option(help="The account; repos are named <user>/<name>.")]


@app.command()
def serve(
    root: Root,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    user: User = "demo",
    org: Annotated[list[str] | None, typer.Option(help="An organisation the user may write to; repeatable.")] = None,
    part_bytes: Annotated[
        int, typer.Option(min=1 << 16, help="Large files above this size are uploaded in parts of this size.")
    ] = 256 << 20,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every request on stderr.")] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop at the end of stdin, so as not to outlive the caller.")
    ] = False,
    faults: Annotated[Path | None, typer.Option(help="A plan of faults on purpose, to test clients with.")] = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    When the Hub answers, stdout gets two lines: "endpoint http://127.0.0.1:PORT" and "token_file PATH". The token file
    (mode 0600) holds a token with the role "write"; ROOT/token_read one with the role "read". Later starts keep both.
    """
    log_to_stderr(verbose=verbose)
    run_server(Settings(root, port, user, tuple(org or ()), part_bytes, stop_with_stdin, faults))


@app.command()
def gc(root: Root) -> None:
    """Free disk space while the Hub is stopped: old commits that no ref leads to, and contents that nothing needs.

    What was uploaded within the last 24 hours is kept, for it may still wait for its commit.
    """
    with locked(open_root(root)):
        freed = collect(root)
    print(f"removed {freed.commits} commits, {freed.files} contents, {freed.bytes:,} bytes")


@app.command()
def token(
    root: Root,
    role: Annotated[Literal["read", "write"], typer.Option(help="What the token allows.")],
    user: User = "demo",
) -> None:
    """Make a new token and print the path of the file (mode 0600) that holds it; works while the Hub runs.

    A user that does not exist yet is added.
    """
    database = Database(open_root(root) / "hub.sqlite")
    try:
        add_user(database, user)
        folder = root / "tokens"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{user}-{role}-{secrets.token_hex(3)}"
        keep_token(database, path, user, role)
    finally:
        database.close()
    print(path.resolve())

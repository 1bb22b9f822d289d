"""A local Hub as a child process: ``with LocalHub(tmp_path) as hub: HfApi(endpoint=hub.endpoint, token=hub.token)``."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hub_server.storage.errors import CommandError

_START_SECONDS, _STOP_SECONDS = 60, 15
_CODE_ROOT = Path(__file__).resolve().parents[1]  # where ``python -m`` finds this package


class LocalHub:
    """One server process on ``root``; starts as a context manager or with ``start``, and ends with its parent."""

    def __init__(
        self,
        root: Path | str,
        port: int = 0,
        *,
        user: str = "demo",
        orgs: Sequence[str] = (),
        options: Sequence[str] = (),
        home: Path | str | None = None,
    ):
        self.root = Path(root).absolute()
        self.home = Path(home).absolute() if home else self.root / "client_home"
        self.log_file, self.token_file = self.root / "server.log", self.root / "token"
        self.endpoint = ""
        self.process: subprocess.Popen[str] | None = None
        named = [word for org in orgs for word in ("--org", org)]
        self._options = ["--root", str(self.root), "--port", str(port), "--user", user, *options, *named]

    @property
    def token(self) -> str:
        """The token with the role "write"."""
        return self.token_file.read_text(encoding="utf-8").strip()

    def start(self) -> "LocalHub":
        """Launch the server and wait until it answers; ``CommandError`` with its last line when it does not."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "hub_server", "serve", *self._options, "--stop-with-stdin"]
        with self.log_file.open("ab") as log:
            written = log.tell()
            self.process = subprocess.Popen(  # noqa: S603 (our own module)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8", cwd=_CODE_ROOT
            )
        watchdog = threading.Timer(_START_SECONDS, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        word, _, self.endpoint = self.process.stdout.readline().strip().partition(" ")
        watchdog.cancel()
        if word != "endpoint":
            self.kill()
            words = self.log_file.read_bytes()[written:].decode(errors="replace").strip().splitlines()
            reason = words[-1] if words else "no output"
            raise CommandError(f"local Hub on {self.root}: did not start: {reason}", exit_code=1)
        return self

    def stop(self) -> None:
        """Terminate the server, and kill it when that does not help."""
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_SECONDS)
            self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def __enter__(self) -> "LocalHub":
        return self if self.process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client_environment(self, home: Path | str | None = None) -> dict[str, str]:
        """Return the present environment with this Hub as the only one; set it before a client's imports.

        ``home`` is the client's cache (default: one under the root), never that of another Hub: repo ids are its keys.
        """
        elsewhere = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_CACHE")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(elsewhere)}
        return kept | {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN_PATH": str(self.token_file),
            "HF_HOME": str(home or self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

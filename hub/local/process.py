"""A local Hub as a child process, for tests and ``make demo``.

with LocalHub(tmp_path) as hub:
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    subprocess.run([sys.executable, "client.py"], env=hub.client_environment())
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from hub.errors import RunError

_START_SECONDS, _STOP_SECONDS = 60, 15


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
        self.log_file = self.root / "server.log"
        self.endpoint = ""
        self.token_file = self.root / "token"
        self.process: subprocess.Popen[str] | None = None
        self._options = ["--root", str(self.root), "--port", str(port), "--user", user, *options]
        for org in orgs:
            self._options += ["--org", org]

    @property
    def token(self) -> str:
        """The token with the role "write"."""
        return self.token_file.read_text().strip()

    def start(self) -> "LocalHub":
        """Launch the server and wait until it answers; ``RunError`` with its own words when it does not."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "hub.local", "serve", *self._options, "--stop-with-stdin"]
        with self.log_file.open("ab") as log:
            written = log.tell()
            self.process = subprocess.Popen(  # noqa: S603 (our own module)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=_code_root()
            )
        said = self._read_start()
        if "endpoint" not in said or "token_file" not in said:
            self.kill()
            words = self.log_file.read_bytes()[written:].decode(errors="replace").strip().splitlines()
            raise RunError(f"local Hub on {self.root}", f"did not start: {words[-1] if words else 'it said nothing'}")
        self.endpoint, self.token_file = said["endpoint"], Path(said["token_file"])
        return self

    def _read_start(self) -> dict[str, str]:
        assert self.process is not None and self.process.stdout is not None
        watchdog = threading.Timer(_START_SECONDS, self.process.kill)
        watchdog.start()
        lines = [self.process.stdout.readline().split(maxsplit=1) for _ in range(2)]
        watchdog.cancel()
        return {line[0]: line[1].strip() for line in lines if len(line) == 2}

    def stop(self) -> None:
        """End the server: kindly, and by force when that does not help."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self._forget()

    def kill(self) -> None:
        """End the server at once, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self._forget()

    def _forget(self) -> None:
        assert self.process is not None
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None

    def __enter__(self) -> "LocalHub":
        return self if self.process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def env(self, home: Path | str | None = None) -> dict[str, str]:
        """The variables that make a client use this Hub and nothing else; set them before it imports anything.

        ``home`` is the client's cache (default: one under the root). A cache knows repos by id only, so it must not be
        shared with another Hub.
        """
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN_PATH": str(self.token_file),
            "HF_HOME": str(home or self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def client_environment(
        self, home: Path | str | None = None, base: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """``env`` on top of the present environment, without the settings there that would lead a client elsewhere."""
        kept = {
            key: value
            for key, value in (os.environ if base is None else base).items()
            if not key.startswith(("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_CACHE"))
        }
        return kept | self.env(home)


def start(root: Path | str, port: int = 0, *, user: str = "demo", orgs: Sequence[str] = ()) -> LocalHub:
    """A running ``LocalHub``; use it in a ``with`` statement, or call ``stop``."""
    return LocalHub(root, port, user=user, orgs=orgs).start()


def _code_root() -> Path:
    """Where ``python -m hub.local`` finds this package, wherever the caller runs."""
    return Path(__file__).resolve().parents[2]

"""Tokens stay where they belong: a session that goes well and wrong in every way, and a search of
all it wrote.
"""

import base64
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fault_injection import KINDS
from faults import STARTED, FaultyHub, Launcher
from growth import RECIPE_FILE, SMALL, record
from huggingface_hub import HfApi
from local_hub import ask, mint

NAME = RECIPE_FILE.stem
XET_TOKEN = re.compile(rb"\b1\d{9}-[0-9a-f]{64}\b")


def forms(token: str) -> list[bytes]:
    """The token and what base64 makes of it at any position, as in the header of basic
    authentication.
    """
    encoded = [
        base64.b64encode(b"x" * shift + token.encode())[4 if shift else 0 : -4]
        for shift in range(3)
    ]
    return [token.encode(), *encoded]


def content(path: Path) -> bytes:
    """A file's bytes; of a parquet file, its unpacked values too."""
    raw = path.read_bytes()
    return (
        raw + str(pq.read_table(path).to_pylist()).encode()
        if raw[:4] == raw[-4:] == b"PAR1"
        else raw
    )


def holding(folder: Path, token: str) -> set[Path]:
    wanted = forms(token)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path for path in files if any(form in content(path) for form in wanted)}


def test_the_search_finds_a_token_in_any_form(tmp_path):
    token = "hf_" + secrets.token_hex(17)
    for shift in range(3):
        (tmp_path / str(shift)).write_bytes(
            b"basic " + base64.b64encode(b"u" * shift + b":" + token.encode() + b"!")
        )
    (tmp_path / "plain").write_text(f"a {token} b")
    (tmp_path / "none").write_text(token[:-1])
    assert {path.name for path in holding(tmp_path, token)} == {"0", "1", "2", "plain"}


class Session:
    """A Hub with faults, tokens of all kinds, and one folder that everything is written to."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder, self.faulty = folder, FaultyHub(folder / "faulty", orgs=["acme"])
        self.hub = self.faulty.hub
        self.tokens = {
            "write": self.hub.token,
            "read": (self.hub.root / "token_read").read_text(),
            "alice": mint(self.hub, "alice", "write"),
            "wrong": "hf_" + secrets.token_hex(17),
        }
        # the generator runs with it in its environment
        patch.setenv("HF_TOKEN", self.tokens["write"])
        self.growth = record(folder / "once")
        environment = self.hub.client_environment(folder / "home") | {"HF_HUB_DISABLE_XET": "0"}
        environment["HF_XET_CLIENT_RETRY_BASE_DELAY"] = "10ms"
        self.launcher = Launcher(environment, folder / "said")
        self.run_directory = folder / "artifacts" / "datasets" / NAME

    def close(self) -> None:
        self.launcher.__exit__()
        self.hub.stop()

    def publish(self, who: str, *broken: str) -> tuple[int, str]:
        """The command for a finished run, by somebody: exit code, and all it said with every logger
        at work.
        """
        words = [str(self.run_directory), "--org", "acme", "--yes"]
        running = self.launcher.start("talkative", self.tokens[who], broken, "publish", words)
        return running.code(), running.said()

    def release(self, who: str, *broken: str) -> tuple[int, str]:
        """The command that publishes while a run grows, on an empty disk."""
        shutil.rmtree(self.run_directory, ignore_errors=True)
        started = self.run_directory.parent / STARTED
        started.unlink(missing_ok=True)
        words = [
            str(RECIPE_FILE),
            "--org",
            "acme",
            "--yes",
            "--artifacts",
            str(self.folder / "artifacts"),
        ]
        for setting in (f"model.path={self.folder / 'once' / 'lm'}", *SMALL):
            words += ["--set", setting]
        running = self.launcher.start("talkative", self.tokens[who], broken, "release", words)
        while running.alive():
            if started.exists():
                started.unlink()
                self.growth.lay(self.run_directory, 8)
                time.sleep(0.3)
                self.growth.lay(self.run_directory, len(self.growth) - 1)
            time.sleep(0.01)
        return running.code(), running.said()


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        made = Session(tmp_path_factory.mktemp("tokens"), patch)
        yield made
        made.close()


def refused(session: Session) -> None:
    """Tokens that may not: refused in one line, and with a traceback when the wording of the
    refusal fails.
    """
    for who, code, words in (
        ("wrong", 1, "401"),
        ("read", 1, "may only read"),
        ("alice", 2, "allowed: alice"),
    ):
        found, said = session.release(who)
        assert found == code and words in said and "Traceback" not in said, said
    code, said = session.release("wrong", "sts_dino.hub.client.connection.convert_error")
    assert code == 1 and said.count("Traceback") > 1 and "During handling" in said, said


def published_among_faults(session: Session) -> None:
    """Growing, released and published again, through every fault; also with an exception that
    nobody expects.
    """
    api = HfApi(endpoint=session.hub.endpoint, token=session.tokens["write"])
    for kind in KINDS:
        session.faulty.plan(share=0.0)
        api.delete_repo(f"acme/{NAME}", repo_type="dataset", missing_ok=True)
        session.faulty.plan(seed=1, share=0.2, kinds=[kind], slow_seconds=0.05)
        code, said = session.release("write")
        assert code == 0, said
    session.faulty.plan(share=0.0)
    assert "xet.put_shard" in session.faulty.answered()
    assert session.publish("write")[0] == 0
    for who in ("write", "read"):
        code, said = session.publish(who, "sts_dino.hub.client.publish.find_changes")
        assert code == 1 and "Traceback" in said, said
    card = session.run_directory / "README.md"
    card.write_text(card.read_text() + "edited\n")
    assert session.publish("write")[0] == 2


def failed_inside(session: Session) -> None:
    """The server meets something that it does not expect, and its log says so with the stack."""
    (session.hub.root / "blobs").rename(session.hub.root / "away")
    for who in ("write", "read"):
        path = f"/datasets/acme/{NAME}/resolve/main/README.md"
        assert ask(session.hub, "GET", path, token=session.tokens[who]).status == 500
    (session.hub.root / "away").rename(session.hub.root / "blobs")
    assert "Traceback" in session.hub.log_file.read_text()


@pytest.mark.slow("speaks to a Hub with every command and searches all it left")
def test_tokens_are_in_their_own_files_and_nowhere_else(session):
    refused(session)
    published_among_faults(session)
    failed_inside(session)
    root, folder = session.hub.root, session.folder
    names = {path.name for path in folder.rglob("*")}
    assert {
        "server.log",
        "hub.sqlite",
        "README.md",
        "manifest.json",
        "0001-talkative.txt",
        "blobs",
        "xet",
    } <= names
    homes = {
        "write": {root / "token"},
        "read": {root / "token_read"},
        "alice": set((root / "tokens").iterdir()),
    }
    assert {who: holding(folder, token) for who, token in session.tokens.items()} == {
        **homes,
        "wrong": set(),
    }
    assert not [
        path for path in folder.rglob("*") if path.is_file() and XET_TOKEN.search(path.read_bytes())
    ]

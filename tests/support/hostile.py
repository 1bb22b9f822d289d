"""Every command that speaks to a Hub, and a Hub that answers wrongly."""

import contextlib
import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from faults import FaultyHub, Launcher

from sts_dino.cli import COMMANDS

NAMES = (
    "publish",
    "release",
    "write",
    "train",
    "score",
    "quality",
    "decontaminate",
    "annotate",
)
MODULES = [COMMANDS[name].module for name in NAMES]
LIBRARIES = [
    "sentence_transformers",
    "transformers.models.llama.modeling_llama",
    "datasets.packaged_modules.parquet.parquet",
]
DATASET = {"repo_type": "dataset"}
LONGEST = 30  # seconds of a command; longer is a hang


class Elsewhere(ThreadingHTTPServer):
    """Another host, which a wrong answer sends clients to; it keeps the tokens that they bring."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.asked, self.tokens = 0, list[str]()
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A client that is gone is none."""

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}"  # another name than the Hub's


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked += 1
        if "Authorization" in self.headers:
            self.server.tokens.append(self.headers["Authorization"])
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"{}")

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    command: str
    wrong: str
    request: str
    code: int
    said: str
    met: int  # wrong answers
    seconds: float

    def complaint(self, token: str) -> str | None:
        """What is not as it should be: one line that says what is wrong, and an exit code."""
        errors = [line for line in self.said.splitlines() if line.startswith("error: ")]
        if "Traceback" in self.said or "\x1b" in self.said or token in self.said:
            return "a traceback, an escape sequence or the token"
        if self.met and self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if (self.code in (1, 2)) != (len(errors) == 1):
            return f"{len(errors)} errors with exit code {self.code}"
        return "a hang" if self.seconds > LONGEST else None


class Hostile:
    """The Hub, what is on it, and the commands. Use it as a context manager."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __enter__(self) -> "Hostile":
        with contextlib.ExitStack() as stack:
            self.elsewhere = Elsewhere()
            stack.callback(self.elsewhere.shutdown)
            self.faulty = FaultyHub(self.folder / "faulty", orgs=["acme"])
            self.hub = self.faulty.hub
            stack.callback(self.hub.stop)
            self.home = self.folder / "home"
            quiet = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
            environment = self.hub.client_environment(self.home) | quiet
            self.launcher = stack.enter_context(
                Launcher(environment, self.folder / "said", *LIBRARIES, *MODULES)
            )
            self.commands = self._fill()
            done = self.run("train")
            assert done.code == 0, done.said
            self.api.create_repo("acme/encoder")
            self.api.upload_folder(
                repo_id="acme/encoder", folder_path=self.folder / "out" / "trained"
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _fill(self) -> dict[str, list[str]]:
        """Put on the Hub what the commands read; each command with its words, module first."""
        from huggingface_hub import HfApi
        from small_runs import random_run
        from tiny_lm import make_lm
        from training_inputs import PAIRS_CARD, sts_rows, write_dataset, write_recipe

        self.api = HfApi(endpoint=self.hub.endpoint, token=self.hub.token)
        api, folder = self.api, self.folder
        pairs = write_dataset(
            folder / "pairs", {"train": sts_rows(40), "validation": sts_rows(5, seed=1)}
        )
        (pairs / "README.md").write_text(PAIRS_CARD)
        make_lm(folder / "lm")
        for name, kind in (("pairs", "dataset"), ("lm", "model")):
            api.create_repo(f"acme/{name}", repo_type=kind)
            api.upload_folder(repo_id=f"acme/{name}", folder_path=folder / name, repo_type=kind)
            api.create_tag(f"acme/{name}", tag="v1", repo_type=kind)
        there = {"repo_id": "acme/pairs", "revision": "v1"}
        texts = {"kind": "hub", **there, "splits": ["train"], "columns": ["sentence1"]}
        lm = {"repo_id": "acme/lm", "revision": "v1", "license": "mit"}
        data = {**there, "config": "postprocessed", "example_type": "sts", "loss": "CoSENTLoss"}
        train = write_recipe(folder / "trained", datasets=[data], base=lm)
        run, out = random_run(folder / "artifacts" / "datasets" / "random-run"), folder / "out"
        publish = ["--org", "acme", "--yes", "--patience", "1"]
        write = _recipe(folder / "written.yaml", texts, lm)
        return {
            "publish": [str(run), *publish],
            "release": [
                str(run / "recipe.yaml"),
                *publish,
                "--artifacts",
                str(folder / "artifacts"),
            ],
            "write": [str(write), "--out", str(out / "written")],
            "write examples": [str(_few_shot(folder / "few.yaml")), "--dry-run"],
            "train": [str(train), "--out", str(out / "trained")],
            "score": [
                *[
                    "--model",
                    "acme/encoder",
                    "--tasks",
                    "stsb/cosine",
                    "--hub-data",
                    "acme/pairs@v1",
                    "--out",
                ],
                str(out / "s"),
            ],
            "quality": ["acme/pairs@v1"],
            "decontaminate": ["acme/pairs@v1"],
            "annotate": ["acme/pairs@v1", "--sample", "20", "--report"],
        }

    def run(self, command: str, wrong: str = "", request: str = "") -> Ended:
        """One command, in a process of its own with an empty cache."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        before, started = self.faulty.injected().total(), time.monotonic()
        if wrong:
            requests = [request] if request else []
            slow = {"slow_seconds": 0.2, "elsewhere": self.elsewhere.url}
            self.faulty.plan(share=1.0, kinds=[wrong], requests=requests, **slow)
        running = self.launcher.start("command", command.split()[0], self.commands[command])
        while running.alive() and time.monotonic() - started < LONGEST:
            time.sleep(0.01)
        if running.alive():
            running.kill()
        code = running.code()
        self.faulty.plan(share=0.0)
        met = self.faulty.injected().total() - before
        return Ended(command, wrong, request, code, running.said(), met, time.monotonic() - started)

    def unpublish(self) -> None:
        """Take what the commands published from the Hub again."""
        self.api.delete_repo("acme/random-run", missing_ok=True, **DATASET)

    def asked(self, command: str) -> Counter[str]:
        """The kinds of requests that a command makes when nothing is wrong."""
        before = self.faulty.answered()
        self.run(command)
        return self.faulty.answered() - before


def _recipe(path: Path, source: dict, model: dict) -> Path:
    import yaml

    recipe = yaml.safe_load(Path("recipes/demo/sts-dino-x2.yaml").read_text())
    decoding = recipe["decoding"] | {"max_new_tokens": 6, "max_attempts": 3}
    words = {"description": "texts", "license": "stsb-captions-and-headlines"}
    recipe |= {
        "source": source | words | {"limit": 24},
        "model": model,
        "decoding": decoding,
        "license": "mixed",
    }
    path.write_text(yaml.safe_dump(recipe))
    return path


def _few_shot(path: Path) -> Path:
    import yaml

    recipe = yaml.safe_load(Path("recipes/demo/auto-nli.yaml").read_text())
    examples = {
        "kind": "hub",
        "repo_id": "acme/pairs",
        "revision": "v1",
        "description": "pairs",
        "license": "cc0-1.0",
    }
    examples |= {"premise": "sentence1", "hypothesis": "sentence2", "label": "score"}
    # as floats are
    examples["labels"] = {
        "entailment": "0.8999999761581421",
        "contradiction": "0.10000000149011612",
    }
    path.write_text(yaml.safe_dump(recipe | {"few_shot": {"shots": [1], "examples": examples}}))
    return path

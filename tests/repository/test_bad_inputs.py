"""Every bad input of ``bad_inputs.yaml`` is refused with one line that names the place and the
remedy.

Keys of a row: ``files`` (name: sentences, ``{text: ..., then: [PIECE, TIMES]}``, ``{lines: [...]}``
or ``{latin-1: ...}``), ``folder``; ``dataset`` and ``model``: the demo's recipe as ``recipe.yaml``
with these settings, ``without`` one of its keys; ``run``: a copy of a finished run with these keys
of its ``manifest``, a shard ``cut``, its ``card`` for another organisation; ``evaluations``: copies
of evaluations; ``lm``: a copy of the built-in language model without these files, its config
changed by ``lm_config``; ``make``: a function of ``MAKERS``; ``during``: a context of this module.
``own_process`` rows start a child process and are slow; ``loads_a_model`` lifts their limit of CPU
time.
"""

import ctypes
import json
import os
import resource
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from filelock import FileLock
from forked_python import python_in

import sts_dino.cli
from sts_dino.hub import cli
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe_file import apply_overrides
from sts_dino.model_cards.render import render, write

ROOT = Path(__file__).resolve().parents[2]
LM = find_asset("demo-lm").resolve()
CASES = yaml.safe_load(Path(__file__).with_name("bad_inputs.yaml").read_text(encoding="utf-8"))
SENTENCES = [f"A man plays the flute in street number {number}." for number in range(40)]
CPU_SECONDS, SECONDS = 2.0, 120
LONGEST = 1_000  # characters of an error
CLOSED_PORT = "http://127.0.0.1:9"
UNKNOWN_TOKEN = "hf_" + "x" * 34


@dataclass
class Box:
    """The folder of one case; ``world`` holds a finished run and two evaluations."""

    folder: Path
    world: Path

    def file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = SENTENCES if content == "sentences" else content.get("lines", [])
        text = "".join(f"{line}\n" for line in lines) or content.get("text", "")
        piece, times = ("", 0) if content == "sentences" else content.get("then", ("", 0))
        latin = "latin-1" in content
        path.write_bytes(
            content["latin-1"].encode("latin-1") if latin else (text + piece * times).encode()
        )

    def recipe(self, base, settings, without=None):
        tree = yaml.load((ROOT / "recipes" / base).read_text("utf-8"), yaml.BaseLoader)
        tree = apply_overrides(tree, settings)
        tree.pop(without, None)
        (self.folder / "recipe.yaml").write_text(
            yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), "utf-8"
        )

    def dataset(self, settings=(), without=None):
        self.file("texts.txt", "sentences")
        source = f"source={{kind: file, path: {self.folder / 'texts.txt'}, description: texts, license: mit}}"
        own = [source, f"model.path={LM}", "source.limit=3", "license=cc-by-nc-sa-4.0"]
        self.recipe(
            "demo/sts-dino-x2.yaml", [*own, "postprocess.validation_fraction=0", *settings], without
        )

    def model(self, settings):
        spec = (
            f"path: {self.world / 'run'}, config: postprocessed, example_type: sts, "
            "loss: CosineSimilarityLoss"
        )
        own = [f"datasets=[{{{spec}, license: mit}}]", f"base.path={LM}", "evaluation=[]"]
        self.recipe("demo/demo-sts-dino.yaml", [*own, *settings])

    def edit(self, name, changes):
        """Set keys of a JSON file."""
        path = self.folder / name
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")

    def make(self, case):
        for name in [*(["run"] if case.get("run") else []), *case.get("evaluations", [])]:
            shutil.copytree(self.world / name, self.folder / name)
        if "manifest" in case:
            self.edit("run/manifest.json", case["manifest"])
        if "cut" in case:
            path = min((self.folder / "run").glob(case["cut"]))
            path.write_bytes(path.read_bytes()[:-10])
        if "card" in case:
            write(self.folder / "run", render(self.folder / "run", f"{case['card']}/sts-dino-x2"))
        if "lm" in case:
            shutil.copytree(LM, self.folder / "lm", ignore=shutil.ignore_patterns(*case["lm"]))
            self.edit("lm/config.json", case.get("lm_config", {}))
        if "folder" in case:
            (self.folder / case["folder"]).mkdir()
        for name, content in case.get("files", {}).items():
            self.file(name, content)
        if "dataset" in case:
            self.dataset(case["dataset"], case.get("without"))
        if "model" in case:
            self.model(case["model"])
        if "make" in case:
            MAKERS[case["make"]](self)


def parquet(box, column, change=bytes):
    path = box.folder / "texts.parquet"
    pq.write_table(pa.table({"text": column}), path, compression="zstd")
    path.write_bytes(change(path.read_bytes()))


def flipped(content, start=2000, count=200):
    """Other bytes in the middle of a file: pages that are no longer what their headers say."""
    changed = bytes(byte ^ 0xFF for byte in content[start : start + count])
    return content[:start] + changed + content[start + count :]


def damaged_rows(box):
    """A run with pages that cannot be unpacked, and checksums that fit."""
    run = shutil.copytree(box.world / "run", box.folder / "run")
    path = min(run.glob("data/postprocessed/train-*.parquet"))
    path.write_bytes(flipped(path.read_bytes(), 60, 100))
    known = run_dir.read_manifest(run)
    files = [
        run_dir.describe_file(run, f.path, config=f.config, split=f.split, rows=f.rows)
        for f in known.files
    ]
    run_dir.write_manifest(run, known.model_copy(update={"files": tuple(files)}))


MAKERS = {
    "cut_parquet": lambda box: parquet(box, SENTENCES * 100, lambda content: content[:300]),
    "damaged_pages": lambda box: parquet(
        box, [f"{text} {n}" for text in SENTENCES for n in range(99)], flipped
    ),
    "column_of_bytes": lambda box: parquet(box, pa.array([b"\xff\x00 bytes"] * 5, pa.binary())),
    "damaged_rows": damaged_rows,
    "unreadable": lambda box: (
        box.file("texts.txt", "sentences"),
        (box.folder / "texts.txt").chmod(0),
    ),
}


@contextmanager
def taken_port(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"port": str(server.getsockname()[1])}


@contextmanager
def run_at_work(box):
    with FileLock(box.folder / "out.lock"):
        yield {}


@contextmanager
def hub(box, token=None):
    """The embedded Hub with the organisation acme, and the dataset acme/sts-dino-x2 of another
    author.
    """
    from huggingface_hub import HfApi

    from hub_server.process import LocalHub

    with LocalHub(box.folder / "hub", orgs=["acme"]) as server:
        api, where = HfApi(endpoint=server.endpoint, token=server.token), {"repo_type": "dataset"}
        repo = api.create_repo("acme/sts-dino-x2", **where).repo_id
        api.upload_file(
            path_or_fileobj=b"# Mine\n", path_in_repo="README.md", repo_id=repo, **where
        )
        yield {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": server.token if token is None else token}


DURING = {
    "taken_port": taken_port,
    "run_at_work": run_at_work,
    "hub": hub,
    "hub_with_unknown_token": lambda box: hub(box, UNKNOWN_TOKEN),
    "hub_without_token": lambda box: hub(box, ""),
}


@dataclass(frozen=True)
class Refusal:
    """Exit code, standard error, and CPU seconds where the case had its own process."""

    code: int
    stderr: str
    cpu_s: float = 0.0


def called_here(words, capfd):
    """``sts-dino WORDS`` in this process."""
    app, code = sts_dino.cli.make_app(), 0
    try:
        with patch.object(sys, "argv", ["sts-dino", *words]):
            cli.run_app(lambda: app(prog_name="sts-dino"))
    except SystemExit as end:
        code = end.code or 0
    return Refusal(code, capfd.readouterr().err)


def called_apart(words, folder, environment, case, home):
    """``sts-dino WORDS`` in a child process without root's right to read and write what permissions
    forbid.
    """
    libc = ctypes.CDLL(None)

    def limit():
        for capability in (1, 2):
            libc.prctl(24, capability)  # PR_CAPBSET_DROP
        if "file_limit" in case:
            resource.setrlimit(resource.RLIMIT_FSIZE, (case["file_limit"],) * 2)

    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGING_FACE"))
    }
    kept |= {
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(home),
        "HF_ENDPOINT": CLOSED_PORT,
        "COLUMNS": "200",
    } | environment
    forked = "loads_a_model" in case and "file_limit" not in case
    command = [python_in(kept) if forked else sys.executable, "-m", "sts_dino", *words]
    pipes = {"capture_output": True, "text": True, "timeout": SECONDS, "check": False}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=kept, preexec_fn=limit, **pipes)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Refusal(
        done.returncode,
        done.stderr,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def faults(case, found):
    """Why a refusal is wrong: exit code, number of error lines, missing words, traceback, CPU time."""
    lines = found.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    checks = {
        f"exit code {found.code}": found.code == case.get("code", 2),
        f"{len(errors)} lines of error": len(errors) == 1,
        "a traceback": "Traceback" not in found.stderr,
        "a line after its error": not errors or lines[-1] in errors,
        "an endless line": all(len(line) < LONGEST for line in errors),
        f"{found.cpu_s:.1f} CPU seconds": found.cpu_s <= CPU_SECONDS or "loads_a_model" in case,
    }
    checks |= {
        f"{word!r} is missing": any(word in line for line in errors) for word in case["says"]
    }
    return [fault for fault, holds in checks.items() if not holds]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(place)
        app = sts_dino.cli.make_app()
        Box(place, place).dataset()
        (place / "letters.py").write_text(
            "import numpy as np\n\n\ndef encode(texts):\n"
            "    return np.array([[text.count(chr(97 + n)) + 0.1 for n in range(26)] for text in texts])\n"
            "\n\ndef as_lists(texts):\n    return encode(texts).tolist()\n"
            "\n\ndef one_vector(texts):\n    return encode(texts)[0]\n"
            "\n\ndef failing(texts):\n    raise ValueError('no such\\nword')\n"
        )
        (place / "broken_module.py").write_text("def f(:")
        score = "score --model python:letters:encode --tasks stsb/cosine --no-cache --set bootstrap_samples=100"
        for line in (
            "write recipe.yaml --out run",
            "card run --repo-id acme/sts-dino-x2",
            f"{score} --limit 10 --out ten",
            f"{score} --limit 20 --out twenty",
        ):
            app(line.split(), prog_name="sts-dino", standalone_mode=False)
        yield place
    sys.modules.pop("letters", None)


MARKED = [
    pytest.param(
        case,
        marks=pytest.mark.slow("a process of its own") if "own_process" in case else (),
        id=case["did"],
    )
    for case in CASES
]


@pytest.mark.parametrize("case", MARKED)
def test_bad_input_is_refused_in_one_line_with_the_remedy(
    case, world, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    box, environment = Box(tmp_path, world), case.get("environment", {})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    box.make(case)
    capfd.readouterr()
    with DURING.get(case.get("during"), lambda box: nullcontext({}))(box) as given:
        words = shlex.split(case["words"].format(lm=LM, **given))
        if "own_process" in case:
            found = called_apart(words, tmp_path, environment | given, case, world / "home")
        else:
            found = called_here(words, capfd)
    assert faults(case, found) == [], found.stderr


def test_every_command_has_its_bad_inputs():
    maintainers = {"demo", "verify", "pin-data", "reference"}  # of a clone, no input
    assert {case["words"].split()[0] for case in CASES} >= set(sts_dino.cli.COMMANDS) - maintainers
    assert len({case["did"] for case in CASES}) == len(CASES)

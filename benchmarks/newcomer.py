"""A newcomer's path, step by step: python -m benchmarks.newcomer [CORPUS] [--lm gemma] [--installed] [--json FILE]

Empty folder, installation, ``sts-dino new``, ``adapt`` with its report, people's judgements, publication on the
embedded Hub, loading by name from a clean process. Every step is a command line as a person types it, in a process of
its own; no file is written by hand. What came out is kept (``benchmarks.adapted``). The judgements are planted (each by
the words that a pair shares, whatever its label is): the page on which people give them is clicked through in
``tests/eval/test_eval_annotate.py``.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.trials import table, write_results
from eval.audit.source import find_rows
from eval.audit.survey import AnswerStore, draw, read_examples
from hub import cli
from hub.errors import RunError
from hub.word_overlap import word_overlap
from hub_server.process import LocalHub

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "assets" / "first-texts" / "wikipedia.txt"
SENTENCES = 300
ORG = "newcomer"
ANNOTATOR = "newcomer"
EXTRAS = "train,eval,annotate"
LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets")

app = cli.new_app(__doc__)


@dataclass
class Newcomer:
    """A newcomer's machine: folder, Python, the command ``sts-dino`` as words, the environment; the steps so far."""

    folder: Path
    python: str
    command: list[str]
    environment: dict[str, str]
    steps: list[dict[str, Any]] = field(default_factory=list)

    def type(self, *words: str) -> str:
        """Run a command line of ``sts-dino`` and note how long it took; what it printed. Raises RunError."""
        return self.run("sts-dino", [*self.command, *words], shlex.join(["sts-dino", *words]))

    def run(self, name: str, command: list[str], shown: str) -> str:
        """Run any command line. Raises RunError with its last words when it fails."""
        started = time.monotonic()
        done = subprocess.run(  # noqa: S603 - our own commands
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RunError(name, f"{shown} failed (exit code {done.returncode}): {done.stderr[-2000:]}")
        told = re.sub(r"(?<![^\s'])/[^\s']*/(?=[^\s/'])", "", shown)  # no folder of this machine
        self.steps.append({"command": told, "seconds": round(time.monotonic() - started, 1)})
        return done.stdout


@app.command()
def main(
    corpus: Annotated[Path, typer.Argument(metavar="[CORPUS]", help="Texts, one a line")] = CORPUS,
    sentences: Annotated[int, typer.Option("--sentences", min=40, help="So many of them")] = SENTENCES,
    lm: Annotated[str, typer.Option("--lm", help="As sts-dino new takes it; gemma: this clone's")] = "builtin",
    lm_license: Annotated[str | None, typer.Option("--lm-license", help="Of another language model")] = None,
    encoder: Annotated[str | None, typer.Option("--encoder", help="As sts-dino adapt takes it")] = None,
    judged: Annotated[int, typer.Option("--judged", min=10, help="Pairs that are judged")] = 100,
    installed: Annotated[bool, typer.Option("--installed", help="Skip the installation: use this environment")] = False,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="Keep what is made there")] = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """Walk a newcomer's path and print the seconds of each step.

    Examples:

      python -m benchmarks.newcomer --json benchmarks/results/newcomer.json

      python -m benchmarks.newcomer assets/first-texts/stadtbuecherei.de.txt --sentences 100 --lm gemma --installed

      python -m benchmarks.newcomer --sentences 50 --lm artifacts/lm/gemma-3-270m/gemma-3-270m-q4_k_m.gguf \
        --lm-license gemma --encoder static --installed
    """
    texts = [line for line in corpus.read_text(encoding="utf-8").splitlines() if line][:sentences]
    with tempfile.TemporaryDirectory() as made:
        folder = (keep or Path(made) / "empty").resolve()
        folder.mkdir(parents=True)
        with LocalHub(Path(made) / "hub", orgs=[ORG]) as hub:
            found = walk(folder, texts, Words.of(lm, lm_license, encoder), judged, hub, installed)
        found["corpus"] = corpus.name
    shown = [[step["command"], f"{step['seconds']:.1f}"] for step in found["steps"]]
    print(table(["command", "seconds"], shown))
    print(found["agreement"])
    if out is not None:
        write_results(out, found, LIBRARIES)


@dataclass(frozen=True)
class Words:
    """What is typed after ``sts-dino new`` and ``sts-dino adapt`` beside the corpus."""

    new: tuple[str, ...] = ("--lm", "builtin")
    adapt: tuple[str, ...] = ()

    @classmethod
    def of(cls, lm: str, lm_license: str | None, encoder: str | None) -> "Words":
        """The options that were given to this command; a path of this clone is one that the folder can see."""
        place = "artifacts/lm/gemma-3-270m" if lm == "gemma" else lm
        given = str((ROOT / place).resolve()) if (ROOT / place).exists() else lm
        license_id = lm_license or ("gemma" if lm == "gemma" else None)
        licensed = ("--lm-license", license_id) if license_id else ()
        return cls(("--lm", given, *licensed), ("--encoder", encoder) if encoder else ())


def walk(folder: Path, texts: list[str], words: Words, judged: int, hub: LocalHub, installed: bool) -> dict[str, Any]:
    """The path in an empty folder; what each step took and what came out of it. Raises RunError where it breaks."""
    from benchmarks.adapted import figures  # with the libraries that it reads them by

    environment = hub.client_environment() | {"TOKENIZERS_PARALLELISM": "false"}
    environment |= {"PYTHONPATH": str(ROOT)} if installed else {}
    one = Newcomer(folder, sys.executable, [sys.executable, "-m", "sts_dino"], environment)
    if not installed:
        environment.pop("PYTHONPATH", None)
        install(one)
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")  # theirs, which is why they came
    one.type("new", "texts.txt", *words.new)
    one.type("adapt", "texts.yaml", "--out", "made", *words.adapt)
    pairs, encoder = "made/datasets/texts-pairs", "made/models/texts-encoder"
    plant(folder / pairs, folder / "made/annotations", judged)
    asked = "--sample", str(judged), "--out", "made/annotations", "--encoder", encoder, "--report"
    said = one.type("annotate", pairs, *asked)
    one.type("publish", pairs, encoder, "--org", ORG, "--yes")
    load = [one.python, "-c", LOAD, f"{ORG}/texts-pairs", f"{ORG}/texts-encoder"]
    printed = one.run("load", load, "load_dataset and SentenceTransformer, by name")
    rows, dimension = printed.split()[-2:]
    agreement = said[said.index("## Encoders beside people") :] if "## Encoders" in said else ""
    return {
        "sentences": len(texts),
        "lm": Path(words.new[1]).name,
        "commands": len([step for step in one.steps if step["command"].split()[0] in ("pip", "sts-dino")]),
        "steps": one.steps,
        "rows": int(rows),
        "dimension": int(dimension),
        "agreement": agreement.strip(),  # with planted judgements
        "made": figures(folder / "made", folder / pairs, folder / encoder),
        "report_bytes": (folder / "made/report.html").stat().st_size,
    }


LOAD = """
import sys
from datasets import load_dataset
from sentence_transformers import SentenceTransformer
pairs, encoder = load_dataset(sys.argv[1]), SentenceTransformer(sys.argv[2])
print(sum(map(len, pairs.values())), encoder.encode(["a sentence"]).shape[1])
"""


def install(one: Newcomer) -> None:
    """An environment of its own, with the project in it as a package."""
    venv = one.folder.with_name("venv")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)  # noqa: S603
    source = one.folder.with_name("source")
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "artifacts", "build", "*.egg-info"))
    one.python = str(venv / "bin/python")
    pip = [one.python, "-m", "pip", "install", "-q", "-c", str(source / "constraints.txt")]
    one.run("pip", [*pip, f"{source}/hub_server", f"{source}[{EXTRAS}]"], f"pip install ./hub_server '.[{EXTRAS}]'")
    one.command = [str(venv / "bin/sts-dino")]


def plant(run: Path, answers: Path, count: int) -> None:
    """Judgements of ``count`` pairs by the words that they share: 1 from a half on, 0 where there is none, else 0.5."""
    sample = draw(read_examples(find_rows(str(run), None, "train")), count, 42)
    store = AnswerStore(answers, sample.examples)
    for row in sample.rows:
        shared = word_overlap(*sample.examples.texts[row])
        store.add(ANNOTATOR, row, "1" if shared >= 0.5 else "0.5" if shared > 0 else "0")
    store.finish(ANNOTATOR)


if __name__ == "__main__":
    cli.run(app)

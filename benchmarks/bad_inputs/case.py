"""A bad input: the command line, the folder it is given in, and what its refusal must say."""

import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hub.assets import asset
from hub.contract.recipe_file import apply_overrides

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
LM = asset("demo-lm").resolve()
SENTENCES = [f"A man plays the flute in street number {number}." for number in range(40)]


Make = Callable[["Box"], object]  # puts the bad input into the case's folder


def _as_it_is(box: "Box") -> None:
    """What a case needs that needs nothing."""


def _alone(box: "Box") -> AbstractContextManager[dict[str, str]]:
    """What goes on meanwhile where nothing does."""
    return nullcontext({})


@dataclass(frozen=True)
class Case:
    """A command line that has to be refused, or that fails because the world does.

    said: what its one line must hold: the place, the value, what is allowed or to be done. make: puts the bad input
    into the case's folder. during: what goes on meanwhile, and what it puts into the words and the environment, e.g.
    a taken ``{port}``. own_process: it needs one, or loads a library for seconds. model: a model has to be loaded
    first, so that no limit of CPU time holds.
    """

    did: str
    words: str
    said: tuple[str, ...]
    make: Make = _as_it_is
    code: int = 2
    during: Callable[["Box"], AbstractContextManager[dict[str, str]]] = _alone
    environment: dict[str, str] = field(default_factory=dict)
    own_process: bool = False
    model: bool = False
    file_limit: int | None = None  # bytes, as ulimit -f


@dataclass(frozen=True)
class Box:
    """The folder of one case. ``world`` holds a finished run and two evaluations that many cases begin with."""

    folder: Path
    world: Path

    def file(self, name: str, content: str | bytes | Iterable[str] = SENTENCES) -> Path:
        """A file; of several texts, one a line."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else "".join(f"{line}\n" for line in content), "utf-8")
        return path

    def dataset(self, *settings: str, without: str = "", name: str = "recipe.yaml") -> Path:
        """The demo's dataset recipe, by the built-in model from ``texts.txt``, with settings as of ``--set``."""
        texts = self.file("texts.txt")
        source = f"source={{kind: file, path: {texts}, description: texts, license: mit}}"
        own = (
            source,
            f"model.path={LM}",
            "source.limit=3",
            "license=cc-by-nc-sa-4.0",
            "postprocess.validation_fraction=0",
        )
        return self._recipe("demo/sts-dino-x2.yaml", (*own, *settings), without, name)

    def model(self, *settings: str, without: str = "", name: str = "recipe.yaml") -> Path:
        """The demo's model recipe, on the finished run of the world."""
        spec = f"path: {self.world / 'run'}, config: postprocessed, example_type: sts, loss: CosineSimilarityLoss"
        own = (f"datasets=[{{{spec}, license: mit}}]", f"base.path={LM}", "evaluation=[]")
        return self._recipe("demo/demo-sts-dino.yaml", (*own, *settings), without, name)

    def _recipe(self, base: str, settings: tuple[str, ...], without: str, name: str) -> Path:
        tree: dict[str, Any] = yaml.load((RECIPES / base).read_text("utf-8"), yaml.BaseLoader)  # noqa: S506 - texts alone
        tree = apply_overrides(tree, list(settings))
        tree.pop(without, None)
        return self.file(name, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))

    def run(self, name: str = "run") -> Path:
        """A copy of the finished run."""
        return self._copied("run", name)

    def evaluation(self, name: str) -> Path:
        """A copy of an evaluation: ``ten`` or ``twenty``, by the rows that each scored."""
        return self._copied(name, name)

    def lm(self, *without: str, name: str = "lm") -> Path:
        """A copy of the built-in language model, but for some files."""
        folder = self.folder / name
        shutil.copytree(LM, folder, ignore=shutil.ignore_patterns(*without))
        return folder

    def _copied(self, what: str, name: str) -> Path:
        shutil.copytree(self.world / what, self.folder / name)
        return self.folder / name


def make_world(world: Path, command: Callable[[list[str]], object]) -> None:
    """Make the finished run and the evaluations, by ``command``, which calls sts-dino in the folder ``world``."""
    recipe = Box(world, world).dataset()
    command(["write", str(recipe), "--out", "run"])
    command(["card", "run", "--repo-id", "acme/sts-dino-x2"])
    (world / "letters.py").write_text(
        "import numpy as np\n\n\ndef encode(texts):\n"
        "    return np.array([[text.count(chr(97 + n)) + 0.1 for n in range(26)] for text in texts])\n"
    )
    for name, rows in (("ten", "10"), ("twenty", "20")):
        words = ["score", "--model", "python:letters:encode", "--tasks", "stsb/cosine", "--limit", rows, "--no-cache"]
        words += ["--set", "bootstrap_samples=100"]
        command([*words, "--out", name])

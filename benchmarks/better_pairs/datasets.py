"""The datasets of an experiment's arms: first texts drawn, pairs written or finished anew, each once."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.better_pairs.arms import GOLD, RUN_OF, Arm, Search, Stage
from benchmarks.better_pairs.steps import Step, Steps, digest
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import deciding, load_recipe
from hub.durable import sha256_file
from hub.errors import InputError
from release.options import set_words
from release.value import STSB_TRAIN

SPARE = 2  # times as many first texts are drawn as are wanted: a recipe passes over some by their tokens
ALL_PAIRS = ["--people", "--texts", "10000"]  # of a file in the STS Benchmark's layout
WRITTEN_TOP_P = 0.9  # Schick & Schütze 2021, section 4: only top-p, for more diversity
REFINISH = "benchmarks.better_pairs.refinish"


@dataclass(frozen=True)
class Run:
    """A finished dataset of an arm: its directory, and the CPU seconds that all of it took."""

    directory: Path
    seconds: float


def commands(search: Search, arm: Arm, seed: int, settings: Sequence[str]) -> list[str]:
    """The commands that make an arm's pairs, as a user types them: what is made on the way stands by its name."""
    texts = search.texts(arm.name)
    written = search.first_texts[texts.first_texts].path is None
    source = "source.kind=model" if written else f"source.path=<{texts.first_texts}-{seed}.txt>"
    seeded = [*texts.settings, *settings, source, f"seed={seed}"]
    found = [["generation.run", str(texts.recipe), *set_words(seeded)]]
    if arm.as_many_as:
        found.append([REFINISH, f"<run:{arm.same_texts}>", "--as-many-as", f"<run:{arm.as_many_as}>"])
    elif arm.same_texts and arm.settings:
        found.append([REFINISH, f"<run:{arm.same_texts}>", *set_words(arm.settings)])
    return [f"python -m {shlex.join(words)}" for words in found]


class DatasetMaker:
    """Makes the datasets of a search's arms. ``data``: the folder of evaluation data; ``settings``: of every recipe.

    ``filled``: puts further places that are made on the way into a setting.
    """

    def __init__(
        self,
        search: Search,
        stage: str,
        steps: Steps,
        data: Path | None,
        settings: Sequence[str] = (),
        filled: Callable[[str], str] = str,
    ):
        self.search, self.steps, self.settings, self.filled = search, steps, tuple(settings), filled
        self.stage: Stage = search.stages[stage]
        self.data = data
        senteval = data / "senteval" if data else None
        self.senteval = senteval if senteval and (senteval / "downstream").is_dir() else None

    def run_of(self, arm: Arm, seed: int) -> Run:
        """The finished dataset of an arm."""
        if arm.same_texts is None:
            return self._generated(arm, seed)
        base = self.run_of(self.search.arm(arm.same_texts), seed)
        if not (arm.settings or arm.as_many_as):
            return base
        words = [*set_words(arm.settings), "--seed", str(seed)]
        if arm.as_many_as:
            words += ["--as-many-as", str(self.run_of(self.search.arm(arm.as_many_as), seed).directory)]
        line = [REFINISH, str(base.directory), *words]
        return self._dataset(arm, seed, line, [base.directory.name, words], base.seconds)

    def _generated(self, arm: Arm, seed: int) -> Run:
        texts = self.search.texts(arm.name)
        spec = self.search.first_texts[texts.first_texts]
        source = {"limit": spec.texts or self.stage.texts, "description": spec.description, "license": spec.license}
        if spec.path is None:
            source |= {"kind": "model", "top_p": WRITTEN_TOP_P}
        else:
            source |= {"kind": "file", "path": str(self._drawn(texts.first_texts, spec.path, seed))}
        own = [self._filled(setting, seed) for setting in (*texts.settings, *self.settings)]
        given = [f"license={spec.dataset_license}", *own, f"source={json.dumps(source)}", f"seed={seed}"]
        recipe = load_recipe(texts.recipe, DatasetRecipe, given)
        return self._dataset(arm, seed, ["generation.run", str(texts.recipe), *set_words(given)], deciding(recipe))

    def _dataset(self, arm: Arm, seed: int, words: list[str], known: Any, before: float = 0.0) -> Run:
        key = digest(known)
        out = self.steps.folder / "datasets" / f"{seed}-{key}"
        step = self._step("dataset", key, [*words, "--out", str(out)], arm, seed, out)
        return Run(out, step.seconds + before)

    def _step(self, kind: str, key: str, words: list[str], arm: Arm, seed: int, out: Path, found: Any = None) -> Step:
        return self.steps.once(kind, key, words, f"{arm.name}, data seed {seed}", out, found)

    def _filled(self, setting: str, seed: int) -> str:
        """A setting with the places that are made on the way put in."""
        if GOLD in setting:
            setting = setting.replace(GOLD, str(self.gold()))
        setting = self.filled(setting)
        return RUN_OF.sub(lambda found: str(self.run_of(self.search.arm(found[1]), seed).directory), setting)

    def _drawn(self, name: str, path: str, seed: int) -> Path:
        """The file of first texts that a data seed draws from ``path``."""
        spec = self.search.first_texts[name]
        wanted = SPARE * (spec.texts or self.stage.texts)
        below = [self.data / path] if self.data else []
        file = next((place for place in (*below, Path(path)) if place.is_file()), None)
        if file is None:
            raise InputError(path, f"first texts {name}: no such file", hint="--data DIR holds it (STS_DINO_DATA)")
        columns = spec.columns
        if spec.pairs:
            file = self._texts(name, file, ALL_PAIRS, ".jsonl", spec.checked)
            columns = ("sentence1", "sentence2")
        words = [word for column in columns for word in ("--column", column)]
        return self._texts(name, file, [*words, "--texts", str(wanted), "--seed", str(seed)], ".txt", spec.checked)

    def gold(self) -> Path:
        """The file of people's pairs of the STS Benchmark's train part, without evaluation sentences."""
        file = self.data / "sts-original" / STSB_TRAIN if self.data else None  # as it was written: case and spaces
        if file is None or not file.is_file():
            place = f"sts-original/{STSB_TRAIN}"
            raise InputError(GOLD, f"people's pairs are read from {place} of --data, which is not there")
        return self._texts("gold", file, ALL_PAIRS, ".jsonl")

    def _texts(self, name: str, file: Path, words: Sequence[str], suffix: str, checked: bool = True) -> Path:
        where = ["--senteval-data", str(self.senteval)] if self.senteval and checked else []
        key = digest(sha256_file(file), words, bool(where))
        out = self.steps.folder / "first_texts" / f"{name}-{key}{suffix}"
        line = ["benchmarks.better_pairs.first_texts", str(file), *words, *where, "--out", str(out)]
        self.steps.once("first_texts", key, line, f"first texts {name}", out)
        return out

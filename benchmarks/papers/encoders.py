"""Encoders of experiments: trained by their recipes on an arm's pairs for each seed, and scored, each once."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.better_pairs.datasets import DatasetMaker
from benchmarks.better_pairs.steps import digest
from benchmarks.papers.made import Made, source_of
from benchmarks.papers.plan import Encoder, OwnColumn, Papers
from benchmarks.papers.training_data import finished_config, first_texts
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import apply_overrides, checked, read_yaml
from hub.durable import write_text
from release.value import trained_on, training_sha256, untrained
from release.value_arms import CONFIG, copies, write_pairs

DATA_WORDS = ("--senteval-data", "<data>/senteval", "--sts-data", "<data>/sts-original")


@dataclass(frozen=True)
class Seeds:
    """The seeds of the datasets that encoders are trained on, and how many trainings each dataset has."""

    data: tuple[int, ...]
    trainings: int

    def each(self) -> list[tuple[int, int]]:
        """(data seed, training seed): no two trainings have the same."""
        numbered = enumerate(self.data)
        return [(data, place * self.trainings + one + 1) for place, data in numbered for one in range(self.trainings)]


@dataclass(frozen=True)
class Scored:
    """The evaluations of an encoder, a folder for each training seed, and the CPU seconds that they took."""

    folders: tuple[Path, ...]
    seconds: float


@dataclass(frozen=True)
class Trained:
    """The run directory ``folder/encoder`` of one training, named by the key of what decides it."""

    folder: Path
    key: str
    seconds: float


class EncoderMaker:
    """Trains and scores the encoders of a plan. ``stand_ins``: settings that bring files for bases of a Hub."""

    def __init__(self, papers: Papers, datasets: DatasetMaker, made: Made, stand_ins: Sequence[str] = ()):
        self.papers, self.datasets, self.made, self.stand_ins = papers, datasets, made, stand_ins
        self.steps, self.data = datasets.steps, datasets.data

    def scored(self, encoder: Encoder, columns: Sequence[OwnColumn], seeds: Seeds) -> Scored:
        """The evaluations of an encoder on the columns' tasks; it is trained when it is not yet."""
        tasks = list(dict.fromkeys((task, column.split) for column in columns for task in column.tasks))
        if encoder.model is not None:
            return self._scored_by_name(encoder, tasks)
        folders, seconds = [], 0.0
        for tree in self.trees(encoder, seeds):
            evaluation = [{"task": task, "split": split} for task, split in tasks]
            tree = tree | {"evaluation": evaluation, "bootstrap_samples": "100"}  # the table's own interval is of all
            made = self._trained(encoder, tree)
            path = made.folder / "score.yaml"
            write_text(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
            words = ["eval.run", str(path), "--model", str(made.folder / "encoder"), "--no-cache", *self._data_words()]
            out = made.folder / "encoder" / "results.json"
            step = self.steps.once("scores", digest(made.key, tasks), words, f"{encoder.name}, scores", out)
            folders.append(made.folder / "encoder")
            seconds += made.seconds + step.seconds
        return Scored(tuple(folders), seconds)

    def _scored_by_name(self, encoder: Encoder, tasks: Sequence[tuple[str, str]]) -> Scored:
        assert encoder.model is not None
        key = digest(encoder.model, source_of(encoder.model), tasks)
        out = self.steps.folder / "named" / key
        names = ",".join(dict.fromkeys(task for task, _ in tasks))
        words = ["eval.run", "--model", encoder.model, "--tasks", names, "--no-cache", "--out", str(out)]
        step = self.steps.once("scores", key, [*words, *self._data_words()], encoder.name, out / "results.json")
        return Scored((out,), step.seconds)

    def _data_words(self) -> list[str]:
        if self.data is None:
            return []
        return [word.replace("<data>", str(self.data)) for word in DATA_WORDS]

    def first(self, name: str, seeds: Seeds) -> Trained:
        """The encoder of that name under its first seed."""
        encoder = self.papers.encoder(name)
        return self._trained(encoder, self.trees(encoder, seeds)[0])

    def trees(self, encoder: Encoder, seeds: Seeds) -> list[dict[str, Any]]:
        """The recipe of an encoder for every seed: a baseline's once."""
        assert encoder.recipe is not None
        settings = [self.made.filled(setting) for setting in self.settings(encoder.recipe, encoder)]
        tree = apply_overrides(read_yaml(encoder.recipe), settings)
        if not encoder.trained:
            return [untrained(tree)]
        return [self._on_pairs(encoder, tree, data, seed) for data, seed in seeds.each()]

    def settings(self, recipe: Path, encoder: Encoder) -> list[str]:
        """Those of an encoder, and files for its base where that is of a Hub: a file without use is refused."""
        of_hub = read_yaml(recipe).get("base", {}).get("repo_id") is not None
        return [*encoder.settings, *(self.stand_ins if of_hub else ())]

    def _on_pairs(self, encoder: Encoder, tree: Mapping[str, Any], data_seed: int, seed: int) -> dict[str, Any]:
        """The recipe with an arm's dataset in the place of its own; ``seed``: of the training."""
        if encoder.pairs is None:
            return {**tree, "seed": str(seed)}
        run = self.datasets.run_of(self.papers.pairs.arm(encoder.pairs), data_seed).directory
        if not encoder.copies:
            found = trained_on(tree, "dataset", run, finished_config(run), seed)
            if encoder.example_sets:
                of_set = {"example_set": str((seed - 1) % encoder.example_sets)}
                found["datasets"] = [{**one, **of_set} for one in found["datasets"]]
            return found
        firsts = [{"sentence1": text} for text in first_texts(run)]
        written = write_pairs(self.steps.folder / "copies", copies(firsts, seed, str(run)))
        return trained_on(tree, "copies", written, CONFIG, seed)

    def _trained(self, encoder: Encoder, tree: Mapping[str, Any]) -> Trained:
        """The run directory of an encoder under one recipe, trained when it is not yet."""
        plain = {name: value for name, value in tree.items() if name not in ("evaluation", "bootstrap_samples")}
        recipe = checked(encoder.recipe or Path(encoder.name), ModelRecipe, plain)
        key = digest(training_sha256(recipe), recipe.seed)
        folder = self.steps.folder / "encoders" / f"{encoder.name}-{key}"
        path = folder / "recipe.yaml"
        write_text(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
        words = ["training.run", str(path), "--out", str(folder / "encoder")]
        what = f"{encoder.name}, training seed {recipe.seed}"
        step = self.steps.once("encoder", key, words, what, folder / "encoder" / "manifest.json")
        shutil.rmtree(folder / "encoder.base", ignore_errors=True)  # else it would be scored with every encoder
        return Trained(folder, key, step.seconds)

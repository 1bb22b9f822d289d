"""Encoders of experiments: trained on a variant's pairs under each seed, and scored, each step once."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.plan import Encoder, OwnColumn, Plan, Seeds
from experiments.steps import Made, digest
from experiments.variants import DatasetMaker, finished_config, finished_rows, source_sentences
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import apply_overrides, checked, read_yaml
from hub.contract.schema import ROW_SCHEMAS
from hub.durable import sha256_file, write_text
from release.value import CONFIG, copies, shuffled, trained_on, training_sha256, untrained, write_pairs


@dataclass(frozen=True)
class Scored:
    """The evaluations of an encoder, a folder for each training, and the CPU seconds that they took."""

    folders: tuple[Path, ...]
    seconds: float


class EncoderMaker:
    """Trains and scores the encoders of a plan. ``overrides``: settings with files for base encoders of the Hub."""

    def __init__(self, plan: Plan, datasets: DatasetMaker, overrides: Sequence[str] = ()):
        self.plan, self.datasets, self.overrides = plan, datasets, overrides
        self.steps = datasets.steps

    def scored(self, encoder: Encoder, columns: Sequence[OwnColumn], seeds: Seeds) -> Scored:
        """The evaluations of an encoder on the columns' tasks; missing trainings run first."""
        tasks = list(dict.fromkeys((task, column.split) for column in columns for task in column.tasks))
        if encoder.model is not None:
            return self._scored_by_name(encoder.name, encoder.model, tasks)
        folders, seconds = [], 0.0
        for tree in self.trees(encoder, seeds):
            evaluation = [{"task": task, "split": split} for task, split in tasks]
            trained, key = self._trained(encoder, tree)
            path = trained.path.with_name("score.yaml")
            whole = tree | {"evaluation": evaluation, "bootstrap_samples": "100"}  # tables resample all evaluations
            write_text(path, yaml.safe_dump(whole, sort_keys=False, allow_unicode=True))
            words = ["score", str(path), "--model", str(trained.path), "--no-cache", *self._data_words()]
            out = trained.path / "results.json"
            seconds += self.steps.once("scores", digest(key, tasks), words, f"{encoder.name}, scores", out)
            seconds += trained.seconds
            folders.append(trained.path)
        return Scored(tuple(folders), seconds)

    def _scored_by_name(self, name: str, model: str, tasks: Sequence[tuple[str, str]]) -> Scored:
        source = Path(*model.removeprefix("python:").split(":")[0].split(".")).with_suffix(".py")
        key = digest(model, sha256_file(source) if source.is_file() else None, tasks)
        out = self.steps.folder / "named" / key
        names = ",".join(dict.fromkeys(task for task, _ in tasks))
        words = ["score", "--model", model, "--tasks", names, "--no-cache", "--out", str(out), *self._data_words()]
        return Scored((out,), self.steps.once("scores", key, words, name, out / "results.json"))

    def _data_words(self) -> list[str]:
        data = self.datasets.data
        return ["--senteval-data", f"{data}/senteval", "--sts-data", f"{data}/sts-original"] if data else []

    def trees(self, encoder: Encoder, seeds: Seeds) -> list[dict[str, Any]]:
        """The recipe of every training of an encoder; of an untrained one, one recipe."""
        assert encoder.recipe is not None
        tree = apply_overrides(read_yaml(encoder.recipe), self.settings(encoder.recipe, encoder))
        if not encoder.trained:
            return [untrained(tree)]
        return [self._on_dataset(encoder, tree, data, seed) for data, seed in seeds.each()]

    def settings(self, recipe: Path, encoder: Encoder) -> list[str]:
        """The settings of an encoder, and the overrides where its base is on the Hub (unused files are refused)."""
        of_hub = read_yaml(recipe).get("base", {}).get("repo_id") is not None
        return [*encoder.settings, *(self.overrides if of_hub else ())]

    def _on_dataset(self, encoder: Encoder, tree: Mapping[str, Any], data_seed: int, seed: int) -> dict[str, Any]:
        """The recipe with the encoder's dataset, or its baseline, in the place of its own."""
        if encoder.dataset is None:
            return {**tree, "seed": str(seed)}
        run = self.datasets.find(encoder.dataset, data_seed).path
        folder = self.steps.folder / "baselines"
        if encoder.baseline == "simcse":
            sources = [{"sentence1": text} for text in source_sentences(run)]
            return trained_on(tree, "copies", write_pairs(folder, copies(sources, seed, str(run))), CONFIG, seed)
        if encoder.baseline == "shuffled":
            columns = ROW_SCHEMAS["sts"].columns
            found = finished_rows(run, list(columns), "the shuffled-label baseline needs scored pairs")
            rows = shuffled([dict(zip(columns, row, strict=True)) for row in found], seed)
            return trained_on(tree, "shuffled", write_pairs(folder, rows), CONFIG, seed)
        return trained_on(tree, "dataset", run, finished_config(run), seed)

    def _trained(self, encoder: Encoder, tree: Mapping[str, Any]) -> tuple[Made, str]:
        """The run directory of an encoder under one recipe, trained when missing, and the digest that decides it."""
        recipe = checked(encoder.recipe or Path(encoder.name), ModelRecipe, dict(tree))
        key = digest(training_sha256(recipe), recipe.seed)
        folder = self.steps.folder / "encoders" / f"{encoder.name}-{key}"
        path = folder / "recipe.yaml"
        write_text(path, yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))
        words = ["train", str(path), "--out", str(folder / "encoder")]
        what = f"{encoder.name}, training seed {recipe.seed}"
        seconds = self.steps.once("encoder", key, words, what, folder / "encoder" / "manifest.json")
        shutil.rmtree(folder / "encoder.base", ignore_errors=True)  # else `score` scores it with every encoder
        return Made(folder / "encoder", seconds), key

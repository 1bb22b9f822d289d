"""Encoders of experiments: trained on a variant's pairs under each seed, and scored.

Each training and each evaluation is a step that runs once.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sts_dino.experiments.plan import Encoder, OwnColumn, Seeds
from sts_dino.experiments.steps import StepOutput, hash_parts
from sts_dino.experiments.variants import (
    DatasetMaker,
    get_finished_config,
    read_finished_rows,
    read_source_sentences,
)
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import apply_overrides, read_yaml, validate_recipe
from sts_dino.hub.contract.schema import ROW_SCHEMAS
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.release.value import (
    VARIANT_CONFIG,
    hash_training,
    make_simcse_triplets,
    remove_training,
    replace_training_data,
    shuffle_scores,
    write_pairs,
)

Tree = dict[str, Any]


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of an encoder, a folder for each training, and their CPU seconds."""

    folders: tuple[Path, ...]
    seconds: float


class EncoderMaker:
    """Trains and scores the encoders of a plan.

    ``overrides``: settings with files for base encoders of the Hub.
    """

    def __init__(self, datasets: DatasetMaker, overrides: Sequence[str] = ()):
        self.datasets = datasets
        self.overrides = overrides
        self.steps = datasets.steps

    def score(self, encoder: Encoder, columns: Sequence[OwnColumn], seeds: Seeds) -> Evaluations:
        """Return the evaluations on the columns' tasks; missing trainings and scores run first."""
        tasks: list[tuple[str, str]] = []
        for column in columns:
            tasks += [(task, column.split) for task in column.tasks]
        tasks = list(dict.fromkeys(tasks))
        if encoder.model is not None:
            return self._score_by_name(encoder.name, encoder.model, tasks)
        folders = []
        seconds = 0.0
        for tree in self.make_recipes(encoder, seeds):
            run, key = self._train(encoder, tree)
            seconds += run.seconds + self._score_run(encoder, tree, run, key, tasks)
            folders.append(run.path)
        return Evaluations(tuple(folders), seconds)

    def _score_run(
        self,
        encoder: Encoder,
        tree: Tree,
        run: StepOutput,
        key: str,
        tasks: Sequence[tuple[str, str]],
    ) -> float:
        """Score a trained encoder on (task, split) pairs. Return the CPU seconds."""
        path = run.path.with_name("score.yaml")
        evaluation = [{"task": task, "split": split} for task, split in tasks]
        # The tables' intervals resample all evaluations together: few samples are enough here.
        tree = tree | {"evaluation": evaluation, "bootstrap_samples": "100"}
        write_text(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
        command = ["score", str(path), "--model", str(run.path), "--no-cache"]
        command += self._list_data_options()
        title = f"{encoder.name}, scores"
        out = run.path / "results.json"
        return self.steps.run_once("scores", hash_parts(key, tasks), command, title, out)

    def _score_by_name(
        self, name: str, model: str, tasks: Sequence[tuple[str, str]]
    ) -> Evaluations:
        """Score any encoder that ``sts-dino score --model`` takes.

        A change of the module of a ``python:MODULE:NAME`` encoder scores it again.
        """
        module = model.removeprefix("python:").split(":")[0]
        source = Path(*module.split(".")).with_suffix(".py")
        source_hash = hash_file(source) if source.is_file() else None
        key = hash_parts(model, source_hash, tasks)
        out = self.steps.folder / "named" / key
        task_names = ",".join(dict.fromkeys(task for task, _ in tasks))
        command = ["score", "--model", model, "--tasks", task_names, "--no-cache"]
        command += ["--out", str(out), *self._list_data_options()]
        seconds = self.steps.run_once("scores", key, command, name, out / "results.json")
        return Evaluations((out,), seconds)

    def _list_data_options(self) -> list[str]:
        """List the options of ``sts-dino score`` that name the evaluation data."""
        data = self.datasets.data
        if data is None:
            return []
        return ["--senteval-data", f"{data}/senteval", "--sts-data", f"{data}/sts-original"]

    def make_recipes(self, encoder: Encoder, seeds: Seeds) -> list[Tree]:
        """Return the recipe of every training of an encoder, one for each seed.

        An untrained encoder has one recipe, without training.
        """
        assert encoder.recipe is not None
        settings = self.list_settings(encoder.recipe, encoder)
        tree = apply_overrides(read_yaml(encoder.recipe), settings)
        if not encoder.trained:
            return [remove_training(tree)]
        return [
            self._set_dataset(encoder, tree, data_seed, training_seed)
            for data_seed, training_seed in seeds.list_pairs()
        ]

    def list_settings(self, recipe: Path, encoder: Encoder) -> list[str]:
        """List an encoder's settings, with the overrides where its base is on the Hub.

        The overrides replace Hub repositories by local folders (``--set @assets/offline.yaml``). A
        recipe without such a repository refuses them.
        """
        base = read_yaml(recipe).get("base") or {}
        if base.get("repo_id") is None:
            return list(encoder.settings)
        return [*encoder.settings, *self.overrides]

    def _set_dataset(
        self, encoder: Encoder, tree: Mapping[str, Any], data_seed: int, seed: int
    ) -> Tree:
        """Return the recipe with the encoder's dataset, or with that of its baseline."""
        if encoder.dataset is None:
            return {**tree, "seed": str(seed)}
        run = self.datasets.find(encoder.dataset, data_seed).path
        folder = self.steps.folder / "baselines"
        if encoder.baseline == "simcse":
            sentences = [{"sentence1": sentence} for sentence in read_source_sentences(run)]
            triplets = make_simcse_triplets(sentences, seed, str(run))
            return replace_training_data(
                tree, "copies", write_pairs(folder, triplets), VARIANT_CONFIG, seed
            )
        if encoder.baseline == "shuffled":
            columns = ROW_SCHEMAS["sts"].columns
            hint = "the shuffled-label baseline needs scored pairs"
            pairs = [
                dict(zip(columns, row, strict=True))
                for row in read_finished_rows(run, list(columns), hint)
            ]
            shuffled = write_pairs(folder, shuffle_scores(pairs, seed))
            return replace_training_data(tree, "shuffled", shuffled, VARIANT_CONFIG, seed)
        return replace_training_data(tree, "dataset", run, get_finished_config(run), seed)

    def _train(self, encoder: Encoder, tree: Mapping[str, Any]) -> tuple[StepOutput, str]:
        """Return an encoder's run directory under one recipe, and the digest that decides it."""
        recipe = validate_recipe(encoder.recipe or Path(encoder.name), ModelRecipe, dict(tree))
        key = hash_parts(hash_training(recipe), recipe.seed)
        folder = self.steps.folder / "encoders" / f"{encoder.name}-{key}"
        path = folder / "recipe.yaml"
        out = folder / "encoder"
        write_text(path, yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))
        command = ["train", str(path), "--out", str(out)]
        title = f"{encoder.name}, training seed {recipe.seed}"
        seconds = self.steps.run_once("encoder", key, command, title, out / "manifest.json")
        # `score` would score the base encoder, too, if its folder lay beside the run directory.
        shutil.rmtree(folder / "encoder.base", ignore_errors=True)
        return StepOutput(out, seconds), key

"""The runner: one experiment to its result, which is kept as a JSON file.

It trains the experiment's encoders on the variants' pairs under each seed, scores and compares
them, and measures label agreement. Each training and each evaluation is a step that runs once.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from sts_dino.experiments.plan import Encoder, Experiment, OwnColumn, Plan, Seeds
from sts_dino.experiments.speed.trials import describe_hardware
from sts_dino.experiments.steps import StepOutput, Steps, hash_parts
from sts_dino.experiments.variants import (
    DatasetMaker,
    get_finished_config,
    read_finished_rows,
    read_source_sentences,
)
from sts_dino.hub.contract.measured import FIDELITY, Estimate, Fidelity, VariantPlan, VariantScores
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import apply_overrides, read_yaml, validate_recipe
from sts_dino.hub.contract.results import Frozen, read_json
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.contract.schema import ROW_SCHEMAS
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError
from sts_dino.release.value import (
    VARIANT_CONFIG,
    hash_training,
    make_simcse_triplets,
    remove_training,
    replace_training_data,
    shuffle_scores,
    write_pairs,
)

SAMPLES = 1000  # resamples of the bootstrap
LIBRARIES = ("torch", "transformers", "sentence-transformers", "sts-dino")
Verdict = Literal[
    "reproduced",
    "same direction, not significant",
    "opposite direction, not significant",
    "contradicted",
]


class Difference(Frozen):
    """A paired difference: the score of the row ``better`` minus that of ``than`` in a column."""

    better: str
    than: str
    column: str
    difference: Estimate

    @property
    def verdict(self) -> Verdict:
        """Whether the paper's effect is reproduced, by the 95 % interval of the difference."""
        if self.difference.low > 0:
            return "reproduced"
        if self.difference.high < 0:
            return "contradicted"
        if self.difference.score > 0:
            return "same direction, not significant"
        return "opposite direction, not significant"


class Measured(Frozen):
    """Scores (row → column → estimate) and paired differences.

    ``notes``: sentences below the table; ``pages``: Markdown, e.g. generated texts side by side;
    ``plots``: name → SVG.
    """

    rows: dict[str, dict[str, Estimate]]
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    plots: dict[str, str] = Field(default_factory=dict)


class Result(Frozen):
    """The result of an experiment in ``experiments/results/papers/NAME.json``.

    ``seconds``: CPU seconds of its steps, those shared with other experiments included. ``sizes``:
    variant → source sentences and rows. ``commands``: in results of version 0.1, the commands of
    its steps.
    """

    experiment: str
    measured: Measured
    seconds: float
    data_seeds: int
    training_seeds: int
    sizes: dict[str, dict[str, int]] = Field(default_factory=dict)
    commands: tuple[str, ...] = ()
    hardware: dict[str, Any]
    versions: dict[str, str]


def read_result(path: Path) -> Result | None:
    """Read a kept result; None when there is no file.

    Raises InputError for a file that is not a result.
    """
    hint = f"run it again: sts-dino experiment run {path.stem}"
    return read_json(Result, path, "not a result of an experiment", hint)


Tree = dict[str, Any]


class EncoderMaker:
    """Trains and scores the encoders of a plan.

    ``overrides``: settings with files for base encoders of the Hub.
    """

    def __init__(self, datasets: DatasetMaker, overrides: Sequence[str] = ()):
        self.datasets = datasets
        self.overrides = overrides
        self.steps = datasets.steps

    def score(
        self, encoder: Encoder, columns: Sequence[OwnColumn], seeds: Seeds
    ) -> list[StepOutput]:
        """Return the evaluation of each training on the columns' tasks; missing steps run first.

        The order is that of ``seeds.list_pairs()``; an encoder that is not trained has one
        evaluation. The CPU seconds are those of training and scoring. Raises InputError or RunError
        when a step fails.
        """
        # List the tasks
        tasks: list[tuple[str, str]] = []
        for column in columns:
            tasks += [(task, column.split) for task in column.tasks]
        tasks = list(dict.fromkeys(tasks))
        if encoder.model is not None:
            return self._score_by_name(encoder.name, encoder.model, tasks)

        # Train and score under every seed
        evaluations = []
        for tree in self.make_recipes(encoder, seeds):
            run, key = self._train(encoder, tree)
            seconds = self._score_run(encoder, tree, run, key, tasks)
            evaluations.append(StepOutput(run.path, run.seconds + seconds))
        return evaluations

    def _score_run(
        self,
        encoder: Encoder,
        tree: Tree,
        run: StepOutput,
        key: str,
        tasks: Sequence[tuple[str, str]],
    ) -> float:
        """Score a trained encoder on (task, split) pairs. Return the CPU seconds.

        Args:
            encoder: the encoder, for messages.
            tree: the encoder's recipe.
            run: the encoder's run directory.
            key: the digest of everything that decides the training.
            tasks: the tasks with their splits.
        """
        path = self.steps.folder / "recipes" / f"{run.path.name}.score.yaml"
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
    ) -> list[StepOutput]:
        """Return the evaluation of any encoder that ``sts-dino score --model`` takes.

        A change of the module of a ``python:MODULE:NAME`` encoder scores it again.

        Args:
            name: the encoder's name, for messages.
            model: the value of ``--model``.
            tasks: the tasks with their splits; every split of a task is scored.
        """
        # The module's file is looked up in the clone; other encoders have none.
        module = model.removeprefix("python:").split(":")[0]
        source = Path(*module.split(".")).with_suffix(".py")
        source_hash = hash_file(source) if source.is_file() else None
        key = hash_parts(model, source_hash, tasks)
        task_names = ",".join(dict.fromkeys(task for task, _ in tasks))
        arguments = ["--model", model, "--tasks", task_names, *self._list_data_options()]
        return [self.steps.score(arguments, key, name)]

    def _list_data_options(self) -> list[str]:
        """List the options of ``sts-dino score`` that name the evaluation data.

        Without a data folder there are none, and the shipped data is scored.
        """
        data = self.datasets.data
        if data is None:
            return []
        return ["--senteval-data", f"{data}/senteval", "--sts-data", f"{data}/sts-original"]

    def make_recipes(self, encoder: Encoder, seeds: Seeds) -> list[Tree]:
        """Return the recipe of every training of an encoder, one for each pair of seeds.

        The order is that of ``seeds.list_pairs()``. An untrained encoder has one recipe, without
        training. Missing datasets are made. ``encoder`` has a recipe. Raises InputError for a
        malformed recipe, and InputError or RunError when a step fails.
        """
        # The overrides (``--set @assets/offline.yaml``) replace a base of the Hub by a folder;
        # ``apply_overrides`` refuses a file that replaces nothing.
        assert encoder.recipe is not None
        tree = apply_overrides(read_yaml(encoder.recipe), list(encoder.settings))
        base = tree.get("base")
        if isinstance(base, dict) and base.get("repo_id"):
            tree = apply_overrides(tree, list(self.overrides))
        if not encoder.trained:
            return [remove_training(tree)]
        return [
            self._set_dataset(encoder, tree, data_seed, training_seed)
            for data_seed, training_seed in seeds.list_pairs()
        ]

    def _set_dataset(
        self, encoder: Encoder, tree: Mapping[str, Any], data_seed: int, seed: int
    ) -> Tree:
        """Return the recipe of one training: on the encoder's dataset, or on its baseline's pairs.

        A missing dataset is made; a baseline's pairs are written below ``baselines``. An encoder
        without a dataset trains on the data that its recipe names. Raises InputError for shuffled
        labels of pairs without scores, and InputError or RunError when a step fails.

        Args:
            encoder: the encoder.
            tree: its recipe with all settings.
            data_seed: the seed of the dataset.
            seed: the seed of the training.
        """
        if encoder.dataset is None:
            return {**tree, "seed": str(seed)}
        run = self.datasets.make_dataset(encoder.dataset, data_seed).path
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
        """Train an encoder under one recipe, unless it has been.

        Returns the run directory with the CPU seconds of the training, and the digest of everything
        that decides the training.
        """
        recipe = validate_recipe(encoder.recipe or Path(encoder.name), ModelRecipe, dict(tree))
        key = hash_parts(hash_training(recipe), recipe.seed)
        name = f"{encoder.name}-{key}"
        path = self.steps.folder / "recipes" / f"{name}.yaml"
        write_text(path, yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))
        title = f"{encoder.name}, training seed {recipe.seed}"
        return self.steps.train(path, [], name, title), key


class Runner:
    """Runs experiments, each step once.

    ``settings``: added to every dataset recipe; those with files (``@FILE``) also to the recipes of
    encoders. ``data``: the folder with ``senteval``, ``sts-original`` and ``text``.
    """

    def __init__(self, plan: Plan, steps: Steps, data: Path | None, settings: Sequence[str] = ()):
        self.plan = plan
        self.steps = steps
        self.datasets = DatasetMaker(plan, steps, data, settings)
        file_settings = [setting for setting in settings if setting.startswith("@")]
        self.encoders = EncoderMaker(self.datasets, file_settings)

    def run(self, experiment: Experiment) -> Result:
        """Return the result of an experiment; unfinished steps run.

        Raises InputError for an experiment that only an earlier revision repeats, and InputError or
        RunError when a step fails.
        """
        if experiment.finished:
            hint = f"git checkout {experiment.finished} repeats it; its result is kept"
            raise InputError(experiment.name, "is finished and its code was removed", hint=hint)
        rows: dict[str, dict[str, Estimate]] = {name: {} for name in experiment.rows}

        # Score every encoder, and compare them in each column
        columns = experiment.list_columns()
        evaluations = self._score_encoders(experiment, list(columns.values()))
        differences = list[Difference]()
        for name, column in columns.items():
            plan = self._plan_comparison(experiment, name, column, evaluations)
            scores = self._compare_variants(plan)
            for row, score in scores.variants.items():
                rows[row][name] = score.average
                # Beside label agreement, the table shows what the pairs gain over the first row
                if experiment.judges and score.over_simcse:
                    rows[row][f"{name} over {plan.control}"] = score.over_simcse
            pairs = zip(plan.differences, scores.differences, strict=True)
            for (better, than), difference in pairs:
                differences.append(
                    Difference(better=better, than=than, column=name, difference=difference)
                )

        # Measure label agreement of the rows' datasets
        outputs = chain.from_iterable(evaluations.values())
        seconds = sum(output.seconds for output in outputs)
        first_seed = self.plan.datasets.seeds.data[0]
        for encoder in self.plan.list_encoders(experiment):
            judges = experiment.judges if encoder.dataset else {}
            for judge, judge_encoder in judges.items():
                dataset = self.datasets.make_dataset(encoder.dataset or "", first_seed)
                estimates, cost = self._measure_agreement(dataset, judge, judge_encoder)
                rows[encoder.name] |= estimates
                seconds += cost

        # Join the figures
        seeds = self.choose_seeds(experiment)
        return Result(
            experiment=experiment.name,
            measured=Measured(rows=rows, differences=tuple(differences)),
            seconds=round(seconds + self._sum_dataset_seconds(experiment), 1),
            data_seeds=len(seeds.data),
            training_seeds=seeds.trainings,
            sizes={name: self._count_rows(name) for name in self._list_variants(experiment)},
            hardware=describe_hardware(),
            versions={library: version(library) for library in LIBRARIES},
        )

    def choose_seeds(self, experiment: Experiment) -> Seeds:
        """Return the seeds of an experiment: the first ones of the plan."""
        seeds = self.plan.datasets.seeds
        return Seeds(
            data=seeds.data[: experiment.data_seeds],
            trainings=experiment.training_seeds or seeds.trainings,
        )

    def _list_variants(self, experiment: Experiment) -> list[str]:
        """List the dataset variants of an experiment, each once."""
        encoders = self.plan.list_encoders(experiment)
        return list(dict.fromkeys(encoder.dataset for encoder in encoders if encoder.dataset))

    def _count_rows(self, variant: str) -> dict[str, int]:
        """Count a variant's source sentences, and the rows of its config for training.

        Both are counted in the dataset of the first data seed; the rows in all splits. Returns the
        keys "source sentences" and "rows".
        """
        directory = self.datasets.make_dataset(variant, self.plan.datasets.seeds.data[0]).path
        manifest = require_complete(directory)
        config = get_finished_config(directory)
        rows = sum(file.rows or 0 for file in manifest.files if file.config == config)
        return {"source sentences": manifest.counts["sources"], "rows": rows}

    def _sum_dataset_seconds(self, experiment: Experiment) -> float:
        """Return the CPU seconds of the datasets; variants with the same texts count once."""
        seconds = dict[tuple[str, int], float]()
        for name in self._list_variants(experiment):
            generated = self.plan.datasets.get_variant(name).same_texts or name
            for seed in self.choose_seeds(experiment).data:
                dataset = self.datasets.make_dataset(name, seed)
                # The seconds of each variant of the same texts include their generation
                longest = max(seconds.get((generated, seed), 0.0), dataset.seconds)
                seconds[generated, seed] = longest
        return sum(seconds.values())

    def _score_encoders(
        self, experiment: Experiment, columns: Sequence[OwnColumn]
    ) -> dict[str, list[StepOutput]]:
        """Return row → its evaluations on the columns; missing steps run first.

        Without columns nothing is trained, and {} is returned.
        """
        if not columns:
            return {}
        seeds = self.choose_seeds(experiment)
        return {
            encoder.name: self.encoders.score(encoder, columns, seeds)
            for encoder in self.plan.list_encoders(experiment)
        }

    def _plan_comparison(
        self,
        experiment: Experiment,
        name: str,
        column: OwnColumn,
        evaluations: Mapping[str, Sequence[StepOutput]],
    ) -> VariantPlan:
        """Plan the comparison of a column; the control is the experiment's first row.

        Args:
            experiment: the experiment.
            name: the name of the column.
            column: its tasks and split.
            evaluations: row → its evaluations.
        """
        variants = {}
        for encoder, outputs in evaluations.items():
            variants[encoder] = tuple(str(output.path) for output in outputs)
        effects = [effect for effect in experiment.effects if effect.column == name]
        return VariantPlan(
            tasks=column.tasks,
            split=column.split,
            samples=SAMPLES,
            variants=variants,
            control=next(iter(variants)),
            data_seeds=experiment.data_seeds,
            differences=tuple((effect.better, effect.than) for effect in effects),
        )

    def _compare_variants(self, plan: VariantPlan) -> VariantScores:
        """Return scores and differences of a plan, with intervals over test rows and seeds.

        A comparison is computed once, and kept in the folder ``compared``.
        """
        from sts_dino.eval.compare.seeds import compare_variants

        key = hash_parts(plan.model_dump(mode="json"))
        path = self.steps.folder / "compared" / f"{key}.json"
        if not path.is_file():
            write_text(path, compare_variants(plan).model_dump_json(indent=1) + "\n")
        return VariantScores.model_validate_json(path.read_bytes())

    def _measure_agreement(
        self, dataset: StepOutput, judge: str, judge_encoder: str
    ) -> tuple[dict[str, Estimate], float]:
        """Measure how well the texts of a dataset fit their labels, by cosines of a judge.

        Runs ``sts-dino fidelity`` once for each dataset and judge, and raises its InputError or
        RunError. Returns column → estimate, and the CPU seconds of that command. The columns are
        Spearman's correlation of label scores and cosines, the mean cosine of each label and the
        share of kept texts, all x 100, and the CPU seconds of generation for 100 kept texts. The
        correlation is left out for labels without scores.

        Args:
            dataset: the run directory, and the CPU seconds of its generation.
            judge: the judge's name in the table.
            judge_encoder: the encoder, as ``sts-dino fidelity --encoder`` takes it.
        """
        # Run the judge
        run = dataset.path
        key = hash_parts(run.name, judge_encoder)
        out = self.steps.folder / "agreement" / f"{key}.json"
        command = ["fidelity", str(run), "--encoder", judge_encoder]
        title = f"{run.name}, judge {judge}"
        seconds = self.steps.run_once("agreement", key, command, title, out)
        # The command writes into the run directory, where the next judge's result replaces it.
        if not out.is_file():
            write_text(out, (run / FIDELITY).read_text(encoding="utf-8"))
        fidelity = Fidelity.model_validate_json(out.read_bytes())

        # Convert the judge's intervals to points.
        intervals = {f"agreement, {judge}": fidelity.spearman}
        for label, texts in fidelity.labels.items():
            intervals[f"cosine of {label}, {judge}"] = texts.cosine
        estimates = {}
        for name, interval in intervals.items():
            if interval:
                estimates[name] = Estimate(
                    score=100 * interval.value, low=100 * interval.low, high=100 * interval.high
                )

        # Numbers that are counted, not estimated, have no interval.
        exact = {
            "kept": 100 * fidelity.kept / fidelity.requested,
            "CPU-seconds for 100 kept texts": 100 * dataset.seconds / fidelity.kept,
        }
        for name, value in exact.items():
            estimates[name] = Estimate(score=value, low=value, high=value)
        return estimates, seconds

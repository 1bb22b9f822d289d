"""One experiment, step by step: datasets, trained encoders, their scores, the table of them with its effects."""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from benchmarks.better_pairs.arms import RUN_OF
from benchmarks.better_pairs.datasets import DatasetMaker, Run, commands
from benchmarks.better_pairs.steps import Steps, digest
from benchmarks.papers.made import Made, names_in, source_of, with_data
from benchmarks.papers.plan import ENCODER_OF, Encoder, Experiment, OwnColumn, Papers
from benchmarks.papers.result import Difference, Measured, Result
from benchmarks.papers.training_data import finished_config, first_texts
from benchmarks.trials import hardware
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import apply_overrides, checked, load_recipe, read_yaml
from hub.contract.results import read_results
from hub.contract.run_dir import require_complete
from hub.contract.schema import is_finished
from hub.contract.shards import write_text
from hub.training_value import ArmPlan
from release.options import set_words
from release.value import trained_on, training_sha256, untrained
from release.value_arms import CONFIG, copies, write_pairs

STAGE = "small"
DATA_WORDS = ("--senteval-data", "<data>/senteval", "--sts-data", "<data>/sts-original")
SAMPLES = 1000  # of the bootstrap
LIBRARIES = ("torch", "transformers", "sentence-transformers", "sts-dino")


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


class Experiments:
    """Runs experiments, each step once. ``settings``: of every dataset recipe, and those for files of every encoder's.

    ``data``: the folder with ``senteval``, ``sts-original`` and ``text``.
    """

    def __init__(self, papers: Papers, steps: Steps, data: Path | None, settings: Sequence[str] = ()):
        self.papers, self.steps, self.data = papers, steps, data
        self.made = Made(papers.made, steps, data)
        self.datasets = DatasetMaker(papers.pairs, STAGE, steps, data, settings, self.made.filled)
        self.stage = papers.pairs.stages[STAGE]
        self.stand_ins = [word for word in settings if word.startswith("@")]

    def run(self, experiment: Experiment) -> Result:
        """The result of an experiment: every step that is not done yet is done."""
        measured, seconds = self._measured(experiment) if experiment.measure else self._table(experiment)
        return Result(
            experiment=experiment.name,
            measured=measured,
            seconds=round(seconds, 1),
            data_seeds=len(self.stage.data_seeds),
            training_seeds=self._seeds(experiment),
            sizes={arm: self._size(arm) for arm in self._arms(experiment)},
            commands=tuple(self.commands(experiment)),
            hardware=hardware(),
            versions={library: version(library) for library in LIBRARIES},
        )

    def dataset(self, arm: str, seed: int | None = None) -> Run:
        """The finished dataset of an arm under a data seed, the first one by default."""
        return self.datasets.run_of(self.papers.pairs.arm(arm), self.stage.data_seeds[0] if seed is None else seed)

    def _arms(self, experiment: Experiment) -> list[str]:
        pairs = [one.pairs for one in self.papers.encoders_of(experiment) if one.pairs]
        return list(dict.fromkeys([*experiment.arms_named, *pairs]))

    def _seeds(self, experiment: Experiment) -> int:
        return experiment.training_seeds or self.stage.training_seeds

    def _size(self, arm: str) -> dict[str, int]:
        manifest = require_complete(self.dataset(arm).directory)
        config = finished_config(self.dataset(arm).directory)
        rows = sum(file.rows or 0 for file in manifest.files if file.config == config)
        return {"first texts": manifest.counts["sources"], "rows": rows}

    # Tables of encoders

    def _table(self, experiment: Experiment) -> tuple[Measured, float]:
        columns = experiment.measured_columns()
        wanted = list(columns.values()), self._seeds(experiment)
        every = {one.name: self.scored(one, *wanted) for one in self.papers.encoders_of(experiment)}
        grids = {name: self.papers.encoder(name).grid or (name,) for name in experiment.rows}
        scored = {name: [folder for one in grid for folder in every[one].folders] for name, grid in grids.items()}
        rows: dict[str, dict[str, Any]] = {name: {} for name in experiment.rows}
        differences = list[Difference]()
        for name, column in columns.items():
            effects = [effect for effect in experiment.effects if effect.column == name]
            plan = ArmPlan(
                tasks=column.tasks,
                split=column.split,
                samples=SAMPLES,
                arms={encoder: tuple(map(str, folders)) for encoder, folders in scored.items()},
                control=next(iter(scored)),
                data_seeds=len(self.stage.data_seeds),
                differences=tuple((effect.better, effect.than) for effect in effects),
            )
            found = self._compared(experiment, plan)
            for encoder, arm in found["arms"].items():
                rows[encoder][name] = arm["average"]
            for effect, one in zip(effects, found["differences"], strict=True):
                given = {"better": effect.better, "than": effect.than, "column": name, "difference": one}
                differences.append(Difference.model_validate(given))
        of_sets = [name for name in experiment.rows if self.papers.encoder(name).example_sets]
        notes = [over_sets(columns, {name: scored[name] for name in of_sets})] if of_sets else []
        measured = Measured.model_validate({"rows": rows, "differences": differences, "notes": notes})
        return measured, sum(one.seconds for one in every.values()) + self._writing(experiment)

    def _writing(self, experiment: Experiment) -> float:
        """CPU seconds of the datasets (of arms that share texts once), and of what else is made once."""
        settings = [word for one in self.papers.encoders_of(experiment) for word in one.settings]
        return sum(self._written(experiment).values()) + sum(self.made.seconds(settings).values())

    def _written(self, experiment: Experiment) -> dict[tuple[str, int], float]:
        seconds = dict[tuple[str, int], float]()
        for arm in self._arms(experiment):
            for seed in self.stage.data_seeds:
                texts = (self.papers.pairs.arm(arm).same_texts or arm, seed)
                seconds[texts] = max(seconds.get(texts, 0.0), self.dataset(arm, seed).seconds)
        return seconds

    def _compared(self, experiment: Experiment, plan: ArmPlan) -> dict[str, Any]:
        """What ``eval.arms`` says of a plan."""
        key = digest(plan.model_dump(mode="json"))
        path, out = (self.steps.folder / "compared" / f"{key}{suffix}" for suffix in (".plan.json", ".json"))
        write_text(path, plan.model_dump_json(indent=1) + "\n")
        self.steps.once("compared", key, ["eval.arms", str(path), "--out", str(out)], experiment.name, out)
        found: dict[str, Any] = json.loads(out.read_bytes())
        return found

    def scored(self, encoder: Encoder, columns: Sequence[OwnColumn], seeds: int | None = None) -> Scored:
        """The evaluations of an encoder on the columns' tasks; it is trained when it is not yet."""
        tasks = list(dict.fromkeys((task, column.split) for column in columns for task in column.tasks))
        if encoder.model is not None:
            return self._scored_by_name(encoder, tasks)
        trees = self._trees(encoder, seeds)
        folders, seconds = [], 0.0
        for tree in trees:
            evaluation = [{"task": task, "split": split} for task, split in tasks]
            tree = tree | {"evaluation": evaluation, "bootstrap_samples": "100"}  # the table's own interval is of all
            made = self._encoder(encoder, tree)
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

    # Encoders

    def encoder_folder(self, name: str) -> Path:
        """The trained encoder of the first seed."""
        encoder = self.papers.encoder(name)
        return self._encoder(encoder, self._trees(encoder)[0]).folder / "encoder"

    def _trees(self, encoder: Encoder, each: int | None = None) -> list[dict[str, Any]]:
        """The recipe of an encoder for ``each`` training seed of each data seed: a baseline's once."""
        assert encoder.recipe is not None
        settings = [self.made.filled(setting) for setting in self._settings(encoder.recipe, encoder)]
        tree = apply_overrides(read_yaml(encoder.recipe), settings)
        if not encoder.trained:
            return [untrained(tree)]
        each = each or self.stage.training_seeds
        seeds = [
            (data, number * each + seed + 1)
            for number, data in enumerate(self.stage.data_seeds)
            for seed in range(each)
        ]
        return [self._on_pairs(encoder, tree, data, seed) for data, seed in seeds]

    def _settings(self, recipe: Path, encoder: Encoder) -> list[str]:
        """Those of an encoder, and files for its base where that is of a Hub: a file without use is refused."""
        of_hub = read_yaml(recipe).get("base", {}).get("repo_id") is not None
        return [*encoder.settings, *(self.stand_ins if of_hub else ())]

    def _on_pairs(self, encoder: Encoder, tree: Mapping[str, Any], data_seed: int, seed: int) -> dict[str, Any]:
        """The recipe with an arm's dataset in the place of its own; ``seed``: of the training."""
        if encoder.pairs is None:
            return {**tree, "seed": str(seed)}
        run = self.dataset(encoder.pairs, data_seed).directory
        if not encoder.copies:
            found = trained_on(tree, "dataset", run, finished_config(run), seed)
            if encoder.example_sets:
                of_set = {"example_set": str((seed - 1) % encoder.example_sets)}
                found["datasets"] = [{**one, **of_set} for one in found["datasets"]]
            return found
        firsts = [{"sentence1": text} for text in first_texts(run)]
        written = write_pairs(self.steps.folder / "copies", copies(firsts, seed, str(run)))
        return trained_on(tree, "copies", written, CONFIG, seed)

    def _encoder(self, encoder: Encoder, tree: Mapping[str, Any]) -> Trained:
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

    # Measurements of other kinds

    def _measured(self, experiment: Experiment) -> tuple[Measured, float]:
        """What the module of ``measure`` finds."""
        made = {word: self.made.filled(word) for word in experiment.measure if names_in([word])}
        arms = {arm: self.dataset(arm).directory for arm in experiment.arms_named}
        encoders = {name: self.encoder_folder(name) for name in experiment.encoders_named}
        key = digest(
            experiment.measure,
            source_of(experiment.measure[0]),
            {name: str(path) for name, path in (arms | encoders | made).items()},
        )
        out = self.steps.folder / "measured" / f"{key}.json"

        def filled(word: str) -> str:
            word = RUN_OF.sub(lambda found: str(arms[found[1]]), made.get(word, word))
            word = ENCODER_OF.sub(lambda found: str(encoders[found[1]]), word)
            return with_data(word, self.data, experiment.name).replace("<out>", str(out))

        step = self.steps.once("measured", key, list(map(filled, experiment.measure)), experiment.name, out)
        found = Measured.model_validate_json(out.read_bytes())
        seconds = step.seconds + self._writing(experiment) + sum(self.made.seconds(experiment.measure).values())
        for name in experiment.encoders_named:
            encoder = self.papers.encoder(name)
            seconds += self._encoder(encoder, self._trees(encoder)[0]).seconds
        return found, seconds

    def commands(self, experiment: Experiment) -> list[str]:
        """What makes an experiment, as a user types it: what is made on the way stands by its name."""
        encoders = self.papers.encoders_of(experiment)
        found = list[str]()
        for arm in self._arms(experiment):
            chosen = self.papers.pairs.arm(arm)
            found += commands(self.papers.pairs, chosen, self.stage.data_seeds[0], self.datasets.settings)
        for encoder in encoders:
            if encoder.recipe is not None and encoder.trained:
                place = self._place(encoder.pairs) if encoder.pairs else []
                words = [
                    *set_words([*self._settings(encoder.recipe, encoder), *place, "seed=1"]),
                    "--out",
                    f"<{encoder.name}>",
                ]
                found.append(f"python -m training.run {encoder.recipe} {shlex.join(words)}")
        columns = experiment.measured_columns() if experiment.rows else {}
        tasks = ",".join(dict.fromkeys(task for column in columns.values() for task in column.tasks))
        for encoder in encoders if tasks else ():
            words = ["eval.run", "--model", encoder.model or f"<{encoder.name}>", "--tasks", tasks]
            found.append(f"python -m {shlex.join([*words, *DATA_WORDS])}")
        if experiment.measure:
            found.append(f"python -m {shlex.join(experiment.measure)}")
        settings = [word for encoder in encoders for word in encoder.settings]
        return list(dict.fromkeys([*self.made.commands([*settings, *found]), *found]))

    def _place(self, arm: str) -> list[str]:
        """The settings that have an encoder read an arm's dataset, which need not be there."""
        texts = self.papers.pairs.texts(arm)
        configs = load_recipe(texts.recipe, DatasetRecipe, list(texts.settings)).configs
        return [f"datasets.0.path=<run:{arm}>", f"datasets.0.config={next(filter(is_finished, configs))}"]


def over_sets(columns: Mapping[str, OwnColumn], folders: Mapping[str, Sequence[Path]]) -> str:
    """Mean and standard deviation over the trainings of encoders, each on an example set, of the last column."""
    name, column = list(columns.items())[-1]
    parts = []
    for encoder, places in folders.items():
        scores = [
            {(one.task, one.split): one.main_score for one in read_results(place / "results.json").scores}
            for place in places
        ]
        means = [fmean(of[task, column.split] for task in column.tasks) for of in scores]
        parts.append(f"{encoder} {fmean(means):.1f} ± {stdev(means):.1f}")
    return f"Mean ± standard deviation of {name} over example sets: {'; '.join(parts)}."

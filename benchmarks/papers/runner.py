"""One experiment, step by step: datasets, trained encoders, their scores, the table of them with its effects."""

import json
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.better_pairs.arms import RUN_OF
from benchmarks.better_pairs.datasets import DatasetMaker, Run, commands
from benchmarks.better_pairs.steps import Steps, digest
from benchmarks.papers.encoders import DATA_WORDS, EncoderMaker, Seeds
from benchmarks.papers.made import Made, names_in, source_of, with_data
from benchmarks.papers.plan import ENCODER_OF, Experiment, Papers
from benchmarks.papers.result import Difference, Measured, Result
from benchmarks.papers.spread import over_cells, over_sets
from benchmarks.papers.training_data import finished_config
from benchmarks.trials import hardware
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import require_complete
from hub.contract.schema import is_finished
from hub.contract.shards import write_text
from hub.training_value import ArmPlan
from release.options import set_words

STAGE = "small"
SAMPLES = 1000  # of the bootstrap
LIBRARIES = ("torch", "transformers", "sentence-transformers", "sts-dino")


class Experiments:
    """Runs experiments, each step once. ``settings``: of every dataset recipe, and those for files of every encoder's.

    ``data``: the folder with ``senteval``, ``sts-original`` and ``text``.
    """

    def __init__(self, papers: Papers, steps: Steps, data: Path | None, settings: Sequence[str] = ()):
        self.papers, self.steps, self.data = papers, steps, data
        self.made = Made(papers.made, steps, data)
        self.datasets = DatasetMaker(papers.pairs, STAGE, steps, data, settings, self.made.filled)
        stand_ins = [word for word in settings if word.startswith("@")]
        self.encoders = EncoderMaker(papers, self.datasets, self.made, stand_ins)
        self.stage = papers.pairs.stages[STAGE]

    def run(self, experiment: Experiment) -> Result:
        """The result of an experiment: every step that is not done yet is done."""
        seeds = self._seeds(experiment)
        measured, seconds = self._measured(experiment) if experiment.measure else self._table(experiment)
        return Result(
            experiment=experiment.name,
            measured=measured,
            seconds=round(seconds, 1),
            data_seeds=len(seeds.data),
            training_seeds=seeds.trainings,
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

    def _seeds(self, experiment: Experiment) -> Seeds:
        return Seeds(
            self.stage.data_seeds[: experiment.data_seeds], experiment.training_seeds or self.stage.training_seeds
        )

    def _size(self, arm: str) -> dict[str, int]:
        manifest = require_complete(self.dataset(arm).directory)
        config = finished_config(self.dataset(arm).directory)
        rows = sum(file.rows or 0 for file in manifest.files if file.config == config)
        return {"first texts": manifest.counts["sources"], "rows": rows}

    # Tables of encoders

    def _table(self, experiment: Experiment) -> tuple[Measured, float]:
        columns = experiment.measured_columns()
        seeds = self._seeds(experiment)
        wanted = list(columns.values()), seeds
        every = {one.name: self.encoders.scored(one, *wanted) for one in self.papers.encoders_of(experiment)}
        grids = {name: self.papers.pooled(self.papers.encoder(name)) for name in experiment.rows}
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
                data_seeds=len(seeds.data),
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
        cells = {
            self.papers.encoder(name).says: scored[name] for name in experiment.rows if self.papers.encoder(name).grid
        }
        plots = {experiment.name: over_cells(columns, cells)} if cells else {}
        measured = Measured.model_validate({"rows": rows, "differences": differences, "notes": notes, "plots": plots})
        return measured, sum(one.seconds for one in every.values()) + self._writing(experiment)

    def _writing(self, experiment: Experiment) -> float:
        """CPU seconds of the datasets (of arms that share texts once), and of what else is made once."""
        settings = [word for one in self.papers.encoders_of(experiment) for word in one.settings]
        return sum(self._written(experiment).values()) + sum(self.made.seconds(settings).values())

    def _written(self, experiment: Experiment) -> dict[tuple[str, int], float]:
        seconds = dict[tuple[str, int], float]()
        for arm in self._arms(experiment):
            for seed in self._seeds(experiment).data:
                texts = (self.papers.pairs.arm(arm).same_texts or arm, seed)
                seconds[texts] = max(seconds.get(texts, 0.0), self.dataset(arm, seed).seconds)
        return seconds

    def _compared(self, experiment: Experiment, plan: ArmPlan) -> dict[str, Any]:
        """What ``eval.compare.seeds`` says of a plan."""
        key = digest(plan.model_dump(mode="json"))
        path, out = (self.steps.folder / "compared" / f"{key}{suffix}" for suffix in (".plan.json", ".json"))
        write_text(path, plan.model_dump_json(indent=1) + "\n")
        self.steps.once("compared", key, ["eval.compare.seeds", str(path), "--out", str(out)], experiment.name, out)
        found: dict[str, Any] = json.loads(out.read_bytes())
        return found

    # Measurements of other kinds

    def _measured(self, experiment: Experiment) -> tuple[Measured, float]:
        """What the module of ``measure`` finds."""
        made = {word: self.made.filled(word) for word in experiment.measure if names_in([word])}
        arms = {arm: self.dataset(arm).directory for arm in experiment.arms_named}
        seeds = self._seeds(experiment)
        trained = {name: self.encoders.first(name, seeds) for name in experiment.encoders_named}
        encoders = {name: one.folder / "encoder" for name, one in trained.items()}
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
        return found, seconds + sum(one.seconds for one in trained.values())

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
                    *set_words([*self.encoders.settings(encoder.recipe, encoder), *place, "seed=1"]),
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

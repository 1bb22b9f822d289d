"""The runner: one experiment to its result, by datasets, trained encoders, scores and paired differences."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.trials import hardware
from experiments.encoders import EncoderMaker
from experiments.plan import Experiment, Plan, Seeds
from experiments.result import Difference, Measured, Result
from experiments.steps import Made, Steps, digest
from experiments.variants import DatasetMaker, finished_config
from hub.contract.measured import FIDELITY, Estimate, Fidelity, VariantPlan, VariantScores
from hub.contract.run_dir import require_complete
from hub.durable import write_text
from hub.errors import InputError

SAMPLES = 1000  # of the bootstrap
LIBRARIES = ("torch", "transformers", "sentence-transformers", "sts-dino")


class Runner:
    """Runs experiments, each step once.

    ``settings``: added to every dataset recipe; those with files (``@FILE``) also to the recipes of encoders. ``data``:
    the folder with ``senteval``, ``sts-original`` and ``text``.
    """

    def __init__(self, plan: Plan, steps: Steps, data: Path | None, settings: Sequence[str] = ()):
        self.plan, self.steps = plan, steps
        self.datasets = DatasetMaker(plan, steps, data, settings)
        self.encoders = EncoderMaker(plan, self.datasets, [word for word in settings if word.startswith("@")])

    def run(self, experiment: Experiment) -> Result:
        """The result of an experiment; unfinished steps run. Raises InputError when only another revision can."""
        if experiment.finished:
            hint = f"git checkout {experiment.finished} repeats it; its result is kept"
            raise InputError(experiment.name, "is finished and its code was removed", hint=hint)
        seeds = self.seeds(experiment)
        measured, seconds = self._table(experiment)
        return Result(
            experiment=experiment.name,
            measured=measured,
            seconds=round(seconds + self._seconds_of_inputs(experiment), 1),
            data_seeds=len(seeds.data),
            training_seeds=seeds.trainings,
            sizes={name: self._size(name) for name in self._variants(experiment)},
            hardware=hardware(),
            versions={library: version(library) for library in LIBRARIES},
        )

    def seeds(self, experiment: Experiment) -> Seeds:
        """The seeds of an experiment: the first ones of the plan."""
        known = self.plan.datasets.seeds
        return Seeds(data=known.data[: experiment.data_seeds], trainings=experiment.training_seeds or known.trainings)

    def _variants(self, experiment: Experiment) -> list[str]:
        named = [one.dataset for one in self.plan.encoders_of(experiment) if one.dataset]
        return list(dict.fromkeys(named))

    def _size(self, name: str) -> dict[str, int]:
        directory = self.datasets.find(name, self.plan.datasets.seeds.data[0]).path
        manifest, config = require_complete(directory), finished_config(directory)
        rows = sum(file.rows or 0 for file in manifest.files if file.config == config)
        return {"source sentences": manifest.counts["sources"], "rows": rows}

    def _seconds_of_inputs(self, experiment: Experiment) -> float:
        """CPU seconds of datasets. Variants with the same texts count once."""
        seconds = dict[tuple[str, int], float]()
        for name in self._variants(experiment):
            for seed in self.seeds(experiment).data:
                texts = (self.plan.datasets.variant(name).same_texts or name, seed)
                seconds[texts] = max(seconds.get(texts, 0.0), self.datasets.find(name, seed).seconds)
        return sum(seconds.values())

    def _table(self, experiment: Experiment) -> tuple[Measured, float]:
        """A table of encoders with the paired differences of its effects."""
        columns, seeds = experiment.measured_columns(), self.seeds(experiment)
        every = {
            one.name: self.encoders.scored(one, list(columns.values()), seeds)
            for one in self.plan.encoders_of(experiment)
            if columns
        }
        first = next(iter(every), "")
        rows: dict[str, dict[str, Any]] = {name: {} for name in experiment.rows}
        differences = list[Difference]()
        for name, column in columns.items():
            effects = [effect for effect in experiment.effects if effect.column == name]
            plan = VariantPlan(
                tasks=column.tasks,
                split=column.split,
                samples=SAMPLES,
                variants={encoder: tuple(map(str, one.folders)) for encoder, one in every.items()},
                control=first,
                data_seeds=len(seeds.data),
                differences=tuple((effect.better, effect.than) for effect in effects),
            )
            found = self._compared(plan)
            for encoder, one in found.variants.items():
                rows[encoder][name] = one.average
                if experiment.judges and one.over_simcse:
                    rows[encoder][f"{name} over {first}"] = one.over_simcse  # the control is the first row
            differences += [
                Difference(better=effect.better, than=effect.than, column=name, difference=difference)
                for effect, difference in zip(effects, found.differences, strict=True)
            ]
        seconds = sum(one.seconds for one in every.values())
        for row in self.plan.encoders_of(experiment):
            for judge, place in experiment.judges.items() if row.dataset else ():
                agreement, more = self._agreement(self.datasets.find(row.dataset or "", seeds.data[0]), judge, place)
                rows[row.name] |= agreement
                seconds += more
        return Measured(rows=rows, differences=tuple(differences)), seconds

    def _agreement(self, made: Made, judge: str, place: str) -> tuple[dict[str, Estimate], float]:
        """Label agreement of a dataset by a judge, mean cosines of labels, share kept and cost, x 100; CPU seconds."""
        run = made.path
        key = digest(run.name, place)
        out = self.steps.folder / "agreement" / f"{key}.json"
        words = ["fidelity", str(run), "--encoder", place]
        seconds = self.steps.once("agreement", key, words, f"{run.name}, judge {judge}", out)
        if not out.is_file():
            write_text(out, (run / FIDELITY).read_text(encoding="utf-8"))
        one = Fidelity.model_validate_json(out.read_bytes())
        measured = {f"agreement, {judge}": one.spearman}
        measured |= {f"cosine of {label}, {judge}": texts.cosine for label, texts in one.labels.items()}
        points = {name: [100 * x for x in (at.value, at.low, at.high)] for name, at in measured.items() if at}
        points["kept"] = [100 * one.kept / one.requested] * 3
        points["CPU-seconds for 100 kept texts"] = [100 * made.seconds / one.kept] * 3
        return {name: Estimate(score=x, low=low, high=high) for name, (x, low, high) in points.items()}, seconds

    def _compared(self, plan: VariantPlan) -> VariantScores:
        """Scores and differences with intervals over rows and seeds; kept by what decides them."""
        from eval.compare.seeds import compared

        path = self.steps.folder / "compared" / f"{digest(plan.model_dump(mode='json'))}.json"
        if not path.is_file():
            write_text(path, compared(plan).model_dump_json(indent=1) + "\n")
        return VariantScores.model_validate_json(path.read_bytes())

"""The runner: one experiment to its result.

It trains and scores the experiment's encoders, compares them, and measures label agreement.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from sts_dino.experiments.encoders import EncoderMaker, Evaluations
from sts_dino.experiments.plan import Experiment, OwnColumn, Plan, Seeds
from sts_dino.experiments.result import Difference, Measured, Result
from sts_dino.experiments.speed.trials import describe_hardware
from sts_dino.experiments.steps import StepOutput, Steps, hash_parts
from sts_dino.experiments.variants import DatasetMaker, get_finished_config
from sts_dino.hub.contract.measured import FIDELITY, Estimate, Fidelity, VariantPlan, VariantScores
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError

SAMPLES = 1000  # of the bootstrap
LIBRARIES = ("torch", "transformers", "sentence-transformers", "sts-dino")


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

        Raises InputError for an experiment that only an earlier revision repeats.
        """
        if experiment.finished:
            hint = f"git checkout {experiment.finished} repeats it; its result is kept"
            raise InputError(experiment.name, "is finished and its code was removed", hint=hint)
        rows: dict[str, dict[str, Estimate]] = {name: {} for name in experiment.rows}

        # scores of every encoder, and the paired differences of each column
        columns = experiment.list_columns()
        evaluations = self._score_encoders(experiment, list(columns.values()))
        differences = list[Difference]()
        for name, column in columns.items():
            plan = self._plan_comparison(experiment, name, column, evaluations)
            scores = self._compare_variants(plan)
            for row, score in scores.variants.items():
                rows[row][name] = score.average
                if experiment.judges and score.over_simcse:
                    rows[row][f"{name} over {plan.control}"] = score.over_simcse
            pairs = zip(plan.differences, scores.differences, strict=True)
            for (better, than), difference in pairs:
                differences.append(
                    Difference(better=better, than=than, column=name, difference=difference)
                )

        # label agreement of the rows' datasets
        seconds = sum(evaluation.seconds for evaluation in evaluations.values())
        first_seed = self.plan.datasets.seeds.data[0]
        for encoder in self.plan.list_encoders(experiment):
            judges = experiment.judges if encoder.dataset else {}
            for judge, judge_encoder in judges.items():
                dataset = self.datasets.find(encoder.dataset or "", first_seed)
                estimates, cost = self._measure_agreement(dataset, judge, judge_encoder)
                rows[encoder.name] |= estimates
                seconds += cost

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
        """Count source sentences and training rows of a variant under the first data seed."""
        directory = self.datasets.find(variant, self.plan.datasets.seeds.data[0]).path
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
                dataset = self.datasets.find(name, seed)
                longest = max(seconds.get((generated, seed), 0.0), dataset.seconds)
                seconds[generated, seed] = longest
        return sum(seconds.values())

    def _score_encoders(
        self, experiment: Experiment, columns: Sequence[OwnColumn]
    ) -> dict[str, Evaluations]:
        """Return the evaluations of every encoder on the columns; missing trainings run first."""
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
        evaluations: Mapping[str, Evaluations],
    ) -> VariantPlan:
        """Plan the comparison of a column; the control is the experiment's first row."""
        variants = {}
        for encoder, evaluation in evaluations.items():
            variants[encoder] = tuple(str(folder) for folder in evaluation.folders)
        effects = [effect for effect in experiment.effects if effect.column == name]
        return VariantPlan(
            tasks=column.tasks,
            split=column.split,
            samples=SAMPLES,
            variants=variants,
            control=next(iter(variants), ""),
            data_seeds=experiment.data_seeds,
            differences=tuple((effect.better, effect.than) for effect in effects),
        )

    def _compare_variants(self, plan: VariantPlan) -> VariantScores:
        """Return scores and differences with intervals over rows and seeds, computed once."""
        from sts_dino.eval.compare.seeds import compare_variants

        key = hash_parts(plan.model_dump(mode="json"))
        path = self.steps.folder / "compared" / f"{key}.json"
        if not path.is_file():
            write_text(path, compare_variants(plan).model_dump_json(indent=1) + "\n")
        return VariantScores.model_validate_json(path.read_bytes())

    def _measure_agreement(
        self, dataset: StepOutput, judge: str, judge_encoder: str
    ) -> tuple[dict[str, Estimate], float]:
        """Return the estimates of a judge on a dataset by name, and the CPU seconds.

        Label agreement (Spearman), the cosine of each label and the share of kept texts are x 100;
        the last estimate is CPU seconds for 100 kept texts.
        """
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

        intervals = {f"agreement, {judge}": fidelity.spearman}
        for label, texts in fidelity.labels.items():
            intervals[f"cosine of {label}, {judge}"] = texts.cosine
        estimates = {}
        for name, interval in intervals.items():
            if interval:
                estimates[name] = Estimate(
                    score=100 * interval.value, low=100 * interval.low, high=100 * interval.high
                )

        # numbers without an interval
        exact = {
            "kept": 100 * fidelity.kept / fidelity.requested,
            "CPU-seconds for 100 kept texts": 100 * dataset.seconds / fidelity.kept,
        }
        for name, value in exact.items():
            estimates[name] = Estimate(score=value, low=value, high=value)
        return estimates, seconds

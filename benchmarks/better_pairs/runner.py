"""One arm of a stage, step by step: first texts, pairs, their fidelity, their training value, a row of figures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.better_pairs.arms import Arm, Search
from benchmarks.better_pairs.datasets import DatasetMaker, Run, commands
from benchmarks.better_pairs.figures import Measured, Row, row_of
from benchmarks.better_pairs.steps import NotDone, Steps, digest
from hub.contract.label_fidelity import FIDELITY, Fidelity
from hub.contract.measured import write_json
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError
from hub.training_value import VALUE, ArmPlan, ArmScores
from release.options import set_words
from release.value import STSB_TRAIN, read_student


@dataclass(frozen=True)
class Value:
    """What was measured of an arm under one data seed: value.json, the arms' evaluations, and a training's seconds."""

    value: dict[str, Any]
    folders: dict[str, list[str]]
    training_seconds: float | None


class Runner(DatasetMaker):
    """Measures arms of one stage. ``data``: the folder of evaluation data; ``settings``: of every dataset recipe;
    ``workers``: trainings at a time.
    """

    def __init__(
        self,
        search: Search,
        stage: str,
        steps: Steps,
        data: Path | None,
        settings: Sequence[str] = (),
        workers: int = 1,
    ):
        super().__init__(search, stage, steps, data, settings)
        self.name, self.workers = stage, workers
        people = self.senteval / "downstream/STS" / STSB_TRAIN if self.senteval else None
        self.people = people if people and people.is_file() else None
        if self.stage.split == "test" and self.senteval is None:
            raise InputError("--data", f"stage {stage} reads the test sets in its folder senteval")

    def measure(self, arm: Arm) -> Row:
        """The row of an arm: every step that is not done yet is done."""
        runs = [self.run_of(arm, seed) for seed in self.stage.data_seeds]
        judged = [self._fidelity(arm, run, seed) for run, seed in zip(runs, self.stage.data_seeds, strict=True)]
        values = self._values(arm)
        reference = arm.reference
        others = self.known_values(self.search.arm(reference)) if reference else None
        scores = self._compared(arm, values, others)
        measured = Measured(
            seconds=[run.seconds for run in runs],
            training_seconds=[one.training_seconds for one in values],
            fidelity=judged,
            values=[one.value for one in values],
            scores=scores,
            against=reference if others else None,
        )
        student = self.student(arm)
        first_texts = self.search.texts(arm.name).first_texts
        lines = commands(self.search, arm, self.stage.data_seeds[0], self.settings)
        return row_of(arm, self.name, self.stage, lines, first_texts, student, measured)

    def _fidelity(self, arm: Arm, run: Run, seed: int) -> Fidelity:
        """What ``eval.fidelity`` says of the run."""
        out = run.directory / FIDELITY
        self._step("fidelity", run.directory.name, ["eval.fidelity", str(run.directory)], arm, seed, out)
        return Fidelity.model_validate_json(out.read_bytes())

    def _value(self, arm: Arm, run: Run, number: int) -> Value:
        """The training value under the ``number``-th data seed, whose training seeds no other one has."""
        stage, folder = self.stage, self.steps.folder / "value"
        first = number * stage.training_seeds + 1
        student = self.student(arm)
        words = [
            *("release.value", str(run.directory), "--split", stage.split, "--pairs", str(stage.pairs)),
            *("--seeds", f"{first}-{first + stage.training_seeds - 1}"),
            *("--student", str(stage.student), *set_words(student), "--out", str(folder)),
            *(("--people", str(self.people)) if self.people else ()),
            *(("--senteval-data", str(self.senteval)) if stage.split == "test" else ()),
            *(() if stage.shuffled else ("--no-shuffled",)),
        ]
        key = digest(words, read_student(stage.student, student).sha256)

        def found(began: float) -> Any:
            plan = json.loads((folder / "plan.json").read_bytes())  # of this dataset: it is the last that was measured
            trained = [one for one in (folder / "arms").iterdir() if one.stat().st_mtime >= began]
            value = json.loads((run.directory / VALUE).read_bytes())
            return {"value": value, "folders": plan["arms"], "trained": len(trained)}

        with self.steps.lock("release.value"):  # which works alone in its folder
            words += ["--workers", str(self.workers)]  # which decides nothing
            step = self._step("value", key, words, arm, stage.data_seeds[number], folder, found)
        each = step.seconds / step.result["trained"] if step.result["trained"] else None
        return Value(step.result["value"], step.result["folders"], each)

    def student(self, arm: Arm) -> tuple[str, ...]:
        """The settings of the student's recipe; what stands in for the Hub's repositories does so for its base, too."""
        of_hub = load_recipe(self.stage.student, ModelRecipe).base.repo_id is not None
        stand_ins = [word for word in self.settings if word.startswith("@")] if of_hub else []
        return (*self.stage.student_set, *stand_ins, *self.search.student(arm.name))

    def _values(self, arm: Arm) -> list[Value]:
        return [self._value(arm, self.run_of(arm, seed), number) for number, seed in enumerate(self.stage.data_seeds)]

    def known_values(self, arm: Arm) -> list[Value] | None:
        """The values of an arm, when all are measured; nothing is made."""
        steps = Steps(self.steps.folder, finished_only=True)
        try:
            return Runner(self.search, self.name, steps, self.data, self.settings)._values(arm)
        except NotDone:
            return None

    def _compared(self, arm: Arm, values: list[Value], others: list[Value] | None) -> ArmScores:
        """All arms over all data seeds, and the differences of the dataset to each of them."""
        folders = {name: [place for one in values for place in one.folders[name]] for name in values[0].folders}
        folders["untrained"] = folders["untrained"][:1]
        if others:
            folders["reference"] = [place for one in others for place in one.folders["dataset"]]
        plan = ArmPlan(
            tasks=values[0].value["tasks"],
            split=self.stage.split,
            samples=values[0].value["samples"],
            arms={name: tuple(places) for name, places in folders.items()},
            control="copies",
            data_seeds=len(values),
            differences=tuple(("dataset", name) for name in folders if name != "dataset"),
        )
        key = digest(plan.model_dump(mode="json"))
        path, out = (self.steps.folder / "compared" / f"{key}{suffix}" for suffix in (".plan.json", ".json"))
        write_json(path, plan)
        words = ["eval.compare.seeds", str(path), "--out", str(out)]
        self._step("compared", key, words, arm, self.stage.data_seeds[0], out)
        return ArmScores.model_validate_json(out.read_bytes())

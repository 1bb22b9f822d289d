"""One arm of a stage, step by step: first texts, pairs, their fidelity, their training value, a row of figures."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.better_pairs.arms import GOLD, RUN_OF, Arm, Search, Stage
from benchmarks.better_pairs.figures import Measured, Row, row_of
from benchmarks.better_pairs.steps import NotDone, Step, Steps, digest
from hub.contract.label_fidelity import FIDELITY, Fidelity
from hub.contract.measured import write_json
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import deciding, load_recipe
from hub.contract.shards import sha256_file
from hub.errors import InputError
from hub.training_value import VALUE, ArmPlan, ArmScores
from release.options import set_words
from release.value import STSB_TRAIN, read_student

SPARE = 2  # times as many first texts are drawn as are wanted: a recipe passes over some by their tokens
REFINISH = "benchmarks.better_pairs.refinish"


@dataclass(frozen=True)
class Run:
    """A finished dataset of an arm: its directory, and the CPU seconds that all of it took."""

    directory: Path
    seconds: float


@dataclass(frozen=True)
class Value:
    """What was measured of an arm under one data seed: value.json, the arms' evaluations, and a training's seconds."""

    value: dict[str, Any]
    folders: dict[str, list[str]]
    training_seconds: float | None


def commands(search: Search, arm: Arm, seed: int, settings: Sequence[str]) -> list[str]:
    """The commands that make an arm's pairs, as a user types them: what is made on the way stands by its name."""
    texts = search.texts(arm.name)
    seeded = [*texts.settings, *settings, f"source.path=<{texts.first_texts}-{seed}.txt>", f"seed={seed}"]
    found = [["generation.run", str(texts.recipe), *set_words(seeded)]]
    if arm.as_many_as:
        found.append([REFINISH, f"<run:{arm.same_texts}>", "--as-many-as", f"<run:{arm.as_many_as}>"])
    elif arm.same_texts and arm.settings:
        found.append([REFINISH, f"<run:{arm.same_texts}>", *set_words(arm.settings)])
    return [f"python -m {shlex.join(words)}" for words in found]


class Runner:
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
        self.search, self.name, self.steps, self.settings = search, stage, steps, tuple(settings)
        self.workers = workers
        self.stage: Stage = search.stages[stage]
        self.data = data
        senteval = data / "senteval" if data else None
        self.senteval = senteval if senteval and (senteval / "downstream").is_dir() else None
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
        firsts, spec = self._drawn(texts.first_texts, seed), self.search.first_texts[texts.first_texts]
        told = {"description": spec.description, "license": spec.license}
        source = {"kind": "file", "path": str(firsts), "limit": self.stage.texts, **told}
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
            setting = setting.replace(GOLD, str(self._gold()))
        return RUN_OF.sub(lambda found: str(self.run_of(self.search.arm(found[1]), seed).directory), setting)

    def _drawn(self, name: str, seed: int) -> Path:
        """The file of first texts that a data seed draws."""
        spec, wanted = self.search.first_texts[name], SPARE * self.stage.texts
        below = [self.data / spec.path] if self.data else []
        file = next((path for path in (*below, Path(spec.path)) if path.is_file()), None)
        if file is None:
            raise InputError(spec.path, f"first texts {name}: no such file", hint="--data DIR holds it (STS_DINO_DATA)")
        columns = [word for column in spec.columns for word in ("--column", column)]
        return self._texts(name, file, [*columns, "--texts", str(wanted), "--seed", str(seed)], ".txt")

    def _gold(self) -> Path:
        """The file of people's pairs that examples are drawn from."""
        file = self.data / "sts-original" / STSB_TRAIN if self.data else None  # as it was written: case and spaces
        if file is None or not file.is_file():
            place = f"sts-original/{STSB_TRAIN}"
            raise InputError(GOLD, f"people's pairs are read from {place} of --data, which is not there")
        return self._texts("gold", file, ["--people", "--texts", "10000"], ".jsonl")

    def _texts(self, name: str, file: Path, words: list[str], suffix: str) -> Path:
        where = ["--senteval-data", str(self.senteval)] if self.senteval else []
        key = digest(sha256_file(file), words, bool(where))
        out = self.steps.folder / "first_texts" / f"{name}-{key}{suffix}"
        line = ["benchmarks.better_pairs.first_texts", str(file), *words, *where, "--out", str(out)]
        self.steps.once("first_texts", key, line, f"first texts {name}", out)
        return out

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
        words = ["eval.arms", str(path), "--out", str(out)]
        self._step("compared", key, words, arm, self.stage.data_seeds[0], out)
        return ArmScores.model_validate_json(out.read_bytes())

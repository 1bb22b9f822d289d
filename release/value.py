"""The training value of a dataset: python -m release.value DATASET... --senteval-data DIR

One fixed small encoder (recipes/value/value-student.yaml) is trained on each dataset and on controls, always on as
many pairs: untrained; copies of the first texts (no language model's work); the dataset's pairs with shuffled
scores; people's pairs. Each training and each evaluation is a child process and a folder named by what decides it, so
a killed command goes on where it was. The table is printed, and value.json written where the dataset's card shows it.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer
import yaml

from hub import cli
from hub.assets import shipped, student_recipe
from hub.contract.measured import write_json, write_measured
from hub.contract.published_paths import origin_name
from hub.contract.recipe import OF_TRAINING, ModelRecipe
from hub.contract.recipe_file import apply_overrides, checked, deciding, read_yaml
from hub.contract.run_dir import ARTIFACTS, locked, require_complete
from hub.contract.shards import sha256_file, write_text
from hub.errors import InputError
from hub.training_value import VALUE, Arm, ArmPlan, ArmScores, Split, TrainingValue
from release.child_process import named, run_stage
from release.repeats import is_scored, parsed_range
from release.value_arms import (
    CONFIG,
    MeasuredDataset,
    Row,
    ScoredPairs,
    copies,
    read_dataset,
    read_people,
    shuffled,
    write_pairs,
)

STUDENT = student_recipe("value-student.yaml")
LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets", "sts-dino")
FINAL = (*(f"sts{year}/all" for year in range(12, 17)), "stsb-tokenised/cosine", "sick-r-tokenised/cosine")
TASKS: dict[Split, tuple[str, ...]] = {"validation": ("stsb/cosine",), "test": FINAL}
OF_COPIES = {"example_type": "triplet", "loss": "MultipleNegativesRankingLoss"}  # InfoNCE at temperature 0.05
OF_PEOPLE = {"example_type": "sts", "loss": "CoSENTLoss"}  # hardly two of their pairs share a first text: no triplets
UNIQUE = {"batch_sampler": "no_duplicates"}  # of copies: a first text twice in a batch would be its own negative
ORDER: tuple[Arm, ...] = ("untrained", "shuffled", "copies", "dataset", "people")
STSB_TRAIN = "STSBenchmark/sts-train.csv"
TRAINING_KEYS = ("datasets", *OF_TRAINING)  # none of a baseline

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Student:
    """The student's recipe as a tree, checked; ``sha256`` is of what decides a training beside pairs and seed."""

    tree: Mapping[str, Any]
    recipe: ModelRecipe
    sha256: str


@dataclass(frozen=True)
class Experiment:
    """What all arms have in common. ``folder`` holds pairs and arms, ``data`` the words that name evaluation data.

    ``workers``: trainings at a time.
    """

    student: Student
    pairs: int
    seeds: tuple[int, ...]
    split: Split
    samples: int
    folder: Path
    data: tuple[str, ...]
    workers: int

    @property
    def tasks(self) -> tuple[str, ...]:
        """The evaluation tasks of the split."""
        return TASKS[self.split]


@app.command()
def main(
    datasets: Annotated[list[str], typer.Argument(metavar="DATASET...", help="Run directories, or ORG/NAME@REVISION")],
    senteval_data: Annotated[
        Path | None, typer.Option("--senteval-data", metavar="DIR", help="SentEval's directory: seven tasks are read")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", metavar="test|validation", help="validation: the STS Benchmark's alone, to choose")
    ] = "test",
    pairs: Annotated[int, typer.Option("--pairs", min=2, help="Pairs that every arm is trained on")] = 2000,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="1,2,3", help="Each draws pairs and trains; 1-3 is the same")
    ] = "1-3",
    people: Annotated[
        Path | None,
        typer.Option("--people", metavar="FILE", help="Pairs with people's scores [default: STSb-train in SentEval's]"),
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="Of the datasets, where one has several")] = None,
    student: Annotated[Path, typer.Option("--student", metavar="RECIPE", help="Another student")] = STUDENT,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    with_shuffled: Annotated[
        bool, typer.Option("--shuffled/--no-shuffled", help="Train the control of shuffled scores, or save its time")
    ] = True,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Trainings at a time, each a process")] = 1,
    samples: Annotated[int, typer.Option("--bootstrap-samples", min=1, help="For the intervals")] = 1000,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where arms and scores are")] = ARTIFACTS / "value",
    as_json: cli.JsonOption = False,
) -> None:
    """Measure what an encoder gains from each DATASET, beside controls trained on as many pairs.

    Examples:

      python -m release.value artifacts/datasets/sts-dino-x2 --split validation

      python -m release.value artifacts/datasets/a artifacts/datasets/b --senteval-data DIR

      python -m release.value my-org/sts-dino-x2@v1.0.0 --senteval-data DIR --pairs 5000 --seeds 1-5
    """
    chosen = next((name for name in TASKS if name == split), None)
    if chosen is None:
        raise InputError("--split", f"{split!r} is none", allowed="test, validation")
    experiment = Experiment(
        student=read_student(student, settings),
        pairs=pairs,
        seeds=parsed_range(seeds, "--seeds"),
        split=chosen,
        samples=samples,
        folder=out.resolve(),
        data=_data_words(split, senteval_data),
        workers=workers,
    )
    found = [read_dataset(place, config) for place in datasets]
    known, why = find_people(people, senteval_data, pairs)
    skipped: dict[Arm, str] = {} if why is None else {"people": why}
    if not with_shuffled:
        skipped["shuffled"] = "left out (--no-shuffled)"
    for dataset in found:
        dataset.pairs.draw(pairs, 0)  # too few pairs are told before anything is trained
    with locked(experiment.folder):
        values = [measured(experiment, dataset, known, skipped) for dataset in found]
    for dataset, value in zip(found, values, strict=True):
        write_value(experiment, dataset, value)
    cli.answer("\n\n".join(map(table, values)), values, as_json)


def _data_words(split: str, senteval: Path | None) -> tuple[str, ...]:
    if split == "validation":
        return ()
    if senteval is None:
        hint = "or choose on the STS Benchmark's validation split, which is in assets: --split validation"
        raise InputError("--senteval-data", f"is needed for {', '.join(FINAL)}", hint=hint)
    if not (senteval / "downstream").is_dir():
        raise InputError(f"--senteval-data {senteval}", "has no folder downstream", allowed="SentEval's data directory")
    return ("--senteval-data", str(senteval))


def read_student(path: Path, settings: Sequence[str] = ()) -> Student:
    """The student of a model recipe whose datasets all stand for each arm's pairs, read in several forms where there
    are several. Raises InputError for any other.
    """
    tree = apply_overrides(read_yaml(path), list(settings))
    if isinstance(base := tree.get("base"), dict) and isinstance(base.get("path"), str):
        base["path"] = shipped(base["path"])
    recipe = checked(path, ModelRecipe, tree)
    if not recipe.datasets or any(one.path is None for one in recipe.datasets):
        hint = "they say how scored pairs are trained on; each arm's take the place of their path"
        raise InputError(f"{path}:datasets", "a student has one or several, by path", hint=hint)
    if recipe.validation or recipe.limit is not None:
        raise InputError(path, "a student has no validation and no limit: all arms train alike, to the last step")
    if "max_steps" not in recipe.arguments:
        raise InputError(f"{path}:arguments", "a student states its max_steps, which are the same for every arm")
    return Student(tree, recipe, training_sha256(recipe))


def training_sha256(recipe: ModelRecipe) -> str:
    """A digest of all that decides a training, but the seed."""
    plain = deciding(recipe)
    plain.pop("seed")
    base = recipe.base.path
    files = sorted(Path(base).glob("*.safetensors")) if base is not None else []
    digests = [sha256_file(file) for file in files]
    text = json.dumps([plain, digests, {name: version(name) for name in LIBRARIES}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find_people(path: Path | None, senteval: Path | None, pairs: int) -> tuple[ScoredPairs | None, str | None]:
    """People's pairs, or why there are none. Raises InputError when a file that was named cannot be used."""
    if path is not None and not path.is_file():
        raise InputError(f"--people {path}", "no such file", allowed="a file in the STS Benchmark's layout")
    place = path or (senteval / "downstream/STS" / STSB_TRAIN if senteval is not None else None)
    if place is None or not place.is_file():
        return None, "no pairs with people's scores at hand (--people FILE)"
    found = read_people(place)
    if len(found.firsts) < pairs:
        return None, f"{place.name} has {len(found.firsts):,} pairs, fewer than {pairs:,}"
    return found, None


def measured(
    experiment: Experiment, dataset: MeasuredDataset, people: ScoredPairs | None, skipped: dict[Arm, str]
) -> TrainingValue:
    """The value of one dataset: what is missing of its arms is trained and scored, then all are compared.

    ``skipped``: arms that are left out, and why.
    """
    wanted: list[tuple[Arm, int, Path | None]] = [("untrained", experiment.seeds[0], None)]
    for seed in experiment.seeds:
        rows = dataset.pairs.draw(experiment.pairs, seed)
        arms: dict[Arm, list[Row]] = {"copies": copies(rows, seed, dataset.pairs.place), "dataset": rows}
        if "shuffled" not in skipped:
            arms["shuffled"] = shuffled(rows, seed)
        if people is not None:
            arms["people"] = people.draw(experiment.pairs, seed)
        wanted += [(arm, seed, write_pairs(experiment.folder / "pairs", one)) for arm, one in arms.items()]
    folders: dict[Arm, list[Path]] = {}
    for (arm, *_), folder in zip(wanted, train_all(experiment, wanted), strict=True):
        folders.setdefault(arm, []).append(folder)
    compared = compare(experiment, {arm: folders[arm] for arm in ORDER if arm in folders})
    scores = compared.arms
    return TrainingValue(
        dataset=dataset.name,
        config=dataset.config,
        fingerprint=dataset.fingerprint,
        student=experiment.student.recipe.name,
        student_sha256=experiment.student.sha256,
        base=origin_name(experiment.student.recipe.base.repo_id, experiment.student.recipe.base.path),
        pairs=experiment.pairs,
        seeds=experiment.seeds,
        tasks=experiment.tasks,
        split=experiment.split,
        samples=experiment.samples,
        arms={arm: scores[arm] for arm in ORDER if arm in scores},
        over={arm: one for (_, arm), one in zip(compared.pairs, compared.differences, strict=True)},  # type: ignore[misc]
        skipped=skipped,
        versions={name: version(name) for name in LIBRARIES},
    )


def train_all(experiment: Experiment, wanted: Sequence[tuple[Arm, int, Path | None]]) -> list[Path]:
    """What ``train`` makes of each arm, seed and pairs, so many at a time as there are workers."""
    stop, pool = Event(), ThreadPoolExecutor(experiment.workers)
    try:
        return [one.result() for one in [pool.submit(train, experiment, *arm, stop) for arm in wanted]]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # of an end before the last arm's: what waits is not begun,
        stop.set()  # and what runs is ended
        pool.shutdown()


def train(experiment: Experiment, arm: Arm, seed: int, pairs: Path | None, stop: Event) -> Path:
    """The student trained on an arm's pairs (None: not at all) and scored; what is done already is found.

    Raises InputError or RunError naming arm and seed when a stage fails, KeyboardInterrupt when ``stop`` is set.
    """
    tree = arm_recipe(experiment, arm, seed, pairs)
    recipe = checked(Path(experiment.split), ModelRecipe, tree)
    named = tuple(one.model_copy(update={"path": Path(one.path or "").name}) for one in recipe.datasets)  # by content
    decides = [training_sha256(recipe.model_copy(update={"datasets": named})), recipe.seed]
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
    folder = experiment.folder / "arms" / (f"{arm}-{seed}-{key}" if pairs else f"{arm}-{key}")
    model, path = folder / "encoder", folder / f"{experiment.split}.yaml"
    if not (model / "results.json").is_file() or not is_scored(model, require_complete(model), recipe):
        write_text(path, yaml.safe_dump(tree, sort_keys=False))
        stage = partial(_stage, arm, seed, folder, stop)
        stage("training.run", str(path), "--out", str(model))
        shutil.rmtree(folder / "encoder.base", ignore_errors=True)  # else it would be scored with every arm
        stage("eval.run", str(path), "--model", str(model), "--no-cache", *experiment.data)
    return model


def arm_recipe(experiment: Experiment, arm: Arm, seed: int, pairs: Path | None) -> dict[str, Any]:
    """The student's recipe for the run directory ``pairs``; without one, of the untrained student, a baseline."""
    tasks = [{"task": task, "split": experiment.split} for task in experiment.tasks]
    tree = {**experiment.student.tree, "evaluation": tasks, "bootstrap_samples": "100"}  # eval.compare.seeds resamples
    if pairs is None:
        return untrained(tree) | {"seed": str(experiment.student.recipe.seed)}
    return trained_on(tree, arm, pairs, CONFIG, seed)


def untrained(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline of a model recipe: its base as it is."""
    return {key: value for key, value in tree.items() if key not in TRAINING_KEYS}


def trained_on(tree: Mapping[str, Any], arm: Arm, directory: Path, config: str, seed: int) -> dict[str, Any]:
    """A model recipe whose datasets all read one config of a run directory, in the form and loss of the arm."""
    data, arguments = tree["datasets"], dict(tree.get("arguments", {}))
    licence = {key: value for key, value in data[0].items() if key == "license"}
    if arm == "copies":
        data = [licence | OF_COPIES]
        arguments |= UNIQUE
    elif arm == "people":
        data = [one for one in data if one["example_type"] == "sts"] or [licence | OF_PEOPLE]
    place = {"path": str(directory), "config": config}
    return {**tree, "datasets": [{**one, **place} for one in data], "arguments": arguments, "seed": str(seed)}


def _stage(arm: Arm, seed: int, folder: Path, stop: Event, *words: str) -> None:
    with named(f"arm {arm}, seed {seed}: {words[0]}", folder, "what is finished is kept: the same command goes on"):
        run_stage(*words, stop=stop)


def compare(experiment: Experiment, folders: Mapping[Arm, Sequence[Path]]) -> ArmScores:
    """Scores of all arms with intervals over rows and seeds, by ``eval.compare.seeds``."""
    plan = ArmPlan(
        tasks=experiment.tasks,
        split=experiment.split,
        samples=experiment.samples,
        arms={arm: tuple(map(str, each)) for arm, each in folders.items()},
        control="copies",
        differences=tuple(("dataset", arm) for arm in ("shuffled", "people") if arm in folders),
    )
    path, scores = experiment.folder / "plan.json", experiment.folder / "scores.json"
    write_json(path, plan)
    run_stage("eval.compare.seeds", str(path), "--out", str(scores))
    return ArmScores.model_validate_json(scores.read_bytes())


def write_value(experiment: Experiment, dataset: MeasuredDataset, value: TrainingValue) -> None:
    """Write value.json: into the run directory for its card, or beside the arms for a dataset of a Hub."""
    if dataset.directory is None:
        path = experiment.folder / f"{dataset.name}-{dataset.fingerprint[:12]}.{value.split}.json"
        write_json(path, value)
    else:
        path = write_measured(dataset.directory, VALUE, value, value.fingerprint)
        cli.say(f"next: python -m model_cards.render {dataset.directory}")
    cli.say(f"written: {path}")


def table(value: TrainingValue) -> str:
    """One line an arm: the mean over tasks, the difference to the copies control, and the dataset's to it; x 100."""
    several = f"{len(value.seeds)} seeds" if len(value.seeds) > 1 else "1 seed: intervals over sentence pairs alone"
    rows = [("trained on", f"mean of {len(value.tasks)}", "over copies", "dataset over it")]
    for arm, found in value.arms.items():
        rows.append((arm, str(found.average), str(found.over_copies or ""), str(value.over.get(arm, ""))))
    rows += [(arm, f"not trained: {why}", "", "") for arm, why in value.skipped.items()]
    head = f"{value.dataset} ({value.config}): {value.pairs:,} pairs, {several}, {value.split}, Spearman x 100"
    return f"{head}\n{cli.aligned(rows)}"


if __name__ == "__main__":
    cli.run(app, ends_on_sigterm=True)

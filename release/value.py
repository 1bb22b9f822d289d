"""Downstream gain of a dataset: a small fixed evaluation encoder trained on it and on baselines of as many pairs.

The baselines: the untrained encoder; ``copies``, unsupervised SimCSE on the source sentences (Gao et al. 2021), which
needs no generated data; ``shuffled``, the dataset's pairs with permuted scores; ``people``, human-annotated pairs of
the STS Benchmark's train part. Every seed draws its own pairs. Each training and each evaluation is a child process and
a folder named by what decides it, so the same command resumes after a kill.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from shlex import quote
from threading import Event
from typing import Annotated, Any, cast, get_args

import typer
import yaml

from eval.audit.source import find_rows
from hub import cli
from hub.assets import shipped, student_recipe
from hub.contract.measured import Split, TrainedOn, TrainingValue, VariantPlan, write_json
from hub.contract.published_paths import origin_name
from hub.contract.recipe import OF_TRAINING, ModelRecipe, ValidationData
from hub.contract.recipe_file import apply_overrides, checked, deciding, read_yaml
from hub.contract.run_dir import ARTIFACTS, Manifest, describe, locked, read_manifest, require_complete, write_manifest
from hub.contract.schema import ROW_SCHEMAS, features
from hub.contract.shards import shard_path, write_shard
from hub.durable import sha256_file, write_text
from hub.errors import InputError
from release.repeats import is_scored, parsed_range
from release.stages import named, run_parallel, run_stage

Row = dict[str, Any]

STUDENT = student_recipe("value-student.yaml")
LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets", "sts-dino")
FINAL = (*(f"sts{year}/all" for year in range(12, 17)), "stsb-tokenised/cosine", "sick-r-tokenised/cosine")
TASKS: dict[Split, tuple[str, ...]] = {"validation": ("stsb/cosine",), "test": FINAL}
OF_COPIES = {"example_type": "triplet", "loss": "MultipleNegativesRankingLoss"}  # InfoNCE at temperature 0.05
OF_PEOPLE = {"example_type": "sts", "loss": "CoSENTLoss"}  # few of their pairs share a source sentence: no triplets
UNIQUE = {"batch_sampler": "no_duplicates"}  # a sentence twice in a batch would be its own negative
STSB_TRAIN = "STSBenchmark/sts-train.csv"
TRAINING_KEYS = ("datasets", *OF_TRAINING)  # keys that a baseline lacks
STS, TRIPLET = ROW_SCHEMAS["sts"], ROW_SCHEMAS["triplet"]
CONFIG = "pairs"  # of a variant's run directory
HIGHEST = 5  # human score in the STS Benchmark

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class ValueOptions:
    """Options of ``sts-dino value``."""

    senteval_data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="SentEval's directory, for the seven test tasks")
    ] = None
    split: Annotated[
        str, typer.Option(metavar="test|validation", help="validation: the STS Benchmark's only, to choose")
    ] = "test"
    pairs: Annotated[int, typer.Option(min=2, help="Training pairs of every variant")] = 2000
    seeds: Annotated[str, typer.Option(metavar="1,2,3", help="Seeds of draws and trainings; 1-3 is the same")] = "1-3"
    people: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Human-annotated pairs [default: STSb-train in SentEval's directory]"),
    ] = None
    config: Annotated[str | None, typer.Option(help="Config of the datasets that have several")] = None
    student: Annotated[Path, typer.Option(metavar="RECIPE", help="Recipe of another evaluation encoder")] = STUDENT
    settings: cli.SetOption = field(default_factory=list)
    with_shuffled: Annotated[
        bool, typer.Option("--shuffled/--no-shuffled", help="Train the shuffled-label baseline, or save its time")
    ] = True
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time, each a process")] = 1
    samples: Annotated[int, typer.Option("--bootstrap-samples", min=1, help="Resamples for the intervals")] = 1000
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the variants and their scores")] = (
        ARTIFACTS / "value"
    )


@dataclass(frozen=True)
class Student:
    """The evaluation encoder's recipe as a tree, checked; ``sha256`` covers what decides a training but the seed."""

    tree: Mapping[str, Any]
    recipe: ModelRecipe
    sha256: str


@dataclass(frozen=True)
class Experiment:
    """What all variants share. ``data``: the words of ``sts-dino score`` that name evaluation data."""

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


@dataclass(frozen=True)
class ScoredPairs:
    """Sentence pairs with scores (0 to 1), as three sequences of one length in the data's order."""

    place: str
    firsts: Sequence[str]
    seconds: Sequence[str]
    scores: Sequence[float]

    def __post_init__(self) -> None:
        """Raise InputError for a missing text or score and for a score outside 0 to 1."""
        for number, row in enumerate(zip(self.firsts, self.seconds, self.scores, strict=True)):
            if not row[0] or not row[1]:
                raise InputError(self.place, f"row {number} has an empty text")
            if row[2] is None or not (math.isfinite(row[2]) and 0 <= row[2] <= 1):
                raise InputError(self.place, f"row {number} has the score {row[2]}", allowed="0 to 1")

    def draw(self, pairs: int, seed: int) -> list[Row]:
        """Draw ``pairs`` different rows in random order. Raises InputError when there are fewer."""
        if len(self.firsts) < pairs:
            found = f"has {len(self.firsts):,} scored pairs, fewer than the {pairs:,} of every variant"
            raise InputError(self.place, found, hint=f"give --pairs {len(self.firsts)} or fewer")
        drawn = Random(seed).sample(range(len(self.firsts)), pairs)
        return [dict(zip(STS.columns, (self.firsts[i], self.seconds[i], self.scores[i]), strict=True)) for i in drawn]


@dataclass(frozen=True)
class MeasuredDataset:
    """A dataset to measure; ``directory`` is its run directory, None for a dataset of a Hub, whose commit is its
    ``fingerprint``."""

    name: str
    config: str
    fingerprint: str
    directory: Path | None
    pairs: ScoredPairs = field(repr=False)


@app.command()
@cli.option_groups
def main(
    datasets: Annotated[list[str], typer.Argument(metavar="DATASET...", help="Run directories, or ORG/NAME@REVISION")],
    options: ValueOptions,
    as_json: cli.JsonOption = False,
) -> None:
    """Measure the downstream gain of each DATASET, beside baselines trained on as many pairs.

    Examples:

      sts-dino value artifacts/datasets/sts-dino-x2 --split validation

      sts-dino value artifacts/datasets/a artifacts/datasets/b --senteval-data DIR

      sts-dino value my-org/sts-dino-x2@v1.0.0 --senteval-data DIR --pairs 5000 --seeds 1-5
    """
    experiment = planned(options)
    found = [read_dataset(place, options.config) for place in datasets]
    people, why = find_people(options.people, options.senteval_data, options.pairs)
    skipped: dict[TrainedOn, str] = {} if why is None else {"people": why}
    if not options.with_shuffled:
        skipped["shuffled"] = "left out (--no-shuffled)"
    for dataset in found:
        dataset.pairs.draw(options.pairs, 0)  # refuse too few pairs before any training
    with locked(experiment.folder):
        values = [measured(experiment, dataset, people, skipped) for dataset in found]
    for dataset, value in zip(found, values, strict=True):
        write_value(experiment, dataset, value)
    cli.answer("\n\n".join(map(table, values)), values, as_json)


def planned(options: ValueOptions) -> Experiment:
    """The experiment that the options describe. Raises InputError."""
    split = next((name for name in TASKS if name == options.split), None)
    if split is None:
        raise InputError("--split", f"unknown split {options.split!r}", allowed="test, validation")
    senteval, data = options.senteval_data, tuple[str, ...]()
    if split == "test":
        if senteval is None:
            hint = "or choose on the STS Benchmark's validation split, which is in assets: --split validation"
            raise InputError("--senteval-data", f"is needed for {', '.join(FINAL)}", hint=hint)
        if not (senteval / "downstream").is_dir():
            allowed = "SentEval's data directory"
            raise InputError(f"--senteval-data {senteval}", "has no folder downstream", allowed=allowed)
        data = ("--senteval-data", str(senteval))
    return Experiment(
        student=read_student(options.student, options.settings),
        pairs=options.pairs,
        seeds=parsed_range(options.seeds, "--seeds"),
        split=split,
        samples=options.samples,
        folder=options.out.resolve(),
        data=data,
        workers=options.workers,
    )


def read_student(path: Path, settings: Sequence[str] = ()) -> Student:
    """Read the recipe of an evaluation encoder, whose datasets name a place that every variant replaces.

    Raises InputError for a recipe without such datasets or ``max_steps``, and for one with validation or a limit.
    """
    tree = apply_overrides(read_yaml(path), list(settings))
    if isinstance(base := tree.get("base"), dict) and isinstance(base.get("path"), str):
        base["path"] = shipped(base["path"])
    recipe = checked(path, ModelRecipe, tree)
    if not recipe.datasets or any(one.path is None for one in recipe.datasets):
        hint = "they say how scored pairs are trained on; each variant replaces their path"
        raise InputError(f"{path}:datasets", "an evaluation encoder has one or several, by path", hint=hint)
    if recipe.validation or recipe.limit is not None:
        raise InputError(path, "an evaluation encoder has no validation and no limit: all variants train alike")
    if "max_steps" not in recipe.arguments:
        raise InputError(f"{path}:arguments", "an evaluation encoder states its max_steps, equal for all variants")
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


def read_dataset(place: str, config: str | None = None) -> MeasuredDataset:
    """Read the train split of scored pairs of a run directory, or of ORG/NAME[@REVISION] of a Hub.

    Raises InputError for a missing run or config, and for rows without scores.
    """
    rows = find_rows(place, config, "train")
    if not rows.is_scored:
        hint = "the gain is measured on scored sentence pairs"
        raise InputError(rows.place, "has no scores", allowed=list(STS.columns), hint=hint)
    batches = list(rows.batches())
    firsts, seconds = ([text for batch in batches for text in batch.texts[column]] for column in rows.columns)
    pairs = ScoredPairs(rows.place, firsts, seconds, [score for batch in batches for score in batch.scores])
    directory = Path(place) if Path(place).is_dir() else None
    return MeasuredDataset(rows.name, rows.config, rows.revision, directory, pairs)


def find_people(path: Path | None, senteval: Path | None, pairs: int) -> tuple[ScoredPairs | None, str | None]:
    """Human-annotated pairs, or the reason for their absence. Raises InputError for a named file that is unusable."""
    if path is not None and not path.is_file():
        raise InputError(f"--people {path}", "no such file", allowed="a file in the STS Benchmark's layout")
    place = path or (senteval / "downstream/STS" / STSB_TRAIN if senteval is not None else None)
    if place is None or not place.is_file():
        return None, "no human-annotated pairs available locally (--people FILE)"
    found = read_people(place)
    if len(found.firsts) < pairs:
        return None, f"{place.name} has {len(found.firsts):,} pairs, fewer than {pairs:,}"
    return found, None


def read_people(path: Path) -> ScoredPairs:
    """Read human-annotated pairs in the STS Benchmark's layout. Raises InputError that names the malformed line."""
    from training.loop.validation import read_pairs  # its libraries take seconds

    found = read_pairs(ValidationData(path=str(path)), "--people")
    return ScoredPairs(str(path), found.first, found.second, [score / HIGHEST for score in found.scores])


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same pairs with permuted scores: texts and the distribution of scores stay."""
    scores = [row["score"] for row in rows]
    Random(seed).shuffle(scores)
    return [{**row, "score": score} for row, score in zip(rows, scores, strict=True)]


def copies(rows: Sequence[Row], seed: int, place: str) -> list[Row]:
    """Triplets of unsupervised SimCSE: each row's source sentence twice, and another one as the negative.

    Raises InputError when all source sentences are equal.
    """
    firsts = [row["sentence1"] for row in rows]
    if len(set(firsts)) < 2:
        raise InputError(place, "has one source sentence only: the SimCSE baseline needs others as negatives")
    random = Random(seed)
    found = []
    for first in firsts:
        other = random.choice(firsts)
        while other == first:
            other = random.choice(firsts)
        found.append(dict(zip(TRIPLET.columns, (first, first, other), strict=True)))
    return found


def write_pairs(folder: Path, rows: Sequence[Row]) -> Path:
    """Write scored pairs or triplets as a run directory in ``folder``, named by its content; once."""
    digest = hashlib.sha256(repr([list(row.values()) for row in rows]).encode()).hexdigest()
    directory = folder / digest[:16]
    if read_manifest(directory) is None:
        path = shard_path(CONFIG, "train", 0, 1)
        schema = STS if "score" in rows[0] else TRIPLET
        write_shard(directory / path, rows, features(schema.columns))
        entry = describe(directory, path, config=CONFIG, split="train", rows=len(rows))
        manifest = Manifest(kind="dataset", name=CONFIG, version="0.0.0", fingerprint=digest, complete=True)
        write_manifest(directory, manifest.with_files([entry]))
    return directory


def measured(
    experiment: Experiment, dataset: MeasuredDataset, people: ScoredPairs | None, skipped: dict[TrainedOn, str]
) -> TrainingValue:
    """Train and score what is missing of a dataset's variants, and compare all of them.

    skipped: variants that are left out, with the reasons.
    """
    from eval.compare.seeds import compared

    wanted: list[tuple[TrainedOn, int, Path | None]] = [("untrained", experiment.seeds[0], None)]
    for seed in experiment.seeds:
        rows = dataset.pairs.draw(experiment.pairs, seed)
        variants: dict[TrainedOn, list[Row]] = {"copies": copies(rows, seed, dataset.pairs.place), "dataset": rows}
        if "shuffled" not in skipped:
            variants["shuffled"] = shuffled(rows, seed)
        if people is not None:
            variants["people"] = people.draw(experiment.pairs, seed)
        wanted += [(name, seed, write_pairs(experiment.folder / "pairs", one)) for name, one in variants.items()]
    trained = run_parallel([partial(train, experiment, *one) for one in wanted], experiment.workers)
    folders: dict[TrainedOn, tuple[str, ...]] = {}
    for (name, *_), folder in zip(wanted, trained, strict=True):
        folders[name] = (*folders.get(name, ()), str(folder))
    plan = VariantPlan(
        tasks=experiment.tasks,
        split=experiment.split,
        samples=experiment.samples,
        variants={name: folders[name] for name in get_args(TrainedOn) if name in folders},
        control="copies",
        differences=tuple(("dataset", name) for name in ("shuffled", "people") if name in folders),
    )
    scores = compared(plan)
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
        start=experiment.student.recipe.base.start,
        variants={cast(TrainedOn, name): scores.variants[name] for name in plan.variants},
        over={cast(TrainedOn, name): one for (_, name), one in zip(scores.pairs, scores.differences, strict=True)},
        skipped=skipped,
        versions={name: version(name) for name in LIBRARIES},
    )


def train(experiment: Experiment, variant: TrainedOn, seed: int, pairs: Path | None, stop: Event) -> Path:
    """Train the encoder on a variant's pairs (None: not at all) and score it, unless that is done; its run directory.

    Raises InputError or RunError that names variant and seed when a stage fails, KeyboardInterrupt on ``stop``.
    """
    tree = variant_recipe(experiment, variant, seed, pairs)
    recipe = checked(Path(experiment.split), ModelRecipe, tree)
    by_content = tuple(one.model_copy(update={"path": Path(one.path or "").name}) for one in recipe.datasets)
    decides = [training_sha256(recipe.model_copy(update={"datasets": by_content})), recipe.seed]
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
    folder = experiment.folder / "variants" / (f"{variant}-{seed}-{key}" if pairs else f"{variant}-{key}")
    model, path = folder / "encoder", folder / f"{experiment.split}.yaml"
    if not (model / "results.json").is_file() or not is_scored(model, require_complete(model), recipe):
        write_text(path, yaml.safe_dump(tree, sort_keys=False))
        hint = "finished results are kept: run the same command again to resume"
        for command, option, words in (("train", "--out", ()), ("score", "--model", ("--no-cache", *experiment.data))):
            with named(f"{variant}, seed {seed}: {command}", folder, hint):
                run_stage(command, str(path), option, str(model), *words, stop=stop)
            shutil.rmtree(folder / "encoder.base", ignore_errors=True)  # else it would be scored with every variant
    return model


def variant_recipe(experiment: Experiment, variant: TrainedOn, seed: int, pairs: Path | None) -> dict[str, Any]:
    """The encoder's recipe for a variant's run directory; without one, that of the untrained encoder, a baseline."""
    tasks = [{"task": task, "split": experiment.split} for task in experiment.tasks]
    tree = {**experiment.student.tree, "evaluation": tasks, "bootstrap_samples": "100"}  # eval.compare.seeds resamples
    if pairs is None:
        return untrained(tree) | {"seed": str(experiment.student.recipe.seed)}
    return trained_on(tree, variant, pairs, CONFIG, seed)


def untrained(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline of a model recipe: its base encoder, not trained."""
    return {key: value for key, value in tree.items() if key not in TRAINING_KEYS}


def trained_on(tree: Mapping[str, Any], variant: TrainedOn, directory: Path, config: str, seed: int) -> dict[str, Any]:
    """A model recipe whose datasets read one config of a run directory, with the variant's example type and loss."""
    data, arguments = tree["datasets"], dict(tree.get("arguments", {}))
    licence = {"license": data[0].get("license") or tree["license"]}  # pairs that a baseline draws name none
    data = [licence | {key: value for key, value in one.items() if key not in ("repo_id", "revision")} for one in data]
    if variant == "copies":
        data = [licence | OF_COPIES]
        arguments |= UNIQUE
    elif variant == "people":
        data = [one for one in data if one["example_type"] == "sts"] or [licence | OF_PEOPLE]
    place = {"path": str(directory), "config": config}
    return {**tree, "datasets": [{**one, **place} for one in data], "arguments": arguments, "seed": str(seed)}


def write_value(experiment: Experiment, dataset: MeasuredDataset, value: TrainingValue) -> None:
    """Write value.json into the run directory for its card, or beside the variants for a dataset of a Hub."""
    if dataset.directory is None:
        name = dataset.name.rpartition("/")[2]
        path = experiment.folder / f"{name}-{dataset.fingerprint[:12]}.{value.split}.json"
        write_json(path, value)
    else:
        path = value.write(dataset.directory)
        cli.say(f"next: sts-dino card {quote(str(dataset.directory))}")
    cli.say(f"written: {path}")


def table(value: TrainingValue) -> str:
    """A line per variant: mean over tasks, difference to the SimCSE baseline, and the dataset's difference to it."""
    several = f"{len(value.seeds)} seeds" if len(value.seeds) > 1 else "1 seed: intervals over sentence pairs alone"
    rows = [("trained on", f"mean of {len(value.tasks)}", "over SimCSE", "dataset over it")]
    for name, words in value.names.items():
        if found := value.variants.get(name):
            rows.append((words, str(found.average), str(found.over_simcse or ""), str(value.over.get(name, ""))))
    rows += [(value.names[name], f"not trained: {why}", "", "") for name, why in value.skipped.items()]
    head = f"{value.dataset} ({value.config}): {value.pairs:,} pairs, {several}, {value.split}, Spearman x 100"
    return f"{head}\n{cli.aligned(rows)}"

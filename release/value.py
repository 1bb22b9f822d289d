"""Downstream gain of a dataset: a small fixed encoder trained on it and on baselines.

All trainings have the same number of pairs. The baselines: the untrained encoder; ``copies``,
unsupervised SimCSE on the source sentences (Gao et al. 2021), which needs no generated data;
``shuffled``, the dataset's pairs with permuted scores; ``people``, human-annotated pairs, by
default of the STS Benchmark's train part. A variant is the dataset or a baseline. Every seed draws
its own pairs. Each training and each evaluation is a child process. The name of an encoder's folder
has a hash of everything that decides its training, so the same command resumes after a kill.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from shlex import quote
from threading import Event
from typing import Annotated, Any, NamedTuple, cast, get_args

import typer
import yaml

from sts_dino.eval.audit.source import find_rows
from sts_dino.hub import cli
from sts_dino.hub.assets import find_student_recipe, resolve_shipped_path
from sts_dino.hub.contract.licences import choose_untaught_licence
from sts_dino.hub.contract.measured import Split, TrainedOn, TrainingValue, VariantPlan, write_json
from sts_dino.hub.contract.published_paths import name_origin
from sts_dino.hub.contract.recipe import TRAINING_KEYS, ModelRecipe, ValidationData
from sts_dino.hub.contract.recipe_file import (
    apply_overrides,
    get_deciding_values,
    read_yaml,
    resolve_local_paths,
    validate_recipe,
)
from sts_dino.hub.contract.run_dir import (
    ARTIFACTS,
    Manifest,
    describe_file,
    lock_run,
    read_manifest,
    require_complete,
    write_manifest,
)
from sts_dino.hub.contract.schema import ROW_SCHEMAS, build_features
from sts_dino.hub.contract.shards import format_shard_path, write_shard
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.scores import align_columns
from sts_dino.release.repeats import is_scored, parse_range
from sts_dino.release.stages import name_failure, run_parallel, run_stage

logger = logging.getLogger(__name__)

Row = dict[str, Any]

STUDENT = find_student_recipe("value-student.yaml")
LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets", "sts-dino")
TEST_TASKS = (
    *(f"sts{year}/all" for year in range(12, 17)),
    "stsb-tokenised/cosine",
    "sick-r-tokenised/cosine",
)
TASKS: dict[Split, tuple[str, ...]] = {"validation": ("stsb/cosine",), "test": TEST_TASKS}
# InfoNCE; the library's default scale of 20 is a temperature of 0.05
SIMCSE_DATA = {"example_type": "triplet", "loss": "MultipleNegativesRankingLoss"}
# Human-annotated pairs are no triplets: few of them share a source sentence
HUMAN_DATA = {"example_type": "sts", "loss": "CoSENTLoss"}
# A sentence that is in a batch twice would be its own negative
SIMCSE_ARGUMENTS = {"batch_sampler": "no_duplicates"}
STSB_TRAIN = "STSBenchmark/sts-train.csv"
REMOVED_KEYS = ("datasets", *TRAINING_KEYS)  # keys that a baseline lacks
FEWEST_PAIRS = 2  # of a training
SCORED_PAIR = ROW_SCHEMAS["sts"]
TRIPLET = ROW_SCHEMAS["triplet"]
VARIANT_CONFIG = "pairs"  # config and name of the run directories that have a variant's pairs
VARIANT_BOOTSTRAP_SAMPLES = "100"  # few, because the comparison of variants resamples again
HIGHEST_HUMAN_SCORE = 5  # in the STS Benchmark

app = cli.make_app(__doc__)


@dataclass(frozen=True)
class ValueOptions:
    """Options of ``sts-dino value``."""

    senteval_data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="SentEval's directory, for the seven test tasks"),
    ] = None
    split: Annotated[
        str,
        typer.Option(
            metavar="test|validation", help="validation: the STS Benchmark's only, to choose"
        ),
    ] = "test"
    pairs: Annotated[
        int, typer.Option(min=FEWEST_PAIRS, help="Training pairs of every variant")
    ] = 2000
    seeds: Annotated[
        str, typer.Option(metavar="1,2,3", help="Seeds of draws and trainings; 1-3 is the same")
    ] = "1-3"
    people: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Human-annotated pairs [default: STSb-train in SentEval's directory]",
        ),
    ] = None
    config: Annotated[str | None, typer.Option(help="Config of the datasets that have several")] = (
        None
    )
    student: Annotated[
        Path, typer.Option(metavar="RECIPE", help="Recipe of another evaluation encoder")
    ] = STUDENT
    settings: cli.SetOption = field(default_factory=list)
    with_shuffled: Annotated[
        bool,
        typer.Option(
            "--shuffled/--no-shuffled", help="Train the shuffled-label baseline, or save its time"
        ),
    ] = True
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time, each a process")] = 1
    samples: Annotated[
        int, typer.Option("--bootstrap-samples", min=1, help="Resamples for the intervals")
    ] = 1000
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the variants and their scores")
    ] = ARTIFACTS / "value"


@dataclass(frozen=True)
class Student:
    """The recipe of the evaluation encoder.

    ``tree`` holds the keys of the recipe's file with overrides; ``recipe`` is the checked tree.
    ``sha256`` is the hash of ``hash_training``.
    """

    tree: Mapping[str, Any]
    recipe: ModelRecipe
    sha256: str


@dataclass(frozen=True)
class Experiment:
    """The settings of all variants.

    ``pairs`` counts the training pairs of each variant; ``samples`` counts bootstrap resamples.
    ``seeds`` draw pairs and train. ``folder`` has the variants and their scores. ``data`` are
    options of ``sts-dino score`` that name the evaluation data; () for the shipped data.
    ``workers`` trainings run at a time.
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


@dataclass(frozen=True)
class ScoredPairs:
    """Sentence pairs with scores (0 to 1): three sequences of equal length, in the data's order.

    ``place`` names the data in errors.
    """

    place: str
    firsts: Sequence[str]
    seconds: Sequence[str]
    scores: Sequence[float]

    def __post_init__(self) -> None:
        """Raise InputError for an empty text, a missing score and a score outside 0 to 1.

        The error counts rows from 0.
        """
        rows = zip(self.firsts, self.seconds, self.scores, strict=True)
        for number, (first, second, score) in enumerate(rows):
            if not first or not second:
                raise InputError(self.place, f"row {number} has an empty text")
            if score is None or not 0 <= score <= 1:  # NaN, too
                problem = f"row {number} has the score {score}"
                raise InputError(self.place, problem, allowed="0 to 1")

    def draw(self, pairs: int, seed: int) -> list[Row]:
        """Draw ``pairs`` rows without replacement, in random order.

        Returns each row as column → value: sentence1, sentence2, score. Raises InputError when
        there are fewer rows.
        """
        count = len(self.firsts)
        if count < pairs:
            problem = f"has {count:,} scored pairs, fewer than the {pairs:,} of every variant"
            hint = f"give --pairs {count} or fewer" if count >= FEWEST_PAIRS else None
            raise InputError(self.place, problem, hint=hint)
        rows = []
        for number in Random(seed).sample(range(count), pairs):
            cells = (self.firsts[number], self.seconds[number], self.scores[number])
            rows.append(dict(zip(SCORED_PAIR.columns, cells, strict=True)))
        return rows


@dataclass(frozen=True)
class MeasuredDataset:
    """A dataset whose gain is measured, with all pairs of one config's train split.

    ``directory`` is the run directory, and ``fingerprint`` the fingerprint of the run. For a
    dataset of a Hub, ``directory`` is None and ``fingerprint`` the commit.
    """

    name: str
    config: str
    fingerprint: str
    directory: Path | None
    pairs: ScoredPairs = field(repr=False)


@app.command()
@cli.unpack_option_groups
def main(
    datasets: Annotated[
        list[str],
        typer.Argument(metavar="DATASET...", help="Run directories, or ORG/NAME@REVISION"),
    ],
    options: ValueOptions,
    as_json: cli.JsonOption = False,
) -> None:
    """Measure the downstream gain of each DATASET, beside baselines trained on as many pairs.

    Examples:

      sts-dino value artifacts/datasets/sts-dino-x2 --split validation

      sts-dino value artifacts/datasets/a artifacts/datasets/b --senteval-data DIR

      sts-dino value my-org/sts-dino-x2@v1.0.0 --senteval-data DIR --pairs 5000 --seeds 1-5
    """
    # Read all data before any training
    experiment = plan_experiment(options)
    measured = [read_dataset(place, options.config) for place in datasets]
    people, problem = find_human_pairs(options.people, options.senteval_data, options.pairs)
    skipped: dict[TrainedOn, str] = {}
    if people is None:
        skipped["people"] = problem
    if not options.with_shuffled:
        skipped["shuffled"] = "left out (--no-shuffled)"
    # A dataset with too few pairs raises InputError here, whatever the seed
    for dataset in measured:
        dataset.pairs.draw(options.pairs, seed=0)

    # Train, compare and write
    with lock_run(experiment.folder):
        values = [measure_dataset(experiment, dataset, people, skipped) for dataset in measured]
    for dataset, value in zip(measured, values, strict=True):
        write_value(experiment, dataset, value)
    text = "\n\n".join(format_value(value) for value in values)
    cli.print_answer(text, values, as_json)


def plan_experiment(options: ValueOptions) -> Experiment:
    """Return the experiment that the options describe.

    Raises InputError for an unknown split, for missing evaluation data, for seeds that
    ``parse_range`` refuses, and for a recipe that ``read_student`` refuses.
    """
    if options.split not in TASKS:
        raise InputError("--split", f"unknown split {options.split!r}", allowed="test, validation")
    split: Split = options.split
    data: tuple[str, ...] = ()
    if split == "test":
        data = ("--senteval-data", str(require_senteval(options.senteval_data)))
    return Experiment(
        student=read_student(options.student, options.settings),
        pairs=options.pairs,
        seeds=parse_range(options.seeds, "--seeds"),
        split=split,
        samples=options.samples,
        folder=options.out.resolve(),
        data=data,
        workers=options.workers,
    )


def require_senteval(folder: Path | None) -> Path:
    """Return SentEval's data directory.

    Raises InputError for None and for a folder without SentEval's layout.
    """
    if folder is None:
        hint = "or use --split validation: it needs only the STS Benchmark, which is in assets"
        raise InputError("--senteval-data", f"is needed for {', '.join(TEST_TASKS)}", hint=hint)
    if not (folder / "downstream").is_dir():
        place = f"--senteval-data {folder}"
        raise InputError(place, "has no folder downstream", allowed="SentEval's data directory")
    return folder


def read_student(path: Path, settings: Sequence[str] = ()) -> Student:
    """Read the recipe of an evaluation encoder, with ``settings`` (KEY=VALUE) as overrides.

    The recipe's datasets state example types and losses; every variant replaces their path. A
    relative path of the base is looked up beside the recipe, then in the current folder; one in
    ``settings`` in the current folder alone.

    Raises InputError for a missing or malformed recipe, for one without datasets or ``max_steps``,
    and for one with validation, a limit, or a dataset of the Hub.
    """
    # Read the recipe; its base may be a model that the package ships
    tree = resolve_local_paths(read_yaml(path), path.parent)
    tree = apply_overrides(tree, list(settings))
    base = tree.get("base")
    if isinstance(base, dict) and isinstance(base.get("path"), str):
        base["path"] = resolve_shipped_path(base["path"])

    # Check that all variants can train alike
    recipe = validate_recipe(path, ModelRecipe, tree)
    if not recipe.datasets or any(data.path is None for data in recipe.datasets):
        problem = "an evaluation encoder has one or several, by path"
        hint = "they say how scored pairs are trained on; each variant replaces their path"
        raise InputError(f"{path}:datasets", problem, hint=hint)
    if recipe.validation or recipe.limit is not None:
        problem = "an evaluation encoder has no validation and no limit: all variants train alike"
        raise InputError(path, problem)
    if "max_steps" not in recipe.arguments:
        problem = "an evaluation encoder states its max_steps, equal for all variants"
        raise InputError(f"{path}:arguments", problem)
    return Student(tree, recipe, hash_training(recipe))


def hash_training(recipe: ModelRecipe) -> str:
    """Return a SHA-256 of everything that decides a training except the seed.

    It covers the deciding recipe values, the library versions, and the ``*.safetensors`` files in
    the folder of a local base and in its subfolders. Of local training data it covers the published
    path, perhaps only its last name (``hide_folders``), and not the rows. So the last name must
    stand for the rows.
    """
    values = get_deciding_values(recipe)
    values.pop("seed")
    base = recipe.base.path
    weights = sorted(Path(base).rglob("*.safetensors")) if base is not None else []
    digests = [hash_file(file) for file in weights]
    text = json.dumps([values, digests, read_versions()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_versions() -> dict[str, str]:
    """Return library → version of the libraries that decide a training."""
    return {name: version(name) for name in LIBRARIES}


def read_dataset(place: str, config: str | None = None) -> MeasuredDataset:
    """Read the scored pairs of a dataset's train split.

    Args:
        place: a run directory, or ORG/NAME[@REVISION] of a Hub.
        config: the config; None: the config to train on (``find_rows``).

    Raises InputError for a missing run, config or split, for a damaged shard, for rows without
    scores, and for a row that ``ScoredPairs`` refuses; RunError when the Hub cannot be read.
    """
    rows = find_rows(place, config, "train")
    if not rows.is_scored:
        hint = "the gain is measured on scored sentence pairs"
        raise InputError(
            rows.location, "has no scores", allowed=list(SCORED_PAIR.columns), hint=hint
        )
    first_column, second_column = rows.columns
    firsts: list[str] = []
    seconds: list[str] = []
    scores: list[float] = []
    for batch in rows.read_batches():
        firsts += batch.texts[first_column]
        seconds += batch.texts[second_column]
        scores += batch.scores
    pairs = ScoredPairs(rows.location, firsts, seconds, scores)
    directory = Path(place) if Path(place).is_dir() else None
    return MeasuredDataset(rows.name, rows.config, rows.revision, directory, pairs)


def find_human_pairs(
    path: Path | None, senteval: Path | None, pairs: int
) -> tuple[ScoredPairs | None, str]:
    """Find human-annotated pairs, if there are enough of them for a variant.

    Args:
        path: the file of ``--people``; None: STSb-train in SentEval's directory.
        senteval: SentEval's directory; None without one.
        pairs: the number of pairs that each variant needs.

    Returns the pairs and an empty text, or None and the reason: no file, or one with too few pairs.
    Raises InputError for a ``path`` that is not a file, and for a malformed file.
    """
    if path is not None and not path.is_file():
        allowed = "a file in the STS Benchmark's layout"
        raise InputError(f"--people {path}", "no such file", allowed=allowed)
    file = path
    if file is None and senteval is not None:
        file = senteval / "downstream/STS" / STSB_TRAIN
    if file is None or not file.is_file():
        return None, "no human-annotated pairs available locally (--people FILE)"
    scored = read_human_pairs(file)
    if len(scored.firsts) < pairs:
        problem = f"{file.name} has {len(scored.firsts):,} pairs, fewer than {pairs:,}"
        return None, problem
    return scored, ""


def read_human_pairs(path: Path, option: str = "--people") -> ScoredPairs:
    """Read human-annotated pairs in the STS Benchmark's layout, their scores divided by 5.

    Raises InputError, naming the command line's ``option``, for a missing file, for a malformed
    line, for a score outside 0 to 5, and when all scores are equal.
    """
    from sts_dino.training.loop.validation import read_pairs  # its libraries take seconds

    pairs = read_pairs(ValidationData(path=str(path)), option)
    for number, score in enumerate(pairs.scores, 1):
        if not 0 <= score <= HIGHEST_HUMAN_SCORE:
            raise InputError(
                f"{option}: {path}, line {number}",
                f"has the score {score:g}",
                allowed=f"0 to {HIGHEST_HUMAN_SCORE}",
            )
    scores = [score / HIGHEST_HUMAN_SCORE for score in pairs.scores]
    return ScoredPairs(str(path), pairs.first, pairs.second, scores)


def shuffle_scores(rows: Sequence[Row], seed: int) -> list[Row]:
    """Return copies of scored pairs, in their order, with the scores permuted by ``seed``."""
    scores = [row["score"] for row in rows]
    Random(seed).shuffle(scores)
    return [{**row, "score": score} for row, score in zip(rows, scores, strict=True)]


def make_simcse_triplets(rows: Sequence[Row], seed: int, place: str) -> list[Row]:
    """Make triplets for unsupervised SimCSE, one for each row, in order.

    Anchor and positive are the source sentence, the negative is a random different one.

    Args:
        rows: scored pairs; their first sentences are the source sentences.
        seed: the seed of the draw of negatives.
        place: the data of the rows, for the error.

    Raises InputError when all source sentences are equal.
    """
    sentences = [row["sentence1"] for row in rows]
    if len(set(sentences)) < 2:
        problem = "has one source sentence only: the SimCSE baseline needs others as negatives"
        raise InputError(place, problem)
    random = Random(seed)
    triplets = []
    for sentence in sentences:
        negative = random.choice(sentences)
        while negative == sentence:
            negative = random.choice(sentences)
        cells = (sentence, sentence, negative)
        triplets.append(dict(zip(TRIPLET.columns, cells, strict=True)))
    return triplets


def write_pairs(folder: Path, rows: Sequence[Row]) -> Path:
    """Write scored pairs or triplets as a run directory in ``folder``; return the directory.

    ``rows`` has at least one row. A hash of the rows names the directory, and a directory of the
    same rows is not written again.
    """
    digest = hashlib.sha256(repr([list(row.values()) for row in rows]).encode()).hexdigest()
    directory = folder / digest[:16]
    if read_manifest(directory) is None:
        path = format_shard_path(VARIANT_CONFIG, "train", 0, 1)
        schema = SCORED_PAIR if "score" in rows[0] else TRIPLET
        write_shard(directory / path, rows, build_features(schema.columns))
        entry = describe_file(directory, path, config=VARIANT_CONFIG, split="train", rows=len(rows))
        manifest = Manifest(
            kind="dataset", name=VARIANT_CONFIG, version="0.0.0", fingerprint=digest, complete=True
        )
        write_manifest(directory, manifest.with_files([entry]))
    return directory


class Training(NamedTuple):
    """A training of the experiment: its variant, its seed and the run directory of its pairs.

    ``pairs`` is None for the untrained encoder.
    """

    variant: TrainedOn
    seed: int
    pairs: Path | None


def prepare_trainings(
    experiment: Experiment,
    dataset: MeasuredDataset,
    people: ScoredPairs | None,
    skipped: Collection[TrainedOn],
) -> list[Training]:
    """Write the pairs of all variants of a dataset, and return the trainings on them.

    Args:
        experiment: the settings of all variants.
        dataset: the dataset to measure; every seed draws its own pairs of it.
        people: human-annotated pairs; None: no variant on them.
        skipped: variants to leave out; only "shuffled" has an effect here.

    The first training is the untrained encoder, without pairs; the others follow seed by seed.
    Raises InputError for too few pairs, and when all source sentences of a draw are equal.
    """
    trainings = [Training("untrained", experiment.seeds[0], None)]
    for seed in experiment.seeds:
        rows = dataset.pairs.draw(experiment.pairs, seed)
        variants: dict[TrainedOn, list[Row]] = {
            "copies": make_simcse_triplets(rows, seed, dataset.pairs.place),
            "dataset": rows,
        }
        if "shuffled" not in skipped:
            variants["shuffled"] = shuffle_scores(rows, seed)
        if people is not None:
            variants["people"] = people.draw(experiment.pairs, seed)
        for name, variant_rows in variants.items():
            pairs = write_pairs(experiment.folder / "pairs", variant_rows)
            trainings.append(Training(name, seed, pairs))
    return trainings


def measure_dataset(
    experiment: Experiment,
    dataset: MeasuredDataset,
    people: ScoredPairs | None,
    skipped: dict[TrainedOn, str],
) -> TrainingValue:
    """Train and score the missing variants of a dataset, and compare all variants.

    Args:
        experiment: the settings of all variants.
        dataset: the dataset to measure.
        people: human-annotated pairs; None trains no variant on them.
        skipped: variant → the reason why it is left out, for the result.

    Raises the errors of ``prepare_trainings``, ``train_encoder`` and ``compare_variants``.
    """
    from sts_dino.eval.compare.seeds import compare_variants

    # Train and score every variant; train_encoder skips an encoder that is scored already.
    # A variant has an encoder for each seed, "untrained" only one
    trainings = prepare_trainings(experiment, dataset, people, skipped)
    calls = [partial(train_encoder, experiment, training) for training in trainings]
    encoders = run_parallel(calls, experiment.workers)
    folders: dict[TrainedOn, tuple[str, ...]] = {}
    for training, encoder in zip(trainings, encoders, strict=True):
        folders[training.variant] = (*folders.get(training.variant, ()), str(encoder))

    # Compare the variants
    plan = VariantPlan(
        tasks=experiment.tasks,
        split=experiment.split,
        samples=experiment.samples,
        variants={name: folders[name] for name in get_args(TrainedOn) if name in folders},
        control="copies",  # SimCSE on the source sentences, which needs no generated data
        differences=tuple(("dataset", name) for name in ("shuffled", "people") if name in folders),
    )
    scores = compare_variants(plan)
    return TrainingValue(
        dataset=dataset.name,
        config=dataset.config,
        fingerprint=dataset.fingerprint,
        student=experiment.student.recipe.name,
        student_sha256=experiment.student.sha256,
        base=name_origin(
            experiment.student.recipe.base.repo_id, experiment.student.recipe.base.path
        ),
        pairs=experiment.pairs,
        seeds=experiment.seeds,
        tasks=experiment.tasks,
        split=experiment.split,
        samples=experiment.samples,
        start=experiment.student.recipe.base.start,
        variants={cast(TrainedOn, name): scores.variants[name] for name in plan.variants},
        over={
            cast(TrainedOn, name): difference
            for (_, name), difference in zip(scores.pairs, scores.differences, strict=True)
        },
        skipped=skipped,
        versions=read_versions(),
    )


def train_encoder(experiment: Experiment, training: Training, stop: Event) -> Path:
    """Train the encoder on a variant's pairs and score it, unless it is scored already.

    ``stop`` is an event that another thread sets to end the stage. Returns the encoder's run
    directory.

    Raises InputError or RunError, which names variant and seed, when a stage fails; RunError, which
    names the stage's command, when a stage is killed; KeyboardInterrupt once ``stop`` is set.
    """
    # Return an encoder that is scored already. The recipe decides the folder of its own file, so an
    # error in it names the split instead of a file.
    tree = make_variant_recipe(experiment, training)
    recipe = validate_recipe(Path(experiment.split), ModelRecipe, tree)
    folder = locate_variant(experiment, training, recipe)
    model = folder / "encoder"
    has_results = (model / "results.json").is_file()
    if has_results and is_scored(model, require_complete(model), recipe):
        return model

    # Train it
    path = folder / f"{experiment.split}.yaml"
    write_text(path, yaml.safe_dump(tree, sort_keys=False))
    hint = "finished results are kept: run the same command again to resume"
    name = f"{training.variant}, seed {training.seed}"
    with name_failure(f"{name}: train", folder, hint):
        run_stage("train", str(path), "--out", str(model), stop=stop)

    # Score it, without the base that the training wrote beside it: ``sts-dino score`` would score
    # the base with every variant
    shutil.rmtree(folder / "encoder.base", ignore_errors=True)
    with name_failure(f"{name}: score", folder, hint):
        words = ("--model", str(model), "--no-cache", *experiment.data)
        run_stage("score", str(path), *words, stop=stop)
    return model


def locate_variant(experiment: Experiment, training: Training, recipe: ModelRecipe) -> Path:
    """Return the folder of a training; its name has a hash of everything that decides the training.

    ``recipe`` is the recipe of the training's variant.
    """
    # Hash the name of the pairs' folder, which is a hash of the pairs, in place of its path
    datasets = tuple(
        data.model_copy(update={"path": Path(data.path or "").name}) for data in recipe.datasets
    )
    digest = hash_training(recipe.model_copy(update={"datasets": datasets}))
    key = hashlib.sha256(json.dumps([digest, recipe.seed]).encode()).hexdigest()[:12]
    if training.pairs:
        name = f"{training.variant}-{training.seed}-{key}"
    else:
        name = f"{training.variant}-{key}"
    return experiment.folder / "variants" / name


def make_variant_recipe(experiment: Experiment, training: Training) -> dict[str, Any]:
    """Make the unchecked recipe of a variant's encoder; without pairs, of the untrained encoder.

    A variant without a teacher gets the licence that the student's recipe has without its teachers.
    """
    tasks = [{"task": task, "split": experiment.split} for task in experiment.tasks]
    tree = {
        **experiment.student.tree,
        "evaluation": tasks,
        "bootstrap_samples": VARIANT_BOOTSTRAP_SAMPLES,
    }
    if training.pairs is None:
        variant = remove_training(tree) | {"seed": str(experiment.student.recipe.seed)}
    else:
        variant = replace_training_data(
            tree, training.variant, training.pairs, VARIANT_CONFIG, training.seed
        )
    if not any(data.get("teacher") for data in variant.get("datasets", ())):
        variant["license"] = choose_untaught_licence(experiment.student.recipe)
    return variant


def remove_training(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a model recipe without training keys: the recipe of the base encoder."""
    return {key: value for key, value in tree.items() if key not in REMOVED_KEYS}


def replace_training_data(
    tree: Mapping[str, Any], variant: TrainedOn, directory: Path, config: str, seed: int
) -> dict[str, Any]:
    """Return a model recipe that trains on one config of a run directory.

    Args:
        tree: the model recipe, with at least one dataset; it is not changed.
        variant: "copies" trains by unsupervised SimCSE; "people" as the scored datasets of
            ``tree``, or without one as ``HUMAN_DATA``; all others as the datasets of ``tree``.
        directory: the run directory of the pairs.
        config: the config to read.
        seed: the seed of the training.
    """
    # Add the licence that the pairs of a baseline lack, and remove the location of the data
    licence = {"license": tree["datasets"][0].get("license") or tree["license"]}
    datasets = []
    for data in tree["datasets"]:
        local = {key: value for key, value in data.items() if key not in ("repo_id", "revision")}
        datasets.append(licence | local)

    # Adapt example type and loss to the variant
    arguments = dict(tree.get("arguments", {}))
    if variant == "copies":
        datasets = [licence | SIMCSE_DATA]
        arguments |= SIMCSE_ARGUMENTS
    elif variant == "people":
        scored = [data for data in datasets if data["example_type"] == "sts"]
        datasets = scored or [licence | HUMAN_DATA]

    # Read the pairs
    pairs = {"path": str(directory), "config": config}
    datasets = [data | pairs for data in datasets]
    return {**tree, "datasets": datasets, "arguments": arguments, "seed": str(seed)}


def write_value(experiment: Experiment, dataset: MeasuredDataset, value: TrainingValue) -> None:
    """Write the measured gain to value.json in the run directory, for the dataset's card.

    The gain of a dataset of a Hub is written to a file in the experiment's folder. Raises RunError
    when the run directory is locked, or its rows changed while they were measured.
    """
    if dataset.directory is None:
        name = dataset.name.rpartition("/")[2]
        part = f"{dataset.fingerprint[:12]}.{value.config}.{value.split}"
        path = experiment.folder / f"{name}-{part}.json"
        write_json(path, value)
    else:
        path = value.write(dataset.directory)
        logger.info(f"next: sts-dino card {quote(str(dataset.directory))}")
    logger.info(f"written: {path}")


def format_value(value: TrainingValue) -> str:
    """Format a table with a row per variant: its mean score, and two differences.

    "over SimCSE" is the variant minus the SimCSE baseline; "dataset over it" is the dataset minus
    the variant. A difference that was not computed is empty. The row of a skipped baseline has the
    reason. A line above the table names the dataset, the numbers of pairs and seeds, and the split.
    """
    rows = [("trained on", f"mean of {len(value.tasks)}", "over SimCSE", "dataset over it")]
    for name, words in value.names.items():
        variant = value.variants.get(name)
        if variant is not None:
            over_simcse = str(variant.over_simcse or "")
            rows.append((words, str(variant.average), over_simcse, str(value.over.get(name, ""))))
    for name, reason in value.skipped.items():
        rows.append((value.names[name], f"not trained: {reason}", "", ""))

    seeds = f"{len(value.seeds)} seeds"
    if len(value.seeds) == 1:
        seeds = "1 seed: intervals over sentence pairs alone"
    head = f"{value.dataset} ({value.config}): {value.pairs:,} pairs, {seeds}, {value.split}"
    return f"{head}, Spearman x 100\n{align_columns(rows)}"

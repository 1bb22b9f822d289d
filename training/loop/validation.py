"""Validation data that select the checkpoint: scored pairs in the recipe, else the datasets' own
validation splits.

Pairs are scored by Spearman's correlation of the cosine with their scores, triplets by the share
whose positive is nearer (cosine) than the negative. Scores of different kinds are never averaged:
where there are pairs, they alone decide, since similarity of meaning is what the encoders are
evaluated on. Several sets of a kind count equally. Never an evaluation set: what is reported on
test data may not choose the model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from sentence_transformers.base.evaluation import BaseEvaluator, SequentialEvaluator
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)

from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.contract.published_paths import hide_folders
from sts_dino.hub.contract.recipe import PUBLISHED, ValidationData
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.training.data.objectives import EXAMPLE_TYPES, STS, TRIPLET
from sts_dino.training.data.rows import RowChecks, read_into_memory
from sts_dino.training.data.training_sets import TrainingSet, open_hub_origin

SPEARMAN, ACCURACY = "Spearman's correlation", "share of triplets whose positive is nearer"
# keys of a dataset that identify its validation split
OWN = {"repo_id", "revision", "path", "config", "example_set"}


@dataclass(frozen=True)
class ValidationPairs:
    """Scored sentence pairs with their provenance; ``sha256``: a Hub commit or a file's SHA-256."""

    name: str
    first: list[str]
    second: list[str]
    scores: list[float]
    origin: dict[str, Any]
    sha256: str


class ValidationEvaluator(SequentialEvaluator):
    """The mean score of all validation sets, as ``sequential_score``; higher is better.

    ``metric``: its name. ``sources``: of the data, for the manifest. ``inputs``: what the
    fingerprint adds to that of the datasets.
    """

    def __init__(
        self,
        evaluators: Sequence[BaseEvaluator],
        metric: str,
        sources: list[dict[str, Any]],
        inputs: dict[str, str],
    ):
        super().__init__(evaluators, main_score_function=lambda scores: sum(scores) / len(scores))
        self.metric = metric
        self.sources = sources
        self.inputs = inputs


def build_validation_evaluator(
    specs: Sequence[ValidationData], sets: Sequence[TrainingSet], batch_size: int
) -> ValidationEvaluator | None:
    """Build the evaluator of a recipe; None without validation data and datasets' own splits.

    Raises InputError for data that cannot tell checkpoints apart, RunError when the Hub cannot be
    read.
    """
    options: Any = {"similarity_fn_names": ["cosine"], "write_csv": False, "batch_size": batch_size}
    inputs: dict[str, str] = {}

    # Scored pairs of the recipe, else of the datasets.
    pairs = [read_pairs(spec, f"validation.{index}") for index, spec in enumerate(specs)]
    if pairs:
        inputs = {f"validation:{index}": item.sha256 for index, item in enumerate(pairs)}
    else:
        pairs = [_make_pairs(item, item.validation) for item in sets if _holds(item, STS.name)]
    if pairs:
        evaluators: list[BaseEvaluator] = [
            EmbeddingSimilarityEvaluator(
                item.first,
                item.second,
                item.scores,
                name=item.name,
                main_similarity="cosine",
                **options,
            )
            for item in pairs
        ]
        sources = [item.origin for item in pairs]
        return ValidationEvaluator(evaluators, SPEARMAN, sources, inputs)

    # Triplets of the datasets.
    triplets: list[Any] = [item for item in sets if _holds(item, TRIPLET.name)]
    if not triplets:
        return None
    options["main_similarity_function"] = "cosine"
    evaluators = []
    for item in triplets:
        anchors, positives, negatives = (item.validation[column][:] for column in TRIPLET.columns)
        evaluators.append(
            TripletEvaluator(anchors, positives, negatives, name=item.name, **options)
        )
    sources = [_describe_own(item, item.validation) for item in triplets]
    return ValidationEvaluator(evaluators, ACCURACY, sources, {})


def _holds(item: TrainingSet, source: str) -> bool:
    """Return whether a dataset has a validation split with rows of this type."""
    is_of_type = EXAMPLE_TYPES[item.spec.example_type].source.name == source
    return item.validation is not None and is_of_type


def _make_pairs(item: TrainingSet, rows: Any) -> ValidationPairs:
    first, second, scores = (rows[column][:] for column in STS.columns)
    origin = _describe_own(item, rows)
    return ValidationPairs(item.name, first, second, scores, origin, item.sha256)


def _describe_own(item: TrainingSet, rows: Any) -> dict[str, Any]:
    """Return the provenance of a dataset's own validation split."""
    described = item.spec.model_dump(context=PUBLISHED, include=OWN, exclude_none=True)
    return {**described, "split": "validation", "rows": len(rows)}


def read_pairs(spec: ValidationData, key: str) -> ValidationPairs:
    """Read the scored pairs of one entry of the recipe.

    Raises InputError unless there are some, with differing scores.
    """
    if spec.path is not None:
        return _read_file(Path(spec.path), key)
    return _read_hub(spec, key)


def _read_hub(spec: ValidationData, key: str) -> ValidationPairs:
    """Read the pairs of a pinned Hub dataset."""
    assert spec.repo_id is not None
    where = f"{key}: {spec.repo_id}"
    origin = open_hub_origin(spec.repo_id, spec.revision, spec.config, True, where)
    rows = origin.get_split(spec.split, where)
    assert isinstance(rows, IterableDataset) and origin.commit is not None
    where = f"{where}, {spec.split}"
    with convert_read_errors(spec.repo_id, spec.revision):
        read: Dataset = read_into_memory(rows, where)
    RowChecks(STS, None, where).require_columns(read.features.arrow_schema)
    first, second, scores = (read[column][:] for column in STS.columns)
    _require_usable(first, second, scores, where, 0)
    facts = {"commit": origin.commit, "rows": len(scores), "license": origin.license}
    described = spec.model_dump(exclude_none=True) | facts
    name = key.replace(".", "-")
    return ValidationPairs(name, first, second, scores, described, origin.commit)


def _read_file(path: Path, key: str) -> ValidationPairs:
    """Read the pairs of a file in the STS Benchmark's layout.

    It is tab-separated, and a quotation mark is a character.
    """
    where = f"{key}: {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(
            where, "no such file", hint="the STS Benchmark's is assets/stsb/sts-dev.csv"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(where, f"is not UTF-8 (byte {error.start})") from error

    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    # splitlines would also break at characters inside a sentence
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        cells = line.rstrip("\r").split("\t")
        if len(cells) < 7:
            raise InputError(
                f"{where}, line {number}",
                f"has {len(cells)} tab-separated columns",
                allowed="genre, file, year, id, score, two sentences",
            )
        try:
            scores.append(float(cells[4]))
        except ValueError as error:
            raise InputError(
                f"{where}, line {number}", f"column 5 is {cells[4]!r}", allowed="a score"
            ) from error
        first.append(cells[5])
        second.append(cells[6])
    _require_usable(first, second, scores, where, 1)

    sha256 = hash_file(path)
    origin = {"path": hide_folders(str(path)), "sha256": sha256, "rows": len(scores)}
    return ValidationPairs(key.replace(".", "-"), first, second, scores, origin, sha256)


def _require_usable(
    first: Sequence[str | None],
    second: Sequence[str | None],
    scores: Sequence[float | None],
    where: str,
    start: int,
) -> None:
    """Raise InputError for an empty sentence, or scores that are no numbers or all the same.

    ``start``: the number of the first row in messages.
    """
    for number, row in enumerate(zip(first, second, scores, strict=True), start=start):
        sentence1, sentence2, score = row
        if not (sentence1 and sentence1.strip() and sentence2 and sentence2.strip()):
            raise InputError(where, f"row {number} has an empty sentence")
        if score is None or not math.isfinite(score):
            raise InputError(where, f"row {number} has the score {score}", allowed="a number")
    if len(set(scores)) == 1:
        raise InputError(
            where, f"every score is {scores[0]:g}", hint="a correlation needs scores that differ"
        )

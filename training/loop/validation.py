"""Validation data that select the checkpoint: scored pairs in the recipe, else the datasets' own validation splits.

Pairs are scored by Spearman's correlation of the cosine with their scores, triplets by the share whose positive is
nearer (cosine) than the negative. Scores of different kinds are never averaged: where there are pairs, they alone
decide, since similarity of meaning is what the encoders are evaluated on. Several sets of a kind count equally. Never
an evaluation set: what is reported on test data may not choose the model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import IterableDataset
from sentence_transformers.base.evaluation import BaseEvaluator, SequentialEvaluator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator, TripletEvaluator

from hub.client.connection import reading
from hub.contract.published_paths import published_path
from hub.contract.recipe import PUBLISHED, ValidationData
from hub.durable import sha256_file
from hub.errors import InputError
from training.data.example_types import EXAMPLE_TYPES, STS, TRIPLET, ExampleType
from training.data.rows import RowChecks, in_memory
from training.data.training_sets import TrainingSet, from_hub

SPEARMAN, ACCURACY = "Spearman's correlation", "share of triplets whose positive is nearer"
OWN = {"repo_id", "revision", "path", "config", "example_set"}  # keys of a dataset that identify its validation split


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

    ``metric``: its name. ``sources``: of the data, for the manifest. ``inputs``: what the fingerprint adds to that of
    the datasets.
    """

    def __init__(
        self, evaluators: Sequence[BaseEvaluator], metric: str, sources: list[dict[str, Any]], inputs: dict[str, str]
    ):
        super().__init__(evaluators, main_score_function=lambda scores: sum(scores) / len(scores))
        self.metric = metric
        self.sources = sources
        self.inputs = inputs


def validation_evaluator(
    given: Sequence[ValidationData], sets: Sequence[TrainingSet], batch_size: int
) -> ValidationEvaluator | None:
    """The evaluator of a recipe; None when it names no validation data and no dataset has a split of its own.

    Raises InputError for data that cannot tell checkpoints apart, RunError when the Hub cannot be read.
    """
    own = [item for item in sets if item.validation is not None]
    pairs = [read_pairs(spec, f"validation.{index}") for index, spec in enumerate(given)] or [
        ValidationPairs(item.name, *_columns(item, STS), origin=_own(item), sha256=item.sha256)
        for item in own
        if EXAMPLE_TYPES[item.spec.example_type].read == STS
    ]
    chosen: Any = {"similarity_fn_names": ["cosine"], "write_csv": False, "batch_size": batch_size}
    if pairs:
        chosen["main_similarity"] = "cosine"
        scored = [
            EmbeddingSimilarityEvaluator(one.first, one.second, one.scores, name=one.name, **chosen) for one in pairs
        ]
        inputs = {f"validation:{index}": one.sha256 for index, one in enumerate(pairs)} if given else {}
        return ValidationEvaluator(scored, SPEARMAN, [one.origin for one in pairs], inputs)
    triplets = [item for item in own if item.spec.example_type == TRIPLET.name]
    if not triplets:
        return None
    chosen["main_similarity_function"] = "cosine"
    nearer = [TripletEvaluator(*_columns(item, TRIPLET), name=item.name, **chosen) for item in triplets]
    return ValidationEvaluator(nearer, ACCURACY, [_own(item) for item in triplets], {})


def _columns(item: TrainingSet, examples: ExampleType) -> tuple[list[Any], list[Any], list[Any]]:
    assert item.validation is not None
    first, second, third = (item.validation[column][:] for column in examples.columns)
    return first, second, third


def _own(item: TrainingSet) -> dict[str, Any]:
    assert item.validation is not None
    described = item.spec.model_dump(context=PUBLISHED, include=OWN, exclude_none=True)
    return {**described, "split": "validation", "rows": len(item.validation)}


def read_pairs(spec: ValidationData, place: str) -> ValidationPairs:
    """The scored pairs of one entry of the recipe. Raises InputError unless there are some, with differing scores."""
    if spec.path is not None:
        return _from_file(Path(spec.path), f"{place}: {spec.path}", place)
    assert spec.repo_id is not None
    where = f"{place}: {spec.repo_id}"
    origin = from_hub(spec.repo_id, spec.revision, spec.config, True, where)
    rows = origin.split(spec.split, where)
    where = f"{where}, {spec.split}"
    assert isinstance(rows, IterableDataset) and origin.commit is not None
    with reading(spec.repo_id, spec.revision):
        read = in_memory(rows, where)
    RowChecks(STS, None, where).require_columns(read.features.arrow_schema)
    first, second, scores = (read[column][:] for column in STS.columns)
    _require_usable(first, second, scores, where, 0)
    described = spec.model_dump(exclude_none=True)
    found = {**described, "commit": origin.commit, "rows": len(scores), "license": origin.license}
    return ValidationPairs(place.replace(".", "-"), first, second, scores, found, origin.commit)


def _from_file(path: Path, where: str, place: str) -> ValidationPairs:
    """The pairs of a file in the STS Benchmark's layout: tab-separated, and a quotation mark is a character."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(where, "no such file", hint="the STS Benchmark's is assets/stsb/sts-dev.csv") from error
    except UnicodeDecodeError as error:
        raise InputError(where, f"is not UTF-8 (byte {error.start})") from error
    first, second, scores = list[str](), list[str](), list[float]()
    lines = text.removesuffix("\n").split("\n")  # splitlines would also break at characters inside a sentence
    for number, line in enumerate(lines, start=1):
        cells = line.rstrip("\r").split("\t")
        if len(cells) < 7:
            found, allowed = f"has {len(cells)} tab-separated columns", "genre, file, year, id, score, two sentences"
            raise InputError(f"{where}, line {number}", found, allowed=allowed)
        try:
            scores.append(float(cells[4]))
        except ValueError as error:
            raise InputError(f"{where}, line {number}", f"column 5 is {cells[4]!r}", allowed="a score") from error
        first.append(cells[5])
        second.append(cells[6])
    _require_usable(first, second, scores, where, 1)
    sha256 = sha256_file(path)
    origin = {"path": published_path(str(path)), "sha256": sha256, "rows": len(scores)}
    return ValidationPairs(place.replace(".", "-"), first, second, scores, origin, sha256)


def _require_usable(
    first: Sequence[str | None], second: Sequence[str | None], scores: Sequence[float | None], where: str, start: int
) -> None:
    """Raise InputError for an empty sentence, a score that is not a number, or scores that are all the same."""
    for number, (left, right, score) in enumerate(zip(first, second, scores, strict=True), start=start):
        if not (left and left.strip() and right and right.strip()):
            raise InputError(where, f"row {number} has an empty sentence")
        if score is None or not math.isfinite(score):
            raise InputError(where, f"row {number} has the score {score}", allowed="a number")
    if min(scores) == max(scores):  # type: ignore[type-var] # there is no None left
        raise InputError(where, f"every score is {scores[0]:g}", hint="a correlation needs scores that differ")

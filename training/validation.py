"""What the checkpoint is chosen by: scored pairs that the recipe names, else the datasets' own validation splits.

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

from hub.errors import InputError
from hub.published_paths import published, published_path
from hub.recipe import ModelRecipe, ValidationData
from hub.remote import reading
from hub.shards import sha256_file
from training.data import TrainingSet
from training.origins import from_hub
from training.row_checks import COLUMNS, check_columns
from training.streams import in_memory

SPEARMAN, ACCURACY = "Spearman's correlation", "share of triplets whose positive is nearer"
OWN = {"repo_id", "revision", "path", "config", "example_set"}  # of a dataset, what its validation split is told by
STSB_SCORE, STSB_FIRST, STSB_SECOND = 4, 5, 6  # columns of the STS Benchmark's files, from 0


@dataclass(frozen=True)
class Pairs:
    """Scored sentence pairs, their name, provenance, and what identifies them (a Hub commit or a file's SHA-256)."""

    name: str
    first: list[str]
    second: list[str]
    scores: list[float]
    origin: dict[str, Any]
    sha256: str


class ValidationEvaluator(SequentialEvaluator):
    """The mean score of all validation sets, as ``sequential_score``; higher is better.

    ``metric`` says what it is, ``sources`` where the data come from (for the manifest); ``inputs`` names what the run's
    fingerprint does not know from its datasets.
    """

    def __init__(
        self, evaluators: Sequence[BaseEvaluator], metric: str, sources: list[dict[str, Any]], inputs: dict[str, str]
    ):
        super().__init__(evaluators, main_score_function=lambda scores: sum(scores) / len(scores))
        self.metric = metric
        self.sources = sources
        self.inputs = inputs


def validation_evaluator(
    recipe: ModelRecipe, sets: Sequence[TrainingSet], batch_size: int
) -> ValidationEvaluator | None:
    """The evaluator of a recipe; None when it names no validation data and no dataset has a split of its own.

    Raises InputError for data that cannot tell checkpoints apart, RunError when the Hub cannot be read.
    """
    if recipe.validation:
        named = [read_pairs(spec, f"validation.{index}") for index, spec in enumerate(recipe.validation)]
        inputs = {f"validation:{index}": pairs.sha256 for index, pairs in enumerate(named)}
        return _of_pairs(named, inputs, batch_size)
    own = [item for item in sets if item.validation is not None]
    pairs = [_own_pairs(item) for item in own if item.spec.form == "sts"]
    if pairs:
        return _of_pairs(pairs, {}, batch_size)
    triplets = [item for item in own if item.spec.form == "triplet"]
    if not triplets:
        return None
    evaluators = [_of_triplets(item, batch_size) for item in triplets]
    return ValidationEvaluator(evaluators, ACCURACY, [_own(item) for item in triplets], {})


def _of_pairs(sets: list[Pairs], inputs: dict[str, str], batch_size: int) -> ValidationEvaluator:
    evaluators = [
        EmbeddingSimilarityEvaluator(
            pairs.first,
            pairs.second,
            pairs.scores,
            batch_size=batch_size,
            main_similarity="cosine",
            similarity_fn_names=["cosine"],
            name=pairs.name,
            write_csv=False,
        )
        for pairs in sets
    ]
    return ValidationEvaluator(evaluators, SPEARMAN, [pairs.origin for pairs in sets], inputs)


def _of_triplets(item: TrainingSet, batch_size: int) -> TripletEvaluator:
    rows = item.validation
    assert rows is not None
    return TripletEvaluator(
        rows["anchor"][:],
        rows["positive"][:],
        rows["negative"][:],
        main_similarity_function="cosine",
        similarity_fn_names=["cosine"],
        batch_size=batch_size,
        name=item.name,
        write_csv=False,
    )


def _own(item: TrainingSet) -> dict[str, Any]:
    assert item.validation is not None
    described = published(item.spec).model_dump(include=OWN, exclude_none=True)
    return {**described, "split": "validation", "rows": len(item.validation)}


def _own_pairs(item: TrainingSet) -> Pairs:
    rows = item.validation
    assert rows is not None
    return Pairs(item.name, rows["sentence1"][:], rows["sentence2"][:], rows["score"][:], _own(item), item.sha256)


def read_pairs(spec: ValidationData, place: str) -> Pairs:
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
    check_columns(read.features.arrow_schema, "sts", None, where)
    first, second, scores = (read[column][:] for column in COLUMNS["sts"])
    _require_usable(first, second, scores, where, 0)
    described = spec.model_dump(exclude_none=True)
    found = {**described, "commit": origin.commit, "rows": len(scores), "license": origin.license}
    return Pairs(place.replace(".", "-"), first, second, scores, found, origin.commit)


def _from_file(path: Path, where: str, place: str) -> Pairs:
    """The pairs of a file in the STS Benchmark's layout: tab-separated, and a quotation mark is a character."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(where, "no such file", hint="the STS Benchmark's is assets/stsb/sts-dev.csv") from error
    except UnicodeDecodeError as error:
        raise InputError(where, f"is not UTF-8 (byte {error.start})") from error
    lines = text.removesuffix("\n").split("\n")  # splitlines would also break at characters inside a sentence
    cells = [_cells(line, f"{where}, line {number}") for number, line in enumerate(lines, start=1)]
    first, second, scores = (list(column) for column in zip(*cells, strict=True))
    _require_usable(first, second, scores, where, 1)
    sha256 = sha256_file(path)
    origin = {"path": published_path(str(path)), "sha256": sha256, "rows": len(scores)}
    return Pairs(place.replace(".", "-"), first, second, scores, origin, sha256)


def _cells(line: str, where: str) -> tuple[str, str, float]:
    cells = line.rstrip("\r").split("\t")
    if len(cells) <= STSB_SECOND:
        found = f"has {len(cells)} tab-separated columns"
        raise InputError(where, found, allowed="genre, file, year, id, score, sentence 1, sentence 2")
    try:
        return cells[STSB_FIRST], cells[STSB_SECOND], float(cells[STSB_SCORE])
    except ValueError as error:
        raise InputError(where, f"column {STSB_SCORE + 1} is {cells[STSB_SCORE]!r}", allowed="a score") from error


def _require_usable(
    first: list[str | None], second: list[str | None], scores: list[float | None], where: str, start: int
) -> None:
    """Raise InputError for an empty sentence, a score that is no number, or scores that are all the same."""
    for number, (left, right, score) in enumerate(zip(first, second, scores, strict=True), start=start):
        if not (left and left.strip() and right and right.strip()):
            raise InputError(where, f"row {number} has an empty sentence")
        if score is None or not math.isfinite(score):
            raise InputError(where, f"row {number} has the score {score}", allowed="a number")
    if min(scores) == max(scores):  # type: ignore[type-var] # there is no None left
        raise InputError(where, f"every score is {scores[0]:g}", hint="a correlation needs scores that differ")

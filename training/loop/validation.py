"""Validation data that select the checkpoint: scored pairs in the recipe, else the datasets' own
validation splits.

Pairs are scored by Spearman's correlation of the cosine with their scores, triplets by the share
whose positive is nearer (cosine) than the negative. The two kinds of scores are never averaged:
where there are pairs, triplets are not used, because the encoders are evaluated on the similarity
of pairs. All sets of a kind count equally. Evaluation data never choose the checkpoint.
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
from sts_dino.training.data.training_sets import TrainingSet, open_hub_splits

SPEARMAN = "Spearman's correlation"
TRIPLET_ACCURACY = "share of triplets whose positive is nearer"
# keys of a dataset in the recipe that identify its validation split
SPLIT_KEYS = {"repo_id", "revision", "path", "config", "example_set"}


@dataclass(frozen=True)
class ValidationPairs:
    """Scored sentence pairs; ``first``, ``second`` and ``scores`` have a value for each pair.

    ``origin``: the provenance, for the manifest. ``sha256``: a Hub commit or a digest of the data.
    """

    name: str
    first: list[str]
    second: list[str]
    scores: list[float]
    origin: dict[str, Any]
    sha256: str


class ValidationEvaluator(SequentialEvaluator):
    """Evaluates all validation sets; their mean score is ``sequential_score``, higher is better.

    ``metric``: the score's name. ``sources``: the provenance of each set, for the manifest.
    ``inputs``: name → hash of the data that are not training datasets, for the run's fingerprint.
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
    """Build the evaluator of a recipe; None when recipe and datasets have no validation data.

    The scored pairs of the recipe are used, else those of the datasets, else their triplets.
    Validation rows of other example types are not used.

    Args:
        specs: the recipe's ``validation``.
        sets: the training datasets, whose validation splits are used where ``specs`` is empty.
        batch_size: the number of texts that are embedded together.

    Raises InputError for pairs that cannot be read or used, RunError when the Hub cannot be read.
    """
    options: Any = {"similarity_fn_names": ["cosine"], "write_csv": False, "batch_size": batch_size}
    inputs: dict[str, str] = {}

    # Scored pairs of the recipe, else of the datasets.
    pairs = [read_pairs(spec, f"validation.{index}") for index, spec in enumerate(specs)]
    if pairs:
        inputs = {f"validation:{index}": item.sha256 for index, item in enumerate(pairs)}
    else:
        pairs = [
            _make_pairs(item, item.validation)
            for item in sets
            if _has_validation_type(item, STS.name)
        ]
    evaluators: list[BaseEvaluator] = []
    for item in pairs:
        evaluator = EmbeddingSimilarityEvaluator(
            item.first,
            item.second,
            item.scores,
            name=item.name,
            main_similarity="cosine",
            **options,
        )
        evaluators.append(evaluator)
    if pairs:
        sources = [item.origin for item in pairs]
        return ValidationEvaluator(evaluators, SPEARMAN, sources, inputs)

    # Without scored pairs: triplets of the datasets.
    triplets: list[Any] = [item for item in sets if _has_validation_type(item, TRIPLET.name)]
    if not triplets:
        return None
    options["main_similarity_function"] = "cosine"
    for item in triplets:
        anchors, positives, negatives = (item.validation[column][:] for column in TRIPLET.columns)
        evaluators.append(
            TripletEvaluator(anchors, positives, negatives, name=item.name, **options)
        )
    sources = [_describe_split(item, item.validation) for item in triplets]
    return ValidationEvaluator(evaluators, TRIPLET_ACCURACY, sources, {})


def _has_validation_type(item: TrainingSet, type_name: str) -> bool:
    """Return whether a dataset has a validation split, and its rows are of type ``type_name``."""
    source_type = EXAMPLE_TYPES[item.spec.example_type].source_type
    return item.validation is not None and source_type.name == type_name


def _make_pairs(item: TrainingSet, rows: Any) -> ValidationPairs:
    """Make the scored pairs of a dataset's own validation split ``rows``."""
    first, second, scores = (rows[column][:] for column in STS.columns)
    origin = _describe_split(item, rows)
    return ValidationPairs(item.name, first, second, scores, origin, item.sha256)


def _describe_split(item: TrainingSet, rows: Any) -> dict[str, Any]:
    """Return the provenance of a dataset's own validation split ``rows``, for the manifest."""
    recipe_keys = item.spec.model_dump(context=PUBLISHED, include=SPLIT_KEYS, exclude_none=True)
    return {**recipe_keys, "split": "validation", "rows": len(rows)}


def read_pairs(spec: ValidationData, key: str) -> ValidationPairs:
    """Read the scored pairs of one entry of the recipe, from a file or the Hub.

    ``key``: the entry's key in the recipe, which errors name. Raises InputError for data that
    cannot be read, for a blank sentence, for a score that is not a finite number, and for scores
    that are all equal; RunError when the Hub cannot be read.
    """
    if spec.path is not None:
        return _read_file(Path(spec.path), key)
    return _read_hub(spec, key)


def _read_hub(spec: ValidationData, key: str) -> ValidationPairs:
    """Read the scored pairs of a pinned Hub dataset; it is streamed, so only one split is read.

    The pairs' ``sha256`` is the Hub commit. Their scores may have any range. ``key`` and errors are
    those of ``read_pairs``.
    """
    assert spec.repo_id is not None
    where = f"{key}: {spec.repo_id}"
    opened = open_hub_splits(spec.repo_id, spec.revision, spec.config, True, where)
    stream = opened.get_split(spec.split, where)
    assert isinstance(stream, IterableDataset) and opened.commit is not None
    where_split = f"{where}, {spec.split}"
    with convert_read_errors(spec.repo_id, spec.revision):
        rows: Dataset = read_into_memory(stream, where_split)
    checks = RowChecks(STS, None, where_split, has_columns_key=False)
    checks.require_columns(rows.features.arrow_schema)
    first, second, scores = (rows[column][:] for column in STS.columns)
    _require_usable(first, second, scores, where_split, 0)

    facts = {"commit": opened.commit, "rows": len(scores), "license": opened.license}
    origin = spec.model_dump(exclude_none=True) | facts
    name = key.replace(".", "-")
    return ValidationPairs(name, first, second, scores, origin, opened.commit)


def _read_file(path: Path, key: str) -> ValidationPairs:
    """Read the scored pairs of a file in the STS Benchmark's layout.

    A line has seven or more tab-separated columns: genre, file, year, id, score, both sentences. A
    quotation mark is a character of a sentence. The pairs' ``sha256`` is that of the file. ``key``
    and errors are those of ``read_pairs``.
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
    # ``read_text`` has made every line end a "\n"; splitlines would also break at other characters.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        cells = line.split("\t")
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
    """Raise InputError for a blank sentence, a score that is not a finite number, or equal scores.

    Scores are refused if all are equal. ``first``, ``second``, ``scores``: a value for each pair,
    None if missing. ``where``: the data that errors name. ``start``: the first row's number there.
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

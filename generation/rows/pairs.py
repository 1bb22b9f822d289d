"""Kept texts to published rows: smoothing, sampled negatives, triplets, the split.

Source: DINO, section 4, in its two versions (Schick & Schütze 2021, arXiv 2104.07540 v1, and EMNLP
2021):

- Label smoothing with ε = 0.2. v1 writes ỹ = (1 - ε)·y + Σ_{y' ∈ Y} ε·y' / |Y| for Y = {0, 1, 2},
  which is (1 - ε)·y + ε there; the published version says that 0 becomes 0.1 and 1 becomes 0.9.
  Scaled to [0, 1] the two are one formula, (1 - ε)·y + ε/2.
- "For each x1, we sample two x2's from other dataset entries and augment the dataset with (x1, x2,
  0)". Both versions; their score is not smoothed (the published version lists 0 among its scores:
  {0, 0.1, 0.5, 0.9}).
- A 90/10 split (both).

Each choice depends on a hash of (seed, source sentence), never on order or process, so no x1 is in
two splits. Every function here is pure.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean

from sts_dino.generation.inputs.row_seeds import draw_fraction, make_seed
from sts_dino.generation.rows.selection import Row, compute_label_bias, compute_probabilities
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.schema import (
    EXAMPLE_SET,
    LABEL_PROBABILITY,
    NLI_LABELS,
    PROVENANCE,
    SAMPLED,
    SEARCH_LABELS,
)

Pair = tuple[str, str]


def split_rows(rows: Iterable[Row], recipe: DatasetRecipe) -> dict[str, list[Row]]:
    """Return the rows of the splits ``train`` and ``validation``, in order.

    A hash of the source sentence chooses its split.
    """
    splits: dict[str, list[Row]] = {"train": [], "validation": []}
    for row in rows:
        number = draw_fraction(recipe.seed, "split", row["text1"])
        is_validation = number < recipe.postprocess.validation_fraction
        splits["validation" if is_validation else "train"].append(row)
    return splits


def add_scores(kept_rows: Sequence[Row], raw: Sequence[Row], recipe: DatasetRecipe) -> list[Row]:
    """Return the kept rows of a shard, each with a soft ``score`` if the recipe has soft scores.

    A text's expected score is Σ p(label | text)·score(label), with smoothed scores. Its soft score
    is score(target) + k·(expected - mean expected), where the mean is over the texts of its target
    and k ≤ 1 is the largest factor that keeps all of them within [0, 1]. So the texts of each
    target have its smoothed score on average.

    Args:
        kept_rows: the kept rows of the shard.
        raw: all raw rows of the shard, for the bias of calibrated labels.
        recipe: the dataset's recipe.
    """
    options = recipe.verification
    if options is None or options.scores != "soft":
        return list(kept_rows)

    # the expected score of each text, by target
    scores = _compute_smoothed_scores(recipe)
    bias = compute_label_bias(raw, recipe)
    expected_scores: list[float] = []
    by_target = defaultdict[str, list[float]](list)
    for row in kept_rows:
        probabilities = compute_probabilities(row, bias, options.temperature)
        expected = math.fsum(probabilities[label] * score for label, score in scores.items())
        expected_scores.append(expected)
        by_target[row["target"]].append(expected)

    # shift and narrow the scores of each target
    means = {target: fmean(values) for target, values in by_target.items()}
    scales = {target: _compute_scale(by_target[target], scores[target]) for target in by_target}
    scored_rows = []
    for row, expected in zip(kept_rows, expected_scores, strict=True):
        target = row["target"]
        score = scores[target] + scales[target] * (expected - means[target])
        # a rounding error must not lead out of [0, 1]
        scored_rows.append({**row, "score": min(1.0, max(0.0, score))})
    return scored_rows


def _compute_scale(expected_scores: Sequence[float], score: float) -> float:
    """Return the largest k ≤ 1 for which all score + k·(expected - mean) are within [0, 1].

    ``mean`` is the mean of ``expected_scores``.
    """
    mean = fmean(expected_scores)
    most_above = max(expected_scores) - mean
    most_below = mean - min(expected_scores)
    scale = 1.0
    if most_above > 0:
        scale = min(scale, (1 - score) / most_above)
    if most_below > 0:
        scale = min(scale, score / most_below)
    return scale


def _compute_smoothed_scores(recipe: DatasetRecipe) -> dict[str, float]:
    """Return label → smoothed score. Every label of a schema with scores has a score."""
    return {
        label.name: recipe.postprocess.smooth_score(label.score or 0.0)
        for label in recipe.written_labels
    }


def make_scored_pairs(
    kept_rows: Sequence[Row], pool: Sequence[Pair], recipe: DatasetRecipe
) -> list[Row]:
    """Return the rows of the schema sts: generated pairs, then sampled negatives.

    A generated pair has the soft score that ``add_scores`` gave it, else its label's smoothed
    score.

    Args:
        kept_rows: the kept rows of one shard and split.
        pool: the pairs from which sampled negatives are chosen.
        recipe: the dataset's recipe.
    """
    scores = _compute_smoothed_scores(recipe)
    rows = [
        _make_scored_row(row, row["text2"], row.get("score", scores[row["target"]]))
        for row in kept_rows
    ]
    return rows + sample_negatives(
        kept_rows, pool, recipe.seed, recipe.postprocess.sampled_negatives
    )


def sample_negatives(
    kept_rows: Sequence[Row], pool: Sequence[Pair], seed: int, count: int
) -> list[Row]:
    """Pair each source sentence with ``count`` texts of other source sentences; their score is 0.

    A hash chooses where in the pool the search for a text begins. A source sentence gets fewer
    negatives when the pool has no further text that differs from all its texts.

    Args:
        kept_rows: the kept rows of one shard and split.
        pool: the (text1, text2) to choose from.
        seed: the recipe's seed.
        count: number of sampled negatives for each source sentence.

    Returns:
        Rows of the schema sts, by source sentence in the order of ``kept_rows``.
    """
    # collect the first row of each source sentence, and the texts that cannot be its negatives
    first_rows: dict[str, Row] = {}
    excluded = defaultdict[str, set[str]](set)
    for row in kept_rows:
        first_rows.setdefault(row["text1"], row)
        excluded[row["text1"]] |= {row["text1"], row["text2"]}

    # choose its negatives, with the provenance of the first row
    negatives = []
    for text1, first_row in first_rows.items():
        for number in range(count):
            # the place in the pool where the search begins, and the seed column of the row
            start = make_seed(seed, "negative", text1, number)
            text2 = _find_other_text(pool, start, text1, excluded[text1])
            if text2 is None:
                break
            excluded[text1].add(text2)
            columns = {"sample": number, "attempt": number, "seed": start}
            row = {**first_row, "target": SAMPLED, **columns, "log_prob": None, "margin": None}
            if LABEL_PROBABILITY in row:
                row[LABEL_PROBABILITY] = None
            negatives.append(_make_scored_row(row, text2, 0.0))
    return negatives


def _find_other_text(
    pool: Sequence[Pair], start: int, text1: str, excluded: Collection[str]
) -> str | None:
    """Return the first text2 of another source sentence that is not in ``excluded``.

    The search begins at position ``start`` (modulo the length of the pool) and wraps around. None
    if the pool has no such text.
    """
    for step in range(len(pool)):
        other_text1, text2 = pool[(start + step) % len(pool)]
        if other_text1 != text1 and text2 not in excluded:
            return text2
    return None


def _make_scored_row(row: Row, text2: str, score: float) -> Row:
    """Return a row of the schema sts: a pair, its score in [0, 1] and its provenance.

    ``row``: a raw row with the source sentence and the provenance. ``text2``: the second sentence.
    """
    return {
        "sentence1": row["text1"],
        "sentence2": text2,
        "score": score,
        **_select_provenance(row),
    }


def _select_provenance(row: Row) -> Row:
    """Return the columns of a raw row that every finished row keeps, as far as the row has them."""
    names = (*PROVENANCE, LABEL_PROBABILITY, *EXAMPLE_SET)
    return {name: row[name] for name in names if name in row}


def make_labelled_texts(kept_rows: Sequence[Row], recipe: DatasetRecipe) -> list[Row]:
    """Return the rows of the schema text: each generated text with the index of its label.

    Indices count the recipe's generated labels, in order, from 0.
    """
    numbers = {label.name: number for number, label in enumerate(recipe.written_labels)}
    return [
        {"text": row["text2"], "label": numbers[row["target"]], **_select_provenance(row)}
        for row in kept_rows
    ]


def make_classified_pairs(kept_rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the config ``pair-class``: premise, hypothesis, and the label's index.

    The index is SNLI's: the position in ``NLI_LABELS``.
    """
    pairs: list[Row] = []
    for row in kept_rows:
        pair = {
            "premise": row["text1"],
            "hypothesis": row["text2"],
            "label": NLI_LABELS.index(row["target"]),
            **_select_provenance(row),
        }
        pairs.append(pair)
    return pairs


def make_triplets(
    kept_rows: Sequence[Row],
    may_be_equal: bool,
    labels: tuple[str, str] = ("entailment", "contradiction"),
) -> list[Row]:
    """Return triplets: a source sentence, its i-th positive and its i-th negative text.

    A text without a counterpart at its position gives no triplet. Triplets are in the order of
    their source sentences in ``kept_rows``.

    Args:
        kept_rows: the kept rows of one shard and split.
        may_be_equal: whether positive and negative may be the same text, as in the Auto-NLI
            authors' data.
        labels: the label of the positives and the label of the negatives.
    """
    # collect the texts of each source sentence and label
    first_rows: dict[str, Row] = {}
    texts = defaultdict[tuple[str, str], list[str]](list)  # (text1, label) → its texts
    for row in kept_rows:
        first_rows.setdefault(row["text1"], row)
        texts[row["text1"], row["target"]].append(row["text2"])

    # pair them by position
    triplets = []
    positive_label, negative_label = labels
    for anchor, row in first_rows.items():
        provenance = {name: row[name] for name in ("source_id", *EXAMPLE_SET) if name in row}
        positives = texts[anchor, positive_label]
        negatives = texts[anchor, negative_label]
        for positive, negative in zip(positives, negatives, strict=False):
            if may_be_equal or positive != negative:
                triplet = {"anchor": anchor, "positive": positive, "negative": negative}
                triplets.append({**triplet, **provenance})
    return triplets


def make_search_rows(kept_rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return config → rows of the schema search, whose source sentences are passages.

    ``pair`` has the queries of label "1" with their passages, ``query-class`` every query with the
    index of its label in ``SEARCH_LABELS``.

    InfoNCE ranks the positive of an anchor among the positives and negatives of the whole batch. In
    ``pair`` the anchor is the query, so it ranks passages, as a search does. In ``query-triplet``
    the anchor is the passage, because the hard negative is a query: beside passages a query anchor
    would only learn to tell queries from passages.
    """
    pair_rows = []
    class_rows = []
    for row in kept_rows:
        query, passage, provenance = row["text2"], row["text1"], _select_provenance(row)
        if row["target"] == "1":
            pair_rows.append({"anchor": query, "positive": passage, **provenance})
        label = SEARCH_LABELS.index(row["target"])
        class_rows.append({"query": query, "passage": passage, "label": label, **provenance})
    return {
        "pair": pair_rows,
        "query-triplet": make_triplets(kept_rows, may_be_equal=False, labels=("1", "0")),
        "query-class": class_rows,
    }


# schema → function (kept rows of one shard and split, pool of negatives, recipe) → config → rows
FINISHING: dict[
    str, Callable[[Sequence[Row], Sequence[Pair], DatasetRecipe], dict[str, list[Row]]]
] = {
    "sts": lambda kept_rows, pool, recipe: {
        "postprocessed": make_scored_pairs(kept_rows, pool, recipe)
    },
    "nli": lambda kept_rows, _, recipe: {
        "triplet": make_triplets(kept_rows, recipe.postprocess.equal_triplets),
        "pair-class": make_classified_pairs(kept_rows),
    },
    "text": lambda kept_rows, _, recipe: {"postprocessed": make_labelled_texts(kept_rows, recipe)},
    "search": lambda kept_rows, *_: make_search_rows(kept_rows),
}

"""Kept texts to published rows, pure: smoothing, sampled negatives, triplets, the split.

Source: DINO, section 4, in its two versions (Schick & Schütze 2021, arXiv 2104.07540 v1, and EMNLP 2021):

- Label smoothing with ε = 0.2. v1 writes ỹ = (1 - ε)·y + Σ_{y' ∈ Y} ε·y' / |Y| for Y = {0, 1, 2}, which is
  (1 - ε)·y + ε there; the published version says that 0 becomes 0.1 and 1 becomes 0.9. Scaled to [0, 1] the two are one
  formula, (1 - ε)·y + ε/2, which is ``smooth``.
- "For each x1, we sample two x2's from other dataset entries and augment the dataset with (x1, x2, 0)". Both versions;
  their score is not smoothed (the published version lists 0 among its scores: {0, 0.1, 0.5, 0.9}).
- A 90/10 split (both).

Each choice depends on a hash of (seed, source sentence), never on order or process. So no x1 is in two splits.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from generation.inputs.row_seeds import fraction, row_seed
from generation.rows import verification
from generation.rows.filters import Row
from hub.contract.recipe import DatasetRecipe
from hub.contract.schema import EXAMPLE_SET, LABEL_PROBABILITY, NLI_LABELS, PROVENANCE, SAMPLED, SEARCH_LABELS

Pair = tuple[str, str]


def by_split(rows: Iterable[Row], recipe: DatasetRecipe) -> dict[str, list[Row]]:
    """Rows in order by split, ``train`` or ``validation``: a hash of the source sentence chooses."""
    splits: dict[str, list[Row]] = {"train": [], "validation": []}
    for row in rows:
        validated = fraction(recipe.seed, "split", row["text1"]) < recipe.postprocess.validation_fraction
        splits["validation" if validated else "train"].append(row)
    return splits


def finished_rows(kept: Sequence[Row], pool: Sequence[Pair], recipe: DatasetRecipe) -> dict[str, list[Row]]:
    """Rows of every finished config, by its base name, from the kept rows of one shard and split.

    ``pool`` holds the (text1, text2) that sampled negatives are chosen from, where the schema has any.
    """
    return FINISHING[recipe.schema_name](kept, pool, recipe)


def scored(kept: Sequence[Row], raw: Sequence[Row], recipe: DatasetRecipe) -> list[Row]:
    """The kept rows of a shard, with a ``score`` of their own where the recipe asks for soft scores.

    The expected score of a text, Σ p(label | text)·score(label), is moved and if need be narrowed, so that the texts
    for each label have that label's smoothed score on average and stay within [0, 1]: score(label) + k·(expected - mean
    expected), with the largest such k ≤ 1. ``raw``: all raw rows of the shard, for the bias of calibrated labels.
    """
    asked, scores = recipe.verification, _smoothed_scores(recipe)
    if asked is None or asked.scores != "soft":
        return list(kept)
    bias, expected = verification.label_bias(raw, recipe), list[float]()
    by_target = defaultdict[str, list[float]](list)
    for row in kept:
        found = verification.probabilities(row, bias, asked.temperature)
        expected.append(math.fsum(found[name] * score for name, score in scores.items()))
        by_target[row["target"]].append(expected[-1])
    lines = dict[str, tuple[float, float]]()  # label → mean, k
    for target, values in by_target.items():
        mean, score = math.fsum(values) / len(values), scores[target]
        sides = ((1 - score, max(values) - mean), (score, mean - min(values)))
        lines[target] = mean, min([1.0, *(room / most for room, most in sides if most > 0)])
    moved = list[Row]()
    for row, value in zip(kept, expected, strict=True):
        mean, factor = lines[row["target"]]
        moved.append({**row, "score": min(1.0, max(0.0, scores[row["target"]] + factor * (value - mean)))})
    return moved


def _smoothed_scores(recipe: DatasetRecipe) -> dict[str, float]:
    return {label.name: recipe.postprocess.smoothed(label.score or 0.0) for label in recipe.written_labels}


def scored_pairs(kept: Sequence[Row], pool: Sequence[Pair], recipe: DatasetRecipe) -> list[Row]:
    """Rows of the schema sts: smoothed or soft scores, then the sampled negatives of each source sentence."""
    scores = _smoothed_scores(recipe)
    written = [_scored(row, row["text2"], row.get("score", scores[row["target"]])) for row in kept]
    return written + sampled_negatives(kept, pool, recipe.seed, recipe.postprocess.sampled_negatives)


def sampled_negatives(kept: Sequence[Row], pool: Sequence[Pair], seed: int, count: int) -> list[Row]:
    """For each source sentence up to ``count`` distinct generated texts of other ones in ``pool``, with score 0.

    A hash chooses where in the pool the search begins; there are fewer where every other text is taken.
    """
    sources: dict[str, Row] = {}
    own = defaultdict[str, set[str]](set)
    for row in kept:
        sources.setdefault(row["text1"], row)
        own[row["text1"]].add(row["text2"])
    negatives = list[Row]()
    for text, first in sources.items():
        taken = {text, *own[text]}
        verified = {LABEL_PROBABILITY: None} if LABEL_PROBABILITY in first else {}
        for number in range(count):
            start = row_seed(seed, "negative", text, number)
            others = (pool[(start + step) % len(pool)] for step in range(len(pool)))
            chosen = next((text2 for text1, text2 in others if text1 != text and text2 not in taken), None)
            if chosen is None:
                break
            taken.add(chosen)
            drawn = {"sample": number, "attempt": number, "seed": start, "log_prob": None, "margin": None, **verified}
            negatives.append(_scored({**first, "target": SAMPLED, **drawn}, chosen, 0.0))
    return negatives


def _scored(row: Row, text2: str, score: float) -> Row:
    return {"sentence1": row["text1"], "sentence2": text2, "score": score, **_origin(row)}


def _origin(row: Row, columns: Iterable[str] = (*PROVENANCE, LABEL_PROBABILITY)) -> Row:
    return {name: row[name] for name in (*columns, *EXAMPLE_SET) if name in row}


def labelled_texts(kept: Sequence[Row], recipe: DatasetRecipe) -> list[Row]:
    """Rows of the schema text: the generated texts, each with its label's number in the recipe."""
    numbers = {label.name: number for number, label in enumerate(recipe.written_labels)}
    return [{"text": row["text2"], "label": numbers[row["target"]], **_origin(row)} for row in kept]


def classified_pairs(kept: Sequence[Row]) -> list[Row]:
    """Rows of the config ``pair-class``; labels in SNLI's order."""
    labels = {name: number for number, name in enumerate(NLI_LABELS)}
    return [
        {"premise": row["text1"], "hypothesis": row["text2"], "label": labels[row["target"]], **_origin(row)}
        for row in kept
    ]


def triplets(kept: Sequence[Row], equal: bool, labels: Pair = ("entailment", "contradiction")) -> list[Row]:
    """Rows of the config ``triplet``: of each source sentence the i-th texts for two ``labels``, positive and negative.

    ``equal``: whether they may be one text, as in the Auto-NLI authors' data. Both rows stay in ``pair-class``.
    """
    firsts: dict[str, Row] = {}
    texts: dict[str, dict[str, list[str]]] = {}
    for row in kept:
        firsts.setdefault(row["text1"], row)
        texts.setdefault(row["text1"], defaultdict(list))[row["target"]].append(row["text2"])
    return [
        {"anchor": anchor, "positive": positive, "negative": negative, **_origin(firsts[anchor], ["source_id"])}
        for anchor, found in texts.items()
        for positive, negative in zip(*(found[label] for label in labels), strict=False)
        if equal or positive != negative
    ]


def search_rows(kept: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of the schema search, whose source sentences are passages.

    InfoNCE ranks the positive of an anchor among the positives and negatives of the whole batch. In ``pair`` the anchor
    is the query, so it ranks passages, as a search does. In ``query-triplet`` the anchor is the passage, because
    the hard negative is a query: beside passages a query anchor would only learn to tell queries from passages.
    """
    numbers = {name: number for number, name in enumerate(SEARCH_LABELS)}
    return {
        "pair": [
            {"anchor": row["text2"], "positive": row["text1"], **_origin(row)} for row in kept if row["target"] == "1"
        ],
        "query-triplet": triplets(kept, equal=False, labels=("1", "0")),
        "query-class": [
            {"query": row["text2"], "passage": row["text1"], "label": numbers[row["target"]], **_origin(row)}
            for row in kept
        ],
    }


FINISHING: dict[str, Callable[[Sequence[Row], Sequence[Pair], DatasetRecipe], dict[str, list[Row]]]] = {
    "sts": lambda kept, pool, recipe: {"postprocessed": scored_pairs(kept, pool, recipe)},
    "nli": lambda kept, _, recipe: {
        "triplet": triplets(kept, recipe.postprocess.equal_triplets),
        "pair-class": classified_pairs(kept),
    },
    "text": lambda kept, _, recipe: {"postprocessed": labelled_texts(kept, recipe)},
    "search": lambda kept, *_: search_rows(kept),
}

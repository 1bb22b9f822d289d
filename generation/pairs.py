"""Completions to published rows, pure: filters with named reasons, smoothing, sampled negatives, caps, the split.

Source: DINO (Schick & Schütze 2021), section 4: pairs with x1 = x2 are removed, scores are smoothed, and for each x1
some x2 of other entries are added with score 0. All choices are made by a hash of (seed, source), never by order or
process, and both splits are made per first text, so that no x1 stands in two of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from generation.randomness import fraction, row_seed
from hub.recipe import DatasetRecipe, Postprocess
from hub.schema import NLI_LABELS, PROVENANCE

Row = dict[str, Any]
SAMPLED = "sampled"  # the target of a sampled negative


def smooth(score: float, epsilon: float) -> float:
    """Label smoothing of a similarity score: (1 - ε)·y + ε/2, so with ε = 0.2: 0 → 0.1, 0.5 → 0.5, 1 → 0.9."""
    return (1 - epsilon) * score + epsilon / 2


def split_of(text: str, seed: int, validation_fraction: float) -> str:
    """``train`` or ``validation``, by a hash of the first text."""
    return "validation" if fraction(seed, "split", text) < validation_fraction else "train"


def sift(raw: Iterable[Row], max_per_label: int) -> tuple[list[Row], list[Row]]:
    """Split raw rows, in order, into kept rows and dropped rows that carry their ``reason``.

    identical: text2 equals text1. duplicate: the same (text1, text2, target) stood before. over_cap: (text1, target)
    has ``max_per_label`` rows already.
    """
    kept, dropped = list[Row](), list[Row]()
    seen, per_label = set[tuple[str, str, str]](), Counter[tuple[str, str]]()
    for row in raw:
        key = (row["text1"], row["text2"], row["target"])
        reason = (
            "identical"
            if row["text1"] == row["text2"]
            else "duplicate"
            if key in seen
            else "over_cap"
            if per_label[key[0], key[2]] >= max_per_label
            else None
        )
        if reason:
            dropped.append({**row, "reason": reason})
            continue
        seen.add(key)
        per_label[key[0], key[2]] += 1
        kept.append(row)
    return kept, dropped


def scored_pairs(kept: Sequence[Row], recipe: DatasetRecipe) -> dict[str, list[Row]]:
    """Rows of the config ``postprocessed`` by split: smoothed scores, then the sampled negatives of each first text."""
    scores = {label.name: smooth(label.score or 0.0, recipe.postprocess.smoothing) for label in recipe.labels}
    splits: dict[str, list[Row]] = {"train": [], "validation": []}
    for name, rows in by_split(kept, recipe.seed, recipe.postprocess).items():
        scored = [_scored(row, row["text2"], scores[row["target"]]) for row in rows]
        splits[name] = scored + sampled_negatives(rows, recipe.seed, recipe.postprocess.sampled_negatives)
    return splits


def by_split(rows: Iterable[Row], seed: int, settings: Postprocess) -> dict[str, list[Row]]:
    """Raw rows by the split of their first text, in order."""
    splits: dict[str, list[Row]] = {"train": [], "validation": []}
    for row in rows:
        splits[split_of(row["text1"], seed, settings.validation_fraction)].append(row)
    return splits


def sampled_negatives(rows: Sequence[Row], seed: int, count: int) -> list[Row]:
    """For each first text, up to ``count`` distinct second texts of other first texts, with score 0 (not smoothed)."""
    sources: dict[str, Row] = {}
    own = defaultdict[str, set[str]](set)
    for row in rows:
        sources.setdefault(row["text1"], row)
        own[row["text1"]].add(row["text2"])
    negatives = list[Row]()
    for text, first in sources.items():
        taken = {text, *own[text]}
        for number in range(count):
            chosen = _other(rows, text, taken, seed, number)
            if chosen is None:
                break
            taken.add(chosen["text2"])
            negatives.append(_sampled(first, chosen["text2"], number, row_seed(seed, "negative", text, number)))
    return negatives


def _other(rows: Sequence[Row], text: str, taken: set[str], seed: int, number: int) -> Row | None:
    """The first fitting row from a hashed starting point on; None when every other text is taken."""
    start = row_seed(seed, "negative", text, number) % len(rows)
    for step in range(len(rows)):
        row = rows[(start + step) % len(rows)]
        if row["text1"] != text and row["text2"] not in taken:
            return row
    return None


def _sampled(first: Row, text2: str, number: int, seed: int) -> Row:
    provenance = {"source_id": first["source_id"], "target": SAMPLED, "attempt": number, "seed": seed}
    return _scored({**first, **provenance, "log_prob": None, "margin": None}, text2, 0.0)


def _scored(row: Row, text2: str, score: float) -> Row:
    pair = {"sentence1": row["text1"], "sentence2": text2, "score": score}
    return {**pair, **{name: row[name] for name in PROVENANCE}}


def classified_pairs(kept: Sequence[Row], recipe: DatasetRecipe) -> dict[str, list[Row]]:
    """Rows of the config ``pair-class`` by split; labels in SNLI's order."""
    return {
        name: [
            {
                "premise": row["text1"],
                "hypothesis": row["text2"],
                "label": NLI_LABELS.index(row["target"]),
                **{column: row[column] for column in PROVENANCE},
            }
            for row in rows
        ]
        for name, rows in by_split(kept, recipe.seed, recipe.postprocess).items()
    }


def triplets(kept: Sequence[Row], recipe: DatasetRecipe) -> dict[str, list[Row]]:
    """Rows of the config ``triplet`` by split: the i-th entailed and the i-th contradicting text of each premise."""
    splits: dict[str, list[Row]] = {}
    for name, rows in by_split(kept, recipe.seed, recipe.postprocess).items():
        texts: dict[tuple[str, str], dict[str, list[str]]] = {}
        for row in rows:
            found = texts.setdefault((row["source_id"], row["text1"]), {label: [] for label in NLI_LABELS})
            found[row["target"]].append(row["text2"])
        splits[name] = [
            {"anchor": anchor, "positive": positive, "negative": negative, "source_id": source_id}
            for (source_id, anchor), found in texts.items()
            for positive, negative in zip(found["entailment"], found["contradiction"], strict=False)
            if positive != negative
        ]
    return splits

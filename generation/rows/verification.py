"""Verification: a text's likelihood under the prompt of every label says which label it fits best. Pure.

It is the same text under every prompt, with the same source sentence: its length and the frequency of its words cancel.
log p(text | prompt) is the sum over the tokens that were drawn, the one that ends the text included, of the language
model's own probabilities: before debiasing, top-k and top-p, over the tokens that can be drawn, as ``log_prob`` is.

Calibrated, each label's mean over the raw rows of the shard is subtracted first, since one prompt may make all texts
likelier than another does. The labels asked for weigh alike, however many texts each has left.

Numbers are rounded to the columns' float32 before anything is decided, so that readers of the rows decide alike.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from generation.backends.protocol import Completion
from hub.contract.recipe import DatasetRecipe
from hub.contract.schema import LABEL_PROBABILITY, LOG_LIKELIHOODS, NOT_BEST, OTHER_LABEL

Row = dict[str, Any]
Bias = Mapping[str, float]  # label → nats


def columns(completion: Completion, target: str, recipe: DatasetRecipe) -> Row:
    """The columns of a text that was written for the label ``target``; none without the section ``verification``."""
    if recipe.verification is None:
        return {}
    names = (label.name for label in recipe.written_labels)
    found = {name: float(np.float32(nats)) for name, nats in zip(names, completion.log_likelihoods, strict=True)}
    row: Row = {LOG_LIKELIHOODS: found}
    return {**row, LABEL_PROBABILITY: float(np.float32(probabilities(row)[target]))}


def probabilities(row: Row, bias: Bias | None = None, temperature: float = 1.0) -> dict[str, float]:
    """p(label | text): softmax of (log-likelihood - bias) / temperature, all labels alike beforehand."""
    nats = {name: found - (bias or {}).get(name, 0.0) for name, found in row[LOG_LIKELIHOODS].items()}
    top = max(nats.values())
    weights = {name: math.exp((found - top) / temperature) for name, found in nats.items()}
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def likeliest(row: Row, bias: Bias | None = None) -> str:
    """The label whose prompt makes the text likeliest; of several, the one asked for, else the first."""
    nats = {name: found - (bias or {}).get(name, 0.0) for name, found in row[LOG_LIKELIHOODS].items()}
    top = max(nats.values())
    return str(row["target"]) if nats[row["target"]] == top else next(name for name in nats if nats[name] == top)


def label_bias(raw: Sequence[Row], recipe: DatasetRecipe) -> dict[str, float]:
    """What is subtracted from each label's log-likelihoods, from the raw rows of a shard; nothing unless calibrated.

    A row's log-likelihoods minus their mean, averaged over the texts for each label, then over the labels. Copies of
    the source sentence do not count. A shard in which a label has no text is not calibrated.
    """
    if recipe.verification is None or not recipe.verification.calibrated:
        return {}
    names = [label.name for label in recipe.written_labels]
    centred: dict[str, list[list[float]]] = {name: [] for name in names}
    for row in raw:
        if row["text1"] != row["text2"]:
            nats = [row[LOG_LIKELIHOODS][name] for name in names]
            mean = math.fsum(nats) / len(names)
            centred[row["target"]].append([found - mean for found in nats])
    if not all(centred.values()):
        return {}
    means = [[math.fsum(column) / len(rows) for column in zip(*rows, strict=True)] for rows in centred.values()]
    return {name: math.fsum(of) / len(names) for name, of in zip(names, zip(*means, strict=True), strict=True)}


def asks_again(row: Row, recipe: DatasetRecipe) -> bool:
    """Whether the next attempt is asked for because a text will be dropped; a calibrated drop is not known in time."""
    asked = recipe.verification
    return asked is not None and asked.drop and not asked.calibrated and likeliest(row) != row["target"]


def refused(raw: Sequence[Row], recipe: DatasetRecipe) -> list[str | None]:
    """For each raw row of a shard why verification drops it, or None; empty where nothing is dropped."""
    asked = recipe.verification
    if asked is None or not (asked.drop or asked.best_of > 1):
        return []
    bias = label_bias(raw, recipe)
    off = [asked.drop and likeliest(row, bias) != row["target"] for row in raw]
    wanted = {label.name: recipe.decoding_of(label).samples for label in recipe.written_labels}
    best = _best(raw, off, wanted) if asked.best_of > 1 else None
    found = list[str | None]()
    for row, is_off in zip(raw, off, strict=True):
        not_best = best is not None and row["text2"] not in best[row["text1"], row["target"]]
        found.append(OTHER_LABEL if is_off else NOT_BEST if not_best else None)
    return found


def _best(raw: Sequence[Row], off: Sequence[bool], wanted: Mapping[str, int]) -> dict[tuple[str, str], set[str]]:
    """The ``wanted`` most probable texts of each (source sentence, label); the earlier of equal ones."""
    found = defaultdict[tuple[str, str], dict[str, float]](dict)
    for row, is_off in zip(raw, off, strict=True):
        texts = found[row["text1"], row["target"]]
        if not is_off and row["text1"] != row["text2"]:
            texts.setdefault(row["text2"], row[LABEL_PROBABILITY])
    return {
        key: set(sorted(texts, key=texts.__getitem__, reverse=True)[: wanted[key[1]]]) for key, texts in found.items()
    }

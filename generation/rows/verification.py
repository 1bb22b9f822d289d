"""Verification: a text's likelihood under the prompt of every label shows which label it fits best.

It is the same text under every prompt, with the same source sentence, so its length and the
frequency of its words cancel. log p(text | prompt) sums the language model's own log-probabilities
of the drawn tokens, the ending one included: before debiasing, top-k and top-p, over the tokens
that can be drawn, as ``log_prob`` does.

Calibration first subtracts each label's mean over the raw rows of the shard, since one prompt may
make all texts likelier than another does. The targets weigh alike, however many texts each has.

Numbers are rounded to the columns' float32 before anything is decided, so that readers of the rows
decide alike. Every function here is pure.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from sts_dino.generation.backends.protocol import Completion
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.schema import LABEL_PROBABILITY, LOG_LIKELIHOODS, NOT_BEST, OTHER_LABEL

Row = dict[str, Any]
LabelBias = Mapping[str, float]  # label → nats


def make_columns(completion: Completion, target: str, recipe: DatasetRecipe) -> Row:
    """Return the verification columns of a text that was generated for the label ``target``.

    Empty without the recipe's section ``verification``.
    """
    if recipe.verification is None:
        return {}
    log_likelihoods = {}
    for label, nats in zip(recipe.written_labels, completion.log_likelihoods, strict=True):
        log_likelihoods[label.name] = float(np.float32(nats))
    row: Row = {LOG_LIKELIHOODS: log_likelihoods}
    row[LABEL_PROBABILITY] = float(np.float32(compute_probabilities(row)[target]))
    return row


def _subtract_bias(row: Row, bias: LabelBias | None) -> dict[str, float]:
    """Return label → log-likelihood of a row's text, in nats, less the label's bias if any."""
    if bias is None:
        return dict(row[LOG_LIKELIHOODS])
    return {label: nats - bias.get(label, 0.0) for label, nats in row[LOG_LIKELIHOODS].items()}


def compute_probabilities(
    row: Row, bias: LabelBias | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """Return p(label | text), the softmax of (log-likelihood - bias) / temperature.

    The prior is uniform over the labels.
    """
    log_likelihoods = _subtract_bias(row, bias)
    highest = max(log_likelihoods.values())
    weights = {
        label: math.exp((nats - highest) / temperature) for label, nats in log_likelihoods.items()
    }
    total = math.fsum(weights.values())
    return {label: weight / total for label, weight in weights.items()}


def choose_likeliest_label(row: Row, bias: LabelBias | None = None) -> str:
    """Return the label under whose prompt the text has the highest log-likelihood less bias.

    Among equals the row's target wins, then the first label.
    """
    log_likelihoods = _subtract_bias(row, bias)
    target = str(row["target"])
    if log_likelihoods[target] == max(log_likelihoods.values()):
        return target
    return max(log_likelihoods, key=log_likelihoods.__getitem__)


def compute_label_bias(raw: Sequence[Row], recipe: DatasetRecipe) -> dict[str, float]:
    """Return each label's bias in nats from the raw rows of a shard; empty unless calibrated.

    A row's log-likelihoods minus their mean are averaged over the texts of each target, then over
    the targets. Copies of the source sentence do not count. A shard in which a target has no text
    is not calibrated.
    """
    if recipe.verification is None or not recipe.verification.calibrated:
        return {}

    # centre each row, so that a text's own likelihood does not count
    labels = [label.name for label in recipe.written_labels]
    centred: dict[str, list[LabelBias]] = {label: [] for label in labels}
    for row in raw:
        if row["text1"] != row["text2"]:
            log_likelihoods = row[LOG_LIKELIHOODS]
            mean = fmean(log_likelihoods[label] for label in labels)
            centred[row["target"]].append(
                {label: log_likelihoods[label] - mean for label in labels}
            )
    if not all(centred.values()):
        return {}

    # average the texts of a target, then the targets
    target_means = [_average_labels(rows, labels) for rows in centred.values()]
    return _average_labels(target_means, labels)


def _average_labels(rows: Sequence[LabelBias], labels: Iterable[str]) -> dict[str, float]:
    """Return label → mean of its values in ``rows``, of which there is at least one."""
    means = {}
    for label in labels:
        means[label] = fmean(row[label] for row in rows)
    return means


def should_retry(row: Row, recipe: DatasetRecipe) -> bool:
    """Return whether the text fits another label better, so that verification will drop it.

    False when ``verification`` drops no text or is calibrated: a calibrated decision needs all raw
    rows of the shard.
    """
    options = recipe.verification
    if options is None or options.calibrated or not options.drop:
        return False
    return choose_likeliest_label(row) != row["target"]


def find_rejections(raw: Sequence[Row], recipe: DatasetRecipe) -> list[str | None]:
    """Return for each raw row of a shard the reason why verification drops it, or None."""
    options = recipe.verification
    if options is None or not (options.drop or options.best_of > 1):
        return [None] * len(raw)

    # drop the texts that fit another label better
    bias = compute_label_bias(raw, recipe)
    reasons: list[str | None] = [None] * len(raw)
    if options.drop:
        for index, row in enumerate(raw):
            if choose_likeliest_label(row, bias) != row["target"]:
                reasons[index] = OTHER_LABEL

    # of the others, keep the most probable ones of each source sentence and label
    if options.best_of > 1:
        fitting = [row for row, reason in zip(raw, reasons, strict=True) if reason is None]
        best_texts = _choose_best_texts(fitting, recipe)
        for index, row in enumerate(raw):
            is_best = row["text2"] in best_texts.get((row["text1"], row["target"]), ())
            if reasons[index] is None and not is_best:
                reasons[index] = NOT_BEST
    return reasons


def _choose_best_texts(
    rows: Iterable[Row], recipe: DatasetRecipe
) -> dict[tuple[str, str], list[str]]:
    """Return the most probable texts of each (source sentence, target label).

    There are at most as many as the label's ``samples``. Of equally probable texts the earlier one
    wins. A text equal to its source sentence is left out.
    """
    # a text that repeats keeps its first probability
    probabilities = defaultdict[tuple[str, str], dict[str, float]](dict)
    for row in rows:
        if row["text1"] != row["text2"]:
            texts = probabilities[row["text1"], row["target"]]
            texts.setdefault(row["text2"], row[LABEL_PROBABILITY])

    samples = {label.name: recipe.get_decoding(label).samples for label in recipe.written_labels}
    best_texts = {}
    for (text1, target), texts in probabilities.items():
        best_texts[text1, target] = heapq.nlargest(samples[target], texts, key=texts.__getitem__)
    return best_texts

"""SentEval's transfer and probing tasks: rows in the toolkit's order, features from embeddings, a probe, a score."""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from eval.scoring.outcomes import Embed, Measured, Outcomes
from eval.scoring.probes.probe import (
    SNLI_PACE,
    UNREGULARISED,
    Classes,
    Features,
    Fit,
    Indices,
    Mode,
    cross_validated,
    cross_validation,
    held_out,
    nested_kfold,
    nested_validation,
)
from eval.tasks.data.example_types import LabelledPairs, LabelledTexts, Rows, ScoredPairs, Vector
from eval.tasks.task import Task
from eval.tasks.task_data import BLANK
from hub.errors import InputError

Sets = Mapping[str, tuple[Indices, Features, Classes]]  # split → what ``arranged`` gives


def measure_transfer(task: Task, data: Mapping[str, Rows], embed: Embed, seeds: Sequence[int]) -> Measured:
    """Accuracy x 100 of the task's probe; the mean over ``seeds``, with the rows' outcomes under the first of them.

    ``other`` has the accuracy on the dev rows or folds, F1 for MRPC, and the standard deviation over seeds if several.
    ``lbfgs`` draws nothing but TREC's and MRPC's folds. Raises InputError naming the task when the rows do not allow
    the protocol.
    """
    started = time.perf_counter()
    sets = {split: arranged(task, rows, embed) for split, rows in data.items()}
    started, reading = time.perf_counter(), time.perf_counter() - started
    assert task.mode is not None, task.name
    try:
        fits = [probed(task, sets, task.mode, seed) for seed in seeds]
    except InputError as error:
        raise InputError(task.name, str(error)) from error
    probing = time.perf_counter() - started
    order, _, gold = sets[task.default_split]
    other = {"dev_accuracy": float(np.mean([fit.dev_accuracy for fit in fits]))}
    if task.with_f1:
        other["f1"] = float(np.mean([f1(gold, fit.predicted) for fit in fits]))
    if len(seeds) > 1:
        other["sd_over_seeds"] = float(np.std([fit.accuracy for fit in fits], ddof=1))
    return Measured(
        outcomes=Outcomes(restored(gold, order), restored(fits[0].predicted, order)),
        score=float(np.mean([fit.accuracy for fit in fits])),
        other=other,
        seconds={"reading_embeddings": reading, "probing": probing},
        seeds=tuple(seeds),
    )


def probed(task: Task, sets: Sets, mode: Mode, seed: int) -> Fit:
    """The task's probe on sorted rows."""
    if task.on_validation:
        return validated(task, sets, mode, seed)
    if task.design == "kfold":
        return nested_kfold(*sets["all"][1:], mode=mode, seed=seed)
    if task.design == "cross-validated":
        return cross_validated(*sets["train"][1:], *sets["test"][1:], mode=mode, seed=seed)
    splits = (*sets["train"][1:], *sets["validation"][1:], *sets["test"][1:])
    if task.as_snli:
        return held_out(*splits, mode=mode, grid=UNREGULARISED, seed=seed, pace=SNLI_PACE)
    return held_out(*splits, mode=mode, seed=seed)


def validated(task: Task, sets: Sets, mode: Mode, seed: int) -> Fit:
    """The accuracy that the task's probe chooses its regularisation by, and the classes of the rows that tell it."""
    if task.design == "kfold":
        return nested_validation(*sets["all"][1:], mode=mode, seed=seed)
    if task.design == "cross-validated":
        return cross_validation(*sets["train"][1:], mode=mode, seed=seed)
    dev = sets["validation"][1:]
    if task.as_snli:
        return held_out(*sets["train"][1:], *dev, *dev, mode=mode, grid=UNREGULARISED, seed=seed, pace=SNLI_PACE)
    return held_out(*sets["train"][1:], *dev, *dev, mode=mode, seed=seed)


def arranged(task: Task, rows: Rows, embed: Embed) -> tuple[Indices, Features, Classes]:
    """Where each sorted row was, and the sorted features and classes."""
    order = toolkit_order(rows, task.as_snli)
    if isinstance(rows, LabelledTexts):
        return order, embed([rows.text[row] or BLANK for row in order]), rows.labels[order]
    assert isinstance(rows, LabelledPairs)
    return order, pair_features(rows, order, embed, task.as_snli), rows.labels[order]


def toolkit_order(rows: Rows, as_snli: bool = False) -> Indices:
    """SentEval's order of rows, on which folds and shuffles depend: by number of tokens, then class; stable.

    Pairs go by the first text, then the second; SNLI by the second, then the first, and by the class's name.
    """
    assert isinstance(rows, LabelledTexts | LabelledPairs | ScoredPairs)
    if isinstance(rows, LabelledTexts):
        return np.lexsort((rows.labels, tokens(rows.text)))
    if isinstance(rows, ScoredPairs):
        return np.lexsort((rows.gold, tokens(rows.second), tokens(rows.first)))
    if as_snli:
        by_name = np.argsort(np.argsort(rows.classes))[rows.labels]
        return np.lexsort((by_name, tokens(rows.first), tokens(rows.second)))
    return np.lexsort((rows.labels, tokens(rows.second), tokens(rows.first)))


def tokens(texts: Sequence[str]) -> Indices:
    """Tokens of texts whose tokens are joined by single spaces, (n,)."""
    return np.array([text.count(" ") + 1 if text else 0 for text in texts], dtype=np.int64)


def pair_features(rows: LabelledPairs | ScoredPairs, order: Indices, embed: Embed, as_snli: bool = False) -> Features:
    """|u - v|, u * v of the embeddings u, v of the pairs in ``order``: (n, 2d). SNLI: u, v, u * v, |u - v|: (n, 4d)."""
    u, v = (embed([side[row] or BLANK for row in order]) for side in (rows.first, rows.second))
    n, d = u.shape
    features = np.empty((n, 4 * d if as_snli else 2 * d), dtype=np.float32)
    if as_snli:
        features[:, :d], features[:, d : 2 * d] = u, v
    product, difference = (slice(2 * d, 3 * d), slice(3 * d, None)) if as_snli else (slice(d, None), slice(d))
    np.multiply(u, v, out=features[:, product])
    np.abs(np.subtract(u, v, out=features[:, difference]), out=features[:, difference])
    return features


def f1(gold: Classes, predicted: Classes) -> float:
    """F1 x 100 of class 1, rounded as the toolkit; 0 where neither is ever 1."""
    both = int(((gold == 1) & (predicted == 1)).sum())
    either = int((gold == 1).sum() + (predicted == 1).sum())
    return round(100 * (2 * both / either), 2) if either else 0.0


def restored(sorted_values: Classes | Vector, order: Indices) -> Vector:
    """Values of sorted rows in the data's order."""
    values = np.empty(len(order))
    values[order] = sorted_values
    return values

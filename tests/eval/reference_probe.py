"""SentEval's probes one classifier after the other: a torch module, autograd and torch.optim.Adam
for each.

The slow way that `sts_dino.eval.scoring.probe` must equal, written from the toolkit's protocol
(facebookresearch/SentEval: `validation.py`, `classifier.py` and `relatedness.py` in its `tools`,
read 2026-11).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr
from sklearn.model_selection import StratifiedKFold

Features = NDArray[np.float32]
Classes = NDArray[np.int64]
Scores = NDArray[np.float64]
GRID = [10**t for t in range(-5, -1)]


def blobs(n: int, d: int, k: int, seed: int, spread: float = 1.3) -> tuple[Features, Classes]:
    """Overlapping classes of unequal size, in no order."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(k, d))
    y = draw.choice(k, size=n, p=np.arange(1, k + 1) / (k * (k + 1) / 2)).astype(np.int64)
    return (centres[y] + draw.normal(scale=spread, size=(n, d))).astype(np.float32), y


@dataclass
class Answer:
    """What a protocol ends with; ``predicted`` is in the order of the scored rows."""

    accuracy: float
    dev_accuracy: float
    chosen: list[float]
    predicted: Classes


class Classifier:
    """One logistic regression, seeded when it is made."""

    def __init__(self, dimension: int, classes: int, l2: float, seed: int):
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(dimension, classes)
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), weight_decay=l2)

    def fit(
        self,
        X: Features,
        y: Classes,
        dev: tuple[Features, Classes] | None = None,
        max_epoch: int = 200,
        tenacity: int = 5,
        epoch_size: int = 4,
    ) -> "Classifier":
        if dev is None:
            order = np.random.permutation(len(X))
            cut = int(0.05 * len(X))
            dev = X[order[:cut]], y[order[:cut]]
            X, y = X[order[cut:]], y[order[cut:]]
        features, classes = torch.FloatTensor(X), torch.LongTensor(y)
        best, best_model, misses, epoch, self.checks = -1.0, self.model, 0, 0, 0
        while epoch <= max_epoch:
            for _ in range(epoch_size):
                self.train_one_pass(features, classes)
            epoch += epoch_size
            self.checks += 1
            accuracy = self.score(*dev)
            if accuracy > best:
                best, best_model = accuracy, copy.deepcopy(self.model)
            else:
                if misses >= tenacity:
                    break
                misses += 1
        self.model = best_model
        return self

    def train_one_pass(
        self, features: torch.Tensor, classes: torch.Tensor, batch_size: int = 64
    ) -> None:
        order = np.random.permutation(len(features))
        for start in range(0, len(features), batch_size):
            rows = torch.LongTensor(order[start : start + batch_size])
            loss = self.loss(self.model(features[rows]), classes[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def predict(self, X: Features, batch_size: int = 64) -> Classes:
        with torch.no_grad():
            batches = [
                self.model(torch.FloatTensor(X[at : at + batch_size]))
                for at in range(0, len(X), batch_size)
            ]
        return np.asarray(torch.cat(batches).max(1)[1].numpy())

    def score(self, X: Features, y: Classes) -> float:
        return 1.0 * int((self.predict(X) == y).sum()) / len(X)


def nested_kfold(X: Features, y: Classes, folds: int = 10, seed: int = 1111) -> Answer:
    """MR, CR, SUBJ, MPQA."""
    k = len(np.unique(y))
    outer = StratifiedKFold(folds, shuffle=True, random_state=1111)
    inner = StratifiedKFold(folds, shuffle=True, random_state=1111)
    dev, test, chosen, predicted = [], [], [], np.empty(len(y), dtype=np.int64)
    for train, held in outer.split(X, y):
        best, accuracy = _best_over_folds(X[train], y[train], inner, k, seed)
        chosen.append(best)
        dev.append(accuracy)
        classifier = Classifier(X.shape[1], k, best, seed).fit(X[train], y[train])
        predicted[held] = classifier.predict(X[held])
        test.append(round(100 * classifier.score(X[held], y[held]), 2))
    return Answer(float(round(np.mean(test), 2)), float(round(np.mean(dev), 2)), chosen, predicted)


def cross_validated(
    X: Features, y: Classes, X_test: Features, y_test: Classes, folds: int = 10, seed: int = 1111
) -> Answer:
    """TREC, MRPC."""
    k = len(np.unique(y))
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    best, dev_accuracy = _best_over_folds(X, y, splits, k, seed)
    classifier = Classifier(X.shape[1], k, best, seed).fit(X, y)
    accuracy = round(100 * classifier.score(X_test, y_test), 2)
    return Answer(accuracy, dev_accuracy, [best], classifier.predict(X_test))


def _best_over_folds(
    X: Features, y: Classes, splits: Any, k: int, seed: int
) -> tuple[float, float]:
    """The value of the grid with the best mean accuracy over the folds, and that accuracy."""
    scores = []
    for l2 in GRID:
        parts = []
        for fit, check in splits.split(X, y):
            held = X[check], y[check]
            parts.append(Classifier(X.shape[1], k, l2, seed).fit(X[fit], y[fit], held).score(*held))
        scores.append(round(100 * np.mean(parts), 2))
    return GRID[np.argmax(scores)], float(np.max(scores))


def held_out(
    X: Features,
    y: Classes,
    X_dev: Features,
    y_dev: Classes,
    X_test: Features,
    y_test: Classes,
    grid: Sequence[float] = GRID,
    seed: int = 1111,
    **pace: int,
) -> Answer:
    """SST2, SST5, SICK-E, SNLI (1e-9, max_epoch 15, epoch_size 1), probing; the chosen value is
    fitted again.
    """
    k = len(np.unique(y))
    scores = []
    for l2 in grid:
        classifier = Classifier(X.shape[1], k, l2, seed).fit(X, y, (X_dev, y_dev), **pace)
        scores.append(round(100 * classifier.score(X_dev, y_dev), 2))
    best = grid[int(np.argmax(scores))]
    classifier = Classifier(X.shape[1], k, best, seed).fit(X, y, (X_dev, y_dev), **pace)
    accuracy = round(100 * classifier.score(X_test, y_test), 2)
    return Answer(accuracy, np.max(scores), [best], classifier.predict(X_test))


def soft_target(score: float) -> list[float]:
    """Tai et al. 2015: a score between two whole numbers is shared between them."""
    row, below = [0.0] * 5, int(np.floor(score))
    if 1 <= below + 1 <= 5:
        row[below] = score - below
    if 1 <= below <= 5:
        row[below - 1] = below - score + 1
    return row


def relatedness(
    X: Features, y: Scores, X_dev: Features, y_dev: Scores, X_test: Features, seed: int = 1111
) -> tuple[Scores, float, int]:
    """STSb, SICK-R with a trained head: scores of the test rows, dev Pearson, number of checks."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(X.shape[1], 5), torch.nn.Softmax(dim=1))
    loss, optimizer = torch.nn.MSELoss(), torch.optim.Adam(model.parameters())
    features, targets = torch.from_numpy(X), torch.tensor([soft_target(score) for score in y])
    best, best_model, misses, epoch, checks = -1.0, model, 0, 0, 0
    while epoch <= 1000:
        for _ in range(50):
            order = np.random.permutation(len(X))
            for start in range(0, len(X), 64):
                rows = torch.from_numpy(order[start : start + 64])
                value = loss(model(features[rows]), targets[rows])
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
        epoch, checks = epoch + 50, checks + 1
        with torch.no_grad():
            correlation = pearsonr(
                np.dot(model(torch.from_numpy(X_dev)).numpy(), np.arange(1, 6)), y_dev
            )[0]
        if correlation > best:
            best, best_model = correlation, copy.deepcopy(model)
        else:
            if misses >= 3:
                break
            misses += 1
    with torch.no_grad():
        predicted = np.dot(best_model(torch.from_numpy(X_test)).numpy(), np.arange(1, 6))
    return predicted, float(best), checks

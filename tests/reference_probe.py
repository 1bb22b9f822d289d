"""SentEval's probes one classifier after the other: a torch module, autograd and torch.optim.Adam per fold and grid value.

The slow way that `eval.probe` must equal and that `benchmarks/probes.py` times. Written from the toolkit's protocol
(facebookresearch/SentEval, `tools/validation.py` and `tools/classifier.py`, read 2026-11): seeds, order of the draws, early
stopping and rounding are its own, on a CPU and under a current torch, where the loss is the mean over a batch.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

GRID = [10**t for t in range(-5, -1)]


@dataclass
class Answer:
    """What a protocol ends with; ``predicted`` is in the order of the scored rows."""

    accuracy: float
    dev_accuracy: float
    chosen: list[float]
    predicted: np.ndarray


class Classifier:
    """One logistic regression, seeded when it is made."""

    def __init__(self, dimension: int, classes: int, l2: float, seed: int):
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(dimension, classes)
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), weight_decay=l2)

    def fit(self, X, y, dev=None, max_epoch=200, tenacity=5, epoch_size=4):
        if dev is None:
            order = np.random.permutation(len(X))
            cut = int(0.05 * len(X))
            dev = X[order[:cut]], y[order[:cut]]
            X, y = X[order[cut:]], y[order[cut:]]
        features, classes = torch.FloatTensor(X), torch.LongTensor(y)
        best, best_model, misses, epoch, self.checks = -1.0, None, 0, 0, 0
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

    def train_one_pass(self, features, classes, batch_size=64):
        order = np.random.permutation(len(features))
        for start in range(0, len(features), batch_size):
            rows = torch.LongTensor(order[start : start + batch_size])
            loss = self.loss(self.model(features[rows]), classes[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def predict(self, X, batch_size=64):
        with torch.no_grad():
            batches = [self.model(torch.FloatTensor(X[at : at + batch_size])) for at in range(0, len(X), batch_size)]
        return torch.cat(batches).max(1)[1].numpy()

    def score(self, X, y):
        return 1.0 * int((self.predict(X) == y).sum()) / len(X)


def nested_kfold(X, y, folds=10, seed=1111) -> Answer:
    """MR, CR, SUBJ, MPQA."""
    k = len(np.unique(y))
    outer = StratifiedKFold(folds, shuffle=True, random_state=1111)
    inner = StratifiedKFold(folds, shuffle=True, random_state=1111)
    dev, test, chosen, predicted = [], [], [], np.empty(len(y), dtype=np.int64)
    for train, held in outer.split(X, y):
        scores = []
        for l2 in GRID:
            parts = []
            for fit, check in inner.split(X[train], y[train]):
                pair = X[train][check], y[train][check]
                classifier = Classifier(X.shape[1], k, l2, seed).fit(X[train][fit], y[train][fit], pair)
                parts.append(classifier.score(*pair))
            scores.append(round(100 * np.mean(parts), 2))
        chosen.append(GRID[np.argmax(scores)])
        dev.append(np.max(scores))
        classifier = Classifier(X.shape[1], k, chosen[-1], seed).fit(X[train], y[train])
        predicted[held] = classifier.predict(X[held])
        test.append(round(100 * classifier.score(X[held], y[held]), 2))
    return Answer(round(np.mean(test), 2), round(np.mean(dev), 2), chosen, predicted)


def cross_validated(X, y, X_test, y_test, folds=10, seed=1111) -> Answer:
    """TREC, MRPC."""
    k = len(np.unique(y))
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    scores = []
    for l2 in GRID:
        parts = []
        for fit, check in splits.split(X, y):
            classifier = Classifier(X.shape[1], k, l2, seed).fit(X[fit], y[fit], (X[check], y[check]))
            parts.append(classifier.score(X[check], y[check]))
        scores.append(round(100 * np.mean(parts), 2))
    best = GRID[np.argmax(scores)]
    classifier = Classifier(X.shape[1], k, best, seed).fit(X, y)
    accuracy = round(100 * classifier.score(X_test, y_test), 2)
    return Answer(accuracy, np.max(scores), [best], classifier.predict(X_test))


def held_out(X, y, X_dev, y_dev, X_test, y_test, grid=GRID, seed=1111) -> Answer:
    """SST2, SST5, SICK-E, SNLI (whose grid is 1e-9 alone) and the probing tasks; the chosen value is fitted again."""
    k = len(np.unique(y))
    scores = []
    for l2 in grid:
        classifier = Classifier(X.shape[1], k, l2, seed).fit(X, y, (X_dev, y_dev))
        scores.append(round(100 * classifier.score(X_dev, y_dev), 2))
    best = grid[np.argmax(scores)]
    classifier = Classifier(X.shape[1], k, best, seed).fit(X, y, (X_dev, y_dev))
    accuracy = round(100 * classifier.score(X_test, y_test), 2)
    return Answer(accuracy, np.max(scores), [best], classifier.predict(X_test))

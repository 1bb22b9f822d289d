"""A correlation over the subsets of an STS task in three aggregations, as a module of the ``evaluate`` library.

Stand-alone, since ``evaluate.load`` fetches this file alone, with one import a line, as its parser wants.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]

DESCRIPTION = """
The correlation (-1 to 1) of predicted with gold similarities over a semantic textual similarity task of several
subsets, aggregated in the three ways that papers use, which differ by several points: `all` (one correlation over the
pairs of all subsets together), `mean` (of the subsets' correlations) and `wmean` (weighted by their pairs).
"""

INPUTS = """
Args:
    predictions (list of float): predicted similarities.
    references (list of float): gold similarities.
    subsets (list of str): the subset of every pair.
    correlation (str): "spearman" (by default) or "pearson".
Returns:
    all, mean, wmean (float), and subsets: name -> {"score", "n"}.
"""

CITATION = "Conneau and Kiela (2018): SentEval: An Evaluation Toolkit for Universal Sentence Representations. LREC."


class StsAggregation(evaluate.Metric):
    """``compute(predictions=, references=, subsets=)``: the three aggregations and every subset's correlation."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        columns = {"predictions": number, "references": number, "subsets": datasets.Value("string")}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(columns),
        )

    def _compute(
        self,
        predictions: Sequence[float],
        references: Sequence[float],
        subsets: Sequence[str],
        correlation: str = "spearman",
    ) -> dict[str, Any]:
        if correlation not in ("spearman", "pearson"):
            raise ValueError(f"unknown correlation {correlation!r}; allowed: spearman, pearson")
        x, y = np.asarray(predictions, dtype=np.float64), np.asarray(references, dtype=np.float64)
        names = np.asarray(subsets)
        found = {}
        for name in dict.fromkeys(names.tolist()):
            rows = names == name
            found[name] = {"score": correlate(x[rows], y[rows], correlation, name), "n": int(rows.sum())}
        scores, sizes = [part["score"] for part in found.values()], [part["n"] for part in found.values()]
        return {
            "all": correlate(x, y, correlation, "all"),
            "mean": float(np.mean(scores)),
            "wmean": float(np.average(scores, weights=sizes)),
            "subsets": found,
        }


def correlate(x: Array, y: Array, correlation: str, subset: str) -> float:
    """The correlation of (n,) with (n,). Raises ValueError where it is undefined."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(f"{subset}: a prediction or reference is not finite")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        raise ValueError(f"{subset}: a correlation with a constant is undefined")
    if correlation == "spearman":
        x, y = rankdata(x), rankdata(y)
    return float(np.corrcoef(x, y)[0, 1])

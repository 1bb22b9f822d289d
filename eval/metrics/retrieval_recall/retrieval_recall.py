"""Recall at 1, 5 and 10 of a retrieval, as a module of the ``evaluate`` library.

Stand-alone, since ``evaluate.load`` fetches this file alone, with one import a line, as its parser wants.
"""

from collections.abc import Sequence

import datasets
import evaluate
import numpy as np

DESCRIPTION = """
Recall at k (0 to 1) of a retrieval: the share of queries with a right candidate among the first k of their ranking, as
caption-image retrieval reports it, and the median rank of the first right candidate, from 1.
"""

INPUTS = """
Args:
    predictions (list of list of int): for every query, candidates from the most to the least similar.
    references (list of list of int): for every query, its right candidates.
    at (list of int): the values of k, [1, 5, 10] by default.
Returns:
    recall_at_<k> for every k, mean_recall (over the values of k) and median_rank (float).
"""

CITATION = """
@inproceedings{conneau2018senteval,
  title={{SentEval}: An Evaluation Toolkit for Universal Sentence Representations},
  author={Conneau, Alexis and Kiela, Douwe},
  booktitle={Proceedings of LREC},
  year={2018}
}
"""


class RetrievalRecall(evaluate.Metric):
    """``compute(predictions=, references=)``: recall at every k, their mean, and the median rank."""

    def _info(self) -> evaluate.MetricInfo:
        candidates = datasets.Sequence(datasets.Value("int64"))
        columns = {"predictions": candidates, "references": candidates}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(columns),
        )

    def _compute(
        self,
        predictions: Sequence[Sequence[int]],
        references: Sequence[Sequence[int]],
        at: Sequence[int] = (1, 5, 10),
    ) -> dict[str, float]:
        places = [first_right(row, right, at) for row, right in zip(predictions, references, strict=True)]
        ranks = np.array(places, dtype=np.float64)
        found = {f"recall_at_{k}": float(np.mean(ranks < k)) for k in at}
        mean = float(np.mean(list(found.values())))
        return found | {"mean_recall": mean, "median_rank": float(np.median(ranks)) + 1}


def first_right(ranking: Sequence[int], right: Sequence[int], at: Sequence[int]) -> float:
    """Place (from 0) of the first right candidate, infinite if it is not in the ranking.

    Raises ValueError when a ranking is shorter than the largest k or names a candidate twice, or nothing is right.
    """
    if len(right) == 0:
        raise ValueError("a query has no right candidate")
    if len(set(ranking)) < len(ranking) or len(ranking) < max(at):
        raise ValueError(
            f"a ranking names {len(set(ranking))} candidates in {len(ranking)} places; k goes to {max(at)}"
        )
    answers = set(right)
    return next((place for place, candidate in enumerate(ranking) if candidate in answers), float("inf"))

"""Scores of cosines: correlation with human scores (STS), and rankings of documents (search).

STS12–16 consist of subsets. Papers aggregate them in three ways, which differ by up to ten points:
``all`` (Reimers & Gurevych 2019, SimCSE, MTEB), ``mean`` and ``wmean`` over subsets (SentEval,
Conneau & Kiela 2018). Rankings are scored by trec_eval's code.
"""

from collections.abc import Callable, Sequence

import numpy as np

from sts_dino.eval.encoders.embeddings import compute_cosines
from sts_dino.eval.tasks.own import CORPUS, QRELS, SPLIT
from sts_dino.eval.tasks.rows import Rows, Vector
from sts_dino.eval.tasks.sources import BLANK_TEXT_REPLACEMENT, TaskData
from sts_dino.eval.tasks.task import Embed, Measured, Outcomes, Side, Task
from sts_dino.hub.errors import RunError

Correlation = Callable[[Vector, Vector], float]
CHUNK_PAIRS = 1024  # pairs whose embeddings are in memory as float64
COSINE_DECIMALS = 12  # float64 rounding changes further decimals
MIN_COSINE_RANGE = 1e-6  # a smaller range is rounding noise of float32 embeddings


def measure_sts(data: TaskData, embed: Embed, _: Sequence[int] = ()) -> Measured:
    """Measure Spearman x 100 of an STS task and of each subset, and Pearson x 100 of the task.

    The task's aggregation makes one score of the subsets. A subset with constant cosines or
    constant human scores has no correlation and is left out of ``parts``. The third argument, the
    seeds of probes, is unused: every measuring function has this signature.

    Raises RunError when all human scores are equal, when the cosines are equal or nearly so, and
    when the aggregation needs the correlation of a constant subset.
    """
    # Compute the cosines of all pairs
    task = data.task
    pairs = data.scored
    cosines = compute_cosine_scores(pairs, embed, task.sides)
    if np.ptp(cosines) < MIN_COSINE_RANGE:
        raise RunError(
            task.name,
            f"all {len(pairs)} cosines are {cosines[0]:.6g}: their correlation with human scores "
            "is undefined",
            hint="the encoder gives every text the same embedding, or nearly so",
        )

    # Correlate every subset
    subset_of_row: list[str] = []
    parts = {}
    for name, start, stop in pairs.subsets:
        row_count = stop - start
        subset_of_row += [name] * row_count
        gold = pairs.target[start:stop]
        predicted = cosines[start:stop]
        if not (_is_constant(gold) or _is_constant(predicted)):
            parts[name] = (100 * compute_spearman(predicted, gold), row_count)

    # Aggregate the score of the task
    outcomes = Outcomes(pairs.target, cosines, tuple(subset_of_row))
    score = _aggregate_correlation(task, outcomes, compute_spearman)
    pearson = _aggregate_correlation(task, outcomes, compute_pearson)
    return Measured(outcomes, score, {"pearson": pearson}, parts)


def compute_cosine_scores(
    pairs: Rows, embed: Embed, sides: tuple[Side, Side] | None = None
) -> Vector:
    """Compute the cosine of the embeddings of every pair, (pairs,); 0 with a zero vector.

    Cosines are rounded, so that values which differ by float64's rounding alone are ties. 65 of
    SMTeuroparl's 459 pairs are two identical sentences: without rounding their cosines would have
    different ranks, and the correlation would move by up to 0.08.

    Args:
        pairs: the pairs.
        embed: function from n texts, and a side, to embeddings (n, d).
        sides: the side of the first and of the second texts, where the texts are queries and
            documents; None: ``embed`` is called without a side.
    """
    first_options: dict[str, Side] = {}
    second_options: dict[str, Side] = {}
    if sides is not None:
        first_options["side"] = sides[0]
        second_options["side"] = sides[1]
    cosines = np.empty(len(pairs))
    for start in range(0, len(pairs), CHUNK_PAIRS):
        chunk = slice(start, start + CHUNK_PAIRS)
        first = embed(pairs.first[chunk], **first_options)
        second = embed(pairs.second[chunk], **second_options)
        cosines[chunk] = compute_cosines(first, second)
    return cosines.round(COSINE_DECIMALS)


def _aggregate_correlation(task: Task, outcomes: Outcomes, correlation: Correlation) -> float:
    """Return the weighted mean of the parts' correlations x 100, under the task's aggregation.

    ``correlation``: function of two arrays (n,), -1 to 1. Raises RunError, with the task and the
    subset, where the correlation of a part is undefined.
    """
    total = 0.0
    for rows, weight in outcomes.list_parts(task.aggregation):
        gold = outcomes.gold[rows]
        predicted = outcomes.predicted[rows]
        if _is_constant(gold) or _is_constant(predicted):
            values = "human scores" if _is_constant(gold) else "cosines"
            # The part is a subset, or all rows
            if len(rows) < len(outcomes):
                values += f" of {outcomes.part[rows[0]]}"
            raise RunError(
                task.name,
                f"all {len(rows)} {values} are the same: the correlation is undefined",
            )
        total += weight * correlation(predicted, gold)
    return 100 * total


def _is_constant(values: Vector) -> bool:
    """Return whether all values (n,), n ≥ 1, are equal."""
    return bool(np.ptp(values) == 0)


def compute_pearson(first: Vector, second: Vector) -> float:
    """Compute Pearson's correlation of two arrays (n,), -1 to 1.

    Raises RunError when one array is constant.
    """
    if _is_constant(first) or _is_constant(second):
        raise RunError(
            "evaluation",
            "a correlation with a constant is undefined",
            hint="do all embeddings coincide?",
        )
    return float(np.corrcoef(first, second)[0, 1])


def compute_spearman(first: Vector, second: Vector) -> float:
    """Compute Spearman's correlation of two arrays (n,), -1 to 1.

    It is Pearson's correlation of the ranks; ties have their mean rank. Raises RunError when one
    array is constant.
    """
    from scipy.stats import rankdata

    return compute_pearson(rankdata(first), rankdata(second))


RANKING_DEPTH = 10  # documents of a ranking that the metrics read
# Metric → its name in trec_eval
TREC_METRICS: dict[str, str] = {"ndcg@10": "ndcg_cut.10", "recall@10": "recall.10"}


def measure_search(data: TaskData, embed: Embed, _: Sequence[int] = ()) -> Measured:
    """Measure nDCG@10 or recall@10, x 100, as a mean over queries.

    A query's outcome has the number of its relevant documents as gold value and its score, 0 to 1,
    as predicted value. trec_eval orders documents with equal cosines by their ids. The document
    with the query's own id is left out of the ranking unless it is judged relevant (BEIR always
    leaves it out). Blank texts are embedded as ``BLANK_TEXT_REPLACEMENT``. The third argument, the
    seeds of probes, is unused.

    Args:
        data: the queries, the corpus and the judgements.
        embed: function from n texts and a side to embeddings (n, d).
    """
    import pytrec_eval
    import torch
    from sentence_transformers.util import semantic_search

    # Find the nearest documents of every query: one more, as the query's own document may go
    queries = data.rows[SPLIT]
    corpus = data.rows[CORPUS]
    query_vectors = embed([text or BLANK_TEXT_REPLACEMENT for text in queries.second], "query")
    document_vectors = embed([text or BLANK_TEXT_REPLACEMENT for text in corpus.second], "document")
    rankings = semantic_search(
        torch.from_numpy(query_vectors), torch.from_numpy(document_vectors), top_k=RANKING_DEPTH + 1
    )

    # Map query id → document id → grade
    grades: dict[str, dict[str, int]] = {query_id: {} for query_id in queries.first}
    for query_id, document_id, grade in data.rows[QRELS].iter_canonical():
        if query_id in grades:
            grades[str(query_id)][str(document_id)] = int(grade)

    # Map query id → document id → cosine, of the first documents
    runs: dict[str, dict[str, float]] = {}
    for query_id, hits in zip(queries.first, rankings, strict=True):
        cosines = {corpus.first[int(hit["corpus_id"])]: float(hit["score"]) for hit in hits}
        own_document_is_relevant = grades[query_id].get(query_id, 0) > 0
        if not own_document_is_relevant:
            cosines.pop(query_id, None)
        ranked = list(cosines.items())
        runs[query_id] = dict(ranked[:RANKING_DEPTH])

    # Score the rankings by the judgements
    metric = TREC_METRICS[str(data.task.metric)]
    query_scores = pytrec_eval.RelevanceEvaluator(grades, {metric}).evaluate(runs)
    result_key = metric.replace(".", "_")  # pytrec_eval's results are named so
    values = np.array([query_scores[query_id][result_key] for query_id in queries.first])
    return Measured(Outcomes(queries.target, values), 100 * float(values.mean()))

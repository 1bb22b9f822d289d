"""Search with a user's own queries: documents ranked by cosine, each query's nDCG and recall by trec_eval's code."""

from collections.abc import Mapping, Sequence

import numpy as np

from eval.scoring.outcomes import Embed, Measured, Outcomes
from eval.tasks.own import CORPUS, QRELS, SPLIT
from eval.tasks.rows import Rows
from eval.tasks.sources import BLANK
from eval.tasks.task import Task

DEPTH = 10  # of the ranking: all that the metrics look at
OF_TREC: dict[str, str] = {"ndcg@10": "ndcg_cut.10", "recall@10": "recall.10"}


def measure_search(task: Task, data: Mapping[str, Rows], embed: Embed, _: Sequence[int] = ()) -> Measured:
    """The mean over queries of the task's metric x 100; an outcome is a query: its relevant documents, its score.

    Documents with equal cosines stand in trec_eval's order, by their ids.
    """
    import pytrec_eval
    import torch
    from sentence_transformers.util import semantic_search

    queries, corpus = data[SPLIT], data[CORPUS]
    asked, found = (
        torch.from_numpy(embed([text or BLANK for text in data[split].second], side))
        for split, side in ((SPLIT, "query"), (CORPUS, "document"))
    )
    runs = {
        query: {corpus.first[int(hit["corpus_id"])]: float(hit["score"]) for hit in hits}
        for query, hits in zip(queries.first, semantic_search(asked, found, top_k=DEPTH), strict=True)
    }
    judged: dict[str, dict[str, int]] = {query: {} for query in queries.first}
    for query, document, grade in data[QRELS].canonical():
        if query in judged:
            judged[str(query)][str(document)] = int(grade)
    name = OF_TREC[str(task.metric)]
    scores = pytrec_eval.RelevanceEvaluator(judged, {name}).evaluate(runs)
    values = np.array([scores[query][name.replace(".", "_")] for query in queries.first])
    return Measured(Outcomes(queries.target, values), 100 * float(values.mean()))

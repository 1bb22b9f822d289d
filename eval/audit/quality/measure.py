"""Measure a dataset in one pass over its rows: texts, pairs, agreement of its labels with an NLI model.

Memory: one batch of rows, and per row some 100 bytes of hashes and numbers; texts are not kept.
"""

import sys
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

from eval.audit.quality.measures import Quality
from eval.audit.quality.nli import NliCounter, NliModel
from eval.audit.quality.pairs import PairMeasure, cosine, jaccard, overlap_coefficient
from eval.audit.quality.texts import DISTINCT_ROWS, Lengths, Rowwise, Texts, whitespace_lengths
from eval.audit.rows import DatasetRows
from eval.encoders.load import Encoder
from hub.errors import InputError

LIBRARIES = ("numpy", "pyarrow", "scipy", "scikit-learn", "torch", "transformers", "sentence-transformers")


def measure(
    rows: DatasetRows,
    sample: int | None = None,
    seed: int = 42,
    encoder: Encoder | None = None,
    nli: NliModel | None = None,
    lengths: tuple[Lengths, str] = (whitespace_lengths, "tokens between blanks"),
    progress: Callable[[int], object] = lambda done: None,
) -> Quality:
    """The quality of a dataset, or of ``sample`` of its rows drawn at random.

    lengths: what counts tokens, and in which unit. ``progress`` is called with the number of rows of each batch.
    Raises InputError when an encoder or NLI model is given and there are no pairs, or one of them fails.
    """
    if len(rows.columns) < 2 and (encoder or nli):
        raise InputError(f"{rows.name} ({rows.config})", "has single texts: no pairs to compare")
    texts = {column: Texts(column, lengths[0]) for column in rows.columns}
    rowwise, measures = Rowwise(), _measures(encoder)
    agreement = NliCounter(nli) if nli else None
    sampled = _sampled(len(rows.drawn(sample, seed)), seed)
    done = 0
    for batch in rows.batches(sample, seed):
        low, high = np.searchsorted(sampled, [done, done + len(batch)])
        for column, values in batch.texts.items():
            texts[column].add(values, sampled[low:high] - done)
        rowwise.add(batch)
        for one in measures:
            one.add(batch)
        if agreement:
            agreement.add(batch)
        done += len(batch)
        progress(len(batch))
    return Quality(
        dataset=rows.name,
        revision=rows.revision,
        config=rows.config,
        form=rows.example_type,
        splits=rows.splits,
        rows=done,
        seed=seed,
        length_unit=lengths[1],
        versions={"python": sys.version.split()[0], **{library: version(library) for library in LIBRARIES}},
        columns=tuple(column.column() for column in texts.values()),
        repeats=rowwise.repeats(),
        measures=tuple(found for one in measures if (found := one.measure()) is not None),
        nli=agreement.agreement() if agreement else None,
    )


def _measures(encoder: Encoder | None) -> list[PairMeasure]:
    lexical = [PairMeasure("jaccard", jaccard, 0.0), PairMeasure("overlap coefficient", overlap_coefficient, 0.0)]
    if encoder is None:
        return lexical
    return [*lexical, PairMeasure("cosine", cosine(encoder), -1.0, encoder.name, encoder.revision)]


def _sampled(rows: int, seed: int) -> np.ndarray:
    """Places, among the rows read, of those whose n-grams are counted."""
    if rows <= DISTINCT_ROWS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed + 1).choice(rows, DISTINCT_ROWS, replace=False))

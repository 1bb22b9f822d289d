"""Readers of pairs with people's scores: STS 2012 to 2016, the STS Benchmark and SICK, in both text forms."""

from collections.abc import Callable, Sequence

from eval.tasks.data.example_types import ScoredPairs
from eval.tasks.data.files import DataFile
from eval.tasks.data.rows import number, scored_pairs
from eval.tasks.data.senteval import parallel

TextForm = Callable[[str], str]


def as_it_is(text: str) -> str:
    """The organisers' text form: every character of the cell, spaces at its ends included (MTEB's copies have them)."""
    return text


def sts_year(files: Sequence[DataFile], subsets: Sequence[str], form: TextForm) -> ScoredPairs:
    """A year's subsets in the toolkit's order; ``files``: input and gold file of each. An empty line of a gold file
    means that the pair was not scored: it is left out.

    Raises InputError when a pair of files differs in length, or a score is not within 0 … 5.
    """
    rows: list[tuple[str, str, float]] = []
    bounds = []
    for name, texts, gold in zip(subsets, files[::2], files[1::2], strict=True):
        start, pairs, scores = len(rows), list(texts.cells(2)), gold.lines()
        parallel((texts, gold), (texts.lines(), scores))
        for line, ((_, cells), score) in enumerate(zip(pairs, scores, strict=True), start=1):
            if score:
                rows.append((form(cells[0]), form(cells[1]), number(f"{gold.place}:{line}", score, 0, 5)))
        bounds.append((name, start, len(rows)))
    return scored_pairs(rows, bounds)


def benchmark(files: Sequence[DataFile], form: TextForm) -> ScoredPairs:
    """The STS Benchmark: genre, file, year, id, score (0 … 5), two texts, and in the original sometimes sources."""
    rows = [
        (form(cells[5]), form(cells[6]), number(place, cells[4], 0, 5))
        for file in files
        for place, cells in file.cells(7)
    ]
    return scored_pairs(rows)


def sick(files: Sequence[DataFile], form: TextForm) -> ScoredPairs:
    """SICK-R: id, two texts, relatedness (1 … 5), class; a header line. Several files are read one after the other."""
    rows = [
        (form(cells[1]), form(cells[2]), number(place, cells[3], 1, 5))
        for file in files
        for place, cells in file.cells(5, header=True)
    ]
    return scored_pairs(rows)

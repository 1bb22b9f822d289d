"""Readers of SentEval's transfer and probing files: the toolkit's encodings, row order and class numbers.

Facts from the toolkit's readers (facebookresearch/SentEval, ``senteval/*.py``): texts are tokens split at white space;
the file that is read first has class 1 in the two-file tasks (SUBJ: ``objective``); blank lines are rows. The toolkit
then sorts rows by length before it cuts folds; here they stay in the files' order, sorting is the probe's.
"""

from collections.abc import Callable, Sequence

from eval.tasks.files import DataFile
from eval.tasks.rows import (
    LabelledPairs,
    LabelledTexts,
    ScoredPairs,
    index,
    labelled_pairs,
    labelled_texts,
    number,
    scored_pairs,
    tokens,
)
from hub.errors import InputError

BINARY = ("0", "1")
FINE = ("0", "1", "2", "3", "4")
TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SICK = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
SNLI = ("entailment", "neutral", "contradiction")
PARTS = {"train": "tr", "validation": "va", "test": "te"}


def two_classes(files: Sequence[DataFile]) -> LabelledTexts:
    """MR, CR, SUBJ, MPQA: one text a line, Latin-1; the first file's class is 1, and its rows come first."""
    rows = [(tokens(line), 1 - number) for number, file in enumerate(files) for line in file.lines("latin-1")]
    return labelled_texts(rows, BINARY)


def sst_binary(files: Sequence[DataFile]) -> LabelledTexts:
    """SST2: text, tab, class."""
    rows = [(tokens(cells[0]), index(place, cells[1], BINARY)) for place, cells in files[0].cells(2)]
    return labelled_texts(rows, BINARY)


def sst_fine(files: Sequence[DataFile]) -> LabelledTexts:
    """SST5: class, space, text."""
    rows = []
    for place, (line, *_) in files[0].cells(1):
        label, _, text = line.strip().partition(" ")
        rows.append((tokens(text), index(place, label, FINE)))
    return labelled_texts(rows, FINE)


def trec(files: Sequence[DataFile]) -> LabelledTexts:
    """TREC: ``CLASS:subclass text``, Latin-1; the six coarse classes."""
    rows = []
    for place, (line, *_) in files[0].cells(1, encoding="latin-1"):
        label, _, rest = line.strip().partition(":")
        rows.append((tokens(rest.partition(" ")[2]), index(place, label, TREC)))
    return labelled_texts(rows, TREC)


def mrpc(files: Sequence[DataFile]) -> LabelledPairs:
    """MRPC: class (1: a paraphrase), two ids, two texts; a header line behind a byte-order mark."""
    rows = [
        (tokens(cells[3]), tokens(cells[4]), index(place, cells[0], BINARY))
        for place, cells in files[0].cells(5, header=True)
    ]
    return labelled_pairs(rows, BINARY)


def sick_entailment(files: Sequence[DataFile]) -> LabelledPairs:
    """SICK-E: id, two texts, score, class; a header line."""
    rows = [
        (tokens(cells[1]), tokens(cells[2]), index(place, cells[4], SICK))
        for place, cells in files[0].cells(5, header=True)
    ]
    return labelled_pairs(rows, SICK)


def snli(files: Sequence[DataFile]) -> LabelledPairs:
    """SNLI: classes, first and second texts in three parallel files; the texts are read as Latin-1, as SentEval does.

    Raises InputError when the files have different numbers of lines.
    """
    labels, first, second = files[0].lines(), files[1].lines("latin-1"), files[2].lines("latin-1")
    parallel(files, (labels, first, second))
    rows = [
        (tokens(left), tokens(right), index(f"{files[0].place}:{number}", label, SNLI))
        for number, (label, left, right) in enumerate(zip(labels, first, second, strict=True), start=1)
    ]
    return labelled_pairs(rows, SNLI)


def probing(files: Sequence[DataFile], split: str) -> LabelledTexts:
    """A probing task: part, class, …, text. One file holds all parts; the classes are those of its train part, sorted
    as text (tree depth: ``10`` before ``5``).
    """
    rows = [(place, cells[0], cells[1], cells[-1]) for place, cells in files[0].cells(3)]
    classes = sorted({label for _, part, label, _ in rows if part == "tr"})
    for place, part, _, _ in rows:
        if part not in PARTS.values():
            raise InputError(place, f"unknown part {part!r}", allowed="tr, va, te", hint="restore the file")
    of_split = [(place, label, text) for place, part, label, text in rows if part == PARTS[split]]
    return labelled_texts([(tokens(text), index(place, label, classes)) for place, label, text in of_split], classes)


def parallel(files: Sequence[DataFile], lines: Sequence[Sequence[str]]) -> None:
    """Raises InputError when files that belong together have different numbers of lines."""
    for file, content in zip(files, lines, strict=True):
        if len(content) != len(lines[0]):
            problem = f"has {len(content)} lines, {files[0].place} has {len(lines[0])}"
            raise InputError(file.place, problem, hint="restore both files")


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

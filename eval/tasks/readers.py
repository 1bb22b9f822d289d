"""Readers of SentEval's transfer and probing files: the toolkit's encodings, row order and class numbers.

Facts from the toolkit's readers (facebookresearch/SentEval, ``senteval/*.py``): texts are tokens split at white space;
the file that is read first has class 1 in the two-file tasks (SUBJ: ``objective``); blank lines are rows. The toolkit
then sorts rows by length before it cuts folds; here they stay in the files' order, sorting is the probe's.
"""

from collections.abc import Callable, Sequence

from eval.tasks.rows import DataFile, Rows, Subset, index, number, tokens
from hub.errors import InputError

BINARY = ("0", "1")
FINE = ("0", "1", "2", "3", "4")
TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SICK = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
SNLI = ("entailment", "neutral", "contradiction")
PARTS = {"train": "tr", "validation": "va", "test": "te"}


TextForm = Callable[[str], str]


def two_classes(files: Sequence[DataFile]) -> Rows:
    """MR, CR, SUBJ, MPQA: one text a line, Latin-1; the first file's class is 1, and its rows come first."""
    rows = [(tokens(line), 1 - number) for number, file in enumerate(files) for line in file.lines("latin-1")]
    return Rows.of(rows, BINARY)


def table(
    files: Sequence[DataFile],
    columns: int,
    texts: Sequence[int],
    target: int,
    classes: Sequence[str] = (),
    span: tuple[float, float] = (0, 5),
    header: bool = False,
    form: TextForm = tokens,
) -> Rows:
    """Tab-separated files of at least so many ``columns``, one after the other.

    ``texts`` and ``target`` are the columns of the texts and of the class or, without ``classes``, of a score in
    ``span``. Raises InputError naming the line that is not in this form.
    """
    rows = [
        (
            *(form(cells[text]) for text in texts),
            index(place, cells[target], classes) if classes else number(place, cells[target], *span),
        )
        for file in files
        for place, cells in file.cells(columns, header=header)
    ]
    return Rows.of(rows, classes)


def label_first(files: Sequence[DataFile], classes: Sequence[str], encoding: str = "utf-8") -> Rows:
    """SST5 and TREC: the class, in TREC with a subclass behind a colon, a space and the text."""
    rows = []
    for place, (line, *_) in files[0].cells(1, encoding):
        label, _, text = line.strip().partition(" ")
        rows.append((tokens(text), index(place, label.partition(":")[0], classes)))
    return Rows.of(rows, classes)


def snli(files: Sequence[DataFile]) -> Rows:
    """SNLI: classes, first and second texts in three parallel files; the texts are read as Latin-1, as SentEval does.

    Raises InputError when the files have different numbers of lines.
    """
    lines = files[0].lines(), files[1].lines("latin-1"), files[2].lines("latin-1")
    parallel(files, lines)
    labels = [index(f"{files[0].place}:{number}", label, SNLI) for number, label in enumerate(lines[0], start=1)]
    return Rows.of(list(zip(map(tokens, lines[1]), map(tokens, lines[2]), labels, strict=True)), SNLI)


def probing(files: Sequence[DataFile], split: str) -> Rows:
    """A probing task: part, class, …, text. One file holds all parts; the classes are those of its train part, sorted
    as text (tree depth: ``10`` before ``5``).
    """
    found: dict[str, list[tuple[str, str, str]]] = {part: [] for part in PARTS.values()}
    for place, (part, label, *_, text) in files[0].cells(3):
        if part not in found:
            raise InputError(place, f"unknown part {part!r}", allowed="tr, va, te", hint="restore the file")
        found[part].append((place, label, text))
    classes = sorted({label for _, label, _ in found["tr"]})
    return Rows.of(
        [(tokens(text), index(place, label, classes)) for place, label, text in found[PARTS[split]]], classes
    )


def parallel(files: Sequence[DataFile], lines: Sequence[Sequence[str]]) -> None:
    """Raises InputError when files that belong together have different numbers of lines."""
    for file, content in zip(files, lines, strict=True):
        if len(content) != len(lines[0]):
            problem = f"has {len(content)} lines, {files[0].place} has {len(lines[0])}"
            raise InputError(file.place, problem, hint="restore both files")


def sts_year(files: Sequence[DataFile], subsets: Sequence[str], form: TextForm) -> Rows:
    """A year's subsets in the toolkit's order; ``files``: input and gold file of each. An empty line of a gold file
    means that the pair was not scored: it is left out.

    Raises InputError when a pair of files differs in length, or a score is not within 0 … 5.
    """
    rows: list[tuple[str, str, float]] = []
    bounds: list[Subset] = []
    for name, texts, gold in zip(subsets, files[::2], files[1::2], strict=True):
        start, pairs, scores = len(rows), list(texts.cells(2)), gold.lines()
        parallel((texts, gold), (texts.lines(), scores))
        for line, ((_, cells), score) in enumerate(zip(pairs, scores, strict=True), start=1):
            if score:
                rows.append((form(cells[0]), form(cells[1]), number(f"{gold.place}:{line}", score, 0, 5)))
        bounds.append((name, start, len(rows)))
    return Rows.of(rows, subsets=bounds)

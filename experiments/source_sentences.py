"""Draw sentences, or the STS Benchmark's pairs, that no evaluation set contains.

The sample of a file leaves out exact, normalised and near matches of STS12-16, the STS Benchmark
and SICK (by ``sts_dino.eval.audit.evaluation_sentences``). OUT.json beside the output counts them.
"""

import gzip
import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from sts_dino.generation.inputs.sources import read_file_rows
from sts_dino.hub.contract.shards import make_reading_error
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import READERS, kind_of
from sts_dino.release.value import read_human_pairs

logger = logging.getLogger(__name__)

EVALUATION_SETS = (*(f"sts{year}" for year in range(12, 17)), "stsb-tokenised", "sick-r-tokenised")
CHECKED_ROWS = 500  # rows that are looked up in the evaluation sets together
MIN_WORDS = 4  # a heading has fewer
MAX_WORDS = 40  # a run-on line has more
# A sentence has a lower-case letter of English, and no quotation mark, which would end a text
STATEMENT_PATTERN = re.compile(r'[^"\u201c\u201d]*[a-z][^"\u201c\u201d]*')
Row = tuple[str, ...]
FindKinds = Callable[[Sequence[str]], list[str | None]]


def main(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Sentences as `sts-dino write` reads them, or .gz"),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A .txt file, with --pairs a .jsonl file")
    ],
    columns: Annotated[
        list[str], typer.Option("--column", help="Column of a table; repeatable")
    ] = [],  # noqa: B006
    texts: Annotated[
        int, typer.Option("--texts", min=1, help="Number of sentences or pairs")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 42,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="FILE has the STS Benchmark's layout")
    ] = False,
    senteval: Annotated[
        Path | None, typer.Option("--senteval-data", metavar="DIR", help="SentEval's data")
    ] = None,
    without: Annotated[
        list[Path],
        typer.Option("--without", metavar="FILE", help="Leave out its lines; repeatable"),
    ] = [],  # noqa: B006
) -> None:
    """Draw source sentences, or human-annotated pairs, that no evaluation set contains.

    Examples:

      sts-dino experiment source-sentences captions.en.gz --texts 500 --out sentences.txt

      sts-dino experiment source-sentences wiki.txt --without sentences.txt --out unseen.txt
    """
    # Read the rows
    if out.suffix == ".json":
        raise InputError(f"--out {out}", "is the file of the counts", allowed=".txt or .jsonl")
    excluded = set[str]()
    for path in without:
        excluded.update(_read_lines(path))
    scores = dict[Row, float]()
    if pairs:
        human_pairs = read_human_pairs(file)
        rows: list[Row] = list(zip(human_pairs.firsts, human_pairs.seconds, strict=True))
        scores = dict(zip(rows, human_pairs.scores, strict=True))
    else:
        rows = [(sentence,) for sentence in read_sentences(file, columns)]
    rows = [row for row in rows if not excluded.intersection(row)]

    # Draw rows that are in no evaluation set
    find_kinds, splits = load_evaluation_check(senteval, scored_only=pairs)
    drawn, left_out = draw_rows(rows, texts, seed, find_kinds)

    # Write them, and the counts
    lines = []
    for row in drawn:
        line = row[0]
        if pairs:
            line = json.dumps({"sentence1": row[0], "sentence2": row[1], "score": scores[row]})
        lines.append(line)
    facts = {
        "file": file.name,
        "seed": seed,
        "without": len(excluded),
        "rows": len(drawn),
        "left_out": left_out,
        "checked": splits,
    }
    write_text(out.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    write_text(out, "\n".join(lines) + "\n")
    counts = f"{len(drawn):,} rows; left out: {left_out}"
    logger.info(f"wrote {out}, {counts}; checked: {', '.join(splits)}")


def read_sentences(file: Path, columns: Sequence[str]) -> list[str]:
    """Read the distinct sentences of a file, in order.

    A sentence has ``MIN_WORDS`` to ``MAX_WORDS`` words and the form of ``STATEMENT_PATTERN``.

    columns: those of a table to read; empty for other files. Raises InputError for a missing or
    damaged file, and for one without sentences.
    """
    if not file.is_file():
        hint = "--data names the folder that holds it (or STS_DINO_DATA)"
        raise InputError(file, "no such file", hint=hint)
    # A .gz file of another kind has a caption on each line, as Multi30k's train.1.en.gz.
    if file.suffix == ".gz" and kind_of(file) not in READERS:
        try:
            cells = gzip.decompress(file.read_bytes()).decode("utf-8").split("\n")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise make_reading_error(error, file) from error
    else:
        cells = list[str]()
        for row in read_file_rows(file, tuple(columns), str(file)):
            cells += row
    sentences = dict[str, None]()
    for cell in cells:
        text = cell.strip()
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS and STATEMENT_PATTERN.fullmatch(text):
            sentences[text] = None
    if not sentences:
        raise InputError(file, f"has no sentence of {MIN_WORDS} to {MAX_WORDS} words")
    return list(sentences)


def _read_lines(file: Path) -> list[str]:
    """Read the lines of a file of ``--without``. Raises InputError for a missing file."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"--without {file}", "no such file") from None


def load_evaluation_check(senteval: Path | None, scored_only: bool) -> tuple[FindKinds, list[str]]:
    """Return a function that finds evaluation sentences among texts, and the names of the splits.

    The function returns the kind of match of each text with an evaluation sentence; None without a
    match.

    Args:
        senteval: SentEval's data, with the sets ``EVALUATION_SETS``. None: the splits are the STS
            Benchmark's validation and test, which the repository ships.
        scored_only: whether to leave out the splits that no score comes from.

    Raises the errors of ``read_evaluation_sets``.
    """
    from sts_dino.eval.audit.decontaminate import DEFAULT_DROPPED_KINDS, SCORED_SPLITS
    from sts_dino.eval.audit.evaluation_sentences import SentenceIndex, read_evaluation_sets

    names = EVALUATION_SETS if senteval else ()
    sets = list(read_evaluation_sets(senteval, None, names).sets)
    if scored_only:
        sets = [evaluation for evaluation in sets if evaluation.split in SCORED_SPLITS]
    sentences = SentenceIndex(sets)

    def find_kinds(texts: Sequence[str]) -> list[str | None]:
        """Return the strongest kind of match that leaves a text out, None without, (n,)."""
        kinds = list[str | None]()
        for matches in sentences.find_matches(texts):
            dropped = [match.kind for match in matches if match.kind in DEFAULT_DROPPED_KINDS]
            kinds.append(dropped[0] if dropped else None)
        return kinds

    return find_kinds, [evaluation.name for evaluation in sets]


def draw_rows(
    rows: Sequence[Row], limit: int, seed: int, find_kinds: FindKinds
) -> tuple[list[Row], dict[str, int]]:
    """Draw the first ``limit`` rows without a match, in an order shuffled by ``seed``.

    Return them, and kind of match → number of rows that were left out. There may be fewer rows.
    """
    order = list(rows)
    Random(seed).shuffle(order)
    drawn = list[Row]()
    left_out = Counter[str]()
    for start in range(0, len(order), CHECKED_ROWS):
        batch = order[start : start + CHECKED_ROWS]
        for row, kind in zip(batch, _find_row_kinds(batch, find_kinds), strict=True):
            if len(drawn) == limit:
                return drawn, dict(left_out)
            if kind is None:
                drawn.append(row)
            else:
                left_out[kind] += 1
    return drawn, dict(left_out)


def _find_row_kinds(rows: Sequence[Row], find_kinds: FindKinds) -> list[str | None]:
    """Return the kind of match of each row's first sentence that has one; None without."""
    kinds: list[str | None] = [None] * len(rows)
    for sentences in zip(*rows, strict=True):
        for index, kind in enumerate(find_kinds(sentences)):
            kinds[index] = kinds[index] or kind
    return kinds

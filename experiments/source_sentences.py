"""Draw sentences, or the STS Benchmark's pairs, that no evaluation set contains.

The sample of a file leaves out exact, normalised and near matches of STS12-16, the STS Benchmark and SICK (by
``eval.audit.evaluation_sentences``). OUT.json beside the output counts them.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from generation.inputs.sources import file_rows
from hub import cli
from hub.durable import write_text
from hub.errors import InputError
from hub.text_files import READERS, kind_of
from release.value import read_people

CHECKED = (*(f"sts{year}" for year in range(12, 17)), "stsb-tokenised", "sick-r-tokenised")
BATCH = 500
FEWEST, MOST = 4, 40  # words: a heading has fewer, a run-on line more
STATEMENT = re.compile(r'[^"\u201c\u201d]*[a-z][^"\u201c\u201d]*')  # a quotation mark would end a text
Item = tuple[str, ...]
Kinds = Callable[[Sequence[str]], list[str | None]]


def main(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Sentences as `sts-dino write` reads them, or .gz")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .txt file, with --pairs a .jsonl file")],
    columns: Annotated[list[str], typer.Option("--column", help="Column of a table; repeatable")] = [],  # noqa: B006
    texts: Annotated[int, typer.Option("--texts", min=1, help="Number of sentences or pairs")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 42,
    pairs: Annotated[bool, typer.Option("--pairs", help="FILE has the STS Benchmark's layout")] = False,
    senteval: Annotated[Path | None, typer.Option("--senteval-data", metavar="DIR", help="SentEval's data")] = None,
    without: Annotated[
        list[Path], typer.Option("--without", metavar="FILE", help="Leave out its lines; repeatable")
    ] = [],  # noqa: B006
) -> None:
    """Draw source sentences, or human-annotated pairs, that no evaluation set contains.

    Examples:

      sts-dino experiment source-sentences data/captions/train.1.en.gz --texts 500 --out sentences.txt

      sts-dino experiment source-sentences wikipedia.txt --texts 500 --without sentences.txt --out unseen.txt
    """
    unwanted = {line for place in without for line in _lines(place)}
    scores = dict[Item, float]()
    if pairs:
        scored = read_people(file)
        rows: list[Item] = list(zip(scored.firsts, scored.seconds, strict=True))
        scores = dict(zip(rows, scored.scores, strict=True))
    else:
        rows = [(text,) for text in sentences(file, columns)]
    rows = [row for row in rows if not unwanted.intersection(row)]
    kinds, checked = evaluation_check(senteval, scored_only=pairs)
    found, left_out = drawn(rows, texts, seed, kinds)
    lines = [
        json.dumps({"sentence1": row[0], "sentence2": row[1], "score": scores[row]}) if pairs else row[0]
        for row in found
    ]
    facts: dict[str, object] = {"file": file.name, "seed": seed, "without": len(unwanted), "rows": len(found)}
    facts |= {"left_out": left_out, "checked": checked}
    write_text(out.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    write_text(out, "\n".join(lines) + "\n")
    cli.say(f"wrote {out}, {len(found):,} rows; left out: {left_out}; checked: {', '.join(checked)}")


def sentences(file: Path, columns: Sequence[str]) -> list[str]:
    """The distinct sentences of a file in its order: no headings, no run-on lines, no quotation marks.

    Raises InputError for a missing file or one without sentences.
    """
    if not file.is_file():
        raise InputError(file, "no such file", hint="--data names the folder that holds it (or STS_DINO_DATA)")
    if file.suffix == ".gz" and kind_of(file) not in READERS:  # Multi30k's captions: train.1.en.gz, one a line
        cells = gzip.decompress(file.read_bytes()).decode("utf-8").split("\n")
    else:
        cells = [cell for row in file_rows(file, tuple(columns), str(file)) for cell in row]
    texts = [cell.strip() for cell in cells]
    fitting = [text for text in texts if FEWEST <= len(text.split()) <= MOST and STATEMENT.fullmatch(text)]
    if not fitting:
        raise InputError(file, f"has no sentence of {FEWEST} to {MOST} words")
    return list(dict.fromkeys(fitting))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"--without {file}", "no such file") from None


def evaluation_check(senteval: Path | None, scored_only: bool) -> tuple[Kinds, list[str]]:
    """A function that returns for texts how each matches an evaluation sentence (None: no match), and its splits.

    Without SentEval's directory the splits are the STS Benchmark's validation and test, which the repository ships.
    """
    from eval.audit.evaluation_sentences import Sentences, read_evaluation_sets
    from eval.audit.ledger import DROPPED, SCORED

    evaluation = read_evaluation_sets(senteval, None, CHECKED if senteval else ())
    sets = [one for one in evaluation.sets if not scored_only or one.split in SCORED]
    known = Sentences(sets)

    def kinds(texts: Sequence[str]) -> list[str | None]:
        matches = known.matches(texts)
        return [next((match.kind for match in found if match.kind in DROPPED), None) for found in matches]

    return kinds, [one.place for one in sets]


def drawn(rows: Sequence[Item], wanted: int, seed: int, kinds: Kinds) -> tuple[list[Item], dict[str, int]]:
    """The first ``wanted`` rows without a match, in an order shuffled by ``seed``; rows left out, by kind of match."""
    order, found, left_out = list(rows), list[Item](), Counter[str]()
    Random(seed).shuffle(order)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        sides = [kinds(side) for side in zip(*batch, strict=True)]
        for row, matches in zip(batch, zip(*sides, strict=True), strict=True):
            if len(found) == wanted:
                return found, dict(left_out)
            if kind := next(filter(None, matches), None):
                left_out[kind] += 1
            else:
                found.append(row)
    return found, dict(left_out)

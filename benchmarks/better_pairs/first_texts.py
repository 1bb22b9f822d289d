"""Draw sentences that stand in no evaluation data: python -m benchmarks.better_pairs.first_texts FILE --out OUT.txt

A sample, drawn by a seed, of the sentences of a file, without those of STS12-16, the STS Benchmark and SICK: exact,
normalised or near matches of any split (``eval.decontaminate``'s). OUT.json beside it counts what was passed over.
With ``--people`` FILE is the STS Benchmark's train part, and OUT.jsonl has its pairs in place of sentences: those
neither of whose sentences stands in what is scored.
"""

import gzip
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from generation.inputs.file_rows import file_rows
from hub.cli import new_app, run, say
from hub.contract.shards import write_text
from hub.errors import InputError
from release.value_arms import read_people

CHECKED = (*(f"sts{year}" for year in range(12, 17)), "stsb-tokenised", "sick-r-tokenised")
BATCH = 500
WORDS = (4, 40)  # a heading has fewer, a run-on line more
STATEMENT = re.compile(r'[^"\u201c\u201d]*[a-z][^"\u201c\u201d]*')  # no quotation mark, which would end a text
Item = tuple[str, ...]
Kinds = Callable[[Sequence[str]], list[str | None]]

app = new_app(__doc__)


@app.command()
def main(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Sentences as generation.run reads them, or .gz of it")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .txt file, with --people a .jsonl file")],
    columns: Annotated[list[str], typer.Option("--column", help="Of a table; repeatable")] = [],  # noqa: B006
    texts: Annotated[int, typer.Option("--texts", min=1, help="So many, if there are")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 42,
    people: Annotated[bool, typer.Option("--people", help="FILE holds pairs with people's scores")] = False,
    senteval: Annotated[Path | None, typer.Option("--senteval-data", metavar="DIR", help="SentEval's")] = None,
    without: Annotated[
        list[Path], typer.Option("--without", metavar="FILE", help="Pass over its lines; repeatable")
    ] = [],  # noqa: B006
) -> None:
    """Draw first texts, or people's pairs, that stand in no evaluation data.

    Examples:

      python -m benchmarks.better_pairs.first_texts data/captions/train.1.en.gz --texts 500 --out x1.txt

      python -m benchmarks.better_pairs.first_texts wikipedia.txt --texts 500 --without x1.txt --out unseen.txt
    """
    pairs = read_people(file) if people else None
    unwanted = {line for place in without for line in lines_of(place)}
    if pairs:
        rows: list[Item] = list(zip(pairs.firsts, pairs.seconds, strict=True))
        scores = dict(zip(rows, pairs.scores, strict=True))
    else:
        rows, scores = [(text,) for text in sentences(file, columns)], {}
    rows = [row for row in rows if not unwanted.intersection(row)]
    kinds, places = evaluation_check(senteval, scored_only=people)
    found, passed = drawn(rows, texts, seed, kinds)
    if people:
        lines = [json.dumps({"sentence1": row[0], "sentence2": row[1], "score": scores[row]}) for row in found]
    else:
        lines = [text for (text,) in found]
    told = {
        "file": file.name,
        "seed": seed,
        "without": len(unwanted),
        "rows": len(found),
        "passed_over": passed,
        "checked": places,
    }
    write_text(out.with_suffix(".json"), json.dumps(told, indent=1) + "\n")
    write_text(out, "\n".join(lines) + "\n")
    say(f"written: {out}, {len(found):,} rows; passed over: {passed}; checked: {', '.join(places)}")


def sentences(file: Path, columns: Sequence[str]) -> list[str]:
    """Every sentence of a file once, in its order: no headings, no run-on lines, none with quotation marks.

    Raises InputError for a file that is not there or has none.
    """
    if not file.is_file():
        raise InputError(file, "no such file", hint="--data names the folder that holds it (or STS_DINO_DATA)")
    with tempfile.TemporaryDirectory() as folder:
        plain = file
        if file.suffix == ".gz":
            suffix = file.with_suffix("").suffix
            plain = Path(folder) / f"texts{suffix if suffix in ('.tsv', '.csv', '.jsonl') else '.txt'}"
            with gzip.open(file) as packed, plain.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        texts = [cell.strip() for cells in file_rows(plain, tuple(columns), str(file)) for cell in cells]
    few, many = WORDS
    fitting = [text for text in texts if few <= len(text.split()) <= many and STATEMENT.fullmatch(text)]
    if not fitting:
        raise InputError(file, f"has no sentence of {few} to {many} words")
    return list(dict.fromkeys(fitting))


def lines_of(file: Path) -> list[str]:
    """The lines of a file. Raises InputError when it is not there."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"--without {file}", "no such file") from None


def evaluation_check(senteval: Path | None, scored_only: bool) -> tuple[Kinds, list[str]]:
    """What says of texts how they match evaluation sentences (None: not at all), and the splits that it knows.

    Without SentEval's directory these are the STS Benchmark's validation and test, which the repository has.
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
    """The first ``wanted`` rows, in an order that ``seed`` shuffles, that match nothing; those passed over, by kind."""
    order, found, passed = list(rows), list[Item](), Counter[str]()
    Random(seed).shuffle(order)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        sides = [kinds(side) for side in zip(*batch, strict=True)]
        for row, matches in zip(batch, zip(*sides, strict=True), strict=True):
            if len(found) == wanted:
                return found, dict(passed)
            if kind := next(filter(None, matches), None):
                passed[kind] += 1
            else:
                found.append(row)
    return found, dict(passed)


if __name__ == "__main__":
    run(app)

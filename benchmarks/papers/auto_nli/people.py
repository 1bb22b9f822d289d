"""Premises with an entailed and a contradicting text of people: python -m benchmarks.papers.auto_nli.people PLACE

PLACE is the folder of Auto-NLI's few-shot prompts, whose examples are of SNLI and MultiNLI, or one part of SNLI in
SentEval's layout (``SNLI/dev`` stands for its files labels.dev, s1.dev and s2.dev). A FILE that ends in .jsonl is for
few-shot examples; any other is a run directory of triplets, to train on.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.better_pairs.first_texts import drawn, evaluation_check
from hub import cli
from hub.contract.schema import ROW_SCHEMAS
from hub.durable import write_text
from hub.errors import InputError
from release.value_arms import write_pairs

LABELS = ("entailment", "contradiction")
COLUMNS = ("premise", *LABELS)
# the premise and the text of an example; either may hold quotation marks
PROMPT = re.compile(r'Generate one sentence that logically \w+ "(.*)" in the form of .*? Answer: "(.*?)"?\.?')
Triplet = tuple[str, str, str]
LabelledPair = tuple[str, str, str]  # premise, hypothesis, label

app = cli.new_app(__doc__)


@app.command()
def main(
    place: Annotated[Path, typer.Argument(metavar="PLACE", help="Few-shot prompts, or SNLI/dev, SNLI/test")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .jsonl file, or a run directory of triplets")],
    rows: Annotated[
        int | None, typer.Option("--rows", min=2, help="So many, drawn by the seed; all without it")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 42,
    words: Annotated[
        int | None, typer.Option("--words", min=2, help="Premise and longer text together have at most so many")
    ] = None,
    senteval: Annotated[
        Path | None, typer.Option("--senteval-data", metavar="DIR", help="Pass over texts that evaluation sets hold")
    ] = None,
) -> None:
    """Write people's triplets as few-shot examples or as pairs to train on.

    Examples:

      python -m benchmarks.papers.auto_nli.people DIR/auto_nli_fewshot --out examples.jsonl

      python -m benchmarks.papers.auto_nli.people DIR/senteval/downstream/SNLI/dev --rows 500 --out artifacts/manual-nli
    """
    found = triplets(labelled_pairs(place))
    if words is not None:
        found = [row for row in found if len(row[0].split()) + max(len(text.split()) for text in row[1:]) <= words]
    if rows is not None or senteval is not None:
        kinds, _ = evaluation_check(senteval, scored_only=False)
        found, passed = drawn(found, rows or len(found), seed, kinds)  # type: ignore[assignment]
        cli.say(f"passed over: {passed}")
    if out.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) for row in found]
        write_text(out, "\n".join(lines) + "\n")
    else:
        columns = tuple(ROW_SCHEMAS["triplet"].columns)
        write_pairs(out.parent, [dict(zip(columns, row, strict=True)) for row in found]).rename(out)
    cli.say(f"written: {out}, {len(found):,} premises")


def labelled_pairs(place: Path) -> list[LabelledPair]:
    """People's pairs with their labels, neutral ones included where there are. Raises InputError for other files."""
    found = list(_of_prompts(place) if place.is_dir() else _of_snli(place))
    if not found:
        raise InputError(place, "holds no labelled pairs", allowed="a folder of few-shot prompts, SNLI/dev, SNLI/test")
    return found


def _of_prompts(folder: Path) -> Iterator[LabelledPair]:
    for path in sorted(folder.glob("*/*/*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := PROMPT.fullmatch(line.strip()):
                yield match[1].strip(), match[2].strip(), path.stem


def _of_snli(place: Path) -> Iterator[LabelledPair]:
    try:
        columns = [
            place.with_name(f"{name}.{place.name}").read_text(encoding="utf-8").splitlines()
            for name in ("s1", "s2", "labels")
        ]
    except FileNotFoundError as error:
        raise InputError(place, f"has no file {Path(error.filename).name}") from error
    for premise, hypothesis, label in zip(*columns, strict=True):
        yield premise.strip(), hypothesis.strip(), label.strip()


def triplets(pairs: list[LabelledPair]) -> list[Triplet]:
    """Each premise that has both labels once, with the first text of each; texts that repeat it are passed over."""
    of_premise = dict[str, dict[str, str]]()
    for premise, hypothesis, label in pairs:
        if label in LABELS and hypothesis and hypothesis != premise:
            of_premise.setdefault(premise, {}).setdefault(label, hypothesis)
    return [
        (premise, found["entailment"], found["contradiction"])
        for premise, found in of_premise.items()
        if _has_both(found)
    ]


def _has_both(found: Mapping[str, str]) -> bool:
    return all(label in found for label in LABELS)


if __name__ == "__main__":
    cli.run(app)

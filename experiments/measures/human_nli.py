"""Human-annotated NLI: Auto-NLI's few-shot prompts or SNLI, as few-shot examples or as triplets to train on.

PLACE is the folder of Auto-NLI's few-shot prompts (examples of SNLI and MultiNLI), or a part of SNLI in SentEval's
layout: ``SNLI/dev`` names the files labels.dev, s1.dev and s2.dev.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from experiments.source_sentences import drawn, evaluation_check
from hub import cli
from hub.contract.schema import ROW_SCHEMAS
from hub.durable import write_text
from hub.errors import InputError
from release.value import write_pairs

LABELS = ("entailment", "contradiction")
COLUMNS = ("premise", *LABELS)
# premise and text of an example; either may contain quotation marks
PROMPT = re.compile(r'Generate one sentence that logically \w+ "(.*)" in the form of .*? Answer: "(.*?)"?\.?')
LabelledPair = tuple[str, str, str]  # premise, hypothesis, label

app = cli.new_app(__doc__)


@app.command()
def main(
    place: Annotated[Path, typer.Argument(metavar="PLACE", help="Few-shot prompts, or SNLI/dev, SNLI/test")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .jsonl file, or a run directory of triplets")],
    rows: Annotated[int | None, typer.Option("--rows", min=2, help="Number of triplets [default: all]")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 42,
    words: Annotated[int | None, typer.Option("--words", min=2, help="Most words of premise and longer text")] = None,
    senteval: Annotated[
        Path | None, typer.Option("--senteval-data", metavar="DIR", help="Leave out evaluation sentences")
    ] = None,
) -> None:
    """Write human-annotated triplets as few-shot examples or as training pairs.

    Examples:

      sts-dino experiment human-nli DIR/auto_nli_fewshot --out examples.jsonl

      sts-dino experiment human-nli DIR/senteval/downstream/SNLI/dev --rows 500 --out artifacts/manual-nli
    """
    found = triplets(labelled_pairs(place))
    if words is not None:
        found = [row for row in found if len(row[0].split()) + max(len(text.split()) for text in row[1:]) <= words]
    if rows is not None or senteval is not None:
        kinds, _ = evaluation_check(senteval, scored_only=False)
        found, left_out = drawn(found, rows or len(found), seed, kinds)  # type: ignore[assignment]
        cli.say(f"left out: {left_out}")
    if out.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) for row in found]
        write_text(out, "\n".join(lines) + "\n")
    else:
        columns = tuple(ROW_SCHEMAS["triplet"].columns)
        write_pairs(out.parent, [dict(zip(columns, row, strict=True)) for row in found]).rename(out)
    cli.say(f"wrote {out}, {len(found):,} premises")


def labelled_pairs(place: Path) -> list[LabelledPair]:
    """Human-annotated pairs with their labels, neutral ones included. Raises InputError for other files."""
    found = list(_of_prompts(place) if place.is_dir() else _of_snli(place))
    if not found:
        raise InputError(place, "has no labelled pairs", allowed="a folder of few-shot prompts, SNLI/dev, SNLI/test")
    return found


def _of_prompts(folder: Path) -> Iterator[LabelledPair]:
    for path in sorted(folder.glob("*/*/*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := PROMPT.fullmatch(line.strip()):
                yield match[1].strip(), match[2].strip(), path.stem


def _of_snli(place: Path) -> Iterator[LabelledPair]:
    files = [place.with_name(f"{name}.{place.name}") for name in ("s1", "s2", "labels")]
    try:
        columns = [file.read_text(encoding="utf-8").splitlines() for file in files]
    except FileNotFoundError as error:
        raise InputError(place, f"has no file {Path(error.filename).name}") from error
    for premise, hypothesis, label in zip(*columns, strict=True):
        yield premise.strip(), hypothesis.strip(), label.strip()


def triplets(pairs: list[LabelledPair]) -> list[tuple[str, str, str]]:
    """(premise, entailed, contradicting text) of every premise with both; of several texts of a label the first one."""
    of_premise = dict[str, dict[str, str]]()
    for premise, hypothesis, label in pairs:
        if label in LABELS and hypothesis and hypothesis != premise:
            of_premise.setdefault(premise, {}).setdefault(label, hypothesis)
    both = {premise: found for premise, found in of_premise.items() if found.keys() == set(LABELS)}
    return [(premise, found["entailment"], found["contradiction"]) for premise, found in both.items()]

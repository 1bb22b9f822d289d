"""How often judges agree with labels that were asked for: python -m benchmarks.papers.auto_nli.label_agreement

After Auto-NLI's table 1, with figure 2 (lengths of hypotheses) and tables 3 and 4 (premises with their hypotheses). Of
each run every hypothesis is judged: by a small classifier (``judge``), by the language model itself (is it likelier
under its own label's prompt?) and by its cosine to the premise. Intervals are over premises and example sets.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.papers.auto_nli.judge import Hypothesis, Judge, Told, trained_judge
from benchmarks.papers.auto_nli.pages import length_plot, side_by_side
from benchmarks.papers.auto_nli.people import LABELS, labelled_pairs
from benchmarks.papers.result import Difference, Measured
from benchmarks.papers.training_data import finished_rows
from eval.audit.text_forms import words
from eval.compare.seeds import drawn_seeds, over_seeds
from hub import cli
from hub.contract.measured import write_json
from hub.contract.schema import base_config
from hub.training_value import Estimate

PEOPLE = "Manual NLI dataset"  # the paper's name of that row
COLUMNS = ("premise", "hypothesis", "target", "source_id", "example_set", "label_probability")
SAMPLES, SEED = 1000, 42
Resampled = tuple[float, NDArray[np.float64]]  # a number and that of every resample

app = cli.new_app(__doc__)


@app.command()
def main(
    runs: Annotated[list[str], typer.Argument(metavar="NAME=RUN_DIR...", help="Finished datasets of the form nli")],
    people: Annotated[Path, typer.Option("--people", metavar="DIR", help="Auto-NLI's few-shot prompts")],
    snli: Annotated[Path, typer.Option("--snli", metavar="DIR", help="SNLI in SentEval's layout")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
    shown: Annotated[int, typer.Option("--shown", min=1, help="So many premises of the tables 3 and 4")] = 5,
) -> None:
    """Judge the hypotheses of runs and of people, and compare each run with the one before.

    Examples:

      python -m benchmarks.papers.auto_nli.label_agreement 0-shot=RUN 5-shot=RUN --people DIR --snli DIR --out x.json
    """
    named = dict(run.split("=", 1) for run in runs)
    texts = {name: written(Path(place)) for name, place in named.items()} | {PEOPLE: of_people(people)}
    judge, accuracy = trained_judge(snli)
    told = {name: judged(judge, found) for name, found in texts.items()}
    write_json(out, measured(texts, told, (accuracy, neutral(texts, told)), shown))
    cli.say(f"written: {out}, {sum(map(len, texts.values())):,} hypotheses")


def written(directory: Path) -> list[Hypothesis]:
    """The kept hypotheses of a run. Raises InputError for one of another form, or without verification."""
    hint = "a run of the form nli with few_shot and verification has them"
    rows = finished_rows(directory, COLUMNS, hint, lambda config: base_config(config) == "pair-class")
    return [Hypothesis(*row) for row in rows]


def of_people(folder: Path) -> list[Hypothesis]:
    """People's pairs of both labels, each once; a premise is its own source."""
    pairs = [pair for pair in dict.fromkeys(labelled_pairs(folder)) if pair[2] in LABELS]
    return [Hypothesis(premise, text, label, premise, 0) for premise, text, label in pairs]


def judged(judge: Judge, texts: Sequence[Hypothesis]) -> list[Told]:
    """What the classifier and the cosine say of each."""
    pairs = [one.pair for one in texts]
    return [Told(*found) for found in zip(judge.classes(pairs), judge.cosines(pairs), strict=True)]


def columns(texts: Sequence[Hypothesis], told: Sequence[Told]) -> dict[str, list[float | None]]:
    """What is measured of each hypothesis x 100, or words; None: not measured."""
    return {
        "{}": [100.0 * (found.name == one.label) for one, found in zip(texts, told, strict=True)],
        "{}, by the LM itself": [None if one.own is None else 100.0 * (one.own > 0.5) for one in texts],
        "{}, cosine": [100.0 * found.cosine for found in told],
        "{}, words": [float(len(words(one.text))) for one in texts],
    }


def resampled(
    texts: Sequence[Hypothesis], values: Sequence[float | None], label: str
) -> tuple[float, NDArray[np.float64]]:
    """The mean over example sets and premises, and the same of 1,000 resamples.

    Premises are drawn by their place in the order of their ids, so runs on the same premises are paired.
    """
    chosen = [
        (one, value) for one, value in zip(texts, values, strict=True) if one.label == label and value is not None
    ]
    sources = {source: place for place, source in enumerate(sorted({one.source for one in texts}))}
    sets = sorted({one.example_set for one, _ in chosen})
    table = np.full((len(sets), len(sources)), np.nan)
    for one, value in chosen:
        table[sets.index(one.example_set), sources[one.source]] = value
    drawn = np.random.default_rng(SEED).integers(len(sources), size=(SAMPLES, len(sources)))
    samples = np.stack([np.nanmean(row[drawn], axis=1) for row in table])
    return float(np.nanmean(table, axis=1).mean()), over_seeds(samples, drawn_seeds(len(sets), SAMPLES, SEED + 1))


def estimate(score: float, samples: NDArray[np.float64]) -> Estimate:
    """A number with its 95 % interval."""
    low, high = np.percentile(samples, [2.5, 97.5])
    return Estimate(score=score, low=float(low), high=float(high))


def measured(
    texts: Mapping[str, Sequence[Hypothesis]], told: Mapping[str, Sequence[Told]], notes: tuple[str, ...], shown: int
) -> Measured:
    """The rows of runs and of people, each run against the one before, the pages and the plot."""
    rows, found = dict[str, dict[str, Estimate]](), dict[tuple[str, str], Resampled]()
    for name in texts:
        rows[name] = {}
        for template, values in columns(texts[name], told[name]).items():
            for label in LABELS if any(value is not None for value in values) else ():
                column = template.format(label.capitalize())
                found[name, column] = resampled(texts[name], values, label)
                rows[name][column] = estimate(*found[name, column])
    differences = []
    runs = [name for name in texts if name != PEOPLE]
    pairs = [*pairwise([*runs, *(name for name in texts if name == PEOPLE)]), (runs[0], runs[-1])]
    for less, more in dict.fromkeys(pairs):
        for column in rows[less].keys() & rows[more].keys():
            a, b = found[more, column], found[less, column]
            moved = estimate(a[0] - b[0], a[1] - b[1])
            differences.append(Difference(better=more, than=less, column=column, difference=moved))
    return Measured(
        rows=rows,
        differences=tuple(sorted(differences, key=lambda one: (one.column, one.better, one.than))),
        notes=notes,
        pages=tuple(side_by_side(texts, told, runs[0], runs[-1], shown)),
        plots={"auto-nli-lengths": length_plot({name: [one.text for one in of] for name, of in texts.items()})},
    )


def neutral(texts: Mapping[str, Sequence[Hypothesis]], told: Mapping[str, Sequence[Told]]) -> str:
    """How often the classifier says neutral of what was written as entailed, in a sentence."""
    parts = []
    for name in texts:
        of = [found.name for one, found in zip(texts[name], told[name], strict=True) if one.label == LABELS[0]]
        parts.append(f"{of.count('neutral') / len(of):.0%} ({name})")
    return f"Of the hypotheses for entailment it calls neutral: {', '.join(parts)}."


if __name__ == "__main__":
    cli.run(app)

"""Label agreement of generated NLI pairs: Auto-NLI's table 1 with lengths, and tables 3 and 4 (examples).

Each hypothesis has three judges: a small classifier, the language model itself (is the text likelier under its own
label's prompt?), and its cosine to the premise. The classifier is a network on all-MiniLM-L6-v2's embeddings (features
of Conneau et al. 2017), trained on SNLI's development part. It is far weaker than the paper's judge, so its accuracy on
human-annotated pairs is reported beside its answers. Intervals are over premises and example sets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from experiments.measures.human_nli import LABELS, LabelledPair, labelled_pairs
from experiments.result import Difference, Measured
from experiments.variants import finished_rows
from hub import cli
from hub.contract.measured import Estimate, write_json
from hub.contract.schema import base_config
from hub.untrusted import Markdown, sample, table

HUMAN = "Manual NLI dataset"  # the paper's name of that row
COLUMNS = ("premise", "hypothesis", "target", "source_id", "example_set", "label_probability")
SAMPLES, SEED, SHOWN = 1000, 42, 5  # SHOWN: premises of the tables 3 and 4
HIDDEN, TRAINED, TESTED = 256, 6000, 2000  # units; pairs of SNLI: embedding them dominates the cost
Embed = Callable[[Sequence[str]], NDArray[np.float32]]
Resampled = tuple[float, NDArray[np.float64]]  # a number and its value in every resample

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis; ``own``: the share of its own label's prompt in the likelihood of the two labels' prompts."""

    premise: str
    text: str
    label: str
    source: str
    example_set: int
    own: float | None = None

    @property
    def pair(self) -> LabelledPair:
        """The pair with its label."""
        return self.premise, self.text, self.label


@dataclass(frozen=True)
class Judged:
    """The classifier's class of a hypothesis, and its cosine to the premise."""

    name: str
    cosine: float


@app.command()
def main(
    runs: Annotated[list[str], typer.Argument(metavar="NAME=RUN_DIR...", help="Finished NLI datasets")],
    human: Annotated[Path, typer.Option("--human", metavar="DIR", help="Auto-NLI's few-shot prompts")],
    snli: Annotated[Path, typer.Option("--snli", metavar="DIR", help="SNLI in SentEval's layout")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
) -> None:
    """Judge the hypotheses of runs and of human annotators, and compare each run with the one before.

    Examples:

      sts-dino experiment auto-nli-agreement 0-shot=RUN 5-shot=RUN --human DIR --snli DIR --out agreement.json
    """
    named = dict(run.split("=", 1) for run in runs)
    texts = {name: generated(Path(place)) for name, place in named.items()} | {HUMAN: human_annotated(human)}
    judge = Judge().train(labelled_pairs(snli / "dev")[:TRAINED])
    share = judge.accuracy(labelled_pairs(snli / "test")[:TESTED])
    note = f"The classifier labels {share:.1%} of SNLI's first {TESTED:,} test pairs as annotators do (three labels)."
    found = {name: judge.judged([one.pair for one in rows]) for name, rows in texts.items()}
    write_json(out, measured(texts, found, (note,)))
    cli.say(f"wrote {out}, {sum(map(len, texts.values())):,} hypotheses")


def generated(directory: Path) -> list[Hypothesis]:
    """The kept hypotheses of a run. Raises InputError for another schema, or without verification."""
    hint = "an NLI run with few_shot and verification has them"
    rows = finished_rows(directory, COLUMNS, hint, lambda config: base_config(config) == "pair-class")
    return [Hypothesis(*row) for row in rows]


def human_annotated(folder: Path) -> list[Hypothesis]:
    """Human-annotated pairs of both labels, each once; a premise is its own source."""
    pairs = [pair for pair in dict.fromkeys(labelled_pairs(folder)) if pair[2] in LABELS]
    return [Hypothesis(premise, text, label, premise, 0) for premise, text, label in pairs]


def unit_embeddings(texts: Sequence[str]) -> NDArray[np.float32]:
    """all-MiniLM-L6-v2's embeddings of texts, of length 1."""
    from experiments.baselines import minilm

    found = np.asarray(minilm(texts), dtype=np.float32)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)


class Judge:
    """Classes and cosines of pairs; each text is embedded once. ``embed``: texts to unit vectors."""

    def __init__(self, embed: Embed = unit_embeddings):
        from sklearn.neural_network import MLPClassifier

        self._embed, self._known = embed, dict[str, NDArray[np.float32]]()
        self._model = MLPClassifier((HIDDEN,), early_stopping=True, random_state=SEED)

    def train(self, pairs: Sequence[LabelledPair]) -> "Judge":
        """Fit to human-annotated pairs; a held-out tenth decides when to stop."""
        self._model.fit(self._features(*self._sides(pairs)), [label for *_, label in pairs])
        return self

    def judged(self, pairs: Sequence[LabelledPair]) -> list[Judged]:
        """The likeliest class and the cosine of every pair; its label is not read."""
        if not pairs:
            return []
        first, second = self._sides(pairs)
        classes, cosines = self._model.predict(self._features(first, second)), np.einsum("ij,ij->i", first, second)
        return [Judged(str(name), float(value)) for name, value in zip(classes, cosines, strict=True)]

    def accuracy(self, pairs: Sequence[LabelledPair]) -> float:
        """The share of pairs whose class is their label."""
        return float(np.mean([found.name == pair[2] for found, pair in zip(self.judged(pairs), pairs, strict=True)]))

    def _sides(self, pairs: Sequence[LabelledPair]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        new = [text for text in dict.fromkeys(text for pair in pairs for text in pair[:2]) if text not in self._known]
        new.sort(key=len)  # little padding
        if new:
            self._known.update(zip(new, self._embed(new), strict=True))
        first, second = (np.stack([self._known[pair[side]] for pair in pairs]) for side in (0, 1))
        return first, second

    def _features(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.hstack([first, second, np.abs(first - second), first * second])


def columns(texts: Sequence[Hypothesis], judged: Sequence[Judged]) -> dict[str, list[float | None]]:
    """Column → value of each hypothesis x 100, or words; None: not measured."""
    return {
        "{}": [100.0 * (found.name == one.label) for one, found in zip(texts, judged, strict=True)],
        "{}, by the LM itself": [None if one.own is None else 100.0 * (one.own > 0.5) for one in texts],
        "{}, cosine": [100.0 * found.cosine for found in judged],
        "{}, words": [float(_words(one.text)) for one in texts],
    }


def _words(text: str) -> int:
    from hub.word_overlap import words

    return len(words(text))


def resampled(texts: Sequence[Hypothesis], values: Sequence[float | None], label: str) -> Resampled:
    """The mean over example sets and premises, and the same of 1,000 resamples.

    Resamples draw premises by their place in the order of ids, so runs on the same premises are paired.
    """
    from eval.compare.seeds import drawn_seeds, over_seeds

    chosen = [
        (one, value) for one, value in zip(texts, values, strict=True) if one.label == label and value is not None
    ]
    sources = {source: place for place, source in enumerate(sorted({one.source for one in texts}))}
    sets = sorted({one.example_set for one, _ in chosen})
    found = np.full((len(sets), len(sources)), np.nan)
    for one, value in chosen:
        found[sets.index(one.example_set), sources[one.source]] = value
    draws = np.random.default_rng(SEED).integers(len(sources), size=(SAMPLES, len(sources)))
    samples = np.stack([np.nanmean(row[draws], axis=1) for row in found])
    return float(np.nanmean(found, axis=1).mean()), over_seeds(samples, drawn_seeds(len(sets), SAMPLES, SEED + 1))


def _estimate(score: float, samples: NDArray[np.float64]) -> Estimate:
    low, high = np.percentile(samples, [2.5, 97.5])
    return Estimate(score=score, low=float(low), high=float(high))


def measured(
    texts: Mapping[str, Sequence[Hypothesis]],
    judged: Mapping[str, Sequence[Judged]],
    notes: tuple[str, ...],
) -> Measured:
    """The rows of runs and of human annotators, each run against the one before, examples and lengths."""
    found = dict[str, dict[str, Resampled]]()
    for name in texts:
        found[name] = {
            template.format(label.capitalize()): resampled(texts[name], values, label)
            for template, values in columns(texts[name], judged[name]).items()
            for label in (LABELS if any(value is not None for value in values) else ())
        }
    runs = [name for name in texts if name != HUMAN]
    pairs = dict.fromkeys([*pairwise([*runs, *(name for name in texts if name == HUMAN)]), (runs[0], runs[-1])])
    differences = [
        Difference(better=more, than=less, column=column, difference=_estimate(a[0] - b[0], a[1] - b[1]))
        for less, more in pairs
        for column, a in found[more].items()
        if (b := found[less].get(column)) is not None
    ]
    return Measured(
        rows={name: {column: _estimate(*one) for column, one in row.items()} for name, row in found.items()},
        differences=tuple(sorted(differences, key=lambda one: (one.column, one.better, one.than))),
        notes=notes,
        pages=(side_by_side(texts, judged, runs[0], runs[-1]),),
    )


def side_by_side(
    texts: Mapping[str, Sequence[Hypothesis]],
    judged: Mapping[str, Sequence[Judged]],
    first: str,
    second: str,
) -> str:
    """A table of the first premises with the hypotheses of two runs (first example set), untrusted texts escaped."""
    cells = dict[tuple[str, str, str], Markdown]()
    for name in (first, second):
        for one, found in zip(texts[name], judged[name], strict=True):
            if one.example_set == 0:
                cells.setdefault((name, one.source, one.label), Markdown(f"{sample(one.text)} [{found.name}]"))
    labels = list(dict.fromkeys(one.label for one in texts[first]))
    premises = {one.source: one.premise for one in texts[first]}
    needed = [(name, label) for name in (first, second) for label in labels]
    whole = [source for source in sorted(premises) if all((name, source, label) in cells for name, label in needed)]
    rows = [
        [
            sample(premises[source]) if place == 0 else "",
            label,
            *(cells[name, source, label] for name in (first, second)),
        ]
        for source in whole[:SHOWN]
        for place, label in enumerate(labels)
    ]
    head = f"The first {len(whole[:SHOWN])} premises, {first} beside {second}; in brackets the classifier's class:"
    return f"{head}\n\n{table(['premise', 'label', first, second], rows)}"

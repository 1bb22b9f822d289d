"""The score tables of cards and reports: encoder, base encoder, SimCSE baseline, paper, repeats.

A table holds one family of scores: those with the same aggregation, head and metric. A task's name
carries its protocol (``sts12/mean``); a classifier's score says whether it transfers or probes.

A paper's numbers stand beside a model's only where data, encoder and protocol agree. Which recipe a
paper's row belongs to is in ``papers.yaml``; the numbers are in ``sts_dino.hub.papers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, TypeAdapter

from sts_dino.hub import scores as formats
from sts_dino.hub.contract.measured import Repeats, Summary
from sts_dino.hub.contract.recipe import START_OF_FINISHED_ENCODER, ModelRecipe, TrainingData
from sts_dino.hub.contract.results import (
    VERDICT_RULE,
    Gain,
    Method,
    Part,
    Results,
    TaskScore,
    VerdictWord,
    map_by_task,
)
from sts_dino.hub.papers import Paper, Table, find_paper
from sts_dino.hub.untrusted import Markdown, escape_inline, format_code, format_table
from sts_dino.model_cards.renderer import DATA

STS = "Semantic textual similarity"
OPTIMISERS = {"senteval": "SentEval's own optimiser", "lbfgs": "optimum by L-BFGS"}
VALIDATION_SCORE = "validation accuracy, by which the regularisation is chosen"
PROBES = {
    **OPTIMISERS,
    **{f"{mode}-validation": f"{words}; {VALIDATION_SCORE}" for mode, words in OPTIMISERS.items()},
}
TITLES = {  # protocol → title, in the order of a card
    "all": f"{STS}: one correlation over all pairs",
    "mean": f"{STS}: mean over subsets",
    "wmean": f"{STS}: mean over subsets, weighted by pairs",
    "regression": "Relatedness with a trained head",
    **{
        f"transfer/{mode}": f"Transfer tasks: classifiers on the embeddings, {words}"
        for mode, words in PROBES.items()
    },
    **{
        f"probing/{mode}": f"Probing tasks: classifiers on the embeddings, {words}"
        for mode, words in PROBES.items()
    },
}
# what the titles of other tables begin with
MTEB = "MTEB"
OTHER = "Other tasks"
INTERVAL_NAMES: dict[Method, str] = {
    "percentile": "95 % percentile bootstrap intervals",
    "bca": "95 % bootstrap intervals, bias-corrected and accelerated (BCa),",
}
MOST_OPEN_PROTOCOLS = 6  # a card folds a longer list away
VERDICT_PHRASES: dict[VerdictWord, str] = {
    "better": "better than",
    "worse": "worse than",
    "not significant": "not significantly different from",
}
# names of encoders; that of the encoder before training is ``Encoder.start``
SIMCSE = "SimCSE baseline"
TRAINED = "trained"


class PaperRow(BaseModel, frozen=True, extra="forbid"):
    """One row of a paper's table; the keys are explained in ``papers.yaml``."""

    tables: tuple[str, ...]
    row: str
    dataset: str | None = None
    config: str | None = None
    loss: str | None = None
    limit: int | None = None
    base: tuple[str, ...]
    pooling: str
    prompt: str | None = None
    mean_of: str | None = None

    @property
    def source(self) -> str:
        """Paper, section and table of every table that has the row."""
        return "; ".join(paper.name_source(table) for paper, table in self._find_tables())

    @property
    def scores(self) -> dict[tuple[str, str], float]:
        """The paper's numbers x 100 by (our task, metric), without columns of other protocols."""
        scores: dict[tuple[str, str], float] = {}
        for _, table in self._find_tables():
            scores |= table.get_task_scores(table.find_row(self.row))
        return scores

    @property
    def averages(self) -> dict[str, float]:
        """The paper's averages by their names in ``sts_dino.eval.tasks.registry``."""
        averages: dict[str, float] = {}
        for _, table in self._find_tables():
            values = table.find_row(self.row).values
            for column, value in zip(table.columns, values, strict=True):
                if column.average is not None and value is not None:
                    averages[column.average] = value
        return averages

    def _find_tables(self) -> list[tuple[Paper, Table]]:
        """Find the tables of the row's references, e.g. dino/1, each with its paper."""
        tables = []
        for reference in self.tables:
            key, _, number = reference.partition("/")
            paper = find_paper(key)
            tables.append((paper, paper.find_table(int(number))))
        return tables

    def get_score(self, score: TaskScore) -> float | None:
        """Return the paper's number x 100 for the same measurement as ``score``; None without."""
        if score.split not in ("test", "all"):  # papers report no validation scores
            return None
        return self.scores.get((score.task, score.main_metric))

    def select_tables(self, scores: Sequence[TaskScore]) -> PaperRow | None:
        """Return a copy of the row with only the tables that have a number for one of ``scores``.

        Returns None when no table has such a number.
        """
        tables = []
        for table in self.tables:
            row = self.model_copy(update={"tables": (table,)})
            if any(row.get_score(score) is not None for score in scores):
                tables.append(table)
        return self.model_copy(update={"tables": tuple(tables)}) if tables else None

    def is_reproduced_by(self, recipe: ModelRecipe) -> bool:
        """Return whether ``recipe`` has the row's encoder and exactly its data and loss.

        A row without a dataset is of an untrained encoder, so only a recipe without datasets
        reproduces it.
        """
        # the encoder
        base = recipe.base
        if base.repo_id not in self.base or base.modules != "transformer":
            return False
        if base.pooling != self.pooling or base.prompt != self.prompt:
            return False

        # the data
        expected = []
        if self.dataset:
            expected.append((self.dataset, self.config, self.loss, self.limit))
        trained = [
            (_name_full_version(data), data.config, data.loss, recipe.limit)
            for data in recipe.datasets
        ]
        return trained == expected


def _name_full_version(data: TrainingData) -> str:
    """Return the dataset's name without its owner; empty unless its revision is v1 or later.

    A version below 1 has only a part of the paper's data.
    """
    revision = data.revision or ""
    if not revision.startswith("v") or revision.startswith("v0."):
        return ""
    return (data.repo_id or "").rpartition("/")[2]


@cache
def load_paper_rows() -> tuple[PaperRow, ...]:
    """Read all rows of ``papers.yaml``, in the file's order."""
    tree = yaml.safe_load((DATA / "papers.yaml").read_text(encoding="utf-8"))
    return TypeAdapter(tuple[PaperRow, ...]).validate_python(tree)


def find_reproduced_row(recipe: ModelRecipe) -> PaperRow | None:
    """Return the first row of ``papers.yaml`` that a recipe reproduces; None without one.

    Such a recipe has the row's encoder, and trains it on the row's data alone, in version 1 or
    later.
    """
    return next((row for row in load_paper_rows() if row.is_reproduced_by(recipe)), None)


class TaskPart(NamedTuple):
    """The score of a part of a task, e.g. of a subset of STS12."""

    dataset: str
    split: str
    name: str
    part: Part


@dataclass(frozen=True)
class Baseline:
    """A baseline's scores, and the encoder's gains over it, both by (task, split).

    ``header`` and ``gain_header`` name their columns in a score table.
    """

    header: str
    gain_header: str
    scores: Mapping[tuple[str, str], TaskScore]
    gains: Mapping[tuple[str, str], Gain]


def group_by_title(scores: Iterable[TaskScore]) -> dict[str, list[TaskScore]]:
    """Group scores by the table that shows them: title → scores.

    The titles are in the order of a card, the scores of a title in that of ``scores``.
    """
    groups: dict[str, list[TaskScore]] = {}
    for score in scores:
        groups.setdefault(make_title(score.task, score.main_metric, score.family), []).append(score)
    return {title: groups[title] for title in sort_titles(groups)}


def sort_titles(titles: Iterable[str]) -> list[str]:
    """Sort the distinct titles: those of ``TITLES`` in their order, then MTEB's, then others."""
    ranks = {title: rank for rank, title in enumerate(TITLES.values())}
    return sorted(
        set(titles),
        key=lambda title: (ranks.get(title, len(ranks)), not title.startswith(MTEB), title),
    )


def make_title(task: str, metric: str, family: str | None) -> str:
    """Return the title of the table that has a task's scores.

    Args:
        task: DATASET/PROTOCOL, or mteb/TASK.
        metric: the main metric of the score.
        family: the family of the score, of which only transfer and probing change the title of a
            classifier's score; None: not known.
    """
    dataset, _, protocol = task.partition("/")
    if dataset == "mteb":
        return f"{MTEB}: {metric}"
    if protocol in PROBES and family is not None:
        protocol = f"{family}/{protocol}"
    if protocol == "cosine":  # one correlation over all pairs, as "all" is
        protocol = "all"
    return TITLES.get(protocol) or f"{OTHER}: {protocol}, {metric}"


def build_score_context(
    results: Results, row: PaperRow | None, start: str, trained: bool
) -> dict[str, Any]:
    """Return the template variables of ``scores.md.jinja``.

    Args:
        results: scores of the encoder and its baselines.
        row: the paper's row that the recipe reproduces; None without one.
        start: the name of the encoder before training.
        trained: whether the encoder was trained here.
    """
    # scores of the encoder and its baselines with other versions of libraries than results.json has
    scores_by_prefix = {
        "": results.scores,
        f"{start}, ": results.base_scores,
        f"{SIMCSE}, ": results.control_scores,
    }
    other_versions = []
    for prefix, scores in scores_by_prefix.items():
        for score in scores:
            if score.versions:
                other_versions.append((f"{prefix}{score.task} {score.split}", score.versions))

    all_scores = list(chain(*scores_by_prefix.values()))
    baselines = _list_baselines(results, start, trained)
    gains = (*results.gains, *results.over_control)
    protocols = {(score.task, score.protocol): score for score in results.scores}
    return {
        "results": results,
        "verdicts": describe_verdicts(results, start),
        "scores": {
            title: _format_scores(scores, baselines, row, TRAINED if trained else "score")
            for title, scores in group_by_title(results.scores).items()
        },
        "elsewhere": formats.describe_public_gains(results, start) if trained else "",
        "paper_averages": row.averages if row else {},
        "parts": list_task_parts(results),
        "no_interval": any(score.interval() is None for score in all_scores),
        "interval": INTERVAL_NAMES[results.interval],
        "rule": VERDICT_RULE if any(gain.verdict for gain in gains) else None,
        "protocols": list(protocols.values()),
        "open_protocols": MOST_OPEN_PROTOCOLS,
        "other_versions": other_versions,
    }


def describe_verdicts(results: Results, start: str) -> list[Markdown]:
    """Describe on which tasks the encoder is better or worse than a baseline, a text per baseline.

    The baselines are the encoder before training, named ``start``, and the SimCSE baseline. One
    without tested gains has no text. The text ends with the rows that tasks on a user's own files
    would need for a significant gain.
    """
    sentences = []
    baselines = {f"the encoder {start}": results.gains, f"the {SIMCSE}": results.over_control}
    for name, gains in baselines.items():
        phrases = []
        for word, phrase in VERDICT_PHRASES.items():
            tasks = [f"{gain.task} {gain.split}" for gain in gains if gain.verdict == word]
            if tasks:
                phrases.append(f"on {', '.join(map(format_code, tasks))} {phrase} {name}")
        if not phrases:
            continue
        sentence = "; ".join(phrases)
        if not any(gain.verdict == "better" for gain in gains):
            sentence += f". No gain over {name} is shown"
            # A published encoder is usable without the training. Only the name of the encoder
            # before training ends in ``start``.
            if start == START_OF_FINISHED_ENCODER and name.endswith(start):
                sentence += ": keep that one"
        for power in formats.describe_own_power(gains, results.scores):
            sentence += f". {escape_inline(power)}"
        sentences.append(Markdown(f"Verdict: {sentence}."))
    return sentences


def _list_baselines(results: Results, start: str, trained: bool) -> list[Baseline]:
    """List the baselines of a score table: the base encoder and the SimCSE baseline.

    The base encoder is listed only if ``trained``, the SimCSE baseline only if it has scores.
    ``start``: the name of the base encoder in the table.
    """
    baselines = []
    if trained:
        baselines.append(
            Baseline(start, "gain", map_by_task(results.base_scores), map_by_task(results.gains))
        )
    if results.control_scores:
        baselines.append(
            Baseline(
                SIMCSE,
                "gain over SimCSE",
                map_by_task(results.control_scores),
                map_by_task(results.over_control),
            )
        )
    return baselines


def _format_scores(
    scores: list[TaskScore], baselines: list[Baseline], row: PaperRow | None, score_header: str
) -> Markdown:
    """Format a table of scores with the baselines' and the paper's numbers.

    Args:
        scores: the scores of one table, at least one.
        baselines: each gets a column of scores and a column of gains.
        row: the paper's row; None, or a row without numbers for these scores, leaves out the
            column of the paper.
        score_header: the header of the encoder's own column.
    """
    papers = [row.get_score(score) if row else None for score in scores]
    in_paper = any(paper is not None for paper in papers)
    has_one_unit = len({score.unit for score in scores}) == 1

    # the headers
    header = ["task", "split", scores[0].unit if has_one_unit else "rows"]
    header += [baseline.header for baseline in baselines]
    header.append(score_header)
    header += [baseline.gain_header for baseline in baselines]
    if in_paper:
        header.append("paper")

    # a row for each task and split
    rows = []
    for score, paper in zip(scores, papers, strict=True):
        count = score.n if has_one_unit else f"{score.n:,} {score.unit}"
        cells = _format_score_cells(score, baselines)
        if in_paper:
            cells.append(Markdown("" if paper is None else formats.format_number(paper)))
        rows.append([format_code(score.task), score.split, count, *cells])
    return format_table(header, rows)


def _format_score_cells(score: TaskScore, baselines: list[Baseline]) -> list[Markdown]:
    """Format the cells of a score: the baselines' scores, the score, gains over the baselines."""
    key = (score.task, score.split)
    texts = [formats.format_score(baseline.scores.get(key)) for baseline in baselines]
    texts.append(formats.format_score(score))
    texts += [_format_gain(score, baseline) for baseline in baselines]
    return [Markdown(text) for text in texts]


def _format_gain(score: TaskScore, baseline: Baseline) -> str:
    """Format the gain of ``score`` over a baseline with its interval.

    Without a recorded gain it is the difference of both scores, marked as without an interval.
    Without a score of the baseline, too, it is a dash.
    """
    key = (score.task, score.split)
    gain = baseline.gains.get(key)
    reference = baseline.scores.get(key)
    if gain is not None or reference is None:
        return formats.format_difference(gain)
    difference = formats.format_number(score.main_score - reference.main_score, signed=True)
    return f"{difference} [{formats.NO_INTERVAL}]"


def list_task_parts(results: Results) -> list[TaskPart]:
    """List the scores of the subsets of tasks, e.g. of STS12, by data set, split and name.

    Tasks of one data set (``DATASET/VARIANT``) have equal scores of subsets, which are listed once.
    """
    parts = set()
    for score in results.scores:
        dataset = score.task
        if not dataset.startswith("mteb/"):
            dataset = dataset.partition("/")[0]
        for name, part in score.parts.items():
            parts.add(TaskPart(dataset, score.split, name, part))
    return sorted(parts, key=lambda task_part: (task_part.dataset, task_part.split, task_part.name))


def group_repeated_scores(
    repeats: Repeats, results: Results | None = None
) -> dict[str, list[Summary]]:
    """Group the summaries of repeated trainings by the title of their score table.

    The titles are in the order of a card. ``results`` have each task's metric and family. A task
    that they lack, or every task where they are None, is taken as of the metric "other metric" and
    of no known family (``make_title``).
    """
    metrics: dict[str, tuple[str, str | None]] = {}
    if results:
        metrics = {score.task: (score.main_metric, score.family) for score in results.scores}
    groups: dict[str, list[Summary]] = {}
    for summary in repeats.summaries:
        metric, family = metrics.get(summary.task, ("other metric", None))
        groups.setdefault(make_title(summary.task, metric, family), []).append(summary)
    return {title: groups[title] for title in sort_titles(groups)}

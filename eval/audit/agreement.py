"""Agreement of labels and of scores, with 95 % intervals.

Cohen's κ compares human labels with a dataset's labels and with each other. Spearman's correlation
compares cosines with human scores.

κ = 1 - Σ w·observed / Σ w·expected over the cells of the confusion table (Cohen 1960; weighted:
Cohen 1968). The weight w of two labels is 0 for equal labels. For different labels it is 1, their
distance in the scale's order (linear), or the square of the distance (quadratic).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sts_dino.eval.audit.command import fill_template
from sts_dino.eval.audit.survey import Scale, Survey
from sts_dino.hub.contract.measured import Interval
from sts_dino.hub.contract.results import Frozen
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import Markdown, format_code, format_table

KAPPA_WEIGHTS = ("linear", "quadratic")
KAPPA_NAMES = {
    "kappa": "Cohen's κ",
    **{f"kappa_{kind}": f"κ, {kind} weights" for kind in KAPPA_WEIGHTS},
}
RESAMPLED_TABLES = 2_000  # confusion tables that the bootstrap of a κ draws
MIN_CORRELATION_PAIRS = 10  # a correlation of fewer pairs is refused
SOURCE_RESAMPLES = 2000  # bootstrap resamples of the source sentences
INTERVAL_PERCENTILES = [2.5, 97.5]  # the ends of a 95 % interval
Counts = NDArray[np.int64]  # confusion tables: (labels, labels), or (tables, labels, labels)
Rows = NDArray[np.int64]  # (n,) numbers of rows, repeated where a row was drawn twice
Statistic = Callable[[Rows], float]


class Agreement(Frozen):
    """Agreement of two raters on the same ``n`` items.

    ``counts`` is (labels, labels) in the scale's order: rows are the first rater's labels, columns
    the second rater's. ``same`` is the share of equal labels in percent, with Wilson's interval.
    ``kappas`` has the keys of ``KAPPA_NAMES``, those of weighted κ only for an ordered scale, and
    bootstrap intervals over items. A κ is None where it is undefined: both raters gave one and the
    same label to every item.
    """

    n: int
    counts: list[list[int]]
    same: Interval
    kappas: dict[str, Interval | None]

    @property
    def kappa(self) -> Interval | None:
        """Cohen's κ without weights."""
        return self.kappas["kappa"]


def make_interval(value: float, low: float, high: float) -> Interval:
    """Return a value with the ends of its interval, ``low`` and ``high``, to four decimals."""
    return Interval(
        value=round(float(value), 4), low=round(float(low), 4), high=round(float(high), 4)
    )


def compute_wilson_interval(count: int, n: int, unit: float = 1.0) -> Interval:
    """Return the share ``count / n`` with Wilson's 95 % interval.

    Args:
        count: the number of hits, 0 to ``n``.
        n: the number of items; for 0 items the share is 0 and the interval is [0, ``unit``].
        unit: the value that stands for all items: 1 for a fraction, 100 for percent.
    """
    from scipy.stats import binomtest  # costs most of a second

    if n == 0:
        return make_interval(0, 0, unit)
    bounds = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return make_interval(unit * count / n, unit * bounds.low, unit * bounds.high)


def measure_agreement(
    first: Sequence[str], second: Sequence[str], scale: Scale, seed: int = 0
) -> Agreement:
    """Measure the agreement of two raters' labels.

    κ depends on the confusion table alone. So the bootstrap draws whole tables from the multinomial
    distribution of the observed cells.

    Args:
        first: the first rater's label of each item, (n,) with n ≥ 1.
        second: the second rater's label of each item, (n,).
        scale: the possible labels; an ordered scale adds the weighted κ.
        seed: seed of the bootstrap.
    """
    from sklearn.metrics import confusion_matrix

    n = len(first)
    counts = confusion_matrix(first, second, labels=list(scale.labels))
    generator = np.random.default_rng(seed)
    cells = generator.multinomial(n, counts.ravel() / n, size=RESAMPLED_TABLES)
    resampled_tables = cells.reshape(-1, *counts.shape)
    kappas: dict[str, Interval | None] = {"kappa": _make_kappa_interval(counts, resampled_tables)}
    if scale.ordered:
        for kind in KAPPA_WEIGHTS:
            kappas[f"kappa_{kind}"] = _make_kappa_interval(counts, resampled_tables, kind)
    same = compute_wilson_interval(int(np.trace(counts)), n, 100)
    return Agreement(n=n, counts=counts.tolist(), same=same, kappas=kappas)


def _make_kappa_interval(
    counts: Counts, resampled_tables: Counts, weights: str | None = None
) -> Interval | None:
    """Return κ of a confusion table with its bootstrap interval; None where κ is undefined.

    Args:
        counts: the confusion table, (labels, labels).
        resampled_tables: its resamples, (tables, labels, labels).
        weights: the cost of a disagreement, as for ``compute_kappas``: None, "linear" or
            "quadratic".
    """
    kappa = compute_kappas(counts[None], weights)[0]
    if not np.isfinite(kappa):
        return None
    resampled = compute_kappas(resampled_tables, weights)
    return make_interval(kappa, *np.nanpercentile(resampled, INTERVAL_PERCENTILES))


def compute_kappas(tables: Counts, weights: str | None = None) -> NDArray[np.float64]:
    """Return Cohen's κ of each confusion table, (tables,); NaN where it is undefined.

    The module's docstring has the formula.

    Args:
        tables: counts of label pairs, (tables, labels, labels).
        weights: the cost of a disagreement: None (1), "linear" (the distance of the labels) or
            "quadratic" (the squared distance).
    """
    ranks = np.arange(tables.shape[-1])
    distance = np.abs(ranks[:, None] - ranks).astype(float)
    cost = {None: distance > 0, "linear": distance, "quadratic": distance**2}[weights]
    # The counts of two raters who label independently: row total x column total / all items
    expected = (
        tables.sum(axis=2)[:, :, None]
        * tables.sum(axis=1)[:, None, :]
        / tables.sum(axis=(1, 2))[:, None, None]
    )
    observed_cost = (cost * tables).sum(axis=(1, 2))
    expected_cost = (cost * expected).sum(axis=(1, 2))
    ratio = np.full(len(tables), np.nan)
    return 1 - np.divide(observed_cost, expected_cost, out=ratio, where=expected_cost > 0)


class Report(Frozen):
    """Agreement of every annotator with the generator, and of every two annotators.

    In ``annotators`` the annotator is the first rater and the generator the second. Annotators
    without an answer in the sample are left out, and so are two annotators without a common row.
    ``between`` has the keys "NAME, NAME". ``pooled`` compares all answers of all annotators with
    the generator's labels. ``answers``: annotator → row → label. ``generated``: row → label.
    ``meanings``: label → the words that the page shows for the label.
    """

    dataset: dict[str, str]
    language: str
    seed: int
    rows: tuple[int, ...]
    meanings: dict[str, str]
    annotators: dict[str, Agreement]
    between: dict[str, Agreement]
    pooled: Agreement | None
    answers: dict[str, dict[int, str]]
    generated: dict[int, str]

    def to_markdown(self) -> str:
        """Return the report as Markdown.

        Confusion tables are in percent of a column, as in DINO's Table 3.
        """
        return fill_template(
            "agreement.md.jinja",
            report=self,
            percents=self._format_percentages,
            measures=_format_measures,
        )

    def _format_percentages(self, agreement: Agreement) -> Markdown:
        """Return a confusion table in percent of a column.

        Rows are the annotator's labels, columns the generator's. The last row has the number of
        items of each column.
        """
        counts = np.array(agreement.counts)
        totals = counts.sum(axis=0).tolist()
        rows: list[list[object]] = [
            [format_code(label), *map(_format_percentage, row, totals)]
            for label, row in zip(self.meanings, agreement.counts, strict=True)
        ]
        header = ["human ↓ generator →", *map(format_code, self.meanings)]
        return format_table(header, [*rows, ["rows", *totals]])


def _format_percentage(count: int, total: int) -> str:
    """Return ``count / total`` in whole percent; a dash where ``total`` is 0."""
    return f"{100 * count / total:.0f} %" if total else "–"


def compare_raters(
    scale: Scale, *rater_pairs: tuple[Mapping[int, str], Mapping[int, str]]
) -> Agreement | None:
    """Return the agreement of first with second raters, the items of all pairs of raters pooled.

    An item is a row that both raters of a pair have labelled. Returns None without an item.

    Args:
        scale: the possible labels.
        rater_pairs: pairs of a first and a second rater, each rater as row → label.
    """
    first_labels: list[str] = []
    second_labels: list[str] = []
    for first, second in rater_pairs:
        common = [row for row in first if row in second]
        first_labels += [first[row] for row in common]
        second_labels += [second[row] for row in common]
    if not first_labels:
        return None
    return measure_agreement(first_labels, second_labels, scale)


def make_report(survey: Survey) -> Report:
    """Return the agreement of a survey's annotators with the generator and with each other.

    Raises RunError when the stored answers cannot be read, InputError when they are damaged.
    """
    # Read the generator's labels, and the labels of every annotator with an answer
    examples = survey.examples
    scale = examples.scale
    generated = {row: examples.labels[row] for row in survey.rows}
    answers = {name: labels for name, labels in survey.read_answers().items() if labels}

    # Compare each annotator with the generator, and each two annotators
    annotators: dict[str, Agreement] = {}
    for name, labels in answers.items():
        if agreement := compare_raters(scale, (labels, generated)):
            annotators[name] = agreement
    between: dict[str, Agreement] = {}
    for first, second in combinations(answers, 2):
        if agreement := compare_raters(scale, (answers[first], answers[second])):
            between[f"{first}, {second}"] = agreement
    return Report(
        dataset={key: getattr(examples, key) for key in ("name", "config", "split", "sha256")},
        language=examples.language,
        seed=survey.seed,
        rows=survey.rows,
        meanings=dict(zip(scale.labels, scale.meanings, strict=True)),
        annotators=annotators,
        between=between,
        pooled=compare_raters(scale, *((labels, generated) for labels in answers.values())),
        answers=answers,
        generated=generated,
    )


def _format_measures(agreement: Agreement, heading: str) -> Markdown:
    """Return a table of ``agreement``, a row for each measure: items, equal labels, every κ.

    ``heading``: the header of the column with the values.
    """
    same = agreement.same
    rows = [
        ["rows", str(agreement.n)],
        ["equal labels", Markdown(f"{same.value:.0f} % [{same.low:.0f}, {same.high:.0f}]")],
    ]
    for name, kappa in agreement.kappas.items():
        value = "undefined (one label only)" if kappa is None else str(kappa)
        rows.append([KAPPA_NAMES[name], Markdown(value)])
    return format_table(["", heading], rows)


def compute_correlation_interval(
    scores: ArrayLike, values: ArrayLike, resamples: Sequence[Rows]
) -> Interval | None:
    """Return Spearman's correlation of scores and values (-1 to 1) with its 95 % interval.

    Args:
        scores: a score of each pair, (n,) with n ≥ 1.
        values: the values that are correlated with the scores, e.g. cosines, (n,).
        resamples: the row numbers of each bootstrap resample.

    Returns None where the correlation is undefined: all scores, or all values, are the same.
    """
    from scipy.stats import spearmanr

    all_scores = np.asarray(scores)
    all_values = np.asarray(values)

    def correlate_rows(rows: Rows) -> float:
        """Return the correlation over the row numbers ``rows``, NaN where it is undefined."""
        first = all_scores[rows]
        second = all_values[rows]
        if np.ptp(first) == 0 or np.ptp(second) == 0:
            return float("nan")
        return float(spearmanr(first, second).statistic)

    rows = len(all_scores)
    if np.isnan(correlate_rows(np.arange(rows))):
        return None
    return compute_bootstrap_interval(correlate_rows, resamples, rows)


def resample_source_sentences(first: Sequence[str]) -> list[Rows]:
    """Draw bootstrap resamples of source sentences: ``SOURCE_RESAMPLES`` arrays of row numbers.

    A resample draws as many source sentences as there are, with replacement. It has all rows of
    each drawn source sentence, so resamples may differ in length. Every call draws the same.

    Args:
        first: the source sentence of each row, (n,) with n ≥ 1.
    """
    # Number the source sentences, and list the rows of each
    numbers = {text: number for number, text in enumerate(dict.fromkeys(first))}
    sentence_of_row = np.array([numbers[text] for text in first])
    rows_by_sentence = np.argsort(sentence_of_row, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(sentence_of_row))
    rows_of_sentence = np.split(rows_by_sentence, ends[:-1])

    # Draw source sentences, and join their rows
    sentences = len(rows_of_sentence)
    draws = np.random.default_rng(0).integers(0, sentences, (SOURCE_RESAMPLES, sentences))
    resamples = []
    for drawn in draws:
        resamples.append(np.concatenate([rows_of_sentence[number] for number in drawn]))
    return resamples


def compute_bootstrap_interval(
    statistic: Statistic, resamples: Sequence[Rows], rows: int
) -> Interval:
    """Return the statistic of all rows and its 95 % percentile interval.

    Resamples for which the statistic is NaN are ignored.

    Args:
        statistic: a function of row numbers (m,); its value for the numbers of all rows is finite.
        resamples: the row numbers of each bootstrap resample.
        rows: the number of all rows.
    """
    value = statistic(np.arange(rows))
    values = np.array([statistic(drawn) for drawn in resamples])
    return make_interval(value, *np.nanpercentile(values, INTERVAL_PERCENTILES))


def correlate_cosines(
    scores: Sequence[float], first: Sequence[str], cosines: Mapping[str, Sequence[float]]
) -> dict[str, Interval]:
    """Return encoder → Spearman's correlation of the encoder's cosines with human scores.

    All encoders share the same resamples. Intervals are 95 % percentile bootstrap intervals over
    source sentences.

    Args:
        scores: the human score of each pair, (n,).
        first: the source sentence of each pair, (n,).
        cosines: encoder → the cosine of each pair, (n,).

    Raises InputError for fewer than ``MIN_CORRELATION_PAIRS`` pairs, and for scores or cosines that
    are all the same.
    """
    if len(scores) < MIN_CORRELATION_PAIRS:
        raise InputError(
            "judgements",
            f"{len(scores)} pairs are answered",
            allowed=f"at least {MIN_CORRELATION_PAIRS}",
        )
    resamples = resample_source_sentences(first)
    correlations = {}
    for name, values in cosines.items():
        interval = compute_correlation_interval(scores, values, resamples)
        if interval is None:
            raise InputError(name, "has no correlation: all answers, or all its cosines, are equal")
        correlations[name] = interval
    return correlations

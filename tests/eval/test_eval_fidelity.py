"""Label fidelity: means, correlation, intervals over source sentences, judges; refused before
anything is written.
"""

import numpy as np
import pandas
import pytest
from marker_nli import make_marker_nli
from scipy.stats import spearmanr
from small_runs import small_recipe, small_run
from typer.testing import CliRunner

from sts_dino.eval.audit import agreement as measuring
from sts_dino.eval.audit import fidelity as command
from sts_dino.eval.audit.fidelity import PAIR_COLUMNS, draw_pairs, measure_labels
from sts_dino.eval.audit.source import find_rows
from sts_dino.eval.audit.survey import AnswerStore, read_examples
from sts_dino.eval.encoders import load as packaged
from sts_dino.hub.client.fetch import fetch_run
from sts_dino.hub.client.publish import Options, publish_run
from sts_dino.hub.client.repository import Repository
from sts_dino.hub.contract.measured import FIDELITY, Fidelity
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import read_manifest
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.render import render, write

pytest_plugins = ["local_hub"]
SCORES = {"1": 1.0, "0.5": 0.5, "0": 0.0}


def embed(texts: list[str]) -> np.ndarray:
    """A judge to import by name: a text's letters, counted."""
    return np.array(
        [[1.0 + text.count(letter) for letter in "abcdefghijklmnop"] for text in texts],
        dtype=np.float32,
    )


def pairs(cosines: dict[str, list[float]]) -> tuple[pandas.DataFrame, list[float]]:
    """Of each label the n-th text is the n-th source sentence's."""
    rows = [
        (f"x {n}", f"text {label} {n}", label)
        for label, values in cosines.items()
        for n in range(len(values))
    ]
    return pandas.DataFrame(rows, columns=PAIR_COLUMNS), [
        one for values in cosines.values() for one in values
    ]


def measure(*words: object) -> str:
    done = CliRunner().invoke(command.app, [*map(str, words)], catch_exceptions=False)
    return done.output


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(measuring, "SOURCE_RESAMPLES", 200)


@pytest.fixture
def run(tmp_path):
    small_run(tmp_path / "run", small_recipe("sts"))
    return tmp_path / "run"


JUDGE = ("--encoder", "python:test_eval_fidelity:embed")


def test_means_and_correlation_with_intervals_over_source_sentences():
    """Ten equal texts of one source sentence tell no more than one: the interval is as wide."""
    numbers = np.random.default_rng(0)
    cosines = {
        label: list(numbers.normal(0.2 + 0.3 * score, 0.1, 40)) for label, score in SCORES.items()
    }
    once, values = pairs(cosines)
    found = measure_labels(once, SCORES, values)
    often = measure_labels(pandas.concat([once] * 10, ignore_index=True), SCORES, values * 10)
    for label, of in found["labels"].items():
        assert (
            of.cosine.value == pytest.approx(np.mean(cosines[label]), abs=1e-4) and of.texts == 40
        )
        assert of.cosine.low < of.cosine.value < of.cosine.high < of.cosine.low + 0.1
        assert often["labels"][label].cosine == of.cosine
    expected = spearmanr([SCORES[label] for label in once["label"]], values).statistic
    assert found["spearman"].value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("cosines", "shares"),
    [
        ([0.9, 0.8, 0.5, 0.4, 0.1, 0.0], (1.0, 1.0, 1.0)),
        ([0.0, 0.1, 0.4, 0.5, 0.8, 0.9], (0.0, 1.0, 0.0)),  # the judge's order is reversed
        ([0.9, 0.5, 0.8, 0.4, 0.1, 0.0], (0.5, 0.5, 1.0)),
        ([0.99, 0.98, 0.97, 0.96, 0.95, 0.94], (1.0, 1.0, 1.0)),  # the order alone counts
    ],
)
def test_the_share_of_pairs_that_fit_their_label(cosines, shares):
    rows = [
        (f"x {n}", f"text {n}", label) for n, label in enumerate(["1", "1", "0.5", "0.5", "0", "0"])
    ]
    drawn = pandas.DataFrame(rows, columns=PAIR_COLUMNS)
    labels = measure_labels(drawn, SCORES, cosines)["labels"]
    assert tuple(labels[label].fitting for label in SCORES) == shares
    assert str(labels["1"]).endswith(f"({shares[0]:.0%} of its pairs fit)")
    unscored = measure_labels(drawn, dict.fromkeys(SCORES), cosines)["labels"]
    assert unscored["1"].fitting is None and str(unscored["1"]) == str(unscored["1"].cosine)


def test_copies_are_counted_and_a_label_without_texts_is_refused():
    rows = [("a b c d e", "a b c d e f", "1"), ("a b", "a b", "1"), ("a b", "z", "0")]
    drawn = pandas.DataFrame(rows, columns=PAIR_COLUMNS)
    found = measure_labels(drawn, {"1": 1.0, "0": 0.0}, [1.0, 1.0, 0.0])
    assert (found["labels"]["1"].near_copies, found["labels"]["1"].identical) == (1.0, 0.5)
    assert found["near_copies"] == pytest.approx(2 / 3) and found["labels"]["0"].near_copies == 0
    with pytest.raises(InputError, match=r"no text of label '0.5' was kept; give a larger run"):
        measure_labels(drawn, SCORES, [1.0, 1.0, 0.0])


def test_the_texts_are_those_that_post_processing_keeps(run):
    manifest = read_manifest(run)
    drawn, total = draw_pairs(find_rows(str(run)), 10**6, 1)
    assert len(drawn) == manifest.counts["kept"] and set(drawn["label"]) == set(SCORES)
    some, of = draw_pairs(find_rows(str(run)), 5, 1)
    assert some["first"].nunique() == 5 and of == total == drawn["first"].nunique() > 5
    assert drawn[drawn["first"].isin(some["first"])].reset_index(drop=True).equals(some)
    assert set(draw_pairs(find_rows(str(run)), 5, 2)[0]["first"]) != set(some["first"])


def test_the_command_writes_what_the_card_shows(run, tmp_path):
    before = render(run)["README.md"].decode()
    assert "Label agreement" not in before
    said = measure(
        run, *JUDGE, "--nli", make_marker_nli(tmp_path / "nli"), "--source-sentences", 20
    )
    found = Fidelity.read(run, read_manifest(run))
    assert found.source_sentences == 20 and found.judge.name == "python:test_eval_fidelity:embed"
    assert f"Spearman(score, cosine) {found.spearman}" in said and found.nli_judge.name == "nli"
    assert (found.requested, found.kept) == tuple(
        read_manifest(run).counts[key] for key in ("requested", "kept")
    )
    assert sum(found.labels["1"].nli.values()) == pytest.approx(1)
    card = render(run)["DETAILS.md"].decode()
    assert f"| `0.5` | {found.labels['0.5'].texts} | {found.labels['0.5'].cosine} |" in card
    assert (
        f"20 randomly drawn of {found.all_source_sentences} source sentences" in card
        and "NLI: entailment" in card
    )
    assert "Agreement of annotators" not in card
    (run / FIDELITY).write_text(found.model_copy(update={"fingerprint": "other"}).model_dump_json())
    with pytest.raises(
        InputError, match="was measured on other rows than the run directory holds; measure again"
    ):
        render(run)
    (run / FIDELITY).write_text("{}")
    with pytest.raises(
        InputError, match=r"fidelity.json: has another form than expected: dataset: Field required"
    ):
        render(run)


def test_peoples_answers_are_told_without_their_names(run, tmp_path):
    examples = read_examples(find_rows(str(run), "postprocessed", "train"))
    store = AnswerStore(tmp_path / "answers", examples)
    for row in range(10):
        store.add(
            "Zaphod",
            row,
            examples.labels[row] if row else examples.scale.labels[examples.labels[0] == "0"],
        )
    said = measure(run, *JUDGE, "--annotations", tmp_path / "answers")
    assert "person 1: 10 answers" in said and "Zaphod" not in (run / FIDELITY).read_text()
    (person,) = Fidelity.read(run, read_manifest(run)).people
    assert 80 <= person.same.value <= 90
    assert "Agreement of annotators, who saw no labels" in render(run)["DETAILS.md"].decode()
    with pytest.raises(InputError, match=r"holds no answers \(no answers.sqlite\)"):
        measure(run, *JUDGE, "--annotations", tmp_path / "nobody")


def test_answers_with_one_label_have_no_kappa(run, tmp_path):
    examples = read_examples(find_rows(str(run), "postprocessed", "train"))
    AnswerStore(tmp_path / "answers", examples).add("Zaphod", 0, examples.labels[0])
    output = measure(run, *JUDGE, "--annotations", tmp_path / "answers")
    assert "person 1: 1 answers, 100 % as labelled, κ undefined (one label only)" in output


def test_nli_pairs_have_no_scores_to_correlate_and_shot_counts_are_named(tmp_path):
    small_run(tmp_path / "nli", small_recipe("nli"))
    with pytest.raises(InputError, match=r"has several configs.*name one: --config"):
        measure(tmp_path / "nli", *JUDGE)
    measure(tmp_path / "nli", *JUDGE, "--config", "pair-class-5shot")
    manifest = read_manifest(tmp_path / "nli")
    found = Fidelity.read(tmp_path / "nli", manifest)
    assert found.spearman is None and set(found.labels) == {"entailment", "contradiction"}
    assert found.kept == manifest.counts["variants"]["5shot"]["kept"] < manifest.counts["kept"]
    assert "## Label agreement" in render(tmp_path / "nli")["DETAILS.md"].decode()
    card = render(tmp_path / "nli")["README.md"].decode()
    assert "## Measured" not in card and "lengths, measurements, columns, prompts" in card


def test_the_source_texts_of_search_pairs_are_their_passages(tmp_path):
    small_run(tmp_path / "run", small_recipe("search"))
    rows = find_rows(str(tmp_path / "run"), "query-class")
    passages = {passage for batch in rows.read_batches() for passage in batch.texts["passage"]}
    drawn, total = draw_pairs(rows, 10**6, 1)
    assert set(drawn["first"]) == passages and total == len(passages)


def test_a_judge_that_is_not_installed_is_one_line_and_nothing_is_written(run, monkeypatch):
    monkeypatch.setattr(packaged, "find_minilm", lambda: None)
    with pytest.raises(
        InputError,
        match="MiniLM-L6-v2: is not on this machine; sts-dino lm all-minilm-l6-v2, or name",
    ):
        measure(run)
    assert not (run / FIDELITY).exists()


@pytest.mark.parametrize(
    ("language", "judge"), [("en", "all-MiniLM-L6-v2"), ("de", "multilingual-e5-small")]
)
def test_the_default_judge_knows_the_language(tmp_path, monkeypatch, language, judge):
    run = tmp_path / "run"
    small_run(run, small_recipe("sts", language=language))
    asked = []
    monkeypatch.setattr(
        command, "require_packaged_encoder", lambda name, _: asked.append(name) or JUDGE[1]
    )
    measure(run)
    found = Fidelity.read(run, read_manifest(run))
    assert asked == [judge] and found.judge.name == judge


def test_a_missing_judge_of_another_language_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path / "home"))
    small_run(tmp_path / "run", small_recipe("sts", language="de"))
    with pytest.raises(InputError, match="not on this machine; sts-dino lm multilingual-e5-small"):
        measure(tmp_path / "run")


def test_it_goes_to_the_hub_with_the_dataset_and_comes_back(local_hub, hub_api, tmp_path):
    run = tmp_path / "run"
    manifest = small_run(run, small_recipe("sts", name="measured-sts"))
    measure(run, *JUDGE)
    write(run, render(run, f"acme/{manifest.name}"))
    publish_run(hub_api, run, "acme", True, Options())
    repository = Repository(hub_api, f"acme/{manifest.name}", "dataset")
    recipe = load_recipe(run / "recipe.yaml", DatasetRecipe)
    fetch_run(repository, repository.get_branch(), manifest, recipe, tmp_path / "again")
    assert (tmp_path / "again" / FIDELITY).read_bytes() == (run / FIDELITY).read_bytes()
    plan = publish_run(hub_api, run, "acme", False, Options())
    assert not plan.changes and not plan.edits  # the card's stamp covers it

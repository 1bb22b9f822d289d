"""Metadata of cards: scores in the Hub's forms, and citations as in CITATION.cff."""

import re
from pathlib import Path
from typing import Any

import card_runs
import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from hub.contract.results import Results, TaskScore
from model_cards.metadata import BENCHMARKS, eval_result_files, model_index
from model_cards.provenance import AUTO_NLI, DECLUTR, DINO, GUIDANCE, PROMPT_EOL, SIMCSE, cited

SHA256 = "a" * 64


def score(task: str, n: int, **changes: Any) -> TaskScore:
    return card_runs.score(pairs=n).model_copy(update={"task": task, "data_sha256": SHA256} | changes)


def results(*scores: TaskScore) -> Results:
    return Results(model="m", revision="r", bootstrap_samples=10, seed=0, versions={}, scores=scores)


def entry(text: str) -> EvalResultEntry:
    (found,) = parse_eval_result_entries(yaml.safe_load(text))
    return found


@pytest.mark.parametrize("task", BENCHMARKS)
def test_a_whole_test_set_becomes_an_entry_under_mtebs_ids(task: str) -> None:
    known = BENCHMARKS[task]
    files = eval_result_files(results(score(task, known.test_pairs)))
    found = entry(files[f".eval_results/{known.file}.yaml"])
    assert (found.dataset_id, found.task_id, found.value) == (known.dataset_id, known.task_id, 70.12)
    assert found.notes == f"spearman x 100; rows with SHA-256 {SHA256}"
    assert found.dataset_revision is None


@pytest.mark.parametrize(
    "other",
    [
        score("sts12/mean", 3108),
        score("sts12/all", 100),
        score("stsb/cosine", 1500, split="validation"),
    ],
    ids=lambda found: f"{found.task} {found.split} {found.n}",
)
def test_another_protocol_or_part_of_the_rows_is_no_entry(other: TaskScore) -> None:
    assert eval_result_files(results(other)) == {}


def test_of_two_scores_the_one_that_names_its_data_is_told() -> None:
    named = score("mteb/STS12", 3108, data_revision="mteb/sts12-sts@abc", main_metric="cosine_spearman")
    for scores in ((score("sts12/all", 3108), named), (named, score("sts12/all", 3108))):
        (text,) = eval_result_files(results(*scores)).values()
        assert entry(text).dataset_revision == "abc"


def test_unlike_protocols_stay_apart_in_the_model_index() -> None:
    scores = (
        score("sts12/all", 3108),
        score("sts12/mean", 3108, main_score=60.0),
        score("mr/senteval", 10662, split="all", main_metric="accuracy", unit="sentences"),
    )
    (model,) = model_index("m", results(*scores))
    found = {item["dataset"]["type"]: (item["task"]["type"], item["metrics"]) for item in model["results"]}
    assert {name: task for name, (task, _) in found.items()} == {
        "mteb/sts12-sts": "sentence-similarity",
        "sts12/mean": "sentence-similarity",
        "mr/senteval": "text-classification",
    }
    assert [len(metrics) for _, metrics in found.values()] == [1, 1, 1]


ROOT = Path(__file__).parents[2]


def references() -> dict[str, dict[str, Any]]:
    """The references of CITATION.cff by title."""
    tree = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "license"} <= set(tree)
    return {entry["title"]: entry for entry in tree["references"]}


@pytest.mark.parametrize("entry", [DINO, AUTO_NLI, PROMPT_EOL, DECLUTR, SIMCSE, GUIDANCE])
def test_a_cited_paper_is_in_the_citation_file(entry: str) -> None:
    fields = dict(re.findall(r"  (\w+) = \{(.*)\},", entry))
    reference = references()[fields["title"]]
    assert str(reference["year"]) == fields["year"]
    names = [f"{author['family-names']}, {author['given-names']}" for author in reference["authors"]]
    assert fields["author"].replace('{\\"u}', "ü").split(" and ") == names


def test_a_card_cites_the_methods_it_used() -> None:
    assert cited({"auto-nli"}, debiased=True) == f"{DINO}\n\n{AUTO_NLI}"
    assert cited({"auto-nli"}, debiased=False, prompted=True) == f"{AUTO_NLI}\n\n{PROMPT_EOL}"
    assert cited({"declutr", "simcse"}, debiased=False) == f"{DECLUTR}\n\n{SIMCSE}"
    assert cited({"dino"}, debiased=True, guided=True) == f"{DINO}\n\n{GUIDANCE}"

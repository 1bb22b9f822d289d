"""A paper's number stands beside ours only for the same data, encoder and protocol."""

from pathlib import Path
from typing import Any

import pytest
from card_runs import card_of, edit, model_recipe, model_run, score, scored_run, table_with

from hub.contract.recipe_file import resolved
from hub.contract.results import Average
from hub.contract.run_dir import RECIPE
from hub.durable import write_text
from model_cards.papers import paper_rows, reproduced

DATA = {"config": "postprocessed", "example_type": "sts", "loss": "CosineSimilarityLoss"}
ROBERTA = {"repo_id": "FacebookAI/roberta-base", "revision": "e" * 40, "license": "mit"}


def of_paper(dataset: str = "sts-dino-x2", revision: str = "v1.0.0", **changes: Any) -> dict[str, Any]:
    """Changes that make the tiny model's recipe the paper's."""
    data = {"repo_id": f"org/{dataset}", "revision": revision, **DATA}
    return {"base": ROBERTA, "datasets": [data], **changes}


LLAMA = {"repo_id": "meta-llama/Llama-2-7b-hf", "revision": "e" * 40, "license": "llama2", "pooling": "lasttoken"}
LLAMA |= {"prompt": 'This sentence : "[X]" means in one word:"'}
TRIPLETS = {"repo_id": "org/auto-nli", "revision": "v1.0.0", "config": "triplet-10shot", "example_type": "triplet"}
TRIPLETS |= {"loss": "CachedMultipleNegativesRankingLoss"}
BASELINE = {"datasets": [], "training": None}
PROMPT_EOL = {"base": LLAMA, "datasets": [TRIPLETS], "limit": 64_000}


def test_a_papers_recipe_finds_its_row() -> None:
    rows = [row for row in paper_rows() if (row.dataset or "").startswith("sts-dino")]
    assert len(rows) == len({row.dataset for row in rows}) == 6
    for row in rows:
        assert row.dataset and reproduced(model_recipe(**of_paper(row.dataset))) == row
    found = reproduced(model_recipe(**PROMPT_EOL))
    assert found and found.row == "PromptEOL+CSE-Llama-2-7b (n=10)" and found.mean_of
    untrained = reproduced(model_recipe(base=LLAMA, datasets=[]))
    assert untrained and untrained.row == "PromptEOL-Llama-2-7b" and not untrained.mean_of


def test_columns_and_averages_have_the_papers_protocol() -> None:
    scores = {row.row: row.scores for row in paper_rows()}
    assert scores["DINO (STS-x2)"]["sts12/all", "spearman"] == 70.27
    assert scores["DINO (STS-x2)"]["sts12/mean", "spearman"] == 65.3  # table 5
    tokenised = scores["PromptEOL+CSE-Llama-2-7b (n=10)"]
    assert tokenised["sts16/all", "spearman"] == 84.04
    assert tokenised["mr/senteval", "accuracy"] == 89.21  # table 5
    assert not any(task.endswith("/lbfgs") for task, _ in tokenised)
    averages = {row.row: row.averages for row in paper_rows()}
    assert averages["DINO (STS-x2)"] == {"dino-sts": 75.2, "dino-sts12-16-mean": 72.5}
    assert averages["PromptEOL+CSE-Llama-2-7b (n=10)"] == {"auto-nli-sts": 82.21, "auto-nli-transfer": 89.60}


@pytest.mark.parametrize(
    "changes",
    [
        of_paper(revision="v0.1.0"),  # a demonstration
        of_paper("sts-dino-x3"),
        of_paper(base={**ROBERTA, "repo_id": "FacebookAI/roberta-large"}),
        of_paper(base={**ROBERTA, "pooling": "cls"}),
        of_paper(base={**ROBERTA, "modules": "static"}),
        {"base": ROBERTA, "datasets": [{**of_paper()["datasets"][0], "loss": "CoSENTLoss"}]},
        {**PROMPT_EOL, "limit": None},
        {**PROMPT_EOL, "base": {**LLAMA, "prompt": 'Sentence: "[X]"'}},
        {"base": ROBERTA, "datasets": []},
        {"base": ROBERTA, "datasets": of_paper()["datasets"] + of_paper("sts-dino-x1x2")["datasets"]},
        {"base": ROBERTA, "datasets": [{"path": "artifacts/datasets/sts-dino-x2", **DATA}]},
    ],
)
def test_any_other_recipe_has_no_row(changes: dict[str, Any]) -> None:
    assert reproduced(model_recipe(**changes)) is None


def test_the_papers_number_stands_beside_the_same_measurement_alone(tmp_path: Path) -> None:
    scores = (score(), score("validation", 60.0, 1500))
    card = card_of(model_run(tmp_path / "run", scores, **of_paper()))
    assert [row[-1] for row in table_with(card, "task", "split")] == ["77.82", ""]
    assert 'Schick and Schütze 2021, section 4, table 1, row "DINO (STS-x2)"' in card
    other = card_of(model_run(tmp_path / "other", scores))
    assert "77.82" not in other and "| paper |" not in other
    unmeasured = card_of(model_run(tmp_path / "validation", scores[1:], **of_paper()))
    assert "77.82" not in unmeasured and "| paper |" not in unmeasured


def test_the_papers_averages_stand_beside_ours_and_a_baseline_has_its_row(tmp_path: Path) -> None:
    years = tuple(f"sts{year}/mean" for year in range(12, 17))
    average = Average(name="dino-sts12-16-mean", definition="mean over *STS12-16*", score=71.0, tasks=years)
    named = [score().model_copy(update={"task": year}) for year in years]
    card = card_of(scored_run(tmp_path / "run", named, of_paper(), averages=(average,)))
    assert table_with(card, "average") == [["dino-sts12-16-mean", "5", "71.00", "72.50", "mean over *STS12-16*"]]
    assert "mean over &#42;STS12-16&#42;" in card
    assert [row[-1] for row in table_with(card, "task", "split")] == ["65.30", "71.80", "72.70", "75.90", "76.90"]
    assert 'appendix C, table 5, row "DINO (STS-x2)"' in card and "table 1," not in card  # no column of table 1
    named = [score().model_copy(update={"task": task}) for task in ["stsb/cosine", "sts12/all"]]
    directory = scored_run(tmp_path / "base", named, {"base": LLAMA, "license": "llama2"}, base_scores=())
    write_text(directory / RECIPE, resolved(model_recipe(base=LLAMA, license="llama2", datasets=[])))
    shown = {row[0]: row[-1] for row in table_with(card_of(edit(directory, provenance=BASELINE)), "task", "split")}
    assert shown == {"stsb/cosine": "", "sts12/all": "59.91"}

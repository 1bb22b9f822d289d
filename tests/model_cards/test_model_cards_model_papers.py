"""A paper's number stands beside ours only for the same data, encoder and protocol; a model's numbers and plots."""

from pathlib import Path
from typing import Any

import pytest
from test_model_cards_numbers import PNG, table_with
from test_model_cards_runs import card_of, model_provenance, model_recipe, model_run, score

from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import read_manifest, write_manifest
from model_cards.model.papers import paper_rows, reproduced
from model_cards.render import render

DATA = {"config": "postprocessed", "example_type": "sts", "loss": "CosineSimilarityLoss"}
ROBERTA = {"repo_id": "FacebookAI/roberta-base", "revision": "e" * 40, "license": "mit"}


def of_paper(dataset: str = "sts-dino-x2", revision: str = "v1.0.0", **changes: Any) -> dict[str, Any]:
    """Changes that make the tiny model's recipe the paper's."""
    data = {"repo_id": f"org/{dataset}", "revision": revision, **DATA}
    return {"base": ROBERTA, "datasets": [data], **changes}


LLAMA = {
    "repo_id": "meta-llama/Llama-2-7b-hf",
    "revision": "e" * 40,
    "pooling": "lasttoken",
    "prompt": 'This sentence : "[X]" means in one word:"',
    "license": "llama2",
}
TRIPLETS = {
    "repo_id": "org/auto-nli",
    "revision": "v1.0.0",
    "config": "triplet-10shot",
    "example_type": "triplet",
    "loss": "CachedMultipleNegativesRankingLoss",
}
PROMPT_EOL = {"base": LLAMA, "datasets": [TRIPLETS], "limit": 64_000}


def test_a_recipe_of_dino_finds_its_row() -> None:
    rows = [row for row in paper_rows() if (row.dataset or "").startswith("sts-dino")]
    assert len(rows) == len({row.dataset for row in rows}) == 6
    for row in rows:
        assert row.dataset and reproduced(model_recipe(**of_paper(row.dataset))) == row


def test_a_recipe_of_auto_nli_finds_its_row_and_that_of_the_untrained_encoder() -> None:
    found = reproduced(model_recipe(**PROMPT_EOL))
    assert found and found.row == "PromptEOL+CSE-Llama-2-7b (n=10)" and found.mean_of
    untrained = reproduced(model_recipe(base=LLAMA, datasets=[]))
    assert untrained and untrained.row == "PromptEOL-Llama-2-7b" and not untrained.mean_of


def test_the_rows_are_the_papers() -> None:
    """DINO's tables 1 and 2, Auto-NLI's table 2: STSb and SICK-R, each in the text form that the paper scored."""
    told = {
        row.row: (row.scores[f"stsb{form}/cosine", "spearman"], row.scores[f"sick-r{form}/cosine", "spearman"])
        for row in paper_rows()
        for form in ["" if row.tables[0].startswith("dino") else "-tokenised"]
    }
    assert told == {
        "DINO (STS-x2)": (77.82, 68.09),
        "DINO (STS-x1x2)": (76.51, 74.26),
        "decay constant λ = 0": (70.71, 67.60),
        "decay constant λ = 200": (77.49, 66.83),
        "no label smoothing": (76.26, 66.23),
        "no augmentation": (73.81, 63.98),
        "PromptEOL-Llama-2-7b": (73.48, 71.26),
        "PromptEOL+CSE-Llama-2-7b (n=0)": (82.01, 72.13),
        "PromptEOL+CSE-Llama-2-7b (n=5)": (84.52, 74.96),
        "PromptEOL+CSE-Llama-2-7b (n=10)": (85.47, 76.38),
        "PromptEOL+CSE-Llama-2-7b (n=20)": (85.51, 76.05),
    }


def test_years_of_sts_are_compared_under_the_papers_aggregation_alone() -> None:
    scores = {row.row: row.scores for row in paper_rows()}
    assert scores["DINO (STS-x2)"]["sts12/all", "spearman"] == 70.27
    assert scores["PromptEOL+CSE-Llama-2-7b (n=10)"]["sts16/all", "spearman"] == 84.04
    assert scores["DINO (STS-x2)"]["sts12/mean", "spearman"] == 65.3  # table 5
    assert scores["DINO (STS-x1x2)"]["sts16/mean", "spearman"] == 76.6
    assert {task for row in scores.values() for task, _ in row if task.startswith("sts1")} == {
        f"sts{year}/{aggregation}" for year in range(12, 17) for aggregation in ("all", "mean")
    }
    tokenised = scores["PromptEOL+CSE-Llama-2-7b (n=10)"]
    assert tokenised["mr/senteval", "accuracy"] == 89.21  # table 5
    assert not any(task.endswith("/lbfgs") for task, _ in tokenised)


def test_the_papers_averages_stand_under_their_names() -> None:
    averages = {row.row: row.averages for row in paper_rows()}
    assert averages["DINO (STS-x2)"] == {"dino-sts": 75.2, "dino-sts12-16-mean": 72.5}
    assert averages["PromptEOL+CSE-Llama-2-7b (n=10)"] == {"auto-nli-sts": 82.21, "auto-nli-transfer": 89.60}


@pytest.mark.parametrize(
    "changes",
    [
        of_paper(revision="v0.1.0"),  # a demonstration
        of_paper(revision="main"),
        of_paper("sts-dino-x3"),
        of_paper(base={**ROBERTA, "repo_id": "FacebookAI/roberta-large"}),
        of_paper(base={**ROBERTA, "pooling": "cls"}),
        of_paper(base={**ROBERTA, "modules": "static"}),
        of_paper(limit=100),
        {"base": ROBERTA, "datasets": [{**of_paper()["datasets"][0], "loss": "CoSENTLoss"}]},
        {"base": ROBERTA, "datasets": [{**of_paper()["datasets"][0], "config": "raw"}]},
        {**PROMPT_EOL, "limit": None},
        {**PROMPT_EOL, "base": {**LLAMA, "prompt": 'Sentence: "[X]"'}},
        {**PROMPT_EOL, "base": {**LLAMA, "repo_id": "meta-llama/Llama-2-7b-chat-hf"}},
        {"base": ROBERTA, "datasets": []},
        {"base": ROBERTA, "datasets": of_paper()["datasets"] + of_paper("sts-dino-x1x2")["datasets"]},
        {"base": ROBERTA, "datasets": [{"path": "artifacts/datasets/sts-dino-x2", **DATA}]},
    ],
)
def test_any_other_recipe_has_no_row(changes: dict[str, Any]) -> None:
    assert reproduced(model_recipe(**changes)) is None


def test_the_demo_has_no_row() -> None:
    assert reproduced(load_recipe(Path("recipes/demo/demo-sts-dino.yaml"), ModelRecipe)) is None


def test_the_papers_number_stands_beside_the_same_measurement_alone(tmp_path: Path) -> None:
    scores = (score(), score("validation", 60.0, 1500))
    card = card_of(model_run(tmp_path / "run", scores, **of_paper()))
    assert [row[-1] for row in table_with(card, "task", "split")] == ["77.82", ""]
    assert 'Schick and Schütze 2021, section 4, table 1, row "DINO (STS-x2)"' in card
    other = card_of(model_run(tmp_path / "other", scores))
    assert "77.82" not in other and "| paper |" not in other
    unmeasured = card_of(model_run(tmp_path / "validation", scores[1:], **of_paper()))
    assert "77.82" not in unmeasured and "| paper |" not in unmeasured


def test_every_number_of_a_model_card_is_in_its_results_and_manifest(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(), score("validation", 60.0, 1500)))
    card, given = card_of(directory), model_provenance()["training"]
    before, after = "40.00 (39.00 to 41.00)", "70.12 (69.12 to 71.12)"
    assert table_with(card, "task", "split") == [
        ["stsb/cosine", "test", "1,379", before, after, "+30.12 (no interval)"],
        ["stsb/cosine", "validation", "1,500", "not run", "60.00 (59.00 to 61.00)", "not run"],
    ]
    assert dict(table_with(card, "training")) == {
        "steps": "40",
        "epochs": "1",
        "batch size": "32",
        "seed": "42",
        "checkpoint chosen by": "Spearman's correlation on the training data's own validation splits",
        "step kept": "30",
        "Spearman's correlation at that step": "0.5",
    }
    shown = {int(step): loss for step, loss in table_with(card, "step", "loss")}
    curve = dict(map(tuple, given["loss_curve"]))
    assert shown == {step: f"{curve[step]:.4f}" for step in shown} and {0, 39} < set(shown)
    assert dict(table_with(card, "argument")) == {name: str(value) for name, value in given["arguments"].items()}


def test_the_loss_is_drawn_and_the_same_each_time(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run")
    files = render(directory)
    assert files["assets/training.png"].startswith(PNG) and files == render(directory)
    manifest = read_manifest(directory)
    assert manifest is not None
    training = manifest.provenance["training"]
    training["validation_curve"] = [[10, 0.4], [30, 0.5]]
    write_manifest(directory, manifest)
    both = render(directory)
    assert both["assets/training.png"] != files["assets/training.png"]
    assert b"one of the score on validation (Spearman's correlation)" in both["README.md"]
    training["loss_parts"] = {"contrastive": [[0, 0.5], [39, 0.1]], "mlm": [[0, 0.5], [39, 0.2]]}
    write_manifest(directory, manifest)
    parts = render(directory)
    assert (
        parts["assets/training.png"] != both["assets/training.png"]
        and b"and of its parts by step" in parts["README.md"]
    )
    training["loss_curve"] = []
    write_manifest(directory, manifest)
    assert list(render(directory)) == ["README.md"] and b"training.png" not in render(directory)["README.md"]

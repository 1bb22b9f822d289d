"""generation.import_task: task specifications of the original implementation become recipes, or one clear error."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_outcomes import outcome_of

from generation import import_task
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe

SIMILAR = 'Task: Write two sentences that {}.\nSentence 1: "<X1>"\nSentence 2: "'
REVIEW = 'Task: Write a review for a {} movie.\nMovie: "<X1>"\nReview: "'
STS = {
    "2": {"instruction": SIMILAR.format("mean the same thing"), "counter_labels": []},
    "1": {"instruction": SIMILAR.format("are somewhat similar"), "counter_labels": ["2"]},
    "0": {"instruction": SIMILAR.format("are on completely different topics"), "counter_labels": ["2", "1"]},
}
CLASSES = {
    "0": {"instruction": REVIEW.format("bad"), "counter_labels": ["1"]},
    "1": {"instruction": REVIEW.format("good"), "counter_labels": ["0"]},
}
NLI = {name: {"instruction": f'Write what {name} "<X1>" means. Answer: "'} for name in ("entailment", "contradiction")}
GIVEN = [
    "license=cc-by-nc-sa-4.0",
    "source={kind: file, path: x1.txt, description: d, license: cc0-1.0}",
    "model.license=cc-by-nc-sa-4.0",
]
BY_MODEL = ["source.kind=model", "source.path=null", "source.limit=50"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "x1.txt").write_text("A Quiet Summer\nThe Last Train\n")
    (tmp_path / "demo-lm").symlink_to(Path("assets/demo-lm").resolve())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(labels: dict[str, Any], *settings: str) -> Any:
    path = Path("task.json")
    path.write_text(json.dumps({"task_name": "My task", "labels": labels}))
    words = [word for setting in (*GIVEN, "model.path=demo-lm", *settings) for word in ("--set", setting)]
    return outcome_of(import_task, path, "--out", "my-task.yaml", *words)


def imported(labels: dict[str, Any], *settings: str) -> DatasetRecipe:
    outcome = command(labels, *settings)
    assert outcome.code == 0, outcome.error
    return load_recipe(Path("my-task.yaml"), DatasetRecipe)


def test_numbers_become_scores_from_0_to_1():
    recipe = imported(STS)
    assert recipe.schema_name == "sts" and recipe.name == "my-task" and recipe.pretty_name == "My task"
    assert {label.name: label.score for label in recipe.labels} == {"2": 1, "1": 0.5, "0": 0}
    assert {label.name: label.counter_labels for label in recipe.labels} == {"2": (), "1": ("2",), "0": ("2", "1")}
    assert [label.instruction for label in recipe.labels] == [label["instruction"] for label in STS.values()]
    assert recipe.decoding.decay_constant == 100 and recipe.decoding.max_new_tokens == 40
    assert "exists already" in command(STS).error


@pytest.mark.parametrize(
    ("labels", "settings", "schema", "scores"),
    [
        (CLASSES, BY_MODEL, "text", [None, None]),  # the original's movie reviews
        (CLASSES, ("schema=sts", "labels.0.counter_labels=[]"), "sts", [0, 1]),
        (NLI, (), "nli", [None, None]),
    ],
)
def test_the_schema_follows_from_the_labels_or_is_set(labels, settings, schema, scores):
    recipe = imported(labels, *settings)
    assert (recipe.schema_name, [label.score for label in recipe.labels]) == (schema, scores)


@pytest.mark.parametrize("words", ["- a: b", "tab\tand 'single'", "\u2028 \x85 é 🦕", "a\\nb"])
def test_no_text_is_changed_by_yaml(words):
    labels = {words: {"instruction": f'{words}\n"<X1>" {words}: "'}, "other": {"instruction": '"<X1>"\n"'}}
    recipe = imported(labels)
    assert recipe.labels[0].name == words and recipe.labels[0].instruction == labels[words]["instruction"]

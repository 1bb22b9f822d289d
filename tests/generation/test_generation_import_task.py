"""generation.import_task: specifications of the original's form become recipes that load, or one clear error."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from generation import run
from generation.import_task import app, read_spec
from generation.inputs.prompts import Prompts
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with first texts and a model folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x1.txt").write_text("A man sings.\n")
    (tmp_path / "lm").mkdir()
    return tmp_path


def write_spec(labels: dict[str, Any], **more: Any) -> Path:
    path = Path("task.json")
    path.write_text(json.dumps({"task_name": "My task", "labels": labels, **more}))
    return path


def imported(monkeypatch: pytest.MonkeyPatch, path: Path, *options: str, source: str = "x1.txt") -> DatasetRecipe:
    """The recipe that the command writes."""
    out = Path("my-task.yaml")
    given = [
        "--license",
        "mit",
        "--source",
        source,
        "--source-license",
        "CC0",
        "--model",
        "lm",
        "--model-license",
        "mit",
    ]
    monkeypatch.setattr(sys, "argv", ["import_task", str(path), "--out", str(out), *given, *options])
    with pytest.raises(SystemExit) as stopped:
        cli.run(app)
    assert not stopped.value.code
    return load_recipe(out, DatasetRecipe)


def refused(monkeypatch: pytest.MonkeyPatch, capsys, path: Path, *options: str, **more: str) -> str:
    with pytest.raises((SystemExit, AssertionError)):
        imported(monkeypatch, path, *options, **more)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and not Path("my-task.yaml").exists()
    return said


def test_numbers_become_scores_from_0_to_1(folder, monkeypatch):
    recipe = imported(monkeypatch, write_spec(STS))
    assert recipe.schema_name == "sts" and recipe.name == "my-task" and recipe.pretty_name == "My task"
    assert {label.name: label.score for label in recipe.labels} == {"2": 1, "1": 0.5, "0": 0}
    assert {label.name: label.counter_labels for label in recipe.labels} == {"2": (), "1": ("2",), "0": ("2", "1")}
    assert [label.instruction for label in recipe.labels] == [label["instruction"] for label in STS.values()]


def test_scores_up_to_1_stay_as_they_are(folder, monkeypatch):
    labels = {
        {"2": "1", "1": "0.5", "0": "0"}[name]: {"instruction": label["instruction"]} for name, label in STS.items()
    }
    assert [label.score for label in imported(monkeypatch, write_spec(labels)).labels] == [1, 0.5, 0]


def test_numbers_that_counter_each_other_are_classes(folder, monkeypatch):
    """The original's movie reviews: titles by the model, then reviews of them."""
    recipe = imported(monkeypatch, write_spec(CLASSES), "--source-limit", "50", source="model")
    assert (recipe.schema_name, recipe.source.kind, recipe.source.limit) == ("text", "model", 50)
    prompt, (counter,) = Prompts(recipe).of(recipe.labels[0], "Some Movie", recipe.variants[0])
    assert prompt == REVIEW.format("bad").replace("<X1>", "Some Movie") and counter == prompt.replace("bad", "good")
    assert Prompts(recipe).first_text_prefix(recipe.labels[0]) == 'Task: Write a review for a bad movie.\nMovie: "'


def test_entailment_and_contradiction_are_inference(folder, monkeypatch):
    assert imported(monkeypatch, write_spec(NLI)).schema_name == "nli"


def test_the_form_can_be_said_and_keys_set(folder, monkeypatch):
    recipe = imported(monkeypatch, write_spec(CLASSES), "--schema", "sts", "--set", "decoding.samples=1")
    assert recipe.schema_name == "sts" and recipe.decoding.samples == 1
    assert recipe.decoding.decay_constant == 100 and recipe.decoding.max_new_tokens == 40


@pytest.mark.parametrize(
    "words",
    [
        "null",
        "~",
        "yes",
        "1.0",
        "# no comment",
        "- a: b",
        "tab\tand 'single' quotes",
        "\u2028 \x85 é 日本 🦕",
        "a\\nb",
        ": ",
    ],
)
def test_no_text_is_changed_by_yaml(folder, monkeypatch, words):
    labels = {words: {"instruction": f'{words}\n"<X1>" {words}: "'}, "other": {"instruction": '"<X1>"\n"'}}
    recipe = imported(monkeypatch, write_spec(labels), "--source-description", words)
    assert recipe.labels[0].name == words and recipe.labels[0].instruction == labels[words]["instruction"]
    assert recipe.source.description == words


def test_a_first_text_without_quotation_marks_must_be_given(folder, monkeypatch, capsys):
    path = write_spec({"next": {"instruction": 'Task: Write what happens after <X1>\nStory: "', "counter_labels": []}})
    assert "between quotation marks" in refused(monkeypatch, capsys, path, "--source-limit", "9", source="model")
    recipe = imported(monkeypatch, path)
    prompt, _ = Prompts(recipe).of(recipe.labels[0], "a man sings.", recipe.variants[0])
    assert prompt == 'Task: Write what happens after a man sings.\nStory: "'


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            {"1": {"instruction": 'Task: Write a review for a great restaurant.\nReview: "'}},
            "has no <X1>: every text is",
        ),
        ({"1": {"instruction": 'Write "<X1>" as <X1>: "'}}, "exactly once (found"),
        ({"1": {"instruction": 'Write "<X1>".'}}, "must end with the opening quotation mark"),
        ({"a": {"instruction": '"<X1>" "', "counter_labels": ["b"]}}, "unknown counter-label 'b'"),
        ({"a": {"instruction": '"<X1>" "', "counter": []}}, "labels.a.counter: extra inputs are not permitted"),
        ({"a": {"counter_labels": []}}, "labels.a.instruction: field required"),
        ({"a": {"instruction": 7}}, "labels.a.instruction: input should be a valid string"),
        ({}, "labels: dictionary should have at least 1 item"),
    ],
)
def test_what_cannot_be_imported_is_one_clear_error(folder, monkeypatch, capsys, labels, message):
    assert message in refused(monkeypatch, capsys, write_spec(labels))


def test_options_that_do_not_fit(folder, monkeypatch, capsys):
    assert "allowed: sts, nli, text" in refused(monkeypatch, capsys, write_spec(STS), "--schema", "pairs")
    assert "is no number" in refused(monkeypatch, capsys, write_spec(NLI), "--schema", "sts")
    assert "ORG/NAME@REVISION" in refused(monkeypatch, capsys, write_spec(STS), source="org/name")
    assert "--model gone: no such path" in refused(monkeypatch, capsys, write_spec(STS), "--model", "gone")
    assert "needs limit" in refused(monkeypatch, capsys, write_spec(STS), source="model")
    assert "unknown key" in refused(monkeypatch, capsys, write_spec(STS), "--set", "decoding.topk=1")
    imported(monkeypatch, write_spec(STS))
    with pytest.raises(AssertionError):
        imported(monkeypatch, write_spec(STS))
    assert "exists already" in capsys.readouterr().err


def test_a_hub_dataset_and_a_hub_model(folder, monkeypatch):
    options = ("--source-column", "sentence1", "--source-column", "sentence2", "--model", "org/lm@v1")
    recipe = imported(monkeypatch, write_spec(STS), *options, source="org/data@" + "a" * 40)
    assert (recipe.source.kind, recipe.source.repo_id, recipe.source.revision) == ("hub", "org/data", "a" * 40)
    assert recipe.source.columns == ("sentence1", "sentence2")
    assert (recipe.model.path, recipe.model.repo_id, recipe.model.revision) == (None, "org/lm", "v1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"task_name": "a",\n "labels": {]}', "bad.json:2: is not JSON"),
        (b'{"task_name": "\xe4"}', "is not UTF-8"),
        (b'{"task_name": "\\ud800", "labels": {"a": {"instruction": "b"}}}', "is not UTF-8"),
        (b'{"task_name": "a", "labels": {"1": {"instruction": "a"}, "1": {"instruction": "b"}}}', "'1' stands twice"),
        (b'["a"]', "the specification: input should be"),
        (b'{"labels": {"a": {"instruction": "b"}}}', "task_name: field required"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_spec(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_spec(tmp_path / "none.json")


def test_what_is_imported_runs(tmp_path, monkeypatch, capsys):
    """The command as a user types it, and its recipe with the demo's model, up to the prompts."""
    spec = tmp_path / "reviews.json"
    spec.write_text(json.dumps({"task_name": "imdb", "labels": CLASSES}))
    (tmp_path / "titles.txt").write_text("A Quiet Summer\nThe Last Train\n")
    out = tmp_path / "my-reviews.yaml"
    options = {
        "out": out,
        "license": "cc-by-nc-sa-4.0",
        "source": tmp_path / "titles.txt",
        "source-license": "cc0-1.0",
        "model": "assets/demo-lm",
        "model-license": "cc-by-nc-sa-4.0",
    }
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    made = subprocess.run(
        [sys.executable, "-m", "generation.import_task", str(spec), *given], capture_output=True, text=True
    )
    assert made.returncode == 0 and "schema text, labels 0, 1" in made.stdout
    assert made.stderr == f"next: python -m generation.run {out} --dry-run\n"
    monkeypatch.setattr(sys, "argv", ["run", str(out), "--dry-run"])
    with pytest.raises(SystemExit) as stopped:
        cli.run(run.app)
    said = capsys.readouterr()
    assert not stopped.value.code, said.err
    assert 'Task: Write a review for a bad movie.\nMovie: "A Quiet Summer"\nReview: "' in said.out

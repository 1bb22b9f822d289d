"""The model card, its two forms of evaluation results, and the command line."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from jinja2 import UndefinedError
from test_model_cards_runs import card_of, dataset_run, model_provenance, model_run, score

from hub.cli import run
from hub.contract.results import Gain, Results, read_results, write_results
from hub.contract.run_dir import read_manifest, write_manifest
from hub.errors import InputError
from model_cards.render import app, checked_repo_id, render, unscored, write
from model_cards.shared import templates


def front(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


def results_of(directory: Path, **changes: Any) -> None:
    """Replace fields of results.json."""
    results = read_results(directory / "results.json")
    write_results(directory / "results.json", Results.model_validate({**results.model_dump(), **changes}))


def test_the_front_matter_of_a_model(tmp_path: Path) -> None:
    card = card_of(model_run(tmp_path / "run", (score(), score("validation", 60.0, 1500))))
    data = front(card)
    assert data["library_name"] == "sentence-transformers"
    assert data["pipeline_tag"] == "sentence-similarity"
    assert data["base_model"] == "some/base"
    assert data["datasets"] == ["sts-dino/tiny-sts"]
    parsed = ModelCard(card).data
    assert parsed.to_dict() == data
    found = [(result.dataset_split, result.metric_value) for result in parsed.eval_results or []]
    assert found == [("test", 70.12), ("validation", 60.0)]


def test_only_hub_ids_are_named_as_such(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", base={"path": "assets/base", "license": "mit"})
    manifest = read_manifest(directory)
    assert manifest is not None
    provenance = model_provenance()
    provenance["datasets"][0] |= {"repo_id": None, "path": "artifacts/datasets/tiny", "revision": None, "commit": None}
    write_manifest(directory, manifest.model_copy(update={"provenance": provenance}))
    card = card_of(directory)
    assert not {"base_model", "datasets", "model-index"} & set(front(card))
    assert "| `artifacts/datasets/tiny` | `local` |" in card
    assert "| encoder | `assets/base` |" in card


def test_a_card_holds_no_path_of_the_machine(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", base={"path": "/home/me/base", "license": "mit"})
    manifest = read_manifest(directory)
    assert manifest is not None
    provenance = model_provenance()
    local = {"repo_id": None, "path": "/home/me/data/tiny", "revision": None, "commit": None}
    provenance["datasets"][0] |= local
    write_manifest(directory, manifest.model_copy(update={"provenance": provenance}))
    card = card_of(directory)
    assert "/home/me" not in card
    assert "| `tiny` | `local` |" in card and "| encoder | `base` |" in card


def test_the_body_shows_manifest_and_results(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(), score("validation", 60.0, 1500)))
    gain = Gain(task="stsb/cosine", split="test", difference=30.123, low=28.0, high=32.0)
    results_of(directory, gains=(gain.model_dump(),))
    card = card_of(directory)
    assert 'SentenceTransformer("sts-dino/tiny-encoder")' in card
    assert "`v1.2.0 (cccccccccccc)`" in card
    assert "train 1,200, validation 3" in card
    row = (
        "| `stsb/cosine` | test | 1,379 | 40.00 (39.00 to 41.00) | 70.12 (69.12 to 71.12) | +30.12 (+28.00 to +32.00) |"
    )
    assert row in card
    assert "| `stsb/cosine` | validation | 1,500 | not run | 60.00 (59.00 to 61.00) | not run |" in card
    assert "| `learning_rate` | `2e-05` |" in card
    assert "| 0 | 1.0000 |" in card
    assert "| 39 | 0.0250 |" in card
    assert "sts-dino train recipes/models/tiny-encoder.yaml" in card


def test_a_model_without_results_says_so(tmp_path: Path) -> None:
    files = render(model_run(tmp_path / "run"))
    assert sorted(files) == ["README.md", "assets/training.png"]
    assert "has not been evaluated yet" in files["README.md"].decode()


def test_only_a_whole_test_set_becomes_an_evaluation_entry(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(), score("validation", 60.0, 1500)))
    files = render(directory)
    assert sorted(files) == [".eval_results/stsb.yaml", "README.md", "assets/training.png"]
    (entry,) = parse_eval_result_entries(yaml.safe_load(files[".eval_results/stsb.yaml"]))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("mteb/stsbenchmark-sts", "STSBenchmark", 70.12)
    results_of(directory, scores=(score(pairs=100).model_dump(),))
    assert not any(path.startswith(".eval_results") for path in render(directory))


def test_an_entry_of_an_earlier_card_is_removed(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(),))
    write(directory, render(directory))
    assert (directory / ".eval_results/stsb.yaml").is_file()
    (directory / "results.json").unlink()
    write(directory, render(directory))
    assert not (directory / ".eval_results/stsb.yaml").exists()


def test_results_of_other_weights_are_refused(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(),))
    results_of(directory, fingerprint="0" * 64)
    with pytest.raises(InputError, match="another version of this model"):
        render(directory)


@pytest.mark.parametrize("missing", ["command", "training", "datasets"])
def test_missing_provenance_is_named(tmp_path: Path, missing: str) -> None:
    directory = model_run(tmp_path / "run")
    manifest = read_manifest(directory)
    assert manifest is not None
    provenance = {key: value for key, value in model_provenance().items() if key != missing}
    write_manifest(directory, manifest.model_copy(update={"provenance": provenance}))
    with pytest.raises(InputError, match=f"provenance.{missing}: field required"):
        render(directory)


def test_an_unfinished_model_has_no_card(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run")
    manifest = read_manifest(directory)
    assert manifest is not None
    write_manifest(directory, manifest.model_copy(update={"complete": False}))
    with pytest.raises(InputError, match="not finished"):
        render(directory)


def test_a_model_card_gives_the_same_bytes(tmp_path: Path) -> None:
    scores = (score(), score("validation", 60.0, 1500))
    first, second = (render(model_run(tmp_path / name, scores)) for name in ("a", "b"))
    assert first == second


@pytest.mark.parametrize("repo_id", ["name", "a/b/c", "a b/c", 'x"/y', "-a/b"])
def test_a_bad_repo_id_is_refused(repo_id: str) -> None:
    with pytest.raises(InputError, match="--repo-id"):
        checked_repo_id(repo_id)


def test_an_undefined_variable_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/card.jinja").write_text("{{ nowhere }}")
    monkeypatch.setattr(templates, "HERE", tmp_path)
    with pytest.raises(UndefinedError, match="nowhere"):
        templates.fill("card.jinja", {})


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The command line in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["render", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        run(app)
    return int(stopped.value.code or 0)


def test_the_command_writes_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    assert run_main(monkeypatch, directory, "--repo-id", "org/other") == 0
    assert 'load_dataset("org/other")' in (directory / "README.md").read_text(encoding="utf-8")


def test_the_command_refuses_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: is not a run directory")


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    command = [sys.executable, "-m", "sts_dino", "card", str(directory), "--dry-run"]
    planned = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout.startswith("would write")
    assert not (directory / "README.md").exists()


def test_tasks_of_the_recipe_without_a_score_are_told(tmp_path: Path) -> None:
    names = [("stsb/cosine", "test"), ("stsb/cosine", "validation"), ("cr/senteval", "test"), ("sts", "test")]
    asked = [{"task": task, "split": split} for task, split in names]
    folds = score("all").model_copy(update={"task": "cr/senteval"})
    assert unscored(model_run(tmp_path / "run", (score(), folds), evaluation=asked)) == ["stsb/cosine validation"]
    assert unscored(model_run(tmp_path / "none", evaluation=asked)) == []  # the card says that nothing was scored

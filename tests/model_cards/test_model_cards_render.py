"""What render gives back: stamped for a repository and its facts, written whole; and what a card says by its recipe."""

from pathlib import Path

import yaml
from test_model_cards_runs import card_of, dataset_run, model_run, score

from hub.client.plan import Stamp, facts_digest, read_stamp
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import MANIFEST, RECIPE, read_manifest
from model_cards.dataset.card import GENERATORS
from model_cards.render import render, write


def test_a_card_is_stamped_with_its_repository_and_facts(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    manifest = (directory / MANIFEST).read_bytes()
    assert read_stamp(card_of(directory)) == Stamp("sts-dino/tiny-sts", facts_digest(manifest, None))
    stamp = read_stamp(card_of(directory, repo_id="org/other"))
    assert stamp is not None and stamp.repo_id == "org/other"
    edited = card_of(directory).replace("Tiny", "Huge")
    assert read_stamp(edited) is None


def test_a_models_card_is_stamped_with_its_results(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(),))
    parts = [(directory / name).read_bytes() for name in (MANIFEST, "results.json")]
    assert read_stamp(card_of(directory)) == Stamp("sts-dino/tiny-encoder", facts_digest(parts[0], parts[1]))
    (directory / "results.json").unlink()
    assert read_stamp(card_of(directory)) == Stamp("sts-dino/tiny-encoder", facts_digest(parts[0], None))


def test_the_manifest_given_is_the_one_told(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    manifest = read_manifest(directory)
    assert manifest is not None
    (directory / MANIFEST).unlink()
    assert render(directory, manifest=manifest)["README.md"].startswith(b"---\n")


def test_writing_is_whole_and_leaves_nothing_of_an_earlier_card(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    (directory / "assets").mkdir()
    for name in ("assets/lengths.png", "assets/notes.txt"):
        (directory / name).write_bytes(b"old")
    files = render(directory)
    write(directory, files)
    assert {path: (directory / path).read_bytes() for path in files} == files
    assert sorted(path.name for path in (directory / "assets").iterdir()) == ["labels.png", "notes.txt"]
    assert not list(directory.rglob("*.tmp"))


def test_the_script_is_named_where_a_release_brings_one(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    line = 'rows = load_dataset("org/x", revision="script", trust_remote_code=True)'
    assert line in card_of(directory, repo_id="org/x")
    for path, mark in ((directory / RECIPE, "name: "), (directory / MANIFEST, '"name": "')):
        text = path.read_text()
        assert f"{mark}tiny-sts" in text
        path.write_text(text.replace(f"{mark}tiny-sts", f"{mark}tiny.sts"))  # a name that no module can have
    assert "trust_remote_code" not in card_of(directory, repo_id="org/x")


def test_first_texts_of_the_benchmark_are_said_to_be_in_domain(tmp_path: Path) -> None:
    source = {"kind": "file", "path": "x.txt", "description": "sentences", "license": "stsb-train"}
    changes = {"license": "mixed-non-commercial", "source": source}
    assert "**In-domain for the STS Benchmark**" in card_of(dataset_run(tmp_path / "run", "sts", changes=changes))
    assert "**In-domain" not in card_of(dataset_run(tmp_path / "other", "sts"))


def test_the_limits_of_every_generator_in_use_are_told(tmp_path: Path) -> None:
    known = yaml.safe_load(GENERATORS.read_text(encoding="utf-8"))
    for path in (*Path("recipes/datasets").glob("*.yaml"), *Path("recipes/demo").glob("*.yaml")):
        if "kind: dataset" in path.read_text(encoding="utf-8"):
            model = load_recipe(path, DatasetRecipe).model
            assert (model.repo_id or model.path) in known, path
    model = {"repo_id": "openai-community/gpt2-xl", "revision": "a" * 40, "license": "mit"}
    card = card_of(dataset_run(tmp_path / "run", "sts", changes={"model": model}))
    assert "- GPT-2 was trained on WebText" in card and "([source](https://github.com/openai/gpt-2" in card


def test_the_prompts_of_first_texts_are_told_where_the_model_writes_them(tmp_path: Path) -> None:
    said = "The first texts are written by the same generator, after the beginning of each of these prompts"
    assert said in card_of(dataset_run(tmp_path / "model", "sts", "model"))
    assert said not in card_of(dataset_run(tmp_path / "file", "sts"))

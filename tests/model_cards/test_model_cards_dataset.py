"""The dataset card: its directory loads by itself, its numbers agree, and nothing in its rows reaches its structure."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from huggingface_hub import DatasetCard
from markdown_it import MarkdownIt
from test_hub_markdown import HOSTILE
from test_model_cards_runs import (
    FEW_SHOT,
    FINISHED,
    dataset_recipe,
    dataset_run,
)

from hub.contract.recipe import config_features
from hub.contract.recipe_file import resolved
from hub.contract.run_dir import RECIPE, Manifest, describe, read_manifest, write_manifest
from hub.contract.schema import NLI_LABELS, base_config
from hub.contract.shards import write_shard
from hub.durable import write_text
from hub.errors import InputError
from model_cards.dataset.tables import NOTES, config_note
from model_cards.render import render, write

SHOTS = {"few_shot": FEW_SHOT}
RECIPES = [
    ("sts", "file", {}),
    ("sts", "model", {}),
    ("nli", "file", {}),
    ("nli", "model", SHOTS),
    ("text", "model", {}),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loading counts nothing over the network and caches in the test's own folder."""
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rendered(directory: Path) -> str:
    """The card, also written into the directory."""
    files = render(directory)
    write(directory, files)
    return files["README.md"].decode()


def changed(directory: Path, **counts: Any) -> Path:
    """The run with some of its counts replaced."""
    manifest = read_manifest(directory)
    assert manifest is not None
    write_manifest(directory, manifest.model_copy(update={"counts": {**manifest.counts, **counts}}))
    return directory


def front(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize(("form", "source", "changes"), RECIPES)
def test_every_config_loads_from_the_directory(tmp_path: Path, form: str, source: str, changes: dict[str, Any]) -> None:
    directory = dataset_run(tmp_path / "run", form, source, changes=changes)
    rendered(directory)
    recipe = dataset_recipe(form, source, changes)
    configs = recipe.configs
    assert datasets.get_dataset_config_names(str(directory)) == list(configs)
    for config in configs:
        loaded = datasets.load_dataset(str(directory), config)
        streamed = datasets.load_dataset(str(directory), config, streaming=True)
        assert set(loaded) == ({"train", "validation"} if base_config(config) in FINISHED else {"train"})
        for split, rows in loaded.items():
            assert rows.features == config_features(config, recipe)
            assert list(streamed[split]) == list(rows)
            assert len(rows) > 0


def test_the_first_config_is_the_default_and_classes_have_names(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "nli")
    rendered(directory)
    assert datasets.load_dataset(str(directory), split="train").column_names[:3] == ["anchor", "positive", "negative"]
    label = datasets.load_dataset(str(directory), "pair-class", split="train").features["label"]
    assert label.names == list(NLI_LABELS)


def test_an_empty_shard_does_not_break_loading(tmp_path: Path) -> None:
    """datasets 5.2 fails on a parquet file without rows; a generator that rejects nothing writes such files."""
    directory = dataset_run(tmp_path / "run", "sts")
    manifest = read_manifest(directory)
    assert manifest is not None
    first, second = manifest.shards("rejected")
    write_shard(directory / first.path, [], config_features("rejected", dataset_recipe("sts")))
    empty = describe(directory, first.path, config="rejected", split="train", rows=0)
    splits = {**manifest.counts["splits"], "rejected": {"train": second.rows}}
    write_manifest(directory, manifest.with_files([empty], counts={**manifest.counts, "splits": splits}))
    card = rendered(directory)
    assert front(card)["configs"][2]["data_files"] == [{"split": "train", "path": [second.path]}]
    assert len(datasets.load_dataset(str(directory), "rejected", split="train")) == second.rows


def test_the_front_matter_says_what_is_there(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    card = rendered(directory)
    data = front(card)
    assert data == DatasetCard(card).data.to_dict()
    assert [entry["config_name"] for entry in data["configs"]] == ["postprocessed", "raw", "rejected"]
    assert [entry.get("default") for entry in data["configs"]] == [True, None, None]
    assert [entry["split"] for entry in data["configs"][0]["data_files"]] == ["train", "validation"]
    info = data["dataset_info"][0]
    assert [(split["name"], split["num_examples"]) for split in info["splits"]] == [("train", 12), ("validation", 3)]
    manifest = read_manifest(directory)
    assert manifest is not None
    assert info["download_size"] == sum(file.bytes for file in manifest.shards("postprocessed"))
    assert info["dataset_size"] == sum(split["num_bytes"] for split in info["splits"])
    assert data["size_categories"] == ["n<1K"]
    assert data["license"] == "cc-by-sa-4.0"
    assert data["task_categories"] == ["sentence-similarity"]


def test_the_body_shows_the_manifest(tmp_path: Path) -> None:
    card = rendered(dataset_run(tmp_path / "run", "sts"))
    assert "From 4 first texts, 14 texts were requested: 10 were kept and 4 rejected." in card
    assert "| `1` | 7 | 5 | 2 |" in card
    assert "| `line_break` | a line break inside the text | 2 |" in card
    assert "1,234,567" in card
    assert 'Sentence 1: "<X1>"\nSentence 2: "\n```' in card
    assert "Label `0`, score 0, against `1`:" in card
    assert 'load_dataset("sts-dino/tiny-sts", revision="v1.2.0")' in card
    assert "sts-dino write recipes/tiny-sts.yaml" in card
    assert card.count("\n| `1` | A man sings. | A man sings. | 0.9 |") == 3
    assert card.count("\n| `sampled` |") == 3
    assert "still being written" not in card
    assert "Schick" in card
    assert "Sato" not in card


def test_self_debiasing_is_described_only_where_it_was_used(tmp_path: Path) -> None:
    assert "λ" in rendered(dataset_run(tmp_path / "sts", "sts"))
    card = rendered(dataset_run(tmp_path / "nli", "nli"))
    assert "λ" not in card
    assert "Sato" in card


def test_hostile_text_changes_no_structure(tmp_path: Path) -> None:
    """Headings, links, HTML and the size of the tables are those of a card with harmless rows."""
    tame = outline(rendered(dataset_run(tmp_path / "tame", "sts")))
    assert tame
    for start in range(0, len(HOSTILE), 3):
        texts = tuple(text.replace("\ud800", "") for text in HOSTILE[start : start + 3])
        card = rendered(dataset_run(tmp_path / f"run{start}", "sts", texts=texts))
        assert outline(card) == tame, texts
        assert DatasetCard(card).data.to_dict()["pretty_name"] == "Tiny STS"


def outline(card: str) -> list[str]:
    """Every block of the card but the words inside, and every inline element but text and code."""
    parser = MarkdownIt("default", {"html": True, "linkify": False, "typographer": False})
    stamp = card.splitlines(keepends=True)[-1]
    tokens = parser.parse(card.removesuffix(stamp).split("---\n", 2)[2])
    found = []
    for token in tokens:
        if token.type == "inline":
            found += [child.type + child.content for child in token.children or [] if child.type not in PLAIN]
        else:
            found.append(token.type + (token.content if token.type == "fence" else ""))
    return found


PLAIN = {"text", "code_inline", "softbreak"}
INLINE = ("html", "link", "image")


def test_hostile_recipe_text_stays_text(tmp_path: Path) -> None:
    name = "x\n---\n# y <b>[z](http://a.b)</b> {{ 1 }} \u202e: 'quoted' \"twice\""
    source = {"kind": "file", "path": "a.txt", "description": "<i>|\n# no [l](http://x)", "license": "cc0-1.0"}
    labels = [{"name": "a|b`<c>$x^{$", "score": 1.0, "instruction": '```\n# no\n````\n"<X1>" and "'}]
    about = "# no\n\n<b>no</b> `a|<i>` [l](http://x) *no*\n- no\n\n    no\n```\nno\n```\n1. no\n---\n{{ 1 }} **`x`**"
    changes = {"pretty_name": name, "source": source, "labels": labels, "about": about}
    card = rendered(dataset_run(tmp_path / "run", "sts", changes=changes))
    data = front(card)
    assert DatasetCard(card).data.to_dict() == data
    assert "\u202e" not in card
    assert data["pretty_name"].startswith("x --- # y <b>")
    blocks = outline(card)
    tame = outline(rendered(dataset_run(tmp_path / "tame", "sts")))
    ours = {"html_inline<code>", "html_inline</code>", *tame}
    assert {block for block in blocks if block.startswith(INLINE)} <= ours
    for kind in ("heading_open", "link_open"):
        assert blocks.count(kind) == tame.count(kind)
    assert "`````text\n```\n# no\n````\n" in card


def test_the_same_directory_gives_the_same_bytes(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "nli")
    first = rendered(directory)
    assert rendered(directory) == first
    assert rendered(dataset_run(tmp_path / "elsewhere" / "copy", "nli")) == first
    assert str(tmp_path) not in first


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"kept": 9}, "requested is 14, but kept \\+ rejected is 13"),
        ({"rejected": {"line_break": 3}}, "requested is 14, but kept \\+ rejected is 13"),
        ({"splits": {}}, "splits.postprocessed.train is 0, but the rows of its files is 12"),
        (
            {"by_label": {"1": {"requested": 7, "kept": 5, "rejected": 1}}},
            "by_label.1.requested is 7, but its kept \\+ rejected is 6",
        ),
        ({"by_label": {"1": {"requested": 7, "kept": 5, "rejected": 2}}}, "requested is 14, but the sum over by_label"),
        ({"requested": "many"}, "counts.requested"),
    ],
)
def test_numbers_that_disagree_are_refused(tmp_path: Path, counts: dict[str, Any], message: str) -> None:
    directory = changed(dataset_run(tmp_path / "run", "sts"), **counts)
    with pytest.raises(InputError, match=message):
        render(directory)


def test_a_changed_shard_is_refused(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    path = "data/raw/train-00000-of-00002.parquet"
    write_shard(directory / path, [], config_features("raw", dataset_recipe("sts")))
    with pytest.raises(InputError, match="not the file the manifest names"):
        render(directory)


def test_a_recipe_of_another_version_is_refused(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    write_text(directory / RECIPE, resolved(dataset_recipe("sts", changes={"version": "2.0.0"})))
    with pytest.raises(InputError, match=r"the manifest is of tiny-sts v1\.2\.0"):
        render(directory)


def test_a_run_that_has_only_begun_has_a_card(tmp_path: Path) -> None:
    recipe = dataset_recipe("sts")
    write_text(tmp_path / "run" / RECIPE, resolved(recipe))
    begun = Manifest(kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f" * 64)
    write_manifest(tmp_path / "run", begun)
    card = rendered(tmp_path / "run")
    assert "No shard is done yet." in card
    assert "configs" not in front(card)


def test_every_column_and_config_is_explained() -> None:
    for form, source, changes in RECIPES:
        recipe = dataset_recipe(form, source, changes)
        for config in recipe.configs:
            assert config_note(config, recipe)
            assert set(config_features(config, recipe)) <= set(NOTES)

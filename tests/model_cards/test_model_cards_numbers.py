"""Every number of a dataset card, computed again from the published files by another way, and its plots."""

import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt
from small_runs import BLOCKS, SIZE, raw_rows, small_recipe, write_shard
from test_model_cards_contract import PROVENANCE
from test_model_cards_runs import dataset_run

from generation.pipeline.directory import DatasetRun
from generation.pipeline.finish import finish
from generation.rows.counts import TextLength
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import resolved
from hub.contract.run_dir import Manifest, read_manifest, write_manifest
from hub.contract.schema import base_config
from hub.errors import InputError
from model_cards.dataset.pictures import quantile, rows_by_label
from model_cards.render import render, write
from model_cards.shared.changes import change_table, read_changes

PNG = b"\x89PNG\r\n\x1a\n"
CHARACTERS = TextLength("characters", "org/lm", len)
DEFAULT = {"sts": "postprocessed", "nli": "pair-class", "text": "postprocessed"}


def finished(directory: Path, form: str) -> DatasetRecipe:
    """A run of every kind of row that sifting drops, finished and with its card."""
    recipe = small_recipe(form)
    begun = Manifest(kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f" * 64)
    run = DatasetRun(directory, recipe, run_dir.begin(directory, begun, resolved(recipe)))
    run.record([], provenance=PROVENANCE)
    for shard in run.shards(BLOCKS):
        rows = list(raw_rows(recipe, shard)) if shard.block < BLOCKS - 1 else []
        write_shard(run, shard, rows, [{**row, "text2": "open", "reason": "not_closed"} for row in rows[::7]])
    finish(run, BLOCKS, BLOCKS * SIZE, CHARACTERS)
    write(directory, render(directory))
    return recipe


def tables(card: str) -> list[list[list[str]]]:
    """The tables of a card as a reader sees them: header, then rows of cells."""
    tokens = MarkdownIt("commonmark").enable("table").parse(card)
    found: list[list[list[str]]] = []
    for index, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("td_open", "th_open"):
            shown = [child.content for child in tokens[index + 1].children or [] if child.type != "html_inline"]
            found[-1][-1].append("".join(shown))
    return found


def table_with(card: str, *header: str) -> list[list[str]]:
    """The rows of the table whose header begins so."""
    (found,) = [rows for rows in tables(card) if tuple(rows[0][: len(header)]) == header]
    return found[1:]


def rows(directory: Path, base: str) -> list[dict[str, Any]]:
    """Every row of the configs of a base name, each with its split."""
    return [
        {**row, "split": path.name.split("-")[0], "config": path.parent.name}
        for path in sorted((directory / "data").rglob("*.parquet"))
        if base_config(path.parent.name) == base
        for row in pq.ParquetFile(path).read().to_pylist()
    ]


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


@pytest.mark.parametrize("form", ["sts", "nli", "text"])
def test_every_number_of_the_card_follows_from_the_files(tmp_path: Path, form: str) -> None:
    directory = tmp_path / "run"
    recipe = finished(directory, form)
    card = (directory / "README.md").read_text(encoding="utf-8")
    raw, rejected = rows(directory, "raw"), rows(directory, "rejected")
    not_raw = Counter(row["reason"] == "not_closed" for row in rejected)[True]
    kept = len(raw) + not_raw - len(rejected)
    first = f"From {BLOCKS * SIZE} first texts, {kept + len(rejected):,} texts were requested: {kept:,} were kept and"
    assert f"{first} {len(rejected):,} rejected." in card
    reasons = Counter((row["target"], row["reason"]) for row in rejected)
    for target, requested, taken, dropped in table_with(card, "label", "requested"):
        asked = sum(row["target"] == target for row in raw) + reasons[target, "not_closed"]
        lost = sum(count for (label, _), count in reasons.items() if label == target)
        assert [number(cell) for cell in (requested, taken, dropped)] == [asked, asked - lost, lost]
    for reason, _, *counted in table_with(card, "reason", "meaning"):
        per_label = [reasons[label.name, reason] for label in recipe.labels]
        assert [number(cell) for cell in counted] == [*per_label, sum(per_label)]
    splits = Counter(
        (row["config"], row["split"]) for base in set(map(base_config, recipe.configs)) for row in rows(directory, base)
    )
    shown = table_with(card, "config", "split")
    assert {(config, split): number(count) for config, split, count in shown} == splits
    if form == "sts":
        sampled = sum(row["target"] == "sampled" for row in rows(directory, "postprocessed"))
        assert sampled and f"To the kept texts come {sampled} sampled negatives" in card


def test_lengths_are_those_of_the_kept_texts(tmp_path: Path) -> None:
    recipe = finished(tmp_path / "run", "text")
    card = (tmp_path / "run/README.md").read_text(encoding="utf-8")
    quantiles = [f"{share}% are no longer than" for share in (5, 50, 95)]
    shown = table_with(card, "label", "texts", *quantiles)
    kept = rows(tmp_path / "run", "postprocessed")
    names = [label.name for label in recipe.labels]
    for name, (label, texts, _, median, _) in zip(names, shown, strict=True):
        assert label == name
        lengths = [len(row["text"]) for row in kept if names[row["label"]] == name]
        assert (number(texts), number(median)) == (len(lengths), statistics.median_low(lengths))
    assert "in characters of the tokenizer of `org/lm`" in card


@pytest.mark.parametrize("form", ["sts", "nli", "text"])
def test_the_plots_are_there_and_the_same_each_time(tmp_path: Path, form: str) -> None:
    recipe = finished(tmp_path / "run", form)
    first, again = render(tmp_path / "run"), render(tmp_path / "run")
    assert first == again
    card = first["README.md"].decode()
    assert set(first) == {"README.md", "assets/labels.png", "assets/lengths.png"}
    for path in set(first) - {"README.md"}:
        assert first[path].startswith(PNG) and f"]({path})" in card
        assert not {b"tEXt", b"tIME", b"iTXt"} & {first[path][i : i + 4] for i in range(200)}  # no software, no date
    manifest = read_manifest(tmp_path / "run")
    assert manifest is not None
    drawn = rows_by_label(tmp_path / "run", manifest, recipe)
    recounted: dict[str, Counter[str]] = {}
    for row in rows(tmp_path / "run", DEFAULT[form]):
        recounted.setdefault(row["target"], Counter())[row["split"]] += 1
    assert drawn == recounted


def test_a_manifest_without_lengths_gets_no_plot_of_them(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    write(directory, {**render(directory), "assets/lengths.png": PNG})
    files = render(directory)
    assert set(files) == {"README.md", "assets/labels.png"} and b"lengths.png" not in files["README.md"]
    write(directory, files)
    assert not (directory / "assets/lengths.png").exists()


def test_lengths_that_disagree_with_the_kept_texts_are_refused(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    manifest = read_manifest(directory)
    assert manifest is not None
    lengths = {"unit": "words", "tokenizer": None, "by_label": {"1": {"3": 5}, "0": {"3": 4}}}
    write_manifest(directory, manifest.model_copy(update={"counts": {**manifest.counts, "token_lengths": lengths}}))
    with pytest.raises(InputError, match=r"by_label\.0\.kept is 5, but the sum of token_lengths\.by_label\.0 is 4"):
        render(directory)


def test_quantiles() -> None:
    assert [quantile({3: 1, 5: 2, 9: 1}, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)] == [3, 3, 5, 5, 9]


def test_rejected_rows_are_shown_for_every_reason(tmp_path: Path) -> None:
    finished(tmp_path / "run", "sts")
    card = (tmp_path / "run/README.md").read_text(encoding="utf-8")
    shown = Counter(row[0] for row in table_with(card, "reason", "asked for"))
    reasons = Counter(row["reason"] for row in rows(tmp_path / "run", "rejected"))
    assert shown == {reason: min(2, count) for reason, count in reasons.items()}


def changes(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("model_cards.shared.templates.HERE", folder)
    told = "x:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    (folder / "changes.yaml").write_text(told, encoding="utf-8")


def test_versions_up_to_this_one_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes(tmp_path, monkeypatch, "2.0.0: later\n1.10.0: <b>new</b>\n1.9.0: old\n")
    told = change_table("x", "1.10.0", complete=True)
    assert told is not None
    assert told.splitlines()[2:] == ["| `v1.10.0` | &#60;b&#62;new&#60;/b&#62; |", "| `v1.9.0` | old |"]
    assert change_table("x", "3.0.0", complete=False) is not None
    with pytest.raises(InputError, match=r"changes\.yaml: x: tells nothing of version 3\.0\.0; add one line on top"):
        change_table("x", "3.0.0", complete=True)
    assert change_table("y", "3.0.0", complete=True) is None


@pytest.mark.parametrize(
    "text", ["- a\n", "1.0.0: a\n1.1.0: b\n", "new: a\n", "1.0.0: [a]\n", "1.0.0: |\n  a\n  b\n", ""]
)
def test_a_file_of_changes_has_a_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    changes(tmp_path, monkeypatch, text)
    with pytest.raises(InputError, match=r"changes\.yaml: x"):
        read_changes("x")

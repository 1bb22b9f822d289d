"""The dataset card: it loads at every commit, its numbers follow from the files, no text reaches
its structure.
"""

import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
import yaml
from card_runs import (
    FEW_SHOT,
    card_of,
    dataset_recipe,
    dataset_run,
    edit,
    front,
    table_with,
    text_of,
)
from command_outcomes import outcome_of
from huggingface_hub import DatasetCard
from markdown_it import MarkdownIt
from small_runs import BLOCKS, PROVENANCE, SIZE, raw_rows, small_recipe, small_run, write_shard
from test_hub_untrusted import HOSTILE

from sts_dino.generation.pipeline.directory import DatasetRun
from sts_dino.generation.pipeline.finish import TextLength, finish
from sts_dino.generation.pipeline.tasks import list_shards
from sts_dino.hub.client.plan import Stamp, hash_facts, read_stamp
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract import shards as hub_shards
from sts_dino.hub.contract.recipe import DatasetRecipe, build_config_features
from sts_dino.hub.contract.recipe_file import format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import (
    MANIFEST,
    RECIPE,
    Manifest,
    describe_file,
    read_manifest,
    write_manifest,
)
from sts_dino.hub.contract.schema import get_base_config
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError
from sts_dino.model_cards import render as card_command
from sts_dino.model_cards.dataset_card import (
    COLUMN_MEANINGS,
    GENERATOR_LIMITS,
    compute_quantile,
    describe_config,
)
from sts_dino.model_cards.provenance import format_changes
from sts_dino.model_cards.render import render, write
from sts_dino.model_cards.renderer import fill_template
from sts_dino.model_cards.rows import count_rows_by_label

PNG = b"\x89PNG\r\n\x1a\n"
CHARACTERS = TextLength("characters", "org/lm", len)
HAND = {
    "kind": "hand",
    "path": "assets/examples/sts.tsv",
    "description": "ours",
    "license": "cc0-1.0",
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loading counts nothing over the network and caches in the test's own folder."""
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return dataset_run(tmp_path / "run", "sts")


def rendered(directory: Path) -> str:
    """The card, also written into the directory."""
    files = render(directory)
    write(directory, files)
    return text_of(files)


def test_an_empty_shard_does_not_break_loading(run: Path) -> None:
    """datasets 5.2 fails on a parquet file without rows; a generator that rejects nothing writes
    such files.
    """
    manifest = read_manifest(run)
    first, second = manifest.shards("rejected")
    hub_shards.write_shard(
        run / first.path, [], build_config_features("rejected", dataset_recipe("sts"))
    )
    empty = describe_file(run, first.path, config="rejected", split="train", rows=0)
    splits = {**manifest.counts["splits"], "rejected": {"train": second.rows}}
    write_manifest(run, manifest.with_files([empty], counts={**manifest.counts, "splits": splits}))
    card = rendered(run)
    assert front(card)["configs"][2]["data_files"] == [{"split": "train", "path": [second.path]}]
    assert len(datasets.load_dataset(str(run), "rejected", split="train")) == second.rows


def test_the_front_matter_and_the_body_have_the_manifest_s_facts(run: Path) -> None:
    card = rendered(run)
    data = front(card)
    assert data == DatasetCard(card).data.to_dict()
    configs = [(one["config_name"], one.get("default")) for one in data["configs"]]
    assert configs == [("postprocessed", True), ("raw", None), ("rejected", None)]
    info = data["dataset_info"][0]
    assert [(split["name"], split["num_examples"]) for split in info["splits"]] == [
        ("train", 12),
        ("validation", 3),
    ]
    assert info["download_size"] == sum(
        file.bytes for file in read_manifest(run).shards("postprocessed")
    )
    assert info["dataset_size"] == sum(split["num_bytes"] for split in info["splits"])
    assert data["size_categories"] == ["n<1K"] and data["license"] == "cc-by-sa-4.0"
    assert (
        'rows = load_dataset("sts-dino/tiny-sts", revision="script", trust_remote_code=True)'
        in card
    )
    assert (
        card.count("\n| `1` | A man sings. | A man sings. | 0.9 |") == 3
        and card.count("\n| `sampled` |") == 3
    )


PLAIN = {"text", "code_inline", "softbreak"}
INLINE = ("html", "link", "image")


def outline(card: str) -> list[str]:
    """Every block of the card but the words inside, and every inline element but text and code."""
    parser = MarkdownIt("default", {"html": True, "linkify": False, "typographer": False})
    stamp = card.splitlines(keepends=True)[-1]
    found = []
    for token in parser.parse(card.removesuffix(stamp).split("---\n", 2)[2]):
        if token.type == "inline":
            found += [
                child.type + child.content
                for child in token.children or []
                if child.type not in PLAIN
            ]
        else:
            found.append(token.type + (token.content if token.type == "fence" else ""))
    return found


def test_hostile_rows_change_no_structure(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headings, links, HTML and the size of the tables are those of a card with harmless rows."""
    # they hold no text of a row
    monkeypatch.setattr("sts_dino.model_cards.dataset_card.draw_pictures", lambda facts: {})
    tame = outline(rendered(run))
    assert tame
    for start in range(0, len(HOSTILE), 3):
        texts = tuple(text.replace("\ud800", "") for text in HOSTILE[start : start + 3])
        card = rendered(dataset_run(tmp_path / f"run{start}", "sts", texts=texts))
        assert outline(card) == tame, texts
        assert DatasetCard(card).data.to_dict()["pretty_name"] == "Tiny STS"


def test_hostile_recipe_text_stays_text(tmp_path: Path, run: Path) -> None:
    name = "x\n---\n# y <b>[z](http://a.b)</b> {{ 1 }} \u202e: 'quoted' \"twice\""
    source = {
        "kind": "file",
        "path": "a.txt",
        "description": "<i>|\n# no [l](http://x)",
        "license": "cc0-1.0",
    }
    labels = [
        {"name": "a|b`<c>$x^{$", "score": 1.0, "instruction": '```\n# no\n````\n"<X1>" and "'}
    ]
    about = "# no\n\n<b>no</b> `a|<i>` [l](http://x) *no*\n- no\n\n    no\n```\nno\n```\n1. no\n---\n{{ 1 }} **`x`**"
    changes = {"pretty_name": name, "source": source, "labels": labels, "about": about}
    card = rendered(dataset_run(tmp_path / "hostile", "sts", changes=changes))
    data, blocks, tame = front(card), outline(card), outline(rendered(run))
    assert DatasetCard(card).data.to_dict() == data and data["pretty_name"].startswith(
        "x --- # y <b>"
    )
    assert "\u202e" not in card
    ours = {"html_inline<code>", "html_inline</code>", *tame}
    assert {block for block in blocks if block.startswith(INLINE)} <= ours
    for kind in ("heading_open", "link_open", "bullet_list_open", "hr", "code_block"):
        assert blocks.count(kind) == tame.count(kind), kind
    assert "`````text\n```\n# no\n````\n" in card
    assert "&#60;b&#62;no&#60;/b&#62; <code>a&#124;&#60;i&#62;</code>" in card


def test_the_same_facts_give_the_same_bytes_and_no_place_of_the_machine(tmp_path: Path) -> None:
    recipe = small_recipe("sts")
    small_run(tmp_path / "run", recipe, length=CHARACTERS)
    first = render(tmp_path / "run")
    small_run(tmp_path / "elsewhere" / "copy", recipe, length=CHARACTERS)
    assert first == render(tmp_path / "run") == render(tmp_path / "elsewhere" / "copy")
    card, short = text_of(first), first["README.md"].decode().split("---\n", 2)[2]
    assert str(tmp_path) not in card and len(short.split()) <= 700 and "](DETAILS.md)" in short
    assert set(first) == {"README.md", "DETAILS.md", "assets/labels.png", "assets/lengths.png"}
    for path in set(first) - {"README.md", "DETAILS.md"}:
        assert first[path].startswith(PNG) and f"]({path})" in card
        # no software, no date
        assert not {b"tEXt", b"tIME", b"iTXt"} & {first[path][i : i + 4] for i in range(200)}
    drawn = count_rows_by_label(tmp_path / "run", read_manifest(tmp_path / "run"), recipe)
    recounted: dict[str, Counter[str]] = {}
    for row in published_rows(tmp_path / "run", "postprocessed"):
        recounted.setdefault(row["target"], Counter())[row["split"]] += 1
    assert drawn == recounted


def reasons(**by_label: dict[str, int]) -> dict[str, Any]:
    """Counts of the two labels, 7 requested each, with the reasons of each."""
    return {
        name.removeprefix("_"): {"requested": 7, "kept": 5, "rejected": 2, "reasons": found}
        for name, found in by_label.items()
    }


LENGTHS = {"unit": "words", "tokenizer": None, "by_label": {"1": {"3": 5}, "0": {"3": 4}}}


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"kept": 9}, "requested is 14, but kept \\+ rejected is 13"),
        ({"splits": {}}, "splits.postprocessed.train is 0, but the rows of its files is 12"),
        (
            {"by_label": reasons(_1={"not_closed": 1}, _0={"not_closed": 2})},
            "by_label.1.rejected is 2, .* is 1",
        ),
        (
            {"by_label": reasons(_1={"not_closed": 2}, _0={"not_closed": 2})},
            "rejected.line_break is 2, .* is 0",
        ),
        (
            {"variants": {"0shot": {"requested": 13, "kept": 10, "rejected": 3}}},
            "the sum over variants is 13",
        ),
        (
            {"token_lengths": LENGTHS},
            r"by_label\.0\.kept is 5, but the sum of token_lengths\.by_label\.0 is 4",
        ),
    ],
)
def test_numbers_that_disagree_are_refused(run: Path, counts: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(edit(run, counts=counts))


def test_a_changed_shard_and_a_recipe_of_another_version_are_refused(run: Path) -> None:
    write_text(run / RECIPE, format_recipe(dataset_recipe("sts", changes={"version": "2.0.0"})))
    with pytest.raises(InputError, match=r"the manifest is of tiny-sts v1\.2\.0"):
        render(run)
    write_text(run / RECIPE, format_recipe(dataset_recipe("sts")))
    path = run / "data/raw/train-00000-of-00002.parquet"
    hub_shards.write_shard(path, [], build_config_features("raw", dataset_recipe("sts")))
    with pytest.raises(InputError, match="not the file the manifest names"):
        render(run)


def published_rows(directory: Path, base: str) -> list[dict[str, Any]]:
    """Every row of the configs of a base name, each with its split."""
    return [
        {**row, "split": path.name.split("-")[0], "config": path.parent.name}
        for path in sorted((directory / "data").rglob("*.parquet"))
        if get_base_config(path.parent.name) == base
        for row in pq.ParquetFile(path).read().to_pylist()
    ]


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


@pytest.mark.parametrize("form", ["sts", "nli", "text", "search"])
def test_every_number_of_the_card_follows_from_the_files(tmp_path: Path, form: str) -> None:
    directory, recipe = tmp_path / "run", small_recipe(form)
    small_run(directory, recipe, length=CHARACTERS)
    card = "".join(
        (directory / name).read_text(encoding="utf-8") for name in ("README.md", "DETAILS.md")
    )
    raw, rejected = published_rows(directory, "raw"), published_rows(directory, "rejected")
    not_raw = Counter(row["reason"] == "not_closed" for row in rejected)[True]
    kept = len(raw) + not_raw - len(rejected)
    asked = f"From {BLOCKS * SIZE} source sentences, {kept + len(rejected):,} texts were requested"
    assert f"{asked}: {kept:,} were kept and {len(rejected):,} rejected." in card
    lengths = {
        label: texts for label, texts, *_ in table_with(card, "label", "texts", "5% quantile")
    }
    assert (
        sum(map(number, lengths.values())) == kept
        and "in characters of the tokenizer of `org/lm`" in card
    )
    assert [
        compute_quantile({3: 1, 5: 2, 9: 1}, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    ] == [
        3,
        3,
        5,
        5,
        9,
    ]
    found = Counter((row["target"], row["reason"]) for row in rejected)
    for target, requested, taken, dropped in table_with(card, "label", "requested"):
        asked = sum(row["target"] == target for row in raw) + found[target, "not_closed"]
        lost = sum(count for (label, _), count in found.items() if label == target)
        assert [number(cell) for cell in (requested, taken, dropped)] == [asked, asked - lost, lost]
    for reason, _, *counted in table_with(card, "reason", "meaning"):
        per_label = [found[label.name, reason] for label in recipe.labels]
        assert [number(cell) for cell in counted] == [*per_label, sum(per_label)]
    bases = set(map(get_base_config, recipe.configs))
    splits = Counter(
        (row["config"], row["split"]) for base in bases for row in published_rows(directory, base)
    )
    shown = table_with(card, "config", "split")
    assert {(config, split): number(count) for config, split, count in shown} == splits
    shown_rejects = Counter(row[0] for row in table_with(card, "reason", "requested label"))
    assert shown_rejects == {
        reason: min(2, count) for reason, count in Counter(r["reason"] for r in rejected).items()
    }
    if form == "sts":
        sampled = sum(
            row["target"] == "sampled" for row in published_rows(directory, "postprocessed")
        )
        assert sampled and f"The dataset adds {sampled} sampled negatives" in card
    assert ("with sampled negatives |" in card) == (form == "sts")


def test_a_card_is_written_whole_and_without_files_of_an_earlier_card(run: Path) -> None:
    (run / "assets").mkdir()
    for name in ("assets/lengths.png", "assets/notes.txt"):
        (run / name).write_bytes(b"old")
    files = render(run)
    assert set(files) == {
        "README.md",
        "DETAILS.md",
        "assets/labels.png",
    } and "lengths.png" not in text_of(files)
    write(run, files)
    assert {path: (run / path).read_bytes() for path in files} == files
    assert sorted(path.name for path in (run / "assets").iterdir()) == ["labels.png", "notes.txt"]
    assert not list(run.rglob("*.tmp"))


def test_a_card_is_stamped_with_its_repository_and_facts(run: Path) -> None:
    content, manifest = (run / MANIFEST).read_bytes(), read_manifest(run)
    card, other = (render(run, repo_id)["README.md"].decode() for repo_id in (None, "org/other"))
    assert read_stamp(card) == Stamp("sts-dino/tiny-sts", hash_facts(content, None))
    assert read_stamp(other).repo_id == "org/other"
    assert read_stamp(card.replace("Tiny", "Huge")) is None
    (run / MANIFEST).unlink()
    assert render(run, manifest=manifest)["README.md"].startswith(b"---\n")


def test_a_card_has_the_changes_up_to_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sts_dino.model_cards.renderer.DATA", tmp_path)
    (tmp_path / "changes.yaml").write_text(
        "x:\n  2.0.0: later\n  1.10.0: <b>new</b>\n  1.9.0: old\n", encoding="utf-8"
    )
    shown = format_changes("x", "1.10.0", complete=True)
    assert shown.splitlines()[2:] == [
        "| `v1.10.0` | &#60;b&#62;new&#60;/b&#62; |",
        "| `v1.9.0` | old |",
    ]
    assert (
        format_changes("x", "3.0.0", complete=False)
        and format_changes("y", "3.0.0", complete=True) is None
    )
    with pytest.raises(
        InputError, match=r"changes\.yaml: x: has no entry for version 3\.0\.0; add one line on top"
    ):
        format_changes("x", "3.0.0", complete=True)


def card(directory: Path, form: str = "nli", source: str = "file", **changes: Any) -> str:
    return card_of(dataset_run(directory, form, source, changes=changes))


def model(**changes: Any) -> dict[str, Any]:
    return {"repo_id": "org/lm", "revision": "a" * 40, "license": "mit", **changes}


OWN = {**HAND, "kind": "own", "path": "artifacts/datasets/first", "rank_by": "margin", "top": 50}
CLAIMS = (
    "configs ending in `0shot` are label-free",
    "No config is label-free",
    "No person labelled an example",
)


@pytest.mark.parametrize(
    ("few_shot", "claims", "gold"),
    [
        (FEW_SHOT, [CLAIMS[0]], True),
        ({**FEW_SHOT, "shots": [5]}, [CLAIMS[1]], True),
        ({"shots": [5], "sets": 8, "rotate": True, "examples": HAND}, [CLAIMS[1]], False),
        ({"shots": [5], "sets": 2, "examples": OWN}, [CLAIMS[2]], False),
        (None, [], False),
    ],
)
def test_the_card_says_whether_labels_were_used(tmp_path, few_shot, claims, gold):
    said = card(tmp_path / "run", **({"few_shot": few_shot} if few_shot else {}))
    assert [claim for claim in CLAIMS if claim in said] == claims and ("gold" in said) == gold


@pytest.mark.parametrize(
    ("chosen", "claim"),
    [
        (model(), "the command gives bit-identical files for any batch size"),
        (
            model(dtype="bfloat16", device="cuda"),
            "Here the generator ran in bfloat16 on cuda; each shard fixes which",
        ),
        (
            model(backend="openai", server={"base_url": "http://127.0.0.1:1/v1", "model": "m"}),
            "a server generates",
        ),
    ],
)
def test_bit_identical_files_are_promised_for_fp32_on_a_cpu_only(tmp_path, chosen, claim):
    said = card(tmp_path / "run", model=chosen)
    assert claim in said and ("gives bit-identical" in said) == (chosen == model())


def test_the_card_describes_the_recipe_s_generation(tmp_path):
    assert "uidance" not in card(tmp_path / "off", form="sts")
    decoding, chat = {"guidance": 0.5}, model(chat_template=True)
    guided = card(tmp_path / "on", form="sts", decoding=decoding, model=chat)
    assert "| guidance γ | 0.5 |" in guided and "chat template" in guided


def test_a_seed_is_printed_as_a_recipe_takes_it(tmp_path):
    assert "| seed | 2023 |" in card(tmp_path, form="sts", seed=2023)  # not 2,023


def test_a_report_names_a_generator_whose_folder_was_given_with_a_slash():
    model = SimpleNamespace(server=None, repo_id=None, gguf_file=None, path="artifacts/lm/own/")
    counts = SimpleNamespace(sources=2, by_label={"same": 0}, requested=2, kept=1)
    manifest = SimpleNamespace(name="pairs")
    run = SimpleNamespace(recipe=SimpleNamespace(model=model), counts=counts, manifest=manifest)
    facts = SimpleNamespace(datasets=[SimpleNamespace(facts=run)], models=[])
    text = fill_template("report_summary.md.jinja", {"facts": facts})
    assert "1 label, own generated 2 texts; pairs keeps 1 (50%)." in text


def test_limits_of_source_and_generator(tmp_path: Path) -> None:
    source = {"kind": "file", "path": "x.txt", "description": "sentences", "license": "stsb-train"}
    changes = {"license": "mixed-non-commercial", "source": source}
    assert "**In-domain for the STS Benchmark**" in card_of(
        dataset_run(tmp_path / "stsb", "sts", changes=changes)
    )
    known = yaml.safe_load(GENERATOR_LIMITS.read_text(encoding="utf-8"))
    for path in (*Path("recipes/datasets").glob("*.yaml"), *Path("recipes/demo").glob("*.yaml")):
        if "kind: dataset" in path.read_text(encoding="utf-8"):
            chosen = load_recipe(path, DatasetRecipe).model
            assert (chosen.repo_id or Path(chosen.path).name) in known, path


NOW = datetime(2026, 1, 31, 22, 0, tzinfo=UTC)
SHARDS = 3


def begun(directory: Path, form: str = "sts") -> DatasetRun:
    """A run whose source sentences are known and of which no shard is written."""
    recipe = small_recipe(form)
    manifest = Manifest(
        kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f" * 64
    )
    run = DatasetRun(directory, recipe, run_dir.begin(directory, manifest, format_recipe(recipe)))
    run.update_manifest(provenance=PROVENANCE, counts={"sources": SIZE * SHARDS})
    run.set_counts(shards_done=0, shards_total=len(list_shards(run.recipe, SHARDS)))
    return run


def grow(run: DatasetRun, shards: int | None = None) -> None:
    """Write the next shards (None: all), each with a rejected row."""
    for shard in run.find_missing_shards(list_shards(run.recipe, SHARDS))[:shards]:
        rows = list(raw_rows(run.recipe, shard))
        write_shard(run, shard, rows, [{**rows[0], "text2": "open", "reason": "not_closed"}])


def commit(run: DatasetRun, where: Path) -> dict[str, Any]:
    """The repository after one atomic commit: the manifest's files and the card. Its front matter."""
    manifest = read_manifest(run.directory)
    shutil.rmtree(where, ignore_errors=True)
    for name in (*(file.path for file in manifest.files), run_dir.MANIFEST, run_dir.RECIPE):
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run.directory / name, where / name)
    files = render(run.directory, manifest=manifest, now=NOW)
    write(where, files)
    return front(files["README.md"].decode())


def loads_as_stated(where: Path, head: dict[str, Any]) -> dict[str, int]:
    """Every config loads, streams and has the rows its card states; (rows of the default config by
    split).
    """
    names = [entry["config_name"] for entry in head["configs"]]
    (default,) = [entry["config_name"] for entry in head["configs"] if entry.get("default")]
    found = {}
    for name, info in zip([None, *names], [None, *head["dataset_info"]], strict=True):
        loaded = datasets.load_dataset(str(where), name)
        found[name or "default"] = {split: len(rows) for split, rows in loaded.items()}
        if info:
            assert found[name] == {split["name"]: split["num_examples"] for split in info["splits"]}
            streamed = datasets.load_dataset(str(where), name, streaming=True)
            assert all(list(streamed[split]) == list(rows) for split, rows in loaded.items())
    assert found["default"] == found[default]
    return found["default"]


@pytest.mark.parametrize("form", ["sts", "nli", "text", "search"])  # nli: of several shot counts
def test_every_commit_loads_with_the_counts_its_card_states(tmp_path: Path, form: str) -> None:
    run = begun(tmp_path / "run", form)
    for done in (1, 2):
        grow(run, 1)
        head = commit(run, tmp_path / f"commit{done}")
        default = next(entry["config_name"] for entry in head["configs"] if entry.get("default"))
        assert get_base_config(default) == "raw"
        rows = sum(file.rows for file in read_manifest(run.directory).shards(default))
        assert loads_as_stated(tmp_path / f"commit{done}", head) == {"train": rows}
    grow(run)
    finish(run, SHARDS, SIZE * SHARDS)
    head = commit(run, tmp_path / "last")
    assert (
        next(entry["config_name"] for entry in head["configs"] if entry.get("default"))
        == run.recipe.configs[0]
    )
    loads_as_stated(tmp_path / "last", head)
    for config in run.recipe.configs:
        features = build_config_features(config, run.recipe)
        assert describe_config(config, run.recipe) and set(features) <= set(COLUMN_MEANINGS)
        if config != "sources":  # which nobody wrote here
            assert (
                datasets.load_dataset(str(tmp_path / "last"), config, split="train").features
                == features
            )


def test_a_growing_card_says_how_far_it_is_and_when_it_is_done(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    assert "0 of 3 shards are done (0%). The remaining time is not known yet." in card_of(
        run.directory, now=NOW
    )
    grow(run, 1)
    said = card_of(run.directory, now=NOW)
    (shard,) = read_manifest(run.directory).shards("raw")
    assert f"1 of 3 shards are done (33%); rows so far: {shard.rows} in `raw`, " in said
    assert "**For now** this loads `raw`" in said and "## Contents" not in said
    short = render(run.directory, now=NOW)["README.md"].decode()
    assert len(short.split()) <= 700 and "[DETAILS.md](DETAILS.md) has samples, columns" in short
    timing = tmp_path / "run.timing.json"
    timing.write_text(json.dumps({"seconds": 3600.0, "rows": shard.rows, "peak_rss_mb": 1}))
    said = card_of(run.directory, now=NOW)
    assert " rows a second, 2.0 h of work remain" in said
    outcome = outcome_of(card_command, run.directory)
    assert outcome.code == 0 and "next:" not in outcome.stderr  # a growing run is not published
    timing.write_text("{")
    with pytest.raises(InputError, match=r"its run\.timing\.json is not JSON"):
        render(run.directory, now=NOW)
    grow(run)
    finish(run, SHARDS, SIZE * SHARDS)
    said = card_of(run.directory, now=NOW)
    assert "still growing" not in said and "For now" not in said and "2026-" not in said


def test_a_snapshot_is_rendered_while_the_run_goes_on(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    grow(run, 1)
    snapshot = read_manifest(run.directory)
    before = render(run.directory, manifest=snapshot, now=NOW)
    grow(run, 1)
    stray = run.directory / "data/raw/train-00002-of-00003.parquet"
    stray.write_bytes(b"half a file")
    assert render(run.directory, manifest=snapshot, now=NOW) == before
    assert render(run.directory, now=NOW) != before
    grow(run)
    content = stray.read_bytes()
    # its footer is whole: only a full read sees the damage
    stray.write_bytes(content[:4] + bytes(196) + content[200:])
    assert "3 of 3 shards" in card_of(run.directory, now=NOW)


def test_the_encoder_that_chose_and_its_licence_stand_in_the_cards_text(tmp_path):
    scores = {"selection": {"candidates": 3}, "decoding": {"max_attempts": 9}}
    run = dataset_run(tmp_path / "run", "sts", changes=scores)
    manifest = read_manifest(run)
    facts = {"id": "org/`|<b>enc", "revision": "c" * 40, "license": "mit", "sha256": None}
    provenance = {**manifest.provenance, "selection": facts}
    write_manifest(run, manifest.model_copy(update={"provenance": provenance}))
    card = card_of(run)
    sentence = next(line for line in card.splitlines() if line.startswith("Best of 3: "))
    assert f"revision `{'c' * 40}`, licence mit." in sentence and "org/" in sentence
    assert "An encoder chose the texts" in card

    del provenance["selection"]  # an earlier version recorded no encoder
    write_manifest(run, manifest.model_copy(update={"provenance": provenance}))
    card = card_of(run)
    assert "chosen among 3 generated ones by the cosine of an encoder" in card

"""Rows appended to a finished dataset: earlier files stay as they are, interrupted or not; bad
input is refused.
"""

import shutil
from pathlib import Path

import pytest
from commit_history import contents
from seeded_writer import rows_of
from small_runs import raw_rows, small_recipe, small_run, write_shard
from test_generation_pipeline_directory import Writes
from typer.testing import CliRunner

from sts_dino.generation import run as command
from sts_dino.generation.inputs.prompts import load_prompts
from sts_dino.generation.pipeline import append as appending
from sts_dino.generation.pipeline.directory import BaseRun, DatasetRun
from sts_dino.generation.pipeline.finish import finish
from sts_dino.generation.pipeline.source_sentences import Scratch, prepare_sentences
from sts_dino.generation.pipeline.tasks import list_shards
from sts_dino.hub.client.publish import check_run
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.errors import InputError, RunError
from sts_dino.model_cards.render import render, write

X2 = Path("recipes/demo/sts-dino-x2.yaml")
SMALL = [
    "name=grown",
    "decoding.max_new_tokens=8",
    "shard_size=4",
    "decoding.max_attempts=5",
    "source.columns=[]",
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Twenty source sentences, in a file that may grow."""
    path = tmp_path_factory.mktemp("source") / "x1.txt"
    lines = Path("assets/demo-data/x1.tsv").read_text(encoding="utf-8").splitlines()[1:21]
    path.write_text("".join(f"{line.split(chr(9))[0]}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(lm, texts, tmp_path_factory) -> Path:
    """Version 0.1.0 of ten source sentences: its third shard is not full."""
    directory = tmp_path_factory.mktemp("runs") / "grown"
    written(lm, directory, f"source.path={texts}", "source.limit=10", append=False)
    (directory / "value.json").write_text("{}")  # measured of these rows
    return directory


@pytest.fixture(scope="module")
def whole(lm, texts, finished, tmp_path_factory) -> Path:
    """Version 0.2.0: six more, written without interruption."""
    directory = shutil.copytree(finished, tmp_path_factory.mktemp("whole") / "grown")
    written(lm, directory, *more(texts))
    return directory


def more(texts: Path) -> list[str]:
    return [f"source.path={texts}", "source.limit=16", "version=0.2.0"]


def written(lm: Path, directory: Path, *settings: str, append: bool = True) -> Manifest:
    """What the command leaves."""
    words = [
        word for setting in [f"model.path={lm}", *SMALL, *settings] for word in ("--set", setting)
    ]
    given = [str(X2), "--out", str(directory), *words, *(["--append"] if append else [])]
    done = CliRunner().invoke(command.app, given, catch_exceptions=True)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return run_dir.require_complete(directory)


def test_every_earlier_file_stays_and_the_whole_is_counted(finished, whole):
    before, now = run_dir.require_complete(finished), run_dir.require_complete(whole)
    assert set(before.files) < set(now.files) and check_run(whole) == now
    new = [file.path for file in now.files if file not in before.files]
    assert (
        all("-v0.2.0-" in path for path in new)
        and "data/raw/train-v0.2.0-00001-of-00002.parquet" in new
    )
    for name in ("requested", "kept"):
        assert now.counts[name] > before.counts[name]
    assert (
        now.counts["sources"] == 16
        and now.version == "0.2.0"
        and now.fingerprint != before.fingerprint
    )
    rows = rows_of(whole, "raw")
    assert {row["source_id"] for row in rows + rows_of(whole, "rejected")} == {
        f"{n:06d}" for n in range(16)
    }
    assert len({(row["source_id"], row["target"], row["attempt"]) for row in rows}) == len(rows)
    assert not (whole / "value.json").exists(), "it was measured of other rows"
    assert not list(whole.parent.glob("grown.appending*"))


def test_the_card_counts_the_whole_and_tells_what_each_version_brought(finished, whole):
    files = render(whole)
    card = (files["README.md"] + files["DETAILS.md"]).decode()
    manifest = run_dir.require_complete(whole)
    first, second = manifest.provenance["history"]
    assert (first["source_sentences"], second["source_sentences"]) == (10, 6) and second[
        "command"
    ].endswith("--append")
    assert first["rows"]["raw"] + second["rows"]["raw"] == manifest.counts["splits"]["raw"]["train"]
    first["kept"] += 1
    with pytest.raises(InputError, match=r"history\.kept is \d+, but that of the whole is \d+"):
        render(whole, manifest=manifest)
    assert (
        "From 16 source sentences" in card
        and "| `v0.2.0` | 6 | " in card
        and "| `v0.1.0` | 10 | " in card
    )
    before = shutil.copytree(
        finished, whole.parent / "card", ignore=shutil.ignore_patterns("value.json")
    )
    assert b"Rows were appended" not in render(before)["README.md"]


def test_the_same_command_finds_nothing_to_do_and_a_third_version_goes_on_from_the_second(
    lm, texts, whole, tmp_path
):
    directory = shutil.copytree(whole, tmp_path / "grown")
    for append in (True, False):
        assert written(lm, directory, *more(texts), append=append) == run_dir.require_complete(
            whole
        )
    assert contents(directory) == contents(whole)
    third = written(lm, directory, f"source.path={texts}", "source.limit=18", "version=0.10.0")
    assert [one["version"] for one in third.provenance["history"]] == ["0.1.0", "0.2.0", "0.10.0"]
    assert (
        set(run_dir.require_complete(whole).files) < set(third.files)
        and third.counts["sources"] == 18
    )
    write(directory, render(directory))


@pytest.mark.parametrize("place", ["copy", "manifest", "recipe"])
def test_interrupted_anywhere_it_goes_on(place, lm, texts, finished, whole, tmp_path, monkeypatch):
    """The version before is whole, and the same command goes on."""
    directory, calls = shutil.copytree(finished, tmp_path / "grown"), 0
    owner, name, at = {
        "copy": (shutil, "copyfile", 3),
        "manifest": (run_dir, "write_manifest", None),
        "recipe": (run_dir, "rewrite_recipe", None),
    }[place]
    real = getattr(owner, name)

    def stops(*arguments):
        nonlocal calls
        calls += 1
        if calls == at or (at is None and arguments[0] == directory):
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(owner, name, stops)
    with pytest.raises(KeyboardInterrupt):
        appending.append_rows(recipe_of(lm, texts), directory, "sts-dino write --append")
    monkeypatch.undo()
    left = run_dir.require_complete(directory)
    assert left.version == (
        "0.2.0" if place == "recipe" else "0.1.0"
    ) and not run_dir.find_changed_files(directory, left)
    written(lm, directory, *more(texts))
    found, wanted = contents(directory), contents(whole)
    assert found.pop("manifest.json") and wanted.pop("manifest.json") and found == wanted
    assert run_dir.require_complete(directory).files == run_dir.require_complete(whole).files
    assert not list(tmp_path.glob("grown.appending*"))


def recipe_of(lm: Path, texts: Path, *settings: str) -> DatasetRecipe:
    return load_recipe(X2, DatasetRecipe, [f"model.path={lm}", *SMALL, *more(texts), *settings])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["seed=1"],
            r"grown: seed: 42 there, 1 now, but appended rows need the earlier value; "
            r"allowed: source.limit",
        ),
        (["version=0.1.0"], "version: 0.1.0 is not later than 0.1.0, .*raise `version`"),
        (
            ["source.limit=10"],
            "has all rows of this recipe: there is nothing to append; raise source.limit",
        ),
    ],
)
def test_what_is_no_longer_source_is_refused_by_its_key_before_anything_is_made(
    settings, said, lm, texts, finished
):
    before = contents(finished.parent)
    with pytest.raises(InputError, match=said):
        written(lm, finished, *more(texts), *settings)
    assert contents(finished.parent) == before


def test_another_beginning_of_the_source_is_refused_and_a_corrected_one_goes_on(
    lm, texts, finished, tmp_path
):
    directory, lines = (
        shutil.copytree(finished, tmp_path / "grown"),
        texts.read_text().splitlines(keepends=True),
    )
    other = tmp_path / "x1.txt"
    other.write_text("".join([*lines[:4], lines[5], lines[4], *lines[6:]]))
    with pytest.raises(
        InputError,
        match=r"row 000004 is among the first 10 source sentences, which must be those of v0\.1\.0",
    ):
        written(lm, directory, *more(other))
    other.write_text("".join(lines[:10]))
    with pytest.raises(
        InputError, match=r"has 10 source sentences, and v0\.1\.0 has 10 already: nothing to append"
    ):
        written(lm, directory, *more(other))
    other.write_text("".join(lines[:10]) + "A text of a second source.\n" + lines[3])
    manifest = written(lm, directory, *more(other))
    assert manifest.counts["sources"] == 11 and manifest.counts["sources_skipped"] == {
        "duplicate": 1
    }
    # the skipped row is corrected: the number of the earlier version goes
    other.write_text("".join(lines[:10]) + "A text of a second source.\nA text of its own.\n")
    manifest = written(lm, directory, *more(other), "version=0.3.0")
    assert manifest.counts["sources"] == 12 and "sources_skipped" not in manifest.counts


def test_what_is_not_finished_locked_or_damaged_is_refused(lm, texts, finished, whole, tmp_path):
    with pytest.raises(InputError, match="is not a run directory"):
        written(lm, tmp_path / "none", *more(texts))
    with (
        run_dir.lock_run(finished),
        pytest.raises(RunError, match="another process is working on this run"),
    ):
        written(lm, finished, *more(texts))
    with pytest.raises(
        InputError, match=r"source.limit 10 there, 16 now.*--append adds rows to a finished dataset"
    ):
        written(lm, finished, *more(texts), append=False)
    directory = shutil.copytree(whole, tmp_path / "grown")
    # one run cannot make it again
    (directory / "data/raw/train-v0.2.0-00000-of-00002.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"take it from the Hub again: .*--append --yes"):
        written(lm, directory, *more(texts), append=False)
    run_dir.write_manifest(
        directory, run_dir.read_manifest(directory).model_copy(update={"complete": False})
    )
    with pytest.raises(InputError, match="the run is not finished"):
        written(lm, directory, *more(texts))


def test_numbers_of_source_sentences_go_on_and_a_text_that_is_there_is_a_duplicate(tmp_path):
    recipe = small_recipe("text", source={**small_recipe("text").source.model_dump(), "limit": 9})
    begun = Manifest(kind="dataset", name="t", version="1.0.0", fingerprint="f")
    first = DatasetRun(
        tmp_path / "base", recipe, run_dir.begin(tmp_path / "base", begun, format_recipe(recipe))
    )
    known = [
        {
            "source_id": f"{n}",
            "text": f"“{n + 5}”",
            "instruction": "gut",
            "seed": n,
            "log_prob": 0.0,
        }
        for n in range(4)
    ]
    first.write_sources([known])
    first.set_counts(sources=4, sources_rejected={"empty": 1})
    base = BaseRun(first.directory, first.manifest)
    run = DatasetRun(
        tmp_path / "new",
        recipe,
        run_dir.begin(tmp_path / "new", begun, format_recipe(recipe)),
        base=base,
    )
    found = prepare_sentences(
        run, Scratch(run.directory, "key"), Writes(list), load_prompts(recipe)
    )
    texts = {one.text for block in range(found.blocks) for one in found.read_block(block)}
    assert found.total == len(texts) == 5 and not texts & {one["text"] for one in known}
    # 5 numbers were asked for, 4 texts are known
    assert min(int(row["source_id"]) for row in run.read_rows("sources")) == 9


def test_a_text_that_an_earlier_version_has_is_a_duplicate_where_it_may_stand_once(tmp_path):
    recipe = small_recipe("text")
    base = BaseRun(tmp_path / "base", small_run(tmp_path / "base", recipe))
    begun = Manifest(kind="dataset", name=recipe.name, version="1.3.0", fingerprint="f")
    run = DatasetRun(
        tmp_path / "new",
        recipe,
        run_dir.begin(tmp_path / "new", begun, format_recipe(recipe)),
        base=base,
    )
    for shard in list_shards(run.recipe, 2):
        write_shard(run, shard, list(raw_rows(recipe, shard)), [])
    finish(run, 2, 60)
    assert run.manifest.counts["kept"] == 0 and not run.manifest.shards("postprocessed")
    known = base.manifest.counts
    assert run.manifest.counts["rejected"]["duplicate"] >= known["kept"]

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sts_dino.generation.inputs.sources import SourceSentence, SourceStream
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe

pytest_plugins = ["local_hub"]
X2 = "recipes/demo/sts-dino-x2.yaml"


def recipe(path, column="[text]", **more) -> DatasetRecipe:
    overrides = [
        f"source.path={path}",
        f"source.columns={column}",
        *(f"{key}={value}" for key, value in more.items()),
    ]
    return load_recipe(Path(X2), DatasetRecipe, overrides)


def given_texts(recipe: DatasetRecipe, count_tokens) -> tuple[list[SourceSentence], dict[str, int]]:
    given = SourceStream(recipe, count_tokens)
    return list(given), dict(sorted(given.skipped.items()))


def texts(found) -> list[str]:
    return [first.text for first in found]


def count_words(text: str) -> int:
    return len(text.split())


def test_what_cannot_be_used_is_counted_by_reason(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\nfine\n\nfine\nhe said "no"\n  fine  \ntwo words\nthree words here\n')
    found, _ = given_texts(recipe(path), count_words)
    assert 'he said "no"' in texts(found), (
        "both papers' code keeps quotation marks in source sentences"
    )
    skipping = recipe(path, premise_tokens="[1, 2]", **{"source.quotation_marks": "skip"})
    found, skipped = given_texts(skipping, count_words)
    assert texts(found) == ["fine", "two words"]
    assert [first.source_id for first in found] == ["000000", "000005"]
    assert skipped == {"duplicate": 2, "empty": 1, "length": 1, "quotation_mark": 1}


def test_characters_that_no_text_needs_are_skipped_where_the_recipe_says_so(tmp_path):
    path, kept = tmp_path / "a.jsonl", ["fine", "\u05e9\u05dc\u200f", "emoji \U0001f3ac"]
    broken = ["bro\ufffdken", "bell\x07", "turned \u202eround"]
    path.write_text(
        "".join(
            json.dumps({"text": text}) + "\n" for text in (*kept, *broken, "half a pair \ud83d")
        )
    )
    found, skipped = given_texts(recipe(path), count_words)
    assert texts(found) == [*kept, *broken], "recipes from before the key was made keep their texts"
    assert skipped == {"not_unicode": 1}
    found, skipped = given_texts(
        recipe(path, **{"postprocess.reject": "[control_characters]"}), count_words
    )
    assert texts(found) == kept and skipped == {"control_characters": 3, "not_unicode": 1}


def test_limit_counts_unique_texts_and_ends_the_reading(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\na\na\nb\nthis line\thas too many columns\n")
    assert texts(given_texts(recipe(path, **{"source.limit": 2}), count_words)[0]) == ["a", "b"]


def test_several_columns_are_read_side_by_side(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"first": ["a", "b", "c"], "score": [1, 2, 3], "second": ["b", "d", ""]}), path
    )
    found, skipped = given_texts(recipe(path, "[first, second]"), count_words)
    ids = ["000000-first", "000000-second", "000001-second", "000002-first"]
    assert texts(found) == ["a", "b", "d", "c"] and [first.source_id for first in found] == ids
    assert skipped == {"duplicate": 1, "empty": 1}


def hub_recipe(repo: str, commit: str, **more) -> DatasetRecipe:
    source = {
        "kind": "hub",
        "path": "null",
        "repo_id": repo,
        "revision": commit,
        "columns": "[a, b]",
        **more,
    }
    return load_recipe(
        Path(X2), DatasetRecipe, [f"source.{key}={value}" for key, value in source.items()]
    )


@pytest.fixture
def on_hub(hub_api, repo, tmp_path) -> dict[str, str]:
    """A dataset repo with two splits and a text file, tagged v1; a later commit changes both."""
    folder = tmp_path / "up"
    (folder / "data").mkdir(parents=True)
    for split in ("train", "test"):
        table = pa.table(
            {
                "a": [f"{split} a{i}" for i in range(3)],
                "b": [f"{split} b{i}" for i in range(2)] + ["x"],
            }
        )
        pq.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")
    (folder / "sentences.txt").write_text("one\ntwo\none\n")
    commit = hub_api.upload_folder(repo_id=repo, folder_path=folder, repo_type="dataset").oid
    hub_api.create_tag(repo, tag="v1", revision=commit, repo_type="dataset")
    (folder / "sentences.txt").write_text("later\n")
    hub_api.upload_folder(repo_id=repo, folder_path=folder, repo_type="dataset")
    return {"repo": repo, "commit": commit}


def read_from_hub(local_hub, tmp_path, *cases: dict[str, str]) -> list:
    """Every case read in one process of its own (its client takes endpoint and cache at import):
    texts or the error.
    """
    script = (
        "import json\n"
        "from sts_dino.hub.errors import InputError\n"
        "from test_generation_inputs_sources import *\n"
        f"for case in {cases!r}:\n"
        "    try:\n"
        "        given, _ = given_texts(hub_recipe(**case), count_words)\n"
        "        print(json.dumps([[f.source_id, f.text] for f in given]))\n"
        "    except InputError as error:\n"
        "        print(json.dumps(str(error)))\n"
    )
    environment = local_hub.client_environment(tmp_path / "home") | {
        "PYTHONPATH": "tests:tests/generation:."
    }
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_a_pinned_hub_dataset_gives_its_splits_columns_and_files_and_else_one_clear_error(
    on_hub, local_hub, tmp_path
):
    repo, commit = on_hub["repo"], on_hub["commit"]
    wrong = (
        (on_hub | {"columns": "[c]"}, "column 'c': not in the source; allowed: a, b"),
        (on_hub | {"splits": "[dev]"}, "dev"),
        (on_hub | {"path": "sentence.txt"}, "sentence.txt: no such file at this revision"),
        ({"repo": "demo/nothing", "commit": "v1"}, "no such repository"),
        ({"repo": repo, "commit": "v9"}, "v9"),
    )
    cases = (
        on_hub | {"columns": "[a]"},
        on_hub | {"splits": "[train, test]"},
        {"repo": repo, "commit": "v1", "path": "sentences.txt", "columns": "[]"},
        {
            "repo": repo,
            "commit": commit,
            "path": "data/test-00000-of-00001.parquet",
            "columns": "[b]",
        },
        *(case for case, _ in wrong),
    )
    one, two, text, table, *errors = read_from_hub(local_hub, tmp_path, *cases)
    assert one == [["000000", "train a0"], ["000001", "train a1"], ["000002", "train a2"]]
    assert [text for _, text in two][:3] == ["train a0", "train b0", "train a1"] and len(two) == 11
    assert two[0][0] == "train-000000-a" and two[-1] == ["test-000002-a", "test a2"], (
        "x stood in train before"
    )
    assert text == [["000000", "one"], ["000001", "two"]]
    assert table == [["000000", "test b0"], ["000001", "test b1"], ["000002", "x"]]
    assert all(message in said for said, (_, message) in zip(errors, wrong, strict=True)), errors


def test_a_share_is_drawn_by_the_seed_from_all_of_the_source(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"Text {i}\n" for i in range(2000)))
    few, _ = given_texts(recipe(path, "[]", **{"source.share": "0.1"}), count_words)
    assert 150 < len(few) < 250 and max(int(first.source_id) for first in few) > 1900
    assert few == given_texts(recipe(path, "[]", **{"source.share": "0.1"}), count_words)[0]
    assert (
        few
        != given_texts(recipe(path, "[]", **{"source.share": "0.1", "seed": "7"}), count_words)[0]
    )
    cut, _ = given_texts(
        recipe(path, "[]", **{"source.share": "0.1", "source.limit": "20"}), count_words
    )
    assert cut == few[:20]

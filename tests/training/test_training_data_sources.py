"""Training data from files, run directories and the Hub, whole or as a stream."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset, Features, Value
from training_inputs import data_spec, sts_rows, write_dataset

from hub.errors import InputError
from training.data.training_sets import load_all

pytest_plugins = ["local_hub"]


def documents(path, **changes):
    return data_spec(path, **{"config": "default", "example_type": "documents", "loss": "DeclutrLoss", **changes})


LONG = ["one two " * 400, "three four " * 400, "five \u2028 six " * 400]


def write_documents(folder):
    (folder / "d.txt").write_text("\n".join([*LONG, ""]) + "\n", encoding="utf-8")
    (folder / "d.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in LONG))
    Dataset.from_dict({"text": LONG, "url": ["u"] * 3}).to_parquet(folder / "d.parquet")


@pytest.mark.parametrize("streaming", [False, True])
def test_documents_are_read_from_files(tmp_path, streaming):
    write_documents(tmp_path)
    for name in ("d.txt", "d.jsonl", "d.parquet"):
        (loaded,) = load_all((documents(tmp_path / name, streaming=streaming),), None)
        assert sorted(row["text"] for row in loaded.train if row["text"]) == sorted(LONG), name
        assert loaded.train.column_names == ["text"]
        assert loaded.validation is None
        assert loaded.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


def test_documents_are_read_from_a_run_directory(tmp_path):
    features = Features({"source_id": Value("string"), "text": Value("string")})
    rows = [{"source_id": str(index), "text": text} for index, text in enumerate(LONG)]
    directory = write_dataset(tmp_path / "d", {"train": rows}, "sources", features=features)
    (loaded,) = load_all((documents(directory, config="sources"),), None)
    assert loaded.train["text"][:] == LONG


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("short.txt", b"too short\n\nby far\n", "longest of 3 documents has 9 bytes, so fewer .*min_document 2,048"),
        ("latin.txt", b"\xe9t\xe9\n", "cannot be read: 'utf-8'"),
        ("empty.txt", b"", "is empty; allowed: at least one document"),
        (
            "other.jsonl",
            b'{"body": "x"}\n',
            "has no column 'text', which example type documents needs; allowed: .*body",
        ),
        ("broken.jsonl", b'{"text": ', "cannot be read"),
        ("broken.parquet", b"PAR1", "cannot be read"),
        ("numbers.jsonl", b'{"text": 1}\n', "column 'text' holds int64; allowed: text"),
        ("null.jsonl", b'{"text": "a"}\n{"text": null}\n', "row 1 of column 'text' is empty"),
        ("d.csv", b"text\n", r"has the ending '.csv'; allowed: \['.txt', '.jsonl', '.parquet'\]"),
    ],
)
def test_files_that_hold_no_documents(tmp_path, streaming, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        load_all((documents(tmp_path / name, streaming=streaming),), None)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def published(local_hub, hub_api, tmp_path_factory):
    """A dataset repo with two shards of training pairs in one config, a file of documents in another, and a tag."""
    folder = tmp_path_factory.mktemp("published")
    for number, rows in enumerate((sts_rows(30), sts_rows(30, seed=1))):
        Dataset.from_list(rows).to_parquet(folder / f"train-0000{number}-of-00002.parquet")
    Dataset.from_list(sts_rows(9, seed=2)).to_parquet(folder / "validation.parquet")
    Dataset.from_dict({"text": LONG, "url": ["u"] * 3}).to_parquet(folder / "documents.parquet")
    pairs = [{"split": part, "path": f"{part}*.parquet"} for part in ("train", "validation")]
    texts = [{"split": "train", "path": "documents.parquet"}]
    configs = [{"config_name": "postprocessed", "data_files": pairs}, {"config_name": "texts", "data_files": texts}]
    (folder / "README.md").write_text(f"---\nlicense: cc-by-4.0\nconfigs: {json.dumps(configs)}\n---\n")
    repo_id = hub_api.create_repo("acme/training-data", repo_type="dataset").repo_id
    commit = hub_api.upload_folder(repo_id=repo_id, repo_type="dataset", folder_path=folder).oid
    hub_api.create_tag(repo_id, tag="v1.0.0", repo_type="dataset")
    return repo_id, commit


READER = """
import json, sys
from hub.errors import StsDinoError
from hub.contract.recipe import ModelRecipe, TrainingData, ValidationData
from training.data.training_sets import load_all
from training.loop.validation import read_pairs
found = []
for kind, fields in json.loads(sys.argv[1]):
    try:
        if kind == "validation":
            pairs = read_pairs(ValidationData(**fields), "validation.0")
            found.append({"rows": len(pairs.scores), "first": pairs.first[:1], "origin": pairs.origin})
            continue
        (loaded,) = load_all((TrainingData(**fields),), None)
        rows = [list(row.values()) for row in loaded.train]
        found.append({"columns": loaded.train.column_names, "rows": rows, "type": type(loaded.train).__name__,
                      "sha256": loaded.sha256, **loaded.describe()})
    except StsDinoError as error:
        found.append(f"{type(error).__name__} {error}")
print(json.dumps(found))
"""


TEXTS = {"config": "texts", "example_type": "documents", "loss": "DeclutrLoss"}
LACKING = {
    "has no revision 'v2.0.0'": {"revision": "v2.0.0"},
    "has no config 'postproccesed'; allowed: ['postprocessed', 'texts']; did you mean": {"config": "postproccesed"},
    "has no split 'test'; allowed: ['train', 'validation']": {"split": "test"},
    "no such repository": {"repo_id": "acme/none"},
    "has no column 'sentence1', which example type sts needs; allowed: ['text', 'url']": {"config": "texts"},
}
CASES = {
    "whole": ("training", {}),
    "stream": ("training", {"streaming": True}),
    "documents": ("training", TEXTS),
    "streamed documents": ("training", {**TEXTS, "streaming": True}),
    "pairs": ("validation", {"config": "postprocessed"}),
    "pairs without config": ("validation", {}),
    "pairs without split": ("validation", {"config": "texts"}),
    **{problem: ("training", changes) for problem, changes in LACKING.items()},
    **{f"{problem} (stream)": ("training", {**changes, "streaming": True}) for problem, changes in LACKING.items()},
}


@pytest.fixture(scope="module")
def on_hub(published, local_hub, tmp_path_factory):
    """What every case gives, or its error, read in one process whose client knows this Hub."""
    fields = {"repo_id": published[0], "revision": "v1.0.0"}
    training = {"config": "postprocessed", "example_type": "sts", "loss": "CosineSimilarityLoss"}
    cases = [(kind, fields | (training if kind == "training" else {}) | changes) for kind, changes in CASES.values()]
    done = subprocess.run(
        [sys.executable, "-c", READER, json.dumps(cases)],
        env=local_hub.client_environment(tmp_path_factory.mktemp("home")) | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.slow("publishes datasets and reads them in a process without our code")
def test_published_data_are_read_whole_or_as_a_stream(on_hub, published):
    whole, stream = on_hub["whole"], on_hub["stream"]
    assert (whole["type"], stream["type"]) == ("Dataset", "IterableDataset")
    assert sorted(cells[:2] for cells in whole["rows"]) == sorted(cells[:2] for cells in stream["rows"])
    rows = [*sts_rows(30), *sts_rows(30, seed=1)]
    assert [cells[0] for cells in whole["rows"]] == [row["sentence1"] for row in rows]
    for found in (whole, stream):
        assert found["columns"] == ["sentence1", "sentence2", "score"]
        assert found["commit"] == found["sha256"] == published[1]
        assert found["license"] == "cc-by-4.0"
    assert whole["splits"] == {"train": 60, "validation": 9}
    assert stream["splits"] == {"train": None, "validation": 9}
    for name in ("documents", "streamed documents"):
        assert sorted(on_hub[name]["rows"]) == sorted([text] for text in LONG)


@pytest.mark.slow("publishes datasets and reads them in a process without our code")
def test_published_validation_pairs(on_hub, published):
    found = on_hub["pairs"]
    assert (found["rows"], found["first"]) == (9, [sts_rows(9, seed=2)[0]["sentence1"]])
    assert found["origin"]["commit"] == published[1]
    assert on_hub["pairs without config"].startswith(
        "InputError validation.0: acme/training-data: has several configs;"
    )
    assert "has no split 'validation'; allowed: ['train']" in on_hub["pairs without split"]

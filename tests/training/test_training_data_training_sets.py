"""Training data: files, run directories and Hub datasets, whole or as a stream; unusable rows are refused."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx2
import pyarrow as pa
import pytest
from datasets import Dataset, IterableDataset
from datasets.exceptions import DatasetGenerationError
from huggingface_hub import DatasetCardData
from training_inputs import data_spec, hub_spec, sts_rows, write_dataset

from hub.contract.schema import EXAMPLE_SET, STS, features
from hub.errors import InputError, RunError
from training.data.example_types import EXAMPLE_TYPES
from training.data.rows import RowChecks, stream_errors
from training.data.training_sets import checked, load_all


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "pairs", {"train": sts_rows(12), "validation": sts_rows(6)})


def test_only_the_columns_of_the_example_type_reach_the_trainer(pairs):
    (whole,) = load_all((data_spec(pairs),), 5)
    assert (len(whole.train), len(whole.validation)) == (5, 6)  # the limit is one on training pairs
    (whole,) = load_all((data_spec(pairs),), None)
    assert whole.train[0]["sentence1"] == sts_rows(12)[0]["sentence1"]
    assert whole.describe()["splits"] == {"train": 12, "validation": 6}
    assert whole.commit is None and len(whole.sha256) == 64
    (stream,) = load_all((data_spec(pairs, streaming=True),), None)
    assert isinstance(stream.train, IterableDataset) and isinstance(stream.validation, Dataset)
    assert stream.describe()["splits"] == {"train": None, "validation": 6} and stream.rows is None
    assert whole.train.features == stream.train.features == features(STS.columns)
    assert sorted(tuple(row.values()) for row in stream.train) == sorted(tuple(row.values()) for row in whole.train)


def checks(example_type, example_set=None):
    return RowChecks(EXAMPLE_TYPES[example_type], example_set, "place")


def scored(first=("a", "c"), second=("b", "b"), score=(0.0, 1.0)):
    return "sts", {"sentence1": list(first), "sentence2": list(second), "score": list(score)}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (("sts", {"sentence1": ["a"], "score": [0.5]}), "place: has no column 'sentence2', which example type sts"),
        (scored(score=[0.5, None]), "row 1 of column 'score' is empty"),
        (scored(score=[float("nan"), 1.0]), "row 0 .*'score' is nan"),
        (scored(second=["b", " \t"]), "row 1 .*'sentence2' is empty"),
        (scored(score=[0.5, 0.5]), "every score is 0.5"),
        (scored(score=[0.0, 5.0]), "row 1 .* is 5; allowed: 0 to 1"),
        (scored(first=[1, 2]), "'sentence1' holds int64; allowed: text"),
        (scored(score=["0", "1"]), "'score' holds string; allowed: num"),
    ],
)
def test_rows_that_cannot_be_learned_from(rows, problem):
    with pytest.raises(InputError, match=problem):
        checked(Dataset.from_dict(rows[1]), checks(rows[0]))


UNREACHABLE = DatasetGenerationError("An error occurred while generating the dataset")
UNREACHABLE.__cause__ = httpx2.ConnectError("https://cdn/file?Signature=s3cret")


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (DatasetGenerationError("x"), InputError, r"o/d \(postprocessed\): cannot be read: x$"),
        (RuntimeError("Dataset scripts are no longer supported\nmore"), InputError, "cannot be read: .*supported$"),
        (UNREACHABLE, RunError, r"the Hub cannot be reached \(ConnectErr"),
    ],
)
def test_errors_while_a_dataset_is_fetched(monkeypatch, raised, error, message):
    info = SimpleNamespace(sha="c0ffee", card_data=DatasetCardData(license="mit"))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: SimpleNamespace(dataset_info=lambda repo_id, revision: info))
    monkeypatch.setattr("hub.client.fetch.check_dataset_card", lambda *_: None)
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda repo_id, revision: ["postprocessed", revision])
    monkeypatch.setattr("datasets.load_dataset", Mock(side_effect=raised))
    with pytest.raises(error, match=message) as caught:
        load_all((hub_spec(),), None)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("streaming", [False, True])
def test_one_example_set_is_trained_and_validated_on(tmp_path, streaming):
    rows = [{**row, "example_set": index // 3 % 3} for index, row in enumerate(sts_rows(90))]
    few_shot = features({**STS.columns, **STS.provenance, **EXAMPLE_SET})
    directory = write_dataset(tmp_path / "d", {"train": rows, "validation": rows[:36]}, "5shot", features=few_shot)
    (loaded,) = load_all((data_spec(directory, config="5shot", example_set=2, streaming=streaming),), None)
    wanted = sorted(row["sentence1"] for row in rows if row["example_set"] == 2)
    assert sorted(row["sentence1"] for row in loaded.train) == wanted
    assert len(loaded.validation) == 12
    assert loaded.train.column_names == ["sentence1", "sentence2", "score"]
    assert loaded.describe()["example_set"] == 2
    limited = data_spec(directory, config="5shot", example_set=2, streaming=streaming)
    assert len(list(load_all((limited,), 4)[0].train)) == 4  # the limit counts rows of the set


pytest_plugins = ["local_hub"]


def documents(path, **changes):
    return data_spec(path, **{"config": "default", "example_type": "documents", "loss": "DeclutrLoss", **changes})


LONG = ["one two " * 400, "three four " * 400, "five \u2028 six " * 400]


@pytest.mark.parametrize("streaming", [False, True])
def test_documents_are_read_from_files(tmp_path, streaming):
    (tmp_path / "d.txt").write_text("\n".join([*LONG, ""]) + "\n", encoding="utf-8")
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in LONG))
    Dataset.from_dict({"text": LONG, "url": ["u"] * 3}).to_parquet(tmp_path / "d.parquet")
    for name in ("d.txt", "d.jsonl", "d.parquet"):
        (loaded,) = load_all((documents(tmp_path / name, streaming=streaming),), None)
        assert sorted(row["text"] for row in loaded.train if row["text"]) == sorted(LONG), name
        assert loaded.train.column_names == ["text"]
        assert loaded.validation is None
        assert loaded.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("short.txt", b"too short\n\nby far\n", "longest of 3 documents has 9 bytes, so fewer .*min_document 2,048"),
        ("latin.txt", b"\xe9t\xe9\n", "latin.txt .*:1: is not UTF-8; it may be WINDOWS-1252"),
        ("empty.txt", b"", "is empty; allowed: at least one text"),
        ("other.jsonl", b'{"body": "x"}\n', "has no column 'text', which example type documents needs; .*body"),
        ("broken.jsonl", b'{"text": ', ":1: is not JSON"),
        ("broken.parquet", b"PAR1", "cannot be read"),
        ("lists.jsonl", b'{"text": [1]}\n', ":1: its column 'text' holds list; allowed: text"),
        ("d.csv", b"text\n", "has no rows"),
    ],
)
def test_files_that_hold_no_documents(tmp_path, streaming, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        load_all((documents(tmp_path / name, streaming=streaming),), None)
    assert "\n" not in str(caught.value)


READER = """
import json, sys
from hub.errors import StsDinoError
from hub.contract.recipe import TrainingData, ValidationData
from training.data.training_sets import load_all
from training.loop.validation import read_pairs
found = []
for fields in json.loads(sys.argv[1]):
    try:
        if "loss" not in fields:
            found.append(read_pairs(ValidationData(**fields), "validation.0").origin)
            continue
        (loaded,) = load_all((TrainingData(**fields),), None)
        rows = [list(row.values()) for row in loaded.train]
        found.append({"rows": rows, "sha256": loaded.sha256, **loaded.describe()})
    except StsDinoError as error:
        found.append(f"{type(error).__name__} {error}")
print(json.dumps(found))
"""
LACKING = {
    "has no revision 'v2.0.0'": {"revision": "v2.0.0"},
    "has no config 'postproccesed'; allowed: ['postprocessed', 'texts']; did you mean": {"config": "postproccesed"},
    "has no split 'test'; allowed: ['train', 'validation']": {"split": "test", "streaming": True},
    "no such repository": {"repo_id": "acme/none"},
    "has no column 'sentence1', which example type sts needs; allowed: ['text', 'url']": {"config": "texts"},
}


@pytest.mark.slow("publishes datasets and reads them in a process without our code")
def test_published_data_are_read_whole_or_as_a_stream_or_lack_something(local_hub, hub_api, tmp_path):
    """Two shards of training pairs in one config, a file of documents in another, and a tag."""
    folder = tmp_path / "published"
    folder.mkdir()
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
    here = {"repo_id": repo_id, "revision": "v1.0.0"}
    sts = {**here, "config": "postprocessed", "example_type": "sts", "loss": "CosineSimilarityLoss"}
    documents = {"config": "texts", "example_type": "documents", "loss": "DeclutrLoss", "streaming": True}
    cases = [sts, sts | {"streaming": True}, sts | documents, here | {"config": "postprocessed"}, here]
    cases += [sts | changes for changes in LACKING.values()]
    environment = local_hub.client_environment(tmp_path / "home") | {"PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", READER, json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    whole, stream, texts, validation, ambiguous, *lacking = json.loads(done.stdout.splitlines()[-1])
    assert sorted(cells[:2] for cells in whole["rows"]) == sorted(cells[:2] for cells in stream["rows"])
    assert sorted(texts["rows"]) == sorted([text] for text in LONG)
    assert [cells[0] for cells in whole["rows"]] == [row["sentence1"] for row in sts_rows(30) + sts_rows(30, seed=1)]
    assert whole["commit"] == whole["sha256"] == stream["commit"] == validation["commit"] == commit
    assert (whole["license"], whole["splits"]) == ("cc-by-4.0", {"train": 60, "validation": 9})
    assert stream["splits"] == {"train": None, "validation": 9} and validation["rows"] == 9
    assert ambiguous.startswith("InputError validation.0: acme/training-data: has several configs")
    assert [found for found, problem in zip(lacking, LACKING, strict=True) if problem not in found] == []


def test_a_streams_order_is_a_matter_of_seed_and_epoch(tmp_path):
    directory = write_dataset(tmp_path / "d", {"train": sts_rows(200)})

    def order(seed, epoch=0, limit=None):
        (loaded,) = load_all((data_spec(directory, streaming=True),), limit, seed)
        loaded.train.set_epoch(epoch)
        return [row["sentence1"] + row["sentence2"] for row in loaded.train]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != order(1, epoch=1)
    first = [row["sentence1"] + row["sentence2"] for row in sts_rows(200)][:20]
    assert order(1, limit=20) != first
    assert sorted(order(1, limit=20)) == sorted(first)


def test_a_stream_is_alone(pairs):
    with pytest.raises(InputError, match=r"datasets.1.streaming: a streamed dataset is trained on alone"):
        load_all((data_spec(pairs), data_spec(pairs, streaming=True)), None)


def test_a_bad_row_of_a_stream_is_named_when_it_is_read(tmp_path):
    rows = sts_rows(2_400)
    rows[2_222]["sentence2"] = " "
    directory = write_dataset(tmp_path / "d", {"train": rows})
    (loaded,) = load_all((data_spec(directory, streaming=True),), None)
    with pytest.raises(InputError, match=r"d \(postprocessed\), train, as read: row 2222 of column 'sentence2' is"):
        list(loaded.train)
    rows[7]["score"] = None
    directory = write_dataset(tmp_path / "early", {"train": rows})
    with pytest.raises(InputError, match=r"row 7 of column 'score' is empty"):
        load_all((data_spec(directory, streaming=True),), None)


def test_what_ends_a_stream_in_the_middle(tmp_path):
    """As ``datasets`` raises it when the Hub is gone, and for a file that is cut short."""
    streamed = hub_spec().model_copy(update={"streaming": True})
    with pytest.raises(RunError, match=r"o/d at .* stopped answering"), stream_errors(streamed):
        raise ConnectionError("Server Disconnected")
    message = r"datasets.0: o/d: cannot be read: Unexpected end of stream"
    with pytest.raises(InputError, match=message), stream_errors(streamed):
        raise pa.ArrowInvalid("Unexpected end of stream\nmore")
    with pytest.raises(ConnectionError), stream_errors(hub_spec()):  # not a stream's
        raise ConnectionError("of a reporter")

"""training.data: only the form's columns reach the trainer, and unusable data are refused with their place."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import datasets
import pytest
from datasets import Dataset
from huggingface_hub import DatasetCardData
from training_inputs import sts_rows, triplet_rows, write_dataset

from hub.errors import InputError, RunError
from hub.recipe import TrainingData
from hub.schema import TRIPLET
from training.data import checked, load_all


def spec(path, **changes):
    fields = {"path": str(path), "config": "postprocessed", "form": "sts", "loss": "CosineSimilarityLoss", **changes}
    return TrainingData(**fields)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "pairs", {"train": sts_rows(12), "validation": sts_rows(6)})


def test_only_the_forms_columns_reach_the_trainer(pairs):
    (loaded,) = load_all((spec(pairs),), None)
    assert loaded.train.column_names == ["sentence1", "sentence2", "score"]
    assert loaded.train[0]["sentence1"] == sts_rows(12)[0]["sentence1"]
    assert loaded.describe()["splits"] == {"train": 12, "validation": 6}
    assert loaded.commit is None
    assert len(loaded.sha256) == 64


def test_triplets_load_in_the_order_their_losses_read(tmp_path):
    directory = write_dataset(tmp_path / "t", {"train": triplet_rows(3)}, "triplet", TRIPLET)
    (loaded,) = load_all((spec(directory, config="triplet", form="triplet"),), None)
    assert loaded.train.column_names == ["anchor", "positive", "negative"]
    assert loaded.validation is None


def test_limit_cuts_training_pairs_only(pairs):
    (loaded,) = load_all((spec(pairs),), 5)
    assert (len(loaded.train), len(loaded.validation)) == (5, 6)


def test_the_same_dataset_twice_gets_two_names(pairs):
    names = [item.name for item in load_all((spec(pairs), spec(pairs)), None)]
    assert len(set(names)) == 2


def test_unknown_config_names_the_nearest(pairs):
    with pytest.raises(InputError, match=r"pairs \(postprocesed\): has no config .* did you mean 'postprocessed'"):
        load_all((spec(pairs, config="postprocesed"),), None)


def test_missing_train_split(tmp_path):
    directory = write_dataset(tmp_path / "d", {"validation": sts_rows(3)})
    with pytest.raises(InputError, match="has no split 'train'; allowed: \\['validation'\\]"):
        load_all((spec(directory),), None)


def test_a_directory_that_is_not_there_or_not_finished(tmp_path):
    with pytest.raises(InputError, match=r"no such directory"):
        load_all((spec(tmp_path / "none"),), None)
    with pytest.raises(InputError, match=r"not a run directory"):
        load_all((spec(tmp_path),), None)


def test_a_shard_changed_after_the_run(tmp_path):
    directory = write_dataset(tmp_path / "d", {"train": sts_rows(3)})
    shard = next(directory.rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"missing or not what its manifest says"):
        load_all((spec(directory),), None)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"sentence1": ["a"], "score": [0.5]}, "place: has no column 'sentence2', which the sts form needs"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [0.5, None]}, "row 1 of column 'score' is empty"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [float("nan"), 1.0]}, "row 0 of column 'score'"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [0.5, 0.5]}, "every score is 0.5"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [0.0, 5.0]}, "scores run from 0 to 5"),
        ({"sentence1": ["a", None], "sentence2": ["b"] * 2, "score": [0.0, 1.0]}, "row 1 of column 'sentence1'"),
        ({"sentence1": [1, 2], "sentence2": ["b"] * 2, "score": [0.0, 1.0]}, "'sentence1' holds int64; allowed: text"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": ["0", "1"]}, "'score' holds string; allowed: num"),
    ],
)
def test_rows_that_cannot_be_learned_from(columns, problem):
    with pytest.raises(InputError, match=problem):
        checked(Dataset.from_dict(columns), "sts", "place")


def test_an_empty_train_split(tmp_path):
    directory = write_dataset(tmp_path / "d", {"train": [], "validation": sts_rows(3)})
    with pytest.raises(InputError, match="has no split 'train'; allowed: \\['validation'\\]"):
        load_all((spec(directory),), None)
    directory = write_dataset(tmp_path / "none", {"train": []})
    with pytest.raises(InputError, match=r"has no rows"):
        load_all((spec(directory),), None)
    with pytest.raises(InputError, match=r"has no rows"):
        checked(Dataset.from_dict({"sentence1": [], "sentence2": [], "score": []}), "sts", "place")


def hub_spec():
    return TrainingData(repo_id="o/d", revision="v1", config="postprocessed", form="sts", loss="CosineSimilarityLoss")


def test_a_hub_that_is_down(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunError, match=r"read o/d at http://127.0.0.1:9: the Hub cannot be reached .*HF_ENDPOINT"):
        load_all((hub_spec(),), None)


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (404, "RepoNotFound", InputError, "no such repository, or no access to it"),
        (404, "RevisionNotFound", InputError, "has no revision 'v1'"),
        (403, "GatedRepo", RunError, "is gated"),
        (401, "", RunError, "the Hub answered 401: .*HF_TOKEN"),
        (500, "", RunError, "the Hub answered 500"),
    ],
)
def test_a_hub_that_refuses(monkeypatch, status, code, error, message):
    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    try:
        with pytest.raises(error, match=message) as caught:
            load_all((hub_spec(),), None)
    finally:
        server.shutdown()
    assert "hf_secret" not in str(caught.value)


def test_a_hub_dataset_is_read_at_the_commit_of_its_tag(monkeypatch, pairs):
    """The tag is resolved once; configs and rows are then asked for by commit."""
    asked = []

    class Api:
        def dataset_info(self, repo_id, revision):
            asked.append((repo_id, revision))
            card = DatasetCardData(license="other", license_name="mixed")
            return type("Info", (), {"sha": "c0ffee", "card_data": card})

    files = {split: str(next(pairs.rglob(f"{split}-*.parquet"))) for split in ("train", "validation")}
    local = datasets.load_dataset("parquet", data_files=files)
    monkeypatch.setattr("training.data.HfApi", Api)
    monkeypatch.setattr(
        "training.data.datasets.get_dataset_config_names", lambda repo_id, revision: ["postprocessed", revision]
    )
    monkeypatch.setattr(
        "training.data.datasets.load_dataset",
        lambda repo_id, config, revision: asked.append((repo_id, config, revision)) or local,
    )
    (loaded,) = load_all((hub_spec(),), None)
    assert asked == [("o/d", "v1"), ("o/d", "postprocessed", "c0ffee")]
    assert loaded.describe() | {"splits": 0} == {
        "repo_id": "o/d",
        "revision": "v1",
        "commit": "c0ffee",
        "config": "postprocessed",
        "form": "sts",
        "loss": "CosineSimilarityLoss",
        "splits": 0,
        "license": "mixed",
    }

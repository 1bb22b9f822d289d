"""training.data.training_sets: the trainer gets the columns of the example type alone; unusable data are refused."""

import datasets
import httpx2
import pytest
from datasets import Dataset
from datasets.exceptions import DatasetGenerationError
from huggingface_hub import DatasetCardData
from training_inputs import PROVENANCE, data_spec, hub_spec, sts_rows, write_dataset

from hub.contract.schema import EXAMPLE_SET, PAIR_CLASS, STS, features
from hub.errors import InputError, RunError
from training.data.rows import RowChecks
from training.data.training_sets import checked, load_all


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "pairs", {"train": sts_rows(12), "validation": sts_rows(6)})


def test_only_the_forms_columns_reach_the_trainer(pairs):
    (loaded,) = load_all((data_spec(pairs),), None)
    assert loaded.train.column_names == ["sentence1", "sentence2", "score"]
    assert loaded.train[0]["sentence1"] == sts_rows(12)[0]["sentence1"]
    assert loaded.describe()["splits"] == {"train": 12, "validation": 6}
    assert loaded.commit is None
    assert len(loaded.sha256) == 64


def test_limit_cuts_training_pairs_only(pairs):
    (loaded,) = load_all((data_spec(pairs),), 5)
    assert (len(loaded.train), len(loaded.validation)) == (5, 6)


def test_a_shard_changed_after_the_run(tmp_path):
    directory = write_dataset(tmp_path / "d", {"train": sts_rows(3)})
    shard = next(directory.rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"missing or not what its manifest says"):
        load_all((data_spec(directory),), None)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"sentence1": ["a"], "score": [0.5]}, "place: has no column 'sentence2', which example type sts needs"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [0.5, None]}, "row 1 of column 'score' is empty"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [float("nan"), 1.0]}, "row 0 .*'score' is nan"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [0.5, float("inf")]}, "row 1 .*'score' is inf"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b", " \t"], "score": [0.5, 0.1]}, "row 1 .*'sentence2' is empty"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [0.5, 0.5]}, "every score is 0.5"),
        ({"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [0.0, 5.0]}, "row 1 .* is 5; allowed: 0 to 1"),
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
        load_all((data_spec(directory),), None)
    directory = write_dataset(tmp_path / "none", {"train": []})
    with pytest.raises(InputError, match=r"has no rows"):
        load_all((data_spec(directory),), None)
    with pytest.raises(InputError, match=r"has no rows"):
        checked(Dataset.from_dict({"sentence1": [], "sentence2": [], "score": []}), "sts", "place")


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
    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("hub.client.fetch.check_dataset_card", lambda *_: None)
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda repo_id, revision: ["postprocessed", revision])
    monkeypatch.setattr(
        "datasets.load_dataset",
        lambda repo_id, config, revision: asked.append((repo_id, config, revision)) or local,
    )
    (loaded,) = load_all((hub_spec(),), None)
    assert loaded.sha256 == loaded.commit == "c0ffee"
    assert asked == [("o/d", "v1"), ("o/d", "postprocessed", "c0ffee")]
    assert loaded.describe() | {"splits": 0} == {
        "repo_id": "o/d",
        "revision": "v1",
        "commit": "c0ffee",
        "config": "postprocessed",
        "example_type": "sts",
        "loss": "CosineSimilarityLoss",
        "splits": 0,
        "license": "mixed",
    }


FEW_SHOT = features({**STS.columns, **STS.provenance, **EXAMPLE_SET})


def few_shot_rows(count):
    """Three example sets in turn."""
    return [{**row, "example_set": index % 3} for index, row in enumerate(sts_rows(count))]


def few_shot(directory, train, validation=()):
    splits = {"train": train, **({"validation": list(validation)} if validation else {})}
    return write_dataset(directory, splits, "postprocessed-5shot", features=FEW_SHOT)


@pytest.mark.parametrize("streaming", [False, True])
def test_one_example_set_is_trained_and_validated_on(tmp_path, streaming):
    rows = [{**row, "example_set": index // 3 % 3} for index, row in enumerate(sts_rows(90))]
    directory = few_shot(tmp_path / "d", rows, rows[:36])
    chosen = data_spec(directory, config="postprocessed-5shot", example_set=2, streaming=streaming)
    (loaded,) = load_all((chosen,), None)
    wanted = sorted(row["sentence1"] for row in rows if row["example_set"] == 2)
    assert sorted(row["sentence1"] for row in loaded.train) == wanted
    assert len(loaded.validation) == 12
    assert loaded.train.column_names == ["sentence1", "sentence2", "score"]
    assert loaded.describe()["example_set"] == 2


def test_the_rows_of_an_error_count_in_the_split_not_in_the_set():
    columns = {"sentence1": ["a"] * 4, "sentence2": ["b", "b", "b", ""], "score": [0.1, 0.5, 0.9, 0.5]}
    rows = Dataset.from_dict({**columns, "example_set": [0, 1, 0, 1]})
    with pytest.raises(InputError, match=r"row 3 of column 'sentence2'"):
        checked(rows, "sts", "place", example_set=1)
    assert len(checked(rows, "sts", "place", example_set=0)) == 2


def test_limit_counts_rows_of_the_set_and_later_rows_are_not_read():
    columns = {"sentence1": list("abcdef"), "sentence2": ["b"] * 5 + [""], "score": [0.1, 0.5, 0.9, 0.5, 0.1, 0.5]}
    rows = Dataset.from_dict({**columns, "example_set": [0, 1, 0, 1, 0, 1]})
    with pytest.raises(InputError, match=r"every score is 0.5"):
        checked(rows, "sts", "place", example_set=1, limit=2)
    assert checked(rows, "sts", "place", example_set=0, limit=2)["sentence1"][:] == ["a", "c"]
    assert checked(rows, "sts", "place", limit=3)["sentence1"][:] == ["a", "b", "c"]


def test_validation_splits_that_are_not_wanted_are_not_read(tmp_path):
    directory = write_dataset(tmp_path / "d", {"train": sts_rows(3), "validation": sts_rows(1)})
    with pytest.raises(InputError, match=r"validation: every score is 0.1"):
        load_all((data_spec(directory),), None)
    (loaded,) = load_all((data_spec(directory),), None, own_validation=False)
    assert loaded.validation is None


def nli_rows(labels):
    return [{"premise": f"p{k}", "hypothesis": f"h{k}", "label": label, **PROVENANCE} for k, label in enumerate(labels)]


def test_pair_class_rows_have_two_classes_at_least(tmp_path):
    directory = write_dataset(tmp_path / "d", {"train": nli_rows([0, 2, 0])}, "pair-class", PAIR_CLASS)
    (loaded,) = load_all(
        (data_spec(directory, config="pair-class", example_type="pair-class", loss="SoftmaxLoss"),), None
    )
    assert loaded.train["label"][:] == [0, 2, 0]
    rows = Dataset.from_list(nli_rows([1, 1]))
    with pytest.raises(InputError, match=r"place: every label is 1: there is nothing to learn from; mix the labels"):
        checked(rows, "pair-class", "place")
    with pytest.raises(InputError, match=r"row 1 of column 'label' is -1; allowed: 0 to 2"):
        checked(Dataset.from_list(nli_rows([1, -1])), "pair-class", "place")
    words = Dataset.from_dict({"premise": ["a"], "hypothesis": ["b"], "label": ["entailment"]})
    with pytest.raises(InputError, match=r"column 'label' holds string; allowed: numbers"):
        checked(words, "pair-class", "place")


def test_checks_look_at_some_rows_at_a_time(monkeypatch):
    """No column of a large dataset is ever turned into a list: tables of at most ROWS rows are all that is read."""
    count = 3_500
    columns = {"sentence1": ["a"] * count, "sentence2": ["b"] * count, "score": [0.1, 0.9] * (count // 2)}
    columns["sentence2"][3_210] = ""
    sizes = []
    of_set = RowChecks.of_set
    monkeypatch.setattr(RowChecks, "of_set", lambda checks, table: sizes.append(len(table)) or of_set(checks, table))
    with pytest.raises(InputError, match=r"row 3210 of column 'sentence2' is empty"):
        checked(Dataset.from_dict(columns), "sts", "place")
    assert sizes == [1_000, 1_000, 1_000, 500]


class FoundApi:
    def dataset_info(self, repo_id, revision):
        return type("Info", (), {"sha": "c0ffee", "card_data": None})


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (DatasetGenerationError("x"), InputError, r"o/d \(postprocessed\): cannot be read: x$"),
        (RuntimeError("Dataset scripts are no longer supported\nmore"), InputError, "cannot be read: .*supported$"),
        (httpx2.ConnectError("https://cdn/file?Signature=s3cret"), RunError, r"the Hub cannot be reached \(ConnectErr"),
    ],
)
def test_what_goes_wrong_while_a_dataset_is_fetched(monkeypatch, raised, error, message):
    def fetch(repo_id, config, revision):
        if isinstance(raised, httpx2.HTTPError):
            raise DatasetGenerationError("An error occurred while generating the dataset") from raised
        raise raised

    monkeypatch.setattr("huggingface_hub.HfApi", FoundApi)
    monkeypatch.setattr("hub.client.fetch.check_dataset_card", lambda *_: None)
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda *_, **__: ["postprocessed"])
    monkeypatch.setattr("datasets.load_dataset", fetch)
    with pytest.raises(error, match=message) as caught:
        load_all((hub_spec(),), None)
    assert "s3cret" not in str(caught.value)

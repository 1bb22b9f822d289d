"""training.data.rows: rows that are checked while they are read, in an order of seed and epoch."""

import pyarrow as pa
import pytest
from datasets import Dataset, IterableDataset
from training_inputs import data_spec, hub_spec, sts_rows, write_dataset

from hub.contract.schema import STS, features
from hub.errors import InputError, RunError
from training.data.rows import stream_errors
from training.data.training_sets import load_all


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "pairs", {"train": sts_rows(12), "validation": sts_rows(6)})


def test_a_stream_gives_the_forms_columns_and_features(pairs):
    (loaded,) = load_all((data_spec(pairs, streaming=True),), None)
    assert isinstance(loaded.train, IterableDataset)
    assert loaded.train.features == features(STS.columns)
    assert loaded.rows is None
    assert loaded.describe()["splits"] == {"train": None, "validation": 6}
    assert isinstance(loaded.validation, Dataset)
    found = sorted((row["sentence1"], row["sentence2"], row["score"]) for row in loaded.train)
    whole = load_all((data_spec(pairs),), None)[0].train
    assert found == sorted((row["sentence1"], row["sentence2"], row["score"]) for row in whole)


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
    with pytest.raises(
        InputError, match=r"d \(postprocessed\), train, as read: row 2222 of column 'sentence2' is empty"
    ):
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

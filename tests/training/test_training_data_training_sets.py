"""Training data: files, run directories and Hub datasets, whole or streamed; rows made from others;
token dropout.
"""

import hashlib
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx2
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, IterableDataset
from datasets.exceptions import DatasetGenerationError
from pydantic import ValidationError
from tiny_bases import make_llama, make_mlm
from training_inputs import PROVENANCE, data_spec, hub_spec, sts_rows, write_dataset, write_recipe

from sts_dino.hub.contract.recipe import Encoder, Grades, ModelRecipe, TrainingData
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.schema import EXAMPLE_SET, STS, build_features
from sts_dino.hub.errors import InputError, RunError
from sts_dino.training.data.objectives import EXAMPLE_TYPES
from sts_dino.training.data.rows import RowChecks, check_rows, convert_stream_errors
from sts_dino.training.data.training_sets import load_training_set, load_training_sets
from sts_dino.training.encoder.bases import find_base
from sts_dino.training.encoder.encoder import build_encoder, has_dropout
from sts_dino.training.loop.job import prepare
from sts_dino.training.loop.train import (
    _warn_of_cut_texts,
    _warn_without_dropout,
    build_untrained_encoder,
    make_trainer,
    train,
)
from sts_dino.training.loop.trainer import TextCollator, TokenDropout


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_dataset(
        tmp_path_factory.mktemp("data") / "pairs",
        {"train": sts_rows(12), "validation": sts_rows(6)},
    )


def test_only_the_columns_of_the_example_type_reach_the_trainer(pairs):
    (whole,) = load_training_sets((data_spec(pairs),), 5)
    assert (len(whole.train), len(whole.validation)) == (5, 6)  # the limit is one on training pairs
    (whole,) = load_training_sets((data_spec(pairs),), None)
    assert whole.train[0]["sentence1"] == sts_rows(12)[0]["sentence1"]
    assert whole.describe()["splits"] == {"train": 12, "validation": 6}
    assert whole.commit is None and len(whole.sha256) == 64
    (stream,) = load_training_sets((data_spec(pairs, streaming=True),), None)
    assert isinstance(stream.train, IterableDataset) and isinstance(stream.validation, Dataset)
    assert stream.describe()["splits"] == {"train": None, "validation": 6} and stream.rows is None
    assert whole.passed_over == 0 and stream.passed_over is None
    assert whole.train.features == stream.train.features == build_features(STS.columns)
    assert sorted(tuple(row.values()) for row in stream.train) == sorted(
        tuple(row.values()) for row in whole.train
    )


def checks(example_type, example_set=None):
    return RowChecks(EXAMPLE_TYPES[example_type], example_set, "place")


def scored(first=("a", "c"), second=("b", "b"), score=(0.0, 1.0)):
    return "sts", {"sentence1": list(first), "sentence2": list(second), "score": list(score)}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            ("sts", {"sentence1": ["a"], "score": [0.5]}),
            "place: has no column 'sentence2', which example type sts",
        ),
        (scored(score=[0.5, None]), "row 1 of column 'score' is empty"),
        (scored(score=[float("nan"), 1.0]), "row 0 .*'score' is nan"),
        (scored(second=["b", " \t"]), "row 1 .*'sentence2' is empty"),
        (scored(score=[0.5, 0.5]), "every score is 0.5"),
        (scored(score=[0.0, 5.0]), "row 1 .* is 5; allowed: 0 to 1"),
        (scored(first=[1, 2]), "'sentence1' holds int64; allowed: text"),
        (scored(score=["0", "1"]), "'score' holds string; allowed: num"),
        (
            ("pair-class", {"premise": ["a"], "hypothesis": ["b"], "label": [1.0]}),
            "'label' holds double; allowed: integers",
        ),
    ],
)
def test_rows_that_cannot_be_learned_from(rows, problem):
    with pytest.raises(InputError, match=problem):
        check_rows(Dataset.from_dict(rows[1]), checks(rows[0]))


def test_a_hint_names_the_columns_key_of_the_section(tmp_path):
    """A corpus of a vocabulary has its own key; scored pairs that choose the checkpoint have none."""
    path = tmp_path / "texts.jsonl"
    path.write_text('{"q": "a"}\n{"q": "b"}\n')
    fields = {"path": str(path), "config": "default", "loss": "none"}
    with pytest.raises(InputError, match=r"of the texts: base\.vocabulary\.columns$"):
        load_training_set(TrainingData(**fields, example_type="self-pair"), "base.vocabulary")
    schema = pa.schema({"q": pa.string()})
    with pytest.raises(InputError, match=r"sentence2, score: datasets\.1\.columns$"):
        RowChecks(EXAMPLE_TYPES["sts"], None, "datasets.1: a").require_columns(schema)
    fixed = RowChecks(EXAMPLE_TYPES["sts"], None, "validation.0: a", has_columns_key=False)
    with pytest.raises(InputError, match=r"sts needs; allowed: \['q'\]$"):
        fixed.require_columns(schema)
    with pytest.raises(InputError, match=r"no config 'default' with split 'dev'; allowed: config"):
        load_training_set(TrainingData(**fields, example_type="sts", split="dev"), "datasets.0")


UNREACHABLE = DatasetGenerationError("An error occurred while generating the dataset")
UNREACHABLE.__cause__ = httpx2.ConnectError("https://cdn/file?Signature=s3cret")


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (DatasetGenerationError("x"), InputError, r"o/d \(postprocessed\): cannot be read: x$"),
        (
            RuntimeError("Dataset scripts are no longer supported\nmore"),
            InputError,
            "cannot be read: .*supported$",
        ),
        (UNREACHABLE, RunError, r"the Hub cannot be reached \(ConnectErr"),
    ],
)
def test_errors_while_a_dataset_is_fetched(monkeypatch, raised, error, message):
    monkeypatch.setattr("sts_dino.hub.client.fetch.resolve_commit", lambda *_: "c0ffee")
    monkeypatch.setattr("sts_dino.hub.client.fetch.check_dataset_card", lambda *_: None)
    monkeypatch.setattr(
        "datasets.get_dataset_config_names", lambda repo_id, revision: ["postprocessed", revision]
    )
    monkeypatch.setattr("datasets.load_dataset", Mock(side_effect=raised))
    with pytest.raises(error, match=message) as caught:
        load_training_sets((hub_spec(),), None)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("streaming", [False, True])
def test_one_example_set_is_trained_and_validated_on(tmp_path, streaming):
    rows = [{**row, "example_set": index // 3 % 3} for index, row in enumerate(sts_rows(90))]
    few_shot = build_features({**STS.columns, **STS.provenance, **EXAMPLE_SET})
    directory = write_dataset(
        tmp_path / "d", {"train": rows, "validation": rows[:36]}, "5shot", features=few_shot
    )
    (loaded,) = load_training_sets(
        (data_spec(directory, config="5shot", example_set=2, streaming=streaming),), None
    )
    wanted = sorted(row["sentence1"] for row in rows if row["example_set"] == 2)
    assert sorted(row["sentence1"] for row in loaded.train) == wanted
    assert len(loaded.validation) == 12
    assert loaded.train.column_names == ["sentence1", "sentence2", "score"]
    assert loaded.describe()["example_set"] == 2
    limited = data_spec(directory, config="5shot", example_set=2, streaming=streaming)
    assert (
        len(list(load_training_sets((limited,), 4)[0].train)) == 4
    )  # the limit counts rows of the set


pytest_plugins = ["local_hub"]


def documents(path, **changes):
    return data_spec(
        path, **{"config": "default", "example_type": "documents", "loss": "DeclutrLoss", **changes}
    )


LONG = ["one two " * 400, "three four " * 400, "five \u2028 six " * 400]


@pytest.mark.parametrize("streaming", [False, True])
def test_documents_are_read_from_files(tmp_path, streaming):
    (tmp_path / "d.txt").write_text("\n".join([*LONG, ""]) + "\n", encoding="utf-8")
    (tmp_path / "d.jsonl").write_text(
        "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in LONG)
    )
    Dataset.from_dict({"text": LONG, "url": ["u"] * 3}).to_parquet(tmp_path / "d.parquet")
    for name in ("d.txt", "d.jsonl", "d.parquet"):
        (loaded,) = load_training_sets((documents(tmp_path / name, streaming=streaming),), None)
        assert sorted(row["text"] for row in loaded.train if row["text"]) == sorted(LONG), name
        assert loaded.train.column_names == ["text"]
        assert loaded.validation is None
        assert loaded.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


READER = """
import json, sys
from sts_dino.hub.errors import StsDinoError
from sts_dino.hub.contract.recipe import TrainingData, ValidationData
from sts_dino.training.data.training_sets import load_training_sets
from sts_dino.training.loop.validation import read_pairs
found = []
for fields in json.loads(sys.argv[1]):
    try:
        if "loss" not in fields:
            found.append(read_pairs(ValidationData(**fields), "validation.0").origin)
            continue
        (loaded,) = load_training_sets((TrainingData(**fields),), None)
        rows = [list(row.values()) for row in loaded.train]
        found.append({"rows": rows, "sha256": loaded.sha256, **loaded.describe()})
    except StsDinoError as error:
        found.append(f"{type(error).__name__} {error}")
print(json.dumps(found))
"""
LACKING = {
    "has no revision 'v2.0.0'": {"revision": "v2.0.0"},
    "has no config 'postproccesed'; allowed: ['postprocessed', 'texts']; did you mean": {
        "config": "postproccesed"
    },
    "has no split 'test'; allowed: ['train', 'validation']": {"split": "test", "streaming": True},
    "no such repository": {"repo_id": "acme/none"},
    "has no column 'sentence1', which example type sts needs; allowed: ['text', 'url']": {
        "config": "texts"
    },
}


@pytest.mark.slow("publishes datasets and reads them in a process without our code")
def test_published_data_are_read_whole_or_as_a_stream_or_lack_something(
    local_hub, hub_api, tmp_path
):
    """Two shards of training pairs in one config, a file of documents in another, and a tag."""
    folder = tmp_path / "published"
    folder.mkdir()
    for number, rows in enumerate((sts_rows(30), sts_rows(30, seed=1))):
        Dataset.from_list(rows).to_parquet(folder / f"train-0000{number}-of-00002.parquet")
    Dataset.from_list(sts_rows(9, seed=2)).to_parquet(folder / "validation.parquet")
    Dataset.from_dict({"text": LONG, "url": ["u"] * 3}).to_parquet(folder / "documents.parquet")
    pairs = [{"split": part, "path": f"{part}*.parquet"} for part in ("train", "validation")]
    texts = [{"split": "train", "path": "documents.parquet"}]
    configs = [
        {"config_name": "postprocessed", "data_files": pairs},
        {"config_name": "texts", "data_files": texts},
    ]
    (folder / "README.md").write_text(
        f"---\nlicense: cc-by-4.0\nconfigs: {json.dumps(configs)}\n---\n"
    )
    repo_id = hub_api.create_repo("acme/training-data", repo_type="dataset").repo_id
    commit = hub_api.upload_folder(repo_id=repo_id, repo_type="dataset", folder_path=folder).oid
    hub_api.create_tag(repo_id, tag="v1.0.0", repo_type="dataset")
    here = {"repo_id": repo_id, "revision": "v1.0.0"}
    sts = {**here, "config": "postprocessed", "example_type": "sts", "loss": "CosineSimilarityLoss"}
    documents = {
        "config": "texts",
        "example_type": "documents",
        "loss": "DeclutrLoss",
        "streaming": True,
    }
    cases = [
        sts,
        sts | {"streaming": True},
        sts | documents,
        here | {"config": "postprocessed"},
        here,
    ]
    cases += [sts | changes for changes in LACKING.values()]
    environment = local_hub.client_environment(tmp_path / "home") | {"PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", READER, json.dumps(cases)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    whole, stream, texts, validation, ambiguous, *lacking = json.loads(done.stdout.splitlines()[-1])
    assert sorted(cells[:2] for cells in whole["rows"]) == sorted(
        cells[:2] for cells in stream["rows"]
    )
    assert sorted(texts["rows"]) == sorted([text] for text in LONG)
    assert [cells[0] for cells in whole["rows"]] == [
        row["sentence1"] for row in sts_rows(30) + sts_rows(30, seed=1)
    ]
    assert whole["commit"] == whole["sha256"] == stream["commit"] == validation["commit"] == commit
    assert (whole["license"], whole["splits"]) == ("cc-by-4.0", {"train": 60, "validation": 9})
    assert stream["splits"] == {"train": None, "validation": 9} and validation["rows"] == 9
    assert ambiguous.startswith("InputError validation.0: acme/training-data: has several configs")
    assert [
        found for found, problem in zip(lacking, LACKING, strict=True) if problem not in found
    ] == []


def test_a_streams_order_is_a_matter_of_seed_and_epoch(tmp_path):
    directory = write_dataset(tmp_path / "d", {"train": sts_rows(200)})

    def order(seed, epoch=0, limit=None):
        (loaded,) = load_training_sets((data_spec(directory, streaming=True),), limit, seed)
        loaded.train.set_epoch(epoch)
        return [row["sentence1"] + row["sentence2"] for row in loaded.train]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != order(1, epoch=1)
    first = [row["sentence1"] + row["sentence2"] for row in sts_rows(200)][:20]
    assert order(1, limit=20) != first
    assert sorted(order(1, limit=20)) == sorted(first)


def test_a_stream_is_alone(pairs):
    with pytest.raises(
        InputError, match=r"datasets.1.streaming: a streamed dataset is trained on alone"
    ):
        load_training_sets((data_spec(pairs), data_spec(pairs, streaming=True)), None)


def test_a_bad_row_of_a_stream_is_named_when_it_is_read(tmp_path):
    rows = sts_rows(2_400)
    rows[2_222]["sentence2"] = " "
    directory = write_dataset(tmp_path / "d", {"train": rows})
    (loaded,) = load_training_sets((data_spec(directory, streaming=True),), None)
    with pytest.raises(
        InputError, match=r"d \(postprocessed\), train, as read: row 2222 of column 'sentence2' is"
    ):
        list(loaded.train)
    rows[7]["score"] = None
    directory = write_dataset(tmp_path / "early", {"train": rows})
    with pytest.raises(InputError, match=r"row 7 of column 'score' is empty"):
        load_training_sets((data_spec(directory, streaming=True),), None)


def test_what_ends_a_stream_in_the_middle(tmp_path):
    """As ``datasets`` raises it when the Hub is gone, and for a file that is cut short."""
    streamed = hub_spec().model_copy(update={"streaming": True})
    with (
        pytest.raises(RunError, match=r"o/d at .* stopped answering"),
        convert_stream_errors(streamed),
    ):
        raise ConnectionError("Server Disconnected")
    message = r"datasets.0: o/d: cannot be read: Unexpected end of stream"
    with pytest.raises(InputError, match=message), convert_stream_errors(streamed):
        raise pa.ArrowInvalid("Unexpected end of stream\nmore")
    with pytest.raises(ConnectionError), convert_stream_errors(hub_spec()):  # not a stream's
        raise ConnectionError("of a reporter")


QUIET = {
    "report_to": "none",
    "logging_steps": "2",
    "num_train_epochs": "1",
    "learning_rate": "1e-3",
}
RANKING = "MultipleNegativesRankingLoss"


def graded(*rows):
    """Rows of (source sentence, second text, score)."""
    return [{"sentence1": a, "sentence2": b, "score": score, **PROVENANCE} for a, b, score in rows]


ROWS = graded(
    ("x", "far", 0.1),
    ("x", "half", 0.5),
    ("x", "near", 0.9),
    ("y", "near y", 0.9),
    ("x", "nearer", 0.9),
    ("y", "y far", 0.1),
    ("y", "near y", 0.5),  # a text written for both labels
    ("z", "only far", 0.1),
    ("v", "only near", 0.9),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_dataset(
        tmp_path_factory.mktemp("d") / "pairs", {"train": ROWS, "validation": sts_rows(6)}
    )


def loaded(path, form, limit=None, **changes):
    (found,) = load_training_sets(
        (data_spec(path, example_type=form, loss=RANKING, **changes),), limit
    )
    return found


def made(path, form, **changes):
    return [tuple(row.values()) for row in loaded(path, form, **changes).train]


def test_each_distinct_text_is_paired_with_itself(run):
    assert made(run, "self-pair") == [("x", "x"), ("y", "y"), ("z", "z"), ("v", "v")]
    both = made(run, "self-pair", columns=("sentence1", "sentence2"))
    assert both[:4] == [("x", "x"), ("far", "far"), ("half", "half"), ("near", "near")]
    assert len(both) == len(set(both)) == 4 + 8
    assert made(run, "self-pair", limit=2) == [("x", "x"), ("y", "y")]
    found = loaded(run, "self-pair", columns=("sentence2",))
    assert found.train.column_names == ["anchor", "positive"]
    assert found.validation is None  # its scores are labels
    assert found.describe()["columns"] == ("sentence2",)
    assert "columns" not in loaded(run, "self-pair").describe()


def test_each_positive_takes_a_hard_negative_of_its_source_sentence_the_hardest_first(run):
    assert made(run, "graded-triplet") == [
        ("x", "near", "half"),
        ("x", "nearer", "far"),
        ("y", "near y", "y far"),
    ]
    assert loaded(run, "graded-triplet").passed_over == 2  # z has no positive, v no negative
    grades = Grades(negative_from=0.4)
    assert made(run, "graded-triplet", grades=grades) == [
        ("x", "near", "half"),
        ("x", "nearer", "half"),
    ]
    grades = Grades(negative_to=0.3)
    assert made(run, "graded-triplet", grades=grades)[:2] == [
        ("x", "near", "far"),
        ("x", "nearer", "far"),
    ]
    assert made(run, "graded-triplet", limit=2) == [("x", "near", "half"), ("x", "nearer", "far")]
    itself = made(run, "graded-triplet", grades=Grades(positives="itself"))
    assert itself[:2] == [("x", "x", "half"), ("y", "y", "y far")], "a sentence needs no paraphrase"
    with pytest.raises(ValidationError, match="itself needs hard negatives: use graded-triplet"):
        made(run, "graded-pair", grades=Grades(positives="itself"))
    found = loaded(run, "graded-triplet", grades=grades)
    assert found.train.column_names == ["anchor", "positive", "negative"]
    assert len(found.validation) == 6 and found.validation.column_names == [
        "sentence1",
        "sentence2",
        "score",
    ]
    grades = {
        "positives": "generated",
        "positive_from": 0.75,
        "negative_from": 0.0,
        "negative_to": 0.3,
    }
    assert found.describe()["grades"] == grades


def test_a_text_is_not_its_own_negative(tmp_path):
    rows = graded(("x", "x", 0.5), ("x", "far", 0.1), ("x", "near", 0.9), ("y", "y", 0.5))
    path = write_dataset(tmp_path / "d", {"train": [*rows, ROWS[3], ROWS[5], *ROWS[-2:]]})
    assert made(path, "graded-triplet") == [("x", "near", "far"), ("y", "near y", "y far")]
    itself = loaded(path, "graded-triplet", grades=Grades(positives="itself"))
    texts = [tuple(row.values()) for row in itself.train]
    assert texts == [("x", "x", "far"), ("y", "y", "y far"), ("z", "z", "only far")]
    assert itself.passed_over == 1  # v has no negative


def test_positives_alone_are_pairs(run):
    wanted = [("x", "near"), ("x", "nearer"), ("y", "near y"), ("v", "only near")]
    assert made(run, "graded-pair") == wanted
    # 0.9 as float32 is less than 0.9
    assert made(run, "graded-pair", grades=Grades(positive_from=0.9)) == wanted


def recipe(folder, *datasets, **changes):
    if not (folder / "pairs").exists():  # three pairs of each source sentence
        rows = sts_rows(96)
        rows = [
            {**row, "sentence1": rows[index // 3 * 3]["sentence1"]}
            for index, row in enumerate(rows)
        ]
        write_dataset(folder / "pairs", {"train": rows})
    here = {"path": str(folder / "pairs"), "config": "postprocessed"}
    return write_recipe(
        folder, datasets=[{**here, **item} for item in datasets], **{"arguments": QUIET, **changes}
    )


def test_a_guide_is_pinned_and_not_trained(tmp_path):
    make_mlm(tmp_path / "guide")
    guide = {"path": str(tmp_path / "guide"), "license": "cc-by-nc-sa-4.0"}
    data = {"example_type": "graded-triplet", "loss": "GISTEmbedLoss", "guide": guide}
    # it taught the encoder
    with pytest.raises(InputError, match=r"parts .guide of the loss under .cc-by-nc-sa"):
        prepare(recipe(tmp_path, data), tmp_path / "out", None, [])
    path = recipe(tmp_path, data | {"guide": guide | {"license": "mit"}})
    job = prepare(path, tmp_path / "out", None, [])
    assert job.begin().inputs["guide:guide"] == job.guides[0].sha256
    encoder = build_encoder(job.recipe.base, job.base)
    trainer = make_trainer(job, encoder, "f")
    (loss,) = trainer.loss.values()
    before = {name: weight.clone() for name, weight in loss.guide.state_dict().items()}
    trainer.train()
    assert not trainer.loss_parameters  # no checkpoint holds the guide
    assert not loss.guide.training
    assert all(
        torch.equal(weight, before[name]) for name, weight in loss.guide.state_dict().items()
    )
    assert load_recipe(path, ModelRecipe).datasets[0].guide.path == str(tmp_path / "guide")


PROMPT = 'This text: "[X]" is:"'
TEXTS = [
    f"a man plays the flute {word} on the old red beach"
    for word in ("twice", "", "with two dogs and a cat")
]


def encoder_of(folder, kind):
    if kind == "static":
        spec = {"path": str(make_mlm(folder / "lm")), "modules": "static"}
    elif kind == "mlm":
        spec = {"path": str(make_mlm(folder / "lm"))}
    else:
        spec = {"path": str(make_llama(folder / "lm")), "pooling": "lasttoken", "prompt": PROMPT}
    encoder = Encoder(**spec, license="mit")
    return build_encoder(encoder, find_base(encoder))


def tokens(features, column="anchor"):
    """The ids of each text in a batch."""
    ids = features[f"{column}_input_ids"]
    if f"{column}_offsets" in features:
        bounds = [*features[f"{column}_offsets"].tolist(), len(ids)]
        return [ids[first:last].tolist() for first, last in pairwise(bounds)]
    mask = features[f"{column}_attention_mask"].bool()
    return [row[seen].tolist() for row, seen in zip(ids, mask, strict=True)]


@pytest.mark.parametrize("kind", ["static", "mlm", "prompted"])
def test_a_share_of_the_tokens_is_left_out_and_never_what_stands_around_a_text(tmp_path, kind):
    encoder = encoder_of(tmp_path, kind)
    rows = [{"anchor": text, "positive": text} for text in TEXTS for _ in range(100)]
    whole = tokens(TextCollator(encoder.preprocess)(rows))
    noise = TokenDropout(encoder.preprocess, 0.3, seed=1, pad=1)
    batch = TextCollator(encoder.preprocess, token_dropout=noise)(rows)
    around = {"static": (0, 0), "mlm": (1, 1)}.get(kind, (noise.prefix_length, noise.suffix_length))
    assert (noise.prefix_length, noise.suffix_length) == around and (
        kind != "prompted" or min(around) >= 3
    )
    gone = there = 0
    for column in ("anchor", "positive"):
        for left, ids in zip(tokens(batch, column), whole, strict=True):
            before, after = noise.prefix_length, len(ids) - noise.suffix_length
            assert (
                left[:before] == ids[:before]
                and left[len(left) - noise.suffix_length :] == ids[after:]
            )
            inner = left[before : len(left) - noise.suffix_length]
            rest = iter(ids[before:after])
            # some left out, in order
            assert len(inner) > 0 and all(token in rest for token in inner)
            gone, there = gone + len(ids) - len(left), there + after - before
    assert 0.28 < gone / there < 0.32
    assert tokens(batch) != tokens(batch, "positive")  # the two sides of a text
    if kind != "static":
        mask = batch["anchor_attention_mask"]
        # padding behind, no column of it alone
        assert (mask.diff(dim=1) <= 0).all() and mask.any(dim=0).all()
        assert set(batch["anchor_input_ids"][mask == 0].tolist()) <= {1}
    most = TokenDropout(encoder.preprocess, 0.99, seed=1)
    batch = TextCollator(encoder.preprocess, token_dropout=most)(rows)
    assert min(len(ids) for ids in tokens(batch)) == sum(around) + 1  # never all of a text


def test_the_draw_is_the_batch_s_own(tmp_path):
    """Whatever was drawn before: a resumed run skips batches, and loaders read ahead."""
    preprocess = encoder_of(tmp_path, "static").preprocess
    rows = [{"anchor": text} for text in TEXTS * 5]
    noises = [TokenDropout(preprocess, 0.3, seed) for seed in (1, 1, 2)]
    first, again, other = (TextCollator(preprocess, token_dropout=noise) for noise in noises)
    drawn = tokens(first(rows))
    torch.manual_seed(5)
    again(rows[3:])
    assert tokens(again(rows)) == drawn != tokens(other(rows))
    assert tokens(first(rows[1:])) != drawn[1:]


def test_a_self_pair_needs_dropout_in_the_encoder_or_of_tokens(tmp_path, capsys):
    data = {"path": str(tmp_path / "pairs"), "config": "postprocessed", "example_type": "self-pair"}
    data |= {"loss": "MultipleNegativesRankingLoss"}
    assert has_dropout(encoder_of(tmp_path, "mlm"))
    static = {"path": str(tmp_path / "lm"), "modules": "static", "license": "mit"}
    for rate in ("0", "0.3"):
        recipe = write_recipe(tmp_path, datasets=[data], base=static, token_dropout=rate)
        job = prepare(recipe, tmp_path / rate, None, ["arguments.max_steps=1"])
        trainer = make_trainer(job, build_untrained_encoder(job), "f")
        batch = next(iter(trainer.get_train_dataloader()))
        same = batch["anchor_input_ids"].tolist() == batch["positive_input_ids"].tolist()
        train(job, "f")
        assert ("has no dropout" in capsys.readouterr().err) == same == (rate == "0")


@pytest.mark.parametrize("positives", ["itself", "generated"])
def test_a_graded_text_that_is_its_own_positive_needs_dropout_too(run, tmp_path, capsys, positives):
    grades = Grades(positives=positives)
    job = SimpleNamespace(
        sets=[loaded(run, "graded-triplet", grades=grades), loaded(run, "graded-pair")],
        recipe=SimpleNamespace(token_dropout=0.0),
    )
    _warn_without_dropout(job, encoder_of(tmp_path, "static"))
    assert ("has no dropout" in capsys.readouterr().err) == (positives == "itself")


def write_export(folder, name, content, encoding="utf-8"):
    (folder / name).write_bytes(content.encode(encoding))
    return folder / name


COLUMNS = ("frage_a", "frage_b", "bewertung")


def load_export(path, **changes):
    spec = data_spec(path, config="default", **{"columns": COLUMNS, **changes})
    (found,) = load_training_sets((spec,), None)
    return found


@pytest.mark.parametrize("streaming", [False, True])
def test_a_german_export_is_trained_on_by_its_own_columns(tmp_path, streaming):
    lines = [f"Wie weit fährt Bus {n}?;Führt Linie {n} über Köln?;0,{n}" for n in range(1, 9)]
    text = "\r\n".join([";".join(COLUMNS), *lines])
    path = write_export(tmp_path, "export.csv", text, "cp1252")
    rows = sorted(load_export(path, streaming=streaming).train, key=lambda row: row["score"])
    assert rows[0] == {
        "sentence1": "Wie weit fährt Bus 1?",
        "sentence2": "Führt Linie 1 über Köln?",
        "score": pytest.approx(0.1),
    }
    assert [row["score"] for row in rows] == pytest.approx([n / 10 for n in range(1, 9)])


def test_columns_and_numbers_of_a_file_that_do_not_fit_are_refused(tmp_path):
    path = write_export(tmp_path, "a.csv", 'frage_a,frage_b,bewertung\na,b,"0,5"\na,c,1\n')
    with pytest.raises(
        InputError, match=r"bewertung is '0,5'; allowed: a number, e\.g\. 4\.2; wri"
    ):
        load_export(path)
    with pytest.raises(InputError, match="column 'fragea': not in the data; allowed: frage_a"):
        load_export(path, columns=("fragea", "frage_b", "bewertung"))
    with pytest.raises(InputError, match=r"no column 'sentence1', .* datasets\.0\.columns"):
        load_export(path, columns=None)


def test_rows_that_lack_a_key_are_passed_over_and_counted(tmp_path, capsys):
    rows = [{"id": 1}, *sts_rows(6), {"sentence1": "alone"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = load_export(path, columns=None)
    assert len(found.train) == 6
    said = capsys.readouterr().err
    assert "passed over: 2 rows that lack one of sentence1, sentence2, score" in said


def test_a_row_without_one_of_the_columns_keeps_its_other_texts(tmp_path):
    rows = [{"a": f"text {n}"} for n in range(5)] + [{"a": "text 5", "b": "text 6"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = data_spec(
        path, config="default", example_type="self-pair", loss=RANKING, columns=("a", "b")
    )
    (found,) = load_training_sets((spec,), None)
    assert len(found.train) == 7


def test_the_column_of_an_example_set_is_one_of_the_data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in sts_rows(6)))
    with pytest.raises(InputError, match="column 'example_set'"):
        load_export(path, columns=("sentence1", "sentence2", "score"), example_set=0)


def test_training_texts_beyond_the_encoders_length_are_counted(tmp_path, capsys):
    lines = ["A man plays.", "Two dogs run. " * 40, "A cat sits. " * 40]
    path = write_export(tmp_path, "texts.txt", "".join(f"{line}\n" for line in lines))
    spec = data_spec(path, config="default", example_type="self-pair", loss=RANKING)
    (found,) = load_training_sets((spec,), None)
    base = Encoder(path=str(make_mlm(tmp_path / "base")), license="mit", max_seq_length=16)
    encoder = build_encoder(base, find_base(base))
    _warn_of_cut_texts(SimpleNamespace(sets=[found]), encoder)
    assert f"warning: {found.name}: 2 of 3 texts are cut at 16 tokens" in capsys.readouterr().err

"""The one reader of datasets to be looked at: run directories, published runs and other datasets of a Hub."""

import json
import os
import subprocess
import sys

import datasets
import pytest
from training_inputs import PAIRS_CARD, sts_rows, write_dataset

from eval.audit.source import find_dataset, find_rows, made_folder
from eval.audit.survey import read_examples
from hub.contract.run_dir import read_manifest, write_manifest
from hub.contract.schema import PAIR_CLASS, TRIPLET, published_features
from hub.errors import InputError

pytest_plugins = ["local_hub"]
READ = """
import json, sys
from huggingface_hub import constants
from eval.audit.survey import read_examples
from eval.audit.source import find_rows
from hub.errors import StsDinoError
def reported(place, *options):
    try:
        found = find_rows(place, *options)
        return [found.config, found.example_type, found.splits, found.revision, read_examples(found).sha256]
    except StsDinoError as error:
        return str(error)
asked = json.loads(sys.argv[1])
found = [reported(*one) for one in asked]
constants.HF_HUB_OFFLINE = True
print(json.dumps([found, reported(*asked[0]), reported("demo/absent")]))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_dataset(folder / "sts", {"train": sts_rows(40), "validation": sts_rows(5, seed=1)})
    (folder / "sts" / "README.md").write_text(PAIRS_CARD)
    files = []
    for config in ("pair-class-0shot", "pair-class-5shot", "triplet-5shot", "raw-5shot"):
        form = TRIPLET if config == "triplet-5shot" else PAIR_CLASS
        keys = published_features(form)
        rows = [dict.fromkeys(keys) | {key: "a" for key in form.columns if key != "label"}]
        write_dataset(folder / "nli", {"train": rows}, config, form)
        files += read_manifest(folder / "nli").files
    write_manifest(folder / "nli", read_manifest(folder / "nli").with_files(files))
    return folder


def test_a_published_run_and_any_other_dataset_give_the_rows_of_the_run_directory(
    runs, tmp_path, local_hub, hub_api, repo
):
    commit = hub_api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=runs / "sts").oid
    hub_api.create_tag(repo, repo_type="dataset", tag="v1.0.0")
    hub_api.upload_file(path_or_fileobj=b"{}", path_in_repo="manifest.json", repo_id=repo, repo_type="dataset")
    hub_api.create_branch(repo, repo_type="dataset", branch="growing")
    growing = read_manifest(runs / "sts").model_copy(update={"complete": False}).model_dump_json().encode()
    hub_api.upload_file(
        path_or_fileobj=growing, path_in_repo="manifest.json", repo_id=repo, repo_type="dataset", revision="growing"
    )
    empty = hub_api.create_repo(f"{repo}_empty", repo_type="dataset").repo_id
    asked = [
        [f"{repo}@v1.0.0"],
        [repo, "postprocessed"],  # its manifest.json is no longer one: read as anybody's dataset
        [f"{repo}@v1.0.0", "postproces"],
        [repo, "postproces"],
        [f"{repo}@growing"],
        [f"{repo}@v9"],
        [empty],
        ["demo/absent"],
    ]
    places = {"HF_ENDPOINT": local_hub.endpoint, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": "."}

    command = [sys.executable, "-c", READ, json.dumps(asked)]
    done = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (published, other, *refused), offline, absent = json.loads(done.stdout)
    local = find_rows(str(runs / "sts"))
    assert published == ["postprocessed", "sts", local.splits, commit, read_examples(local).sha256]
    assert other[:3] == published[:3] and other[4] == published[4] and other[3] != commit
    words = ["did you mean 'postprocessed'", "did you mean 'postprocessed'", "the run is not finished"]
    words += ["has no revision 'v9'", "cannot be read", "no such repository"]
    for reported, word in zip(refused, words, strict=True):
        assert word in reported and "\n" not in reported, reported
    assert offline == published and "HF_HUB_OFFLINE is set" in absent


def test_pairs_come_before_triplets_and_one_of_several_shot_counts_is_named(runs):
    with pytest.raises(InputError, match=r"several configs; allowed: .*'pair-class-0shot'.* --config"):
        find_rows(str(runs / "nli"))
    assert find_rows(str(runs / "nli"), "pair-class-5shot").example_type == "pair-class"
    with pytest.raises(InputError, match=r"no config 'pair-clas-5shot'.*did you mean 'pair-class-5shot'"):
        find_rows(str(runs / "nli"), "pair-clas-5shot")
    assert not any(name.startswith("raw") for name in find_dataset(str(runs / "nli")).finished)


def test_places_that_are_no_finished_dataset_are_refused(runs, tmp_path):
    growing = write_dataset(tmp_path / "growing", {"train": sts_rows(6)})
    write_manifest(growing, read_manifest(growing).model_copy(update={"complete": False}))
    damaged = write_dataset(tmp_path / "damaged", {"train": sts_rows(6)})
    next(damaged.rglob("*.parquet")).write_bytes(b"PAR1")
    model = write_dataset(tmp_path / "model", {"train": sts_rows(6)})
    write_manifest(model, read_manifest(model).model_copy(update={"kind": "model"}))
    for place, problem in [
        (tmp_path, "no manifest.json"),
        (growing, "not finished"),
        (damaged, "not what its manifest says"),
        (model, "is the run of a model"),
        (tmp_path / "absent", "no such directory"),
        (write_dataset(tmp_path / "empty", {"train": []}), r"\(postprocessed\): has no rows"),
        (write_dataset(tmp_path / "none", {}), "has no finished config"),
        (
            write_dataset(
                tmp_path / "other", {"train": [{"a": "b"}]}, features=datasets.Features({"a": datasets.Value("string")})
            ),
            r"has the columns \['a'\]; allowed: sentence1, sentence2, score",
        ),
    ]:
        with pytest.raises(InputError, match=problem):
            find_rows(str(place))
    with pytest.raises(InputError, match=r"has no split 'test'; allowed: \['train', 'validation'\]"):
        find_rows(str(runs / "sts"), split="test")


def test_columns_of_other_types_and_scores_that_are_no_numbers_are_refused(tmp_path):
    value = datasets.Value
    texts = {"sentence1": value("string"), "sentence2": value("string"), "score": value("float32")}
    for number, (changed, row, problem) in enumerate(
        [
            ({"sentence2": value("int64")}, ("a", 1, 0.5), "'sentence2' is of the type int64; allowed: string"),
            ({"score": value("string")}, ("a", "b", "1"), "'score' is of the type string; allowed: float or int"),
            ({}, ("a", "b", float("nan")), "train row 0: has the score nan; allowed: a number"),
            ({}, ("a", "b", None), "train row 0: has the score None"),
        ]
    ):
        features = datasets.Features({**texts, **changed})
        rows = [dict(zip(texts, row, strict=True))]
        place = str(write_dataset(tmp_path / str(number), {"train": rows}, features=features))
        with pytest.raises(InputError, match=problem):
            list(find_rows(place).batches())


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(InputError, match=r"cannot be written: .*choose another --drop"):
            made_folder(place, "--drop")
    assert made_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b" and not list((tmp_path / "a" / "b").iterdir())

"""The one reader of datasets to be looked at: run directories, published runs and other datasets of
a Hub.
"""

import json

import datasets
import pytest
from training_inputs import PAIRS_CARD, sts_rows, write_dataset

from sts_dino.eval.audit.source import find_dataset, find_rows
from sts_dino.eval.audit.survey import read_examples
from sts_dino.hub.client.fetch import open_published_run
from sts_dino.hub.contract.run_dir import read_manifest, write_manifest
from sts_dino.hub.contract.schema import PAIR_CLASS, TRIPLET, build_features
from sts_dino.hub.errors import InputError, StsDinoError

pytest_plugins = ["local_hub", "hub_here"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_dataset(folder / "sts", {"train": sts_rows(40), "validation": sts_rows(5, seed=1)})
    (folder / "sts" / "README.md").write_text(PAIRS_CARD)
    files = []
    for config in ("pair-class-0shot", "pair-class-5shot", "triplet-5shot", "raw-5shot"):
        form = TRIPLET if config == "triplet-5shot" else PAIR_CLASS
        keys = build_features({**form.columns, **form.provenance})
        rows = [dict.fromkeys(keys) | {key: "a" for key in form.columns if key != "label"}]
        write_dataset(folder / "nli", {"train": rows}, config, form)
        files += read_manifest(folder / "nli").files
    write_manifest(folder / "nli", read_manifest(folder / "nli").with_files(files))
    return folder


def test_a_published_run_and_any_other_dataset_give_the_rows_of_the_run_directory(
    runs, hub_here, hub_api, repo
):
    commit = hub_api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=runs / "sts").oid
    hub_api.create_tag(repo, repo_type="dataset", tag="v1.0.0")
    hub_api.upload_file(
        path_or_fileobj=b"{}", path_in_repo="manifest.json", repo_id=repo, repo_type="dataset"
    )
    hub_api.create_branch(repo, repo_type="dataset", branch="growing")
    growing = (
        read_manifest(runs / "sts")
        .model_copy(update={"complete": False})
        .model_dump_json()
        .encode()
    )
    there = {"repo_id": repo, "repo_type": "dataset", "revision": "growing"}
    hub_api.upload_file(path_or_fileobj=growing, path_in_repo="manifest.json", **there)
    empty = hub_api.create_repo(f"{repo}_empty", repo_type="dataset").repo_id
    for place, problem in (
        ([f"{repo}@v1.0.0", "postproces"], "did you mean 'postprocessed'"),
        ([repo, "postproces"], "did you mean 'postprocessed'"),
        ([f"{repo}@growing"], "the run is not finished"),
        ([f"{repo}@v9"], "has no revision 'v9'"),
        ([empty], "cannot be read"),
        (["demo/absent"], "no such repository"),
    ):
        with pytest.raises(StsDinoError, match=problem) as refused:
            find_rows(*place)
        assert "\n" not in str(refused.value)
    local, published = find_rows(str(runs / "sts")), find_rows(f"{repo}@v1.0.0")
    # its manifest.json is no longer one: read as anybody's dataset
    other = find_rows(repo, "postprocessed")
    assert published.revision == commit != other.revision
    for found in (published, other):
        assert (found.config, found.example_type, found.splits) == (
            "postprocessed",
            "sts",
            local.splits,
        )
        assert read_examples(found).sha256 == read_examples(local).sha256
    hub_here()
    again = find_rows(f"{repo}@v1.0.0")
    assert (again.revision, read_examples(again).sha256) == (commit, read_examples(local).sha256)
    with pytest.raises(StsDinoError, match="HF_HUB_OFFLINE is set"):
        find_rows("demo/absent")


def test_a_damaged_shard_is_named_with_the_command_that_repairs_it(runs, hub_here, hub_api, repo):
    commit = hub_api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=runs / "sts").oid
    run = open_published_run(repo, None, repo)
    folder, shards = run.fetch_shards("postprocessed")
    (folder / shards[0].path).write_bytes(b"damaged")  # in the client's cache
    command = f"hf download {repo} --repo-type dataset --revision {commit} --force-download"
    with pytest.raises(InputError, match=f"not what its manifest says; .*{command}$"):
        run.fetch_shards("postprocessed")
    hub_api.snapshot_download(repo, repo_type="dataset", revision=commit, force_download=True)
    assert run.fetch_shards("postprocessed") == (folder, shards)


def test_a_dataset_of_others_that_was_read_once_is_read_again_without_a_hub(
    hub_here, hub_api, repo, tmp_path
):
    rows = [{"sentence1": f"a {n}", "sentence2": f"b {n}", "score": n % 3} for n in range(9)]
    files = {"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}
    files["README.md"] = "---\nlicense: mit\n---\n"
    for name, text in files.items():
        (tmp_path / "up").mkdir(exist_ok=True)
        (tmp_path / "up" / name).write_text(text)
    hub_api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=tmp_path / "up")
    online = find_rows(repo)
    digest = read_examples(online).sha256
    hub_here()
    offline = find_rows(repo)
    assert (offline.revision, offline.config) == (online.revision, "default")
    assert read_examples(offline).sha256 == digest


def test_pairs_come_before_triplets_and_one_of_several_shot_counts_is_named(runs):
    with pytest.raises(
        InputError, match=r"several configs; allowed: .*'pair-class-0shot'.* --config"
    ):
        find_rows(str(runs / "nli"))
    assert find_rows(str(runs / "nli"), "pair-class-5shot").example_type == "pair-class"
    with pytest.raises(
        InputError, match=r"no config 'pair-clas-5shot'.*did you mean 'pair-class-5shot'"
    ):
        find_rows(str(runs / "nli"), "pair-clas-5shot")
    assert not any(name.startswith("raw") for name in find_dataset(str(runs / "nli")).finished)


def test_scores_next_to_zero_have_one_label(tmp_path):
    value = datasets.Value
    types = {"sentence1": value("string"), "sentence2": value("string"), "score": value("float32")}
    rows = [dict(zip(types, ("a", "b", score), strict=True)) for score in (-0.02, 0.02)]
    place = write_dataset(tmp_path / "d", {"train": rows}, features=datasets.Features(types))
    (batch,) = find_rows(str(place)).read_batches()
    assert batch.labels == ["0", "0"]


def test_columns_of_other_types_scores_that_are_no_numbers_and_no_rows_are_refused(tmp_path):
    value = datasets.Value
    texts = {"sentence1": value("string"), "sentence2": value("string"), "score": value("float32")}
    for number, (types, row, problem) in enumerate(
        [
            (
                {"a": value("string")},
                ("b",),
                r"has the columns \['a'\]; allowed: sentence1, sentence2, score",
            ),
            (
                texts | {"sentence2": value("int64")},
                ("a", 1, 0.5),
                "'sentence2' is of the type int64; allowed: string",
            ),
            (
                texts | {"score": value("string")},
                ("a", "b", "1"),
                "'score' is of the type string; allowed: float",
            ),
            (texts, ("a", "b", float("nan")), "train row 0: has the score nan; allowed: a finite"),
            (texts, ("a", "b", None), "train row 0: has the score None"),
        ]
    ):
        rows = [dict(zip(types, row, strict=True))]
        place = str(
            write_dataset(
                tmp_path / str(number), {"train": rows}, features=datasets.Features(types)
            )
        )
        with pytest.raises(InputError, match=problem):
            list(find_rows(place).read_batches())
    with pytest.raises(InputError, match=r"\(postprocessed\): has no rows"):
        find_rows(str(write_dataset(tmp_path / "empty", {"train": []})))

"""Rows of every published form, from a run directory as generation writes it and from its copy on a Hub."""

import pytest
from local_hub import LocalHub
from small_runs import small_recipe, small_run
from training_inputs import sts_rows, triplet_rows, write_dataset

from eval.annotation_source import read_examples
from hub.errors import InputError, RunError
from hub.run_dir import read_manifest, write_manifest
from hub.schema import TRIPLET

pytest_plugins = ["local_hub"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for form in ("sts", "nli", "text"):
        small_run(folder / form, small_recipe(form))
    return folder


def test_scored_pairs_are_asked_about_on_the_scale_of_their_scores(runs):
    examples = read_examples(str(runs / "sts"))
    assert (examples.name, examples.config, examples.split) == ("sts", "postprocessed", "train")
    assert examples.scale.labels == ("0", "0.1", "0.5", "0.9") and examples.headings == ("Sentence 1", "Sentence 2")
    assert len(examples) == read_manifest(runs / "sts").counts["splits"]["postprocessed"]["train"]
    assert set(examples.labels) == set(examples.scale.labels) and all(
        first != second for first, second in examples.texts
    )


def test_classified_pairs_come_before_triplets_and_shot_counts_are_named(runs):
    with pytest.raises(InputError, match=r"several configs; allowed: .*'pair-class-0shot'.* --config"):
        read_examples(str(runs / "nli"))
    pairs = read_examples(str(runs / "nli"), "pair-class-5shot")
    assert pairs.scale.labels == ("entailment", "neutral", "contradiction") and not pairs.scale.ordered
    assert set(pairs.labels) == {"entailment", "contradiction"}
    for premise, hypothesis in pairs.texts[:50]:
        assert premise.startswith("First text") and hypothesis
    with pytest.raises(InputError, match=r"no finished config 'pair-clas-5shot'.*did you mean 'pair-class-5shot'"):
        read_examples(str(runs / "nli"), "pair-clas-5shot")
    with pytest.raises(InputError, match="no finished config 'raw-5shot'"):
        read_examples(str(runs / "nli"), "raw-5shot")


def test_a_triplet_is_an_entailed_and_a_contradicting_pair(tmp_path):
    rows = [{key: row[key] for key in ("anchor", "positive", "negative", "source_id")} for row in triplet_rows(3)]
    examples = read_examples(str(write_dataset(tmp_path / "t", {"train": rows}, "triplet", TRIPLET)))
    assert examples.texts[:2] == ((rows[0]["anchor"], rows[0]["positive"]), (rows[0]["anchor"], rows[0]["negative"]))
    assert examples.labels == ("entailment", "contradiction") * 3


def test_single_texts_are_asked_for_their_class(runs):
    examples = read_examples(str(runs / "text"))
    assert examples.scale.labels == ("gut", 'bö"se') and examples.headings == ("Text",) and len(examples.texts[0]) == 1


def test_places_that_are_no_finished_dataset_are_refused(runs, tmp_path):
    small_run(tmp_path / "growing", small_recipe("sts"), blocks_done=1)
    damaged = write_dataset(tmp_path / "damaged", {"train": sts_rows(6)})
    next(damaged.rglob("*.parquet")).write_bytes(b"PAR1")
    model = write_dataset(tmp_path / "model", {"train": sts_rows(6)})
    write_manifest(model, read_manifest(model).model_copy(update={"kind": "model"}))
    for place, problem in [
        (tmp_path, "no manifest.json"),
        (tmp_path / "growing", "not finished"),
        (damaged, "not what its manifest says"),
        (model, "is the run of a model"),
        (tmp_path / "absent", "no such directory"),
    ]:
        with pytest.raises(InputError, match=problem):
            read_examples(str(place))
    with pytest.raises(InputError, match=r"no rows in the split 'test'; allowed: \['train', 'validation'\]"):
        read_examples(str(runs / "sts"), split="test")


def test_a_hub_dataset_gives_the_same_rows_and_fingerprint(
    runs, local_hub: LocalHub, hub_api, repo, monkeypatch, tmp_path
):
    address = local_hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", local_hub.endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub_api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=runs / "sts", revision="main")
    hub_api.create_tag(repo, repo_type="dataset", tag="v1.0.0")
    local, published = read_examples(str(runs / "sts")), read_examples(f"{repo}@v1.0.0")
    assert published.name == repo and published.sha256 == local.sha256 and published.labels == local.labels
    with pytest.raises(InputError, match="has no revision 'v9'"):
        read_examples(f"{repo}@v9")
    with pytest.raises((InputError, RunError), match="no such repository"):
        read_examples("demo/absent")

"""With HF_HUB_OFFLINE, what an earlier run downloaded is used again: at its commit, and at the tag
that it named.
"""

import json

import pytest

from sts_dino.generation.inputs.sources import SOURCES
from sts_dino.hub.contract.recipe import Encoder, Source
from sts_dino.hub.errors import RunError
from sts_dino.training.data.training_sets import open_hub_splits
from sts_dino.training.encoder.bases import find_base

pytest_plugins = ["local_hub", "hub_here"]


def test_a_dataset_a_source_and_a_base_are_found_again_without_a_hub(
    hub_here, hub_api, repo, tmp_path
):
    def publish(text: str) -> str:
        rows = "".join(json.dumps({"sentence1": f"{text} {number}"}) + "\n" for number in range(3))
        (tmp_path / "up" / "rows.jsonl").write_text(rows)
        (tmp_path / "up" / "README.md").write_text("---\nlicense: mit\n---\n")
        return hub_api.upload_folder(
            repo_id=repo, repo_type="dataset", folder_path=tmp_path / "up"
        ).oid

    def read(revision: str) -> tuple[object, ...]:
        found = open_hub_splits(repo, revision, None, False, "here")
        (_, rows), *_ = SOURCES["hub"](source.model_copy(update={"revision": revision}))
        return found.commit, found.license, list(found.splits["train"]["sentence1"]), list(rows)

    (tmp_path / "up").mkdir()
    model = hub_api.create_repo("demo/words").repo_id
    hub_api.upload_file(repo_id=model, path_in_repo="w.txt", path_or_fileobj=b"a 1 2\n")
    base = Encoder(
        repo_id=model, revision="main", file="w.txt", modules="word-vectors", license="mit"
    )
    commit = publish("first")
    hub_api.create_tag(repo, tag="v1", repo_type="dataset")
    of_hub = {
        "kind": "hub",
        "repo_id": repo,
        "revision": "v1",
        "path": "rows.jsonl",
        "columns": ("sentence1",),
    }
    source = Source(**of_hub, license="mit", description="d")
    tagged, later, vectors = read("v1"), read(publish("later")), find_base(base)
    assert tagged[:2] == (commit, "mit") and tagged != later
    hub_here()
    assert read("v1") == read(commit) == tagged and read(later[0]) == later
    assert find_base(base) == vectors
    with pytest.raises(RunError, match="is not downloaded, and HF_HUB_OFFLINE is set"):
        read("v2")

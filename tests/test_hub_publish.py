"""Publishing to a running local Hub through the official client, and what goes wrong with it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from local_hub import mint

from hub import run_dir
from hub.errors import InputError, RunError
from hub.publish import publish
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.run_dir import Manifest
from hub.shards import write_shard, write_text

pytest_plugins = ["local_hub"]


@pytest.fixture
def finished(tmp_path, request) -> Path:
    """A finished run directory with two shards and a card, named after the test."""
    from hub.schema import STS, published_features

    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:60].strip("-")
    directory = tmp_path / name
    row = {"sentence1": "a", "sentence2": "b", "score": 0.9, "source_id": "1", "target": "1", "attempt": 0, "seed": 1}
    paths = [f"data/postprocessed/train-0000{i}-of-00002.parquet" for i in range(2)]
    for path in paths:
        write_shard(directory / path, [row | {"log_prob": -1.0, "margin": None}], published_features(STS))
    write_text(directory / "README.md", "---\nlicense: cc0-1.0\n---\n# A card\n")
    write_text(directory / "recipe.yaml", "kind: dataset\n")
    manifest = Manifest(kind="dataset", name=name, version="0.1.0", fingerprint="f", complete=True)
    run_dir.write_manifest(directory, manifest.with_files([run_dir.describe(directory, path) for path in paths]))
    return directory


def files(api: HfApi, repo: str, revision: str | None = None) -> set[str]:
    return set(api.list_repo_files(repo, repo_type="dataset", revision=revision)) - {".gitattributes"}


def test_dry_run_changes_nothing(finished, hub_api):
    plan = publish(hub_api, finished, "acme", yes=False)
    assert plan.parent is None and len(plan.added) == 5 and not hub_api.repo_exists(plan.repo_id, repo_type="dataset")


def test_publish_is_one_commit_and_a_tag_and_again_nothing(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    commits = hub_api.list_repo_commits(repo, repo_type="dataset")
    assert len(commits) == 2  # the Hub's own initial one and ours
    assert files(hub_api, repo, "v0.1.0") == {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}
    again = publish(hub_api, finished, "acme", yes=True)
    assert not again.commits and again.tag is None
    assert [c.commit_id for c in hub_api.list_repo_commits(repo, repo_type="dataset")] == [c.commit_id for c in commits]


def test_a_new_version_replaces_and_deletes_in_one_commit(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    manifest = run_dir.require_complete(finished)
    gone = manifest.files[1].path
    (finished / gone).unlink()
    write_text(finished / "README.md", "---\nlicense: cc0-1.0\n---\n# Another card\n")
    changes = {"files": manifest.files[:1], "version": "0.2.0"}
    run_dir.write_manifest(finished, manifest.model_copy(update=changes))
    plan = publish(hub_api, finished, "acme", yes=True)
    assert plan.deleted == (gone,) and set(plan.replaced) == {"README.md", "manifest.json"} and not plan.added
    assert gone not in files(hub_api, repo) and gone in files(hub_api, repo, "v0.1.0")
    assert len(hub_api.list_repo_commits(repo, repo_type="dataset")) == 3


def test_other_bytes_under_the_same_version_are_refused(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    before = hub_api.list_repo_refs(repo, repo_type="dataset")
    write_text(finished / "README.md", "# Changed\n")
    with pytest.raises(RunError, match=r"tag v0.1.0: exists and marks other content \(README.md\); raise `version`"):
        publish(hub_api, finished, "acme", yes=True)
    assert hub_api.list_repo_refs(repo, repo_type="dataset") == before


def test_a_commit_whose_tag_was_lost_is_only_tagged(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    hub_api.delete_tag(repo, tag="v0.1.0", repo_type="dataset")
    plan = publish(hub_api, finished, "acme", yes=True)
    assert not plan.commits and plan.tag == "v0.1.0"
    assert [tag.name for tag in hub_api.list_repo_refs(repo, repo_type="dataset").tags] == ["v0.1.0"]


def test_what_is_not_ready_is_refused(finished, hub_api, tmp_path):
    shard = next(finished.rglob("*.parquet"))
    content = shard.read_bytes()
    shard.write_bytes(content + b" ")
    with pytest.raises(InputError, match="files differ from the manifest: data/postprocessed"):
        publish(hub_api, finished, "acme", yes=True)
    shard.write_bytes(content)
    (finished / "README.md").unlink()
    with pytest.raises(InputError, match=r"no card; run: python -m model_cards\.render"):
        publish(hub_api, finished, "acme", yes=True)
    with pytest.raises(InputError, match="not a run directory"):
        publish(hub_api, tmp_path, "acme", yes=True)


def command(hub_environment: dict[str, str], directory: Path, org: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "hub.publish", str(directory), "--org", org, "--yes"]
    return subprocess.run(words, env=hub_environment, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert all(word in lines[0] for word in words), lines[0]
    assert "hf_" not in done.stderr + done.stdout


def test_a_token_without_write_access_and_an_unknown_one(finished, local_hub, hub_api, tmp_path):
    environment = local_hub.client_environment(tmp_path / "home")
    reader = mint(local_hub, "demo", "read")
    refused(command(environment | {"HF_TOKEN": reader}, finished, "acme"), "403", "write access")
    refused(command(environment | {"HF_TOKEN": "hf_nobody"}, finished, "acme"), "401", "token")
    refused(command(environment, finished, "somebody-else"), "403", local_hub.endpoint)
    assert not hub_api.repo_exists(f"acme/{finished.name}", repo_type="dataset")


def test_a_hub_that_is_down(finished, local_hub, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        environment = local_hub.client_environment(tmp_path / "home") | {"HF_ENDPOINT": endpoint}
        refused(command(environment, finished, "acme"), endpoint, "cannot be reached", "nothing is lost")


def test_a_published_demo_recipe_loads_by_its_name(tmp_path, hub_api):
    """Names that a recipe may have are names that the Hub takes."""
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe, ["name=a.b-c0"])
    assert hub_api.create_repo(f"acme/{recipe.name}", repo_type="dataset").repo_id == "acme/a.b-c0"
    assert os.environ["HF_HUB_DISABLE_XET"] == "1"

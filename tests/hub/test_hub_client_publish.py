"""Publishing to a running local Hub through the official client, and what goes wrong with it."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Features, Value
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from local_hub import mint
from published_run import files, finished_run, hub_file, write_card

from hub.client.publish import Options, publish
from hub.client.repository import Repository, unwrapped
from hub.client.retry import SAME_CONFLICTS
from hub.contract import run_dir
from hub.contract.shards import write_shard
from hub.durable import write_text
from hub.errors import InputError, RunError

pytest_plugins = ["local_hub"]


@pytest.fixture
def finished(tmp_path, request) -> Path:
    """A finished run directory with two shards and a card, named after the test."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:60].strip("-")
    return finished_run(tmp_path / name)


def test_dry_run_changes_nothing(finished, hub_api):
    plan = publish(hub_api, finished, "acme", yes=False)
    assert plan.remote is None and len(plan.changes.added) == 5 and plan.upload > 1000
    assert "+ README.md" in str(plan) and "tag v0.1.0" in str(plan)
    assert not hub_api.repo_exists(plan.repo_id, repo_type="dataset")


def test_publish_is_one_commit_and_a_tag_and_again_nothing(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    commits = hub_api.list_repo_commits(repo, repo_type="dataset")
    assert len(commits) == 2  # the Hub's own initial one and ours
    assert files(hub_api, repo, "v0.1.0") == {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}
    again = publish(hub_api, finished, "acme", yes=True)
    assert not again.changes and again.tag is None and again.upload == 0
    assert [c.commit_id for c in hub_api.list_repo_commits(repo, repo_type="dataset")] == [c.commit_id for c in commits]


def test_a_smaller_version_replaces_and_deletes_in_one_commit(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    finished_run(finished, version="0.2.0", shards=1)
    gone = "data/postprocessed/train-00001-of-00002.parquet"
    plan = publish(hub_api, finished, "acme", yes=True)
    assert gone in plan.changes.deleted and set(plan.changes.replaced) == {"README.md", "manifest.json", "recipe.yaml"}
    assert gone not in files(hub_api, repo) and gone in files(hub_api, repo, "v0.1.0")
    assert len(hub_api.list_repo_commits(repo, repo_type="dataset")) == 3


def test_other_bytes_under_the_same_version_are_refused(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    before = hub_api.list_repo_refs(repo, repo_type="dataset")
    write_card(finished, text="Changed")
    with pytest.raises(RunError, match=r"tag v0.1.0: exists and marks other content \(README.md\); raise `version`"):
        publish(hub_api, finished, "acme", yes=True)
    assert hub_api.list_repo_refs(repo, repo_type="dataset") == before


def test_a_commit_whose_tag_was_lost_is_only_tagged(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    hub_api.delete_tag(repo, tag="v0.1.0", repo_type="dataset")
    plan = publish(hub_api, finished, "acme", yes=True)
    assert not plan.changes and plan.tag == "v0.1.0"
    assert [tag.name for tag in hub_api.list_repo_refs(repo, repo_type="dataset").tags] == ["v0.1.0"]


def refusal(finished: Path, hub_api: HfApi, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        publish(hub_api, finished, "acme", yes=True)
    assert not hub_api.repo_exists(f"acme/{finished.name}", repo_type="dataset")


def test_what_is_not_ready_is_refused(finished, hub_api, tmp_path):
    shard = next(finished.rglob("*.parquet"))
    content = shard.read_bytes()
    shard.write_bytes(content + b" ")
    refusal(finished, hub_api, "files differ from the manifest: data/postprocessed")
    shard.write_bytes(content)
    (finished / "README.md").unlink()
    refusal(finished, hub_api, r"no card; run: sts-dino card")
    with pytest.raises(InputError, match="not a run directory"):
        publish(hub_api, tmp_path, "acme", yes=True)


def test_a_card_that_does_not_agree_is_refused(finished, hub_api):
    card = (finished / "README.md").read_text()
    write_text(finished / "README.md", card.replace("# A card", "# My card"))
    refusal(finished, hub_api, "was edited by hand: prose belongs into the recipe's about:")
    write_card(finished, org="other")
    refusal(finished, hub_api, "is that of other/.*, not of acme/")
    manifest = run_dir.require_complete(finished)
    write_text(finished / "README.md", card)
    run_dir.write_manifest(finished, manifest.model_copy(update={"counts": {"kept": 7}}))
    refusal(finished, hub_api, "was written from other facts")


def test_a_recipe_of_another_run_is_refused(finished, hub_api):
    recipe = finished / "recipe.yaml"
    for before, after in (("seed: 10", "seed: 43"), ("pretty_name: ", "pretty_name: My ")):
        text = recipe.read_text()
        assert before in text
        write_text(recipe, text.replace(before, after))
        refusal(finished, hub_api, "is not the recipe that the manifest's run was made by; change the recipe where")
        write_text(recipe, text)


def test_a_parquet_file_with_other_columns_is_refused(finished, hub_api):
    manifest, path = run_dir.require_complete(finished), "data/postprocessed/train-00001-of-00002.parquet"
    write_shard(
        finished / path, [{"sentence1": "a", "score": 1}], Features(sentence1=Value("string"), score=Value("int8"))
    )
    file = run_dir.describe(finished, path, config="postprocessed", split="train", rows=1)
    run_dir.write_manifest(finished, manifest.with_files([file]))
    write_card(finished)
    refusal(finished, hub_api, r"has the columns sentence1, score, .*allowed: sentence1, sentence2, score, source_id")


def test_a_repository_that_exists_unseen_is_not_waited_for(finished, hub_api, monkeypatch):
    repo = hub_api.create_repo(f"acme/{finished.name}", repo_type="dataset").repo_id
    monkeypatch.setattr(hub_api, "repo_exists", lambda *_, **__: False)
    with pytest.raises(RunError, match=f"{repo}: exists, but this token cannot see it"):
        Repository(hub_api, repo, "dataset").create(private=False)


@pytest.mark.parametrize("said", [OSError(28, "full"), OSError("I/O error: No space left on device (os error 28)")])
def test_a_full_disk_of_the_client_is_one_line_that_names_it(said):
    with pytest.raises(RunError, match="/some/cache: No space left on device; make room"), unwrapped("/some/cache"):
        raise said
    with pytest.raises(ConnectionResetError), unwrapped():
        raise ConnectionResetError(104, "by peer")


def test_the_script_is_on_its_branch_and_never_on_main(finished, hub_api):
    name = f"{finished.name}.py"
    options = Options(script={name: "print('one')\n", "beside.py": ""})
    repo = publish(hub_api, finished, "acme", yes=True, options=options).repo_id
    assert files(hub_api, repo, "script") == files(hub_api, repo) | {name, "beside.py"}
    assert name not in files(hub_api, repo)
    assert not publish(hub_api, finished, "acme", yes=True, options=options).script
    finished_run(finished, version="0.2.0", shards=1)
    before = len(hub_api.list_repo_commits(repo, repo_type="dataset", revision="script"))
    publish(hub_api, finished, "acme", yes=True, options=Options(script={name: "print('two')\n"}))
    assert files(hub_api, repo, "script") == files(hub_api, repo) | {name}
    assert hub_file(hub_api, repo, name, "script") == b"print('two')\n"
    assert len(hub_api.list_repo_commits(repo, repo_type="dataset", revision="script")) == before + 1


def command(hub_environment: dict[str, str], directory: Path, org: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "sts_dino", "publish", str(directory), "--org", org, "--yes"]
    return subprocess.run(words, env=hub_environment, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert all(word in lines[0] for word in words), lines[0]
    assert "hf_" not in done.stderr + done.stdout


@pytest.mark.slow("starts command after command")
def test_a_token_without_write_access_and_an_unknown_one(finished, local_hub, hub_api, tmp_path):
    environment = local_hub.client_environment(tmp_path / "home")
    reader = mint(local_hub, "demo", "read")
    refused(command(environment | {"HF_TOKEN": reader}, finished, "acme"), "403", "write access")
    refused(command(environment | {"HF_TOKEN": "hf_nobody"}, finished, "acme"), "401", "token")
    write_card(finished, org="somebody-else")
    refused(command(environment, finished, "somebody-else"), "403", local_hub.endpoint)
    assert not hub_api.repo_exists(f"acme/{finished.name}", repo_type="dataset")


def test_a_hub_that_is_down(finished, local_hub, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        environment = local_hub.client_environment(tmp_path / "home") | {"HF_ENDPOINT": endpoint}
        refused(command(environment, finished, "acme"), endpoint, "cannot be reached", "nothing is lost")


@pytest.mark.parametrize(("ref", "kind"), [("v0.1.0/x", "tag"), ("script/x", "branch")])
def test_a_name_in_the_way_of_ours_is_told_and_not_waited_for(ref, kind, finished, hub_api, capsys, monkeypatch):
    """Git has no ref within a ref: the Hub answers 409 to our tag or branch for as long as the other is there."""
    repo = hub_api.create_repo(f"acme/{finished.name}", repo_type="dataset", exist_ok=True).repo_id
    make = hub_api.create_tag if kind == "tag" else hub_api.create_branch
    make(repo, **{kind: ref}, repo_type="dataset")
    waits = list[str]()
    monkeypatch.setattr("hub.client.retry.countdown", lambda why, seconds: waits.append(why))
    with pytest.raises(HfHubHTTPError) as refused:
        publish(hub_api, finished, "acme", yes=True, options=Options(script={"some.py": ""}))
    assert refused.value.response.status_code == 409 and ref in str(refused.value)
    assert 1 <= len(waits) < SAME_CONFLICTS and all(ref in why for why in waits)
    hub_api.delete_repo(repo, repo_type="dataset")

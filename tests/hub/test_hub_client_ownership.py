"""What others did on the Hub is not taken away: edits, files, unfinished runs, later versions, privacy."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from published_run import files, finished_run, hub_file, write_card

from hub.client.publish import Options, publish
from hub.client.repository import Repository
from hub.client.retry import RetryPolicy
from hub.contract import run_dir
from hub.errors import RunError

pytest_plugins = ["local_hub"]


@pytest.fixture
def finished(tmp_path, request) -> Path:
    """A finished run directory with two shards and a card, named after the test."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:60].strip("-")
    return finished_run(tmp_path / name)


def edited(repo: str, hub_api: HfApi, path: str, content: bytes) -> None:
    hub_api.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=repo, repo_type="dataset")


def test_a_card_edited_on_the_hub_is_shown_and_kept(finished, hub_api, capsys):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    card = (finished / "README.md").read_bytes()
    edited(repo, hub_api, "README.md", card.replace(b"# A card", b"# A card\n\nRead this first."))
    finished_run(finished, version="0.2.0")
    with pytest.raises(RunError, match=r"changed by hand.*README.md \(edited by hand\).*--force"):
        publish(hub_api, finished, "acme", yes=True)
    assert "+Read this first." in capsys.readouterr().err
    plan = publish(hub_api, finished, "acme", yes=False)
    assert plan.edits == {"README.md": "edited by hand"} and "+Read this first." in str(plan)
    assert b"Read this first" in hub_file(hub_api, repo, "README.md")
    publish(hub_api, finished, "acme", yes=True, options=Options(force=True))
    assert hub_file(hub_api, repo, "README.md") == (finished / "README.md").read_bytes()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("notes.txt", "not ours"),
        ("data/postprocessed/train-99.parquet", "not ours"),
        ("data/postprocessed/train-00000-of-00002.parquet", "changed by hand"),
        ("old.py", "datasets 4 and later refuse"),
    ],
)
def test_files_of_others_are_not_taken_away_silently(finished, hub_api, path, said):
    finished = finished_run(finished.parent / f"others-{path.replace('/', '-')}"[:60].rstrip(".-"))
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    edited(repo, hub_api, path, b"somebody's")
    finished_run(finished, version="0.2.0")
    with pytest.raises(RunError, match=rf"{path} \(.*{said}"):
        publish(hub_api, finished, "acme", yes=True)
    assert hub_file(hub_api, repo, path) == b"somebody's"
    publish(hub_api, finished, "acme", yes=True, options=Options(force=True))
    assert files(hub_api, repo) == {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}


def test_a_repository_that_is_not_ours_is_left_alone(finished, hub_api):
    repo = hub_api.create_repo(f"acme/{finished.name}", repo_type="dataset").repo_id
    edited(repo, hub_api, "README.md", b"# Mine\n")
    with pytest.raises(RunError, match=r"README.md \("):
        publish(hub_api, finished, "acme", yes=True)
    assert hub_file(hub_api, repo, "README.md") == b"# Mine\n"


def test_a_manifest_edited_on_the_hub_is_kept(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    changed = (finished / "manifest.json").read_bytes().replace(b'"counts": {}', b'"counts": {"kept": 1}')
    edited(repo, hub_api, "manifest.json", changed)
    finished_run(finished, version="0.2.0")
    with pytest.raises(RunError, match=r"changed by hand.*manifest.json \(.*the card was written from others"):
        publish(hub_api, finished, "acme", yes=True)
    assert hub_file(hub_api, repo, "manifest.json") == changed


def test_an_earlier_version_does_not_replace_a_later_one(finished, hub_api):
    finished_run(finished, version="0.10.0")
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    finished_run(finished, version="0.9.0", text="B")
    for yes in (False, True):
        with pytest.raises(RunError, match=r"branch main: holds v0\.10\.0, which is later than v0\.9\.0; .*--force"):
            publish(hub_api, finished, "acme", yes=yes)
    publish(hub_api, finished, "acme", yes=True, options=Options(force=True))
    assert b'"version": "0.9.0"' in hub_file(hub_api, repo, "manifest.json")


def unfinished(directory: Path, api: HfApi, version: str, revision: str) -> str:
    """An unfinished run, put on a branch of the Hub; its repository."""
    manifest = run_dir.require_complete(finished_run(directory, version=version))
    run_dir.write_manifest(directory, manifest.model_copy(update={"complete": False}))
    write_card(directory)
    repo = api.create_repo(f"acme/{directory.name}", repo_type="dataset", exist_ok=True).repo_id
    api.create_branch(repo, branch=revision, repo_type="dataset", exist_ok=True)
    api.upload_folder(repo_id=repo, folder_path=directory, repo_type="dataset", revision=revision)
    return repo


def test_an_unfinished_run_of_another_recipe_is_not_replaced(finished, hub_api):
    repo = unfinished(finished, hub_api, "0.1.0", "main")
    before = files(hub_api, repo)
    finished_run(finished, version="0.2.0", shards=1)
    with pytest.raises(RunError, match=r"branch main: holds an unfinished run of another recipe .*v0\.1\.0.*--force"):
        publish(hub_api, finished, "acme", yes=True)
    assert files(hub_api, repo) == before


def branches(api: HfApi, repo: str) -> set[str]:
    return {ref.name for ref in api.list_repo_refs(repo, repo_type="dataset").branches}


def test_next_goes_with_its_own_version_and_stays_with_another(finished, hub_api):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    unfinished(finished, hub_api, "0.2.0", "next")
    finished_run(finished, version="0.1.0")
    publish(hub_api, finished, "acme", yes=True)
    assert branches(hub_api, repo) == {"main", "next"}  # another version grows there
    finished_run(finished, version="0.2.0")
    publish(hub_api, finished, "acme", yes=True)
    assert branches(hub_api, repo) == {"main"}
    hub_api.create_branch(repo, branch="next", repo_type="dataset", revision="v0.1.0")
    publish(hub_api, finished, "acme", yes=True)
    assert branches(hub_api, repo) == {"main"}  # nothing grew there: its start was killed


def test_a_private_publication_does_not_go_to_a_public_repository(finished, hub_api):
    private = Options(private=True)
    repo = publish(hub_api, finished, "acme", yes=True, options=private).repo_id
    assert hub_api.repo_info(repo, repo_type="dataset").private
    assert not publish(hub_api, finished, "acme", yes=True, options=private).changes
    hub_api.update_repo_settings(repo, repo_type="dataset", visibility="public")
    with pytest.raises(RunError, match=f"{repo}: is there already, and public; .*leave --private out"):
        publish(hub_api, finished, "acme", yes=True, options=private)


def test_somebody_who_commits_after_the_plan_is_not_overwritten(finished, hub_api, monkeypatch):
    repo = publish(hub_api, finished, "acme", yes=True).repo_id
    finished_run(finished, version="0.2.0", shards=1)
    commit = Repository.commit

    def later(self: Repository, *arguments: Any) -> str:
        if "notes.txt" not in files(hub_api, repo):
            edited(repo, hub_api, "notes.txt", b"somebody's")
        return commit(self, *arguments)

    monkeypatch.setattr(Repository, "commit", later)
    quick = Options(patience=RetryPolicy(scale=0.001))
    with pytest.raises(RunError, match=r"changed by hand.*notes.txt \(not ours\)"):
        publish(hub_api, finished, "acme", yes=True, options=quick)
    assert hub_file(hub_api, repo, "notes.txt") == b"somebody's" and b"0.1.0" in hub_file(hub_api, repo, "recipe.yaml")

"""A publication in several commits: each is whole, a killed one goes on, and nothing unfinished
loads or is tagged.
"""

import json
import random
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi
from published_run import files, finished_run, hub_file

from sts_dino.hub.client import plan as batches
from sts_dino.hub.client.plan import (
    CARD,
    Content,
    Remote,
    add_stamp,
    find_changes,
    hash_facts,
    read_stamp,
)
from sts_dino.hub.client.publish import Options, find_edits, publish_run, read_remote_manifest
from sts_dino.hub.client.repository import Repository
from sts_dino.hub.client.retry import RetryPolicy
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, File, Manifest
from sts_dino.hub.errors import RunError

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


@pytest.fixture(autouse=True)
def small_commits(monkeypatch):
    monkeypatch.setattr(batches, "MOST_FILES_PER_COMMIT", 6)


class Branch:
    """A branch of a Hub as far as ``steps`` looks at it, to which commits are applied."""

    def __init__(self, contents: dict[str, bytes]):
        self.contents = contents

    @property
    def remote(self) -> Remote:
        entries = {
            path: SimpleNamespace(path=path, lfs=SimpleNamespace(sha256=Content(content).hash()))
            for path, content in self.contents.items()
        }
        return Remote("0" * 40, entries)

    def apply(self, step: batches.PlannedCommit) -> None:
        """As a Hub does: an operation on something that is not there is refused."""
        for place in step.changes.deleted:
            gone = [
                path
                for path in self.contents
                if path == place or (place[-1] == "/" and path.startswith(place))
            ]
            assert gone, f"{place} is not there"
            for path in gone:
                del self.contents[path]
        for path in (*step.changes.added, *step.changes.replaced):
            self.contents[path] = step.snapshot[path].data

    @property
    def data(self) -> set[str]:
        return {path for path in self.contents if path.startswith("data/")}


def state(random_: random.Random, card: bool = True) -> tuple[dict[str, bytes], Manifest]:
    """Files of a run, as its manifest names them."""
    kinds = random_.sample(
        ["data/raw", "data/rejected", "data/postprocessed"], random_.randint(1, 3)
    )
    data = {
        f"{kind}/{n:02d}": random_.choice([b"1", b"2"])
        for kind in kinds
        for n in range(random_.randint(0, 12))
    }
    entries = tuple(
        File(path, 1, Content(content).hash()) for path, content in sorted(data.items())
    )
    manifest = Manifest(
        kind="dataset", name="pairs", version="0.1.0", fingerprint="f", complete=True, files=entries
    )
    text = manifest.model_dump_json().encode()
    words = add_stamp(f"# {random_.choice('xy')}\n", "acme/pairs", hash_facts(text))
    beside = {
        MANIFEST: text,
        RECIPE: random_.choice([b"a", b"b"]),
        **({CARD: words.encode()} if card else {}),
    }
    return {**data, **beside}, manifest


@pytest.mark.parametrize("seed", range(200))
def test_any_state_becomes_any_other_by_commits_that_are_whole(seed):
    random_ = random.Random(seed)
    before = random_.choice([{}, state(random_)[0], state(random_, card=False)[0]])
    branch, (after, manifest) = Branch(dict(before)), state(random_)
    snapshot = {path: Content(content) for path, content in after.items()}
    steps = batches.plan_commits(snapshot, branch.remote, manifest, "acme/pairs")
    assert bool(steps) == (before != after)
    for step in steps[:-1]:
        branch.apply(step)
        assert len(step.changes.added) + len(step.changes.replaced) <= batches.MOST_FILES_PER_COMMIT
        found = Manifest.model_validate_json(branch.contents[MANIFEST])
        assert not found.complete and {file.path for file in found.files} == branch.data
        assert all(
            Content(branch.contents[file.path]).hash() == file.sha256 for file in found.files
        )
        stamp = read_stamp(branch.contents[CARD].decode())
        assert stamp and stamp.facts == hash_facts(branch.contents[MANIFEST])
        assert b"being-published" in branch.contents[CARD]
    for step in steps[-1:]:
        branch.apply(step)
        assert len(step.changes.added) + len(step.changes.replaced) <= batches.MOST_FILES_PER_COMMIT
    assert branch.contents == after
    assert not find_changes(snapshot, branch.remote)


def test_all_files_beside_the_manifest_count_for_the_limit(monkeypatch):
    monkeypatch.setattr(batches, "MOST_FILES_PER_COMMIT", 12)
    contents, manifest = state(random.Random(1))
    contents |= {f"assets/{number}.png": b"" for number in range(5)}
    contents |= {f"data/raw/{number}": b"" for number in range(30)}
    snapshot = {path: Content(content) for path, content in contents.items()}
    steps = batches.plan_commits(snapshot, Remote("0" * 40, {}), manifest, "acme/pairs")
    assert len(steps) > 3
    for step in steps:
        assert len(step.changes) <= 12


def test_names_that_differ_in_case_are_different_files_on_windows_too(monkeypatch):
    monkeypatch.setattr(batches, "Path", PureWindowsPath)
    assert batches.is_beside("README.md") and not batches.is_beside("readme.md")


def history(api: HfApi, repo: str) -> list[str]:
    return [commit.commit_id for commit in api.list_repo_commits(repo, **DATASET)][::-1][1:]


def check(api: HfApi, repo: str, version: str) -> list[dict]:
    """The manifests of all commits; nothing in any of them looks like an edit, and only the last is
    tagged.
    """
    repository, found = Repository(api, repo, "dataset"), []
    for commit in history(api, repo):
        remote = repository.get_commit(commit)
        assert find_edits(repository, remote, read_remote_manifest(repository, remote), {}) == {}
        found.append(json.loads(hub_file(api, repo, MANIFEST, commit)))
        named = {file["path"] for file in found[-1]["files"]}
        assert {path for path in files(api, repo, commit) if path.startswith("data/")} == named
        assert found[-1]["complete"] == (
            "being-published" not in hub_file(api, repo, CARD, commit).decode()
        )
    assert repository.list_tags()[f"v{version}"] == commit
    return found


@pytest.mark.parametrize("after", [1, 2, 4, 5, 7])
def test_killed_between_two_commits_it_goes_on(after, tmp_path, hub_api, monkeypatch, capsys):
    directory = finished_run(tmp_path / f"killed-after-{after}", shards=12)
    repo = publish_run(hub_api, directory, "acme", yes=True).repo_id
    finished_run(directory, version="0.2.0", shards=13, text="other")
    commit, left = Repository.commit, [after]

    def killed(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return commit(*arguments)

    monkeypatch.setattr(Repository, "commit", killed)
    if after < 6:  # so many it takes
        with pytest.raises(KeyboardInterrupt):
            publish_run(hub_api, directory, "acme", yes=True)
        assert "v0.2.0" not in Repository(hub_api, repo, "dataset").list_tags()
        left[0] = 100
    publish_run(hub_api, directory, "acme", yes=True)
    assert " of 13 files published" in capsys.readouterr().err
    check(hub_api, repo, "0.2.0")
    assert files(hub_api, repo) == {
        str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()
    }


@pytest.mark.parametrize("number", [1, 3])
def test_a_person_who_commits_before_a_commit_of_ours_is_not_overwritten(
    number, tmp_path, hub_api, monkeypatch
):
    directory = finished_run(tmp_path / f"edited-before-commit-{number}", shards=12)
    repo = publish_run(hub_api, directory, "acme", yes=True).repo_id
    finished_run(directory, version="0.2.0", shards=12, text="other")
    commit, begun = Repository.commit, []

    def meddled(self, *arguments):
        begun.append(arguments)
        if len(begun) == number:
            hub_api.upload_file(
                path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id=repo, **DATASET
            )
        return commit(self, *arguments)

    monkeypatch.setattr(Repository, "commit", meddled)
    with pytest.raises(
        RunError, match=r"changed by hand since it was published: notes.txt \(not ours"
    ):
        publish_run(
            hub_api, directory, "acme", yes=True, options=Options(patience=RetryPolicy(scale=0.001))
        )
    assert hub_file(hub_api, repo, "notes.txt") == b"mine"
    assert "v0.2.0" not in Repository(hub_api, repo, "dataset").list_tags()


def test_the_script_of_very_many_files_is_cut_anew(tmp_path, hub_api):
    directory = finished_run(tmp_path / "many-with-script", shards=10)
    options = Options(script={f"{directory.name}.py": "print('one')\n"})
    repo = publish_run(hub_api, directory, "acme", yes=True, options=options).repo_id
    finished_run(directory, version="0.2.0", shards=11, text="other")
    publish_run(hub_api, directory, "acme", yes=True, options=options)
    assert files(hub_api, repo, "script") == files(hub_api, repo) | {f"{Path(repo).name}.py"}
    assert not publish_run(hub_api, directory, "acme", yes=True, options=options).script

"""The local Hub seen through HfApi: commits, branches, tags."""

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RevisionNotFoundError,
)
from local_hub import ask, commit_body, file_line

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


def add(path, content):
    return CommitOperationAdd(path, content if isinstance(content, bytes) else content.encode())


def paths(api, repo, **kwargs):
    return sorted(entry.path for entry in api.list_repo_tree(repo, recursive=True, **DATASET, **kwargs))


def test_parent_commit_conflict(hub_api, repo):
    base = hub_api.dataset_info(repo).sha
    first = hub_api.create_commit(repo, [add("a", "1")], commit_message="a", parent_commit=base[:10], **DATASET)
    with pytest.raises(HfHubHTTPError, match="The branch was updated since you opened this page") as refused:
        hub_api.create_commit(repo, [add("b", "1")], commit_message="b", parent_commit=base, **DATASET)
    assert refused.value.response.status_code == 412
    assert hub_api.dataset_info(repo).sha == first.oid and "b" not in paths(hub_api, repo)


def test_commit_sent_again_changes_nothing(hub_api, repo, local_hub):
    address, token = f"/api/datasets/{repo}/commit/main", local_hub.token
    base = hub_api.dataset_info(repo).sha
    plain = commit_body(file_line("p", "1"))
    first = ask(local_hub, "POST", address, plain, token=token).json()["commitOid"]
    assert ask(local_hub, "POST", address, plain, token=token).json()["commitOid"] == first
    deleting = commit_body(("deletedFile", {"path": "p"}), parentCommit=first)
    second = ask(local_hub, "POST", address, deleting, token=token).json()["commitOid"]
    assert ask(local_hub, "POST", address, deleting, token=token).json()["commitOid"] == second
    other = ask(local_hub, "POST", address, commit_body(file_line("q", "2")), token=token).json()["commitOid"]
    # With another commit in between the parent is stale, and the same bytes without one are a new wish.
    assert ask(local_hub, "POST", address, deleting, token=token).status == 412
    third = ask(local_hub, "POST", address, plain, token=token).json()["commitOid"]
    assert len({base, first, second, other, third}) == 5
    assert [commit.commit_id for commit in hub_api.list_repo_commits(repo, **DATASET)] == [
        third, other, second, first, base,
    ]  # fmt: skip


def test_copy_delete_and_conflicts(hub_api, repo):
    hub_api.create_commit(
        repo, [add("d/one.bin", "1"), add("d/two.txt", "2"), add("e/f/g", "3")], commit_message="x", **DATASET
    )
    hub_api.create_commit(
        repo,
        [
            CommitOperationCopy("d/one.bin", "copy.bin"),
            CommitOperationDelete("d/two.txt"),
            CommitOperationDelete("e/"),
        ],
        commit_message="y",
        **DATASET,
    )
    assert paths(hub_api, repo) == [".gitattributes", "copy.bin", "d", "d/one.bin"]
    for path in ("d", "copy.bin/inside"):
        with pytest.raises(HfHubHTTPError) as refused:
            hub_api.create_commit(repo, [add(path, "x")], commit_message="z", **DATASET)
        assert refused.value.response.status_code == 422
    with pytest.raises(EntryNotFoundError, match="A file with this name doesn't exist"):
        hub_api.delete_file("nowhere.txt", repo, **DATASET)


def test_branches_tags_and_revisions(hub_api, repo, tmp_path):
    base = hub_api.dataset_info(repo).sha
    hub_api.create_branch(repo, branch="feature/one", **DATASET)
    hub_api.create_branch(repo, branch="feature/one", exist_ok=True, **DATASET)
    done = hub_api.upload_file(
        path_or_fileobj=b"new", path_in_repo="n.txt", repo_id=repo, revision="feature/one", **DATASET
    )
    hub_api.create_tag(repo, tag="v1.0", revision="feature/one", tag_message="first", **DATASET)
    for revision in ("feature/one", "refs/heads/feature/one", "v1.0", "refs/tags/v1.0", done.oid, done.oid[:8]):
        assert hub_api.dataset_info(repo, revision=revision).sha == done.oid
        path = hub_api.hf_hub_download(repo, "n.txt", revision=revision, cache_dir=tmp_path, **DATASET)
        assert Path(path).read_bytes() == b"new"
    assert hub_api.dataset_info(repo).sha == base and not hub_api.file_exists(repo, "n.txt", **DATASET)
    refs = hub_api.list_repo_refs(repo, include_pull_requests=True, **DATASET)
    assert {ref.name: ref.target_commit for ref in refs.branches} == {"main": base, "feature/one": done.oid}
    assert [(tag.ref, tag.target_commit) for tag in refs.tags] == [("refs/tags/v1.0", done.oid)]
    for status, call in (
        (409, lambda: hub_api.create_branch(repo, branch="feature/one", **DATASET)),
        (409, lambda: hub_api.create_branch(repo, branch="feature", **DATASET)),
        (409, lambda: hub_api.create_tag(repo, tag="v1.0", **DATASET)),
        (403, lambda: hub_api.delete_branch(repo, branch="main", **DATASET)),
        (400, lambda: hub_api.create_branch(repo, branch="a..b", **DATASET)),
        (400, lambda: hub_api.create_branch(repo, branch="refs/pr/1", **DATASET)),
        (400, lambda: hub_api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repo, revision="v1.0",
                                               **DATASET)),
    ):  # fmt: skip
        with pytest.raises(HfHubHTTPError) as refused:
            call()
        assert refused.value.response.status_code == status
    with pytest.raises(RevisionNotFoundError):
        hub_api.create_branch(repo, branch="x", revision="nowhere", **DATASET)
    with pytest.raises(RevisionNotFoundError):
        hub_api.create_tag(repo, tag="no name", revision="nowhere", **DATASET)
    hub_api.delete_tag(repo, tag="v1.0", **DATASET)
    hub_api.delete_branch(repo, branch="feature/one", **DATASET)
    assert [ref.name for ref in hub_api.list_repo_refs(repo, **DATASET).branches] == ["main"]
    assert hub_api.dataset_info(repo, revision=done.oid).sha == done.oid  # a commit outlives its branch


def test_expanded_tree_knows_last_commits(hub_api, repo):
    hub_api.create_commit(repo, [add("d/a", "1"), add("d/b", "1")], commit_message="first", **DATASET)
    hub_api.create_commit(repo, [add("d/b", "2")], commit_message="second", **DATASET)
    titles = {e.path: e.last_commit.title for e in hub_api.list_repo_tree(repo, recursive=True, expand=True, **DATASET)}
    assert titles == {".gitattributes": "initial commit", "d": "second", "d/a": "first", "d/b": "second"}
    assert hub_api.get_paths_info(repo, "d/a", expand=True, **DATASET)[0].last_commit.title == "first"


def test_commit_pages(hub_api, repo, local_hub):
    for number in range(55):
        body = commit_body(file_line("counter", str(number)), summary=f"number {number}")
        assert ask(local_hub, "POST", f"/api/datasets/{repo}/commit/main", body, token=local_hub.token).status == 200
    titles = [commit.title for commit in hub_api.list_repo_commits(repo, **DATASET)]
    assert titles == [f"number {number}" for number in reversed(range(55))] + ["initial commit"]
    assert ask(local_hub, "GET", f"/api/datasets/{repo}/commits/main").headers["X-Total-Count"] == "56"

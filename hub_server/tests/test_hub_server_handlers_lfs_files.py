"""The large files of a repo: listing them, removing them for good, copying them to another repo on the server."""

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, HfApi
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from local_hub import Log, ask, commit_body

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


def put(api: HfApi, repo: str, path: str, content: bytes, **options) -> str:
    operations = [CommitOperationAdd(path, content)]
    return api.create_commit(repo, operations, commit_message=f"add {path}", **options, **DATASET).oid


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files(api: HfApi, repo: str) -> dict[str, str | None]:
    return {file.filename: file.ref for file in api.list_lfs_files(repo, **DATASET)}


def test_listing_says_where_a_file_is_or_was(hub_api, stranger, repo):
    put(hub_api, repo, "old.bin", b"old" * 100)
    hub_api.delete_file("old.bin", repo, **DATASET)
    put(hub_api, repo, "x/here.bin", b"here" * 100)
    put(hub_api, repo, "text.txt", b"text")
    hub_api.create_branch(repo, branch="side", **DATASET)
    put(hub_api, repo, "side.bin", b"side" * 100, revision="side")
    waiting = [CommitOperationAdd("later.bin", b"waiting" * 100)]
    hub_api.preupload_lfs_files(repo, waiting, **DATASET)
    main, side = "refs/heads/main", "refs/heads/side"
    assert files(hub_api, repo) == {"": None, "old.bin": main, "x/here.bin": main, "side.bin": side}
    (found,) = [file for file in hub_api.list_lfs_files(repo, **DATASET) if file.filename == "x/here.bin"]
    assert found.file_oid == found.oid == sha(b"here" * 100) and found.size == 400 and found.pushed_at
    with pytest.raises(HfHubHTTPError) as refused:
        list(stranger.list_lfs_files(repo, **DATASET))
    assert refused.value.response.status_code == 403


def test_removal_leaves_no_commit_that_names_the_file(hub_api, local_hub, stranger, repo, tmp_path):
    first = put(hub_api, repo, "keep.bin", b"keep" * 100)
    second = put(hub_api, repo, "folder/bad.bin", b"bad" * 100)
    hub_api.create_tag(repo, tag="v1", **DATASET)
    proposed = hub_api.create_commit(
        repo, [CommitOperationAdd("note.txt", b"note")], commit_message="A change", create_pr=True, **DATASET
    )
    hub_api.delete_file("folder/bad.bin", repo, **DATASET)
    titles = [commit.title for commit in hub_api.list_repo_commits(repo, **DATASET)]
    bad = [file for file in hub_api.list_lfs_files(repo, **DATASET) if file.filename == "folder/bad.bin"]
    with pytest.raises(HfHubHTTPError) as refused:
        stranger.permanently_delete_lfs_files(repo, bad, **DATASET)
    assert refused.value.response.status_code == 403
    with pytest.raises(BadRequestError, match="rewrite_history=True"):
        hub_api.permanently_delete_lfs_files(repo, bad, rewrite_history=False, **DATASET)
    hub_api.permanently_delete_lfs_files(repo, bad, **DATASET)
    assert set(files(hub_api, repo)) == {"keep.bin"}
    commits = hub_api.list_repo_commits(repo, **DATASET)
    assert [commit.title for commit in commits] == titles and first in {commit.commit_id for commit in commits}
    with pytest.raises(RevisionNotFoundError):
        hub_api.list_repo_tree(repo, revision=second, **DATASET).__next__()
    assert set(hub_api.list_repo_files(repo, revision="v1", **DATASET)) == {".gitattributes", "keep.bin"}
    for revision in ("v1", "refs/pr/1", *(commit.commit_id for commit in commits)):
        with pytest.raises(EntryNotFoundError):
            hub_api.hf_hub_download(repo, "folder/bad.bin", revision=revision, cache_dir=tmp_path, **DATASET)
    large = {"path": "again.bin", "algo": "sha256", "oid": sha(b"bad" * 100)}
    answer = hub_api.get_discussion_details(repo, 1, **DATASET)
    assert answer.conflicting_files == [] and "note.txt" in answer.diff and proposed.pr_num == 1
    hub_api.merge_pull_request(repo, 1, **DATASET)  # it began at a commit that has another id now
    assert set(hub_api.list_repo_files(repo, **DATASET)) == {".gitattributes", "keep.bin", "note.txt"}
    address = f"/api/datasets/{repo}/commit/main"
    refused = ask(local_hub, "POST", address, commit_body(("lfsFile", large)), token=local_hub.token)
    assert refused.status == 400  # the repo has no right to the content any more
    put(hub_api, repo, "again.bin", b"bad" * 100)  # unless it is uploaded again
    for body in ({}, {"deletions": {}}, {"deletions": {"sha": ["x"]}}, {"deletions": {"sha": "x"}}, [], b"["):
        status = ask(local_hub, "POST", f"/api/datasets/{repo}/lfs-files/batch", body, token=local_hub.token).status
        assert status == 400, body
    none = {"deletions": {"sha": ["0" * 64]}}
    assert ask(local_hub, "POST", f"/api/datasets/{repo}/lfs-files/batch", none, token=local_hub.token).status == 200


def copy(api: HfApi, source: str, target: str, path: str = "x.bin"):
    operation = CommitOperationCopy(path, f"copied/{path}", src_repo_id=source, src_repo_type="dataset")
    return api.create_commit(target, [operation], commit_message="copy", repo_type="model")


def test_copies_between_repos_move_no_bytes(local_hub, hub_api, stranger, repo, tmp_path):
    content = b"large" * 100_000
    put(hub_api, repo, "x.bin", content)
    put(hub_api, repo, "t.txt", b"text")
    mine = hub_api.create_repo("acme/copied").repo_id
    log = Log(local_hub)
    copy(hub_api, repo, mine)
    assert not log.lines("PUT") and not any("/resolve/" in line for line in log.lines("GET"))
    assert Path(hub_api.hf_hub_download(mine, "copied/x.bin", cache_dir=tmp_path)).read_bytes() == content
    hub_api.copy_files(f"hf://datasets/{repo}/", f"hf://{mine}/all/")
    assert {"all/x.bin", "all/t.txt"} <= set(hub_api.list_repo_files(mine))
    hub_api.delete_repo(repo, **DATASET)
    assert Path(hub_api.hf_hub_download(mine, "all/x.bin", cache_dir=tmp_path)).read_bytes() == content


def test_copies_open_nothing_that_one_may_not_read(local_hub, hub_api, stranger, repo):
    content = b"secret" * 1000
    theirs = stranger.create_repo("alice/copies", exist_ok=True).repo_id
    waiting = [CommitOperationAdd("later.bin", content)]
    hub_api.preupload_lfs_files(repo, waiting, free_memory=False, **DATASET)
    address = f"/api/datasets/{repo}/lfs-files/duplicate"
    wanted = {"target": {"type": "model", "name": theirs}, "files": [{"sha256": sha(content)}]}
    answer = ask(local_hub, "POST", address, wanted, token=stranger.token)
    assert answer.status == 200 and [item["sha256"] for item in answer.json()["failed"]] == [sha(content)]
    put(hub_api, repo, "x.bin", content)
    hub_api.update_repo_settings(repo, gated="auto", **DATASET)
    with pytest.raises(GatedRepoError):
        copy(stranger, repo, theirs)
    hub_api.update_repo_settings(repo, gated=False, private=True, **DATASET)
    with pytest.raises(RepositoryNotFoundError):
        copy(stranger, repo, theirs)
    hub_api.update_repo_settings(repo, private=False, **DATASET)
    copy(stranger, repo, theirs)
    assert ask(local_hub, "POST", address, wanted).status == 401
    assert ask(local_hub, "POST", address, wanted, token=(local_hub.root / "token_read").read_text()).status == 403
    assert ask(local_hub, "POST", address, wanted, token=hub_api.token).status == 403  # alice's repo is not demo's
    bad_targets = ({"target": {"type": "space", "name": theirs}}, {"target": {"type": "model", "name": "x"}})
    for body in ({}, [], b"[", *bad_targets, {"files": [{}]}, {"files": wanted["files"] * 1001}):
        body = wanted | body if body and isinstance(body, dict) else body
        assert ask(local_hub, "POST", address, body, token=stranger.token).status == 400
    nowhere = {**wanted, "target": {"type": "model", "name": "alice/nowhere"}}
    assert ask(local_hub, "POST", address, nowhere, token=stranger.token).status == 404
    missing = CommitOperationCopy("x.bin", "y.bin", src_repo_id=repo, src_repo_type="dataset")
    hub_api.permanently_delete_lfs_files(repo, list(hub_api.list_lfs_files(repo, **DATASET)), **DATASET)
    with pytest.raises(EntryNotFoundError):
        stranger.create_commit(theirs, [missing], commit_message="copy")

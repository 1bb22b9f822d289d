"""The local Hub through HfApi: repos, files, commits, branches, tags, listings."""

import hashlib
import os
import sqlite3
import tracemalloc
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from local_hub import PART_BYTES, Log, ask, commit_body, file_line, post_commit, status_of

from hub_server.handlers import lfs
from hub_server.storage import trees
from hub_server.storage.blobs import BlobStore
from hub_server.storage.errors import HubError
from hub_server.storage.trees import compute_object_id, make_lfs_pointer

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


def add(path, content):
    return CommitOperationAdd(path, content if isinstance(content, bytes) else content.encode())


def paths(api, repo, **kwargs):
    return sorted(
        entry.path for entry in api.list_repo_tree(repo, recursive=True, **DATASET, **kwargs)
    )


def commit(api, repo, *operations, message="x", **options) -> str:
    return api.create_commit(repo, operations, commit_message=message, **options, **DATASET).oid


def test_names_differ_in_more_than_case(hub_api):
    assert hub_api.create_repo("demo/Made", private=False).repo_id == "demo/Made"
    assert hub_api.repo_exists("Demo/made")
    assert not any(
        hub_api.repo_exists("demo/Made", repo_type=kind) for kind in ("dataset", "space")
    )
    assert status_of(hub_api.create_repo, "demo/made") == 409
    assert hub_api.create_repo("demo/made", exist_ok=True).repo_id == "demo/Made"
    hub_api.delete_repo("demo/Made")
    with pytest.raises(RepositoryNotFoundError):
        hub_api.delete_repo("demo/Made")


def test_upload_folder_regular_and_large(hub_api, repo, tmp_path, local_hub):
    source = tmp_path / "source"
    large = os.urandom(3 * PART_BYTES + 17)  # four parts
    for path, content in {
        "README.md": b"# hello\n",
        "data/a.parquet": large,
        "empty.bin": b"",
    }.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(content)
    log = Log(local_hub)
    done = hub_api.upload_folder(repo_id=repo, folder_path=source, **DATASET)
    assert len(log.lines("PUT")) == 4
    info = {
        file.rfilename: file for file in hub_api.dataset_info(repo, files_metadata=True).siblings
    }
    assert set(info) == {".gitattributes", "README.md", "data/a.parquet", "empty.bin"}
    sha256 = hashlib.sha256(large).hexdigest()
    assert info["data/a.parquet"].lfs.sha256 == sha256 and info["data/a.parquet"].size == len(large)
    pointer = make_lfs_pointer(sha256, len(large))
    assert info["data/a.parquet"].blob_id == compute_object_id("blob", pointer)
    assert info["README.md"].lfs is None and info["README.md"].blob_id == compute_object_id(
        "blob", b"# hello\n"
    )
    got = hub_api.snapshot_download(
        repo, cache_dir=tmp_path / "cache", revision=done.oid, **DATASET
    )
    assert (
        Path(got, "data/a.parquet").read_bytes() == large
        and Path(got, "empty.bin").read_bytes() == b""
    )
    log = Log(local_hub)
    # unchanged: it only asks
    again = hub_api.upload_folder(repo_id=repo, folder_path=source, **DATASET)
    posted = log.lines("POST")
    assert (
        again.oid == done.oid
        and posted
        and not log.lines("PUT")
        and not any("/commit/" in line for line in posted)
    )


def test_missing_things_have_their_own_errors(hub_api, repo, tmp_path):
    download = {"cache_dir": tmp_path, **DATASET}
    for error, call in (
        (RepositoryNotFoundError, lambda: hub_api.dataset_info("demo/nothing-here")),
        (
            RepositoryNotFoundError,
            lambda: hub_api.hf_hub_download("gpt2", "config.json", cache_dir=tmp_path),
        ),
        (RepositoryNotFoundError, lambda: hub_api.unlike("missing")),
        (
            RevisionNotFoundError,
            lambda: hub_api.hf_hub_download(repo, ".gitattributes", revision="nope", **download),
        ),
        (RevisionNotFoundError, lambda: commit(hub_api, repo, add("x", "x"), revision="nope")),
        (
            RevisionNotFoundError,
            lambda: hub_api.create_branch(repo, branch="x", revision="nope", **DATASET),
        ),
        (
            RevisionNotFoundError,
            lambda: hub_api.create_tag(repo, tag="no name", revision="nope", **DATASET),
        ),
        (EntryNotFoundError, lambda: hub_api.hf_hub_download(repo, "nope.txt", **download)),
        (EntryNotFoundError, lambda: hub_api.delete_file("nope.txt", repo, **DATASET)),
        (EntryNotFoundError, lambda: list(hub_api.list_repo_tree(repo, "nope", **DATASET))),
    ):
        with pytest.raises(error):
            call()
    # the client could note the absence: the commit was named
    assert list(tmp_path.rglob(".no_exist/*/nope.txt"))
    assert (
        hub_api.get_paths_info(repo, ["nope", ".gitattributes"], **DATASET)[0].path
        == ".gitattributes"
    )
    with pytest.raises(HfHubHTTPError, match="This local Hub serves models and datasets"):
        hub_api.unlike(repo, **DATASET)


def test_tree_pages_show_one_commit(hub_api, repo, local_hub):
    names = [f"many/{number:04d}.txt" for number in range(1200)]
    commit(hub_api, repo, *(add(name, name) for name in names))
    log = Log(local_hub)
    found = [entry.path for entry in hub_api.list_repo_tree(repo, recursive=True, **DATASET)]
    assert found == [".gitattributes", "many", *names] and len(log.lines("GET")) == 2
    first = ask(local_hub, "GET", f"/api/datasets/{repo}/tree/main/many?limit=10")
    hub_api.delete_file("many/0000.txt", repo, **DATASET)
    link = first.headers["Link"]
    assert link.startswith(f"<{local_hub.endpoint}/api/datasets/") and link.endswith(
        '>; rel="next"'
    )
    second = ask(
        local_hub, "GET", link[1 : link.index(">")].removeprefix(local_hub.endpoint)
    ).json()
    assert [entry["path"] for entry in second] == names[10:20]  # as of the first page's commit


def test_pages_go_on_behind_any_entry_and_read_no_other(hub_api, repo, local_hub):
    names = [
        "a-b.txt",
        "a/b/c.txt",
        "a/b/d/e.txt",
        "a/c.txt",
        "ab/x.txt",
        "b.txt",
        "é/\U0001f600 ?&.txt",
    ]
    commit(hub_api, repo, *(add(name, name) for name in names))
    for folder, recursive in (("", True), ("/a", True), ("", False)):
        url, found = f"/api/datasets/{repo}/tree/main{folder}?recursive={recursive}&limit=1", []
        while url:
            answer = ask(local_hub, "GET", url)
            found += [entry["path"] for entry in answer.json()]
            url = (
                answer.headers.get("Link", "<>")[1:]
                .partition(">")[0]
                .removeprefix(local_hub.endpoint)
            )
        whole = ask(
            local_hub, "GET", f"/api/datasets/{repo}/tree/main{folder}?recursive={recursive}"
        ).json()
        assert (
            found
            == [entry["path"] for entry in whole]
            == sorted(set(found), key=lambda path: path.split("/"))
        )
        assert not recursive or {
            name for name in names if f"/{name}".startswith(f"{folder}/")
        } <= set(found)


def test_a_page_of_a_tree_reads_its_own_entries_alone():
    with closing(sqlite3.connect(":memory:")) as db:
        db.row_factory = sqlite3.Row
        db.executescript(Path(trees.__file__).with_name("schema.sql").read_text())
        for folder in range(100):
            db.execute(
                "INSERT INTO entries VALUES ('root', ?, ?, 1)", (f"{folder:03d}", f"t{folder}")
            )
            rows = [(f"t{folder}", f"{number:03d}", "o", 0) for number in range(1000)]
            db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        db.execute("INSERT INTO files VALUES ('o', 's', 1, 0)")
        steps = []
        db.set_progress_handler(lambda: steps.append(1), 1000)  # instructions of SQLite
        tracemalloc.start()
        page = list(islice(trees.walk(db, "root", start="098/500"), 1000))
        assert [page[0].path, page[-1].path] == ["098/501", "099/499"]
        assert len(steps) < 100 and tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.stop()


def test_listings_filter_and_know_the_card(hub_api, repo):
    commit(hub_api, repo, add("README.md", "---\nlanguage: en\nlicense: mit\n---\n# x\n"))
    found = {
        one.id
        for one in hub_api.list_datasets(
            author="demo", search=repo[5:].upper(), filter="license:mit"
        )
    }
    info = hub_api.dataset_info(repo)
    assert found == {repo} and info.card_data.license == "mit" and "language:en" in info.tags
    assert hub_api.dataset_info(repo, expand=["cardData"]).sha is None


def test_parent_commit_conflict(hub_api, repo):
    base = hub_api.dataset_info(repo).sha
    first = commit(hub_api, repo, add("a", "1"), parent_commit=base[:10])
    with pytest.raises(
        HfHubHTTPError, match="The branch was updated since you opened this page"
    ) as refused:
        commit(hub_api, repo, add("b", "1"), parent_commit=base)
    assert refused.value.response.status_code == 412
    assert hub_api.dataset_info(repo).sha == first and "b" not in paths(hub_api, repo)
    proposal = {"path_or_fileobj": b"x", "path_in_repo": "b", "repo_id": repo, "create_pr": True}
    assert (
        status_of(hub_api.upload_file, **proposal, **DATASET) == 400
        and hub_api.dataset_info(repo).sha == first
    )


def test_commit_sent_again_changes_nothing(hub_api, repo, local_hub):
    def send(body: bytes) -> str:
        answer = ask(
            local_hub, "POST", f"/api/datasets/{repo}/commit/main", body, token=local_hub.token
        )
        return answer.json().get("commitOid", "refused")

    base, plain = hub_api.dataset_info(repo).sha, commit_body(file_line("p", "1"))
    first = send(plain)
    deleting = commit_body(("deletedFile", {"path": "p"}), parentCommit=first)
    assert send(plain) == first
    second = send(deleting)
    assert send(deleting) == second
    other = send(commit_body(file_line("q", "2")))
    # With another commit in between the parent is stale, and the same bytes without a parent are a
    # new commit.
    assert send(deleting) == "refused"
    third, history = send(plain), hub_api.list_repo_commits(repo, **DATASET)
    assert [commit.commit_id for commit in history] == [third, other, second, first, base]


def test_copy_delete_and_conflicts(hub_api, repo):
    commit(hub_api, repo, add("d/one.bin", "1"), add("e/f/g", "3"))
    commit(hub_api, repo, CommitOperationCopy("d/one.bin", "copy.bin"), CommitOperationDelete("e/"))
    assert paths(hub_api, repo) == [".gitattributes", "copy.bin", "d", "d/one.bin"]
    assert {
        status_of(commit, hub_api, repo, add(path, "x")) for path in ("d", "copy.bin/inside")
    } == {422}


def test_branches_tags_and_revisions(hub_api, repo, tmp_path):
    base = hub_api.dataset_info(repo).sha
    for _ in range(2):
        hub_api.create_branch(repo, branch="feature/one", exist_ok=True, **DATASET)
    oid = commit(hub_api, repo, add("n.txt", "new"), revision="feature/one")
    hub_api.create_tag(repo, tag="v1.0", revision="feature/one", tag_message="first", **DATASET)
    for revision in (
        "feature/one",
        "refs/heads/feature/one",
        "v1.0",
        "refs/tags/v1.0",
        oid,
        oid[:8],
    ):
        assert hub_api.dataset_info(repo, revision=revision).sha == oid
        path = hub_api.hf_hub_download(
            repo, "n.txt", revision=revision, cache_dir=tmp_path, **DATASET
        )
        assert Path(path).read_bytes() == b"new"
    assert hub_api.dataset_info(repo).sha == base and not hub_api.file_exists(
        repo, "n.txt", **DATASET
    )
    refs = hub_api.list_repo_refs(repo, include_pull_requests=True, **DATASET)
    assert {ref.name: ref.target_commit for ref in refs.branches} == {
        "main": base,
        "feature/one": oid,
    }
    assert [(tag.ref, tag.target_commit) for tag in refs.tags] == [("refs/tags/v1.0", oid)]
    for status, method, options in (
        (409, "create_branch", {"branch": "feature/one"}),
        (409, "create_branch", {"branch": "feature"}),
        (409, "create_tag", {"tag": "v1.0"}),
        (403, "delete_branch", {"branch": "main"}),
        (400, "create_branch", {"branch": "a..b"}),
        (400, "create_branch", {"branch": "refs/pr/1"}),
    ):
        assert status_of(getattr(hub_api, method), repo, **options, **DATASET) == status
    assert status_of(commit, hub_api, repo, add("x", "x"), revision="v1.0") == 400
    hub_api.delete_tag(repo, tag="v1.0", **DATASET)
    hub_api.delete_branch(repo, branch="feature/one", **DATASET)
    assert [ref.name for ref in hub_api.list_repo_refs(repo, **DATASET).branches] == ["main"]
    assert hub_api.dataset_info(repo, revision=oid).sha == oid  # a commit outlives its branch


def test_commit_pages(hub_api, repo, local_hub):
    for number in range(55):
        line = file_line("counter", str(number))
        assert post_commit(local_hub, repo, line, summary=f"number {number}").status == 200
    titles = [commit.title for commit in hub_api.list_repo_commits(repo, **DATASET)]
    assert titles == [f"number {number}" for number in reversed(range(55))] + ["initial commit"]
    assert (
        ask(local_hub, "GET", f"/api/datasets/{repo}/commits/main").headers["X-Total-Count"] == "56"
    )


def test_a_repeated_request_succeeds_when_the_first_one_has_taken_its_parts(monkeypatch, tmp_path):
    """The first request records the upload and drops the parts while the second joins them."""
    finished = iter([False, True, False, False])
    monkeypatch.setattr(lfs, "check_signature", lambda call: None)
    monkeypatch.setattr(lfs, "_is_finished", lambda call: next(finished))
    args = {"size": "8", "part_bytes": "4", "upload": "ab", "oid": "0" * 64, "repo": "1"}
    call = SimpleNamespace(hub=SimpleNamespace(blobs=BlobStore(tmp_path)), args=args)
    assert lfs.finish_upload(call) == {"success": True}
    with pytest.raises(HubError, match="parts of this upload are missing"):
        lfs.finish_upload(call)

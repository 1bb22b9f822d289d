"""The local Hub seen through HfApi: repos, files, listings."""

import hashlib
import io
import os
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfFileSystem
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from local_hub import PART_BYTES, Log, ask

from hub_server.storage.trees import lfs_pointer, object_id

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


def add(path, content):
    return CommitOperationAdd(path, content if isinstance(content, bytes) else content.encode())


def paths(api, repo, **kwargs):
    return sorted(entry.path for entry in api.list_repo_tree(repo, recursive=True, **DATASET, **kwargs))


def test_create_find_delete(hub_api):
    url = hub_api.create_repo("demo/Made", private=False)
    assert url.repo_id == "demo/Made" and url.repo_type == "model"
    assert hub_api.repo_exists("demo/Made") and hub_api.repo_exists("Demo/made")
    assert not hub_api.repo_exists("demo/Made", repo_type="dataset")
    assert not hub_api.repo_exists("demo/Made", repo_type="space")
    with pytest.raises(HfHubHTTPError) as refused:
        hub_api.create_repo("demo/made")
    assert refused.value.response.status_code == 409
    assert hub_api.create_repo("demo/made", exist_ok=True).repo_id == "demo/Made"
    hub_api.delete_repo("demo/Made")
    assert not hub_api.repo_exists("demo/Made")
    with pytest.raises(RepositoryNotFoundError):
        hub_api.delete_repo("demo/Made")
    hub_api.delete_repo("demo/Made", missing_ok=True)


def test_new_repo_has_one_commit_with_gitattributes(hub_api, repo):
    assert paths(hub_api, repo) == [".gitattributes"]
    assert [commit.title for commit in hub_api.list_repo_commits(repo, **DATASET)] == ["initial commit"]
    content = hub_api.hf_hub_download(repo, ".gitattributes", cache_dir="/dev/null", **DATASET, dry_run=True)
    assert content.file_size > 1000


def test_upload_folder_regular_and_large(hub_api, repo, tmp_path, local_hub):
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    large = os.urandom(3 * PART_BYTES + 17)  # four parts
    (source / "README.md").write_text("# hello\n")
    (source / "data" / "a.parquet").write_bytes(large)
    (source / "empty.bin").write_bytes(b"")
    log = Log(local_hub)
    done = hub_api.upload_folder(repo_id=repo, folder_path=source, **DATASET)
    assert len(log.lines("PUT")) == 4
    info = {file.rfilename: file for file in hub_api.dataset_info(repo, files_metadata=True).siblings}
    assert set(info) == {".gitattributes", "README.md", "data/a.parquet", "empty.bin"}
    sha256 = hashlib.sha256(large).hexdigest()
    assert info["data/a.parquet"].lfs.sha256 == sha256 and info["data/a.parquet"].size == len(large)
    assert info["data/a.parquet"].blob_id == object_id("blob", lfs_pointer(sha256, len(large)))
    assert info["README.md"].lfs is None and info["README.md"].blob_id == object_id("blob", b"# hello\n")
    got = hub_api.snapshot_download(repo, cache_dir=tmp_path / "cache", revision=done.oid, **DATASET)
    assert (tmp_path / "cache").exists() and Path(got, "data/a.parquet").read_bytes() == large
    assert Path(got, "empty.bin").read_bytes() == b""
    assert hub_api.verify_repo_checksums(repo, local_dir=got, **DATASET).mismatches == []


def test_upload_unchanged_transfers_nothing(hub_api, repo, tmp_path, local_hub):
    (tmp_path / "x.bin").write_bytes(b"large" * 100)
    (tmp_path / "x.txt").write_text("small")
    first = hub_api.upload_folder(repo_id=repo, folder_path=tmp_path, **DATASET)
    log = Log(local_hub)
    second = hub_api.upload_folder(repo_id=repo, folder_path=tmp_path, **DATASET)
    assert (
        second.oid == first.oid and not log.lines("PUT") and not any("/commit/" in line for line in log.lines("POST"))
    )
    assert len(log.lines("POST")) >= 1  # it did ask


def test_upload_from_memory(hub_api, repo, tmp_path):
    content = b"in memory" * 1000
    hub_api.upload_file(path_or_fileobj=io.BytesIO(content), path_in_repo="m.npy", repo_id=repo, **DATASET)
    hub_api.upload_file(path_or_fileobj=io.BytesIO(content), path_in_repo="again/m.npy", repo_id=repo, **DATASET)
    path = hub_api.hf_hub_download(repo, "again/m.npy", cache_dir=tmp_path, **DATASET)
    assert Path(path).read_bytes() == content


def test_what_is_not_served_says_so(hub_api, repo):
    with pytest.raises(HfHubHTTPError, match="This local Hub serves models and datasets"):
        hub_api.unlike(repo, **DATASET)
    with pytest.raises(RepositoryNotFoundError):
        hub_api.unlike("missing")


def test_missing_things_have_their_own_errors(hub_api, repo, tmp_path):
    with pytest.raises(RepositoryNotFoundError):
        hub_api.dataset_info("demo/nothing-here")
    with pytest.raises(RepositoryNotFoundError):
        hub_api.hf_hub_download("gpt2", "config.json", cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        hub_api.hf_hub_download(repo, ".gitattributes", revision="nope", cache_dir=tmp_path, **DATASET)
    with pytest.raises(RevisionNotFoundError):
        hub_api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repo, revision="nope", **DATASET)
    with pytest.raises(EntryNotFoundError):
        hub_api.hf_hub_download(repo, "nope.txt", cache_dir=tmp_path, **DATASET)
    assert list(tmp_path.rglob(".no_exist/*/nope.txt"))  # the client could note the absence: the commit was named
    with pytest.raises(EntryNotFoundError):
        list(hub_api.list_repo_tree(repo, "nope", **DATASET))
    assert hub_api.get_paths_info(repo, ["nope", ".gitattributes"], **DATASET)[0].path == ".gitattributes"
    assert not hub_api.revision_exists(repo, "nope", **DATASET)


def test_tree_pages_show_one_commit(hub_api, repo, local_hub):
    names = [f"many/{number:04d}.txt" for number in range(1200)]
    hub_api.create_commit(repo, [add(name, name) for name in names], commit_message="many", **DATASET)
    log = Log(local_hub)
    found = [entry.path for entry in hub_api.list_repo_tree(repo, recursive=True, **DATASET)]
    assert found == [".gitattributes", "many", *names] and len(log.lines("GET")) == 2
    first = ask(local_hub, "GET", f"/api/datasets/{repo}/tree/main/many?limit=10")
    hub_api.delete_file("many/0000.txt", repo, **DATASET)
    link = first.headers["Link"]
    assert link.startswith(f"<{local_hub.endpoint}/api/datasets/") and link.endswith('>; rel="next"')
    second = ask(local_hub, "GET", link[1 : link.index(">")].removeprefix(local_hub.endpoint)).json()
    assert [entry["path"] for entry in second] == names[10:20]  # as of the first page's commit


def test_listing(hub_api, stranger):
    card = b"---\nlanguage: en\nlicense: mit\ntask_categories:\n- text-classification\n---\n# x\n"
    for name in ("list-one", "list-two", "list-hidden"):
        hub_api.create_repo(f"acme/{name}", private=name.endswith("hidden"), **DATASET)
    hub_api.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id="acme/list-one", **DATASET)
    assert {d.id for d in hub_api.list_datasets(author="acme", search="list-")} == {
        "acme/list-one", "acme/list-two", "acme/list-hidden",
    }  # fmt: skip
    assert {d.id for d in stranger.list_datasets(author="acme", search="list-")} == {"acme/list-one", "acme/list-two"}
    assert [d.id for d in hub_api.list_datasets(search="LIST-two")] == ["acme/list-two"]
    assert [d.id for d in hub_api.list_datasets(author="acme", search="list-", filter="license:mit")] == [
        "acme/list-one"
    ]
    assert len(list(hub_api.list_datasets(author="acme", search="list-", limit=2))) == 2
    assert list(hub_api.list_models(author="acme", search="list-")) == []
    info = hub_api.dataset_info("acme/list-one")
    assert info.card_data.license == "mit" and "language:en" in info.tags
    assert hub_api.dataset_info("acme/list-one", expand=["cardData"]).sha is None


def test_file_system(hub_api, local_hub, repo):
    hub_api.create_commit(
        repo, [add("data/a.parquet", "abcdef"), add("data/b.txt", "b"), add("c.parquet", "c")],
        commit_message="x", **DATASET,
    )  # fmt: skip
    fs = HfFileSystem(endpoint=local_hub.endpoint, token=local_hub.token, skip_instance_cache=True)
    root = f"datasets/{repo}"
    assert fs.glob(f"{root}/**/*.parquet") == [f"{root}/c.parquet", f"{root}/data/a.parquet"]
    with fs.open(f"{root}/data/a.parquet", "rb") as file:
        file.seek(2)
        assert file.read(3) == b"cde"
    assert fs.info(f"{root}/data")["type"] == "directory" and not fs.exists(f"{root}/nope")
    with fs.open(f"{root}/written.txt", "wb") as file:
        file.write(b"by fs")
    assert fs.cat(f"{root}/written.txt") == b"by fs"


def test_gitignore_of_the_repo(hub_api, repo, tmp_path):
    for name in ("keep.txt", "skip.tmp", "build/x.txt", ".gitignore"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("*.tmp\nbuild/\n")
    hub_api.upload_folder(repo_id=repo, folder_path=tmp_path, **DATASET)
    assert paths(hub_api, repo) == [".gitattributes", ".gitignore", "keep.txt"]

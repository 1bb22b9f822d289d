"""One small use of each method of HfApi that the local Hub serves: repos, files and history.

``SERVED[name](scene)`` calls the method and checks what comes back. ``hub_calls_community`` has the rest.
"""

import itertools
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi

SERVED: dict[str, Callable[["Scene"], None]] = {}
DATASET = {"repo_type": "dataset"}
LARGE = bytes(range(256)) * 40
_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
SAFETENSORS = struct.pack("<Q", len(_HEADER)) + _HEADER + bytes(4)
FILES = {"a.txt": b"text", "data/x.bin": LARGE, "model.safetensors": SAFETENSORS}


@dataclass
class Scene:
    """A model of the user demo with ``FILES`` that no check changes, and all that a check needs to make its own."""

    api: HfApi
    stranger: HfApi
    folder: Path
    repo: str = "demo/conformance"
    numbers: itertools.count = field(default_factory=itertools.count)

    def new(self, **files: bytes) -> str:
        """A new dataset repo; files are named by words, and end in .bin."""
        repo = self.api.create_repo(f"demo/conformance-{next(self.numbers)}", **DATASET).repo_id
        if files:
            operations = [CommitOperationAdd(f"{name}.bin", content) for name, content in files.items()]
            self.api.create_commit(repo, operations, commit_message="files", **DATASET)
        return repo

    def gated(self) -> str:
        """A new gated repo that has let in the user alice."""
        repo = self.new()
        self.api.update_repo_settings(repo, gated="auto", **DATASET)
        self.api.grant_access(repo, "alice", **DATASET)
        return repo

    def files(self, repo: str) -> set[str]:
        """The paths in a dataset repo, without .gitattributes."""
        return set(self.api.list_repo_files(repo, **DATASET)) - {".gitattributes"}

    def commit(self, repo: str, path: str, **options):
        return self.api.upload_file(path_or_fileobj=b"x", path_in_repo=path, repo_id=repo, **options, **DATASET)


def served(check: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """Register a check under the name of the method that it is about."""
    SERVED[check.__name__] = check
    return check


@served
def whoami(scene):
    assert scene.api.whoami()["name"] == "demo"


@served
def get_full_repo_name(scene):
    assert scene.api.get_full_repo_name("x") == "demo/x"


@served
def create_repo(scene):
    url = scene.api.create_repo("demo/conformance-new", private=True, exist_ok=True)
    assert url.repo_id == "demo/conformance-new" and scene.api.model_info(url.repo_id).private


@served
def delete_repo(scene):
    repo = scene.new()
    scene.api.delete_repo(repo, **DATASET)
    assert not scene.api.repo_exists(repo, **DATASET)


@served
def move_repo(scene):
    repo = scene.new()
    scene.api.move_repo(repo, f"{repo}-moved", **DATASET)
    assert scene.api.dataset_info(repo).id == f"{repo}-moved"


@served
def update_repo_settings(scene):
    repo = scene.new()
    scene.api.update_repo_settings(repo, gated="manual", visibility="private", **DATASET)
    info = scene.api.dataset_info(repo)
    assert (info.gated, info.private) == ("manual", True)


@served
def repo_info(scene):
    assert {file.rfilename for file in scene.api.repo_info(scene.repo).siblings} > FILES.keys()


@served
def model_info(scene):
    info = scene.api.model_info(scene.repo, files_metadata=True)
    assert {file.rfilename: file.size for file in info.siblings}["data/x.bin"] == len(LARGE)


@served
def dataset_info(scene):
    assert scene.api.dataset_info(scene.new(), revision="main").author == "demo"


@served
def repo_exists(scene):
    assert scene.api.repo_exists(scene.repo) and not scene.api.repo_exists("demo/nothing")


@served
def revision_exists(scene):
    assert scene.api.revision_exists(scene.repo, "main") and not scene.api.revision_exists(scene.repo, "nowhere")


@served
def file_exists(scene):
    assert scene.api.file_exists(scene.repo, "a.txt") and not scene.api.file_exists(scene.repo, "b.txt")


@served
def resolve_revision(scene):
    assert scene.api.resolve_revision(scene.repo, revision="main").resolved == scene.api.model_info(scene.repo).sha


@served
def auth_check(scene):
    scene.api.auth_check(scene.repo, write=True)


@served
def list_models(scene):
    assert scene.repo in {model.id for model in scene.api.list_models(author="demo", search="conformance")}


@served
def list_datasets(scene):
    assert scene.new() in {dataset.id for dataset in scene.api.list_datasets(author="demo", full=True)}


@served
def list_spaces(scene):
    assert list(scene.api.list_spaces()) == []


@served
def list_repo_files(scene):
    assert set(scene.api.list_repo_files(scene.repo)) == {".gitattributes", *FILES}


@served
def list_repo_tree(scene):
    found = {entry.path: entry for entry in scene.api.list_repo_tree(scene.repo, recursive=True, expand=True)}
    assert found["data/x.bin"].lfs.size == len(LARGE) and found["data"].last_commit.title == "files"


@served
def get_paths_info(scene):
    (found,) = scene.api.get_paths_info(scene.repo, ["data/x.bin", "missing"])
    assert found.size == len(LARGE) and found.xet_hash


@served
def verify_repo_checksums(scene):
    folder = scene.api.snapshot_download(scene.repo)
    assert scene.api.verify_repo_checksums(scene.repo, local_dir=folder).mismatches == []


@served
def hf_hub_download(scene):
    assert Path(scene.api.hf_hub_download(scene.repo, "data/x.bin")).read_bytes() == LARGE


@served
def snapshot_download(scene):
    folder = Path(scene.api.snapshot_download(scene.repo, allow_patterns="data/*"))
    assert (folder / "data/x.bin").read_bytes() == LARGE


@served
def get_hf_file_metadata(scene):
    found = scene.api.get_hf_file_metadata(url=f"{scene.api.endpoint}/{scene.repo}/resolve/main/data/x.bin")
    assert found.size == len(LARGE) and found.xet_file_data.refresh_route.startswith(scene.api.endpoint)


@served
def get_safetensors_metadata(scene):
    assert scene.api.get_safetensors_metadata(scene.repo).parameter_count == {"F32": 1}


@served
def parse_safetensors_file_metadata(scene):
    assert scene.api.parse_safetensors_file_metadata(scene.repo, "model.safetensors").parameter_count == {"F32": 1}


@served
def create_commit(scene):
    repo = scene.new(old=b"x")
    copied = CommitOperationCopy("old.bin", "new.bin")
    scene.api.create_commit(repo, [copied, CommitOperationDelete("old.bin")], commit_message="move", **DATASET)
    assert scene.files(repo) == {"new.bin"}


@served
def upload_file(scene):
    repo = scene.new()
    done = scene.commit(repo, "x.txt", create_pr=True, commit_message="Propose")
    assert done.pr_revision == "refs/pr/1" and scene.files(repo) == set()


@served
def upload_folder(scene):
    repo = scene.new(old=b"x")
    for path, content in FILES.items():
        (scene.folder / path).parent.mkdir(exist_ok=True)
        (scene.folder / path).write_bytes(content)
    scene.api.upload_folder(repo_id=repo, folder_path=scene.folder, delete_patterns="*.bin", **DATASET)
    assert scene.files(repo) == FILES.keys()


@served
def preupload_lfs_files(scene):
    repo, operations = scene.new(), [CommitOperationAdd("x.bin", LARGE)]
    scene.api.preupload_lfs_files(repo, operations, **DATASET)
    scene.api.create_commit(repo, operations, commit_message="later", **DATASET)
    assert scene.files(repo) == {"x.bin"}


@served
def run_as_future(scene):
    assert scene.api.run_as_future(scene.api.whoami).result()["name"] == "demo"


@served
def delete_file(scene):
    repo = scene.new(a=b"x", b=b"y")
    scene.api.delete_file("a.bin", repo, **DATASET)
    assert scene.files(repo) == {"b.bin"}


@served
def delete_files(scene):
    repo = scene.new(a=b"x", b=b"y")
    scene.api.delete_files(repo, ["*.bin"], **DATASET)
    assert scene.files(repo) == set()


@served
def delete_folder(scene):
    repo = scene.new()
    scene.commit(repo, "folder/x.txt")
    scene.api.delete_folder("folder", repo, **DATASET)
    assert scene.files(repo) == set()


@served
def copy_files(scene):
    repo = scene.new()
    scene.api.copy_files(f"hf://{scene.repo}/data/", f"hf://datasets/{repo}/copied/")
    assert scene.files(repo) == {"copied/x.bin"}


@served
def list_repo_commits(scene):
    assert [commit.title for commit in scene.api.list_repo_commits(scene.repo)] == ["files", "initial commit"]


@served
def list_repo_refs(scene):
    assert [branch.name for branch in scene.api.list_repo_refs(scene.repo, include_pull_requests=True).branches] == [
        "main"
    ]


@served
def create_branch(scene):
    repo = scene.new()
    scene.api.create_branch(repo, branch="side", revision="main", **DATASET)
    assert scene.api.revision_exists(repo, "side", **DATASET)


@served
def delete_branch(scene):
    repo = scene.new()
    scene.api.create_branch(repo, branch="side", **DATASET)
    scene.api.delete_branch(repo, branch="side", **DATASET)
    assert not scene.api.revision_exists(repo, "side", **DATASET)


@served
def create_tag(scene):
    repo = scene.new()
    scene.api.create_tag(repo, tag="v1", tag_message="first", **DATASET)
    assert [tag.name for tag in scene.api.list_repo_refs(repo, **DATASET).tags] == ["v1"]


@served
def delete_tag(scene):
    repo = scene.new()
    scene.api.create_tag(repo, tag="v1", **DATASET)
    scene.api.delete_tag(repo, tag="v1", **DATASET)
    assert not scene.api.list_repo_refs(repo, **DATASET).tags


@served
def super_squash_history(scene):
    repo = scene.new(a=b"x")
    scene.api.super_squash_history(repo, commit_message="one", **DATASET)
    assert [commit.title for commit in scene.api.list_repo_commits(repo, **DATASET)] == ["one"]


@served
def list_lfs_files(scene):
    assert {file.filename for file in scene.api.list_lfs_files(scene.repo)} == {"data/x.bin", "model.safetensors"}


@served
def permanently_delete_lfs_files(scene):
    repo = scene.new(a=b"x")
    scene.api.permanently_delete_lfs_files(repo, list(scene.api.list_lfs_files(repo, **DATASET)), **DATASET)
    assert scene.files(repo) == set() and not list(scene.api.list_lfs_files(repo, **DATASET))

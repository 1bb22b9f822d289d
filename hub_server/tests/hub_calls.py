"""One small use of each method of HfApi that the local Hub serves; true for a right answer."""

import itertools
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi

DATASET = {"repo_type": "dataset"}
LARGE = bytes(range(256)) * 40
_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
SAFETENSORS = struct.pack("<Q", len(_HEADER)) + _HEADER + bytes(4)
FILES = {"a.txt": b"text", "data/x.bin": LARGE, "model.safetensors": SAFETENSORS}


@dataclass
class Scene:
    """A model of the user demo with ``FILES``; checks leave it and create repos of their own."""

    api: HfApi
    folder: Path
    repo: str = "demo/conformance"
    numbers: itertools.count = field(default_factory=itertools.count)

    def new(self, *paths: str) -> str:
        """A new dataset repo with small files."""
        repo = self.api.create_repo(f"demo/conformance-{next(self.numbers)}", **DATASET).repo_id
        return (
            self.commit(repo, [CommitOperationAdd(path, b"x") for path in paths]) if paths else repo
        )

    def commit(self, repo: str, operations: list) -> str:
        self.api.create_commit(repo, operations, commit_message="files", **DATASET)
        return repo

    def after(self, method: str, *arguments: Any, **options: Any) -> set[str]:
        """The paths in a dataset repo after a call on it, without .gitattributes."""
        getattr(self.api, method)(*arguments, **options, **DATASET)
        return set(self.api.list_repo_files(options["repo_id"], **DATASET)) - {".gitattributes"}

    def upload_folder(self) -> set[str]:
        for path, content in FILES.items():
            (self.folder / path).parent.mkdir(exist_ok=True, parents=True)
            (self.folder / path).write_bytes(content)
        options = {"folder_path": self.folder, "delete_patterns": "*.bin"}
        return self.after("upload_folder", repo_id=self.new("old.bin"), **options)

    def preupload(self) -> set[str]:
        repo, operations = self.new(), [CommitOperationAdd("x.bin", LARGE)]
        self.api.preupload_lfs_files(repo, operations, **DATASET)
        return self.after(
            "create_commit", repo_id=repo, operations=operations, commit_message="later"
        )

    def names(self, refs: str, *calls: tuple[str, dict]) -> list[str]:
        """The branches or tags of a new repo after some calls."""
        repo = self.new()
        for method, options in calls:
            getattr(self.api, method)(repo, **options, **DATASET)
        return [ref.name for ref in getattr(self.api.list_repo_refs(repo, **DATASET), refs)]


def _moved(s: Scene) -> bool:
    operations = [CommitOperationCopy("old.bin", "new.bin"), CommitOperationDelete("old.bin")]
    return s.after(
        "create_commit", repo_id=s.new("old.bin"), operations=operations, commit_message="m"
    ) == {"new.bin"}


def _copied(s: Scene) -> bool:
    repo = f"hf://datasets/{s.new('d/x.bin')}"
    s.api.copy_files(f"{repo}/d/x.bin", f"{repo}/y.bin")
    s.api.copy_files(f"hf://{s.repo}/a.txt", f"{repo}/z.txt")
    return {"d/x.bin", "y.bin", "z.txt"} < set(
        s.api.list_repo_files(repo.removeprefix("hf://datasets/"), **DATASET)
    )


def _deleted(s: Scene) -> bool:
    repo = s.new()
    s.api.delete_repo(repo, **DATASET)
    return not s.api.repo_exists(repo, **DATASET)


def _hidden(s: Scene) -> bool:
    repo = s.new()
    s.api.update_repo_settings(repo, visibility="private", **DATASET)
    return s.api.dataset_info(repo).private


def _tree(s: Scene) -> bool:
    found = {
        entry.path: entry for entry in s.api.list_repo_tree(s.repo, recursive=True, expand=True)
    }
    return found["data/x.bin"].lfs.size == len(LARGE) and found["data"].last_commit.title == "files"


def _verified(s: Scene) -> bool:
    return (
        s.api.verify_repo_checksums(s.repo, local_dir=s.api.snapshot_download(s.repo)).mismatches
        == []
    )


SERVED: dict[str, Callable[[Scene], object]] = {
    "whoami": lambda s: s.api.whoami()["name"] == "demo",
    "get_full_repo_name": lambda s: s.api.get_full_repo_name("x") == "demo/x",
    "create_repo": lambda s: (
        s.api.create_repo("demo/conformance-new", exist_ok=True).repo_id == "demo/conformance-new"
    ),
    "delete_repo": _deleted,
    "update_repo_settings": _hidden,
    "repo_info": lambda s: (
        {file.rfilename for file in s.api.repo_info(s.repo).siblings} > FILES.keys()
    ),
    "model_info": lambda s: (
        len(LARGE) in {file.size for file in s.api.model_info(s.repo, files_metadata=True).siblings}
    ),
    "dataset_info": lambda s: s.api.dataset_info(s.new(), revision="main").author == "demo",
    "repo_exists": lambda s: s.api.repo_exists(s.repo) and not s.api.repo_exists("demo/nothing"),
    "revision_exists": lambda s: (
        s.api.revision_exists(s.repo, "main") and not s.api.revision_exists(s.repo, "nowhere")
    ),
    "file_exists": lambda s: (
        s.api.file_exists(s.repo, "a.txt") and not s.api.file_exists(s.repo, "b.txt")
    ),
    "resolve_revision": lambda s: (
        s.api.resolve_revision(s.repo, revision="main").resolved == s.api.model_info(s.repo).sha
    ),
    "list_models": lambda s: (
        s.repo in {one.id for one in s.api.list_models(author="demo", search="conformance")}
    ),
    "list_datasets": lambda s: (
        s.new() in {one.id for one in s.api.list_datasets(author="demo", full=True)}
    ),
    "list_spaces": lambda s: list(s.api.list_spaces()) == [],
    "list_repo_files": lambda s: set(s.api.list_repo_files(s.repo)) == {".gitattributes", *FILES},
    "list_repo_tree": _tree,
    "get_paths_info": lambda s: (
        [one.size for one in s.api.get_paths_info(s.repo, ["a.txt", "missing"])] == [4]
    ),
    "verify_repo_checksums": _verified,
    "hf_hub_download": lambda s: (
        Path(s.api.hf_hub_download(s.repo, "data/x.bin")).read_bytes() == LARGE
    ),
    "snapshot_download": lambda s: (
        (Path(s.api.snapshot_download(s.repo)) / "data/x.bin").read_bytes() == LARGE
    ),
    "get_hf_file_metadata": lambda s: (
        s.api.get_hf_file_metadata(url=f"{s.api.endpoint}/{s.repo}/resolve/main/data/x.bin").size
        == len(LARGE)
    ),
    "get_safetensors_metadata": lambda s: (
        s.api.get_safetensors_metadata(s.repo).parameter_count == {"F32": 1}
    ),
    "parse_safetensors_file_metadata": lambda s: (
        s.api.parse_safetensors_file_metadata(s.repo, "model.safetensors").parameter_count
        == {"F32": 1}
    ),
    "create_commit": _moved,
    "copy_files": _copied,
    "upload_file": lambda s: (
        s.after("upload_file", repo_id=s.new("a"), path_or_fileobj=b"x", path_in_repo="b")
        == {"a", "b"}
    ),
    "upload_folder": lambda s: s.upload_folder() == FILES.keys(),
    "preupload_lfs_files": lambda s: s.preupload() == {"x.bin"},
    "run_as_future": lambda s: s.api.run_as_future(s.api.whoami).result()["name"] == "demo",
    "delete_file": lambda s: s.after("delete_file", "a", repo_id=s.new("a", "b")) == {"b"},
    "delete_files": lambda s: (
        s.after("delete_files", repo_id=s.new("a.bin", "b.bin"), delete_patterns=["*.bin"]) == set()
    ),
    "delete_folder": lambda s: s.after("delete_folder", "d", repo_id=s.new("d/a", "b")) == {"b"},
    "list_repo_commits": lambda s: (
        [c.title for c in s.api.list_repo_commits(s.repo)] == ["files", "initial commit"]
    ),
    "list_repo_refs": lambda s: s.names("branches") == ["main"],
    "create_branch": lambda s: (
        s.names("branches", ("create_branch", {"branch": "a"})) == ["a", "main"]
    ),
    "delete_branch": lambda s: (
        s.names("branches", ("create_branch", {"branch": "a"}), ("delete_branch", {"branch": "a"}))
        == ["main"]
    ),
    "create_tag": lambda s: (
        s.names("tags", ("create_tag", {"tag": "v1", "tag_message": "first"})) == ["v1"]
    ),
    "delete_tag": lambda s: (
        s.names("tags", ("create_tag", {"tag": "v1"}), ("delete_tag", {"tag": "v1"})) == []
    ),
}

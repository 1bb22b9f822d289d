"""Every commit of a dataset repository, looked at as a user would meet it: can it be loaded, and is
it what it says?
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from huggingface_hub import HfApi

DATASET = {"repo_type": "dataset"}
LARGE = {".parquet", ".png"}  # kept as large files (.gitattributes)


class History:
    """The commits of ``repo_id``; what was found of a file's content is remembered in ``folder``."""

    def __init__(self, api: HfApi, repo_id: str, folder: Path):
        self.api, self.repo_id, self._folder = api, repo_id, folder
        self._rows = dict[str, int]()  # sha256 of a parquet file that was read → its rows

    def end(self) -> dict[str, dict[str, str]]:
        """Path → digest, of every branch and tag."""
        refs = self.api.list_repo_refs(self.repo_id, **DATASET)
        return {ref.ref: self.tree(ref.target_commit) for ref in (*refs.branches, *refs.tags)}

    def tree(self, commit: str) -> dict[str, str]:
        """Path → digest, as ``contents`` has them."""
        entries = self.api.list_repo_tree(self.repo_id, recursive=True, revision=commit, **DATASET)
        return {
            entry.path: entry.lfs.sha256 if entry.lfs else entry.blob_id
            for entry in entries
            if hasattr(entry, "blob_id") and entry.path != ".gitattributes"
        }

    def check(self) -> int:
        """Raise AssertionError unless every commit loads as it says, and none is empty or loses a
        shard; how many.
        """
        commits = [
            commit.commit_id for commit in self.api.list_repo_commits(self.repo_id, **DATASET)
        ][::-1]
        trees = [self.tree(commit) for commit in commits]
        for commit, tree, before in zip(commits[1:], trees[1:], trees[:-1], strict=True):
            assert tree != before, f"{commit}: an empty commit"
            assert data(before) <= data(tree), f"{commit}: a shard was taken away or changed"
            self._check(commit, tree)
        return len(commits)

    def _check(self, commit: str, tree: dict[str, str]) -> None:
        manifest = json.loads(self._path(commit, "manifest.json").read_bytes())
        assert data(tree) == {(file["path"], file["sha256"]) for file in manifest["files"]}, (
            f"{commit}: its files"
        )
        paths = [file["path"] for file in manifest["files"]]
        assert len(set(paths)) == len(paths), f"{commit}: a file is named twice"
        rows: dict[str, dict[str, int]] = {}
        for file in manifest["files"]:
            assert self._read(commit, file) == file["rows"], f"{commit}: {file['path']}"
            splits = rows.setdefault(file["config"], {})
            splits[file["split"]] = splits.get(file["split"], 0) + file["rows"]
        card = self._path(commit, "README.md").read_text(encoding="utf-8")
        head, counts = yaml.safe_load(card.split("---\n")[1]), manifest["counts"]
        assert stated(head) == rows, f"{commit}: its card states other rows"
        named = {
            (config["config_name"], part["split"])
            for config in head["configs"]
            for part in config["data_files"]
        }
        assert named == {(config, split) for config, splits in rows.items() for split in splits}, (
            f"{commit}: its card"
        )
        assert manifest["complete"] == ("shards are done" not in card)
        done = (
            ""
            if manifest["complete"]
            else f"{counts['shards_done']} of {counts['shards_total']} shards are done"
        )
        assert done in card, f"{commit}: its card"

    def _read(self, commit: str, file: dict[str, Any]) -> int:
        """The rows of a file, whose content must be the one that the manifest names."""
        if file["sha256"] not in self._rows:
            path = self._path(commit, file["path"])
            assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"], (
                f"{commit}: {file['path']}"
            )
            self._rows[file["sha256"]] = pq.read_table(path).num_rows
        return self._rows[file["sha256"]]

    def _path(self, commit: str, path: str) -> Path:
        return Path(
            self.api.hf_hub_download(
                self.repo_id, path, revision=commit, cache_dir=self._folder, **DATASET
            )
        )


def stated(head: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Config → split → rows, as a card's head says."""
    infos = head["dataset_info"]
    return {
        info["config_name"]: {split["name"]: split["num_examples"] for split in info["splits"]}
        for info in (infos if isinstance(infos, list) else [infos])
    }


def data(tree: dict[str, str]) -> set[tuple[str, str]]:
    """The parquet files of a tree, with their digests."""
    return {item for item in tree.items() if item[0].startswith("data/")}


def contents(directory: Path) -> dict[str, str]:
    """Path → digest of a run directory's files: SHA-256 of large ones, the name of the Git blob of
    others.
    """
    files = {
        str(path.relative_to(directory)): path
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    return {name: digest(path) for name, path in files.items()}


def digest(path: Path) -> str:
    """What a Hub tells of a file."""
    content = path.read_bytes()
    if path.suffix in LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

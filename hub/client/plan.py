"""Diff of the local snapshot against a Hub branch, pure: paths to add, replace and delete, and edits made by hand.

Contents are compared as the Hub tells them: by SHA-256 where it keeps a file as a large one, by git's id otherwise.
"""

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hub.contract.decontamination import LEDGER
from hub.contract.label_fidelity import FIDELITY
from hub.contract.repeats import REPEATS
from hub.contract.run_dir import MANIFEST, RECIPE, REPORT, Manifest
from hub.contract.shards import sha256_file
from hub.printable import printable
from hub.training_value import VALUE

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

CARD, RESULTS = "README.md", "results.json"
OF_DATASETS = (VALUE, FIDELITY, LEDGER)
MEASURED = (RESULTS, REPEATS, *OF_DATASETS, REPORT)  # what a card is written from, beside the manifest
BESIDE = (CARD, RECIPE, MANIFEST, *MEASURED, ".eval_results/*.yaml", "assets/*.png")  # not in the manifest
KEPT = (".gitattributes",)  # the Hub's own
DIFF_LINES = 40


@dataclass(frozen=True)
class Content:
    """Content of a file to publish: a local file or bytes in memory; ``known`` is its SHA-256, if known."""

    data: Path | bytes
    known: str | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data) if isinstance(self.data, bytes) else self.data.stat().st_size

    def equals(self, remote: "RepoFile") -> bool:
        """Whether the Hub holds these very bytes."""
        if remote.lfs is not None:
            return self.sha256() == remote.lfs.sha256
        return self.size == remote.size and self._git_id() == remote.blob_id

    def sha256(self) -> str:
        """As hex."""
        if self.known is not None:
            return self.known
        return hashlib.sha256(self.data).hexdigest() if isinstance(self.data, bytes) else sha256_file(self.data)

    def _git_id(self) -> str:
        content = self.data if isinstance(self.data, bytes) else self.data.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


Snapshot = Mapping[str, Content]  # path in the repository → content: everything that shall be in it


@dataclass(frozen=True)
class Remote:
    """State of a branch on the Hub: its head commit and its files."""

    sha: str
    files: "Mapping[str, RepoFile]"


@dataclass(frozen=True)
class Changes:
    """Paths to add, replace and delete so that a branch holds a snapshot and nothing else (but ``KEPT``)."""

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.replaced or self.deleted)


def compare(snapshot: Snapshot, remote: Remote | None) -> Changes:
    """The changes from ``remote`` (None: no repository yet) to ``snapshot``, paths in order."""
    there = remote.files if remote else {}
    return Changes(
        added=tuple(path for path in sorted(snapshot) if path not in there),
        replaced=tuple(p for p in sorted(snapshot) if p in there and not snapshot[p].equals(there[p])),
        deleted=tuple(path for path in sorted(there) if path not in snapshot and path not in KEPT),
    )


def is_beside(path: str) -> bool:
    """Whether a path is one that is published beside the manifest's files."""
    return any(Path(path).match(pattern) and path.count("/") == pattern.count("/") for pattern in BESIDE)


def strangers(remote: Remote, manifest: Manifest | None) -> dict[str, str]:
    """Files on the Hub that no publication of ours put there as they are: path → what is the matter with it.

    ``manifest`` is the one that lies beside them. Without one, nothing there is ours.
    """
    ours = {file.path: file.sha256 for file in manifest.files} if manifest else {}
    found = {}
    for path, entry in sorted(remote.files.items()):
        if path in KEPT or (manifest and is_beside(path)):
            continue
        if path not in ours:
            script = path.endswith(".py") and "/" not in path
            found[path] = (
                "a script on main: datasets 4 and later refuse to load the repository" if script else "not ours"
            )
        elif entry.lfs is not None and entry.lfs.sha256 != ours[path]:
            found[path] = "changed by hand"
    return found


def text_diff(before: str, after: str, path: str) -> list[str]:
    """A unified diff of two texts, cut to ``DIFF_LINES`` lines."""
    names = (f"{path} as published", f"{path} on the Hub now")
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="", n=1))
    more = [f"... and {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
    return lines[:DIFF_LINES] + more


@dataclass(frozen=True)
class Plan:
    """A publication: what it would change on which commit, the tag to set, and what it would take from a person."""

    repo_id: str
    repo_type: str
    remote: Remote | None
    changes: Changes
    tag: str | None  # None: the tag is there and marks these bytes, or the run is not finished
    script: bool = False  # whether the branch `script` is to be renewed
    edits: Mapping[str, str] = field(default_factory=dict)  # path → what a person did to it
    diff: tuple[str, ...] = ()  # of the card, when it was edited by hand
    upload: int = 0  # bytes of the files that are new
    commits: int = 1  # on main

    def facts(self) -> dict[str, Any]:
        """The plan for machines."""
        changes = {"added": self.changes.added, "replaced": self.changes.replaced, "deleted": self.changes.deleted}
        return {
            "repo_id": self.repo_id,
            "repo_type": self.repo_type,
            **{kind: list(paths) for kind, paths in changes.items()},
            "edits": dict(self.edits),
            "tag": self.tag,
            "bytes": self.upload,
        }

    def __str__(self) -> str:
        lines = [f"{self.repo_type} {self.repo_id}" + ("" if self.remote else " (new)")]
        changes = self.changes
        for mark, paths in (("+", changes.added), ("~", changes.replaced), ("-", changes.deleted)):
            lines += [f"  {mark} {path}" for path in paths]
        several = f" in {self.commits} commits" if self.commits > 1 else ""
        lines.append(f"  {self.upload:,} bytes to send{several}" if changes else "  no file changes")
        if self.tag:
            lines.append(f"  tag {self.tag}")
        if self.script:
            lines.append("  branch script")
        lines += [f"  ! {path}: {what}" for path, what in self.edits.items()]
        return printable("\n".join([*lines, *(f"    {line}" for line in self.diff)]))  # paths and words of others

"""Plan of a publication: the changes of a branch, and the commits that make them. No request.

- ``find_changes``: the local snapshot against a branch. Contents are compared by SHA-256 where the
  Hub keeps a large file, by git's id otherwise.
- ``Stamp``: the last line of a card, with the repository's id, a digest of the facts that the card
  was written from, and a checksum over both and the text. A card is stale, and is not published,
  when the facts have changed. A card with another checksum was edited, and is not overwritten.
- ``plan_commits``: a publication too large for one commit, as several. Each commit is complete: its
  manifest names exactly the data that are there, so a killed publication resumes. The last commit
  brings the card, and it alone is tagged.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sts_dino.hub.contract.measured import FIDELITY, LEDGER, REPEATS, VALUE
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, REPORT, Manifest, format_manifest
from sts_dino.hub.durable import hash_file
from sts_dino.hub.untrusted import strip_controls

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

CARD = "README.md"
RESULTS = "results.json"
DETAILS = "DETAILS.md"  # the page that a card links to
OF_DATASETS = (VALUE, FIDELITY, LEDGER)  # files of measurements of a dataset
# The files that a card is written from, beside the manifest
MEASURED = (RESULTS, REPEATS, *OF_DATASETS, REPORT)
# Patterns of published files that the manifest does not name
PATTERNS_BESIDE_MANIFEST = (
    CARD,
    DETAILS,
    RECIPE,
    MANIFEST,
    *MEASURED,
    ".eval_results/*.yaml",
    "assets/*.png",
)
HUB_FILES = (".gitattributes",)  # files that the Hub itself adds to a repository
# The names of ``MEASURED``'s files, in their order, in a card's digest of facts. results.json has
# none: a name there would change the digests of published cards.
_FACT_NAMES = ("", "repeats", "value", "fidelity", "decontamination", "report")
_STAMP = re.compile(
    r"<!-- sts-dino: (?P<repo_id>\S+) facts (?P<facts>[0-9a-f]{64}) "
    r"text (?P<text>[0-9a-f]{64}) -->\n\Z"
)
# The official client sends at most this many files in one commit. The Hub advises a hundred, but
# allows 128 commits an hour: at that rate the 100,000 files of the largest repository would take
# eight hours.
MOST_FILES_PER_COMMIT = 1_000
_CARD_OF_A_PART = """---
tags:
- being-published
viewer: false
configs:
- config_name: default
  data_files: this-version-is-being-published/*
---

# {name}

Version {version} is being published: its files come in several commits, and the last commit \
replaces this card. Nothing
can be loaded from here until then. Earlier versions can be, by their tags.
"""


@dataclass(frozen=True)
class Content:
    """Content of a file to publish: the path of a local file, or the bytes.

    ``digest``: the content's SHA-256 as hex; None: computed when it is needed.
    """

    data: Path | bytes
    digest: str | None = None

    @property
    def size(self) -> int:
        """The content's length in bytes."""
        return len(self.data) if isinstance(self.data, bytes) else self.data.stat().st_size

    def is_same_as(self, remote: "RepoFile") -> bool:
        """Return whether a file on the Hub has this content.

        A large file (LFS) is compared by SHA-256, another one by git's id.
        """
        if remote.lfs is not None:
            return self.hash() == remote.lfs.sha256
        from huggingface_hub.utils.sha import git_hash

        return self.size == remote.size and git_hash(self.read()) == remote.blob_id

    def hash(self) -> str:
        """Return the SHA-256, as hex."""
        if self.digest is not None:
            return self.digest
        if isinstance(self.data, bytes):
            return hashlib.sha256(self.data).hexdigest()
        return hash_file(self.data)

    def read(self) -> bytes:
        """Return the bytes."""
        return self.data if isinstance(self.data, bytes) else self.data.read_bytes()


# Path in the repository → content: all files that the repository shall hold after a publication
Snapshot = Mapping[str, Content]


@dataclass(frozen=True)
class Remote:
    """State of a branch on the Hub: the id of its newest commit, and its files by path."""

    sha: str
    files: "Mapping[str, RepoFile]"


@dataclass(frozen=True)
class Changes:
    """Paths to add, replace and delete, so that a branch holds a snapshot and ``HUB_FILES``."""

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.added) + len(self.replaced) + len(self.deleted)


def find_changes(snapshot: Snapshot, remote: Remote | None) -> Changes:
    """Return the changes that turn a branch into a snapshot; each list of paths is sorted.

    remote: the branch; None when the repository does not exist.
    """
    remote_files = remote.files if remote else {}
    added = sorted(snapshot.keys() - remote_files.keys())
    common = sorted(snapshot.keys() & remote_files.keys())
    replaced = [path for path in common if not snapshot[path].is_same_as(remote_files[path])]
    deleted = sorted(remote_files.keys() - snapshot.keys() - set(HUB_FILES))
    return Changes(tuple(added), tuple(replaced), tuple(deleted))


def is_beside(path: str) -> bool:
    """Return whether a path of a repository matches ``PATTERNS_BESIDE_MANIFEST``."""
    # ``match`` compares a path's end, so a pattern also matches in a deeper folder.
    patterns = [item for item in PATTERNS_BESIDE_MANIFEST if item.count("/") == path.count("/")]
    return any(PurePosixPath(path).match(pattern) for pattern in patterns)


@dataclass(frozen=True)
class Plan:
    """A planned publication: its changes, its tag, and the edits that it would overwrite."""

    repo_id: str
    repo_type: str
    remote: Remote | None
    changes: Changes
    tag: str | None  # None: the tag exists with this content, or the run is not finished
    script: bool = False  # whether the branch `script` needs a commit
    edits: Mapping[str, str] = field(default_factory=dict)  # path → a person's change of the file
    upload: int = 0  # bytes of the added and replaced files
    commits: int = 1  # number of commits on main

    @property
    def url(self) -> str:
        """The repository's page on the Hub of HF_ENDPOINT, without a password."""
        from huggingface_hub import constants

        endpoint = re.sub("//[^/]*@", "//", constants.ENDPOINT)
        prefix = constants.REPO_TYPES_URL_PREFIXES.get(self.repo_type, "")
        return f"{endpoint}/{prefix}{self.repo_id}"

    def describe(self) -> dict[str, Any]:
        """Return the plan as a dict of JSON values; ``bytes`` is the size of the upload."""
        return {
            "repo_id": self.repo_id,
            "repo_type": self.repo_type,
            "url": self.url,
            "edits": dict(self.edits),
            "tag": self.tag,
            "added": list(self.changes.added),
            "replaced": list(self.changes.replaced),
            "deleted": list(self.changes.deleted),
            "bytes": self.upload,
        }

    def format_text(self, is_published: bool) -> str:
        """Return the plan as text, with the repository's URL as last line if ``is_published``."""
        lines = [str(self)]
        if is_published:
            lines.append(self.url)
        return "\n".join(lines)

    def __str__(self) -> str:
        # Marks of a path: + added, ~ replaced, - deleted, ! edited by a person
        lines = [f"{self.repo_type} {self.repo_id}"]
        if self.remote is None:
            lines[0] += " (new)"
        lines += [f"  + {path}" for path in self.changes.added]
        lines += [f"  ~ {path}" for path in self.changes.replaced]
        lines += [f"  - {path}" for path in self.changes.deleted]
        if self.changes:
            several = f" in {self.commits} commits" if self.commits > 1 else ""
            lines.append(f"  {self.upload:,} bytes to send{several}")
        else:
            lines.append("  no file changes")
        if self.tag:
            lines.append(f"  tag {self.tag}")
        if self.script:
            lines.append("  branch script")
        lines += [f"  ! {path}: {edit}" for path, edit in self.edits.items()]
        # Paths and edits of files on the Hub may hold escape sequences.
        return strip_controls("\n".join(lines))


@dataclass(frozen=True)
class Stamp:
    """The last line of a card: the card's repository id, and the digest of the card's facts."""

    repo_id: str
    facts: str


def hash_facts(manifest: bytes, *measured: bytes | None) -> str:
    """Return the SHA-256 (hex) over the facts of a card: manifest.json and the measured files.

    Args:
        manifest: the content of manifest.json.
        measured: the contents of ``MEASURED``'s files, in their order; None for a missing file.
            Missing files at the end may be left out.
    """
    parts = [hashlib.sha256(manifest).hexdigest()]
    for name, content in zip(_FACT_NAMES, measured, strict=False):
        if content is not None:
            # ``lstrip`` for the file whose name is empty
            parts.append(f"{name} {hashlib.sha256(content).hexdigest()}".lstrip())
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def add_stamp(text: str, repo_id: str, facts: str) -> str:
    """Return the text of a card with its stamp as last line.

    The stamp holds ``repo_id``, the digest ``facts`` of ``hash_facts``, and a checksum (SHA-256)
    over both and the text.
    """
    text = text.rstrip("\n") + "\n\n"
    checksum = _hash_parts(repo_id, facts, text)
    return f"{text}<!-- sts-dino: {repo_id} facts {facts} text {checksum} -->\n"


def read_stamp(card: str) -> Stamp | None:
    """Return the stamp of a card; None without a stamp, and when its checksum does not match."""
    match = _STAMP.search(card)
    if match is None:
        return None
    checksum = _hash_parts(match["repo_id"], match["facts"], card[: match.start()])
    if checksum != match["text"]:
        return None
    return Stamp(match["repo_id"], match["facts"])


def _hash_parts(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class PlannedCommit:
    """One commit: its changes, the contents of changed paths, and a suffix of its message."""

    changes: Changes
    snapshot: Snapshot
    progress: str = ""


def plan_commits(
    snapshot: Snapshot, remote: Remote, manifest: Manifest, repo_id: str
) -> list[PlannedCommit]:
    """Return the commits that turn the branch ``remote`` into ``snapshot``, in their order.

    The list is empty without changes, and has one commit for at most ``MOST_FILES_PER_COMMIT``
    changes. Of several commits, all but the last publish a manifest of an unfinished run.

    Args:
        snapshot: the files that the branch shall hold.
        remote: the state of the branch.
        manifest: the manifest in the snapshot.
        repo_id: the repository's id, for the cards of unfinished states.
    """
    changes = find_changes(snapshot, remote)
    if not changes:
        return []
    if len(changes) <= MOST_FILES_PER_COMMIT:
        return [PlannedCommit(changes, snapshot)]

    # Group the paths: to delete, present on the branch, to send, beside the manifest.
    emptied = _find_emptied_paths(changes)
    present = _find_present_files(snapshot, remote, emptied)
    new = [path for path in sorted(snapshot) if path not in present and not is_beside(path)]
    beside = {path: content for path, content in snapshot.items() if is_beside(path)}
    deletions = (*emptied, *filter(is_beside, changes.deleted))

    # Cut the new files into parts. If data files are deleted, the first commit sends no new files.
    length = max(1, MOST_FILES_PER_COMMIT - len({CARD, MANIFEST, *beside}))
    parts = [tuple(new[start : start + length]) for start in range(0, len(new), length)]
    last_part = parts.pop() if parts else ()
    total = len(present) + len(new)
    if emptied:
        parts.insert(0, ())

    # Each commit but the last has the manifest of an unfinished run, and its own card.
    commits = []
    for part in parts:
        present |= set(part)
        contents = {**beside, **_describe_part(snapshot, manifest, present, repo_id)}
        commits.append(
            PlannedCommit(
                Changes(part, tuple(contents), deletions),
                {**snapshot, **contents},
                f", {len(present):,} of {total:,} files",
            )
        )
        deletions = ()  # only the first commit deletes
    # Of the files beside the manifest, the client skips the unchanged ones.
    commits.append(PlannedCommit(Changes(last_part, tuple(beside), deletions), snapshot))
    return commits


def _find_present_files(snapshot: Snapshot, remote: Remote, emptied: tuple[str, ...]) -> set[str]:
    """Return the data files of the snapshot that are on the branch and are not deleted first.

    ``emptied``: the files and folders to delete, from ``_find_emptied_paths``.
    """
    common = remote.files.keys() & snapshot.keys()
    return {path for path in common if not is_beside(path) and not _is_within(path, emptied)}


def _describe_part(
    snapshot: Snapshot, manifest: Manifest, present: set[str], repo_id: str
) -> dict[str, Content]:
    """Return path → content of the manifest and the card for an unfinished state of a branch.

    ``present``: the paths of the data files that the branch holds in this state.
    """
    files = tuple(file for file in manifest.files if file.path in present)
    part = manifest.model_copy(update={"complete": False, "files": files})
    text = format_manifest(part).encode()
    measured = [snapshot[path].read() if path in snapshot else None for path in MEASURED]
    card = _CARD_OF_A_PART.format(name=manifest.name, version=manifest.version)
    card = add_stamp(card, repo_id, hash_facts(text, *measured))
    return {MANIFEST: Content(text), CARD: Content(card.encode())}


def _find_emptied_paths(changes: Changes) -> tuple[str, ...]:
    """Return the files and folders (``PATH/``) to delete before a commit adds files.

    A folder is deleted if one of its data files is replaced or deleted; a data file in no folder is
    deleted alone. A folder inside another folder of the result is left out.
    """
    paths = [path for path in (*changes.replaced, *changes.deleted) if not is_beside(path)]
    roots = {f"{PurePosixPath(path).parent}/" if "/" in path else path for path in paths}
    return tuple(sorted(root for root in roots if not _is_within(root, roots - {root})))


def _is_within(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path is one of the files or folders (``PATH/``), or is inside one."""
    return any(path == root or (root.endswith("/") and path.startswith(root)) for root in roots)

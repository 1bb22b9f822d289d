"""Plan of a publication, pure: what changes on a Hub branch, who changed it before, and in how many commits.

- ``compare``: the local snapshot against a branch. Contents are compared by SHA-256 where the Hub keeps a large file,
  by git's id otherwise.
- ``Stamp``: the last line of a card, with a digest of the facts it was written from and a checksum of its text. A card
  of other facts is stale and is not published. A card of another text was edited on the Hub and is not overwritten.
- ``steps``: a publication too large for one commit, as several. Each commit is whole: its manifest names exactly the
  data that are there, so a killed publication resumes. The last commit brings the card, and it alone is tagged.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hub.contract.measured import FIDELITY, LEDGER, REPEATS, VALUE
from hub.contract.run_dir import MANIFEST, RECIPE, REPORT, Manifest, manifest_text
from hub.durable import sha256_file
from hub.untrusted import printable

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

CARD, RESULTS = "README.md", "results.json"
DETAILS = "DETAILS.md"  # what a card links to
OF_DATASETS = (VALUE, FIDELITY, LEDGER)
MEASURED = (RESULTS, REPEATS, *OF_DATASETS, REPORT)  # what a card is written from, beside the manifest
BESIDE = (CARD, DETAILS, RECIPE, MANIFEST, *MEASURED, ".eval_results/*.yaml", "assets/*.png")  # not in the manifest
KEPT = (".gitattributes",)  # the Hub's own


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
        from huggingface_hub.utils.sha import git_hash

        return self.size == remote.size and git_hash(self.read()) == remote.blob_id

    def sha256(self) -> str:
        """As hex."""
        if self.known is not None:
            return self.known
        return hashlib.sha256(self.data).hexdigest() if isinstance(self.data, bytes) else sha256_file(self.data)

    def read(self) -> bytes:
        """The bytes."""
        return self.data if isinstance(self.data, bytes) else self.data.read_bytes()


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

    def __len__(self) -> int:
        return len(self.added) + len(self.replaced) + len(self.deleted)


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
    upload: int = 0  # bytes of the files that are new
    commits: int = 1  # on main

    @property
    def url(self) -> str:
        """The repository's page on the Hub of HF_ENDPOINT, without a password."""
        from huggingface_hub import constants

        endpoint = re.sub("//[^/]*@", "//", constants.ENDPOINT)
        return f"{endpoint}/{'datasets/' * (self.repo_type == 'dataset')}{self.repo_id}"

    def facts(self) -> dict[str, Any]:
        """The plan for machines."""
        changes = {"added": self.changes.added, "replaced": self.changes.replaced, "deleted": self.changes.deleted}
        facts = {
            "repo_id": self.repo_id,
            "repo_type": self.repo_type,
            "url": self.url,
            "edits": dict(self.edits),
            "tag": self.tag,
        }
        return {**facts, **{kind: list(paths) for kind, paths in changes.items()}, "bytes": self.upload}

    def shown(self, done: bool) -> str:
        """The plan as text; after the publication, with the repository's page as the last line."""
        return f"{self}\n{self.url}" if done else str(self)

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
        return printable("\n".join(lines))  # paths of others


OTHERS = ("repeats", "value", "fidelity", "decontamination", "report")  # files beside results, as plan.MEASURED
_STAMP = re.compile(
    r"<!-- sts-dino: (?P<repo_id>\S+) facts (?P<facts>[0-9a-f]{64}) text (?P<text>[0-9a-f]{64}) -->\n\Z"
)


@dataclass(frozen=True)
class Stamp:
    """The repository id a card was written for, and the digest of the facts it was written from."""

    repo_id: str
    facts: str


def facts_digest(manifest: bytes, *measured: bytes | None) -> str:
    """SHA-256 over what a card is written from: manifest.json and the measured files, None for those that are missing.

    measured: in the order of ``MEASURED``; the last ones may be left out.
    """
    parts = [hashlib.sha256(manifest).hexdigest()]
    for name, content in zip(("", *OTHERS), measured, strict=False):
        if content is not None:
            parts.append(f"{name} {hashlib.sha256(content).hexdigest()}".lstrip())
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def stamped(text: str, repo_id: str, facts: str) -> str:
    """``text`` with the stamp as its last line."""
    text = text.rstrip("\n") + "\n\n"
    return f"{text}<!-- sts-dino: {repo_id} facts {facts} text {_stamp_digest(repo_id, facts, text)} -->\n"


def read_stamp(card: str) -> Stamp | None:
    """The stamp of a card; None when it has none, or when its text was changed after it was stamped."""
    found = _STAMP.search(card)
    if found is None or _stamp_digest(found["repo_id"], found["facts"], card[: found.start()]) != found["text"]:
        return None
    return Stamp(found["repo_id"], found["facts"])


def _stamp_digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# Files of a commit: the most that the official client sends at once (it begins with 250). The Hub advises a hundred and
# allows 128 commits an hour: the 100,000 files that a repository may have would take it eight hours.
FILES = 1_000
_BESIDE = (CARD, MANIFEST, RECIPE)  # in each commit
_UNDER_WAY = """---
tags:
- being-published
viewer: false
configs:
- config_name: default
  data_files: this-version-is-being-published/*
---

# {name}

Version {version} is being published: its files come in several commits, and the last commit replaces this card. Nothing
can be loaded from here until then. Earlier versions can be, by their tags.
"""


@dataclass(frozen=True)
class Step:
    """One commit: its changes, the contents they are taken from, and how far it comes, for its message."""

    changes: Changes
    snapshot: Snapshot
    progress: str = ""


def steps(snapshot: Snapshot, remote: Remote, manifest: Manifest, repo_id: str) -> list[Step]:
    """The commits that make ``remote`` hold ``snapshot``: none, one or, of more than ``FILES`` files, several."""
    changes = compare(snapshot, remote)
    if len(changes) <= FILES:
        return [Step(changes, snapshot)] if changes else []
    emptied = _emptied(changes)
    kept = {path for path in remote.files if path in snapshot and not is_beside(path) and not _within(path, emptied)}
    new = [path for path in sorted(snapshot) if path not in kept and not is_beside(path)]
    parts = [tuple(new[start : start + FILES - len(_BESIDE)]) for start in range(0, len(new), FILES - len(_BESIDE))]
    beside = {path: content for path, content in snapshot.items() if is_beside(path)}
    gone = tuple(path for path in changes.deleted if is_beside(path))
    measured = [snapshot[path].read() if path in snapshot else None for path in MEASURED]
    opening, there = list[Step](), set(kept)
    for part in [(), *parts[:-1]] if emptied else parts[:-1]:  # what is emptied goes first, by itself
        there |= set(part)
        files = tuple(file for file in manifest.files if file.path in there)
        text = manifest_text(manifest.model_copy(update={"complete": False, "files": files})).encode()
        card = _UNDER_WAY.format(name=manifest.name, version=manifest.version)
        card = stamped(card, repo_id, facts_digest(text, *measured))
        held = {**beside, MANIFEST: Content(text), CARD: Content(card.encode())}  # the client skips what is there
        mixed = Changes(part, tuple(held), () if opening else (*emptied, *gone))
        opening.append(Step(mixed, {**snapshot, **held}, f", {len(there):,} of {len(kept) + len(new):,} files"))
    last = Changes(parts[-1] if parts else (), tuple(beside), () if opening else gone)
    return [*opening, Step(last, snapshot)]


def _emptied(changes: Changes) -> tuple[str, ...]:
    """What is deleted first: each folder of data with a file that does not stay as it is, else the file."""
    doomed = [path for path in (*changes.replaced, *changes.deleted) if not is_beside(path)]
    folders = {f"{PurePosixPath(path).parent}/" if "/" in path else path for path in doomed}
    return tuple(sorted(place for place in folders if not _within(place, folders - {place})))


def _within(path: str, places: Iterable[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)

"""Splits a publication that is too large for one commit into an ordered list of commits, pure.

Each of them is whole: its manifest names exactly the data that are there, so that a killed publication goes on, and
nothing in it looks like an edit. Before the last one the manifest says that the run is not complete, and the card loads
nothing, or what it loaded before where nothing of that is touched. The last commit brings the card of the version, and
it alone is tagged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from hub.client.card_stamp import facts_digest, restamped, stamped
from hub.client.plan import CARD, MEASURED, Changes, Content, Remote, Snapshot, compare, is_beside
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest, manifest_text

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

Version {version} is being published: its files come in several commits, the last of which replaces this card. Nothing
can be loaded from here until then. Earlier versions can be, by their tags.
"""


@dataclass(frozen=True)
class Step:
    """One commit: its changes, the contents they are taken from, and how far it comes, for its message."""

    changes: Changes
    snapshot: Snapshot
    progress: str = ""


@dataclass(frozen=True)
class BranchCard:
    """The card of a branch, and the bytes of the measured files (``MEASURED``) it was written from."""

    card: str | None = None
    measured: tuple[bytes | None, ...] = (None,) * len(MEASURED)


def count(changes: Changes) -> int:
    """How many files a commit of all changes would touch."""
    return len(changes.added) + len(changes.replaced) + len(changes.deleted)


def steps(snapshot: Snapshot, remote: Remote, manifest: Manifest, repo_id: str, branch_card: BranchCard) -> list[Step]:
    """The commits that make ``remote`` hold ``snapshot``: none, one or, of more than ``FILES`` files, several."""
    changes = compare(snapshot, remote)
    if count(changes) <= FILES:
        return [Step(changes, snapshot)] if changes else []
    emptied = _emptied(changes)
    kept = {path for path in remote.files if path in snapshot and not is_beside(path) and not _within(path, emptied)}
    new = [path for path in sorted(snapshot) if path not in kept and not is_beside(path)]
    parts = [tuple(new[start : start + FILES - len(_BESIDE)]) for start in range(0, len(new), FILES - len(_BESIDE))]
    untouched = None if emptied or not branch_card.card or _loads(branch_card.card, new) else branch_card.card
    opening, there = list[Step](), set(kept)
    before_last = [(), *parts[:-1]] if emptied else parts[:-1]  # what is emptied goes first, by itself
    for number, part in enumerate(before_last):
        there |= set(part)
        beside = _beside(snapshot, manifest, there, repo_id, branch_card, untouched)
        mixed = Changes(part, tuple(beside), emptied if number == 0 else ())
        opening.append(Step(mixed, {**snapshot, **beside}, f", {len(there):,} of {len(kept) + len(new):,} files"))
    last = Changes(
        added=parts[-1] if parts else (),
        replaced=tuple(path for path in snapshot if is_beside(path)),  # the client leaves out what is there just so
        deleted=tuple(path for path in changes.deleted if is_beside(path)),
    )
    return [*opening, Step(last, snapshot)]


def _emptied(changes: Changes) -> tuple[str, ...]:
    """What is deleted first: each folder of data with a file that does not stay as it is, else the file."""
    doomed = [path for path in (*changes.replaced, *changes.deleted) if not is_beside(path)]
    folders = {f"{PurePosixPath(path).parent}/" if "/" in path else path for path in doomed}
    return tuple(sorted(place for place in folders if not _within(place, folders - {place})))


def _within(path: str, places: Iterable[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def _loads(card: str, paths: Iterable[str]) -> bool:
    """Whether a card's head may name files of these folders."""
    head = card.split("\n---\n")[0]
    return "configs:" not in head or any(f"{folder}/" in head for folder in {PurePosixPath(p).parent for p in paths})


def _beside(
    snapshot: Snapshot,
    manifest: Manifest,
    there: set[str],
    repo_id: str,
    branch_card: BranchCard,
    untouched: str | None,
) -> dict[str, Content]:
    """Manifest, card and recipe of a commit in between, whose data are ``there``."""
    files = tuple(file for file in manifest.files if file.path in there)
    text = manifest_text(manifest.model_copy(update={"complete": False, "files": files})).encode()
    facts = facts_digest(text, *branch_card.measured)
    card = restamped(untouched, facts) if untouched else None
    card = card or stamped(_UNDER_WAY.format(name=manifest.name, version=manifest.version), repo_id, facts)
    return {MANIFEST: Content(text), CARD: Content(card.encode()), RECIPE: snapshot[RECIPE]}

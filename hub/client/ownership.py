"""Checks before a Hub branch is overwritten: edits by hand, files of others, unfinished runs, later versions.

Nothing of another person is taken away silently: not a file, not an edit, not an unfinished run, not a later version.
"""

import hashlib
import re

from hub.client.card_stamp import facts_digest, read_stamp
from hub.client.plan import CARD, DIFF_LINES, MEASURED, Remote, Snapshot, strangers, text_diff
from hub.client.repository import Repository
from hub.contract.run_dir import MANIFEST, Manifest
from hub.errors import RunError

CARDS_READ = 50  # commits looked through, at most, for the card as it was before a person edited it
Edits = dict[str, str]  # path → what a person did to it


def remote_manifest(repository: Repository, remote: Remote) -> Manifest | None:
    """The manifest of a branch; None when it has none that can be read."""
    content = repository.read(remote, MANIFEST) if MANIFEST in remote.files else None
    try:
        return Manifest.model_validate_json(content) if content is not None else None
    except ValueError:
        return None


def check_place(repository: Repository, branch: str, there: Manifest | None, version: str) -> None:
    """Raise RunError when the run of another recipe that stands on a branch is unfinished, or of a later version."""
    place = f"{repository.repo_id}: branch {branch}"
    if there is not None and not there.complete:
        found = f"holds an unfinished run of another recipe ({there.name} v{there.version})"
        raise RunError(place, found, hint="finish that one, or use --force to replace it")
    if there is not None and is_later(there.version, version):
        found = f"holds v{there.version}, which is later than v{version}"
        raise RunError(place, found, hint="raise `version` in the recipe, or use --force to go back")


def is_later(version: str, than: str) -> bool:
    """Whether one version comes after another."""
    return _number(version) > _number(than)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def edits_since(
    repository: Repository, remote: Remote, manifest: Manifest | None, snapshot: Snapshot
) -> tuple[Edits, tuple[str, ...]]:
    """What a person changed on the branch since it was last published, and a diff of the card.

    ``manifest`` is the one of the branch. What ``snapshot`` holds just so is not looked at.
    """
    edits = strangers(remote, manifest) | _changed_small_files(repository, remote, manifest, snapshot)
    if CARD not in remote.files or (CARD in snapshot and snapshot[CARD].equals(remote.files[CARD])):
        return edits, ()
    card = (repository.read(remote, CARD) or b"").decode("utf-8", "replace")
    stamp = read_stamp(card)
    if stamp is None:
        published = _last_published_card(repository, remote)
        lines = text_diff(published, card, CARD) if published is not None else card.splitlines()[:DIFF_LINES]
        return {**edits, CARD: "edited by hand"}, tuple(lines)
    measured = [repository.read(remote, path) if path in remote.files else None for path in MEASURED]
    if stamp.facts != facts_digest(repository.read(remote, MANIFEST) or b"", *measured):
        edits[MANIFEST] = "this or results.json was changed by hand: the card was written from others"
    return edits, ()


def _last_published_card(repository: Repository, remote: Remote) -> str | None:
    """The newest card of the branch's history that is as it was stamped; None when there is none."""
    for sha in repository.commits(remote.sha)[:CARDS_READ]:
        content = repository.read(Remote(sha, {}), CARD)
        card = content.decode("utf-8", "replace") if content is not None else ""
        if read_stamp(card) is not None:
            return card
    return None


def _changed_small_files(
    repository: Repository, remote: Remote, manifest: Manifest | None, snapshot: Snapshot
) -> Edits:
    """Files kept by git id, which a manifest's SHA-256 does not tell: those that would be replaced are read."""
    found = {}
    for file in manifest.files if manifest else ():
        entry = remote.files.get(file.path)
        if entry is None or entry.lfs is not None or (file.path in snapshot and snapshot[file.path].equals(entry)):
            continue
        if hashlib.sha256(repository.read(remote, file.path) or b"").hexdigest() != file.sha256:
            found[file.path] = "changed by hand"
    return found

"""Git trees: object ids, and folders as rows of the index, one for each entry.

The ids are real, so that clients can check them and a repo can be exported to git. A commit writes
only the folders it changes; equal folders of all commits and repos share their rows.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from hub_server.storage.errors import HubError, make_missing_entry_error

_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\r?\n")
_MAX_POINTER_BYTES = 1024  # git-lfs takes no longer file for a pointer
# Queries of a folder's entries; a subfolder has no row in ``files``, so its last columns are NULL.
_ENTRY = "oid, is_folder, sha256, size, lfs"
_FROM = "FROM entries LEFT JOIN files USING (oid) WHERE tree = ?"
_FIND = f"SELECT {_ENTRY} {_FROM} AND name = ?"
_WALK = f"SELECT name, {_ENTRY} {_FROM} AND name >= ? ORDER BY name"


class File(NamedTuple):
    """A file of a tree: its git id, content's sha256, size in bytes, and whether it is LFS."""

    oid: str
    sha256: str
    size: int
    lfs: bool

    @property
    def etag(self) -> str:
        """The id under which clients cache: sha256 of a large file, git id of a regular file."""
        return self.sha256 if self.lfs else self.oid

    @property
    def lfs_facts(self) -> dict[str, int]:
        """JSON of an LFS file: its size, and that of its pointer."""
        return {"size": self.size, "pointerSize": len(make_lfs_pointer(self.sha256, self.size))}


class Entry(NamedTuple):
    """A file, or a folder when ``file`` is None; ``oid``: its git id."""

    path: str
    oid: str
    file: File | None


def compute_object_id(kind: str, content: bytes) -> str:
    """Return the git id of an object: sha1 over its header and content."""
    header = f"{kind} {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def compute_commit_id(tree: str, parent: str | None, author: str, when: int, message: str) -> str:
    """Return the git id of a commit by ``author`` at ``when`` (seconds since 1970, UTC)."""
    person = f"{author} <{author}@localhost> {when} +0000"
    lines = [f"tree {tree}"]
    if parent:
        lines.append(f"parent {parent}")
    lines += [f"author {person}", f"committer {person}", "", message, ""]
    return compute_object_id("commit", "\n".join(lines).encode())


def compute_tree_id(entries: list[tuple[str, str, bool]]) -> str:
    """Return the git id of a folder with these entries: (name, git id, is a folder)."""
    lines = {}
    for name, oid, is_folder in entries:
        mode = "40000" if is_folder else "100644"
        # folders sort as if their name ended in a slash
        sort_key = f"{name}/" if is_folder else name
        lines[sort_key.encode()] = f"{mode} {name}".encode() + b"\0" + bytes.fromhex(oid)
    return compute_object_id("tree", b"".join(lines[key] for key in sorted(lines)))


def make_lfs_pointer(sha256: str, size: int) -> bytes:
    """Return the LFS pointer that git stores in place of a large file."""
    version = "version https://git-lfs.github.com/spec/v1"
    return f"{version}\noid sha256:{sha256}\nsize {size}\n".encode()


def is_lfs_pointer(content: bytes) -> bool:
    """Return whether a regular file has the form of an LFS pointer.

    git clients would replace such a file by the large file of another repo.
    """
    return len(content) < _MAX_POINTER_BYTES and _POINTER.match(content) is not None


def _make_entry(path: str, row: sqlite3.Row) -> Entry:
    """Return the entry of a row with the columns of ``_ENTRY``."""
    if row["is_folder"]:
        return Entry(path, row["oid"], None)
    file = File(row["oid"], row["sha256"], row["size"], bool(row["lfs"]))
    return Entry(path, row["oid"], file)


def find_entry(db: sqlite3.Connection, tree: str, path: str) -> Entry | None:
    """Return the entry at ``path`` ("" is the root itself); None for a missing path.

    ``tree``: the git id of the root folder.
    """
    entry = Entry("", tree, None)
    if not path:
        return entry
    for name in path.split("/"):
        row = db.execute(_FIND, (entry.oid, name)).fetchone()
        if row is None:
            return None
        entry = _make_entry(path, row)  # of a folder on the way only ``oid`` is used
    return entry


def find_file(db: sqlite3.Connection, tree: str, path: str) -> File | None:
    """Return the file at ``path``; None when it is missing or a folder.

    ``tree``: the git id of the root folder.
    """
    entry = find_entry(db, tree, path)
    return entry.file if entry else None


def walk(
    db: sqlite3.Connection, tree: str, path: str = "", recursive: bool = True, start: str = ""
) -> Iterator[Entry]:
    """Yield the entries of a folder in the order of their names, a folder before its content.

    Args:
        db: a connection in a transaction.
        tree: the git id of the folder.
        path: the folder's path, which the entries' paths begin with; "" for the root.
        recursive: whether to walk the folders inside.
        start: a path relative to the folder. The walk begins after this entry; "" for all entries.
    """
    # The query begins at the start's first name; the rest of the start lies inside that folder.
    start_name, _, start_below = start.partition("/")
    for row in db.execute(_WALK, (tree, start_name)):
        entry = _make_entry(f"{path}/{row['name']}".lstrip("/"), row)
        start_inside = ""
        if row["name"] == start_name:  # yielded before, by an earlier page
            start_inside = start_below
        else:
            yield entry
        if recursive and row["is_folder"]:
            yield from walk(db, entry.oid, entry.path, start=start_inside)


class TreeEdit:
    """Edits of a tree inside one transaction; an operation reads only the folders of its path.

    A folder in memory is a dict: name → git id of a file, dict of a read folder, or ``_Unread``.
    The index changes only by ``save``.

    Args:
        db: a connection in a write transaction.
        root: the git id of the tree to edit; None: an empty tree.
    """

    def __init__(self, db: sqlite3.Connection, root: str | None):
        self._db = db
        self._root = self._read(root) if root else {}

    def _read(self, tree: str) -> dict:
        """Return the folder with this git id as a dict, its subfolders unread."""
        rows = self._db.execute("SELECT name, oid, is_folder FROM entries WHERE tree = ?", (tree,))
        return {name: _Unread(oid) if is_folder else oid for name, oid, is_folder in rows}

    def put(self, path: str, oid: str) -> None:
        """Add or replace the file at ``path``; ``oid``: its git id.

        Raises HubError 422 where a file and a folder would share a name.
        """
        *parents, name = path.split("/")
        folder = self._root
        for depth, parent in enumerate(parents, start=1):
            folder.setdefault(parent, {})
            inner = self._open_folder(folder, parent)
            if inner is None:
                file_path = "/".join(parents[:depth])
                raise HubError(422, f"Cannot write {path}: {file_path} is a file")
            folder = inner
        if self._open_folder(folder, name) is not None:
            raise HubError(422, f"Cannot write {path}: it is a folder")
        folder[name] = oid

    def remove(self, path: str) -> None:
        """Delete a file or a folder, and folders that become empty, as git does.

        Raises HubError 404 for a missing path.
        """
        if not self._remove(self._root, path.split("/")):
            problem = f"A file with this name doesn't exist, nor a folder: {path}"
            raise make_missing_entry_error(problem)

    def _remove(self, folder: dict, parts: list[str]) -> bool:
        """Delete the entry at a path below a folder; return whether the entry existed.

        ``parts``: the names of the path, at least one. A folder that becomes empty is deleted, too.
        """
        if len(parts) == 1:
            return folder.pop(parts[0], None) is not None
        inner = self._open_folder(folder, parts[0])
        if inner is None or not self._remove(inner, parts[1:]):
            return False
        if not inner:
            del folder[parts[0]]
        return True

    def _open_folder(self, folder: dict, name: str) -> dict | None:
        """Return the named folder as a changeable dict; None for a file and a missing name."""
        child = folder.get(name)
        if isinstance(child, _Unread):
            child = folder[name] = self._read(child.oid)
        return child if isinstance(child, dict) else None

    def save(self) -> str:
        """Store the folders that operations have entered, and return the git id of the root."""
        return self._save(self._root)

    def _save(self, folder: dict) -> str:
        """Store a folder, and the entered folders inside it; return the folder's git id."""
        entries = []
        for name, child in folder.items():
            if isinstance(child, str):
                entries.append((name, child, False))
            elif isinstance(child, _Unread):
                entries.append((name, child.oid, True))
            else:
                entries.append((name, self._save(child), True))
        tree = compute_tree_id(entries)
        rows = [(tree, *entry) for entry in entries]
        self._db.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", rows)
        return tree


class _Unread(NamedTuple):
    """A folder of a ``TreeEdit`` that no operation has entered."""

    oid: str

"""Git trees: object ids, and folders as rows of the index, one for each entry.

The ids are real, so that clients can check them and a repo can be exported to git. A commit writes only the folders it
changes; equal folders of all commits and repos share their rows.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from hub_server.storage.errors import HubError, entry_not_found

_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\r?\n")
_ENTRY = "oid, is_folder, sha256, size, lfs"
_FIND = f"SELECT {_ENTRY} FROM entries LEFT JOIN files USING (oid) WHERE tree = ? AND name = ?"  # noqa: S608
_WALK = f"SELECT name, {_ENTRY} FROM entries LEFT JOIN files USING (oid) WHERE tree = ? AND name >= ? ORDER BY name"  # noqa: S608


class File(NamedTuple):
    """A file of a tree: its git id, content's sha256, size in bytes, and whether it is LFS."""

    oid: str
    sha256: str
    size: int
    lfs: bool

    @property
    def etag(self) -> str:
        """What clients compare with their own copy: sha256 of a large file, git id of a regular one."""
        return self.sha256 if self.lfs else self.oid

    @property
    def lfs_facts(self) -> dict[str, int]:
        """JSON of an LFS file: its size, and that of its pointer."""
        return {"size": self.size, "pointerSize": len(lfs_pointer(self.sha256, self.size))}


class Entry(NamedTuple):
    """A file, or a folder when ``file`` is None."""

    path: str
    oid: str
    file: File | None


def object_id(kind: str, content: bytes) -> str:
    """The git id of an object: sha1 over its header and content."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def commit_id(tree: str, parent: str | None, author: str, when: int, message: str) -> str:
    """The git id of a commit by ``author`` at ``when`` (seconds since 1970, UTC)."""
    lines = [f"tree {tree}"] + ([f"parent {parent}"] if parent else [])
    lines += [f"{role} {author} <{author}@localhost> {when} +0000" for role in ("author", "committer")]
    return object_id("commit", ("\n".join(lines) + f"\n\n{message}\n").encode())


def tree_id(entries: list[tuple[str, str, bool]]) -> str:
    """The git id of a folder with these (name, git id, is a folder); folders sort as if their name ended in '/'."""
    ordered = sorted(entries, key=lambda entry: (entry[0] + "/" if entry[2] else entry[0]).encode())
    lines = ((f"40000 {name}" if folder else f"100644 {name}", bytes.fromhex(oid)) for name, oid, folder in ordered)
    return object_id("tree", b"".join(head.encode() + b"\0" + oid for head, oid in lines))


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The LFS pointer that git stores in place of a large file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def is_lfs_pointer(content: bytes) -> bool:
    """Whether a regular file would read as a pointer; accepting one would hand out other repos' large files."""
    return len(content) < 1024 and _POINTER.match(content) is not None


def _entry(path: str, row: sqlite3.Row) -> Entry:
    file = None if row["is_folder"] else File(row["oid"], row["sha256"], row["size"], bool(row["lfs"]))
    return Entry(path, row["oid"], file)


def find(db: sqlite3.Connection, tree: str, path: str) -> Entry | None:
    """The entry at ``path`` ('' is the root itself), or None."""
    entry = Entry("", tree, None)
    for name in path.split("/") if path else []:
        row = db.execute(_FIND, (entry.oid, name)).fetchone()
        if row is None:
            return None
        entry = _entry(path, row)
    return entry


def find_file(db: sqlite3.Connection, tree: str, path: str) -> File | None:
    """Return the file at ``path``; None when it is missing or a folder."""
    entry = find(db, tree, path)
    return entry.file if entry else None


def walk(db: sqlite3.Connection, tree: str, path: str = "", recursive: bool = True, after: str = "") -> Iterator[Entry]:
    """What lies in the folder ``tree`` at ``path``, behind its entry ``after``: by name, a folder before its files."""
    first, _, rest = after.partition("/")
    for row in db.execute(_WALK, (tree, first)):
        entry, is_first = _entry(f"{path}/{row['name']}".lstrip("/"), row), row["name"] == first
        if not is_first:
            yield entry
        if recursive and row["is_folder"]:
            yield from walk(db, entry.oid, entry.path, after=rest if is_first else "")


class TreeEdit:
    """Edits of a tree inside one transaction; an operation loads the folders that it enters.

    A folder is a dict from names to git ids of files and to folders, ``_Unread`` until an operation enters them.
    """

    def __init__(self, db: sqlite3.Connection, root: str | None):
        self._db = db
        self._root = self._read(root) if root else {}

    def _read(self, tree: str) -> dict:
        rows = self._db.execute("SELECT name, oid, is_folder FROM entries WHERE tree = ?", (tree,))
        return {row["name"]: _Unread(row["oid"]) if row["is_folder"] else row["oid"] for row in rows}

    def put(self, path: str, oid: str) -> None:
        """Add or replace a file; 422 where a file and a folder would share a name."""
        *parents, name = path.split("/")
        folder = self._root
        for depth, parent in enumerate(parents):
            folder.setdefault(parent, {})
            inner = self._enter(folder, parent)
            if inner is None:
                raise HubError(422, f"Cannot write {path}: {'/'.join(parents[: depth + 1])} is a file")
            folder = inner
        if self._enter(folder, name) is not None:
            raise HubError(422, f"Cannot write {path}: it is a folder")
        folder[name] = oid

    def remove(self, path: str) -> None:
        """Delete a file or a folder, else 404; empty folders vanish, as in git."""
        if not self._remove(self._root, path.split("/")):
            raise entry_not_found(f"A file with this name doesn't exist, nor a folder: {path}")

    def _remove(self, folder: dict, parts: list[str]) -> bool:
        if len(parts) == 1:
            return folder.pop(parts[0], None) is not None
        inner = self._enter(folder, parts[0])
        if inner is None or not self._remove(inner, parts[1:]):
            return False
        if not inner:
            del folder[parts[0]]
        return True

    def _enter(self, folder: dict, name: str) -> dict | None:
        """The named folder as a changeable dict; None when there is nothing or a file."""
        child = folder.get(name)
        if isinstance(child, _Unread):
            child = folder[name] = self._read(child.oid)
        return child if isinstance(child, dict) else None

    def save(self) -> str:
        """Store the folders that were entered and return the id of the root."""
        return self._save(self._root)

    def _save(self, folder: dict) -> str:
        entries = []
        for name, child in folder.items():
            if isinstance(child, str):
                entries.append((name, child, False))
            else:
                entries.append((name, child.oid if isinstance(child, _Unread) else self._save(child), True))
        tree = tree_id(entries)
        rows = [(tree, *entry) for entry in entries]
        self._db.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", rows)
        return tree


class _Unread(NamedTuple):
    """A folder of a ``TreeEdit`` that no operation has entered."""

    oid: str

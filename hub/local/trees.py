"""Git's objects: their ids, and the folders of a repo, stored one row per folder by git id.

The ids are real, so that clients can check them and a repo can be exported to git. A commit writes only the folders it
changes; equal folders of all commits and repos share a row.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hub.local.replies import HubError, entry_not_found

_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\r?\n")


class Entry(NamedTuple):
    """One line of a git tree."""

    name: str
    is_folder: bool
    oid: str


def object_id(kind: str, content: bytes) -> str:
    """The git id of an object: sha1 over its header and content."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The small text that git stores in place of a large file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def is_lfs_pointer(content: bytes) -> bool:
    """Whether a regular file would read as a pointer; accepting one would hand out other repos' large files."""
    return len(content) < 1024 and _POINTER.match(content) is not None


def pack_tree(entries: Iterable[Entry]) -> bytes:
    """Entries in git's binary form and order (folders sort as if their name ended in '/')."""
    ordered = sorted(entries, key=lambda entry: (entry.name + "/" if entry.is_folder else entry.name).encode())
    mode = {True: "40000", False: "100644"}
    return b"".join(f"{mode[e.is_folder]} {e.name}\0".encode() + bytes.fromhex(e.oid) for e in ordered)


def unpack_tree(content: bytes) -> list[Entry]:
    """The inverse of ``pack_tree``."""
    entries, at = [], 0
    while at < len(content):
        end = content.index(b"\0", at)
        mode, name = content[at:end].split(b" ", 1)
        entries.append(Entry(name.decode(), mode == b"40000", content[end + 1 : end + 21].hex()))
        at = end + 21
    return entries


def commit_id(tree: str, parent: str | None, author: str, when: int, message: str) -> str:
    """The git id of a commit by ``author`` at ``when`` (seconds since 1970, UTC)."""
    lines = [f"tree {tree}"] + ([f"parent {parent}"] if parent else [])
    lines += [f"{role} {author} <{author}@localhost> {when} +0000" for role in ("author", "committer")]
    return object_id("commit", ("\n".join(lines) + f"\n\n{message}\n").encode())


class File(NamedTuple):
    """What a file's git id stands for."""

    oid: str
    sha256: str
    size: int
    lfs: bool

    @property
    def etag(self) -> str:
        """What clients compare with their own copy: sha256 of a large file, git id of a regular one."""
        return self.sha256 if self.lfs else self.oid

    @property
    def pointer_size(self) -> int:
        """The length of the text that stands for a large file in git."""
        return len(lfs_pointer(self.sha256, self.size))


def read_folder(db: sqlite3.Connection, oid: str) -> dict[str, Entry]:
    """The entries of a stored folder, in git order."""
    row = db.execute("SELECT content FROM trees WHERE oid = ?", (oid,)).fetchone()
    return {entry.name: entry for entry in unpack_tree(row["content"])}


def find(db: sqlite3.Connection, tree: str, path: str) -> Entry | None:
    """The entry at ``path`` ('' is the root itself), or None."""
    entry = Entry("", True, tree)
    for segment in path.split("/") if path else []:
        found = read_folder(db, entry.oid).get(segment) if entry.is_folder else None
        if found is None:
            return None
        entry = found
    return entry


def walk(db: sqlite3.Connection, folder: str, path: str = "", recursive: bool = True) -> Iterator[tuple[str, Entry]]:
    """Paths and entries below the folder with id ``folder``, which lies at ``path``; folders before their content."""
    for entry in read_folder(db, folder).values():
        inside = f"{path}/{entry.name}" if path else entry.name
        yield inside, entry
        if recursive and entry.is_folder:
            yield from walk(db, entry.oid, inside)


def files(db: sqlite3.Connection, oids: Iterable[str]) -> dict[str, File]:
    """What the git ids stand for."""
    wanted, found = sorted(set(oids)), {}
    for start in range(0, len(wanted), 500):  # SQLite's oldest limit on parameters is 999
        part = wanted[start : start + 500]
        marks = ",".join("?" * len(part))
        for row in db.execute(f"SELECT * FROM files WHERE oid IN ({marks})", part):  # noqa: S608 (only question marks)
            found[row["oid"]] = File(row["oid"], row["sha256"], row["size"], bool(row["lfs"]))
    return found


def find_file(db: sqlite3.Connection, tree: str, path: str) -> File | None:
    """The file at ``path``, or None when there is none or it is a folder."""
    entry = find(db, tree, path)
    return None if entry is None or entry.is_folder else files(db, [entry.oid])[entry.oid]


class TreeEdit:
    """A tree being changed inside one transaction; folders are read when an operation first enters them."""

    def __init__(self, db: sqlite3.Connection, root: str | None):
        self._db = db
        self._root: dict[str, Entry | dict] = dict(read_folder(db, root)) if root else {}

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
        folder[name] = Entry(name, False, oid)

    def remove(self, path: str, kind: str) -> None:
        """Delete a file or a whole folder; folders left empty vanish, as in git. ``kind`` only words the 404."""
        if not self._remove(self._root, path.split("/")):
            raise entry_not_found(f"A {kind} with this name doesn't exist: {path}")

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
        if isinstance(child, Entry):
            if not child.is_folder:
                return None
            child = folder[name] = dict(read_folder(self._db, child.oid))
        return child

    def save(self) -> str:
        """Store the folders that were entered and return the id of the root."""
        return self._save(self._root)

    def _save(self, folder: dict) -> str:
        content = pack_tree(
            child if isinstance(child, Entry) else Entry(name, True, self._save(child))
            for name, child in folder.items()
        )
        oid = object_id("tree", content)
        self._db.execute("INSERT OR IGNORE INTO trees VALUES (?, ?)", (oid, content))
        return oid

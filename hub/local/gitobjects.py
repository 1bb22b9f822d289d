"""Real git object ids, so that clients can check them and a repo can be exported to git.

Blob and commit ids, the LFS pointer that stands for a large file, and the binary form of a tree.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

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

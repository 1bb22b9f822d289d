"""Rewriting a repo's history without some of its LFS files."""

import sqlite3
from collections.abc import Iterator

from hub_server.storage.commits import store_commit
from hub_server.storage.repos import Commit, all_commits
from hub_server.storage.trees import TreeEdit, walk


def forget_files(db: sqlite3.Connection, repo: int, gone: set[str]) -> None:
    """Remove the large files with these sha256 from every commit, and the repo's right to their contents."""
    trees: dict[str, str] = {}
    renamed: dict[str | None, str] = {}
    for commit in _parents_first({commit.oid: commit for commit in all_commits(db, repo)}):
        if commit.tree not in trees:
            trees[commit.tree] = _without(db, commit.tree, gone)
        changed = commit._replace(tree=trees[commit.tree], parent=renamed.get(commit.parent, commit.parent))
        if changed != commit:
            renamed[commit.oid] = store_commit(db, repo, changed)
    for old, new in renamed.items():
        db.execute("UPDATE refs SET oid = ? WHERE repo = ? AND oid = ?", (new, repo, old))
        db.execute("UPDATE changes SET base = ? WHERE repo = ? AND base = ?", (new, repo, old))
        db.execute("UPDATE changes SET merged = ? WHERE repo = ? AND merged = ?", (new, repo, old))
        db.execute("DELETE FROM commits WHERE repo = ? AND oid = ?", (repo, old))
    db.execute("DELETE FROM receipts WHERE repo = ?", (repo,))
    db.executemany("DELETE FROM lfs_objects WHERE repo = ? AND sha256 = ?", [(repo, sha256) for sha256 in gone])


def _parents_first(commits: dict[str, Commit]) -> Iterator[Commit]:
    seen: set[str] = set()
    for oid in commits:
        chain, at = list[Commit](), oid
        while at in commits and at not in seen:
            seen.add(at)
            chain.append(commits[at])
            at = commits[at].parent or ""
        yield from reversed(chain)


def _without(db: sqlite3.Connection, tree: str, gone: set[str]) -> str:
    """The id of a tree that lacks these files."""
    edit = TreeEdit(db, tree)
    for path, _, file in walk(db, tree):
        if file and file.lfs and file.sha256 in gone:
            edit.remove(path)
    return edit.save()

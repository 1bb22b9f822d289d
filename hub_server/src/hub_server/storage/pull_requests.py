"""Pull requests: a ref of their own, their diff against the commit they began at, conflicts, and the merge."""

import sqlite3

from hub_server.storage.commits import branch_head, write_commit
from hub_server.storage.discussions import Discussion, add_discussion, event_facts, next_number
from hub_server.storage.refusals import HubError, revision_not_found
from hub_server.storage.repos import Commit, Repo, create_ref, get_commit, history, ref_target, resolve
from hub_server.storage.trees import TreeEdit, walk

Differences = dict[str, tuple[str | None, str | None]]  # by path: git ids before and after, None for no file


def author_of_open(db: sqlite3.Connection, repo: int, revision: str) -> str | None:
    """Who opened the pull request whose ref is ``revision``; None when it is closed or none."""
    query = "SELECT author FROM discussions WHERE repo = ? AND 'refs/pr/' || num = ? AND status IN ('open', 'draft')"
    found = db.execute(query, (repo, revision)).fetchone()
    return found["author"] if found else None


def open_pull_request(
    db: sqlite3.Connection, repo: int, branch: str, author: str, title: str, description: str, status: str
) -> int:
    """Open a pull request to a branch: a discussion with a ref ``refs/pr/<number>`` that begins there; its number."""
    head = ref_target(db, repo, f"refs/heads/{branch}")
    if head is None:
        raise revision_not_found(branch)
    number = next_number(db, repo)
    add_discussion(db, repo, number, author, title, description, status)
    create_ref(db, repo, f"refs/pr/{number}", head)
    db.execute("INSERT INTO changes VALUES (?, ?, ?, ?, NULL)", (repo, number, f"refs/heads/{branch}", head))
    return number


def commit_events(db: sqlite3.Connection, repo: int, change: Discussion) -> list[dict]:
    """The commits of a pull request, as events."""
    past = []
    for commit in history(db, repo, _head(db, repo, change)):
        if commit.oid == change.base:
            break
        past.append(commit)
    return [
        event_facts(commit.oid[:24], "commit", commit.author, commit.date, {"subject": commit.title, "oid": commit.oid})
        for commit in reversed(past)
    ]


def details(db: sqlite3.Connection, repo: int, change: Discussion) -> dict:
    """The JSON of a pull request: target branch, diff, conflicting files.

    Its branch may have been deleted: then nothing stands there.
    """
    ours = _differences(db, repo, change)
    mergeable = change.is_open and ref_target(db, repo, change.target or "") is not None
    conflicts = sorted(_conflicts(db, repo, change, ours)) if mergeable else []
    end = {"mergeCommitId": change.merged} if change.merged else {}
    return {"changes": {"base": change.target, **end}, "filesWithConflicts": conflicts, "diff": _diff(ours)}


def merge(db: sqlite3.Connection, repo: Repo, change: Discussion, author: str) -> str:
    """Merge into the target branch, as one commit; its id. 409 where both changed the same file."""
    if change.status != "open":
        hint = ": change its status to open first" if change.status == "draft" else ""
        raise HubError(400, f"Pull request {change.num} is {change.status}{hint}")
    ours = _differences(db, repo.id, change)
    conflicts = _conflicts(db, repo.id, change, ours)
    if conflicts:
        raise HubError(409, f"Both sides changed {', '.join(sorted(conflicts)[:5])}")
    ref, head = branch_head(db, repo, change.target or "")
    edit, present = TreeEdit(db, head.tree), _files(db, head)
    for path, (_, after) in sorted(ours.items(), key=lambda item: item[1][1] is not None):  # deletions make room
        if after is not None:
            edit.put(path, after)
        elif path in present:
            edit.remove(path)
    title = f"{change.title} (#{change.num})"
    oid = write_commit(db, repo, ref, edit.save(), head.oid, author, title, "")
    db.execute("UPDATE changes SET merged = ? WHERE repo = ? AND num = ?", (oid, repo.id, change.num))
    return oid


def _head(db: sqlite3.Connection, repo: int, change: Discussion) -> Commit:
    return resolve(db, repo, f"refs/pr/{change.num}")


def _files(db: sqlite3.Connection, commit: Commit) -> dict[str, str]:
    return {path: oid for path, oid, file in walk(db, commit.tree) if file}


def _differences(db: sqlite3.Connection, repo: int, change: Discussion) -> Differences:
    """The files that differ from the commit the pull request began at."""
    before, after = _files(db, get_commit(db, repo, change.base or "")), _files(db, _head(db, repo, change))
    paths = sorted(before.keys() | after.keys())
    return {path: (before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)}


def _conflicts(db: sqlite3.Connection, repo: int, change: Discussion, ours: Differences) -> set[str]:
    """Paths in conflict: neither as the pull request found them nor as it leaves them."""
    there = _files(db, resolve(db, repo, change.target or ""))
    return {path for path, known in ours.items() if there.get(path) not in known}


def _diff(differences: Differences) -> str:
    """A git diff without hunks: the files and their ids."""
    lines = []
    for path, (before, after) in differences.items():
        lines.append(f"diff --git a/{path} b/{path}")
        lines += ["new file mode 100644"] if before is None else ["deleted file mode 100644"] if after is None else []
        lines.append(f"index {before or '0' * 40}..{after or '0' * 40}")
    return "".join(f"{line}\n" for line in lines)

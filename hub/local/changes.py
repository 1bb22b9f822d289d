"""Changes that somebody proposes (pull requests): a ref of their own, what they differ in, and how they are merged."""

import sqlite3

from hub.local.call import Call
from hub.local.commits import branch_head, write_commit
from hub.local.discussions import Discussion, add_discussion, event_facts, next_number
from hub.local.replies import HubError, revision_not_found
from hub.local.repos import Commit, Repo, create_ref, get_commit, history, ref_target, resolve
from hub.local.trees import TreeEdit, walk

Differences = dict[str, tuple[str | None, str | None]]  # by path: git ids before and after, None for no file


def repo_to_change(call: Call) -> Repo:
    """The repo in the path, if the actor may commit to the revision there.

    Members of its namespace may; others, as far as they may read it, to changes that they propose.
    """
    repo, revision = call.repo(), call.args["revision"]
    with call.hub.database.reading() as db:
        query = (
            "SELECT author FROM discussions WHERE repo = ? AND 'refs/pr/' || num = ? AND status IN ('open', 'draft')"
        )
        found = db.execute(query, (repo.id, revision)).fetchone()
    proposes = call.flag("create_pr") or (found is not None and found["author"] == call.user.name)
    if proposes and not call.user.owns(repo.namespace):
        call.user.require_role()
        return call.readable()
    return call.repo(write=True)


def open_change(
    db: sqlite3.Connection, repo: int, branch: str, author: str, title: str, description: str, status: str
) -> int:
    """Start a discussion with a ref ``refs/pr/<number>`` that begins at a branch."""
    head = ref_target(db, repo, f"refs/heads/{branch}")
    if head is None:
        raise revision_not_found(branch)
    number = next_number(db, repo)
    add_discussion(db, repo, number, author, title, description, status)
    create_ref(db, repo, f"refs/pr/{number}", head)
    db.execute("INSERT INTO changes VALUES (?, ?, ?, ?, NULL)", (repo, number, f"refs/heads/{branch}", head))
    return number


def commit_events(db: sqlite3.Connection, repo: int, change: Discussion) -> list[dict]:
    """The commits of a change, as events."""
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
    """What clients want to know of a change: where it goes, what it differs in, and which files stand in its way.

    Its branch may have been deleted: then nothing stands there.
    """
    ours = _differences(db, repo, change)
    mergeable = change.is_open and ref_target(db, repo, change.target or "") is not None
    conflicts = sorted(_conflicts(db, repo, change, ours)) if mergeable else []
    end = {"mergeCommitId": change.merged} if change.merged else {}
    return {"changes": {"base": change.target, **end}, "filesWithConflicts": conflicts, "diff": _diff(ours)}


def merge(db: sqlite3.Connection, repo: Repo, change: Discussion, author: str) -> str:
    """One commit on the target branch with all that the change differs in; 409 where both changed the same file."""
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
    """The files that the change differs in from the commit it began at."""
    before, after = _files(db, get_commit(db, repo, change.base or "")), _files(db, _head(db, repo, change))
    paths = sorted(before.keys() | after.keys())
    return {path: (before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)}


def _conflicts(db: sqlite3.Connection, repo: int, change: Discussion, ours: Differences) -> set[str]:
    """The files that are neither as the change found them nor as it wants them."""
    there = _files(db, resolve(db, repo, change.target or ""))
    return {path for path, known in ours.items() if there.get(path) not in known}


def _diff(differences: Differences) -> str:
    """The heads of a git diff: which files, with their ids, without their lines."""
    lines = []
    for path, (before, after) in differences.items():
        lines.append(f"diff --git a/{path} b/{path}")
        lines += ["new file mode 100644"] if before is None else ["deleted file mode 100644"] if after is None else []
        lines.append(f"index {before or '0' * 40}..{after or '0' * 40}")
    return "".join(f"{line}\n" for line in lines)

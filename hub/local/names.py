"""Which names are allowed: repo names, paths in a repo, git refs, object ids.

Names on disk come only from hashes, so nothing here guards the disk; these rules keep repos exportable to git and
usable on every client's file system. They are the rules of the Hub, of git check-ref-format and of the clients.
"""

import re

from hub.local.replies import HubError

SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_PATH_BYTES, MAX_SEGMENT_BYTES, MAX_DEPTH = 1024, 255, 100
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_RESERVED = {"api", "models", "datasets", "spaces", "kernels", "buckets", "lfs-upload", "xet", "v1"}
_BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_BAD_IN_PATH = re.compile(r"[\x00-\x1f\x7f\\]")


def is_name(name: str) -> bool:
    """Whether ``name`` can be a user, an organisation or (the last part of) a repo id."""
    return bool(_NAME.fullmatch(name)) and "--" not in name and ".." not in name and not name.lower().endswith(".git")


def is_namespace(name: str) -> bool:
    """A name that no route of the Hub starts with."""
    return is_name(name) and name.lower() not in _RESERVED


def check_repo_name(name: object) -> str:
    """``name``, or 400."""
    if not isinstance(name, str) or not is_name(name):
        raise HubError(400, f"Invalid repo name {name!r}: letters, digits, '-', '_', '.', 1 to 96, no '--' or '..'")
    return name


def check_path(path: object) -> str:
    """``path`` when it can name a file of a repo, else 422."""
    problem = _path_problem(path) if isinstance(path, str) else "not a string"
    if problem:
        raise HubError(422, f"Invalid path in repo {path!r}: {problem}")
    return str(path)


def _path_problem(path: str) -> str | None:
    if not path or path.startswith("/") or path.endswith("/"):
        return "empty, or starts or ends with '/'"
    if _BAD_IN_PATH.search(path):
        return "backslash or control character"
    if len(path.encode()) > MAX_PATH_BYTES or re.match(r"[A-Za-z]:", path):
        return f"longer than {MAX_PATH_BYTES} bytes, or starts with a drive letter"
    segments = path.split("/")
    if len(segments) > MAX_DEPTH:
        return f"more than {MAX_DEPTH} levels deep"
    for segment in segments:
        if segment in ("", ".", "..") or segment.lower() == ".git":
            return f"forbidden segment {segment!r}"
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"a segment is longer than {MAX_SEGMENT_BYTES} bytes"
    return None


def check_ref_name(name: object) -> str:
    """``name`` when it can be a branch or tag (git check-ref-format, and not mistakable for a commit), else 400."""
    text = name if isinstance(name, str) else ""
    segments = text.split("/")
    good = (
        bool(text)
        and len(text.encode()) <= MAX_SEGMENT_BYTES
        and text not in ("@", "HEAD")
        and not text.startswith(("-", "refs/"))
        and not text.endswith(".")
        and not _BAD_IN_REF.search(text)
        and all(part and not part.startswith(".") and not part.endswith(".lock") for part in segments)
        and not re.fullmatch(r"[0-9a-f]{40}", text)
    )
    if not good:
        raise HubError(400, f"Invalid reference name: {name!r}")
    return text


def check_sha256(oid: object) -> str:
    """``oid`` as 64 hex digits, else 422."""
    if not isinstance(oid, str) or not SHA256.fullmatch(oid):
        raise HubError(422, "Invalid oid: 64 lower-case hex digits of a sha256 expected")
    return oid

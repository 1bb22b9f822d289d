"""Validation of names, paths and refs; .gitattributes (which files are LFS) and .gitignore.

Names on disk come only from hashes, so nothing here guards the disk; these rules keep repos exportable to git and
usable on every client's file system. They are the rules of the Hub, of git check-ref-format and of the clients.
"""

import re
from contextlib import suppress
from functools import lru_cache
from typing import Annotated

import re2
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern
from pydantic import AfterValidator, Field

from hub_server.storage.errors import HubError

LFS_ABOVE_BYTES = 10_000_000
_MAX_PATH_BYTES, _MAX_SEGMENT_BYTES, _MAX_DEPTH = 1024, 255, 100
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_RESERVED = {"api", "models", "datasets", "spaces", "kernels", "buckets", "papers", "lfs-upload", "xet", "v1"}
_SILENT = re2.Options()
_SILENT.log_errors = False
_MAX_PATTERNS, _MAX_PATTERN_CHARACTERS = 1000, 16 << 10
# What file systems take for ".git": Windows drops dots and blanks at the end and has short names and streams, HFS+
# (and git for it) ignores these characters.
_DOT_GIT = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE | re.ASCII)
_INVISIBLE = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_BAD_IN_PATH = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")
_BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_LFS_PATTERNS = """
*.7z *.arrow *.avro *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.lz4 *.mds *.mlmodel *.model *.msgpack *.npy
*.npz *.onnx *.ot *.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.* *.tar *.tflite
*.tgz *.wasm *.xz *.zip *.zst *tfevents*
"""
_DATASET_PATTERNS = """
*.pcm *.sam *.raw *.aac *.flac *.mp3 *.ogg *.wav *.bmp *.gif *.png *.tiff *.jpg *.jpeg *.webp *.mp4 *.webm
"""


def is_name(name: str) -> bool:
    """Whether ``name`` can be a user, an organisation or (the last part of) a repo id."""
    return bool(_NAME.fullmatch(name)) and "--" not in name and ".." not in name and not name.lower().endswith(".git")


def is_namespace(name: str) -> bool:
    """A name that no route of the Hub starts with."""
    return is_name(name) and name.lower() not in _RESERVED


def check_repo_name(name: str) -> str:
    """``name``, or 400."""
    if not is_name(name):
        raise HubError(400, f"Invalid repo name {name!r}: letters, digits, '-', '_', '.', 1 to 96, no '--' or '..'")
    return name


def check_path(path: str) -> str:
    """``path`` when it can name a file of a repo, else 422."""
    segments = path.split("/")
    allowed = (
        not _BAD_IN_PATH.search(path)
        and len(path.encode()) <= _MAX_PATH_BYTES
        and len(segments) <= _MAX_DEPTH
        and all(len(segment.encode()) <= _MAX_SEGMENT_BYTES for segment in segments)
        and not {"", ".", ".."} & set(segments)
        and not any(_DOT_GIT.fullmatch(_INVISIBLE.sub("", segment)) for segment in segments)
    )
    if not allowed:
        most = f"at most {_MAX_DEPTH} segments of {_MAX_SEGMENT_BYTES} bytes, {_MAX_PATH_BYTES} bytes in all"
        never = "no '.', '..', '.git' or its aliases, empty segments, control characters, backslashes, drives"
        raise HubError(422, f"Invalid path in repo {path!r}: {most}; {never}")
    return path


def check_ref_name(name: str) -> str:
    """``name`` when it can be a branch or tag (git check-ref-format, and not mistakable for a commit), else 400."""
    allowed = (
        len(name.encode()) <= _MAX_SEGMENT_BYTES
        and name not in ("@", "HEAD")
        and not name.startswith(("-", "refs/"))
        and not name.endswith(".")
        and not _BAD_IN_REF.search(name)
        and all(part and not part.startswith(".") and not part.endswith(".lock") for part in name.split("/"))
        and not re.fullmatch(r"[0-9a-f]{40}", name)
    )
    if not allowed:
        raise HubError(400, f"Invalid reference name: {name!r}")
    return name


# The same rules as types of request bodies.
RepoName = Annotated[str, AfterValidator(check_repo_name)]
RepoPath = Annotated[str, AfterValidator(check_path)]
Message = Annotated[str, Field(pattern=r"^[^\x00]*$")]  # git's messages hold all but NUL
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def default_gitattributes(kind: str) -> bytes:
    """What a new repo of this kind holds."""
    patterns = (_LFS_PATTERNS + (_DATASET_PATTERNS if kind == "dataset" else "")).split()
    return "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in patterns).encode()


def is_lfs(attributes: str, path: str, size: int) -> bool:
    """Whether ``path`` must be uploaded as a large file. Empty files never are: clients send them inline."""
    return size > 0 and (size > LFS_ABOVE_BYTES or is_ignored(_lfs_rules(attributes), path))


def is_ignored(rules: str, path: str) -> bool:
    """Whether a ``.gitignore`` leaves ``path`` out."""
    return _patterns(rules).match_file(path)


@lru_cache(maxsize=32)
def _lfs_rules(attributes: str) -> str:
    """Return a ``.gitattributes`` as a ``.gitignore`` that ignores the LFS files: the last matching line decides."""
    rules = []
    for line in attributes.splitlines():
        pattern, *settings = line.split() or [""]
        filters = [setting for setting in settings if setting.lstrip("-!").startswith("filter")]
        if filters:
            rules.append(pattern if filters[-1] == "filter=lfs" else f"!{pattern}")
    return "\n".join(rules)


@lru_cache(maxsize=32)
def _patterns(rules: str) -> GitIgnoreSpec:
    """The compiled rules, or 400. RE2 needs little memory and time linear in a path, whatever the patterns."""
    lines = [line for line in rules.splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) <= _MAX_PATTERNS and sum(map(len, lines)) <= _MAX_PATTERN_CHARACTERS:
        with suppress(re2.error):
            return GitIgnoreSpec([pattern for line in lines if (pattern := _pattern(line))], backend="re2")
    most = f"at most {_MAX_PATTERNS} patterns of {_MAX_PATTERN_CHARACTERS} characters in all"
    raise HubError(400, f"The patterns of .gitattributes or .gitignore are too many or too complicated: {most}")


def _pattern(line: str) -> GitIgnoreSpecPattern | None:
    """Return the pattern of a line; None for a line that git cannot read, which matches nothing."""
    try:
        pattern = GitIgnoreSpecPattern(line)
        if pattern.regex is not None:
            re2.compile(pattern.regex.pattern, _SILENT)
        return pattern
    except (GitIgnorePatternError, re.error, re2.error):
        return None

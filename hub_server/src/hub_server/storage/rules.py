"""Validation of names, paths and refs; .gitattributes (which files are LFS) and .gitignore.

Names on disk come only from hashes, so nothing here guards the disk; these rules keep repos
exportable to git and usable on every client's file system. They are the rules of the Hub, of git
check-ref-format and of the clients.
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

LFS_ABOVE_BYTES = 10_000_000  # a larger file is LFS, whatever its name
_MAX_PATH_BYTES = 1024
_MAX_SEGMENT_BYTES = 255  # of a file's or a folder's name; file systems take no longer ones
_MAX_DEPTH = 100  # segments of a path
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
NAME_RULES = (
    "1 to 96 letters, digits, '-', '_' and '.'; it must not start with '-' or '.', "
    "end with '-', '.' or '.git', or contain '--' or '..'"
)
_RESERVED = {  # first parts of the Hub's own addresses
    "api",
    "models",
    "datasets",
    "spaces",
    "kernels",
    "buckets",
    "papers",
    "lfs-upload",
    "xet",
    "v1",
}
_SILENT = re2.Options()  # re2 would print errors on stderr
_SILENT.log_errors = False
_MAX_PATTERNS = 1000
_MAX_PATTERN_CHARACTERS = 16 << 10  # of all patterns
# Names that file systems take for ".git": Windows drops dots and blanks at the end and has short
# names and streams; HFS+ (and git for it) ignores these characters.
_DOT_GIT = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE | re.ASCII)
_INVISIBLE = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# Control characters, line separators, and marks that change the direction of text (bidi)
_FORBIDDEN_IN_PATH = re.compile(
    r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029\u202a-\u202e\u2066-\u2069]|^[A-Za-z]:"
)
_FORBIDDEN_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_LFS_PATTERNS = """
*.7z *.arrow *.avro *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.lz4 *.mds *.mlmodel
*.model *.msgpack *.npy *.npz *.onnx *.ot *.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar
*.safetensors saved_model/**/* *.tar.* *.tar *.tflite *.tgz *.wasm *.xz *.zip *.zst *tfevents*
"""
_DATASET_PATTERNS = """
*.pcm *.sam *.raw *.aac *.flac *.mp3 *.ogg *.wav *.bmp *.gif *.png *.tiff *.jpg *.jpeg *.webp *.mp4
*.webm
"""


def is_name(name: str) -> bool:
    """Return whether ``name`` obeys ``NAME_RULES``, for owners and the last part of a repo id."""
    return (
        bool(_NAME.fullmatch(name))
        and "--" not in name
        and ".." not in name
        and not name.lower().endswith(".git")
    )


def is_namespace(name: str) -> bool:
    """Return whether ``name`` can be a user or an organisation.

    It must obey ``NAME_RULES``, and no address of the Hub itself may start with it (``_RESERVED``).
    """
    return is_name(name) and name.lower() not in _RESERVED


def check_repo_name(name: str) -> str:
    """Return ``name`` if it can be the last part of a repo id. Raises HubError 400 otherwise."""
    if not is_name(name):
        raise HubError(400, f"Invalid repo name {name!r}: use {NAME_RULES}")
    return name


def check_path(path: str) -> str:
    """Return ``path`` if it can be the path of a file in a repo. Raises HubError 422 otherwise."""
    segments = path.split("/")
    is_allowed = (
        not _FORBIDDEN_IN_PATH.search(path)
        and len(path.encode()) <= _MAX_PATH_BYTES
        and len(segments) <= _MAX_DEPTH
        and all(len(segment.encode()) <= _MAX_SEGMENT_BYTES for segment in segments)
        and not {"", ".", ".."} & set(segments)
        and not any(_DOT_GIT.fullmatch(_INVISIBLE.sub("", segment)) for segment in segments)
    )
    if not is_allowed:
        path_rules = (
            f"at most {_MAX_DEPTH} segments of at most {_MAX_SEGMENT_BYTES} bytes each, "
            f"{_MAX_PATH_BYTES} bytes in all; no '.', '..', '.git' or its aliases, empty segments, "
            "control characters, line separators, marks of text direction, backslashes, drives"
        )
        raise HubError(422, f"Invalid path in repo {path!r}: {path_rules}")
    return path


def check_ref_name(name: str) -> str:
    """Return ``name`` if it can be the name of a branch or a tag. Raises HubError 400 otherwise.

    The rules are those of git check-ref-format. Besides, a name has at most ``_MAX_SEGMENT_BYTES``,
    is neither ``HEAD`` nor a commit id, and does not start with ``-`` or ``refs/``.
    """
    is_allowed = (
        len(name.encode()) <= _MAX_SEGMENT_BYTES
        and name not in ("@", "HEAD")
        and not name.startswith(("-", "refs/"))
        and not name.endswith(".")
        and not _FORBIDDEN_IN_REF.search(name)
        and all(
            part and not part.startswith(".") and not part.endswith(".lock")
            for part in name.split("/")
        )
        and not re.fullmatch(r"[0-9a-f]{40}", name)
    )
    if not is_allowed:
        raise HubError(
            400,
            f"Invalid reference name {name!r}: use the rules of git check-ref-format, and at most "
            f"{_MAX_SEGMENT_BYTES} bytes; no HEAD, no commit id, no '-' or 'refs/' at the start",
        )
    return name


# The same rules as types of request bodies.
RepoName = Annotated[str, AfterValidator(check_repo_name)]
RepoPath = Annotated[str, AfterValidator(check_path)]
# git's messages hold every character but NUL. Answers repeat them in every list of commits.
MAX_TITLE_CHARACTERS = 500
MAX_MESSAGE_CHARACTERS = 20_000
Title = Annotated[str, Field(pattern=r"^[^\x00]*$", min_length=1, max_length=MAX_TITLE_CHARACTERS)]
Message = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=MAX_MESSAGE_CHARACTERS)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def make_gitattributes(kind: str) -> bytes:
    """Return the ``.gitattributes`` of a new repo, which names the patterns of LFS files.

    ``kind``: "model" or "dataset".
    """
    patterns = _LFS_PATTERNS.split()
    if kind == "dataset":
        patterns += _DATASET_PATTERNS.split()
    lines = [f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in patterns]
    return "".join(lines).encode()


def is_lfs(attributes: str, path: str, size: int) -> bool:
    """Return whether a file must be uploaded with LFS.

    Args:
        attributes: the content of ``.gitattributes``.
        path: the file's path in the repo.
        size: the file's bytes. Clients send an empty file inside the commit.

    Raises HubError 400 as ``is_ignored``.
    """
    if size == 0:
        return False
    return size > LFS_ABOVE_BYTES or is_ignored(_convert_lfs_rules(attributes), path)


def is_ignored(rules: str, path: str) -> bool:
    """Return whether the content ``rules`` of a ``.gitignore`` leaves ``path`` out.

    Raises HubError 400 for too many or too complicated patterns.
    """
    return _compile_patterns(rules).match_file(path)


@lru_cache(maxsize=32)
def _convert_lfs_rules(attributes: str) -> str:
    """Return a ``.gitattributes`` as a ``.gitignore`` that ignores the LFS files.

    In both kinds of file, the last matching line decides.
    """
    rules = []
    for line in attributes.splitlines():
        # A line is a pattern and attributes: filter=lfs sets the filter, -filter unsets it.
        pattern, *settings = line.split() or [""]
        filters = [setting for setting in settings if setting.lstrip("-!").startswith("filter")]
        if filters:
            is_lfs_rule = filters[-1] == "filter=lfs"
            rules.append(pattern if is_lfs_rule else f"!{pattern}")
    return "\n".join(rules)


@lru_cache(maxsize=32)
def _compile_patterns(rules: str) -> GitIgnoreSpec:
    """Return the compiled patterns of a ``.gitignore``.

    Blank lines, comments, and lines that git or RE2 cannot read are left out. RE2 matches any
    pattern in time linear in the path's length, with little memory. Raises HubError 400 for too
    many patterns or characters, and when RE2 needs too much memory for all of them.
    """
    lines = [line for line in rules.splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) <= _MAX_PATTERNS and sum(map(len, lines)) <= _MAX_PATTERN_CHARACTERS:
        compiled = [_compile_pattern(line) for line in lines]
        with suppress(re2.error):
            return GitIgnoreSpec([pattern for pattern in compiled if pattern], backend="re2")
    most = f"at most {_MAX_PATTERNS} patterns of {_MAX_PATTERN_CHARACTERS} characters in all"
    raise HubError(
        400, f"The patterns of .gitattributes or .gitignore are too many or too complicated: {most}"
    )


def _compile_pattern(line: str) -> GitIgnoreSpecPattern | None:
    """Return the compiled pattern of a line; None for a line that git or RE2 cannot read."""
    try:
        pattern = GitIgnoreSpecPattern(line)
        if pattern.regex is not None:
            re2.compile(pattern.regex.pattern, _SILENT)
        return pattern
    except (GitIgnorePatternError, re.error, re2.error):
        return None

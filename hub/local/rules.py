"""Which names are allowed, and which files of a repo are large or left out.

Names on disk come only from hashes, so nothing here guards the disk; these rules keep repos exportable to git and
usable on every client's file system. They are the rules of the Hub, of git check-ref-format and of the clients.
"""

import re
from functools import lru_cache
from typing import Annotated

from pathspec import GitIgnoreSpec
from pydantic import AfterValidator, Field

from hub.local.replies import HubError

LFS_ABOVE_BYTES = 10_000_000
_MAX_PATH_BYTES, _MAX_SEGMENT_BYTES, _MAX_DEPTH = 1024, 255, 100
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_RESERVED = {"api", "models", "datasets", "spaces", "kernels", "buckets", "papers", "lfs-upload", "xet", "v1"}
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
        and not {"", ".", "..", ".git"} & {segment.lower() for segment in segments}
    )
    if not allowed:
        rule = f"segments other than '.', '..', '.git', of 1 to {_MAX_SEGMENT_BYTES} bytes and parted by single '/'"
        most = f"at most {_MAX_DEPTH} of them, {_MAX_PATH_BYTES} bytes, no control characters, backslashes or drives"
        raise HubError(422, f"Invalid path in repo {path!r}: {rule}; {most}")
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


@lru_cache(maxsize=256)
def _lfs_rules(attributes: str) -> str:
    """A ``.gitattributes`` as a ``.gitignore`` that leaves out what goes to LFS: the last line that fits decides."""
    rules = []
    for line in attributes.splitlines():
        pattern, *settings = line.split() or [""]
        filters = [setting for setting in settings if setting.lstrip("-!").startswith("filter")]
        if filters:
            rules.append(pattern if filters[-1] == "filter=lfs" else f"!{pattern}")
    return "\n".join(rules)


@lru_cache(maxsize=256)
def _patterns(rules: str) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(rules.splitlines())

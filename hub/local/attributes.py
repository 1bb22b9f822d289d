"""Git's pattern files: which paths ``.gitattributes`` makes large files, which ``.gitignore`` leaves out."""

import re
from functools import lru_cache

LFS_ABOVE_BYTES = 10_000_000

_LFS_PATTERNS = (
    "*.7z *.arrow *.avro *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.lz4 *.mds *.mlmodel *.model *.msgpack "
    "*.npy *.npz *.onnx *.ot *.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.* "
    "*.tar *.tflite *.tgz *.wasm *.xz *.zip *.zst *tfevents*"
)
_DATASET_PATTERNS = (
    " *.pcm *.sam *.raw *.aac *.flac *.mp3 *.ogg *.wav *.bmp *.gif *.png *.tiff *.jpg *.jpeg *.webp *.mp4 *.webm"
)


def default_gitattributes(kind: str) -> bytes:
    """What a new repo of this kind holds."""
    patterns = (_LFS_PATTERNS + (_DATASET_PATTERNS if kind == "dataset" else "")).split()
    return "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in patterns).encode()


def is_lfs(attributes: str, path: str, size: int) -> bool:
    """Whether ``path`` must be uploaded as a large file. Empty files never are: clients send them inline."""
    if size == 0:
        return False
    verdict = False
    for line in attributes.splitlines():
        pattern, *settings = line.split() or [""]
        filters = [setting for setting in settings if setting.lstrip("-!").split("=")[0] == "filter"]
        if pattern and not pattern.startswith("#") and filters and _matches(pattern, path):
            verdict = filters[-1] == "filter=lfs"
    return verdict or size > LFS_ABOVE_BYTES


def is_ignored(rules: str, path: str) -> bool:
    """Whether a ``.gitignore`` leaves ``path`` out; the last rule that fits the path or a parent folder decides."""
    parents = path.split("/")[:-1]
    folders = ["/".join(parents[: depth + 1]) for depth in range(len(parents))]
    verdict = False
    for line in rules.splitlines():
        rule = line.strip()
        pattern = rule.removeprefix("!").rstrip("/")
        if not pattern or rule.startswith("#"):
            continue
        candidates = folders if rule.endswith("/") else [*folders, path]
        if any(_matches(pattern, candidate) for candidate in candidates):
            verdict = not rule.startswith("!")
    return verdict


def _matches(pattern: str, path: str) -> bool:
    """Git's rule: a pattern without a slash fits the last segment, one with a slash fits the whole path."""
    subject = path if "/" in pattern else path.rsplit("/", 1)[-1]
    return _compile(pattern.lstrip("/")).fullmatch(subject) is not None


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", pattern)
    regex = "".join(
        translated.get(piece)
        or (piece.replace("[!", "[^") if piece.startswith("[") and len(piece) > 2 else re.escape(piece))
        for piece in pieces
    )
    try:
        return re.compile(regex)
    except re.error:  # a character class that git would not understand either
        return re.compile(re.escape(pattern))

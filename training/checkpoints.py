"""Which checkpoint a killed run may go on from: the newest one that is whole.

The trainer writes a checkpoint file by file, so a kill can leave one that looks like a checkpoint and is not. A mark
with the hash of every file is written last; without it, or with other hashes, a checkpoint does not count.
"""

import json
import shutil
from pathlib import Path

from hub.shards import sha256_file, write_text

MARK = "whole.json"


def mark_whole(checkpoint: Path, fingerprint: str) -> None:
    """State that ``checkpoint``, of the run with this fingerprint, is written out."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MARK)
    hashes = {str(path.relative_to(checkpoint)): sha256_file(path) for path in files}
    write_text(checkpoint / MARK, json.dumps({"fingerprint": fingerprint, "files": hashes}, indent=2))


def is_whole(checkpoint: Path, fingerprint: str) -> bool:
    """Whether ``checkpoint`` is of this run, and every file is as it was when it was marked."""
    try:
        mark = json.loads((checkpoint / MARK).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return False
    if mark["fingerprint"] != fingerprint:
        return False
    return all(
        (checkpoint / name).is_file() and sha256_file(checkpoint / name) == sha256
        for name, sha256 in mark["files"].items()
    )


def newest_whole(directory: Path, fingerprint: str) -> Path | None:
    """The checkpoint to resume from, or None to start anew; those that cannot be used are removed.

    A checkpoint is of use only together with the best one so far, which it names and which is loaded at the end.
    """
    found = sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]), reverse=True)
    whole = [checkpoint for checkpoint in found if is_whole(checkpoint, fingerprint)]
    usable = [checkpoint for checkpoint in whole if (best := _best(checkpoint)) is None or best in whole]
    for checkpoint in found:
        if checkpoint not in usable:
            shutil.rmtree(checkpoint)
    return usable[0] if usable else None


def _best(checkpoint: Path) -> Path | None:
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    named = state["best_model_checkpoint"]
    return Path(named) if named else None

"""Files that come with the project: in a clone its folder ``assets``, in an installation the data of the package."""

import sysconfig
from pathlib import Path

_CLONE = Path(__file__).resolve().parents[2] / "assets"
_INSTALLED = Path(sysconfig.get_path("data")) / "share" / "sts-dino"


def asset(name: str) -> Path:
    """Where a file or folder of the project is, e.g. ``demo-lm`` or ``examples/sts.tsv``."""
    return (_CLONE if _CLONE.is_dir() else _INSTALLED) / name

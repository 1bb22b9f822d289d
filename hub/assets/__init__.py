"""Files that come with the project: in a clone its own folders, in an installation the data of the package."""

import sysconfig
from pathlib import Path

_CLONE = Path(__file__).resolve().parents[2]
_INSTALLED = Path(sysconfig.get_path("data")) / "share" / "sts-dino"
BRING = (  # in place of the built-in LM
    "get one, e.g. sts-dino lm gemma-3-270m, and begin again (sts-dino new or adapt without --lm builtin), "
    "or name a model that writes such texts: --lm FOLDER --lm-license ID, --lm NAME@URL of a server"
)


def asset(name: str) -> Path:
    """Where a file or folder of ``assets`` is, e.g. ``demo-lm`` or ``examples/sts.tsv``."""
    return (_CLONE / "assets" if _is_clone() else _INSTALLED) / name


def student_recipe(name: str) -> Path:
    """Where a recipe of the encoders that ``sts-dino value`` trains is, e.g. ``value-student.yaml``."""
    return (_CLONE / "recipes/value" if _is_clone() else _INSTALLED / "value") / name


def shipped(path: str) -> str:
    """``path``, which a shipped recipe names from the clone's root: in an installation without it here, where it is."""
    folder, _, name = path.partition("/")
    return path if folder != "assets" or Path(path).exists() else str(asset(name))


def dataset_scripts() -> Path:
    """Folder of the generic loading script."""
    return (_CLONE if _is_clone() else _INSTALLED) / "dataset_scripts"


def _is_clone() -> bool:
    return (_CLONE / "assets").is_dir()

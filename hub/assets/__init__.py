"""Files of the project that are not Python: in a clone its folders, else an installation's data."""

import sysconfig
from pathlib import Path

_CLONE_FOLDER = Path(__file__).resolve().parents[2]
_INSTALLED_FOLDER = Path(sysconfig.get_path("data")) / "share" / "sts-dino"
# The hint of an error over the built-in language model, which writes a few kinds of text alone
HINT_ANOTHER_LANGUAGE_MODEL = (
    "get one, e.g. sts-dino lm gemma-3-270m, "
    "and begin again (sts-dino new or adapt without --lm builtin), "
    "or name a model that writes such texts: "
    "--lm FOLDER --lm-license ID, --lm NAME@URL of a server"
)


def find_asset(name: str) -> Path:
    """Return the path of a file or folder of ``assets``, e.g. ``demo-lm``; it may be absent."""
    return _find_folder("assets", ".") / name


def find_student_recipe(name: str) -> Path:
    """Return the path of a recipe of ``recipes/value``, e.g. ``value-student.yaml``.

    ``sts-dino value`` trains these recipes.
    """
    return _find_folder("recipes/value", "value") / name


def resolve_shipped_path(path: str) -> str:
    """Return the local path of a file that a shipped recipe names as ``assets/NAME``.

    It may be absent. A ``path`` that exists, relative to the working directory, is returned
    unchanged, and so is one that does not begin with ``assets/``.
    """
    folder, _, name = path.partition("/")
    if folder != "assets" or Path(path).exists():
        return path
    return str(find_asset(name))


def find_dataset_scripts() -> Path:
    """Return the folder of the generic loading script."""
    return _find_folder("dataset_scripts", "dataset_scripts")


def _find_folder(folder_of_clone: str, folder_of_installation: str) -> Path:
    """Return the clone's folder when this module is in a clone, else the installation's folder.

    ``folder_of_clone``: its path below the top of the clone. ``folder_of_installation``: its path
    below the installation's data.
    """
    if (_CLONE_FOLDER / "assets").is_dir():
        return _CLONE_FOLDER / folder_of_clone
    return _INSTALLED_FOLDER / folder_of_installation

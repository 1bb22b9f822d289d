"""``python -m sts_dino`` and the script ``sts-dino``: check the installation, run the command."""

import os
import sys
from pathlib import Path

PACKAGES = ("hub", "generation", "training", "eval", "model_cards", "release")
REINSTALL = "run pip uninstall sts-dino, then install it again (README.md)"


def main() -> None:
    """Run ``sts-dino``.

    Exit with code 2 and one line if parts of the package come from elsewhere.
    """
    # Refuse an installation that is mixed from several copies.
    problem = find_install_problem()
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)

    # Threads that wait for each other sleep. Beside other processes, spinning threads would take
    # several times the CPU seconds. OpenMP reads this variable when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    # Other imports take a while, which Ctrl-C would interrupt with a traceback.
    from sts_dino.hub.process import end_at_once, remove_unusable_values, set_signal_handlers

    set_signal_handlers(end_at_once, end_at_once)

    # Warn about the environment before anything reads it.
    old_install = find_old_install()
    if old_install:
        print(f"warning: {old_install}", file=sys.stderr)
    for warning in remove_unusable_values():
        print(f"warning: {warning}", file=sys.stderr)

    from sts_dino.cli import run_command

    run_command()


def find_install_problem() -> str | None:
    """Return one line about a subpackage that is missing or of another copy; None without one."""
    from importlib.util import find_spec

    package = Path(__file__).resolve().parent
    for name in PACKAGES:
        spec = find_spec(f"sts_dino.{name}")
        if spec is None or spec.origin is None:
            return f"{package}: has no package sts_dino.{name}; {REINSTALL}"
        folder = Path(spec.origin).resolve().parent
        own_folders = [(package / name).resolve(), (package.parent / name).resolve()]
        if folder not in own_folders:
            return f"{folder}: is of another copy of sts-dino than {package}; {REINSTALL}"
    return None


def find_old_install() -> str | None:
    """Return one line about an old editable install of sts-dino; None without one.

    An old install puts ``generation`` on Python's path, not ``sts_dino.generation``.
    """
    from importlib.util import find_spec

    spec = find_spec("generation")
    if spec is None or spec.origin is None:
        return None
    checkout = Path(spec.origin).resolve().parents[1]
    is_ours = (checkout / "sts_dino" / "__main__.py").is_file()
    is_this_one = checkout == Path(__file__).resolve().parents[1]
    if not is_ours or is_this_one:
        return None
    return f"{checkout}: an old editable install of sts-dino is in this environment; {REINSTALL}"


if __name__ == "__main__":
    main()

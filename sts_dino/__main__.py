"""``python -m sts_dino`` and the console script ``sts-dino``: see whose packages Python finds, then run the command."""

import os
import sys

PACKAGES = ("hub", "generation", "training", "eval", "model_cards", "release")


def main() -> None:
    """Run ``sts-dino``. Exit code 2, with one line, when another project's package stands before one of ours."""
    try:
        from hub.process import end_at_once, heed  # first: other imports take a while, which Ctrl-C would interrupt

        heed(end_at_once, end_at_once)
    except ImportError:  # from another project's package; the next line says so
        pass
    from pathlib import Path

    problem = foreign_package(Path(__file__).parents[1])
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    from hub.environment import set_aside

    set_aside()
    from sts_dino.cli import run_command

    run_command()


def foreign_package(home: os.PathLike[str]) -> str | None:
    """What to say when Python finds another package under a name of ours than the one in the folder ``home``."""
    from importlib.util import find_spec
    from pathlib import Path

    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None:
            return f"{name}: a package of sts-dino that is not installed; install sts-dino again"
        if spec.origin is None or Path(spec.origin).resolve().parent != Path(home, name).resolve():
            found = spec.origin or ", ".join(spec.submodule_search_locations or [])
            advice = "uninstall or rename it, or install sts-dino in an environment of its own"
            return f"{found}: Python finds this under the name {name}, which sts-dino needs; {advice}"
    return None


if __name__ == "__main__":
    main()

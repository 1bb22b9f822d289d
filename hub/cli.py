"""What every command line of the project shares: error handling, exit codes, quiet libraries.

Results go to stdout, talk and progress to stderr. Exit codes: 0 done, 1 failed run, 2 bad input, 130 interrupted.
"""

import errno
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from hub.errors import StsDinoError

INTERRUPTED = 130  # exit code
_INTERRUPTED_WORDS = "interrupted; run the same command again to go on"
_NO_SPACE = "no space left on the disk; free some and run the same command again"
_NO_ENTRY = "cannot be written or read here; choose another folder, or change its permissions"
_DISK = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _NO_SPACE) | dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST), _NO_ENTRY
)
RecipeArgument = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe file, e.g. recipes/demo/....yaml")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Run directory [default: artifacts/KIND/NAME]")]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first N inputs")]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY.KEY=VALUE", help="Override a recipe key; repeatable")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, write nothing")]


def new_app(help_text: str) -> typer.Typer:
    """A typer app with the project's settings: no shell completion noise, no pretty tracebacks (they show locals)."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def command_line(module: str, recipe: Path, limit: int | None, settings: list[str]) -> str:
    """The command that makes an artefact, quoted for a shell: all that decides its bytes, no path of this machine."""
    options = ["--limit", str(limit)] if limit is not None else []
    for setting in settings:
        options += ["--set", setting]
    path = recipe.name if recipe.is_absolute() else recipe.as_posix()
    return shlex.join(["python", "-m", module, path, *options])


def say(message: str) -> None:
    """Talk to the person at the terminal (stderr), never mixed into results (stdout)."""
    print(message, file=sys.stderr, flush=True)


def run(app: Callable[[], object]) -> None:
    """Call a typer app; turn known failures into one line on stderr and an exit code."""
    try:
        app()
    except StsDinoError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say(_INTERRUPTED_WORDS)
        sys.exit(INTERRUPTED)
    except SystemExit as end:  # typer turns Ctrl-C into an exit without a word
        if end.code == INTERRUPTED:
            say(_INTERRUPTED_WORDS)
        raise
    except OSError as error:
        if error.errno not in _DISK:
            raise
        say(f"error: {error.filename or Path.cwd()}: {_DISK[error.errno]}")
        sys.exit(1)

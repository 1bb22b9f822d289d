"""What every command line of the project shares: options, results, error handling, exit codes.

Results go to stdout, talk and progress to stderr. Exit codes: 0 done, 1 failed run, 2 bad input, 130 interrupted,
143 ended by SIGTERM.
"""

import errno
import io
import json
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from importlib.metadata import version
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from hub.errors import InputError, RunError, StsDinoError, did_you_mean, without_passwords
from hub.process import INTERRUPTED, LAST_WORDS, TERMINATED, end_at_once, heed
from hub.untrusted import first_line, printable

LONGEST = 10_000  # characters of an error: it may list untrusted names
DEBUG = "STS_DINO_DEBUG"  # set by --debug, and inherited by the commands that a command starts
UNEXPECTED = "--debug shows where"
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory", "can't allocate memory")  # a loader's words, torch's
_NO_SPACE = "no space left on the disk; free some and run the same command again"
_NO_ENTRY = "cannot be written or read here; choose another folder, or change its permissions"
_UsageError: Any = typer.BadParameter.__base__  # click's, which typer brings under another name in each version
_AGAIN = "run the same command again when that has passed"
_TOO_LARGE = "would be larger than files may be here (ulimit -f); raise that limit and run the same command again"
_DISK = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _NO_SPACE),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST), _NO_ENTRY),
    errno.EFBIG: _TOO_LARGE,
}
RecipeArgument = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe file, e.g. recipes/demo/....yaml")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Run directory [default: artifacts/KIND/NAME]")]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first N inputs")]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY.KEY=VALUE", help="Override a recipe key; @FILE: files for Hub repositories; repeatable"
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, write nothing")]
JsonOption = Annotated[bool, typer.Option("--json", help="The machine's form on stdout, in place of a table")]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", metavar="SECONDS", min=0, help="For how long a Hub may fail before this gives up"),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Work on a Ray cluster: HOST:PORT, or auto for the one this machine belongs to",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Workers on this machine: threads, or one per GPU; with --ray: at most N"),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Where workers leave shards: a shared path or fsspec URL"),
]
CpusOption = Annotated[float | None, typer.Option("--cpus-per-worker", min=0.01, help="CPUs of a worker")]
GpusOption = Annotated[
    float | None, typer.Option("--gpus-per-worker", min=0.01, help="GPUs of a worker; 0.5: two on one")
]


def _show_usage_error(error: Any, file: object = None) -> None:
    """Print a command line's error in one line, in place of typer's several; the exit code stays 2."""
    name = error.ctx.command_path if error.ctx else " ".join(["sts-dino", *sys.argv[1:2]])
    problem, _, _ = error.format_message().rstrip(".").partition(" (Possible options")
    problem = problem[:1].lower() + re.sub(r"\.? Did you mean", "; did you mean", problem[1:])
    words = [part for word in sys.argv[1:] for part in word.split("=", 1)]
    options = getattr(getattr(error, "param", None), "opts", ())
    problem += "".join(f" (found {after!r})" for word, after in pairwise(words) if word in options)
    hint = did_you_mean(getattr(error, "option_name", ""), getattr(error, "possibilities", None) or ())
    _say_error(InputError(name, problem, hint="; ".join(filter(None, (hint, f"see {name} --help")))))


_UsageError.show = _show_usage_error


def new_app(help_text: str) -> typer.Typer:
    """A typer app with the project's settings: no shell completion noise, no pretty tracebacks (they show locals)."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator for a typer command whose parameters are dataclasses: typer sees each of their fields as an option."""
    given = signature(command).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in given if is_dataclass(each.annotation)}
    parameters = list[Parameter]()
    for each in given:
        parameters += map(_parameter, fields(groups[each.name])) if each.name in groups else [each]

    @wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{item.name: given.pop(item.name) for item in fields(group) if item.name in given})
        command(**given)

    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(item: "Field[Any]") -> Parameter:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    return Parameter(item.name, Parameter.KEYWORD_ONLY, default=default, annotation=item.type)


listeners: list[Callable[[str], object]] = []  # receive messages instead of stderr: a worker elsewhere has no terminal


def say(message: str) -> None:
    """Print a message on stderr, apart from results on stdout; it cannot drive a terminal or show a URL's password."""
    message = without_passwords(printable(message))
    for hear in listeners:
        hear(message)
    if not listeners:
        from tqdm import tqdm

        tqdm.write(message, file=sys.stderr)  # above a progress bar, if there is one


def answer(text: str, facts: object, as_json: bool, then: Iterable[str] = ()) -> None:
    """Print a command's result on stdout, and on stderr the commands that a person may want next.

    text: for people, plain or Markdown; facts: the same and more for machines, printed as one line of ASCII JSON, for
    a terminal must not heed what a model wrote.
    """
    if as_json:
        from pydantic_core import to_jsonable_python

        print(json.dumps(facts, default=to_jsonable_python))
    else:
        print(text)
    for command in then:
        say(f"next: {command}")


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows of one length, header first, as lines of columns; those numbered in ``right`` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    place = [str.rjust if number in right else str.ljust for number in range(len(widths))]
    cells = ([put(cell, width) for put, cell, width in zip(place, row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in cells)


def run(app: Callable[[], object], ends_on_sigterm: bool = False) -> None:
    """Call a typer app, or print the version; turn every failure into one line on stderr and an exit code.

    ``ends_on_sigterm``: as on Ctrl-C, everything that is held is let go. Without it the process ends at once.
    """
    os.environ.setdefault("RUST_BACKTRACE", "0")  # tokenizers prints one where it gives up
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what a terminal cannot show is no reason to stop
    try:
        heed(_end, _end) if ends_on_sigterm else heed(signal.default_int_handler, end_at_once)
        with warnings.catch_warnings():
            # in one line: where in the code it was raised is nothing to act upon
            warnings.showwarning = lambda message, *_: say(f"warning: {' '.join(str(message).split())}")
            if sys.argv[1:] == ["--version"]:
                print(f"sts-dino {version('sts-dino')}")
            else:
                app()
    except KeyboardInterrupt:
        say(LAST_WORDS[INTERRUPTED])
        sys.exit(INTERRUPTED)
    except SystemExit as end:  # typer turns Ctrl-C into an exit without a word
        if end.code in LAST_WORDS:
            say(LAST_WORDS[end.code])
        raise
    except BaseException as error:  # noqa: BLE001 - tokenizers raises PanicException, which is no Exception
        if os.environ.get(DEBUG):
            say(traceback.format_exc())
        known = _in_words(error)
        _say_error(known)
        sys.exit(known.exit_code)


def _in_words(error: BaseException) -> StsDinoError:
    """The project's error for one that no stage expected: of the system, of an installation, of anything else."""
    if isinstance(error, StsDinoError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return RunError(_of_system(error))
    command, problem = " ".join(["sts-dino", *sys.argv[1:2]]), first_line(error)
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return RunError(command, f"memory ran out ({problem})", hint="free some, or raise its limit (ulimit -v)")
    if isinstance(error, ImportError):
        return RunError(command, problem, hint="install what it names; README.md has the parts")
    kind = type(error).__name__
    if kind == "PanicException":
        hint = "take a model whose tokenizer.json has simpler regular expressions"
        return InputError(command, f"a tokenizer gives up on a text: {problem}", hint=hint)
    return RunError(command, problem if problem == kind else f"{kind}: {problem}", hint=UNEXPECTED)


def _say_error(error: StsDinoError) -> None:
    text = str(error)
    say(f"error: {text[:LONGEST]}" + (f" … and {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else ""))


def _of_system(error: OSError) -> str:
    """What the system refused: of a file or a disk with its place, of anything else (a socket, too many open files)."""
    if error.filename is None and error.errno == errno.ENOENT:  # of os.getcwd
        return "the working directory: was removed; go to another one"
    if error.filename is None and error.errno not in _DISK:
        return f"{error.strerror}; {_AGAIN}"
    return f"{error.filename or Path.cwd()}: {_DISK.get(error.errno or 0) or f'{error.strerror}; {_NO_ENTRY}'}"


def _end(number: int, _: object) -> None:
    """Begin to end. A SIGTERM from now on would cut that short, and a parent sends one after its terminal's Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(TERMINATED)

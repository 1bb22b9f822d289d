"""Parts that all commands share: options, results, error handling, exit codes.

Results go to stdout, messages and progress to stderr. Exit codes: 0 done, 1 failed run, 2 bad
input, 130 interrupted, 143 ended by SIGTERM.
"""

import errno
import io
import json
import logging
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import redirect_stdout
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from importlib.metadata import version
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from sts_dino.hub.errors import (
    DISK_PROBLEMS,
    InputError,
    RunError,
    StsDinoError,
    suggest_choice,
)
from sts_dino.hub.messages import LIBRARY_LOGGER, MessageFormatter, route_messages
from sts_dino.hub.process import (
    EXIT_INTERRUPTED,
    EXIT_MESSAGES,
    EXIT_TERMINATED,
    end_at_once,
    set_signal_handlers,
)
from sts_dino.hub.untrusted import SCRIPT_CHARACTERS, get_first_line, strip_controls

logger = logging.getLogger(__name__)

MOST_ERROR_CHARACTERS = 10_000  # an error may list untrusted names
HINT_DEBUG = "--debug shows where"
# --debug sets this environment variable, so commands that a command starts inherit the option.
DEBUG_VARIABLE = "STS_DINO_DEBUG"
# Parts of messages about memory, from an operating system's loader and from torch
_MEMORY_MESSAGES = ("failed to map segment", "Cannot allocate memory", "can't allocate memory")
# Of ``DISK_PROBLEMS``, those of the working directory's disk when the error names no file
_WORKING_FOLDER_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
# click's base class of usage errors; typer imports click under a name that differs by version.
_UsageError: Any = typer.BadParameter.__base__
RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="The recipe file, e.g. recipes/demo/....yaml")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Run directory [default: artifacts/KIND/NAME]")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="Use only the first N inputs")
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY.KEY=VALUE",
        help="Override a recipe key; @FILE: files for Hub repositories; repeatable",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, print the plan, write nothing")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]


@dataclass(frozen=True)
class FileOptions:
    """Options that say how a user's own files are read."""

    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Columns of your file: of the texts, and for --pairs then of the score",
        ),
    ] = None
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Encoding of files that are not UTF-8, e.g. cp1252 [default: recognised]",
        ),
    ] = None


PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="SECONDS",
        min=0,
        help="For how long a Hub may fail before this gives up",
    ),
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
    typer.Option(
        "--workers",
        min=1,
        help="Workers on this machine: threads, or one per GPU; with --ray: at most N",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Where workers leave shards: a shared path or fsspec URL"
    ),
]
CpusOption = Annotated[
    float | None, typer.Option("--cpus-per-worker", min=0.01, help="CPUs of a worker")
]
GpusOption = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", min=0.01, help="GPUs of a worker; 0.5: two on one"),
]


def _log_usage_error(error: Any, file: object = None) -> None:
    """Log a usage error in one line, where typer prints several. typer exits with 2 afterwards.

    Args:
        error: a click UsageError.
        file: ignored; click's ``show`` has this parameter.
    """
    # Turn click's sentence into a clause.
    command = error.ctx.command_path if error.ctx else _name_command()
    problem = error.format_message().rstrip(".").partition(" (Possible options")[0]
    problem = problem[:1].lower() + re.sub(r"\.? Did you mean", "; did you mean", problem[1:])

    # Add the value of the bad option, which click's message lacks.
    parameter = getattr(error, "param", None)
    value = _find_value(getattr(parameter, "opts", ()))
    if value is not None:
        problem += f" (found {value!r})"

    hint = f"see {command} --help"
    possibilities = getattr(error, "possibilities", None) or ()
    suggestion = suggest_choice(getattr(error, "option_name", ""), possibilities)
    if suggestion:
        hint = f"{suggestion}; {hint}"
    _log_error(InputError(command, problem, hint=hint))


# click calls ``show`` for every usage error of a command.
_UsageError.show = _log_usage_error


def _find_value(names: Collection[str]) -> str | None:
    """Return the value of an option in ``sys.argv``; None without the option or its value.

    ``names``: the option's names, e.g. ``--limit``. Of a repeated option, the last value counts.
    """
    value = None
    for argument, following in pairwise([*sys.argv[1:], None]):
        name, separator, joined = str(argument).partition("=")
        if name in names:
            value = joined if separator else following
    return value


def _name_command() -> str:
    """Return the command of this process with its subcommand, e.g. ``sts-dino train``."""
    return " ".join(["sts-dino", *sys.argv[1:2]])


def make_app(help_text: str) -> typer.Typer:
    """Return a typer app with plain help texts, without shell completion and typer's tracebacks."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def unpack_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a typer command that takes dataclasses of options.

    typer gets one option for each field. The decorated command builds the dataclasses from the
    options' values and calls ``command`` with keyword arguments alone. It raises TypeError for an
    unknown option, for a dataclass as argument, and when a required option is missing.
    """
    # Replace each dataclass by a parameter for each of its fields.
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += [_make_parameter(field) for field in fields(parameter.annotation)]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    # Make the dataclasses from the values of the options.
    @wraps(command)
    def call_command(**values: Any) -> None:
        # Without this check a dataclass as argument would be replaced by one of default values.
        signature(call_command).bind(**values)
        for name, group in groups.items():
            options = {}
            for field in fields(group):
                # typer passes every option; a call from Python may leave some out.
                if field.name in values:
                    options[field.name] = values.pop(field.name)
            values[name] = group(**options)
        command(**values)

    call_command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call_command.__annotations__ = {item.name: item.annotation for item in parameters}
    return call_command


def _make_parameter(field: "Field[Any]") -> Parameter:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


class TerminalHandler(logging.Handler):
    """Logging handler of the command line: prints on stderr, above a running progress bar.

    ``warnings``: the printed lines of warnings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(MessageFormatter())
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, and keep the line of a warning in ``warnings``."""
        line = self.format(record)
        if record.levelno == logging.WARNING:
            self.warnings.append(line)
        tqdm.write(line, file=sys.stderr)


def list_printed_warnings() -> list[str]:
    """Return the lines of the warnings that this command has printed."""
    lines: list[str] = []
    for handler in logging.getLogger(LIBRARY_LOGGER).handlers:
        if isinstance(handler, TerminalHandler):
            lines += handler.warnings
    return lines


class CleanOutput:
    """Output stream that drops escape sequences, control characters and bidi marks.

    All commands print through this object, so no name of a file, a repository or a column can
    change a terminal or reorder a line. Joiners, which emoji and some scripts need, stay. Bytes
    that are written to ``buffer`` are not cleaned, nor are the lines of ``writelines``.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the cleaned ``text``; return the length of ``text``."""
        self._stream.write(strip_controls(text, kept=SCRIPT_CHARACTERS))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the wrapped stream."""
        return getattr(self._stream, name)


def print_answer(text: str, facts: object, as_json: bool, then: Iterable[str] = ()) -> None:
    """Print a command's result on stdout, and proposed next commands on stderr.

    Args:
        text: the result for people, plain or Markdown.
        facts: the result for programs, printed as one line of ASCII JSON. JSON's escapes keep a
            terminal from obeying control characters that a model wrote.
        as_json: whether to print ``facts`` in place of ``text``.
        then: the next commands; each is logged as ``next: COMMAND``.
    """
    if as_json:
        from pydantic_core import to_jsonable_python

        print(json.dumps(facts, default=to_jsonable_python))
    else:
        print(text)
    for command in then:
        logger.info(f"next: {command}")


def run_app(app: Callable[[], object], ends_on_sigterm: bool = False) -> None:
    """Call a typer app; log each failure as one line and exit with the project's exit code.

    ``sts-dino --version`` prints the version and calls nothing.

    Args:
        app: the typer app, called without arguments; the app reads ``sys.argv``.
        ends_on_sigterm: whether SIGTERM ends the command as Ctrl-C does, with ``finally`` blocks
            and context managers run. Otherwise SIGTERM ends the process at once.

    Raises:
        SystemExit: the command failed, was interrupted, or exited by itself.
    """
    _prepare_process(ends_on_sigterm)
    clean_output: Any = CleanOutput(sys.stdout)
    try:
        with warnings.catch_warnings(), redirect_stdout(clean_output):
            # Python's own format has two lines, with the file and the line of the code.
            warnings.showwarning = lambda message, *_: logger.warning(
                " ".join(str(message).split())
            )
            if sys.argv[1:] == ["--version"]:
                print(f"sts-dino {version('sts-dino')}")
            else:
                app()
    except KeyboardInterrupt:
        logger.info(EXIT_MESSAGES[EXIT_INTERRUPTED])
        sys.exit(EXIT_INTERRUPTED)
    except SystemExit as end:  # typer turns Ctrl-C into an exit without a message
        if end.code in EXIT_MESSAGES:
            logger.info(EXIT_MESSAGES[end.code])
        raise
    # BaseException: PanicException of tokenizers derives from BaseException alone.
    except BaseException as error:  # noqa: BLE001
        if os.environ.get(DEBUG_VARIABLE):
            logger.info(traceback.format_exc())
        reported = _convert_error(error)
        _log_error(reported)
        sys.exit(reported.exit_code)


def _prepare_process(ends_on_sigterm: bool) -> None:
    """Set up the process of a command: logging, stdout, signal handlers, Rust's backtraces."""
    route_messages(TerminalHandler())
    os.environ.setdefault("RUST_BACKTRACE", "0")  # tokenizers prints a backtrace when it panics
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal may lack characters of the output.
        sys.stdout.reconfigure(errors="replace")
    if ends_on_sigterm:
        set_signal_handlers(_handle_signal, _handle_signal)
    else:
        set_signal_handlers(signal.default_int_handler, end_at_once)


def _handle_signal(number: int, _: object) -> None:
    """Raise KeyboardInterrupt on SIGINT, SystemExit on SIGTERM, and ignore SIGTERM from now on.

    A terminal's Ctrl-C reaches parent and child; the parent's SIGTERM, which follows, must not
    interrupt the child's cleanup.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(EXIT_TERMINATED)


def _convert_error(error: BaseException) -> StsDinoError:
    """Return an error of the project unchanged; for any other exception make one with a remedy."""
    if isinstance(error, StsDinoError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return RunError(_describe_system_error(error))
    command = _name_command()
    problem = get_first_line(error)
    if isinstance(error, MemoryError) or any(text in str(error) for text in _MEMORY_MESSAGES):
        return RunError(
            command, f"memory ran out ({problem})", hint="free some, or raise its limit (ulimit -v)"
        )
    if isinstance(error, ImportError):
        return RunError(command, problem, hint="install what it names; README.md has the parts")
    # tokenizers panics over a regular expression that takes too long.
    kind = type(error).__name__
    if kind == "PanicException":
        return InputError(
            command,
            f"a tokenizer gives up on a text: {problem}",
            hint="take a model whose tokenizer.json has simpler regular expressions",
        )
    if problem != kind:
        problem = f"{kind}: {problem}"
    return RunError(command, problem, hint=HINT_DEBUG)


def _describe_system_error(error: OSError) -> str:
    """Return an error message for an operating system's error with a number (``errno``).

    The message begins with the error's file. Without a file, an error of a full or read-only disk
    names the working directory and the folder of temporary files; an error of a socket or a process
    names none.
    """
    again = f"{error.strerror}; run the same command again when that has passed"
    problem = DISK_PROBLEMS.get(error.errno or 0, again)
    if error.filename is not None:
        return f"{error.filename}: {problem}"
    # Without a file, os.getcwd raised it.
    if error.errno == errno.ENOENT:
        return "the working directory: was removed; go to another one"
    if error.errno in _WORKING_FOLDER_ERRORS:
        return f"{Path.cwd()} or {tempfile.gettempdir()}: {problem}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return problem
    return again  # a socket, a process


def _log_error(error: StsDinoError) -> None:
    """Log an error's message; more than ``MOST_ERROR_CHARACTERS`` are cut, and counted."""
    text = str(error)
    surplus = len(text) - MOST_ERROR_CHARACTERS
    if surplus > 0:
        text = f"{text[:MOST_ERROR_CHARACTERS]} … and {surplus:,} more characters"
    logger.error(text)

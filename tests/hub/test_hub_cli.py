"""sts_dino.hub.cli: the command that a card prints, the one line of an error, and its way back from
a worker process.
"""

import io
import multiprocessing
import shlex
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import typer
from pyarrow import ArrowInvalid

from sts_dino.cli import run_command
from sts_dino.hub import cli
from sts_dino.hub.cli import make_app, print_answer, run_app, unpack_option_groups
from sts_dino.hub.contract.published_paths import format_command
from sts_dino.hub.errors import InputError, RunError


@pytest.mark.parametrize(
    ("recipe", "limit", "settings", "line"),
    [
        ("recipes/a.yaml", None, [], "sts-dino write recipes/a.yaml"),
        ("/home/me/a.yaml", 20, [], "sts-dino write a.yaml --limit 20"),
        (
            "a b.yaml",
            None,
            ["seed=1", "x=$(y)"],
            "sts-dino write 'a b.yaml' --set seed=1 --set 'x=$(y)'",
        ),
    ],
)
def test_the_command_is_whole_and_safe_to_paste(recipe, limit, settings, line):
    assert format_command("write", Path(recipe), limit, settings) == line
    setting = "source={kind: file, path: it's.tsv}\n; rm x"
    assert shlex.split(format_command("write", Path(recipe), limit, [setting]))[-2:] == [
        "--set",
        setting,
    ]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to go on\n"),
        (OSError(28, "full", "/d/f"), 1, "error: /d/f: no space left on the disk; free some"),
        (
            OSError(27, "large", "/d/f"),
            1,
            "error: /d/f: would be larger than files may be here (ulimit -f)",
        ),
        (
            ConnectionRefusedError(111, "Connection refused"),
            1,
            "error: Connection refused; run the same command again",
        ),
        (
            FileNotFoundError(2, "No such file"),
            1,
            "error: the working directory: was removed; go to another one\n",
        ),
        (
            OSError("no number"),
            1,
            "error: sts-dino write: OSError: no number; --debug shows where\n",
        ),
        (
            ImportError("No module named 'x'"),
            1,
            "error: sts-dino write: No module named 'x'; install what it names",
        ),
        (
            ImportError("x.so: failed to map segment"),
            1,
            "error: sts-dino write: memory ran out (x.so: failed",
        ),
        (MemoryError(), 1, "error: sts-dino write: memory ran out (MemoryError); free some"),
        (
            RecursionError("too deep"),
            1,
            "error: sts-dino write: RecursionError: too deep; --debug shows where\n",
        ),
        (
            ArrowInvalid("bad\nfile"),
            1,
            "error: sts-dino write: ArrowInvalid: bad; --debug shows where\n",
        ),
        (
            httpx2.InvalidURL("at http://me:pw@h/x"),
            1,
            "error: sts-dino write: InvalidURL: at http://h/x; --debug",
        ),
        (
            type("PanicException", (BaseException,), {})("regex"),
            2,
            "error: sts-dino write: a tokenizer gives up on a text: regex",
        ),
        (
            NotADirectoryError(20, "no", "/d/f"),
            1,
            "error: /d/f: a file stands where a folder has to be; remove it",
        ),
        (PermissionError(13, "no", "/d/f"), 1, "error: /d/f: cannot be written or read here; "),
        (FileExistsError(17, "x", "/d/f"), 1, "error: /d/f: exists already; remove it"),
        (FileNotFoundError(2, "x", "/d/f"), 1, "error: /d/f: no such file or folder; make"),
        (IsADirectoryError(21, "x", "/d/f"), 1, "error: /d/f: is a folder; a file is needed"),
        (OSError(36, "x", "/d/f"), 1, "error: /d/f: is too long a name for this disk"),
        (OSError(24, "x", "/d/f"), 1, "error: /d/f: too many open files; raise their limit"),
        (OSError(24, "x"), 1, "error: too many open files; raise their limit (ulimit -n)"),
        (OSError(30, "x", "/d/f"), 1, "error: /d/f: lies on a disk that is read-only"),
        (OSError(5, "x", "/d/f"), 1, "error: /d/f: the disk reports an error; check the disk"),
        (OSError(40, "x", "/d/f"), 1, "error: /d/f: is a symbolic link in a circle"),
        (OSError(122, "x", "/d/f"), 1, "error: /d/f: the disk quota is used up"),
        (PermissionError(1, "Operation not permitted"), 1, "error: Operation not permitted; run"),
        (OSError(28, "full"), 1, f"error: {Path.cwd()} or "),
    ],
)
def test_every_failure_ends_a_command_in_one_line(error, code, said, capsys, monkeypatch):
    app = make_app("a command")

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["sts-dino", "write"])
    with pytest.raises(SystemExit) as end:
        run_app(lambda: app([]))
    lines = capsys.readouterr().err
    assert end.value.code == code and lines.startswith(said) and lines.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--debug", "write", "no.yaml"], ["write", "no.yaml", "--debug"]]
)
def test_debug_shows_the_traceback_wherever_it_stands(words, capsys, monkeypatch):
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "")
    monkeypatch.setattr("sys.argv", ["sts-dino", *words])
    with pytest.raises(SystemExit, match="2"):
        run_command()
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback ") and printed.splitlines()[-1].startswith(
        "error: no.yaml: "
    )


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_what_a_terminal_cannot_show_is_replaced(encoding, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding, write_through=True))
    monkeypatch.setattr("sys.argv", ["sts-dino", "write"])
    run_app(lambda: print("a 日 b"))
    assert shown.getvalue().startswith(b"a ? b")


ODD_NAME = (
    "a\x1b[2J\x1b]0;owned\x07b\x9b31m\u202etxt.\u2066exe\u2069\x00\u200bc 👨\u200d👩 नि\u200dक"
)


@pytest.mark.parametrize("show", [print, typer.echo, lambda text: print_answer(text, {}, False)])
def test_no_name_changes_a_terminal_or_the_order_of_a_line(show, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["sts-dino", "write"])
    stdout = sys.stdout
    run_app(lambda: show(ODD_NAME))
    assert capsys.readouterr().out == "abtxt.exec 👨\u200d👩 नि\u200dक\n"
    assert sys.stdout is stdout


HELD = """
import os, signal, time
from sts_dino.hub.cli import run_app
def work():
    try:
        os.kill(os.getpid(), signal.NUMBER)
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)  # a parent's, while what was held is let go
        print("let go")
run_app(work, ends_on_sigterm=True)
"""


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_lets_go_of_what_is_held_once(number, code):
    words = [sys.executable, "-c", HELD.replace("NUMBER", number)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (code, "let go\n")
    assert (
        done.stderr.endswith("; run the same command again to go on\n")
        and done.stderr.count("\n") == 1
    )


ALONE = """
import os, signal, time
from sts_dino.hub.cli import run_app
def work():
    begun, begin = os.pipe()
    if child := os.fork():
        os.read(begun, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
    os.write(begin, b"x")
    time.sleep(60)
run_app(work)
"""


def test_sigterm_ends_a_command_that_holds_nothing_and_its_forked_workers_are_silent():
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        143,
        "ended by SIGTERM; run the same command again to go on\n",
    )


def test_the_answer_is_a_table_or_one_line_of_ascii_json(capsys):
    cli.print_answer(
        "a  b", {"path": Path("x"), "text": "\u202e\x1b[2J"}, as_json=True, then=["python -m next"]
    )
    printed = capsys.readouterr()
    assert (
        printed.out == '{"path": "x", "text": "\\u202e\\u001b[2J"}\n'
        and printed.err == "next: python -m next\n"
    )
    cli.print_answer("a  b", {}, as_json=False)
    assert capsys.readouterr().out == "a  b\n"


def fail(kind: type[Exception]) -> None:
    raise kind("x1.tsv:3", "has 2 columns", allowed="3", hint="mend the line")


def test_an_error_of_a_worker_process_arrives_as_it_was_raised():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for kind, code in ((InputError, 2), (RunError, 1)):
            error = pool.submit(fail, kind).exception()
            assert type(error) is kind and error.exit_code == code and error.place == "x1.tsv:3"
            assert str(error) == "x1.tsv:3: has 2 columns; allowed: 3; mend the line"


@dataclass
class Group:
    first: int = 1
    second: int = 2


def test_a_call_from_python_passes_options_and_no_dataclass():
    calls = []

    @unpack_option_groups
    def command(name: str, group: Group) -> None:
        calls.append((name, group))

    command(name="a", second=5)
    assert calls == [("a", Group(1, 5))]
    for wrong in ({"name": "a", "group": Group(3, 4)}, {"first": 3}, {"name": "a", "third": 3}):
        with pytest.raises(TypeError, match=r"unexpected|missing"):
            command(**wrong)
    assert len(calls) == 1

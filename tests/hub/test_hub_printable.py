"""What a stranger wrote reaches a terminal or a log as text and as nothing else."""

import logging
import random
import unicodedata
import warnings

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

from hub import cli
from hub.client import connection as client
from hub.client.connection import in_words
from hub.client.plan import Changes, Plan
from hub.client.retry import reason
from hub.untrusted import LONGEST, first_line, one_line, printable

NASTY = "no\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil\x1b\\ \x9b31m\u202etxt.exe\u2066\x00\x7f\u200b\rspace\nleft\ud800"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain 100 % é 你好 👍", "plain 100 % é 你好 👍"),
        ("a\x1b[1;31mred\x1b[0m", "ared"),
        ("\x1b]52;c;c2VjcmV0\x07copied", "copied"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x1bPq#0\x1b\\text", "text"),
        ("\x1b(0lqk\x1bc", "lqk"),
        ("unfinished \x1b[", "unfinished "),
        ("10\b\b99\r", "1099"),
        ("abc\u202edef\u2069", "abcdef"),
    ],
)
def test_sequences_and_marks_go_and_text_stays(text, left):
    assert printable(text) == left


ALPHABETS = ("\x1b\x9b\x9d[]();0123mJPX^_\x07\\ab\n", "".join(map(chr, range(0x2100))))


def test_nothing_that_drives_a_terminal_is_left():
    random_ = random.Random(0)
    for number in range(1000):
        text = "".join(random_.choices(ALPHABETS[number % 2], k=random_.randrange(400)))
        left = printable(text)
        assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in left), text
        assert len(one_line(text)) <= LONGEST and "\n" not in one_line(text)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("\n no such file \nTraceback", "no such file"),
        ("", "ValueError"),
        (" \n", "ValueError"),
        ("\x1b[0m", "ValueError"),
        (f"{NASTY}\nmore", "no txt.exe"),
        ("x" * 999, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_the_first_line_of_an_error_is_clean_and_never_empty(message, line):
    assert first_line(ValueError(message)) == line


def refused(words: str) -> HfHubHTTPError:
    response = httpx2.Response(422, request=httpx2.Request("POST", "http://127.0.0.1/api"))
    return HfHubHTTPError("refused", response=response, server_message=words)


def test_the_words_of_a_hub_are_one_clean_line(capsys):
    error = in_words("publish acme/pairs", refused(NASTY + "x" * 10_000))
    assert "the Hub answered 422: no txt.exe space left" in str(error) and len(str(error)) < 2 * LONGEST
    assert reason(refused(NASTY)) == "the Hub answered 422 (no txt.exe space left)"
    cli.say(f"warning: {NASTY}")
    heard = capsys.readouterr().err
    assert heard.startswith("warning: no txt.exe") and all(c == "\n" or c.isprintable() for c in heard)


def test_a_plan_and_the_clients_log_are_clean_too(capsys):
    plan = Plan(
        "acme/pairs", "dataset", None, Changes(deleted=(NASTY,)), None, edits={NASTY: "not ours"}, diff=(NASTY,)
    )
    assert all(c == "\n" or c.isprintable() for c in str(plan)) and str(plan).count("txt.exe") == 3
    record = logging.LogRecord("huggingface_hub", logging.WARNING, "", 0, "%s at http://h/a?s=1", (NASTY,), None)
    assert client.fit_to_print(record) and "\x1b" not in record.getMessage() and "s=1" not in record.getMessage()


def test_a_warning_of_a_library_is_clean(capsys):
    cli.run(lambda: warnings.warn(f"the Hub warns: {NASTY}", stacklevel=1))
    said = capsys.readouterr().err
    assert "the Hub warns: no txt.exe" in said and all(c == "\n" or c.isprintable() for c in said)


def test_an_endless_error_is_cut(capsys):
    def fail() -> None:
        raise cli.StsDinoError("acme/pairs", "x" * 1_000_000)

    with pytest.raises(SystemExit):
        cli.run(fail)
    assert len(capsys.readouterr().err) < 2 * cli.LONGEST

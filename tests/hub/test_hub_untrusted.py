"""Untrusted text reaches a terminal, a log or a page as text and as nothing else; untrusted YAML is
read within limits.

A Markdown renderer makes no link, image, HTML, heading, list or extra cell of it.
"""

import logging
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import httpx2
import pytest
import yaml
from huggingface_hub.errors import HfHubHTTPError
from local_hub import ask, commit_body, file_line
from markdown_it import MarkdownIt
from markdown_it.token import Token
from planted_models import MODULE, write_code

from sts_dino.hub import cli
from sts_dino.hub.client import connection as client
from sts_dino.hub.client.connection import convert_error
from sts_dino.hub.client.plan import Changes, Plan
from sts_dino.hub.untrusted import (
    HIDDEN_CATEGORIES,
    LONGEST,
    Markdown,
    UnsafeYaml,
    escape_inline,
    escape_sample,
    finalize,
    format_code,
    format_fenced,
    format_table,
    get_first_line,
    join_lines,
    load_yaml,
    make_visible,
    make_visible_line,
    strip_controls,
)

NASTY = (
    "no\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil\x1b\\ \x9b31m\u202etxt.exe\u2066"
    "\x00\x7f\u200b\rspace\nleft\ud800"
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain 100 % é 你好 👍", "plain 100 % é 你好 👍"),
        ("a\x1b[1;31mred\x1b[0m", "ared"),
        ("\x1b]52;c;c2VjcmV0\x07copied", "copied"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x9d0;title\x9ctext\x1bPq#0\x1b\\", "text"),
        ("\x1b(0lqk\x1bc", "lqk"),
        ("unfinished \x1b[", "unfinished "),
        ("10\b\b99\r", "1099"),
        ("abc\u202edef\u2069", "abcdef"),
    ],
)
def test_sequences_and_marks_go_and_text_stays(text, left):
    assert strip_controls(text) == left


ALPHABETS = ("\x1b\x9b\x9d[]();0123mJPX^_\x07\\ab\n", "".join(map(chr, range(0x2100))))


def test_nothing_that_drives_a_terminal_is_left():
    random_ = random.Random(0)
    for number in range(1000):
        text = "".join(random_.choices(ALPHABETS[number % 2], k=random_.randrange(400)))
        left = strip_controls(text)
        assert all(
            c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in left
        ), text
        assert len(join_lines(text)) <= LONGEST and "\n" not in join_lines(text)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("\n no such file \nTraceback", "no such file"),
        ("", "ValueError"),
        (" \n\x1b[0m", "ValueError"),
        (f"{NASTY}\nmore", "no txt.exe"),
        ("x" * 999, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_the_first_line_of_an_error_is_clean_and_never_empty(message, line):
    assert get_first_line(ValueError(message)) == line


def refused(words: str) -> HfHubHTTPError:
    response = httpx2.Response(422, request=httpx2.Request("POST", "http://127.0.0.1/api"))
    return HfHubHTTPError("refused", response=response, server_message=words)


def test_the_words_of_a_hub_are_one_clean_line(capsys):
    error = convert_error("publish acme/pairs", refused(NASTY + "x" * 10_000))
    assert (
        "the Hub answered 422: no txt.exe space left" in str(error)
        and len(str(error)) < 2 * LONGEST
    )
    # Given to the handler alone: pytest keeps what a logger gets, and xdist sends no half surrogate.
    record = logging.makeLogRecord(
        {"msg": NASTY, "levelno": logging.WARNING, "levelname": "WARNING"}
    )
    cli.TerminalHandler().emit(record)
    heard = capsys.readouterr().err
    assert heard.startswith("warning: no txt.exe") and all(
        c == "\n" or c.isprintable() for c in heard
    )


def test_a_plan_and_the_clients_log_are_clean_too(capsys):
    plan = Plan(
        "acme/pairs", "dataset", None, Changes(deleted=(NASTY,)), None, edits={NASTY: "not ours"}
    )
    assert all(c == "\n" or c.isprintable() for c in str(plan)) and str(plan).count("txt.exe") == 2
    record = logging.LogRecord(
        "huggingface_hub", logging.WARNING, "", 0, "%s at http://h/a?s=1", (NASTY,), None
    )
    assert (
        client.clean_log_record(record)
        and "\x1b" not in record.getMessage()
        and "s=1" not in record.getMessage()
    )


LIMITS = {"max_bytes": 1 << 20, "max_depth": 50, "max_nodes": 50_000}
LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 9)}], y{i}: 1}}\n" for i in range(12)
)
LADDER = "a0: &a0 [x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} {'[' * 40}*a{i}{']' * 40}\n" for i in range(100)
)
BOMBS = {
    "flow lists": ("[" * 30_000, "levels"),
    "complex keys": ("? " * 30_000, "levels"),
    "indented mappings": ("".join(" " * i + "a:\n" for i in range(200)), "levels"),
    "aliases that deepen": (LADDER, "levels"),
    "aliases": (LAUGHS, "keys and values"),
    "merges": (MERGES, "keys and values"),
    "empty merges": ("a: {" + "<<: {}, " * 2_000 + "}", "merges"),
    "long text, named often": (f"a: &a {'x' * 9_999}\nb: [{'*a, ' * 200}]", "characters"),
    "itself": ("a: &a [*a]", "stands for nothing before it"),
    "itself, by a name used before": ("a: &a 1\nb: &a [*a]", "stands for nothing before it"),
    "its own merge": ("a: &a {<<: *a}", "stands for nothing before it"),
    "nothing": ("a: *b", "stands for nothing before it"),
    "number": ("a: " + "1" * 5_000, "number"),
    "no such day": ("a: 2024-13-45", "not a value of its type"),
    "no truth value": ("a: !!bool x", "not a value of its type"),
    "no digit": ('a: !!int "-"', "not a value of its type"),
    "a text as mapping": ("a: !!map x", "not a mapping"),
    "a list as set": ("a: !!set [1]", "not a mapping"),
    "size": ("a: " + "x" * (1 << 20), "bytes"),
    "half a character": ("a: \ud800", "surrogate"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_its_cause(name: str) -> None:
    text, cause = BOMBS[name]
    with pytest.raises(UnsafeYaml, match=cause):
        load_yaml(text, **LIMITS)


def test_ordinary_yaml_is_what_a_safe_loader_reads() -> None:
    text = """
license: apache-2.0
size: 1_000
when: 2024-01-31
score: 2.5e+3
none: ~
tags: &tags [a, b]
base: &base {x: 1, y: no}
more: {<<: *base, y: yes, tags: *tags}
text: |
  two
  lines
"""
    assert load_yaml(text, **LIMITS) == yaml.safe_load(text)
    assert load_yaml("", **LIMITS) is None
    keys = load_yaml("{1: a, 1.10: b, no: c, ~: d}", **LIMITS)
    assert keys == {"1": "a", "1.10": "b", "no": "c", "~": "d"}, "keys are text"
    assert load_yaml("a: &a {1: x, 2: y}\nb: {<<: [*a], 2: z}", **LIMITS)["b"] == {
        "1": "x",
        "2": "z",
    }
    with pytest.raises(yaml.YAMLError):
        load_yaml("a: [", **LIMITS)


def test_limits_hold_for_what_is_within_them() -> None:
    """Exactly at a limit is read; one more is not."""
    at = {"max_bytes": 8, "max_depth": 2, "max_nodes": 4}
    assert load_yaml("[[a, b]]", **at) == [["a", "b"]]
    for less in ("max_bytes", "max_depth", "max_nodes"):
        with pytest.raises(UnsafeYaml):
            load_yaml("[[a, b]]", **{**at, less: at[less] - 1})


pytest_plugins = ["local_hub"]
DEEP = "x: " + "[" * 2000 + "]" * 2000
LOADS = """
import sys
from sts_dino.hub.cli import run_app

def load():
    from sts_dino.training.data.training_sets import open_hub_splits
    from sts_dino.eval.audit.source import find_dataset
    from sts_dino.generation.inputs.sources import _read_split_rows
    from sts_dino.hub.contract.recipe import Source
    from sts_dino.hub.errors import InputError
    for place in sys.argv[1:]:
        repo, revision = place.split("@")
        source = Source(
            kind="hub", repo_id=repo, revision=revision, columns=("text",),
            description="x", license="mit",
        )
        for call in (
            lambda: open_hub_splits(repo, revision, None, False, "x"),
            lambda: find_dataset(place),
            lambda: list(_read_split_rows(source, "train")),
        ):
            try:
                call()
            except InputError as error:
                print(error)

run_app(load)
"""


def test_every_reader_of_a_hub_dataset_refuses_a_bomb_and_runs_no_script(
    local_hub, hub_api, repo, tmp_path
):
    body = commit_body(
        file_line("README.md", f"---\n{DEEP}\n---\n# x\n"),
        file_line("train.jsonl", '{"text": "a"}\n'),
    )
    answer = ask(
        local_hub, "POST", f"/api/datasets/{repo}/commit/main", body, token=local_hub.token
    )
    folder, marker, scripted = tmp_path / "published", tmp_path / "ran", f"{repo}-script"
    folder.mkdir()
    write_code(folder, marker)
    (folder / f"{MODULE}.py").rename(folder / f"{scripted.split('/')[1]}.py")
    hub_api.create_repo(scripted, repo_type="dataset")
    commit = hub_api.upload_folder(repo_id=scripted, repo_type="dataset", folder_path=folder).oid
    command = [
        sys.executable,
        "-c",
        LOADS,
        f"{repo}@{answer.json()['commitOid']}",
        f"{scripted}@{commit}",
    ]
    environment = local_hub.client_environment(tmp_path) | {
        "PYTHONPATH": str(Path(__file__).parents[2])
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (
        len(lines) == 6 and not marker.exists() and all("script" in line for line in lines[3:])
    ), lines
    assert all(
        f"dataset {repo}: README.md: its metadata has more than" in line for line in lines[:3]
    )


PARSERS = {
    "commonmark and tables": MarkdownIt("commonmark").enable(["table", "strikethrough"]),
    "everything on": MarkdownIt("default", {"html": True, "linkify": False, "typographer": False}),
}
HOSTILE = [
    *yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text()),
    "x" * 500,
    "&" * 300,
]
ALPHABET = [
    *"ab1.-+*_#>|`<>[]()!\\/:@&;=~$^\"' \n\t\r{}%\u202eé",
    "www.",
    "://",
    "&#",
    "x.yz",
    "\n\n",
    "    ",
]
RANDOM = random.Random(20)
FUZZ = ["".join(RANDOM.choices(ALPHABET, k=RANDOM.randint(1, 24))) for _ in range(600)]

# What GitHub's and the Hub's renderers look for in text once entities are resolved.
ADDRESSES = re.compile(r"(?i)https?://|ftp://|(?<!\w)www\.|@\w|\w\.[a-z]{2}|(?<!\w)//\w")


def shown(tokens: list[Token]) -> str:
    """The text that a reader sees of an inline token's children."""
    return "".join(child.content for child in tokens)


def plain(text: str) -> str:
    return text.replace("\u200b", "")


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_a_sample_stays_inside_its_table_cell(parser: MarkdownIt) -> None:
    for text in HOSTILE + FUZZ:
        tokens = parser.parse(
            format_table(["left", "right"], [[escape_sample(text), Markdown("mark")]])
        )
        cells = [
            tokens[i + 1] for i, token in enumerate(tokens) if token.type in ("td_open", "th_open")
        ]
        assert [token.type for token in tokens].count("tr_open") == 2, text
        assert [cell.content for cell in cells[:2]] == ["left", "right"], text
        assert len(cells) == 4, text
        assert cells[3].content == "mark", text
        check_only_text(cells[2], text)
        if len(make_visible_line(text)) <= 200:
            assert plain(shown(cells[2].children or [])) == plain(make_visible_line(text)), text


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize("escape", [escape_inline, escape_sample])
def test_text_at_the_start_of_a_line_is_a_paragraph(parser: MarkdownIt, escape: type) -> None:
    for text in HOSTILE + FUZZ:
        for before in ("", "paragraph\n", "- item\n\n  "):
            tokens = parser.parse(f"{before}{escape(text)}\n")
            allowed = {"paragraph_open", "paragraph_close", "inline"}
            if before.startswith("-"):
                allowed |= {
                    "bullet_list_open",
                    "bullet_list_close",
                    "list_item_open",
                    "list_item_close",
                }
            assert {token.type for token in tokens} <= allowed, (before, text)
            assert [token.type for token in tokens].count("bullet_list_open") == before.count(
                "- "
            ), (before, text)
            for token in tokens:
                if token.type == "inline":
                    check_only_text(token, text)


def check_only_text(token: Token, text: str) -> None:
    assert {child.type for child in token.children or []} <= {"text", "softbreak"}, text
    content = shown(token.children or [])
    assert not any(
        unicodedata.category(char) in HIDDEN_CATEGORIES and char not in "\u200b\u200c\u200d"
        for char in content
    ), text


def test_nothing_in_a_sample_is_an_address() -> None:
    parser = PARSERS["commonmark and tables"]
    for text in HOSTILE + FUZZ:
        source = escape_sample(text)
        read = shown(parser.parseInline(source)[0].children or [])
        assert not ADDRESSES.search(read), (text, read)
        assert not ADDRESSES.search(re.sub(r"&#\d+;", "\u200b", source)), (text, source)


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_code_is_one_code_span_in_a_table(parser: MarkdownIt) -> None:
    for text in HOSTILE + FUZZ:
        tokens = parser.parse(format_table(["a", "b"], [[format_code(text), "x"]]))
        cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "td_open"]
        assert len(cells) == 2, text
        assert cells[1].content == "x", text
        children = cells[0].children or []
        if children[0].type == "html_inline":
            assert [children[0].content, children[-1].content] == ["<code>", "</code>"], text
            children = children[1:-1]
        assert {child.type for child in children} <= {"text", "code_inline"}, text
        assert shown(children) == make_visible_line(text), text


def test_a_fence_is_longer_than_what_it_holds() -> None:
    parser = PARSERS["commonmark and tables"]
    for text in [*HOSTILE, "```\nx\n````\ny", "``````", *FUZZ]:
        tokens = parser.parse(f"before\n\n{format_fenced(text)}\n\nafter\n")
        types = [token.type for token in tokens]
        assert types == ["paragraph_open", "inline", "paragraph_close", "fence", *types[:3]], text
        normal = make_visible(text.replace("\r\n", "\n").replace("\r", "\n"))
        assert tokens[3].content == (normal + "\n" if normal else "\n"), text


def test_text_is_shortened_and_escaped_and_numbers_are_formatted() -> None:
    assert escape_sample("<" * 500) == "&#60;" * 199 + "…" and escape_sample(
        "word " * 100
    ).endswith("word…")
    assert (
        make_visible_line("a\u202eb\x1bc\ud800") == "a\ufffdb\ufffdc\ufffd"
        and make_visible("a\n\tb\u200d \u06dd\u0663") == "a\n\tb\u200d \u06dd\u0663"
    )
    assert finalize("<b>") == "&#60;b&#62;"
    assert finalize(Markdown("<b>")) == "<b>"
    numbers = (1234567, 0.01, 100.0, 0.8999999761581421)
    assert [finalize(value) for value in numbers] == ["1,234,567", "0.01", "100", "0.9"]
    for value in (None, True):
        with pytest.raises(TypeError, match="cannot print"):
            finalize(value)

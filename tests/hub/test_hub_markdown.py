"""Untrusted text must come out of a Markdown renderer as text: no link, image, HTML, heading, list or extra cell."""

import random
import re
import unicodedata

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from hub.untrusted import HIDDEN, Markdown, code, fenced, finalize, inline, sample, table, visible, visible_line

PARSERS = {
    "commonmark and tables": MarkdownIt("commonmark").enable(["table", "strikethrough"]),
    "everything on": MarkdownIt("default", {"html": True, "linkify": False, "typographer": False}),
}
HOSTILE = [
    "a | b || c",
    r"a \| b \\| c \\\| d",
    "| a |\n| --- |\n| b |",
    "`code` ``more`` ```",
    "`unclosed | cell",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- hidden | -->",
    "&lt;b&gt; &amp; &#60;i&#62; &#x3c;",
    "[link](https://example.com)",
    "[ref][1]\n\n[1]: https://example.com",
    "![image](https://example.com/a.png)",
    "<https://example.com> <a@b.example>",
    "https://example.com/a?b=c#d http://x ftp://y.z",
    "www.example.com WWW.EXAMPLE.COM www.1x.com www._x.com",
    "write to some.one+tag@example.com or mailto:a@b.example",
    "example.com and a.b.example.org/path",
    "//example.com/x javascript:alert(1)",
    "# heading",
    "####### not one",
    "- item",
    "* item",
    "+ item",
    "1. item",
    "1234567890) item",
    "> quote",
    "---",
    "===",
    "***",
    "a\n===",
    "a\n---\nb",
    "    indented",
    "\tindented",
    "~~~\nfence\n~~~",
    "```\nfence\n```",
    "*em* **strong** _em_ __strong__ ~~gone~~",
    "snake_case_name 2*3*4",
    "[^1] [ ] [x] - [ ] task",
    "$x$ $$y$$ \\(z\\)",
    ":smile: @user #123 ^up^ ==mark==",
    "a\rb\r\nc\x0bd\x0ce\x85f\u2028g\u2029h",
    "\x00\x01\x1b[31mred\x7f",
    "abc\u202egnp.exe\u202c \u2066x\u2069 \u200f\u200e\u061c",
    "zero\u200bwidth\ufeff soft\u00adhyphen tag\U000e0041",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467 stays",
    "{{ 7 * 7 }} {% raw %} {# x #} ${x} <%= y %>",
    "trailing backslash \\",
    "trailing space  ",
    "",
    "   ",
    "x" * 500,
    "|" * 300,
    "&" * 300,
]
ALPHABET = [
    *list("ab1.-+*_#>|`<>[]()!\\/:@&;=~$^\"' \n\t\r{}%"),
    "www.",
    "://",
    "&#",
    "x.yz",
    "\u202e",
    "é",
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
        tokens = parser.parse(table(["left", "right"], [[sample(text), Markdown("mark")]]))
        cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type in ("td_open", "th_open")]
        assert [token.type for token in tokens].count("tr_open") == 2, text
        assert [cell.content for cell in cells[:2]] == ["left", "right"], text
        assert len(cells) == 4, text
        assert cells[3].content == "mark", text
        check_only_text(cells[2], text)
        if len(visible_line(text)) <= 200:
            assert plain(shown(cells[2].children or [])) == plain(visible_line(text)), text


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize("escape", [inline, sample])
def test_text_at_the_start_of_a_line_is_a_paragraph(parser: MarkdownIt, escape: type) -> None:
    for text in HOSTILE + FUZZ:
        for before in ("", "paragraph\n", "- item\n\n  "):
            tokens = parser.parse(f"{before}{escape(text)}\n")
            allowed = {"paragraph_open", "paragraph_close", "inline"}
            if before.startswith("-"):
                allowed |= {"bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"}
            assert {token.type for token in tokens} <= allowed, (before, text)
            assert [token.type for token in tokens].count("bullet_list_open") == before.count("- "), (before, text)
            for token in tokens:
                if token.type == "inline":
                    check_only_text(token, text)


def check_only_text(token: Token, text: str) -> None:
    assert {child.type for child in token.children or []} <= {"text", "softbreak"}, text
    content = shown(token.children or [])
    assert not any(unicodedata.category(char) in HIDDEN and char not in "\u200b\u200c\u200d" for char in content), text


def test_nothing_in_a_sample_is_an_address() -> None:
    parser = PARSERS["commonmark and tables"]
    for text in HOSTILE + FUZZ:
        source = sample(text)
        read = shown(parser.parseInline(source)[0].children or [])
        assert not ADDRESSES.search(read), (text, read)
        assert not ADDRESSES.search(re.sub(r"&#\d+;", "\u200b", source)), (text, source)


def test_a_long_sample_is_cut_before_it_is_escaped() -> None:
    cut = sample("<" * 500)
    assert cut == "&#60;" * 199 + "…"
    assert sample("word " * 100).endswith("word…")
    assert len(sample("x" * 200)) == 200


def test_hidden_characters_are_shown() -> None:
    assert visible_line("a\u202eb\x1bc\ud800") == "a\ufffdb\ufffdc\ufffd"
    assert visible("a\n\tb\u200d") == "a\n\tb\u200d"


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_code_is_one_code_span_in_a_table(parser: MarkdownIt) -> None:
    for text in HOSTILE + FUZZ:
        tokens = parser.parse(table(["a", "b"], [[code(text), "x"]]))
        cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "td_open"]
        assert len(cells) == 2, text
        assert cells[1].content == "x", text
        children = cells[0].children or []
        if children[0].type == "html_inline":
            assert [children[0].content, children[-1].content] == ["<code>", "</code>"], text
            children = children[1:-1]
        assert {child.type for child in children} <= {"text", "code_inline"}, text
        assert shown(children) == visible_line(text), text


def test_a_fence_is_longer_than_what_it_holds() -> None:
    parser = PARSERS["commonmark and tables"]
    for text in [*HOSTILE, "```\nx\n````\ny", "``````", *FUZZ]:
        tokens = parser.parse(f"before\n\n{fenced(text)}\n\nafter\n")
        types = [token.type for token in tokens]
        assert types == ["paragraph_open", "inline", "paragraph_close", "fence", *types[:3]], text
        normal = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
        assert tokens[3].content == (normal + "\n" if normal else "\n"), text


def test_finalize_escapes_text_and_formats_numbers() -> None:
    assert finalize("<b>") == "&#60;b&#62;"
    assert finalize(Markdown("<b>")) == "<b>"
    assert [finalize(value) for value in (1234567, 0.01, 100.0, 0.8999999761581421)] == [
        "1,234,567",
        "0.01",
        "100",
        "0.9",
    ]
    for value in (None, True):
        with pytest.raises(TypeError, match="cannot print"):
            finalize(value)

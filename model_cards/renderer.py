"""The renderer of cards and reports: templates to Markdown, and Markdown to the HTML of a report.

Undefined variables raise. Templates print escaped text, except values of class ``Markdown``; so a
page's structure comes from its template alone, whatever the texts of a dataset say.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from sts_dino.hub import scores
from sts_dino.hub.contract.licences import Licence
from sts_dino.hub.contract.published_paths import name_origin
from sts_dino.hub.untrusted import (
    Markdown,
    escape_inline,
    escape_prose,
    format_code,
    format_fenced,
    make_template_environment,
)

DATA = Path(__file__).with_name("data")
TEMPLATES = Path(__file__).with_name("templates")
# the < of a tag that no card of this project has
FOREIGN_TAG = re.compile(r"""<(?!/?(?:code|details|summary|section)>|section lang="[a-z]+">)""")
# tokens of markdown-it whose elements hold text of any script
TEXT_TOKENS = {"td_open", "th_open", "paragraph_open", "list_item_open"}


def fill_template(template: str, context: Mapping[str, Any]) -> str:
    """Fill the file ``template`` of ``templates/`` with the variables of ``context``.

    The result ends with one newline. Raises jinja2.UndefinedError for a missing variable, TypeError
    for a printed None or truth value.
    """
    page = _make_environment(TEMPLATES).get_template(template)
    return page.render(context).strip() + "\n"


def link_licence(licence: Licence) -> Markdown:
    """Format a licence as its name with a link to its text.

    The ``link`` of a licence that the card itself explains is a section (#...). It gets no link.
    """
    name = escape_inline(licence.name)
    if licence.link.startswith("#"):
        return name
    return Markdown(f"[{name}]({licence.link})")


def convert_to_html(markdown: str) -> str:
    """Convert the Markdown of a page to HTML.

    HTML tags in the Markdown, except ``code``, ``details``, ``summary`` and ``section``, appear as
    text, so none of them loads anything. The images and links of Markdown's own syntax stay.
    """
    from markdown_it import MarkdownIt

    def escape_tag(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        """Render HTML in the Markdown, with every foreign tag as text (a rule of markdown-it)."""
        return FOREIGN_TAG.sub("&lt;", tokens[index].content)

    # a parser that keeps only the cards' own tags
    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("html_inline", escape_tag)
    parser.add_render_rule("html_block", escape_tag)

    # the browser finds each text's direction by its script (dir=auto); no link sends a referrer
    tokens = parser.parse(markdown)
    for token in tokens:
        if token.type in TEXT_TOKENS:
            token.attrSet("dir", "auto")
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("rel", "noreferrer")
    return parser.renderer.render(tokens, parser.options, {})


@cache
def _make_environment(folder: Path) -> Environment:
    """Make the template environment of a folder, with the filters of cards.

    It is cached with its compiled templates, because each commit of a growing dataset has a card.
    """
    environment = make_template_environment(FileSystemLoader(folder))
    environment.filters |= {
        "fenced": format_fenced,
        "licence": link_licence,
        "prose": escape_prose,
        "listed": lambda names: Markdown(", ".join(map(format_code, names))),
        # the name of a section's repository or path; ``otherwise`` without both
        "origin": lambda item, otherwise="": name_origin(item.repo_id, item.path) or otherwise,
        "percent": lambda share: Markdown(f"{100 * share:.1f} %"),
        "score": lambda value: Markdown(scores.format_number(value)),
    }
    return environment

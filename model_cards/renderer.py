"""The renderer of cards and reports: templates to Markdown, and Markdown to the HTML of a report.

Undefined variables raise. Templates print escaped text, except values of class ``Markdown``; so a page's structure
comes from its template alone, whatever the texts of a dataset say.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from hub import scores
from hub.contract.licences import Licence
from hub.contract.published_paths import origin_name
from hub.untrusted import Markdown, code, fenced, inline, prose, template_environment

HERE = Path(__file__).parent
DATA = HERE / "data"
FOREIGN = re.compile(r"""<(?!/?(?:code|details|summary|section)>|section lang="[a-z]+">)""")
CELLS = {"td_open", "th_open", "paragraph_open", "list_item_open"}


def fill(template: str, context: Mapping[str, Any]) -> str:
    """A template of ``templates/`` filled with ``context``; the result ends with one newline."""
    return _environment(HERE / "templates").get_template(template).render(context).strip() + "\n"


def licence_link(licence: Licence) -> Markdown:
    """The licence's name, linked unless the card itself explains it."""
    name = inline(licence.name)
    return name if licence.link.startswith("#") else Markdown(f"[{name}]({licence.link})")


def html(markdown: str) -> str:
    """Markdown as HTML that loads nothing; its own tags but ``code``, ``details`` and ``section`` appear as text."""
    from markdown_it import MarkdownIt

    def tag(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        return FOREIGN.sub("&lt;", tokens[index].content)

    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("html_inline", tag)
    parser.add_render_rule("html_block", tag)
    tokens = parser.parse(markdown)
    for token in tokens:
        if token.type in CELLS:
            token.attrSet("dir", "auto")
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("rel", "noreferrer")
    return parser.renderer.render(tokens, parser.options, {})


@cache
def _environment(folder: Path) -> Environment:
    """Cached with its compiled templates: a growing dataset gets a card with every commit."""
    environment = template_environment(FileSystemLoader(folder))
    environment.filters |= {
        "fenced": fenced,
        "licence": licence_link,
        "prose": prose,
        "listed": lambda names: Markdown(", ".join(map(code, names))),
        "origin": lambda place, otherwise="": origin_name(place.repo_id, place.path) or otherwise,  # of a section
        "percent": lambda share: Markdown(f"{100 * share:.1f} %"),
        "score": lambda value: Markdown(scores.number(value)),
    }
    return environment

"""The template environment: undefined variables raise, and what a template prints is escaped unless it is Markdown."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hub.untrusted import Markdown, code, fenced, finalize, prose, table

HERE = Path(__file__).parents[1]


def fill(template: str, context: dict[str, Any]) -> str:
    """A template of ``templates/`` filled with ``context``; the result ends with one newline."""
    return _environment(HERE / "templates").get_template(template).render(context).strip() + "\n"


@cache
def _environment(folder: Path) -> Environment:
    """Kept with its compiled templates: a growing dataset gets a card with every commit."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        finalize=_printed,
        autoescape=False,  # noqa: S701 - the output is Markdown: ``finalize`` escapes, HTML escaping would not do
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(table=table)
    environment.filters.update(code=code, fenced=fenced, markdown=Markdown, prose=prose)
    return environment


def _printed(value: Any) -> str:
    return str(value) if isinstance(value, StrictUndefined) else finalize(value)  # str() of an undefined raises

"""Templates of the reports (Markdown, for ``hub.untrusted``'s rules of escaping) and of the annotation page (HTML)."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hub.untrusted import Markdown, code, finalize, table


@cache
def _environment(is_html: bool) -> Environment:
    found = Environment(
        loader=PackageLoader("eval.audit"),
        undefined=StrictUndefined,
        finalize=None if is_html else finalize,
        autoescape=is_html,  # noqa: S701 - ``finalize`` escapes Markdown
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals.update(table=table, zip=zip)
    found.filters |= {"code": code, "markdown": Markdown}
    return found


def fill(template: str, **context: Any) -> str:
    """A template of ``templates/``, filled; text in ``context`` is escaped. The result ends with one newline."""
    return _environment("html" in template).get_template(template).render(context).strip() + "\n"

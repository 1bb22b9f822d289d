"""Reports from the Markdown templates of ``templates/``; text in them is escaped (``hub.untrusted``)."""

from functools import cache
from typing import TYPE_CHECKING, Any

from hub.untrusted import template_environment

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> "Environment":
    from jinja2 import PackageLoader

    return template_environment(PackageLoader("eval.audit"))


def fill(template: str, **context: Any) -> str:
    """A template of ``templates/``, filled; the result ends with one newline."""
    return _environment().get_template(template).render(context).strip() + "\n"

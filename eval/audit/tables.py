"""Names and tables in the Markdown of reports: names are a stranger's, cells are finished."""

from collections.abc import Iterable, Sequence

from hub import markdown

NAME_LIMIT = 72


def code(name: str) -> str:
    """A name as a code span that no name can leave, on one line and of bounded length."""
    shown = markdown.visible_line(name)
    return markdown.code(shown if len(shown) <= NAME_LIMIT else shown[: NAME_LIMIT - 1] + "…")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of finished cells, the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

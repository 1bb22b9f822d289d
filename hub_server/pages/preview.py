"""Previews of untrusted content, made in a limited child process: the card as safe HTML, first rows of parquet files.

Anybody may have written them, so they are read in a process of its own with limits of time and memory:
``python -m hub_server.pages.preview BASE CARD FILE...`` prints a ``Preview`` as JSON.
"""

import json
import posixpath
import re
import resource
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel

from hub_server.pages.cards import body

ROWS, COLUMNS, CELL, CARD = 5, 20, 300, 200_000
_SECONDS, _MEMORY = 10, 4 << 30
_CODE_ROOT = Path(__file__).resolve().parents[2]
_AT_ONCE = threading.Semaphore(2)


class Table(BaseModel):
    """The first rows of a file as texts, or why there are none."""

    columns: list[str] = []
    rows: list[list[str]] = []
    problem: str = ""


class Preview(BaseModel):
    """A card as HTML that is safe to show, and a table for each file."""

    card: str = ""
    tables: list[Table] = []
    problem: str = ""


def preview(card: Path | None, base: str, files: tuple[Path, ...]) -> Preview:
    """The card rendered, with relative addresses below ``base``, and the first rows of each file."""
    try:
        return _preview(card, base, files)
    except (subprocess.SubprocessError, ValueError):
        problem = f"The card and the rows took more than {_SECONDS} s or too much memory to show."
        return Preview(problem=problem, tables=[Table(problem="not shown")] * len(files))


@lru_cache(maxsize=256)
def _preview(card: Path | None, base: str, files: tuple[Path, ...]) -> Preview:
    # Contents never change under their address, so an answer holds; failures raise and are not kept.
    command = [sys.executable, "-m", "hub_server.pages.preview", base, card or "", *files]
    with _AT_ONCE:
        done = subprocess.run(  # noqa: S603 (our own module)
            command, capture_output=True, check=True, timeout=2 * _SECONDS, cwd=_CODE_ROOT
        )
    return Preview.model_validate_json(done.stdout)


def render_card(text: str, base: str) -> str:
    """Markdown as HTML without scripts, styles, forms, frames and pictures from elsewhere."""
    import nh3
    from markdown_it import MarkdownIt

    def address(tag: str, attribute: str, value: str) -> str | None:
        if attribute not in ("href", "src"):
            return value
        parts = urlsplit(value)
        if parts.scheme or parts.netloc:
            return value if tag == "a" and parts.scheme in ("http", "https", "mailto") else None
        if not parts.path:
            return f"#{quote(parts.fragment)}" if tag == "a" else None
        path = posixpath.normpath(unquote(parts.path))
        return None if path.startswith(("/", "..")) else base + quote(path)

    tags = "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s span"
    tags += " strong sub summary sup table tbody td tfoot th thead tr ul"
    attributes = {"a": {"href", "title"}, "img": {"src", "alt", "title", "width", "height"}, "ol": {"start"}}
    attributes |= {tag: {"colspan", "rowspan", "align"} for tag in ("td", "th")}
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text[:CARD])
    html = re.sub(r'<(t[dh]) style="text-align:(left|center|right)">', r'<\1 align="\2">', html)
    return nh3.clean(
        html,
        tags=set(tags.split()),
        attributes=attributes,
        attribute_filter=address,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


def first_rows(path: Path) -> Table:
    """The first rows of a parquet file; no more of it is read than holds them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, pre_buffer=False)
        names = [field.name for field in file.schema_arrow][:COLUMNS]
        batch = next(file.iter_batches(batch_size=ROWS, columns=names, use_threads=False), None)
        rows = batch.to_pylist()[:ROWS] if batch is not None else []
    except (pa.ArrowException, OSError, ValueError) as error:
        return Table(problem=f"This file cannot be read as parquet ({type(error).__name__}).")
    labels = {name: _label_names(file.schema_arrow.metadata, name) for name in names}
    cells = [[_cut(_named(row.get(name), labels[name])) for name in names] for row in rows]
    return Table(columns=[_cut(name) for name in names], rows=cells)


def _label_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str]:
    """The names of a label column, as the datasets library keeps them in the file; none when it has none."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return [str(name) for name in names]
    except (KeyError, TypeError, ValueError):
        return []


def _named(value: object, names: list[str]) -> object:
    return f"{value} ({names[value]})" if isinstance(value, int) and 0 <= value < len(names) else value


def _cut(value: object) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= CELL else text[:CELL] + "…"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base, card, *files = sys.argv[1:]
    text = Path(card).read_bytes()[: 4 * CARD].decode(errors="replace") if card else ""
    tables = [first_rows(Path(file)) for file in files]
    sys.stdout.write(Preview(card=render_card(body(text), base), tables=tables).model_dump_json())

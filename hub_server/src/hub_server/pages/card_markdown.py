"""Renders an untrusted card; run in a limited child process (``child``)."""

import posixpath
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import nh3
from markdown_it import MarkdownIt

from hub_server.pages.card_html import Card, CardRequest
from hub_server.pages.cards import body

CARD = 200_000  # characters that are rendered
_HEADING_SHIFT = 2  # a card stands below the page's own h1 and h2


def answer(request: bytes) -> bytes:
    """A ``Card`` for a ``CardRequest``, both as JSON."""
    asked = CardRequest.model_validate_json(request)
    text = Path(asked.readme).read_bytes()[: 4 * CARD].decode(errors="replace")
    return Card(html=render_card(body(text), asked.base)).model_dump_json().encode()


def render_card(text: str, base: str) -> str:
    """Markdown as HTML without scripts, styles, forms, frames and pictures from elsewhere; its headings begin at h3."""

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
    clean = nh3.clean(
        html,
        tags=set(tags.split()),
        attributes=attributes,
        attribute_filter=address,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )
    return re.sub(r"(</?h)([1-6])>", lambda tag: f"{tag[1]}{min(6, int(tag[2]) + _HEADING_SHIFT)}>", clean)

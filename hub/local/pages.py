"""Two plain pages for people: the list of repos, and a repo's card and files. No scripts; everything is escaped."""

from jinja2 import Environment
from starlette.responses import HTMLResponse, Response

from hub.local.api_tree import text_of
from hub.local.call import Call
from hub.local.refs import list_refs, resolve, timestamp
from hub.local.repos import KINDS, list_repos
from hub.local.trees import files, walk

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}
_PAGES = Environment(autoescape=True)
_HEAD = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title><style>body{font:16px/1.5 system-ui,sans-serif;
max-width:60rem;margin:2rem auto;padding:0 1rem}
pre{background:#f4f4f4;padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere}td{padding:.1rem 1.5rem .1rem 0}
td.n{text-align:right}</style><h1>{{ title }}</h1>"""
_FRONT = _PAGES.from_string(
    _HEAD
    + """<p>A local Hub. To use it: <code>export HF_ENDPOINT={{ endpoint }} HF_HUB_DISABLE_XET=1</code></p>
{% for kind, repos in kinds.items() %}<h2>{{ kind }}</h2><ul>{% for repo in repos -%}
<li><a href="/{{ repo.url_path }}">{{ repo.full_name }}</a></li>
{%- else %}<li>none yet</li>{% endfor %}</ul>{% endfor %}"""
)
_REPO = _PAGES.from_string(
    _HEAD
    + """<p><a href="/">all repos</a> · commit {{ commit.oid[:10] }} of {{ date }}: {{ commit.title }}
{%- for tag in tags %} · tag {{ tag }}{% endfor %}</p>
<pre>{{ usage }}</pre><h2>Files</h2><table>{% for path, size in files -%}
<tr><td><a href="/{{ repo.url_path }}/resolve/main/{{ path | urlencode }}">{{ path }}</a></td>
<td class="n">{{ "{:,}".format(size) }} bytes</td></tr>{% endfor %}</table><h2>Card</h2><pre>{{ card }}</pre>"""
)


def front(call: Call) -> Response:
    """All repos that an anonymous visitor may see (a browser sends no token)."""
    with call.hub.database.reading() as db:
        kinds = {plural: list_repos(db, kind, call.actor) for plural, kind in KINDS.items()}
    return HTMLResponse(_FRONT.render(title="Local Hub", endpoint=call.endpoint, kinds=kinds), headers=_HEADERS)


def repo(call: Call) -> Response:
    """One repo: how to load it, its files and its card's source."""
    found = call.repo()
    with call.hub.database.reading() as db:
        commit = resolve(db, found.id, "main")
        entries = [(path, entry.oid) for path, entry in walk(db, commit.tree) if not entry.is_folder]
        known = files(db, [oid for _, oid in entries])
        tags = [ref.removeprefix("refs/tags/") for ref, _ in list_refs(db, found.id) if ref.startswith("refs/tags/")]
        card = text_of(call.hub, db, commit, "README.md")
    usage = {
        "dataset": f'from datasets import load_dataset\ndataset = load_dataset("{found.full_name}")',
        "model": "from sentence_transformers import SentenceTransformer\n"
        f'model = SentenceTransformer("{found.full_name}")',
    }[found.kind]
    page = _REPO.render(
        title=found.full_name,
        repo=found,
        commit=commit,
        date=timestamp(commit.date),
        tags=tags,
        usage=usage,
        files=[(path, known[oid].size) for path, oid in entries],
        card=card,
    )
    return HTMLResponse(page, headers=_HEADERS)

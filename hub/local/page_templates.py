"""The words and looks of the pages for people."""

STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--dim:#777}
body{font:16px/1.55 system-ui,sans-serif;max-width:72rem;margin:0 auto;padding:1.5rem 1rem 4rem}
a[href]{color:#1a66cc;text-decoration:none}a[href]:hover{text-decoration:underline}
h1{font-size:1.7rem;margin:.4rem 0}h2{font-size:1.25rem;margin:2.4rem 0 .6rem;border-bottom:1px solid var(--line)}
nav,.dim{color:var(--dim)}code,pre,.mono{font:.88em/1.5 ui-monospace,monospace}
pre{background:var(--soft);padding:.8rem 1rem;border-radius:.4rem;white-space:pre-wrap;overflow-wrap:anywhere}
table{border-collapse:collapse;margin:.6rem 0}th,td{padding:.3rem .9rem .3rem 0;text-align:left;vertical-align:top}
[align=right]{text-align:right}[align=center]{text-align:center}
.wide{overflow-x:auto}.wide td,.wide th,.card td,.card th{border:1px solid var(--line);padding:.3rem .6rem}
.wide td{max-width:28rem;overflow-wrap:anywhere;white-space:pre-wrap}.num{text-align:right;white-space:nowrap}
.card{border:1px solid var(--line);border-radius:.5rem;padding:.4rem 1.4rem 1rem;overflow-wrap:anywhere}
.card h1,.card h2,.card h3{margin-top:1.4rem}.card img{max-width:100%;background:#fff}
.chip{border:1px solid var(--line);border-radius:1rem;padding:.05rem .6rem;margin-right:.3rem;font-size:.85rem}
.note{color:#b35c00}
"""

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ title }}</title><style>{{ style | safe }}</style></head><body>
"""

FRONT = (
    _HEAD
    + """<h1>{{ title }}</h1>
<p>A Hugging Face Hub on this machine. To use it:</p>
<pre>export HF_ENDPOINT={{ endpoint }} HF_HOME=$(mktemp -d)</pre>
{% for kind, repos in kinds.items() %}
<h2>{{ kind }}</h2>
<table>
{% for repo, commit in repos %}
<tr><td><a href="/{{ repo.url_path }}">{{ repo.full_name }}</a></td><td>{{ commit.title }}</td>
<td class="dim">{{ commit.date | day }}</td></tr>
{% else %}
<tr><td class="dim">none yet</td></tr>
{% endfor %}
</table>
{% endfor %}
</body></html>
"""
)

REPO = (
    _HEAD
    + """<nav><a href="/">all repos</a> · {{ repo.kind }}</nav>
<h1>{{ title }}</h1>
<p>{% for tag in tags %}<span class="chip">{{ tag }}</span>{% endfor %}
<span class="dim">commit <a class="mono" href="/{{ repo.url_path }}/commit/{{ commit.oid }}">{{ commit.oid[:10] }}</a>,
{{ commit.date | day }}: {{ commit.title }}</span></p>
<pre>{{ usage }}</pre>
<nav><a href="#card">Card</a>{% if tables %} · <a href="#rows">Rows</a>{% endif %} · <a href="#files">Files</a> ·
<a href="#commits">Commits</a></nav>
<h2 id="card">Card</h2>
{% if problem %}
<p class="note">{{ problem }}</p>
{% endif %}
{% if metadata %}
<table>{% for key, value in metadata %}<tr><td class="dim">{{ key }}</td><td>{{ value }}</td></tr>{% endfor %}</table>
{% endif %}
{% if card %}
<article class="card">{{ card | safe }}</article>
{% endif %}
{% if tables %}
<h2 id="rows">First rows</h2>
{% for config, table in tables %}
<h3>{{ config.name }} <span class="dim">{{ config.splits | join(", ") }}</span></h3>
{% if table.problem %}
<p class="note">{{ config.path }}: {{ table.problem }}</p>
{% else %}
<div class="wide"><table><tr>{% for name in table.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in table.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
<p class="dim">from <a href="{{ base }}{{ config.path | urlencode }}">{{ config.path }}</a></p>
{% endif %}
{% endfor %}
{% endif %}
<h2 id="files">Files <span class="dim">{{ size | filesizeformat }}</span></h2>
<table>
{% for path, size in files %}
<tr><td><a href="{{ base }}{{ path | urlencode }}">{{ path }}</a></td>
<td class="num">{{ "{:,}".format(size) }}</td></tr>
{% endfor %}
</table>
{% if more_files %}
<p class="dim">and {{ more_files }} more</p>
{% endif %}
<h2 id="commits">Commits</h2>
<table>
{% for item in commits %}
<tr><td class="dim">{{ item.date | day }}</td><td>{{ item.title }}</td><td class="dim">{{ item.author }}</td>
<td><a class="mono" href="/{{ repo.url_path }}/commit/{{ item.oid }}">{{ item.oid[:10] }}</a></td></tr>
{% endfor %}
</table>
{% if more_commits %}
<p class="dim">and {{ more_commits }} more</p>
{% endif %}
</body></html>
"""
)

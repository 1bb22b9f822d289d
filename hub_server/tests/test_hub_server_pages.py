"""The pages of a browser: real addresses, and nothing that a repo's author uploaded is live."""

import hashlib
import html
import html.parser
import io
import re
import sys
import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd
from local_hub import ask, file_line, post_commit
from starlette.testclient import TestClient

from hub_server.app import HubApp
from hub_server.handlers.call import Hub
from hub_server.pages import readers
from hub_server.pages.cards import Config, list_configs, render_card
from hub_server.pages.readers import Card, ReaderFailed

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}
PNG = bytes.fromhex("89504e470d0a1a0a") + b"not drawn by this test"
HARMLESS = """
html head meta title style header main form label input select option button iframe body a abbr
article b blockquote br code del details div em h1 h2 h3 h4 h5 h6 hr i img li nav ol p pre s span
strong sub summary sup table tbody td th thead tr ul
"""


class Tags(html.parser.HTMLParser):
    """The tags and attributes of a page, as a browser would find them."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def parquet(**columns) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def cells(page: str) -> list[list[str]]:
    """The texts of the rows of a page, without its card and the summaries of folded texts."""
    rows = page.split('id="rows"')[1].split('id="card"')[0].split("<tr>")
    plain = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    without = re.compile(r"<summary.*?</summary>|<[^>]*>", re.DOTALL)
    return [[html.unescape(without.sub("", cell)).strip() for cell in row] for row in plain if row]


def put(api, repo, files: dict[str, bytes | str], message="files"):
    adds = [
        CommitOperationAdd(path, c if isinstance(c, bytes) else c.encode())
        for path, c in files.items()
    ]
    return api.create_commit(repo, adds, commit_message=message, **DATASET)


def put_card(hub, repo, card: str):
    """Without the check that the official client makes first."""
    assert post_commit(hub, repo, file_line("README.md", card)).status == 200


def page_of(hub, path: str, status: int = 200) -> str:
    """Check that a page is safe: no script, harmless tags, labelled fields, local addresses."""
    answer = ask(hub, "GET", path, Accept="text/html")
    assert answer.status == status, answer.body
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    page = answer.body.decode()
    tags, labelled = Tags(page).tags, set()
    for tag, attributes in tags:
        assert tag in HARMLESS.split(), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (
            attributes
        )
        for address in (attributes.get("href"), attributes.get("src"), attributes.get("action")):
            scheme = (address or "/").partition(":")[0] if ":" in (address or "") else ""
            assert scheme in ("", "http", "https", "mailto"), address
        if tag in ("img", "iframe"):
            assert attributes.get("src", "/").startswith("/") and not attributes.get(
                "src", ""
            ).startswith("//")
        labelled |= {attributes["for"]} if tag == "label" else set()
        if tag in ("select", "input") and attributes.get("type") != "hidden":
            assert attributes["id"] in labelled, attributes
    assert [tag for tag, _ in tags].count("h1") == 1 and "<title></title>" not in page
    return page


def test_front_and_owner_pages_list_public_repos_with_their_last_commit(local_hub, hub_api):
    hub_api.create_repo("acme/shown", **DATASET)
    hub_api.create_repo("acme/shown-model")
    hub_api.create_repo("acme/hidden", private=True, **DATASET)
    put(hub_api, "acme/shown", {"x.txt": "x"}, "A title with <b>")
    for path in ("/", "/acme", "/ACME"):
        page = page_of(local_hub, path)
        assert (
            'href="/datasets/acme/shown"' in page
            and 'href="/acme/shown-model"' in page
            and "hidden" not in page
        )
        assert "A title with &lt;b&gt;" in page and time.strftime("%Y-%m-", time.gmtime()) in page


CARD = """---
license: apache-2.0
language: en
configs:
- config_name: pairs
  default: true
  data_files:
  - {split: train, path: data/pairs/train-*.parquet}
  - {split: test, path: data/pairs/test-*.parquet}
- config_name: empty
  data_files: data/empty/*.parquet
- config_name: rejected
  data_files: data/rejected/*.parquet
---
# Pairs

| label | kept |
|---|---:|
| low | 10 |

![Lengths](assets/lengths.png) and [the recipe](recipe.yaml), [below](#pairs).
"""


def test_a_repo_page_shows_card_rows_files_and_commits(local_hub, hub_api, repo):
    rows = parquet(
        sentence1=["A man.", None, *"cdefgh"], score=pa.array([0.1, 2.5] * 4, pa.float32())
    )
    files = {
        "README.md": CARD,
        "assets/lengths.png": PNG,
        "data/pairs/train-00000-of-00001.parquet": rows,
    }
    files |= {"data/rejected/all-0.parquet": parquet(text=["too short"], n=[[1, 2]])}
    first = put(hub_api, repo, files, "Card and rows")
    hub_api.create_tag(repo, tag="v1", **DATASET)
    put(hub_api, repo, {"later.txt": "x"}, "Later")
    page = page_of(local_hub, f"/datasets/{repo}")
    base = f"/datasets/{repo}/resolve/{hub_api.dataset_info(repo).sha}/"
    assert (
        "<h3>Pairs</h3>" in page
        and '<td>low</td>\n<td align="right">10</td>' in page
        and "apache-2.0" in page
    )
    assert f'href="/datasets/{repo}/commit/v1">v1<' in page and page.index(
        'id="rows"'
    ) < page.index('id="card"')
    assert f'src="{base}assets/lengths.png"' in page and f'href="{base}recipe.yaml"' in page
    assert cells(page)[:3] == [["A man.", "0.1"], ["", "2.5"], ["c", "0.1"]] and "8 rows" in page
    assert (
        "empty" not in page
        and ">rejected</option>" in page
        and "Card and rows" in page
        and "Later" in page
    )
    other = page_of(local_hub, f"/datasets/{repo}?config=rejected&split=none")
    assert cells(other) == [["too short", "[1, 2]"]]
    picture = ask(local_hub, "GET", f"{base}assets/lengths.png")
    assert picture.body == PNG and picture.headers["Content-Type"] == "image/png"
    assert "sandbox" in picture.headers["Content-Security-Policy"]
    for where in (first.oid, "v1"):
        older = page_of(local_hub, f"/datasets/{repo}/commit/{where}")
        assert (
            "Later" not in older
            and "Card and rows" in older
            and f'revision="{where}"' in html.unescape(older)
        )


EVIL = """---
license: "<script>alert(1)</script>"
tags: ["<img src=x onerror=alert(1)>", {a: b}, 7]
configs:
- config_name: "<script>alert(2)</script>"
  data_files: [{split: "<b>", path: "data/*.parquet"}, {split: x, path: [1, null, {}]}]
- config_name: [x]
  data_files: {a: b}
- 7
---
<script>alert(1)</script><img src=x onerror=alert(1)><img src="https://evil.example/x.png"><img src="data:image/png;a">
<img src="//evil.example/x.png"><img src="/\\\\evil.example/x"><a href="javascript:alert(1)">a</a>
<a href="data:text/html,x">b</a> <a href="&#106;avascript:alert(1)">c</a> <a href=" java\tscript:alert(1)">d</a>
<iframe src="https://evil.example"></iframe><form action="/x"><input></form><svg onload=alert(1)><style>*{color:red}
</style><base href="https://evil.example"><link rel=stylesheet href=x><meta http-equiv=refresh content="0;url=//evil">
<p style="position:fixed" id="x" class="card" onclick="alert(1)">styled</p><object data=x></object>
<math><mi xlink:href=x></mi></math>

[x](javascript:alert(1)) [y](vbscript:x) ![z](javascript:alert(1)) [w](../../../../token) ![u](../../x) <b>bold</b>
</article></body></html><script>alert(3)</script>
"""


def test_a_malicious_card_and_rows_do_no_harm(local_hub, hub_api, repo):
    evil = "<script>alert(1)</script>"
    rows = parquet(
        **{evil: [evil, "<img src=x onerror=alert(1)>" * 9_000], "javascript:alert(1)": ["x", None]}
    )
    name = 'data/a "b" <i>.txt'
    put(hub_api, repo, {"data/rows.parquet": rows, name: b"1"}, f"{evil} <b>")
    for front in (": : :\n\tx", "- a", "configs: 7", "license: {a: [b]}\nlanguage: [[en]]"):
        put_card(local_hub, repo, f"---\n{front}\n---\n# Title\n")
        assert "<h3>Title</h3>" in page_of(local_hub, f"/datasets/{repo}")
    put_card(local_hub, repo, EVIL)
    page = page_of(local_hub, f"/datasets/{repo}")
    assert "alert(1)</script>" not in page and "<b>bold</b>" in page and "evil.example" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<i>" not in page
    assert len(page) < 120_000  # the huge cell is cut
    images = [
        attributes["src"]
        for tag, attributes in Tags(page).tags
        if tag == "img" and "src" in attributes
    ]
    assert images == [f"/datasets/{repo}/resolve/{hub_api.dataset_info(repo).sha}/x"]
    tree = page_of(local_hub, f"/datasets/{repo}/tree/main/data")
    link = tree.split("/data/a")[1].split('"')[0]
    base = f"/datasets/{repo}/resolve/main/data/a"
    assert "<i>" not in tree and ask(local_hub, "GET", base + link).body == b"1"
    assert "<i>" not in page_of(local_hub, f"/datasets/{repo}/blob/main/data/a{link}")


def test_broken_parquet_is_named(local_hub, hub_api, repo):
    whole = parquet(a=list(range(1000)))
    listed = "".join(f"- {{config_name: c{n}, data_files: d{n}.parquet}}\n" for n in range(4))
    files = {
        "README.md": f"---\nconfigs:\n{listed}---\n",
        "d0.parquet": b"PAR1 no",
        "d3.parquet": whole,
    }
    files |= {
        "d1.parquet": whole[:-50] + bytes(50),
        "d2.parquet": whole[:40] + b"\xff" * 60 + whole[100:],
    }
    put(hub_api, repo, files)
    for number in (0, 1, 2):
        page = page_of(local_hub, f"/datasets/{repo}?config=c{number}")
        assert f"d{number}.parquet cannot be read as parquet" in page or "broke the reader" in page
    assert "1,000 rows" in page_of(local_hub, f"/datasets/{repo}?config=c3")
    assert "Traceback" not in local_hub.log_file.read_text()


def test_a_reader_that_takes_too_much_time_or_memory_is_ended(tmp_path, monkeypatch):
    (tmp_path / "sleep").write_text("# x")
    started = time.monotonic()
    for words in ("memory", "write", "die"):
        with pytest.raises(ReaderFailed):
            readers.ask("odd_readers", (words,), Card)
    assert time.monotonic() - started < 2 * readers.SECONDS  # each ended by itself
    monkeypatch.setattr(readers, "SECONDS", 0.1)
    with pytest.raises(ReaderFailed):
        readers.ask("odd_readers", ("sleep",), Card)
    monkeypatch.setattr(readers, "_CARDS", "odd_readers")
    assert "took more than" in readers.show_card(tmp_path / "sleep", "/").problem
    monkeypatch.undo()
    # a failure is not remembered
    assert readers.show_card(tmp_path / "sleep", "/").html == "<h3>x</h3>\n"


@pytest.mark.slow("renders huge cards")
def test_a_card_is_not_rendered_without_end():
    for text in ("[" * 300_000, "> " * 100_000, "*_" * 20_000, "`" * 300_000, "<div>" * 5_000):
        assert len(render_card(text, "/")) < 2_000_000


def test_an_address_that_cannot_be_parsed_is_dropped(monkeypatch):
    swallowed = []  # exceptions of the filter inside the cleaner
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    html = render_card('<a href="//[a">a</a> <img src="//[b">', "/base/")
    assert "a</a>" in html and "<img" in html and "[" not in html
    assert not swallowed


def test_configs_in_all_forms():
    paths = ["README.md", "a/x-0.parquet", "a/x-1.parquet", "b/deep/y.parquet", "train.parquet"]
    x = ["a/x-0.parquet", "a/x-1.parquet"]

    def found(*listed):
        return [tuple(config) for config in list_configs({"configs": list(listed)}, paths)]

    assert found({"config_name": "c", "data_files": "a/*"}) == [("c", {"train": x})]
    both = [{"split": "s", "path": ["no", "a/x-1.parquet"]}, {"split": "t", "path": "a/*"}]
    assert found({"config_name": "c", "data_files": both}) == [("c", {"s": x[1:], "t": x})]
    default = {"config_name": "d", "data_files": "b/**", "default": True}
    assert [name for name, _ in found({"config_name": "c", "data_files": "a/*"}, default)] == [
        "d",
        "c",
    ]
    assert found({"config_name": "c", "data_files": "c/*.parquet"}) == [("default", {"": x[:1]})]
    assert list_configs({}, ["x.csv"]) == []
    assert list_configs({}, paths) == [Config("default", {"": x[:1]})]


FILES = {
    "README.md": "---\nlicense: mit\n---\n# T\n",
    "train.parquet": parquet(
        sentence1=["A man <b>walks</b>."] * 4 + ["A dog."] * 2,
        sentence2=["He walks.", "He sits.", "x" * 2_000, "Snow.", "A hound.", "\u202egnat"],
        score=pa.array([0.5, 0.9, 0.5, 0, 0.9, 0.5], pa.float32()),
        target=["0.5", "1", "0.5", "sampled", "1", "0.5"],
    ),
    "a b/<i>.json": '{"a": "<script>alert(1)</script>"}\r\nsecond\n',
    "evil.svg": "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "evil.html": "<script>alert(1)</script>",
    "report.html": "<script>alert(1)</script><style>p{color:red}</style><p>A report</p>",
    "a.png": PNG,
    "a.bin": bytes(range(256)),
    "long.txt": "é" * 150_000,
}


@pytest.fixture(scope="module")
def filled(hub_api) -> str:
    repo = hub_api.create_repo("acme/filled", **DATASET).repo_id
    put(hub_api, repo, FILES, "Files <b>")
    return repo


def test_rows_by_source_sentence_and_search(local_hub, filled):
    page = page_of(local_hub, f"/datasets/{filled}")
    assert "A man &lt;b&gt;walks&lt;/b&gt;." in page and page.count("&lt;b&gt;walks") == 1
    assert [row[0] for row in cells(page)] == ["0.9", "0.5", "0.5", "0sampled", "0.9", "0.5"]
    assert (
        "<details" in page
        and "x" * 2_000 in page
        and "\u202e" not in page
        and "0.5 (3 rows)" in page
    )
    found = page_of(local_hub, f"/datasets/{filled}?q=HOUND&label=0.9")
    assert cells(found) == [["0.9", "A hound."]] and "<strong>1</strong> of 6 rows match" in found
    odd = [
        "page=999999999",
        "page=-1",
        f"page={'9' * 400}",
        "label=none",
        "config=no&split=no",
        "view=table",
    ]
    assert all("A hound." in page_of(local_hub, f"/datasets/{filled}?{query}") for query in odd)
    evil = page_of(
        local_hub,
        f"/datasets/{filled}?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E%00%ff" + "a" * 5_000,
    )
    assert "<script>alert" not in evil and "<strong>0</strong> of 6" in evil


def test_pages_of_files(local_hub, hub_api, filled):
    base = f"/datasets/{filled}"
    tree = page_of(local_hub, f"{base}/tree/main")
    assert (
        f'href="{base}/tree/main/a%20b">a b/<' in tree and f'href="{base}/blob/main/a.bin"' in tree
    )
    link = f"{base}/blob/main/a%20b/%3Ci%3E.json"
    assert f'href="{link}">&lt;i&gt;.json<' in page_of(local_hub, f"{base}/tree/main/a%20b")
    text = page_of(local_hub, link)
    assert '<span id="L1">{&#34;a&#34;: &#34;&lt;script&gt;' in text and 'id="L2">second' in text
    assert f"/{hub_api.dataset_info(filled).sha}/a.png" in page_of(
        local_hub, f"{base}/blob/main/a.png"
    )
    binary = page_of(local_hub, f"{base}/blob/main/a.bin")
    assert (
        hashlib.sha256(bytes(range(256))).hexdigest() in binary
        and "neither text nor rows" in binary
    )
    assert "The beginning alone" in page_of(local_hub, f"{base}/blob/main/long.txt")


def test_a_report_is_shown_in_a_sandbox_and_no_upload_runs_in_this_origin(local_hub, filled):
    base = f"/datasets/{filled}"
    assert f'href="{base}/blob/main/report.html"' in page_of(local_hub, base)
    frame = [
        of
        for tag, of in Tags(page_of(local_hub, f"{base}/blob/main/report.html")).tags
        if tag == "iframe"
    ]
    assert [(of["src"], of["sandbox"]) for of in frame] == [(f"{base}/report/main", "")]
    report = ask(local_hub, "GET", f"{base}/report/main")
    policy = report.headers["Content-Security-Policy"]
    assert policy.startswith(
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    )
    assert (
        report.headers["Content-Type"] == "text/html; charset=utf-8" and b"A report" in report.body
    )
    for name in ("evil.html", "evil.svg", "report.html"):
        raw = ask(local_hub, "GET", f"{base}/resolve/main/{name}", Accept="text/html").headers
        assert (
            raw["Content-Type"] == "text/plain; charset=utf-8"
            and raw["X-Content-Type-Options"] == "nosniff"
        )
        assert "sandbox" in raw["Content-Security-Policy"] and page_of(
            local_hub, f"{base}/blob/main/{name}"
        )


def test_errors_are_pages_for_browsers_and_json_for_clients(local_hub, hub_api, filled):
    hub_api.create_repo("acme/kept-private", private=True, **DATASET)
    base = f"/datasets/{filled}"
    for path, status, code, words in (
        ("/datasets/acme/kept-private", 401, "RepoNotFound", "these pages show public repos only"),
        ("/datasets/acme/kept-private/tree/main", 401, "RepoNotFound", "hf download"),
        ("/datasets/acme/kept-private/report/main", 401, "RepoNotFound", "HF_TOKEN_PATH"),
        (f"{base}/tree/none", 404, "RevisionNotFound", "a tag or a commit id"),
        (f"{base}/blob/main/none", 404, "EntryNotFound", f'href="{base}"'),
        (f"{base}/blob/main/..%2f..%2ftoken", 404, "EntryNotFound", "&#39;../../token&#39;"),
        ("/%3Cscript%3E", 404, None, "&lt;script&gt;"),
        ("/acme%ff", 400, None, "UTF-8"),
    ):
        assert words in page_of(local_hub, path, status), path
        person = ask(local_hub, "GET", path, Accept="text/html,*/*")
        client = ask(local_hub, "GET", path, Accept="*/*")
        assert (
            person.status == client.status == status
            and client.headers["Content-Type"] == "application/json"
        )
        for name in ("X-Error-Code", "X-Error-Message", "X-Repo-Commit"):
            assert person.headers[name] == client.headers[name], (path, name)
        assert client.headers["X-Error-Code"] == code, path
    for path in (f"/api{base}x", f"{base}/resolve/main/none", "/api/none"):
        assert (
            ask(local_hub, "GET", path, Accept="text/html").headers["Content-Type"]
            == "application/json"
        ), path


def test_a_page_that_fails_says_so(tmp_path):
    class Broken:
        def begin_read(self):
            raise RuntimeError("no database")

    app = HubApp(Hub(Broken(), SimpleNamespace(tmp=tmp_path), None, 1), {"testserver"}, 5)
    client = TestClient(app, raise_server_exceptions=False)
    answer = client.get("/", headers={"Accept": "text/html"})
    assert (
        answer.status_code == 500
        and "could not be rendered" in answer.text
        and "no database" not in answer.text
    )
    plain = client.get("/", headers={"Accept": "*/*"})
    assert plain.status_code == 500 and not plain.headers.get("Content-Type", "").startswith(
        "text/html"
    )

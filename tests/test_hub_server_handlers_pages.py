"""What a person sees in a browser: real addresses, and nothing that a repo's author wrote is live."""

import html.parser
import io
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd
from local_hub import ask, commit_body

from hub_server.pages import preview
from hub_server.pages.cards import Config, configs

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}
PNG = bytes.fromhex("89504e470d0a1a0a") + b"not drawn by this test"
HARMLESS = """
html head meta title style body a abbr article b blockquote br code del details div em h1 h2 h3 h4 h5 h6 hr i img li nav
ol p pre s span strong sub summary sup table tbody td th thead tr ul
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


def put(api, repo, files: dict[str, bytes | str], message="files"):
    adds = [CommitOperationAdd(path, c if isinstance(c, bytes) else c.encode()) for path, c in files.items()]
    return api.create_commit(repo, adds, commit_message=message, **DATASET)


def put_card(hub, repo, card: str):
    """Without the check that the official client makes first."""
    body = commit_body(("file", {"path": "README.md", "content": card}))
    assert ask(hub, "POST", f"/api/datasets/{repo}/commit/main", body, token=hub.token).status == 200


def page_of(hub, path: str) -> str:
    answer = ask(hub, "GET", path)
    assert answer.status == 200, answer.body
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    page = answer.body.decode()
    for tag, attributes in Tags(page).tags:
        assert tag in HARMLESS.split(), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], attributes
        for address in (attributes.get("href"), attributes.get("src")):
            scheme = (address or "/").partition(":")[0] if ":" in (address or "") else ""
            assert scheme in ("", "http", "https", "mailto"), address
        if tag == "img":
            assert attributes.get("src", "/").startswith("/")
    return page


def test_front_page_lists_public_repos_with_their_last_commit(local_hub, hub_api):
    hub_api.create_repo("acme/shown", **DATASET)
    hub_api.create_repo("acme/hidden", private=True, **DATASET)
    put(hub_api, "acme/shown", {"x.txt": "x"}, "A title with <b>")
    page = page_of(local_hub, "/")
    assert 'href="/datasets/acme/shown"' in page and "acme/hidden" not in page and local_hub.endpoint in page
    assert "A title with &lt;b&gt;" in page and time.strftime("%Y-%m-", time.gmtime()) in page
    assert "HF_HUB_DISABLE_XET" not in page
    assert ask(local_hub, "GET", "/datasets/acme/hidden").status == 401
    assert ask(local_hub, "GET", "/datasets/acme/none").status in (401, 404)


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

![Lengths](assets/lengths.png) and [the recipe](recipe.yaml), [a paper](https://arxiv.org/abs/1), [below](#pairs).
"""


def test_a_repo_page_shows_card_rows_files_and_commits(local_hub, hub_api, repo):
    rows = parquet(sentence1=["A man.", None, *"cdefgh"], score=pa.array([0.1, 2.5] * 4, pa.float32()))
    files = {"README.md": CARD, "assets/lengths.png": PNG, "data/pairs/train-00000-of-00001.parquet": rows}
    files |= {"data/rejected/all-0.parquet": parquet(text=["too short"], n=[[1, 2]])}
    first = put(hub_api, repo, files, "Card and rows")
    hub_api.create_tag(repo, tag="v1", **DATASET)
    put(hub_api, repo, {"later.txt": "x"}, "Later")
    page = page_of(local_hub, f"/datasets/{repo}")
    sha = hub_api.dataset_info(repo).sha
    base = f"/datasets/{repo}/resolve/{sha}/"
    assert (
        "<h1>Pairs</h1>" in page
        and '<td>low</td>\n<td align="right">10</td>' in page
        and "apache-2.0" in page
        and ">v1<" in page
    )
    assert f'src="{base}assets/lengths.png"' in page and f'href="{base}recipe.yaml"' in page
    assert 'href="https://arxiv.org/abs/1"' in page and "---" not in page
    assert "<td>A man.</td><td>0.1</td>" in page and "<td></td><td>2.5</td>" in page and "<td>f</td>" not in page
    assert "train, test" in page and "<td>too short</td><td>[1, 2]</td>" in page and ">empty" not in page
    assert "Card and rows" in page and "Later" in page and "initial commit" in page and "later.txt" in page
    assert f'load_dataset("{repo}")' in page
    picture = ask(local_hub, "GET", f"{base}assets/lengths.png")
    assert picture.body == PNG and picture.headers["Content-Type"] == "image/png"
    assert "sandbox" in picture.headers["Content-Security-Policy"]
    for where in (f"tree/{first.oid}", f"commit/{first.oid}", "tree/v1"):
        older = page_of(local_hub, f"/datasets/{repo}/{where}")
        assert "later.txt" not in older and "Card and rows" in older
    assert ask(local_hub, "GET", f"/datasets/{repo}/tree/none").status == 404


def test_a_model_page(local_hub, hub_api):
    hub_api.create_repo("demo/shown-model")
    page = page_of(local_hub, "/demo/shown-model")
    assert 'SentenceTransformer("demo/shown-model")' in page and "no README.md" in page


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
    rows = parquet(**{evil: [evil, "<img src=x onerror=alert(1)>" * 9_000], "javascript:alert(1)": ["x", None]})
    name = 'data/a "b" <i>.txt'
    put(hub_api, repo, {"data/rows.parquet": rows, name: b"1"}, f"{evil} <b>")
    put_card(local_hub, repo, EVIL)
    page = page_of(local_hub, f"/datasets/{repo}")
    assert "alert(1)</script>" not in page and "<b>bold</b>" in page and "evil.example" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<i>" not in page
    assert len(page) < 60_000  # the huge cell is cut
    images = [attributes for tag, attributes in Tags(page).tags if tag == "img"]
    assert [image["src"] for image in images if "src" in image] == [f"/datasets/{repo}/resolve/"
                                                                    f"{hub_api.dataset_info(repo).sha}/x"]  # fmt: skip
    link = page.split("/data/a")[1].split('"')[0]
    base = f"/datasets/{repo}/resolve/main/data/a"
    assert ask(local_hub, "GET", base + link).body == b"1"


@pytest.mark.parametrize(
    "card",
    ["---\n: : :\n\tx\n---\n# Title\n", "---\n- a\n---\n# Title\n", "# Title\n", "---\nconfigs: 7\n---\n# Title\n",
     "---\nconfigs: [{config_name: x, data_files: [{split: s, path: '[' }]}]\n---\n# Title\n",
     "---\nlicense: {a: [b]}\nlanguage: [[en]]\n---\n# Title\n"],
)  # fmt: skip
def test_broken_front_matter_still_shows_the_card(local_hub, hub_api, card):
    repo = hub_api.create_repo("demo/broken-card", exist_ok=True, **DATASET).repo_id
    put_card(local_hub, repo, card)
    assert "<h1>Title</h1>" in page_of(local_hub, f"/datasets/{repo}")


def test_labels_have_their_names(tmp_path):
    def shown(metadata: bytes) -> list[str]:
        table = pa.table({"label": [1, 0, -1, 2, None]}).replace_schema_metadata({b"huggingface": metadata})
        pq.write_table(table, tmp_path / "x.parquet")
        return [row[0] for row in preview.first_rows(tmp_path / "x.parquet").rows]

    known = b'{"info": {"features": {"label": {"names": ["low", "high"], "_type": "ClassLabel"}}}}'
    assert shown(known) == ["1 (high)", "0 (low)", "-1", "2", ""]
    for broken in (b"", b"[]", b"7", b'{"info": []}', b'{"info": {"features": {"label": {"names": 7}}}}', b"\xff"):
        assert shown(broken) == ["1", "0", "-1", "2", ""]


def test_files_that_are_no_parquet(local_hub, hub_api, repo):
    whole = parquet(a=list(range(1000)))
    card = (
        "---\nconfigs:\n" + "".join(f"- {{config_name: c{n}, data_files: d{n}.parquet}}\n" for n in range(4)) + "---\n"
    )
    files = {"README.md": card, "d0.parquet": b"PAR1 no", "d1.parquet": whole[:-50] + bytes(50), "d3.parquet": whole}
    put(hub_api, repo, files | {"d2.parquet": whole[:40] + b"\xff" * 60 + whole[100:]})
    page = page_of(local_hub, f"/datasets/{repo}")
    assert page.count("cannot be read as parquet") >= 2 and "<td>4</td>" in page and "<td>5</td>" not in page


def test_what_takes_too_long_or_too_much_memory_is_left_out(local_hub, hub_api, repo, tmp_path, monkeypatch):
    script, python = tmp_path / "python", sys.executable
    for words in ("import time; time.sleep(60)", "bytearray(1 << 60)", "print('no json')"):
        script.write_text(f"#!{python}\n{words}\n")
        script.chmod(0o700)
        monkeypatch.setattr(preview.sys, "executable", str(script))
        monkeypatch.setattr(preview, "_SECONDS", 0.2)
        card = tmp_path / "card"
        card.write_text("# x")
        assert "took more than" in preview.preview(card, "/", ()).problem
    monkeypatch.undo()
    assert preview.preview(card, "/", ()).card == "<h1>x</h1>\n"  # a failure is not remembered


@pytest.mark.slow("waits for slow clients, large stores or old uploads")
def test_a_card_is_not_rendered_without_end():
    for text in ("[" * 300_000, "> " * 100_000, "*_" * 20_000, "`" * 300_000, "<div>" * 5_000):
        assert len(preview.render_card(text, "/")) < 2_000_000


def test_configs_in_all_forms():
    paths = ["README.md", "a/x-0.parquet", "a/x-1.parquet", "b/deep/y.parquet", "train.parquet"]

    def found(*listed):
        return [tuple(config) for config in configs({"configs": list(listed)}, paths)]

    assert found({"config_name": "c", "data_files": "a/*"}) == [("c", ["train"], "a/x-0.parquet")]
    assert found({"config_name": "c", "data_files": ["b/**", "a/*"]}) == [("c", ["train"], "b/deep/y.parquet")]
    both = [{"split": "s", "path": ["no", "a/x-1.parquet"]}, {"split": "t", "path": "a/*"}]
    assert found({"config_name": "c", "data_files": both}) == [("c", ["s", "t"], "a/x-1.parquet")]
    assert found({"config_name": "c", "data_files": "c/*.parquet"}) == [("default", [], "a/x-0.parquet")]
    assert configs({}, ["x.csv"]) == [] and configs({}, paths) == [Config("default", [], "a/x-0.parquet")]


def test_pages_need_nothing_from_elsewhere():
    text = "".join(path.read_text() for path in Path("hub_server/pages/templates").iterdir())
    assert "<script" not in text and "http" not in text.replace("https://huggingface", "")

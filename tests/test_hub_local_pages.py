"""What a person sees in a browser: real addresses, nothing that a repo's author wrote is live."""

from local_hub import ask

pytest_plugins = ["local_hub"]


def test_front_page_lists_public_repos_only(local_hub, hub_api):
    hub_api.create_repo("acme/shown", repo_type="dataset")
    hub_api.create_repo("acme/hidden", repo_type="dataset", private=True)
    page = ask(local_hub, "GET", "/").body.decode()
    assert 'href="/datasets/acme/shown"' in page and "acme/hidden" not in page and local_hub.endpoint in page
    assert ask(local_hub, "GET", "/datasets/acme/hidden").status == 401
    assert ask(local_hub, "GET", "/datasets/acme/none").status in (401, 404)


def test_a_repo_page_shows_card_and_files_and_runs_nothing(local_hub, hub_api, repo):
    card = "# Card <script>alert(1)</script> [x](javascript:alert(1))\n"
    hub_api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=repo, repo_type="dataset")
    name = 'data/a "b" <i>.txt'
    hub_api.upload_file(path_or_fileobj=b"1", path_in_repo=name, repo_id=repo, repo_type="dataset")
    hub_api.create_tag(repo, tag="v1", repo_type="dataset")
    answer = ask(local_hub, "GET", f"/datasets/{repo}")
    page = answer.body.decode()
    assert answer.status == 200 and "<script" not in page and "<i>" not in page and "javascript:alert(1))" in page
    assert f"load_dataset(&#34;{repo}&#34;)" in page and "tag v1" in page
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    link = page.split("resolve/main/data/")[1].split('"')[0]
    assert ask(local_hub, "GET", f"/datasets/{repo}/resolve/main/data/{link}").body == b"1"

"""The local Hub's guards: tokens, private repos, paths, signed addresses, hosts, ranges."""

import hashlib
from contextlib import closing

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from local_hub import ask, commit_body, file_line, post_commit, status_of, upload_address

from hub_server.storage.credentials import Actor, add_user, authenticate, ensure_token
from hub_server.storage.database import Database
from hub_server.storage.trees import make_lfs_pointer

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}
CONTENT = b"0123456789" * 10
OID = hashlib.sha256(CONTENT).hexdigest()


def upload_path(hub, repo, token="") -> str:
    return upload_address(hub, repo, OID, len(CONTENT), token)


@pytest.mark.parametrize(
    ("who", "status"), [("reader", 403), ("alice", 403), ("nobody", 401), ("wrong", 401)]
)
def test_tokens_without_the_right_change_nothing(who, status, local_hub, alice, hub_api, repo):
    reader = (local_hub.root / "token_read").read_text()
    token = {"reader": reader, "alice": alice.token, "nobody": "", "wrong": "hf_wrong"}[who]
    api, before = (
        HfApi(endpoint=local_hub.endpoint, token=token or False),
        hub_api.dataset_info(repo).sha,
    )
    for call, words in (
        (api.create_repo, {"repo_id": "acme/by-alice" if who == "alice" else f"demo/by-{who}"}),
        (api.delete_repo, {"repo_id": repo, **DATASET}),
        (api.create_tag, {"repo_id": repo, "tag": "t", **DATASET}),
        (api.update_repo_settings, {"repo_id": repo, "private": True, **DATASET}),
        (
            api.upload_file,
            {"path_or_fileobj": b"x", "path_in_repo": "x", "repo_id": repo, **DATASET},
        ),
    ):
        assert status_of(call, **words) == status, call
    batch = {"operation": "upload", "objects": [{"oid": OID, "size": 1}]}
    answers = ask(
        local_hub, "POST", f"/datasets/{repo}.git/info/lfs/objects/batch", batch, token=token
    )
    assert answers.status == status
    commit = commit_body(file_line("x", "x"))
    assert (
        ask(local_hub, "POST", f"/api/datasets/{repo}/commit/main", commit, token=token).status
        == status
    )
    assert hub_api.dataset_info(repo).sha == before and not hub_api.repo_exists(f"demo/by-{who}")


def test_a_damaged_token_file_gets_a_new_token(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(b"\xff\xfe")
    with closing(Database(tmp_path / "hub.sqlite")) as database:
        add_user(database, "demo")
        ensure_token(database, path, "demo", "write")
        actor = authenticate(database, f"Bearer {path.read_text()}")
    assert actor == Actor("demo", "write")


def test_who_a_token_is(local_hub, repo):
    assert (local_hub.root / "token_read").stat().st_mode & 0o777 == 0o600
    reader = HfApi(endpoint=local_hub.endpoint, token=(local_hub.root / "token_read").read_text())
    assert (
        reader.whoami()["auth"]["accessToken"]["role"] == "read"
        and reader.dataset_info(repo).id == repo
    )
    wrong = HfApi(endpoint=local_hub.endpoint, token="hf_wrong")
    assert status_of(wrong.whoami) == status_of(wrong.dataset_info, repo) == 401
    assert (
        status_of(HfApi(endpoint=local_hub.endpoint, token=False).dataset_info, "demo/nothing-here")
        == 401
    )
    assert (
        ask(local_hub, "GET", "/api/whoami-v2", Authorization=f"Basic {local_hub.token}").status
        == 401
    )


def test_private_repos_are_hidden(hub_api, alice, local_hub, repo):
    nobody = HfApi(endpoint=local_hub.endpoint, token=False)
    hub_api.upload_file(path_or_fileobj=b"secret", path_in_repo="s.txt", repo_id=repo, **DATASET)
    assert alice.file_exists(repo, "s.txt", **DATASET)
    hub_api.update_repo_settings(repo, private=True, **DATASET)
    assert hub_api.dataset_info(repo).private
    for other, status in ((alice, 404), (nobody, 401)):
        assert status_of(other.dataset_info, repo) == status
        assert repo not in {dataset.id for dataset in other.list_datasets()}
        with pytest.raises(RepositoryNotFoundError):
            list(other.list_repo_tree(repo, **DATASET))
    answer = ask(local_hub, "GET", f"/datasets/{repo}/resolve/main/s.txt")
    assert (
        answer.status == 401
        and b"secret" not in answer.body
        and answer.headers["X-Error-Code"] == "RepoNotFound"
    )


def test_forbidden_paths(local_hub, hub_api, repo):
    before = hub_api.dataset_info(repo).sha
    for path in ("../x", "", ".git/config", "a\x00b"):  # all: test_hub_server_rules
        assert post_commit(local_hub, repo, file_line(path, "")).status == 422
        asked = {"files": [{"path": path, "size": 1, "sample": ""}]}
        answer = ask(
            local_hub, "POST", f"/api/datasets/{repo}/preupload/main", asked, token=local_hub.token
        )
        assert answer.status == 422 and hub_api.dataset_info(repo).sha == before
    base = f"/datasets/{repo}/resolve"
    for path in (
        f"{base}/main/../../../../token",
        f"{base}/main/%2e%2e/%2e%2e/token",
        "/../token",
        "/datasets/..%2f..%2ftoken/resolve/main/x",
        f"{base}/%2e%2e/token",
    ):
        answer = ask(local_hub, "GET", path, token=local_hub.token)
        assert answer.status == 404 and b"hf_" not in answer.body


def test_forbidden_repo_names(local_hub):
    for name in (
        "a--b",
        "a..b",
        ".a",
        "a.git",
        "a/b",
        "",
        "a b",
        "é",
        "x" * 97,
        3,
        None,
        "\0",
        "\x1b[31m",
        "\ud800",
    ):
        for asked in (
            {"name": name, "type": "dataset"},
            {"name": "x", "organization": name or "no one"},
        ):
            status = ask(
                local_hub, "POST", "/api/repos/create", asked, token=local_hub.token
            ).status
            assert status == 400 or (status == 403 and "organization" in asked), asked


def test_signed_addresses_cannot_be_changed(hub_api, local_hub, repo):
    path = upload_path(local_hub, repo)
    assert local_hub.token not in path
    address, query = path.split("?")
    other = hashlib.sha256(b"other").hexdigest()
    for changed in (
        path.replace(OID, other),
        path.replace("/100/100/", "/101/101/"),
        path.replace("/lfs-upload/", "/lfs-upload/1"),
        path.replace("signature=1", "signature=9"),
        path[:-1] + ("0" if path[-1] != "0" else "1"),
        address,
        address + "?signature=",
    ):
        assert ask(local_hub, "PUT", changed, CONTENT).status in (403, 404), changed
    # signed for PUT of one part only
    assert ask(local_hub, "POST", path.replace("/1?", "?"), b"{}").status == 403
    assert query.startswith("signature=1")
    assert ask(local_hub, "PUT", path, CONTENT).status == 200
    hub_api.delete_repo(repo, **DATASET)  # the address dies with its repo
    hub_api.create_repo(repo, **DATASET)
    ask(local_hub, "PUT", path, CONTENT)
    assert upload_path(local_hub, repo)


def test_uploads_are_what_was_announced(local_hub, repo):
    path = upload_path(local_hub, repo)
    for body in (CONTENT[:-1], CONTENT + b"x", bytes(len(CONTENT))):
        assert ask(local_hub, "PUT", path, body).status == 400
    # chunked, without a length
    assert ask(local_hub, "PUT", path, iter([CONTENT, b"too much"])).status == 413
    line = ("lfsFile", {"path": "x.bin", "algo": "sha256", "oid": OID, "size": len(CONTENT)})
    assert post_commit(local_hub, repo, line).status == 400
    assert ask(local_hub, "PUT", path, iter([CONTENT[:50], CONTENT[50:]])).status == 200
    assert post_commit(local_hub, repo, line).status == 200
    assert not list((local_hub.root / "tmp").iterdir())


def test_knowing_a_hash_is_not_having_the_file(hub_api, alice, local_hub, repo):
    hub_api.upload_file(path_or_fileobj=CONTENT, path_in_repo="x.bin", repo_id=repo, **DATASET)
    hub_api.update_repo_settings(repo, private=True, **DATASET)
    theirs = alice.create_repo("alice/thief", **DATASET).repo_id
    line = ("lfsFile", {"path": "x.bin", "algo": "sha256", "oid": OID})
    assert post_commit(local_hub, theirs, line, token=alice.token).status == 400
    pointer = file_line("x.bin", make_lfs_pointer(OID, len(CONTENT)).decode())
    assert post_commit(local_hub, theirs, pointer, token=alice.token).status == 400
    # although the bytes are on the disk, they must be sent
    assert upload_path(local_hub, theirs, alice.token)
    assert not upload_path(local_hub, repo)


def test_only_the_own_host_is_served(local_hub):
    port = local_hub.endpoint.rsplit(":", 1)[1]
    for host, status in (
        (f"127.0.0.1:{port}", 200),
        ("evil.example", 421),
        (f"evil.example:{port}", 421),
        ("127.0.0.1", 421),
        (f"datasets-server.localhost:{port}", 404),
    ):
        assert ask(local_hub, "GET", "/", Host=host).status == status, host
    answer = ask(
        local_hub, "GET", "/api/datasets", Origin="http://evil.example", X_Request_Id="abc-123"
    )
    assert (
        answer.headers["Access-Control-Allow-Origin"] is None
        and answer.headers["X-Request-Id"] == "abc-123"
    )


def test_ranges_and_headers(hub_api, local_hub, repo):
    hub_api.upload_file(path_or_fileobj=CONTENT, path_in_repo="x.bin", repo_id=repo, **DATASET)
    path = f"/datasets/{repo}/resolve/main/x.bin"
    whole = ask(local_hub, "GET", path)
    assert (whole.status, whole.body, whole.headers["ETag"]) == (200, CONTENT, f'"{OID}"')
    assert whole.headers["X-Linked-Size"] == "100" and whole.headers["X-Linked-Etag"] == f'"{OID}"'
    assert whole.headers["X-Repo-Commit"] == hub_api.dataset_info(repo).sha
    head = ask(local_hub, "HEAD", path)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "100")
    for asked, start, end in (
        ("0-0", 0, 1),
        ("90-", 90, 100),
        ("-5", 95, 100),
        ("95-999", 95, 100),
    ):
        part = ask(local_hub, "GET", path, Range=f"bytes={asked}")
        assert (part.status, part.body) == (206, CONTENT[start:end])
        assert part.headers["Content-Range"] == f"bytes {start}-{end - 1}/100"
    refused = ask(local_hub, "GET", path, Range="bytes=100-")
    assert (refused.status, refused.headers["Content-Range"]) == (416, "bytes */100")


def test_bad_requests_are_not_server_errors(local_hub, repo):
    token, api = local_hub.token, f"/api/datasets/{repo}"
    batch_url = f"/datasets/{repo}.git/info/lfs/objects/batch"
    over = {"operation": "upload", "objects": [{"oid": OID, "size": 1 << 70}]}
    for method, path, body, status in (
        ("POST", f"{api}/commit/main", b"not json\n", 400),
        # git's messages cannot hold it
        ("POST", f"{api}/commit/main", commit_body(summary="a\0b"), 400),
        (
            "POST",
            f"{api}/commit/main",
            commit_body(("file", {"path": "x", "content": "!", "encoding": "base64"})),
            400,
        ),
        ("POST", f"{api}/commit/main", commit_body(file_line("x", "\ud800")), 400),
        # LFS alone takes it
        ("POST", f"{api}/commit/main", commit_body(file_line("x.txt", "x" * 10_000_001)), 400),
        (
            "POST",
            f"{api}/commit/main",
            commit_body(("lfsFile", {"path": "x", "oid": "../../token"})),
            400,
        ),
        ("POST", f"{api}/preupload/main", {"files": [{"path": "x", "size": 1}] * 257}, 413),
        ("POST", f"{api}/preupload/main", b"[" * 100_000, 400),
        ("POST", f"{api}/preupload/main", b"x" * (3 << 20), 413),
        ("POST", f"{api}/paths-info/main", {"paths": ["x"] * 1001}, 413),
        ("POST", batch_url, over, 400),
        ("GET", f"{api}/revision/%ff", None, 400),
        ("GET", f"{api}/tree/main?limit=x&cursor=y", None, 200),
        ("GET", f"{api}/commits/main?p={'9' * 5000}", None, 200),
    ):
        assert ask(local_hub, method, path, body, token=token).status == status, (
            method,
            path,
            body and body[:90],
        )


def test_card_checks(hub_api, local_hub, repo):
    # no: false
    for content, status in (
        ("---\nlicense: mit\n---\n", 200),
        ("---\nlanguage: [en, no]\n---\n", 400),
        ("---\nlicense: [mit, other]\n---\n", 200),
        ("---\nlicense: mitt\n---\n", 400),
        ("---\nlicense: Apache-2.0\n---\n", 400),
        ("---\nlicense: ''\n---\n", 400),
        ("---\nlicense:\n---\n", 200),
        ("---\nlicense: [mit, mixed-unlicensed]\n---\n", 400),
        (f"---\nlicense: {'x' * 100_000}\n---\n", 400),
    ):
        answer = ask(
            local_hub, "POST", "/api/validate-yaml", {"repoType": "dataset", "content": content}
        )
        assert answer.status == status and bool(answer.json()["errors"]) == (status == 400), content
    misspelt = {"repoType": "model", "content": "---\nlicense: mitt\n---\n"}
    (error,) = ask(local_hub, "POST", "/api/validate-yaml", misspelt).json()["errors"]
    assert "'mitt', which is not a licence of the Hub; did you mean 'mit'?" in error["message"]
    bad = b"---\ntags: x\n---\n"
    with pytest.raises(ValueError, match="must be an array"):
        hub_api.upload_file(path_or_fileobj=bad, path_in_repo="README.md", repo_id=repo, **DATASET)

"""Xet downloads: how files are laid out, whom the addresses serve, and ``hf_xet`` itself as the reader."""

import json
import random
import subprocess
import sys
import time

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from local_hub import Log, ask

from hub_server.handlers.xet import MAX_CHUNK
from hub_server.handlers.xet_reads import layout
from hub_server.process import LocalHub
from hub_server.storage.credentials import Signer

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


@pytest.fixture
def large(hub_api, repo) -> bytes:
    """What ``x.bin`` of the repo holds: three chunks, uploaded by LFS."""
    content = random.Random(0).randbytes(2 * MAX_CHUNK + 5)
    hub_api.upload_file(path_or_fileobj=content, path_in_repo="x.bin", repo_id=repo, **DATASET)
    return content


def reader(hub, repo: str, token: str | None = None) -> tuple[str, str]:
    """The path of a repo's Xet server and a token for reading, got without a user's token by default."""
    answer = ask(hub, "GET", f"/api/datasets/{repo}/xet-read-token/main", token=token)
    assert answer.status == 200, answer.body
    return answer.json()["casUrl"].removeprefix(hub.endpoint), answer.json()["accessToken"]


def xet_hash(hub, repo: str) -> str:
    return ask(hub, "HEAD", f"/datasets/{repo}/resolve/main/x.bin").headers["X-Xet-Hash"]


def unpacked(content: bytes) -> bytes:
    """The chunks of a piece of a xorb; none is compressed."""
    out, at = b"", 0
    while at < len(content):
        size = int.from_bytes(content[at + 1 : at + 4], "little")
        assert content[at] == content[at + 4] == 0 and content[at + 5 : at + 8] == content[at + 1 : at + 4]
        out, at = out + content[at + 8 : at + 8 + size], at + 8 + size
    return out


def test_runs_cover_what_is_asked_and_no_chunk_more():
    draw = random.Random(0)
    for _ in range(2000):
        size = draw.choice([1, MAX_CHUNK, 64 * MAX_CHUNK, draw.randrange(1, 300 * MAX_CHUNK)])
        first = draw.randrange(size)
        last = draw.randrange(first, size)
        chunks = [run.xorb * 64 + number for run in layout(size, first, last) for number in range(run.first, run.last)]
        assert chunks == list(range(first // MAX_CHUNK, last // MAX_CHUNK + 1))
        covered = min((chunks[-1] + 1) * MAX_CHUNK, size) - chunks[0] * MAX_CHUNK
        assert sum(run.size for run in layout(size, first, last)) == covered
        assert all(
            run.first < run.last <= 64 and run.place["end"] < 64 * (MAX_CHUNK + 8) for run in layout(size, 0, last)
        )


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_and_ranges_of_it_can_be_put_together(local_hub, repo, large, version):
    head = ask(local_hub, "HEAD", f"/datasets/{repo}/resolve/main/x.bin").headers
    commit = head["X-Repo-Commit"]
    token_url = f"{local_hub.endpoint}/api/datasets/{repo}/xet-read-token/{commit}"
    assert head["Link"] == f'<{token_url}>; rel="xet-auth"'
    listed = ask(local_hub, "GET", f"/api/datasets/{repo}/tree/main").json()
    assert [item.get("xetHash") for item in listed] == [None, head["X-Xet-Hash"]]
    path, token = reader(local_hub, repo)
    for first, last in ((0, len(large) - 1), (0, 0), (MAX_CHUNK - 1, MAX_CHUNK), (2 * MAX_CHUNK, 2 * MAX_CHUNK + 99)):
        address = f"{path}/v{version}/reconstructions/{head['X-Xet-Hash']}"
        answer = ask(local_hub, "GET", address, token=token, Range=f"bytes={first}-{last}").json()
        content = b""
        for term in answer["terms"]:
            (place,) = answer["xorbs" if version == 2 else "fetch_info"][term["hash"]]
            chunks, octets = place.get("range"), place.get("url_range")
            if version == 2:
                chunks, octets = place["ranges"][0]["chunks"], place["ranges"][0]["bytes"]
            assert chunks == term["range"]
            url = place["url"].removeprefix(local_hub.endpoint)
            got = ask(local_hub, "GET", url, Range=f"bytes={octets['start']}-{octets['end']}")
            assert got.status == 206 and len(got.body) == octets["end"] - octets["start"] + 1
            assert len(unpacked(got.body)) == term["unpacked_length"]
            content += unpacked(got.body)
        skipped = answer["offset_into_first_range"]
        assert content[skipped:][: last - first + 1] == large[first : last + 1]


def test_what_no_commit_has_is_not_there(local_hub, hub_api, repo, large):
    name = xet_hash(local_hub, repo)
    other = hub_api.create_repo("demo/xet-waiting", **DATASET).repo_id
    hub_api.preupload_lfs_files(other, [waiting := CommitOperationAdd("x.bin", large)], free_memory=False, **DATASET)
    path, token = reader(local_hub, other)
    for version in (1, 2):
        address = f"{path}/v{version}/reconstructions/{name}"
        assert ask(local_hub, "GET", address, token=token).status == 404
    hub_api.create_commit(other, [waiting], commit_message="now", **DATASET)
    assert ask(local_hub, "GET", address, token=token).status == 200


def test_any_range_of_a_xorb_is_that_of_the_whole(local_hub, repo, large):
    path, token = reader(local_hub, repo)
    address = f"{path}/v1/reconstructions/{xet_hash(local_hub, repo)}"
    (place,) = next(iter(ask(local_hub, "GET", address, token=token).json()["fetch_info"].values()))
    url = place["url"].removeprefix(local_hub.endpoint)
    whole, draw = ask(local_hub, "GET", url).body, random.Random(0)
    assert unpacked(whole) == large
    ends = [0, 7, 8, MAX_CHUNK + 7, MAX_CHUNK + 8, 2 * MAX_CHUNK + 16, len(whole) - 1]
    for first, last in (sorted(draw.choices(ends, k=2)) for _ in range(30)):
        got = ask(local_hub, "GET", url, Range=f"bytes={first}-{last}")
        assert got.headers["Content-Range"] == f"bytes {first}-{last}/{len(whole)}"
        assert got.body == whole[first : last + 1], (first, last)


def test_tokens_and_addresses_open_one_repo_for_reading(local_hub, hub_api, stranger, repo, large):
    path, token = reader(local_hub, repo)
    name = xet_hash(local_hub, repo)
    file = f"{path}/v2/reconstructions/{name}"
    assert ask(local_hub, "POST", f"{path}/v1/xorbs/default/{name}", b"x", token=token).status == 401
    assert ask(local_hub, "POST", f"{path}/v1/shards", b"x", token=token).status == 401
    expired = Signer(local_hub.root / "signing.key").sign("XET-READ", path.rpartition("/")[2], int(time.time()) - 1)
    for bad in (None, local_hub.token, expired, "x"):
        assert ask(local_hub, "GET", file, token=bad).status == 401
    other = stranger.create_repo("alice/xet-reader", exist_ok=True, **DATASET).repo_id
    elsewhere, key = reader(local_hub, other)
    assert ask(local_hub, "GET", f"{elsewhere}/v2/reconstructions/{name}", token=key).status == 404
    for asked in (f"bytes={len(large)}-", "bytes=2-1", "bytes=-5", "lines=1-2", "bytes=1-2,4-5"):
        refused = ask(local_hub, "GET", file, token=token, Range=asked)
        assert refused.status == 416 and refused.headers["Content-Range"] == f"bytes */{len(large)}"
    (place,) = ask(local_hub, "GET", file, token=token).json()["xorbs"].values()
    url = place[0]["url"].removeprefix(local_hub.endpoint)
    assert ask(local_hub, "GET", url).status == 206
    for wrong in (url.replace("/0?", "/1?"), url[:-1] + ("0" if url[-1] != "0" else "1"), url.partition("?")[0]):
        assert ask(local_hub, "GET", wrong).status == 403
    hub_api.update_repo_settings(repo, private=True, **DATASET)
    for who, status in ((None, 401), (stranger.token, 404), (local_hub.token, 200)):
        answer = ask(local_hub, "GET", f"/api/datasets/{repo}/xet-read-token/main", token=who)
        assert answer.status == status
    hub_api.delete_repo(repo, **DATASET)
    assert ask(local_hub, "GET", file, token=token).status == ask(local_hub, "GET", url).status == 404


READ = """
import json, os, sys
from pathlib import Path
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import build_hf_headers
from hf_xet import XetFileInfo, XetSession
assert not constants.HF_HUB_DISABLE_XET
api, repo = HfApi(), sys.argv[1]
content = os.urandom(9_000_000)
api.upload_file(path_or_fileobj=content, path_in_repo="x.bin", repo_id=repo, repo_type="dataset")
got = Path(api.snapshot_download(repo, repo_type="dataset")) / "x.bin"
found = api.get_hf_file_metadata(url=f"{api.endpoint}/datasets/{repo}/resolve/main/x.bin")
group = XetSession().new_download_stream_group(
    token_refresh_url=found.xet_file_data.refresh_route, token_refresh_headers=build_hf_headers()
)
info = XetFileInfo(found.xet_file_data.file_hash, len(content))
spans = (5, 8_500_000), (8_999_999, 9_000_000)
parts = [b"".join(group.download_stream(info, start=a, end=b)) == content[a:b] for a, b in spans]
by_lfs = Path(api.hf_hub_download(repo, "by_lfs.bin", repo_type="dataset")).read_bytes()
print(json.dumps([got.read_bytes() == content, parts, by_lfs.decode()]))
"""


@pytest.mark.parametrize("version", [1, 2])
def test_hf_xet_reads_what_it_and_what_lfs_uploaded(local_hub, hub_api, repo, tmp_path, version):
    hub_api.upload_file(path_or_fileobj=b"by LFS", path_in_repo="by_lfs.bin", repo_id=repo, **DATASET)
    log = Log(local_hub)
    environment = local_hub.client_environment(tmp_path) | {"HF_XET_CLIENT_RECONSTRUCTION_API_VERSION": str(version)}
    done = subprocess.run(
        [sys.executable, "-c", READ, repo], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True, [True, True], "by LFS"]
    read = log.lines("GET")
    assert len([line for line in read if f"/v{version}/reconstructions/" in line]) >= 4
    assert any("/v1/xorbs/" in line and " 206 " in line for line in read)
    assert not [line for line in read if "/resolve/" in line and ".bin" in line]  # nothing but heads of files


def test_the_server_names_contents_itself_and_leaves_no_log(tmp_path, monkeypatch):
    """What ``hf_xet`` computes there writes nothing into the cache of whoever started the server."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with LocalHub(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        repo = api.create_repo("demo/named", **DATASET).repo_id
        api.upload_file(path_or_fileobj=b"x" * 1000, path_in_repo="x.bin", repo_id=repo, **DATASET)
        # What hf_xet.hash_files of version 1.8.0 says of a thousand x.
        assert xet_hash(hub, repo) == "c0f80b821f74800f2a8d5d4dcf7299dc87e608fb2acdf79a3954ad4cdddfb429"
    assert not (tmp_path / "home").exists()

"""Xet uploads: unmodified clients with default settings, and the refusals of the gateway."""

import hashlib
import struct
import time

import pyarrow as pa
import pytest
from local_hub import Log, ask, post_commit, run_client

from hub_server.handlers.xet import TOKEN_SECONDS
from hub_server.storage.blobs import BlobStore
from hub_server.storage.credentials import Signer

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}
CONTENT = bytes(range(256)) * 40 + b"end"
END = b"\xff" * 32 + bytes(16)


def packed_hash(name: str) -> bytes:
    """A hash as shards hold it: each eight bytes in reverse."""
    return b"".join(bytes.fromhex(name[at : at + 16])[::-1] for at in range(0, 64, 16))


def chunk(content: bytes, scheme: int = 0, *, size: int | None = None) -> bytes:
    body = b"".join(content[place::4] for place in range(4)) if scheme == 2 else content
    body = body if scheme == 0 else pa.Codec("lz4").compress(body, asbytes=True)
    unpacked = (len(content) if size is None else size).to_bytes(3, "little")
    return b"\0" + len(body).to_bytes(3, "little") + bytes([scheme]) + unpacked + body


def shard(*files: tuple[str, list[tuple[str, int, int, int]]], flags: int = 0xC0000000) -> bytes:
    """Build a shard of (sha256, [(xorb, size, first chunk, last chunk)]) files, without xorbs."""
    out = b"HFRepoMetaData\0".ljust(32, b"\x55") + struct.pack("<2Q", 2, 0)
    for sha256, terms in files:
        out += bytes(32) + struct.pack("<2I8x", flags, len(terms))
        out += b"".join(
            packed_hash(xorb) + struct.pack("<4I", 0, *numbers) for xorb, *numbers in terms
        )
        out += bytes(48 * len(terms)) + packed_hash(sha256) + bytes(16)
    return out + END + END


class Space:
    """The Xet address of a repo."""

    def __init__(self, hub, repo: str, token: str = ""):
        self.hub = hub
        answer = ask(
            hub, "GET", f"/api/datasets/{repo}/xet-write-token/main", token=token or hub.token
        )
        self.info = answer.json()
        assert answer.headers["X-Xet-Cas-Url"] == self.info["casUrl"]
        assert answer.headers["X-Xet-Token-Expiration"] == str(self.info["exp"])
        self.path = self.info["casUrl"].removeprefix(hub.endpoint)

    def post(self, path: str, body: bytes, token: str = "") -> int:
        answer = ask(
            self.hub,
            "POST",
            f"{self.path}/v1/{path}",
            body,
            token=token or self.info["accessToken"],
        )
        return answer.status


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def commit(hub, repo, content: bytes, token="") -> int:
    """Commit a large file by its hash alone."""
    line = ("lfsFile", {"path": "x.bin", "algo": "sha256", "oid": sha(content)})
    return post_commit(hub, repo, line, token=token).status


@pytest.mark.parametrize("scheme", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, len(CONTENT)])
def test_chunks_of_all_kinds_become_plain_files(local_hub, hub_api, scheme, length):
    repo = hub_api.create_repo("demo/xet-kinds", exist_ok=True, **DATASET).repo_id
    space, content = Space(local_hub, repo), CONTENT[:length] + bytes([scheme])
    name = sha(b"xorb" + content)
    xorb = (
        chunk(b"not asked for")
        + chunk(content[: length // 2], scheme)
        + chunk(content[length // 2 :], scheme)
    )
    assert space.post(f"xorbs/default/{name}", xorb + b"XETBLOB footer") == 200
    terms = [(name, length // 2, 1, 2), (name, len(content) - length // 2, 2, 3)]
    assert (
        space.post("shards", shard((sha(content), terms)))
        == 200
        == commit(local_hub, repo, content)
    )
    assert ask(local_hub, "GET", f"/datasets/{repo}/resolve/main/x.bin").body == content


def test_a_hash_opens_nothing(local_hub, alice, repo):
    """Neither xorbs nor files of another repo, nor files that were described but not sent."""
    content, name = b"secret" * 100, sha(b"xorb")
    space = Space(local_hub, repo)
    assert space.post(f"xorbs/default/{name}", chunk(content)) == 200
    described = shard((sha(content), [(name, len(content), 0, 1)]))
    theirs = alice.create_repo("alice/xet-thief", exist_ok=True, **DATASET).repo_id
    thief = Space(local_hub, theirs, alice.token)
    assert thief.post("shards", described) == 400 == commit(local_hub, theirs, content, alice.token)
    assert (
        thief.path != space.path
        and space.post("shards", described, thief.info["accessToken"]) == 401
    )
    assert commit(local_hub, repo, content) == 400  # its shard has not come
    assert space.post("shards", described) == 200 == commit(local_hub, repo, content)
    assert thief.post("shards", described) == 400 and space.post("shards", described) == 200
    for token, status in (
        (alice.token, 403),
        ((local_hub.root / "token_read").read_text(), 403),
        (None, 401),
    ):
        answer = ask(local_hub, "GET", f"/api/datasets/{repo}/xet-write-token/main", token=token)
        assert answer.status == status


def test_tokens_expire_and_fit_one_address(local_hub, hub_api, repo):
    space = Space(local_hub, repo)
    body, path = chunk(b"x"), f"xorbs/default/{sha(b'x')}"
    name = space.path.rpartition("/")[2]
    expired = Signer(local_hub.root / "signing.key").sign("XET", name, int(time.time()) - 1)
    for bad in (expired, local_hub.token, "x", "9-é", space.info["accessToken"] + "0"):
        assert space.post(path, body, bad) == 401, bad
    assert 0 < space.info["exp"] - time.time() <= TOKEN_SECONDS
    hub_api.delete_repo(repo, **DATASET)
    assert space.post(path, body) == 404


def test_malformed_xorbs_and_shards_are_refused(local_hub, repo):
    space, name = Space(local_hub, repo), sha(b"name")
    assert ask(local_hub, "POST", f"{space.path}/v1/xorbs/default/../../x", b"").status == 404
    content = b"content"
    described = [
        shard((sha(content), [(name, size, 0, 1)])) for size in (6, 7, 8, 1 << 17, 1 + (1 << 17))
    ]
    for bad in (b"", b"\0", b"\0\1\0\0", chunk(content)[:-1], chunk(b"x" * (128 * 1024 + 1)),
                b"XETBLOB", b"\0\7\0\0\3\7\0\0content", chunk(content, 1)[:-4] + b"\xff" * 4,
                chunk(content, 1, size=6),
                chunk(content, 2, size=8), chunk(b"another")):  # fmt: skip
        assert space.post(f"xorbs/default/{name}", bad) == 200  # it is read when a shard needs it
        assert [space.post("shards", body) for body in described] == [400] * 5, bad[:20]
    # the complete xorb replaces the bad one
    assert space.post(f"xorbs/default/{name}", chunk(content, 1)) == 200
    good = shard((sha(content), [(name, 7, 0, 1)]))
    for bad in (b"", b"x" * 100, good[:48], good[:100], good[:200], good[:32] + b"\3" + good[33:],
                shard((sha(content), [(name, 7, 0, 2), (name, 7, 1, 2)])),
                shard((sha(content), [(name, 7, 1, 0)])),
                shard((sha(content), [(sha(b"unknown"), 7, 0, 1)])),
                shard((sha(content), [(name, 7, 0, 1)]), flags=0x80000000)):  # fmt: skip
        assert space.post("shards", bad) == 400
    assert commit(local_hub, repo, content) == 400
    assert space.post("shards", good) == 200 == space.post("shards", shard())
    too_much = [b"\0" * (1 << 20)] * 66
    for path in ("shards", f"xorbs/default/{name}"):
        assert space.post(path, iter(too_much)) == 413
    assert not list((local_hub.root / "tmp").iterdir())


def test_a_full_xorb(local_hub, repo):
    """64 MiB of chunks that do not compress, and the headers and the footer of a client."""
    part = bytes(range(256)) * 512
    space, name, content = Space(local_hub, repo), sha(b"full"), part * 512
    assert (
        space.post(f"xorbs/default/{name}", chunk(part) * 512 + b"XETBLOB".ljust(40_000, b"x"))
        == 200
    )
    assert space.post("shards", shard((sha(content), [(name, len(content), 0, 512)]))) == 200
    assert len(content) == 64 << 20 and commit(local_hub, repo, content) == 200


def test_a_xorb_and_a_shard_unpack_to_a_bounded_number_of_bytes(local_hub, repo):
    space = Space(local_hub, repo)
    zeros = chunk(bytes(128 << 10), 1)  # a few hundred bytes
    described = (128 << 10) * 8
    bombs = {"bytes": zeros * 513, "chunks": b"\0\0\0\0\0\0\0\0" * 8193}
    for kind, xorb in bombs.items():
        name = sha(kind.encode())
        assert len(xorb) < 1 << 20 and space.post(f"xorbs/default/{name}", xorb) == 200
        answer = ask(
            local_hub,
            "POST",
            f"{space.path}/v1/shards",
            shard((sha(b"x"), [(name, described, 0, 8)])),
            token=space.info["accessToken"],
        )
        assert answer.status == 400 and "The xorb is too large" in answer.json()["error"]

    # Many terms repeat one good xorb.
    name = sha(b"good")
    assert space.post(f"xorbs/default/{name}", zeros * 512) == 200
    term = (name, 64 << 20, 0, 512)
    started = time.monotonic()
    assert space.post("shards", shard((sha(b"x"), [term] * 1_000))) == 413  # 67 GB
    files = [(sha(bytes([number])), [term] * 700) for number in range(200)]  # 9 TB
    assert space.post("shards", shard(*files)) == 413
    assert time.monotonic() - started < 60  # to unpack them would take hours
    assert not list((local_hub.root / "tmp").iterdir())


def test_a_file_for_which_the_disk_has_no_room_is_refused_before_it_is_written(tmp_path):
    store = BlobStore(tmp_path)
    store.require_free_space(1)
    with pytest.raises(OSError, match="No space left"):
        store.require_free_space(1 << 60)


UPLOAD = """
import json, sys
from pathlib import Path
from huggingface_hub import HfApi, constants
assert not constants.HF_HUB_DISABLE_XET
api, where, seed = HfApi(), {"repo_id": sys.argv[1], "repo_type": "dataset"}, int(sys.argv[2])
content = b"".join((seed + n).to_bytes(4, "big") * 50 for n in range(20_000))
files = {"x.bin": content, "w/y.safetensors": content[::-7], "empty.bin": b""}
files["deep/a/b.txt"] = b"b" * 1000
for path, data in files.items():
    Path("source", path).parent.mkdir(parents=True, exist_ok=True)
    Path("source", path).write_bytes(data)
done = api.upload_folder(**where, folder_path="source")
got = Path(api.snapshot_download(**where, revision=done.oid, cache_dir="fresh" + done.oid))
sums = api.verify_repo_checksums(**where, local_dir=got, revision=done.oid)
same = all((got / path).read_bytes() == data for path, data in files.items())
print(json.dumps(sums.mismatches == [] and same))
"""


def upload(hub, home, repo: str, seed: int) -> bool:
    return run_client(hub, home, UPLOAD, repo, str(seed))


def test_a_client_sends_new_chunks_only_and_no_repo_uses_anothers(local_hub, hub_api, tmp_path):
    first, second = (hub_api.create_repo(f"demo/xet-{n}", **DATASET).repo_id for n in "ab")
    assert upload(local_hub, tmp_path / "home", first, 0)
    log = Log(local_hub)
    # nearly the same bytes, a cache that knows the first
    assert upload(local_hub, tmp_path / "home", first, 1)
    sent = [line for line in log.lines("POST") if "/v1/xorbs/" in line]
    assert sum(int(line.split(", ")[1].split()[0]) for line in sent) < 400_000 and not log.lines(
        "PUT"
    )
    log = Log(local_hub)
    assert upload(local_hub, tmp_path / "home", second, 0)
    assert any("/v1/xorbs/" in line for line in log.lines("POST"))
    hub_api.delete_repo(first, **DATASET)
    hub_api.create_repo(first, **DATASET)
    # the client's cache is of a repo that is gone
    assert upload(local_hub, tmp_path / "home", first, 0)

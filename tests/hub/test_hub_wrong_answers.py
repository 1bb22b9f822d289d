"""An answer that no Hub gives is never taken for one: not for an empty branch, a tag that was set,
an account.
"""

import itertools
import re
import ssl
from collections.abc import Iterable
from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import hf_raise_for_status

from sts_dino.hub.client import connection as client
from sts_dino.hub.client.connection import WrongAnswer, fetch_account
from sts_dino.hub.client.fetch import resolve_commit
from sts_dino.hub.client.repository import Repository, unwrap_errors
from sts_dino.hub.errors import InputError, RunError

COMMIT = "0" * 40


def hub(**answers: object) -> SimpleNamespace:
    """A client whose calls answer so."""
    return SimpleNamespace(
        **{name: lambda *_, found=found, **__: found for name, found in answers.items()}
    )


def repository(**answers: object) -> Repository:
    return Repository(hub(**answers), "acme/pairs", "dataset")


def test_no_files_where_the_branch_has_some_would_be_taken_for_nobodys():
    with pytest.raises(WrongAnswer, match="a list of files without any"):
        repository(list_repo_tree=[], repo_info=SimpleNamespace(siblings=["a"])).get_commit(COMMIT)
    assert (
        repository(list_repo_tree=[], repo_info=SimpleNamespace(siblings=[]))
        .get_commit(COMMIT)
        .files
        == {}
    )


def test_a_branch_has_a_commit():
    for sha in (None, "main", 7):
        with pytest.raises(WrongAnswer, match="a branch without a commit"):
            repository(repo_info=SimpleNamespace(sha=sha)).get_branch()


@pytest.mark.parametrize("sha", [None, "", "main"])
def test_a_revision_has_a_commit_and_no_other_text_is_cached(sha, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "huggingface_hub.HfApi.repo_info", lambda *_, **__: SimpleNamespace(sha=sha)
    )
    with pytest.raises(WrongAnswer, match="a revision without a commit"):
        resolve_commit("acme/pairs", "v1.0.0")
    assert not list(tmp_path.iterdir())


def test_a_tag_is_set_when_it_is_there():
    tag = SimpleNamespace(name="v1.0.0", target_commit=COMMIT)
    repository(create_tag=None, list_repo_refs=SimpleNamespace(tags=[tag])).set_tag(
        "v1.0.0", COMMIT
    )
    for found in ([], [SimpleNamespace(name="v1.0.0", target_commit="1" * 40)]):
        with pytest.raises(WrongAnswer, match=r"the tag v1\.0\.0 was set and is not there"):
            repository(create_tag=None, list_repo_refs=SimpleNamespace(tags=found)).set_tag(
                "v1.0.0", COMMIT
            )


@pytest.mark.parametrize(
    "said", [{}, [], None, {"name": ""}, {"name": "me", "orgs": [{}]}, {"name": "me", "orgs": 1}]
)
def test_an_account_has_a_name(said):
    with pytest.raises(WrongAnswer, match="an account without"):
        fetch_account(hub(whoami=said))


@pytest.mark.parametrize(
    ("status", "said", "kind", "problem"),
    [
        (404, "RepoNotFound", InputError, "no such repository, or no access to it"),
        (
            401,
            "RepoNotFound",
            InputError,
            "no such repository, or a private one: without a valid token",
        ),
        (403, "", RunError, "is forbidden: the Hub answered 403"),
    ],
)
def test_an_absent_a_private_and_a_forbidden_repository_have_their_own_reasons(
    status, said, kind, problem
):
    request = httpx2.Request("GET", "http://hub.example/api/datasets/acme/pairs")
    answer = httpx2.Response(status, headers={"x-error-code": said}, request=request)
    with (
        pytest.raises(kind, match=f"acme/pairs at .*: {problem}"),
        client.convert_read_errors("acme/pairs", None),
    ):
        hf_raise_for_status(answer)


def redirected(method: str, path: str, location: str) -> httpx2.Response:
    request = httpx2.Request(method, f"http://hub.example{path}")
    return httpx2.Response(307, headers={"location": location}, request=request)


def test_a_request_that_changes_something_is_not_led_to_somebody_else():
    for method, path in (
        ("POST", "/api/datasets/acme/pairs/commit/main"),
        ("GET", "/api/whoami-v2"),
    ):
        with pytest.raises(WrongAnswer, match=r"the request is sent on to elsewhere\.example"):
            client._check_response(redirected(method, path, "http://elsewhere.example/"))
    # a repository that was renamed
    client._check_response(redirected("GET", "/api/datasets/Old", "/api/datasets/acme/new"))
    # a large file
    client._check_response(
        redirected("GET", "/datasets/acme/pairs/resolve/main/a", "http://cdn.example/a")
    )


def test_a_drip_of_bytes_is_no_answer(monkeypatch):
    clock = itertools.count(0, 60)  # seconds: a minute for each look at it
    monkeypatch.setattr(client.time, "monotonic", lambda: float(next(clock)))
    read = list[bytes]()
    with pytest.raises(httpx2.ReadTimeout, match="bytes in"):
        for chunk in client._Body(_Chunks([b"x"] * 100), is_bounded=False):
            read.append(chunk)
    assert len(read) < 10
    assert (
        len(list(client._Body(_Chunks([b"x" * 100_000] * 100), is_bounded=False))) == 100
    )  # slow, and coming


class _Chunks(httpx2.SyncByteStream):
    def __init__(self, chunks: Iterable[bytes]):
        self._chunks = chunks

    def __iter__(self):
        yield from self._chunks


def checked_answer(body: bytes, path: str, **headers: str) -> httpx2.Response:
    """An answer with the client's checks."""
    request = httpx2.Request("GET", f"http://hub.example{path}")
    answer = httpx2.Response(200, headers=headers, request=request, stream=_Chunks([body]))
    client._check_response(answer)
    return answer


def test_an_answer_has_a_bounded_number_of_bytes_and_a_download_any(monkeypatch):
    monkeypatch.setattr(client, "MOST_ANSWER_BYTES", 3 << 20)
    body = bytes(4 << 20)
    assert len(checked_answer(body, "/datasets/a/b/resolve/main/x").read()) == len(body)
    with pytest.raises(WrongAnswer, match="an answer of more than 3 MiB"):
        checked_answer(body, "/api/datasets/a/b").read()


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "x"])
def test_an_encoding_that_was_not_asked_for_is_no_answer(encoding):
    with pytest.raises(WrongAnswer, match="an answer with the encoding"):
        checked_answer(b"x", "/api/datasets/a/b", **{"content-encoding": encoding})


def refusal(status: int, message: str = "", **headers: str) -> Exception:
    request = httpx2.Request("POST", "http://hub.example/api/x")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx2.Response(status, headers=named, json={"error": message}, request=request)
    with pytest.raises(HfHubHTTPError) as error:
        hf_raise_for_status(answer)
    return error.value


@pytest.mark.parametrize(
    ("error", "reason", "absent"),
    [
        (refusal(403, "Private repository storage limit reached"), "storage .* used up", "token"),
        (refusal(413, "The storage quota has 3 bytes left"), "storage .* used up", "too large for"),
        (refusal(403, "This token has the role 'read'"), "the role 'read'.* its message says", "x"),
        (refusal(404, "Not Found"), "is HF_ENDPOINT right", "check the repository id"),
        (refusal(404, "gone", x_error_code="RepoNotFound"), "check the repository id", "ENDPOINT"),
        (refusal(407, "auth"), "the proxy asks for a password", "run the same command"),
        (refusal(409, "Reference a cannot exist next to a/b"), "rename or remove", "state"),
        (refusal(507, "no permission to write"), "its message says why", "disk is full"),
        (httpx2.ProxyError("407"), "the proxy refused .* are HTTP_PROXY", "is it running"),
        (httpx2.ReadTimeout("x"), "did not answer in time", "cannot be reached|is it running"),
        (httpx2.WriteTimeout("x"), "stopped receiving", "cannot be reached|is it running"),
        (httpx2.ReadError("x"), "broke off", "cannot be reached|is it running"),
        (httpx2.RemoteProtocolError("x"), "broke off", "cannot be reached|is it running"),
        (ConnectionResetError(104, "x"), "broke off", "cannot be reached|is it running"),
        (
            httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] x"),
            "certificate .* SSL_CERT_FILE",
            "is it running",
        ),
        (httpx2.ConnectError("refused"), "cannot be reached .* is it running", "proxy"),
    ],
    ids=lambda item: str(item)[:30],
)
def test_an_error_names_the_right_reason(error, reason, absent):
    words = str(client.convert_error("publish a/b", error))
    assert re.search(reason, words) and not re.search(absent, words), words


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (28, "free some"),
        (13, "change its permissions"),
        (30, "is read-only; choose another folder"),
        (24, "ulimit -n"),
        (36, "shorten it"),
    ],
)
def test_a_failing_disk_is_named_with_its_own_remedy(number, hint):
    for error in (OSError(number, "x", "/d/f"), OSError(f"Data processing (os error {number})")):
        with pytest.raises(RunError, match=hint) as reported, unwrap_errors("/d"):
            raise error
        assert ("free some" in str(reported.value)) == (number == 28)
    with pytest.raises(ssl.SSLError), unwrap_errors():  # its number 1 is no EPERM
        raise ssl.SSLError("handshake")


def test_a_read_that_the_hub_refused_is_no_silence():
    """The client library reports both as a file that is not cached."""
    outer = LocalEntryNotFoundError("not cached")
    outer.__cause__ = refusal(503, "maintenance")
    with (
        pytest.raises(RunError, match="the Hub answered 503: maintenance"),
        client.convert_read_errors("acme/pairs", None),
    ):
        raise outer

"""An answer that no Hub gives is never taken for one: not for an empty branch, a tag that was set, an account."""

import itertools
from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub.utils import hf_raise_for_status

from hub.client import connection as client
from hub.client.connection import WrongAnswer, account
from hub.client.repository import Repository
from hub.errors import InputError, RunError

COMMIT = "0" * 40


def hub(**answers: object) -> SimpleNamespace:
    """A client whose calls answer so."""
    return SimpleNamespace(**{name: lambda *_, found=found, **__: found for name, found in answers.items()})


def repository(**answers: object) -> Repository:
    return Repository(hub(**answers), "acme/pairs", "dataset")


def test_no_files_where_the_branch_has_some_would_be_taken_for_nobodys():
    with pytest.raises(WrongAnswer, match="a list of files without any"):
        repository(list_repo_tree=[], repo_info=SimpleNamespace(siblings=["a"])).at(COMMIT)
    assert repository(list_repo_tree=[], repo_info=SimpleNamespace(siblings=[])).at(COMMIT).files == {}


def test_a_branch_has_a_commit():
    for sha in (None, "main", 7):
        with pytest.raises(WrongAnswer, match="a branch without a commit"):
            repository(repo_info=SimpleNamespace(sha=sha)).branch()


def test_a_tag_is_set_when_it_is_there():
    tag = SimpleNamespace(name="v1.0.0", target_commit=COMMIT)
    repository(create_tag=None, list_repo_refs=SimpleNamespace(tags=[tag])).set_tag("v1.0.0", COMMIT)
    for found in ([], [SimpleNamespace(name="v1.0.0", target_commit="1" * 40)]):
        with pytest.raises(WrongAnswer, match=r"the tag v1\.0\.0 was set and is not there"):
            repository(create_tag=None, list_repo_refs=SimpleNamespace(tags=found)).set_tag("v1.0.0", COMMIT)


@pytest.mark.parametrize("said", [{}, [], None, {"name": ""}, {"name": "me", "orgs": [{}]}, {"name": "me", "orgs": 1}])
def test_an_account_has_a_name(said):
    with pytest.raises(WrongAnswer, match="an account without"):
        account(hub(whoami=said))


@pytest.mark.parametrize(
    ("status", "said", "kind", "problem"),
    [
        (404, "RepoNotFound", InputError, "no such repository, or no access to it"),
        (401, "RepoNotFound", InputError, "no such repository, or a private one: without a valid token"),
        (403, "", RunError, "is forbidden: the Hub answered 403"),
    ],
)
def test_an_absent_a_private_and_a_forbidden_repository_have_their_own_reasons(status, said, kind, problem):
    request = httpx2.Request("GET", "http://hub.example/api/datasets/acme/pairs")
    answer = httpx2.Response(status, headers={"x-error-code": said}, request=request)
    with pytest.raises(kind, match=f"acme/pairs at .*: {problem}"), client.reading("acme/pairs", None):
        hf_raise_for_status(answer)


def redirected(method: str, path: str, location: str) -> httpx2.Response:
    request = httpx2.Request(method, f"http://hub.example{path}")
    return httpx2.Response(307, headers={"location": location}, request=request)


def test_a_request_that_changes_something_is_not_led_to_somebody_else():
    for method, path in (("POST", "/api/datasets/acme/pairs/commit/main"), ("GET", "/api/whoami-v2")):
        with pytest.raises(WrongAnswer, match=r"the request is sent on to elsewhere\.example"):
            client._checked(redirected(method, path, "http://elsewhere.example/"))
    client._checked(redirected("GET", "/api/datasets/Old", "/api/datasets/acme/new"))  # a repository that was renamed
    client._checked(redirected("GET", "/datasets/acme/pairs/resolve/main/a", "http://cdn.example/a"))  # a large file


def test_a_drip_of_bytes_is_no_answer(monkeypatch):
    clock = itertools.count(0, 60)  # seconds: a minute for each look at it
    monkeypatch.setattr(client.time, "monotonic", lambda: float(next(clock)))
    read = list[bytes]()
    with pytest.raises(httpx2.ReadTimeout, match="bytes in"):
        for chunk in client._Flowing(_Chunks(b"x", 100)):
            read.append(chunk)
    assert len(read) < 10
    assert len(list(client._Flowing(_Chunks(b"x" * 100_000, 100)))) == 100  # slow, and coming


class _Chunks(httpx2.SyncByteStream):
    def __init__(self, chunk: bytes, count: int):
        self._chunks = [chunk] * count

    def __iter__(self):
        yield from self._chunks

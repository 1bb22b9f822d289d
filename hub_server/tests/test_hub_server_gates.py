"""Gated repos: who reads their files, and how owners let users in; which repos a listing shows."""

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import BadRequestError, GatedRepoError, HfHubHTTPError
from local_hub import ask, mint

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


@pytest.fixture
def gated(hub_api, repo) -> str:
    hub_api.upload_file(path_or_fileobj=b"rows" * 100, path_in_repo="x.bin", repo_id=repo, **DATASET)
    hub_api.update_repo_settings(repo, gated="manual", **DATASET)
    return repo


def status_of(call, *args, **kwargs) -> int:
    with pytest.raises(HfHubHTTPError) as caught:
        call(*args, **kwargs)
    return caught.value.response.status_code


def test_settings_are_kept_and_nonsense_is_refused(hub_api, local_hub, repo):
    for gate, private in (("manual", True), ("auto", False), (False, True)):
        hub_api.update_repo_settings(repo, gated=gate, private=private, **DATASET)
        info = hub_api.dataset_info(repo)
        assert (info.gated, info.private) == (gate, private)
    hub_api.update_repo_settings(repo, visibility="public", **DATASET)
    hub_api.update_repo_settings(repo, gated="auto", **DATASET)
    assert not hub_api.dataset_info(repo).private
    path = f"/api/datasets/{repo}/settings"
    for body in (
        {"gated": "yes"},
        {"gated": True},
        {"gated": ["auto"]},
        {"visibility": "hidden"},
        {"private": "x"},
        [1],
    ):
        assert ask(local_hub, "PUT", path, body, token=local_hub.token).status == 400, body
    assert hub_api.dataset_info(repo).gated == "auto"


def test_only_those_let_in_read_the_files(local_hub, hub_api, stranger, gated, tmp_path):
    anonymous = HfApi(endpoint=local_hub.endpoint, token=False)
    read = {"repo_id": gated, "filename": "x.bin", "cache_dir": tmp_path, **DATASET}
    for api, status in ((stranger, 403), (anonymous, 401)):
        assert api.dataset_info(gated).gated == "manual"  # the repo is no secret
        assert "x.bin" in api.list_repo_files(gated, **DATASET)
        with pytest.raises(GatedRepoError, match=r"Access to dataset .* is restricted") as caught:
            api.hf_hub_download(**read)
        assert caught.value.response.status_code == status
        with pytest.raises(GatedRepoError):
            api.auth_check(gated, **DATASET)
        token = api.token or None
        assert ask(local_hub, "GET", f"/api/datasets/{gated}/xet-read-token/main", token=token).status == status
    assert hub_api.hf_hub_download(**read)
    hub_api.grant_access(gated, "ALICE", **DATASET)
    stranger.auth_check(gated, **DATASET)
    assert stranger.hf_hub_download(**read)
    assert status_of(stranger.auth_check, gated, write=True, **DATASET) == 403


def test_requests_go_from_state_to_state(hub_api, local_hub, stranger, gated):
    lists = (
        hub_api.list_pending_access_requests, hub_api.list_accepted_access_requests,
        hub_api.list_rejected_access_requests,
    )  # fmt: skip

    def states() -> list[list[str]]:
        return [[request.username for request in listing(gated, **DATASET)] for listing in lists]

    assert states() == [[], [], []]
    assert status_of(hub_api.accept_access_request, gated, "alice", **DATASET) == 404
    for nobody in ("nobody", "acme"):
        assert status_of(hub_api.grant_access, gated, nobody, **DATASET) == 404
    hub_api.grant_access(gated, "alice", **DATASET)
    assert status_of(hub_api.grant_access, gated, "alice", **DATASET) == 400
    (request,) = hub_api.list_accepted_access_requests(gated, **DATASET)
    assert states() == [[], ["alice"], []] and request.status == "accepted" and request.timestamp
    hub_api.cancel_access_request(gated, "alice", **DATASET)
    assert states() == [["alice"], [], []]
    hub_api.reject_access_request(gated, "alice", rejection_reason="no", **DATASET)
    assert states() == [[], [], ["alice"]]
    assert status_of(hub_api.reject_access_request, gated, "alice", rejection_reason=None, **DATASET) == 400
    assert status_of(stranger.auth_check, gated, **DATASET) == 403
    hub_api.accept_access_request(gated, request_id=request.request_id, **DATASET)
    stranger.auth_check(gated, **DATASET)
    for call in (stranger.grant_access, stranger.accept_access_request):
        assert status_of(call, gated, "alice", **DATASET) == 403
    assert status_of(list, stranger.list_accepted_access_requests(gated, **DATASET)) == 403
    reader = mint(local_hub, "demo", "read")
    path = f"/api/datasets/{gated}/user-access-request"
    assert ask(local_hub, "POST", f"{path}/grant", {"user": "alice"}, token=reader).status == 403
    for body in ({}, {"user": 1}, {"user": "alice", "status": "x"}, {"status": "accepted"}, "[", {"user": "a\0b"}):
        for verb in ("grant", "handle"):
            assert ask(local_hub, "POST", f"{path}/{verb}", body, token=local_hub.token).status in (400, 404), body
    hub_api.update_repo_settings(gated, gated=False, **DATASET)
    assert status_of(hub_api.grant_access, gated, "alice", **DATASET) == 400


def test_pages_show_no_rows_of_gated_repos(local_hub, hub_api, repo):
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["a secret row"]}), sink)
    rows = sink.getvalue().to_pybytes()
    hub_api.upload_file(path_or_fileobj=rows, path_in_repo="train.parquet", repo_id=repo, **DATASET)
    assert b"a secret row" in ask(local_hub, "GET", f"/datasets/{repo}").body
    hub_api.update_repo_settings(repo, gated="auto", **DATASET)
    page = ask(local_hub, "GET", f"/datasets/{repo}")
    assert page.status == 200 and b"a secret row" not in page.body and b"This repo is gated" in page.body


def test_listings_filter_by_what_they_are_asked_for(local_hub, hub_api):
    names = [hub_api.create_repo(f"acme/listed-{n}").repo_id for n in range(3)]
    hub_api.update_repo_settings(names[0], gated="auto")
    card = b"---\npipeline_tag: sentence-similarity\nlicense: mit\n---\n"
    hub_api.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=names[1])

    def listed(**options) -> set[str]:
        return {model.id for model in hub_api.list_models(author="acme", search="listed-", **options)}

    assert listed() == set(names) and listed(gated=True) == {names[0]} and listed(gated=False) == set(names[1:])
    assert listed(pipeline_tag="sentence-similarity") == listed(filter="license:mit") == {names[1]}
    assert len(list(hub_api.list_models(author="acme", search="listed-", limit=2))) == 2
    for order in ("created_at", "last_modified", "likes", "downloads", "trending_score"):
        assert listed(sort=order) == set(names)
    (model,) = hub_api.list_models(author="acme", search="listed-1", expand=["gated"])
    assert model.gated is False and model.sha is None
    for option in ({"apps": "x"}, {"inference": "warm"}, {"inference_provider": "all"}, {"num_parameters": "min:1B"}):
        with pytest.raises(BadRequestError, match="cannot filter"):
            listed(**option)

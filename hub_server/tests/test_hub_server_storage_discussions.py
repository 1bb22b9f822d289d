"""Discussions and pull requests through the official client: who may do what, conflicts, merges."""

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    BadRequestError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from local_hub import ask, commit_body, file_line, mint

pytest_plugins = ["local_hub"]
DATASET = {"repo_type": "dataset"}


def status_of(call, *args, **kwargs) -> int:
    with pytest.raises(HfHubHTTPError) as caught:
        call(*args, **kwargs)
    return caught.value.response.status_code


def propose(api: HfApi, repo: str, *operations, **options):
    done = api.create_commit(repo, operations, commit_message="A change", create_pr=True, **options, **DATASET)
    return api.get_discussion_details(repo, done.pr_num, **DATASET)


def add(path: str, content: str = "") -> CommitOperationAdd:
    return CommitOperationAdd(path, content.encode())


def text(api: HfApi, repo: str, path: str, revision: str = "main") -> str:
    return Path(api.hf_hub_download(repo, path, revision=revision, **DATASET)).read_text()


def test_what_is_said_is_kept(hub_api, stranger, repo):
    opened = stranger.create_discussion(repo, "  Which licence?  ", description="The card says none.", **DATASET)
    assert (opened.num, opened.title, opened.author, opened.status) == (1, "Which licence?", "alice", "open")
    assert opened.url == f"{hub_api.endpoint}/datasets/{repo}/discussions/1" and opened.git_reference is None
    said = hub_api.comment_discussion(repo, 1, "MIT & <b>free</b>", **DATASET)
    assert said.rendered == "<pre>MIT &amp; &lt;b&gt;free&lt;/b&gt;</pre>"
    edited = hub_api.edit_discussion_comment(repo, 1, said.id, "Apache-2.0", **DATASET)
    assert edited.edited and edited.content == "Apache-2.0" and edited.number_of_edits == 1
    renamed = stranger.rename_discussion(repo, 1, "Licence", **DATASET)
    assert (renamed.old_title, renamed.new_title) == ("Which licence?", "Licence")
    closed = hub_api.change_discussion_status(repo, 1, "closed", comment="done", **DATASET)
    assert closed.new_status == "closed"
    with pytest.warns(UserWarning, match="irreversible"):
        hidden = hub_api.hide_discussion_comment(repo, 1, opened.events[0].id, **DATASET)
    assert hidden.hidden and hidden.content == "" and hidden.number_of_edits == 0
    found = hub_api.get_discussion_details(repo, 1, **DATASET)
    kinds = ["comment", "comment", "title-change", "comment", "status-change"]
    assert [event.type for event in found.events] == kinds and found.events[1] == edited
    assert found.status == "closed" and found.title == "Licence"


def test_who_may_do_what(local_hub, hub_api, stranger, repo):
    hub_api.create_discussion(repo, "Mine", **DATASET)
    first = hub_api.get_discussion_details(repo, 1, **DATASET).events[0].id
    reader = HfApi(endpoint=local_hub.endpoint, token=mint(local_hub, "demo", "read"))
    anonymous = HfApi(endpoint=local_hub.endpoint, token=False)
    for api, status in ((stranger, 403), (reader, 403), (anonymous, 401)):
        assert status_of(api.rename_discussion, repo, 1, "Theirs", **DATASET) == status
        assert status_of(api.change_discussion_status, repo, 1, "closed", **DATASET) == status
        assert status_of(api.edit_discussion_comment, repo, 1, first, "Theirs", **DATASET) == status
        assert status_of(api.merge_pull_request, repo, 1, **DATASET) == status
    for api, status in ((reader, 403), (anonymous, 401)):
        assert status_of(api.create_discussion, repo, "Theirs", **DATASET) == status
        assert status_of(api.comment_discussion, repo, 1, "Theirs", **DATASET) == status
    assert status_of(hub_api.get_discussion_details, repo, 9, **DATASET) == 404
    assert status_of(hub_api.edit_discussion_comment, repo, 1, "0" * 24, "x", **DATASET) == 404
    for title in ("ab", "x" * 201):
        assert status_of(hub_api.create_discussion, repo, title, **DATASET) == 400
    with pytest.raises(BadRequestError, match="no pull request"):
        hub_api.merge_pull_request(repo, 1, **DATASET)
    hub_api.update_repo_settings(repo, private=True, **DATASET)
    for call in (stranger.get_discussion_details, stranger.merge_pull_request):
        with pytest.raises(RepositoryNotFoundError):
            call(repo, 1, **DATASET)


def test_nonsense_gets_an_answer(local_hub, hub_api, repo):
    hub_api.create_pull_request(repo, "Draft", **DATASET)
    base = f"/api/datasets/{repo}/discussions"
    bodies = (
        b"",
        b"[",
        [],
        {},
        {"title": 1},
        {"title": "abc\0"},
        {"comment": None},
        {"status": "merged"},
        {"content": []},
    )
    for path in ("", "/1/comment", "/1/title", "/1/status", f"/1/comment/{'0' * 24}/edit", "/1/comment/x/edit"):
        for body in bodies:
            status = ask(local_hub, "POST", base + path, body, token=local_hub.token).status
            assert status in (400, 404), (path, body)
    for path in ("/0", "/99999999999", "/1e3", f"/1/comment/{'f' * 24}/hide", "/1/nothing"):
        for method in ("GET", "POST"):
            assert ask(local_hub, method, base + path, b"{}", token=local_hub.token).status == 404, (method, path)
    assert ask(local_hub, "GET", f"{base}?p=999999999&type=x&status=y").json()["discussions"] == []


def test_listing(hub_api, stranger, repo):
    for number in range(52):
        api = stranger if number == 3 else hub_api
        api.create_discussion(repo, f"Number {number}", pull_request=number == 5, **DATASET)
    hub_api.change_discussion_status(repo, 2, "closed", **DATASET)

    def numbers(**options) -> list[int]:
        return [found.num for found in hub_api.get_repo_discussions(repo, **options, **DATASET)]

    assert numbers() == list(range(52, 0, -1)) and numbers(discussion_type="pull_request") == [6]
    assert numbers(discussion_status="closed") == [2] and len(numbers(discussion_status="open")) == 51
    assert numbers(author="alice") == [4] and numbers(author="nobody") == []


def test_a_change_is_merged_into_what_its_branch_has_become(hub_api, repo):
    first = [add("keep", "k"), add("gone", "g"), add("both", "b"), add("folder/a", "a")]
    hub_api.create_commit(repo, first, commit_message="first", **DATASET)
    found = propose(hub_api, repo, add("new/x", "x"), CommitOperationDelete("gone"), add("both", "same"))
    assert (found.status, found.target_branch, found.conflicting_files) == ("open", "refs/heads/main", [])
    assert [event.type for event in found.events] == ["comment", "commit"] and found.events[1].summary == "A change"
    assert [line for line in found.diff.splitlines() if line.startswith(("diff", "new", "deleted"))] == [
        "diff --git a/both b/both",
        "diff --git a/gone b/gone", "deleted file mode 100644",
        "diff --git a/new/x b/new/x", "new file mode 100644",
    ]  # fmt: skip
    hub_api.create_commit(repo, [add("keep", "K"), add("both", "same")], commit_message="meanwhile", **DATASET)
    head = hub_api.dataset_info(repo).sha
    hub_api.merge_pull_request(repo, found.num, comment="thanks", **DATASET)
    merged = hub_api.get_discussion_details(repo, found.num, **DATASET)
    assert merged.status == "merged" and merged.merge_commit_oid == hub_api.dataset_info(repo).sha
    assert [commit.title for commit in hub_api.list_repo_commits(repo, **DATASET)][:2] == ["A change (#1)", "meanwhile"]
    assert hub_api.list_repo_commits(repo, **DATASET)[1].commit_id == head
    paths = set(hub_api.list_repo_files(repo, **DATASET))
    assert paths == {".gitattributes", "keep", "both", "folder/a", "new/x"} and text(hub_api, repo, "keep") == "K"
    for call in (hub_api.merge_pull_request, lambda *args, **kw: hub_api.change_discussion_status(*args, "open", **kw)):
        with pytest.raises(BadRequestError, match="merged"):
            call(repo, found.num, **DATASET)


def test_conflicts_and_drafts_are_not_merged(hub_api, repo):
    hub_api.create_commit(repo, [add("a", "1"), add("f", "1")], commit_message="first", **DATASET)
    draft = hub_api.create_pull_request(repo, "A draft", **DATASET)
    assert draft.status == "draft" and draft.diff == ""
    hub_api.create_commit(
        repo,
        [add("a", "2"), CommitOperationDelete("f"), add("f/x", "1")],
        commit_message="c",
        revision="refs/pr/1",
        **DATASET,
    )
    with pytest.raises(BadRequestError, match="is draft: change its status to open first"):
        hub_api.merge_pull_request(repo, 1, **DATASET)
    hub_api.change_discussion_status(repo, 1, "open", **DATASET)
    hub_api.create_commit(repo, [add("a", "3")], commit_message="theirs", **DATASET)
    assert hub_api.get_discussion_details(repo, 1, **DATASET).conflicting_files == ["a"]
    before = hub_api.dataset_info(repo).sha
    assert status_of(hub_api.merge_pull_request, repo, 1, **DATASET) == 409
    assert hub_api.dataset_info(repo).sha == before
    assert hub_api.get_discussion_details(repo, 1, **DATASET).status == "open"
    hub_api.create_commit(repo, [add("a", "2")], commit_message="agreed", **DATASET)
    hub_api.merge_pull_request(repo, 1, **DATASET)
    assert "f/x" in hub_api.list_repo_files(repo, **DATASET)


def test_strangers_propose_and_members_decide(local_hub, hub_api, stranger, repo):
    found = propose(stranger, repo, add("theirs", "1"))
    stranger.create_commit(repo, [add("theirs", "2")], commit_message="more", revision="refs/pr/1", **DATASET)
    mine = propose(hub_api, repo, add("mine", "1"))
    assert mine.num == 2 and "theirs" not in hub_api.list_repo_files(repo, **DATASET)
    for revision in ("main", "refs/pr/2", "refs/pr/9"):
        address = f"/api/datasets/{repo}/commit/{revision.replace('/', '%2F')}"
        refused = ask(local_hub, "POST", address, commit_body(file_line("x", "1")), token=stranger.token)
        assert refused.status == 403
    assert status_of(stranger.merge_pull_request, repo, 1, **DATASET) == 403
    large = f"/api/datasets/{repo}/xet-write-token/main"
    assert ask(local_hub, "GET", large, token=stranger.token).status == 403
    assert ask(local_hub, "GET", f"{large}?create_pr=1", token=stranger.token).status == 200
    hub_api.merge_pull_request(repo, found.num, **DATASET)
    assert text(hub_api, repo, "theirs") == "2"
    address = f"/api/datasets/{repo}/commit/refs%2Fpr%2F1"
    refused = ask(local_hub, "POST", address, commit_body(file_line("x", "1")), token=stranger.token)
    assert refused.status == 403  # it is merged
    hub_api.update_repo_settings(repo, gated="auto", **DATASET)
    with pytest.raises(GatedRepoError):
        propose(stranger, repo, add("blind", "1"))
    with pytest.raises(GatedRepoError):
        stranger.create_pull_request(repo, "Blind", **DATASET)
    hub_api.update_repo_settings(repo, gated=False, private=True, **DATASET)
    with pytest.raises(RepositoryNotFoundError):
        propose(stranger, repo, add("blind", "1"))


def test_a_change_to_another_branch(hub_api, repo):
    hub_api.create_branch(repo, branch="next", **DATASET)
    found = propose(hub_api, repo, add("x", "1"), revision="next")
    assert found.target_branch == "refs/heads/next"
    hub_api.merge_pull_request(repo, found.num, **DATASET)
    assert "x" in hub_api.list_repo_files(repo, revision="next", **DATASET)
    assert "x" not in hub_api.list_repo_files(repo, **DATASET)


def test_a_change_outlives_its_branch(hub_api, repo):
    hub_api.create_branch(repo, branch="next", **DATASET)
    propose(hub_api, repo, add("x", "1"), revision="next")
    hub_api.delete_branch(repo, branch="next", **DATASET)
    found = hub_api.get_discussion_details(repo, 1, **DATASET)
    assert found.status == "open" and found.conflicting_files == [] and "b/x" in found.diff
    with pytest.raises(RevisionNotFoundError, match="refs/heads/next"):
        hub_api.merge_pull_request(repo, 1, **DATASET)
    hub_api.change_discussion_status(repo, 1, "closed", **DATASET)

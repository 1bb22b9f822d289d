"""One small use of each method of HfApi about discussions, pull requests and access requests."""

from hub_calls import DATASET, served


@served
def create_discussion(scene):
    assert scene.stranger.create_discussion(scene.new(), "A question", **DATASET).num == 1


@served
def create_pull_request(scene):
    assert scene.stranger.create_pull_request(scene.new(), "A change", **DATASET).git_reference == "refs/pr/1"


@served
def get_repo_discussions(scene):
    repo = scene.new()
    scene.api.create_discussion(repo, "A question", **DATASET)
    assert [found.title for found in scene.api.get_repo_discussions(repo, author="demo", **DATASET)] == ["A question"]


@served
def get_discussion_details(scene):
    repo = scene.new()
    opened = scene.api.create_pull_request(repo, "A change", **DATASET)
    assert scene.api.get_discussion_details(repo, 1, **DATASET) == opened


@served
def comment_discussion(scene):
    repo = scene.new()
    scene.api.create_discussion(repo, "A question", **DATASET)
    assert scene.stranger.comment_discussion(repo, 1, "An answer", **DATASET).author == "alice"


@served
def edit_discussion_comment(scene):
    repo = scene.new()
    first = scene.api.create_discussion(repo, "A question", **DATASET).events[0].id
    assert scene.api.edit_discussion_comment(repo, 1, first, "Better", **DATASET).content == "Better"


@served
def hide_discussion_comment(scene):
    repo = scene.new()
    first = scene.stranger.create_discussion(repo, "A question", **DATASET).events[0].id
    assert scene.api.hide_discussion_comment(repo, 1, first, **DATASET).hidden


@served
def rename_discussion(scene):
    repo = scene.new()
    scene.api.create_discussion(repo, "A question", **DATASET)
    assert scene.api.rename_discussion(repo, 1, "The question", **DATASET).new_title == "The question"


@served
def change_discussion_status(scene):
    repo = scene.new()
    scene.api.create_discussion(repo, "A question", **DATASET)
    assert scene.api.change_discussion_status(repo, 1, "closed", **DATASET).new_status == "closed"


@served
def merge_pull_request(scene):
    repo = scene.new()
    scene.commit(repo, "x.txt", create_pr=True, commit_message="Propose")
    scene.api.merge_pull_request(repo, 1, **DATASET)
    assert scene.files(repo) == {"x.txt"}


@served
def grant_access(scene):
    scene.stranger.auth_check(scene.gated(), **DATASET)


def _decide(scene, call, listing):
    """A decision about alice's request, and the list that names her then."""
    repo = scene.gated()
    call(repo, "alice", **DATASET)
    assert [request.username for request in listing(repo, **DATASET)] == ["alice"]
    return repo


@served
def cancel_access_request(scene):
    _decide(scene, scene.api.cancel_access_request, scene.api.list_pending_access_requests)


@served
def reject_access_request(scene):
    def reject(repo, user, **options):
        scene.api.reject_access_request(repo, user, rejection_reason="no", **options)

    _decide(scene, reject, scene.api.list_rejected_access_requests)


@served
def accept_access_request(scene):
    repo = _decide(scene, scene.api.cancel_access_request, scene.api.list_pending_access_requests)
    scene.api.accept_access_request(repo, "alice", **DATASET)
    scene.stranger.auth_check(repo, **DATASET)


@served
def list_accepted_access_requests(scene):
    assert [request.status for request in scene.api.list_accepted_access_requests(scene.gated(), **DATASET)] == [
        "accepted"
    ]


@served
def list_pending_access_requests(scene):
    assert list(scene.api.list_pending_access_requests(scene.gated(), **DATASET)) == []


@served
def list_rejected_access_requests(scene):
    assert list(scene.api.list_rejected_access_requests(scene.gated(), **DATASET)) == []

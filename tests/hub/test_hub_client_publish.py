"""Publishing to a running local Hub through the official client: its plan, its refusals, whose
files it leaves alone.

Nothing of another person is overwritten: edits, files, unfinished runs, later versions, privacy.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
from datasets import Features, Value
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError
from published_run import files, finished_run, hub_file, write_card

from sts_dino.hub.client.publish import Options, publish_run
from sts_dino.hub.client.repository import Repository, unwrap_errors
from sts_dino.hub.client.retry import MOST_EQUAL_CONFLICTS
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.shards import write_shard
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError, RunError

pytest_plugins = ["local_hub"]


@pytest.fixture
def finished(tmp_path, request) -> Path:
    """A finished run directory with two shards and a card, named after the test."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:60].strip("-")
    return finished_run(tmp_path / name)


def test_publish_is_one_commit_and_a_tag_and_again_nothing(finished, hub_api):
    plan = publish_run(hub_api, finished, "acme", yes=False)
    repo = plan.repo_id
    assert plan.remote is None and len(plan.changes.added) == 5 and plan.upload > 1000
    assert "+ README.md" in str(plan) and "tag v0.1.0" in str(plan)
    assert not hub_api.repo_exists(repo, repo_type="dataset")  # a dry run changes nothing
    publish_run(hub_api, finished, "acme", yes=True)
    commits = hub_api.list_repo_commits(repo, repo_type="dataset")
    assert len(commits) == 2  # the Hub's own initial one and ours
    assert files(hub_api, repo, "v0.1.0") == {
        str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()
    }
    again = publish_run(hub_api, finished, "acme", yes=True)
    assert not again.changes and again.tag is None and again.upload == 0
    hub_api.delete_tag(repo, tag="v0.1.0", repo_type="dataset")
    # a commit whose tag was lost is only tagged
    plan = publish_run(hub_api, finished, "acme", yes=True)
    assert not plan.changes and plan.tag == "v0.1.0"
    assert [tag.name for tag in hub_api.list_repo_refs(repo, repo_type="dataset").tags] == [
        "v0.1.0"
    ]
    assert [c.commit_id for c in hub_api.list_repo_commits(repo, repo_type="dataset")] == [
        c.commit_id for c in commits
    ]


def test_other_bytes_under_the_same_version_are_refused(finished, hub_api):
    repo = publish_run(hub_api, finished, "acme", yes=True).repo_id
    before = hub_api.list_repo_refs(repo, repo_type="dataset")
    write_card(finished, text="Changed")
    with pytest.raises(
        RunError, match=r"tag v0.1.0: exists and marks other content \(README.md\); raise `version`"
    ):
        publish_run(hub_api, finished, "acme", yes=True)
    assert hub_api.list_repo_refs(repo, repo_type="dataset") == before


def refusal(finished: Path, hub_api: HfApi, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        publish_run(hub_api, finished, "acme", yes=True)
    assert not hub_api.repo_exists(f"acme/{finished.name}", repo_type="dataset")


def test_a_card_that_does_not_agree_is_refused(finished, hub_api):
    card = (finished / "README.md").read_text()
    write_text(finished / "README.md", card.replace("# A card", "# My card"))
    refusal(finished, hub_api, "was edited by hand: prose belongs into the recipe's about:")
    for edited_card in (card.encode() + b"\xff", card.replace("\n", "\r\n").encode()):
        (finished / "README.md").write_bytes(edited_card)
        refusal(finished, hub_api, "was edited by hand")
    write_card(finished, org="other")
    refusal(finished, hub_api, "is that of other/.*, not of acme/")
    manifest = run_dir.require_complete(finished)
    write_text(finished / "README.md", card)
    run_dir.write_manifest(finished, manifest.model_copy(update={"counts": {"kept": 7}}))
    refusal(finished, hub_api, "was written from other facts")
    (finished / "README.md").unlink()
    refusal(finished, hub_api, r"no card; run: sts-dino card")


def test_a_recipe_of_another_run_is_refused(finished, hub_api):
    recipe = finished / "recipe.yaml"
    for before, after in (("seed: 10", "seed: 43"), ("pretty_name: ", "pretty_name: My ")):
        text = recipe.read_text()
        assert before in text
        write_text(recipe, text.replace(before, after))
        refusal(
            finished,
            hub_api,
            "is not the recipe that the manifest's run was made by; change the recipe where",
        )
        write_text(recipe, text)


def test_a_parquet_file_with_other_columns_is_refused(finished, hub_api):
    manifest, path = (
        run_dir.require_complete(finished),
        "data/postprocessed/train-00001-of-00002.parquet",
    )
    columns = Features(sentence1=Value("string"), score=Value("int8"))
    write_shard(finished / path, [{"sentence1": "a", "score": 1}], columns)
    file = run_dir.describe_file(finished, path, config="postprocessed", split="train", rows=1)
    run_dir.write_manifest(finished, manifest.with_files([file]))
    write_card(finished)
    refusal(
        finished,
        hub_api,
        r"has the columns sentence1, score, .*allowed: sentence1, sentence2, score, source_id",
    )


def test_a_repository_that_exists_unseen_is_not_waited_for(finished, hub_api, monkeypatch):
    repo = hub_api.create_repo(f"acme/{finished.name}", repo_type="dataset").repo_id
    monkeypatch.setattr(hub_api, "repo_exists", lambda *_, **__: False)
    with pytest.raises(RunError, match=f"{repo}: exists, but this token cannot see it"):
        Repository(hub_api, repo, "dataset").create(public=True)


@pytest.mark.parametrize(
    "said", [OSError(28, "full"), OSError("I/O error: No space left on device (os error 28)")]
)
def test_a_full_disk_of_the_client_is_one_line_that_names_it(said):
    with (
        pytest.raises(RunError, match="/some/cache: no space left on the disk; free some"),
        unwrap_errors("/some/cache"),
    ):
        raise said
    with (
        pytest.raises(RunError, match="/some/cache: no space left on the disk; free some"),
        unwrap_errors("/some/cache"),
    ):
        raise RuntimeError("an upload failed") from said
    with pytest.raises(ConnectionResetError), unwrap_errors():
        raise ConnectionResetError(104, "by peer")


def test_the_script_is_on_its_branch_and_never_on_main(finished, hub_api):
    name = f"{finished.name}.py"
    options = Options(script={name: "print('one')\n", "beside.py": ""})
    repo = publish_run(hub_api, finished, "acme", yes=True, options=options).repo_id
    assert files(hub_api, repo, "script") == files(hub_api, repo) | {name, "beside.py"}
    assert name not in files(hub_api, repo)
    assert not publish_run(hub_api, finished, "acme", yes=True, options=options).script
    finished_run(finished, version="0.2.0", shards=1)
    before = len(hub_api.list_repo_commits(repo, repo_type="dataset", revision="script"))
    publish_run(
        hub_api, finished, "acme", yes=True, options=Options(script={name: "print('two')\n"})
    )
    assert files(hub_api, repo, "script") == files(hub_api, repo) | {name}
    assert hub_file(hub_api, repo, name, "script") == b"print('two')\n"
    assert (
        len(hub_api.list_repo_commits(repo, repo_type="dataset", revision="script")) == before + 1
    )


@pytest.mark.parametrize(("ref", "kind"), [("v0.1.0/x", "tag"), ("script/x", "branch")])
def test_a_name_in_the_way_of_ours_is_told_and_not_waited_for(
    ref, kind, finished, hub_api, capsys, monkeypatch
):
    """Git has no ref within a ref: the Hub answers 409 to our tag or branch for as long as the
    other is there.
    """
    repo = hub_api.create_repo(f"acme/{finished.name}", repo_type="dataset", exist_ok=True).repo_id
    make = hub_api.create_tag if kind == "tag" else hub_api.create_branch
    make(repo, **{kind: ref}, repo_type="dataset")
    waits = list[str]()
    monkeypatch.setattr("sts_dino.hub.client.retry.wait", lambda why, seconds: waits.append(why))
    with pytest.raises(HfHubHTTPError) as refused:
        publish_run(hub_api, finished, "acme", yes=True, options=Options(script={"some.py": ""}))
    assert refused.value.response.status_code == 409 and ref in str(refused.value)
    assert 1 <= len(waits) < MOST_EQUAL_CONFLICTS and all(ref in why for why in waits)
    hub_api.delete_repo(repo, repo_type="dataset")


def edited(repo: str, hub_api: HfApi, path: str, content: bytes) -> None:
    hub_api.upload_file(
        path_or_fileobj=content, path_in_repo=path, repo_id=repo, repo_type="dataset"
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("README.md", "edited by hand"),
        ("notes.txt", "not ours"),
        ("data/postprocessed/train-00000-of-00002.parquet", "changed by hand"),
        ("old.py", "datasets 4 and later refuse"),
        ("manifest.json", "not the one that the card was written from"),
    ],
)
def test_files_of_others_are_not_taken_away_silently(finished, hub_api, path, said):
    finished = finished_run(
        finished.parent / f"others-{path.replace('/', '-').lower()}"[:60].rstrip(".-")
    )
    repo = publish_run(hub_api, finished, "acme", yes=True).repo_id
    counts = (
        (finished / "manifest.json").read_bytes().replace(b'"counts": {}', b'"counts": {"kept": 1}')
    )
    content = counts if path == "manifest.json" else b"somebody's"
    edited(repo, hub_api, path, content)
    finished_run(finished, version="0.2.0")
    with pytest.raises(RunError, match=rf"{path} \(.*{said}"):
        publish_run(hub_api, finished, "acme", yes=True)
    assert hub_file(hub_api, repo, path) == content
    publish_run(hub_api, finished, "acme", yes=True, options=Options(force=True))
    assert files(hub_api, repo) == {
        str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()
    }


def unfinished(directory: Path, api: HfApi, version: str, revision: str) -> str:
    """An unfinished run, put on a branch of the Hub; its repository."""
    manifest = run_dir.require_complete(finished_run(directory, version=version))
    run_dir.write_manifest(directory, manifest.model_copy(update={"complete": False}))
    write_card(directory)
    repo = api.create_repo(f"acme/{directory.name}", repo_type="dataset", exist_ok=True).repo_id
    api.create_branch(repo, branch=revision, repo_type="dataset", exist_ok=True)
    api.upload_folder(repo_id=repo, folder_path=directory, repo_type="dataset", revision=revision)
    return repo


def branches(api: HfApi, repo: str) -> set[str]:
    return {ref.name for ref in api.list_repo_refs(repo, repo_type="dataset").branches}


def test_next_goes_with_its_own_version_and_stays_with_another(finished, hub_api):
    repo = publish_run(hub_api, finished, "acme", yes=True).repo_id
    unfinished(finished, hub_api, "0.2.0", "next")
    finished_run(finished, version="0.1.0")
    publish_run(hub_api, finished, "acme", yes=True)
    assert branches(hub_api, repo) == {"main", "next"}  # another version grows there
    finished_run(finished, version="0.2.0")
    publish_run(hub_api, finished, "acme", yes=True)
    assert branches(hub_api, repo) == {"main"}
    hub_api.create_branch(repo, branch="next", repo_type="dataset", revision="v0.1.0")
    publish_run(hub_api, finished, "acme", yes=True)
    assert branches(hub_api, repo) == {"main"}  # nothing grew there: its start was killed


@pytest.mark.parametrize("public", [None, False, True])
def test_a_repository_is_private_by_default(finished, hub_api, public):
    asked = Options(public=public)
    plan = publish_run(hub_api, finished, "acme", yes=True, options=asked)
    is_private = hub_api.repo_info(plan.repo_id, repo_type="dataset").private
    assert (is_private, plan.url) == (
        public is not True,
        f"{constants.ENDPOINT}/datasets/{plan.repo_id}",
    )
    hub_api.update_repo_settings(
        plan.repo_id, repo_type="dataset", visibility="public" if is_private else "private"
    )
    other, option = ("private", "--public") if public else ("public", "--private")
    refused = pytest.raises(
        RunError, match=f"{plan.repo_id}: is there already, and {other}; .*leave {option} out"
    )
    with nullcontext() if public is None else refused:
        assert not publish_run(hub_api, finished, "acme", yes=True, options=asked).changes
    hub_api.delete_repo(plan.repo_id, repo_type="dataset")  # every case has this name

"""A run that is published while it grows: each commit, who may write there, and what a release
would refuse.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import growth as simulated
import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from published_run import finished_run

from sts_dino.hub.client import plan as batches
from sts_dino.hub.client.connection import WrongAnswer
from sts_dino.hub.client.fetch import fetch_run
from sts_dino.hub.client.plan import CARD
from sts_dino.hub.client.publish import GROWING_BRANCH, Options, publish_run
from sts_dino.hub.client.repository import MAIN, Repository
from sts_dino.hub.client.retry import RetryPolicy
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe, ValidationData
from sts_dino.hub.contract.recipe_file import format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import MANIFEST, Manifest
from sts_dino.hub.contract.shards import LOADING_FILE
from sts_dino.hub.errors import InputError, RunError
from sts_dino.model_cards.render import render, write
from sts_dino.release.grow import IncrementalPublisher
from sts_dino.release.preflight import (
    Target,
    check_dtype,
    check_pins,
    check_run,
    find_target,
    require_namespace,
)

pytest_plugins = ["local_hub"]
QUICK = Options(patience=RetryPolicy(scale=0.001))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, simulated.Growth]:
    """Two versions of one dataset, recorded as they were written."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        version: simulated.record(
            folder / version, "name=growing-pairs", f"version={version}", f"source.limit={limit}"
        )
        for version, limit in (("0.1.0", 24), ("0.2.0", 12))
    }


class Publication:
    """A run directory that grows step by step, and its repository."""

    def __init__(self, api: HfApi, org: str, recorded: simulated.Growth, directory: Path):
        self.api, self.org, self.recorded, self.directory = api, org, recorded, directory
        self.repository = Repository(api, f"{org}/{directory.name}", "dataset")
        self.recipe = load_recipe(recorded.whole / "recipe.yaml", DatasetRecipe)
        self.now = datetime.now(UTC)

    def growth(
        self, place: Target | None = None, per_hour: int = 100, options: Options = QUICK
    ) -> IncrementalPublisher:
        place = place or find_target(self.repository, self.recipe, options.force)
        run = self.repository, self.directory, place.branch
        return IncrementalPublisher(*run, self.card, options, per_hour, lambda: self.now)

    def card(self, manifest: Manifest, at: datetime) -> dict[str, bytes]:
        return render(self.directory, self.repository.repo_id, manifest=manifest, now=at)

    def step(self, growth: IncrementalPublisher, number: int, hours: float = 1) -> bool:
        self.recorded.lay(self.directory, number)
        self.now += timedelta(hours=hours)
        return growth.publish_new_files()

    def release(self, options: Options = QUICK) -> None:
        self.recorded.lay(self.directory, len(self.recorded) - 1)
        write(self.directory, render(self.directory, self.repository.repo_id))
        publish_run(self.api, self.directory, self.org, True, options)

    def commits(self, branch: str = "main") -> list[str]:
        listed = self.api.list_repo_commits(
            self.repository.repo_id, repo_type="dataset", revision=branch
        )
        return [commit.commit_id for commit in listed][::-1]

    def files(self, revision: str = "main") -> set[str]:
        found = self.api.list_repo_files(
            self.repository.repo_id, repo_type="dataset", revision=revision
        )
        return set(found) - {".gitattributes"}


@pytest.fixture
def growing(hub_api, runs, tmp_path) -> Publication:
    name = runs["0.1.0"].whole.name
    hub_api.delete_repo(f"acme/{name}", repo_type="dataset", missing_ok=True)
    return Publication(hub_api, "acme", runs["0.1.0"], tmp_path / name)


def shards_done(recorded: simulated.Growth) -> list[int]:
    """The steps after which one more shard is there and the run is not finished."""
    steps, seen = [], 0
    for step in range(len(recorded)):
        manifest = recorded.manifest(step)
        done = manifest.counts.get("shards_done", 0)
        if done > seen and not manifest.complete:
            steps.append(step)
            seen = done
    return steps


LOAD = """
import json, sys
from datasets import load_dataset
repo, *revisions = sys.argv[1:]
for sha in revisions:
    found = load_dataset(repo, revision=sha)
    print(json.dumps({split: [len(rows), rows.column_names[:2]] for split, rows in found.items()}))
"""


def loaded(
    publication: Publication, local_hub, revisions: list[str], home: Path
) -> list[dict[str, list]]:
    """Rows and first columns of every split of the default config at each commit, for a client with
    an empty cache.
    """
    words = [sys.executable, "-c", LOAD, publication.repository.repo_id, *revisions]
    done = subprocess.run(
        words, env=local_hub.client_environment(home), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_finished_shard_is_a_commit_and_the_release_is_last(growing):
    growth, steps = growing.growth(), shards_done(growing.recorded)
    assert not growing.step(growth, 0) and not growing.api.repo_exists(
        growing.repository.repo_id, repo_type="dataset"
    )
    assert [growing.step(growth, step) for step in steps] == [True] * len(steps) and len(steps) >= 5
    assert not growth.publish_new_files()  # nothing new
    growing.release()
    commits = growing.commits()[1:]
    there = [
        growing.repository.read_file(growing.repository.get_commit(sha), MANIFEST)
        for sha in commits
    ]
    wanted = [growing.recorded.manifest(step) for step in [*steps, len(growing.recorded) - 1]]
    assert [Manifest.model_validate_json(manifest) for manifest in there] == wanted


def test_the_budget_spreads_commits_and_counts_those_of_earlier_starts(growing):
    steps = shards_done(growing.recorded)
    growth = growing.growth(per_hour=100)
    assert growing.step(growth, steps[0], hours=0)
    assert not growing.step(growth, steps[1], hours=20 / 3600)
    # another start
    assert not growing.step(growing.growth(per_hour=100), steps[1], hours=10 / 3600)
    assert growing.step(growing.growth(per_hour=100), steps[1], hours=10 / 3600)
    # an hour later: in its card, only the time is new
    assert not growing.step(growing.growth(), steps[1])
    assert len(growing.commits()) == 3


def test_a_card_that_somebody_edited_stops_the_growth(growing, hub_api):
    steps = shards_done(growing.recorded)
    growth = growing.growth()
    growing.step(growth, steps[0])
    edited = (
        growing.repository.read_file(growing.repository.get_branch(), CARD) or b""
    ) + b"mine\n"
    where = {"repo_id": growing.repository.repo_id, "repo_type": "dataset"}
    hub_api.upload_file(path_or_fileobj=edited, path_in_repo=CARD, **where)
    with pytest.raises(RunError, match=r"changed by hand \(README.md: edited by hand\).*--force"):
        growing.step(growth, steps[1])
    assert growing.repository.read_file(growing.repository.get_branch(), CARD) == edited
    forced = Options(force=True, patience=QUICK.patience)
    assert growing.step(growing.growth(options=forced), steps[1])


def test_another_process_and_another_recipe_do_not_replace_a_growing_run(growing, runs, tmp_path):
    steps = shards_done(growing.recorded)
    growing.step(growing.growth(), steps[3])
    same = Publication(
        growing.api, growing.org, growing.recorded, tmp_path / "other" / growing.directory.name
    )
    same.now = growing.now
    with pytest.raises(
        RunError, match="files of this run that are not here: another process publishes it"
    ):
        same.step(same.growth(), steps[0])
    other = Publication(
        growing.api, growing.org, runs["0.2.0"], tmp_path / "new" / growing.directory.name
    )
    with pytest.raises(RunError, match=r"unfinished run of another recipe .*v0\.1\.0.*--force"):
        other.growth()
    assert find_target(other.repository, other.recipe, force=True) == Target("main")


def test_a_new_version_grows_on_next_and_sends_nothing_twice(growing, runs, tmp_path):
    growing.release()
    released = growing.repository.get_branch()
    second = Publication(
        growing.api, growing.org, runs["0.2.0"], tmp_path / "new" / growing.directory.name
    )
    growth, steps = second.growth(), shards_done(second.recorded)
    for step in steps:
        assert second.step(growth, step)
    # what people load has not changed
    assert growth.branch == GROWING_BRANCH and growing.repository.get_branch() == released
    made = {file.path for file in second.recorded.manifest(steps[-1]).files}
    assert {path for path in second.files(GROWING_BRANCH) if path.startswith("data/")} == made
    assert second.growth().branch == GROWING_BRANCH  # another start goes on there
    second.release()
    assert second.repository.get_branch(GROWING_BRANCH) is None
    assert {"v0.1.0", "v0.2.0"} == set(second.repository.list_tags())
    assert second.files() == {
        str(p.relative_to(second.directory))
        for p in second.directory.rglob("*")
        if p.is_file() and p.name != LOADING_FILE
    }
    assert second.repository.list_tags()["v0.1.0"] == released.sha


def test_an_empty_disk_resumes_from_the_hub_whatever_an_earlier_fetch_left(growing, tmp_path):
    steps = shards_done(growing.recorded)
    growing.step(growing.growth(), steps[2])
    place = find_target(growing.repository, growing.recipe, force=False)
    assert place.remote and place.manifest
    directory = tmp_path / "elsewhere" / growing.directory.name
    left = directory.with_name(f"{directory.name}.fetching") / "data" / "old"
    left.mkdir(parents=True)
    (left / "rows.parquet").write_bytes(b"of a state that is gone")
    fetch_run(growing.repository, place.remote, place.manifest, growing.recipe, directory)
    found = run_dir.read_manifest(directory)
    assert (
        found == growing.recorded.manifest(steps[2])
        and run_dir.find_changed_files(directory, found) == []
    )
    assert (directory / "recipe.yaml").read_text() == format_recipe(growing.recipe)
    files = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert files == {file.path for file in found.files} | {MANIFEST, "recipe.yaml"}
    assert not list(directory.parent.glob("*.fetching"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("changed", "is not the file that the repository's manifest names"),
        ("deleted", "is named by the manifest and not there; .*--fresh"),
    ],
)
def test_a_damaged_file_on_the_hub_is_not_fetched(growing, hub_api, tmp_path, damage, said):
    growing.step(growing.growth(), shards_done(growing.recorded)[1])
    path, repo = (
        growing.recorded.manifest(shards_done(growing.recorded)[0]).shards("raw")[0].path,
        growing.repository,
    )
    if damage == "deleted":
        hub_api.delete_file(path, repo.repo_id, repo_type="dataset")
    else:
        hub_api.upload_file(
            path_or_fileobj=b"?", path_in_repo=path, repo_id=repo.repo_id, repo_type="dataset"
        )
        with pytest.raises(RunError, match=f"changed by hand .{path}: changed by hand"):
            growing.growth()
    place = find_target(repo, growing.recipe, force=damage == "changed")
    with pytest.raises(RunError, match=f"{path}: {said}"):
        fetch_run(repo, place.remote, place.manifest, growing.recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_growing_run_of_very_many_shards_is_published_in_parts_that_load(
    growing, local_hub, tmp_path, monkeypatch
):
    monkeypatch.setattr(batches, "MOST_FILES_PER_COMMIT", 3)
    step = shards_done(growing.recorded)[-1]
    growth, commits = growing.growth(), 0
    while growing.step(growth, step):
        commits += 1
    whole = growing.recorded.manifest(step)
    assert commits == -(-len(whole.files) // 3) >= 3
    monkeypatch.setattr(batches, "MOST_FILES_PER_COMMIT", 4)
    growing.release()  # the last state of the growth stays loadable until the release is whole
    found = loaded(growing, local_hub, growing.commits()[1:], tmp_path / "home")
    done = []
    for sha, rows in list(zip(growing.commits()[1:], found, strict=True))[:-1]:
        manifest = Manifest.model_validate_json(
            growing.repository.read_file(growing.repository.get_commit(sha), MANIFEST)
        )
        done.append(manifest.counts.get("shards_done", len(whole.shards("raw"))))
        assert done[-1] == len(manifest.shards("raw"))
        assert rows["train"] == [
            sum(file.rows or 0 for file in manifest.shards("raw")),
            ["text1", "text2"],
        ]
    assert done[:commits] == sorted(set(done)) and len(done) > commits
    counts = run_dir.require_complete(growing.directory).counts["splits"]["postprocessed"]
    assert growing.repository.list_tags()["v0.1.0"] == growing.commits()[-1]
    assert found[-1] == {
        split: [rows, ["sentence1", "sentence2"]] for split, rows in counts.items()
    }


class Outage:
    """A generator at work until its publisher has committed, or for so many turns; and what fails
    before that.
    """

    def __init__(self, growing: Publication, monkeypatch, *errors: Exception):
        self.turns, self.errors, self.committed = 20_000, list(errors), 0
        growing.recorded.lay(growing.directory, shards_done(growing.recorded)[0])
        commit = Repository.commit

        def failing(repository, *arguments):
            if self.errors:
                raise self.errors.pop(0)
            self.committed += 1
            return commit(repository, *arguments)

        monkeypatch.setattr(Repository, "commit", failing)

    def running(self) -> bool:
        self.turns -= 1
        return self.turns > 0 and not self.committed


def refusal(status: int) -> HfHubHTTPError:
    response = httpx2.Response(status, request=httpx2.Request("POST", "http://127.0.0.1/api"))
    return HfHubHTTPError("refused", response=response, server_message="no")


def not_json() -> Exception:
    """What the client library raises when a proxy answers 200 with a page of its own."""
    with pytest.raises(json.JSONDecodeError) as caught:
        httpx2.Response(200, text="<html>log in</html>").json()
    return caught.value


TEMPORARY_ERRORS = [refusal(503), httpx2.ConnectError("gone"), not_json(), WrongAnswer("?")]
LASTING_ERRORS = [refusal(401), OSError(28, "full")]


@pytest.mark.parametrize("error", [*TEMPORARY_ERRORS, *LASTING_ERRORS], ids=repr)
def test_whatever_the_hub_says_generation_goes_on_and_publishes_later(
    error, growing, monkeypatch, capsys
):
    # the outage is longer than any patience
    options = Options(patience=RetryPolicy(longest=0, scale=0.00001))
    options.patience.record_success()  # the release has asked the Hub before
    outage = Outage(growing, monkeypatch, *[error] * 12)
    growing.growth(options=options).follow(outage.running)
    assert outage.committed and len(growing.commits()) == 2
    said = capsys.readouterr().err
    assert said.count("the generation continues") == 1 and said.count("published\n") == 1


def test_each_new_cause_of_an_outage_is_reported(growing, monkeypatch, capsys):
    with pytest.raises(ZeroDivisionError):  # an error of ours is not a failure of the Hub
        growing.growth().follow(Outage(growing, monkeypatch, ZeroDivisionError()).running)
    down, wrong = refusal(503), refusal(401)
    outage = Outage(growing, monkeypatch, down, down, wrong, down)
    growing.growth(options=Options(patience=RetryPolicy(scale=0.00001))).follow(outage.running)
    said = [
        line.partition(" answered ")[2][:3]
        for line in capsys.readouterr().err.splitlines()
        if "continues" in line
    ]
    assert said == ["503", "401"] and len(growing.commits()) == 2


@pytest.fixture(scope="module")
def published(tmp_path_factory, hub_api) -> tuple[Repository, Path]:
    """A released version 0.2.0: its repository and its run directory."""
    directory = finished_run(tmp_path_factory.mktemp("runs") / "preflight-run", version="0.2.0")
    publish_run(hub_api, directory, "acme", yes=True)
    return Repository(hub_api, f"acme/{directory.name}", "dataset"), directory


def recipe_of(directory: Path, *changes: str) -> DatasetRecipe:
    return load_recipe(directory / "recipe.yaml", DatasetRecipe, list(changes))


def test_a_first_run_and_a_later_version_have_their_place(published, hub_api):
    repository, directory = published
    recipe = recipe_of(directory)
    assert find_target(
        Repository(hub_api, "acme/not-there-yet", "dataset"), recipe, False
    ) == Target(MAIN)
    found = find_target(repository, recipe, False)
    assert found.branch == MAIN and found.manifest == run_dir.read_manifest(directory)
    assert find_target(
        repository, recipe_of(directory, "version=0.10.0", "seed=7"), False
    ) == Target(GROWING_BRANCH)


def test_a_later_version_of_the_same_rows_takes_them_from_main_and_grows_no_further(
    published, tmp_path
):
    repository, directory = published
    recipe = recipe_of(directory, "version=0.2.1", "license=cc0-1.0")
    assert check_run(directory, recipe) is None
    place = find_target(repository, recipe, False)
    assert (place.branch, place.remote) == (
        GROWING_BRANCH,
        repository.get_branch(),
    ) and place.manifest.version == "0.2.0"
    fetch_run(repository, place.remote, place.manifest, recipe, tmp_path / "elsewhere")
    fetched = run_dir.require_complete(tmp_path / "elsewhere")
    assert fetched.version == "0.2.1" and run_dir.has_current_recipe(
        tmp_path / "elsewhere", fetched
    )
    assert (
        fetched.files == place.manifest.files and fetched.fingerprint == place.manifest.fingerprint
    )


BEHIND = r"branch main: holds v0\.2\.0, which is later than v0\.1\.9; .*--force to go back"


@pytest.mark.parametrize(
    ("changes", "said", "may_be_forced"),
    [
        (
            ["pretty_name=Corrected"],
            r"tag v0\.2\.0: exists and marks this run under another recipe.yaml.*raise",
            False,
        ),
        (
            ["seed=7"],
            r"tag v0\.2\.0: exists and marks the run of another recipe; raise `version`",
            False,
        ),
        (["version=0.1.9", "seed=7"], BEHIND, True),  # other rows
        (["version=0.1.9", "seed=20"], BEHIND, True),  # the same rows
    ],
)
def test_a_version_that_is_taken_or_behind_is_refused_and_a_tag_never_moves(
    published, changes, said, may_be_forced
):
    repository, directory = published
    recipe = recipe_of(directory, *changes)
    for force in (False,) if may_be_forced else (False, True):
        with pytest.raises(RunError, match=said):
            find_target(repository, recipe, force)
    if may_be_forced:
        assert find_target(repository, recipe, True).branch == GROWING_BRANCH


def test_a_directory_with_another_run_is_not_published_under_this_recipe(tmp_path):
    directory = finished_run(tmp_path / "pairs")
    check_run(directory, recipe_of(directory))
    check_run(tmp_path / "absent", recipe_of(directory))
    with pytest.raises(
        InputError, match=r"holds a run of another recipe \(pairs v0\.1\.0\).*remove the directory"
    ):
        check_run(directory, recipe_of(directory, "source.limit=3"))


def test_a_namespace_that_the_token_does_not_have_is_named(hub_api, alice):
    patience = RetryPolicy(scale=0.001)
    assert (
        require_namespace(hub_api, "acme", True, patience) == "acme"
        and require_namespace(hub_api, None, True, patience) == "demo"
    )
    with pytest.raises(InputError, match=r"--org acme: is not the token's user .*allowed: alice"):
        require_namespace(alice, "acme", True, patience)
    assert require_namespace(alice, "acme", False, patience) == "acme"  # a plan needs no right


def test_a_release_names_revisions_that_cannot_move_and_its_dtype(tmp_path):
    recipe = load_recipe(Path("recipes/demo/demo-sts-dino.yaml"), ModelRecipe)
    check_pins(tmp_path, recipe)
    moving = recipe.datasets[0].model_copy(update={"revision": "main"})
    with pytest.raises(InputError, match=r"'main' can move.*allowed: a tag such as v1\.0\.0"):
        check_pins(tmp_path, recipe.model_copy(update={"datasets": (moving,)}))
    moving_pairs = ValidationData(repo_id="org/pairs", revision="main")
    with pytest.raises(InputError, match=r"validation\.0\.revision: 'main' can move"):
        check_pins(tmp_path, recipe.model_copy(update={"validation": (moving_pairs,)}))
    dataset = recipe_of(finished_run(tmp_path / "run"))
    check_dtype(tmp_path, dataset)
    auto = dataset.model_copy(update={"model": dataset.model.model_copy(update={"dtype": "auto"})})
    with pytest.raises(
        InputError,
        match=r"model.dtype: 'auto' depends on the CPU.*; allowed: .*model.dtype=bfloat16",
    ):
        check_dtype(tmp_path, auto)

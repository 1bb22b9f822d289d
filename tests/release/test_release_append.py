"""A published dataset gets rows as a new version: from an empty disk, new files alone travel, the
old version loads.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from local_hub import Log
from tiny_lm import make_lm
from typer.testing import CliRunner

from sts_dino.eval.runs.job import EvaluationOptions
from sts_dino.generation import run as generation
from sts_dino.hub.client import plan as commit_batches
from sts_dino.hub.client.plan import Plan
from sts_dino.hub.client.publish import read_remote_manifest
from sts_dino.hub.client.repository import Repository
from sts_dino.hub.contract import run_dir
from sts_dino.hub.errors import InputError, RunError
from sts_dino.release.options import ClusterWorkers, RecipeOverrides, ReleaseOptions
from sts_dino.release.run import DatasetArtefact, Request

pytest_plugins = ["local_hub"]
RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
SMALL = ["decoding.max_new_tokens=8", "shard_size=4"]
Release = Callable[..., Plan | None]


@pytest.fixture(scope="module")
def lm(tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("lm"), "llama")


@pytest.fixture
def release(lm, hub_api, monkeypatch) -> Release:
    """``sts-dino release --yes`` with a limit; the real stage runs in this process."""

    def stage(module: str, *words: str) -> None:
        assert module == "write"
        done = CliRunner().invoke(generation.app, words)
        if done.exit_code:
            raise done.exception

    monkeypatch.setattr("sts_dino.release.run.HfApi", lambda: hub_api)
    monkeypatch.setattr("sts_dino.release.run.run_stage", stage)

    def released(
        name: str, artifacts: Path, limit: int, version: str = "0.1.0", **options
    ) -> Plan | None:
        settings = [f"name={name}", f"version={version}", f"model.path={lm}", *SMALL]
        overrides = RecipeOverrides(limit, settings)
        # nothing is published while it grows: that is tested elsewhere
        if not options.get("append"):
            words = [word for setting in settings for word in ("--set", setting)]
            place = artifacts / "datasets" / name
            stage("write", str(RECIPE), "--out", str(place), "--limit", str(limit), *words)
        asked = ReleaseOptions(
            org="acme", yes=True, artifacts=artifacts, again=not options.get("append"), **options
        )
        return DatasetArtefact(
            RECIPE, Request(asked, overrides, EvaluationOptions(), ClusterWorkers())
        ).release()

    return released


def loaded(api, repo: str, revision: str, cache: Path) -> dict[str, list]:
    """Config → rows as ``load_dataset`` gives them, in a cache of its own."""
    from datasets import load_dataset

    folder = cache / revision
    api.snapshot_download(repo, repo_type="dataset", revision=revision, local_dir=folder)
    found = {}
    for config in ("postprocessed", "raw"):
        splits = load_dataset(str(folder), config, cache_dir=str(cache / "datasets"))
        found[config] = [row for split in sorted(splits) for row in splits[split].to_list()]
    return found


def test_new_rows_are_a_new_version_and_new_files_alone_travel(
    release, local_hub, hub_api, tmp_path
):
    name, repo = "grown-on-the-hub", "acme/grown-on-the-hub"
    release(name, tmp_path, 10)
    directory = tmp_path / "datasets" / name
    before = run_dir.require_complete(directory)
    shutil.rmtree(directory)

    log = Log(local_hub)
    plan = release(name, tmp_path, 14, "0.2.0", append=True)
    now = run_dir.require_complete(directory)
    new = [file for file in now.files if file not in before.files]
    assert set(before.files) < set(now.files) and plan.tag == "v0.2.0" and not plan.changes.deleted
    assert {path for path in plan.changes.added if path.endswith(".parquet")} == {
        file.path for file in new
    }
    card = {"README.md", "DETAILS.md", "assets/labels.png", "assets/lengths.png"}
    assert set(plan.changes.replaced) <= card | {"manifest.json", "recipe.yaml"}
    sent = [int(re.search(r"(\d+) bytes received", line)[1]) for line in log.lines("PUT")]
    pictures = [
        (directory / path).stat().st_size for path in plan.changes.replaced if path.endswith(".png")
    ]
    # LFS: nothing that was there before
    assert sorted(sent) == sorted([*(file.bytes for file in new), *pictures])

    again = release(name, tmp_path, 14, "0.2.0", append=True)
    assert not again.changes and not again.tag
    old, whole = (loaded(hub_api, repo, tag, tmp_path / "cache") for tag in ("v0.1.0", "v0.2.0"))
    for config, rows in old.items():
        assert len(whole[config]) > len(rows) and all(row in whole[config] for row in rows)
    rows = [(row["source_id"], row["target"], row["attempt"]) for row in whole["raw"]]
    assert len(set(rows)) == len(rows) and max(rows)[0] > "000009"


def test_rows_are_appended_to_what_is_published_and_to_nothing_else(release, hub_api, tmp_path):
    name = "grown-apart"
    with pytest.raises(InputError, match="is not a run directory"):
        release(name, tmp_path / "none", 8, "0.2.0", append=True)
    release(name, tmp_path, 8)
    local = shutil.copytree(
        tmp_path / "datasets" / name, tmp_path / "other" / "datasets" / name
    ).parents[1]
    release(name, tmp_path, 10, "0.2.0", append=True)
    with pytest.raises(
        RunError, match=r"holds v0\.2\.0, whose rows the run directory \(v0\.1\.0\) lacks"
    ):
        release(name, local, 12, "0.3.0", append=True)
    with pytest.raises(InputError, match="is not finished, so its gain is not known"):
        release(name, tmp_path, 12, "0.3.0", append=True, min_value=0.1)
    assert run_dir.require_complete(tmp_path / "datasets" / name).version == "0.2.0"


@pytest.mark.slow("publishes two versions, one of them in several commits")
def test_a_release_cut_off_between_its_commits_is_appended_again(
    release, hub_api, tmp_path, monkeypatch
):
    name = "cut-off"
    release(name, tmp_path, 8)
    monkeypatch.setattr(commit_batches, "MOST_FILES_PER_COMMIT", 6)
    real, commits = Repository.commit, 0

    def stops(self, *arguments):
        nonlocal commits
        commits += 1
        if commits == 2:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Repository, "commit", stops)
    with pytest.raises(KeyboardInterrupt):
        release(name, tmp_path, 20, "0.2.0", append=True)
    monkeypatch.setattr(Repository, "commit", real)
    shutil.rmtree(tmp_path / "datasets")
    there = read_remote_manifest(
        repository := Repository(hub_api, f"acme/{name}", "dataset"),
        repository.require_branch("main"),
    )
    assert there is not None and not there.complete and there.version == "0.2.0"
    plan = release(name, tmp_path, 20, "0.2.0", append=True)
    assert plan.tag == "v0.2.0" and not plan.changes.deleted

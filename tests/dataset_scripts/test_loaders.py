"""One repository serves datasets 2.14 to 5.2: pytest -m loaders (builds environments; see below).

Small datasets of every form stand on the embedded Hub, main and ``script``. For each version of
``datasets`` a process of its own, with an empty cache, loads every config and split, whole and
streaming, from both branches. The old versions live in ``.loaders/<version>/``; they are built when
tests/loaders.txt or constraints.txt asks for others.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import HfApi
from small_runs import FORMS, small_recipe, small_run

from hub_server.process import LocalHub
from sts_dino.hub.client.publish import Options, publish_run
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe, build_config_features
from sts_dino.hub.contract.shards import read_shard
from sts_dino.model_cards.rows import list_existing_configs, sort_shards
from sts_dino.release.publish import format_script_files

pytestmark = pytest.mark.loaders

HERE = Path(__file__).resolve().parents[1]
LOADERS = HERE.parent / ".loaders"
PINS = {
    line.split()[0].removeprefix("datasets=="): line.split()
    for line in (HERE / "loaders.txt").read_text().splitlines()
    if line and not line.startswith("#")
}
OWN = datasets.__version__
VERSIONS = (*PINS, OWN)
WITH_SCRIPTS = [version for version in VERSIONS if int(version.split(".")[0]) < 4]
Content = dict[str, dict[str, Any]]  # split → features, rows, sha256
Repos = dict[str, dict[str, Any]]  # repository → branch → what a version loads


@dataclass(frozen=True)
class Published:
    """A dataset on the Hub: its recipe, and what every version must find in each config that has
    rows.
    """

    repo_id: str
    recipe: DatasetRecipe
    configs: dict[str, Content]
    tag: str = ""

    @property
    def name(self) -> str:
        """The repository and its tag, if it has one, in one word."""
        return f"{self.repo_id}@{self.tag}" if self.tag else self.repo_id


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    with LocalHub(tmp_path_factory.mktemp("hub"), orgs=["acme"]) as running:
        yield running


@pytest.fixture(scope="module")
def repos(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Published]:
    """Finished datasets of every form (that of the form nli is private) and one that still grows."""
    api, root = HfApi(endpoint=hub.endpoint, token=hub.token), tmp_path_factory.mktemp("runs")
    found = {}
    for form in FORMS:
        recipe = small_recipe(form)
        directory = root / recipe.name
        small_run(directory, recipe)
        publish_run(
            api,
            directory,
            "acme",
            True,
            Options(public=form != "nli", script=format_script_files(recipe)),
        )
        found[form] = published(recipe, directory)
    recipe = small_recipe("sts", name="growing")
    directory = root / recipe.name
    small_run(directory, recipe, blocks_done=1)
    repo_id = api.create_repo("acme/growing", repo_type="dataset").repo_id
    api.upload_folder(repo_id=repo_id, folder_path=directory, repo_type="dataset")
    found["growing"] = published(recipe, directory)
    api.create_branch(repo_id, branch="script", repo_type="dataset")
    script = {"repo_id": repo_id, "repo_type": "dataset", "revision": "script"}
    for name, text in format_script_files(recipe).items():
        api.upload_file(path_or_fileobj=text.encode(), path_in_repo=name, **script)
    return found


def published(recipe: DatasetRecipe, directory: Path) -> Published:
    manifest = run_dir.read_manifest(directory)
    assert manifest is not None
    configs: dict[str, Content] = {}
    for config in list_existing_configs(recipe, manifest):
        rows: dict[str, list[dict[str, Any]]] = {}
        for file in sort_shards(manifest, config):
            rows.setdefault(str(file.split), []).extend(read_shard(directory / file.path))
        features = [
            [name, getattr(f, "names", None) or f.dtype]
            for name, f in build_config_features(config, recipe).items()
        ]
        configs[config] = {
            split: {"features": features, "rows": len(found), "sha256": digest(found)}
            for split, found in rows.items()
        }
    tag = f"v{recipe.version}" if manifest.complete else ""
    return Published(f"acme/{recipe.name}", recipe, configs, tag)


def digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256(b"".join(json.dumps(row).encode() + b"\n" for row in rows)).hexdigest()


@pytest.fixture(scope="module")
def answers(
    hub: LocalHub, repos: dict[str, Published], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Repos]]]:
    """Every version at work, two at a time."""
    homes = tmp_path_factory.mktemp("homes")
    with ThreadPoolExecutor(2) as pool:
        yield {
            version: pool.submit(asked, version, hub, repos, homes / version)
            for version in VERSIONS
        }


def asked(version: str, hub: LocalHub, repos: dict[str, Published], home: Path) -> Repos:
    names = [repo.name for repo in repos.values()]
    client = Path(__file__).with_name("loader_client.py")
    done = call(
        interpreter(version), client, *names, env=hub.client_environment(home), cwd=home.parent
    )
    said = json.loads(done.stdout)
    assert said["version"] == version
    assert "latest cached version" not in done.stderr, "answered from the cache after a failure"
    return said["repos"]


def call(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **how
    )
    assert done.returncode == 0, f"{words}: {done.stderr[-3000:]}"
    return done


def interpreter(version: str) -> Path:
    """The Python of a version's environment, which is built unless it is there with the same pins."""
    if version == OWN:
        return Path(sys.executable)
    folder, pins = LOADERS / version, requirements(PINS[version])
    python, built = folder / "bin" / "python", folder / "pins.txt"
    if not built.is_file() or built.read_text() != pins:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=False)
        (folder / "asked.txt").write_text(pins)
        options = ["-q", "--only-binary", ":all:", "--no-compile", "--disable-pip-version-check"]
        pip = [sys.executable, "-m", "pip", "--python", folder, "install", *options]
        call(*pip, "-c", folder / "asked.txt", *PINS[version])
        (folder / "asked.txt").rename(built)
    return python


def requirements(own: list[str]) -> str:
    """A constraints file: a version's own pins, and those of the project for everything else."""
    names = {plain_name(pin) for pin in own}
    lines = (HERE.parent / "constraints.txt").read_text().splitlines()
    return (
        "\n".join(
            [*own, *(pin for pin in lines if pin[:1] != "#" and plain_name(pin) not in names)]
        )
        + "\n"
    )


def plain_name(pin: str) -> str:
    return re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_both_branches_load(answers, repos, version, form):
    repo = repos[form]
    assert list(repo.configs) == list(repo.recipe.configs)
    found, default = answers[version].result()[repo.repo_id], repo.configs[repo.recipe.configs[0]]
    loaded = {"whole": repo.configs, "streaming": repo.configs, "default": default}
    assert found["main"] == loaded and found["pinned"] == default
    refused = {
        "error": f"RuntimeError: Dataset scripts are no longer supported, but found {repo.recipe.name}.py"
    }
    assert found["script"] == (loaded if version in WITH_SCRIPTS else refused)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_there_is_of_a_growing_dataset_loads(answers, repos, version):
    repo = repos["growing"]
    assert list(repo.configs) == ["raw", "rejected"]
    found = answers[version].result()[repo.repo_id]
    assert found["main"]["whole"] == found["main"]["streaming"] == repo.configs
    assert found["main"]["default"] == repo.configs["raw"]
    if version in WITH_SCRIPTS:
        for way in ("whole", "streaming"):
            assert {config: found["script"][way][config] for config in repo.configs} == repo.configs
            said = "growing: the config 'postprocessed' has no rows yet; these have: ['raw', 'rejected']"
            assert found["script"][way]["postprocessed"] == {"error": f"ValueError: {said}"}

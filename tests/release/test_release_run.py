"""One command from recipe to Hub: killed, resumed on an empty disk, and refused before any work."""

import hashlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from forked_python import python_in
from huggingface_hub import HfApi
from local_hub import mint
from tiny_lm import make_lm

from hub.contract import run_dir
from hub.errors import InputError
from release.options import ClusterWorkers, words_of
from release.run import expanded

pytest_plugins = ["local_hub"]
RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
SMALL = ["source.limit=60", "shard_size=4", "decoding.max_new_tokens=6", "decoding.max_attempts=3"]  # 15 shards


def command(hub, home: Path, artifacts: Path, lm: Path, name: str, *more: str) -> subprocess.Popen[str]:
    settings = [f"name={name}", f"model.path={lm}", *SMALL]
    words = [sys.executable, "-m", "sts_dino", "release", str(RECIPE), "--org", "acme", "--artifacts", str(artifacts)]
    words += [word for setting in settings for word in ("--set", setting)] + list(more)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's & has a child ignore it
    return subprocess.Popen(words, env=hub.client_environment(home), preexec_fn=hears, **pipes)


def digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def commits(api: HfApi, repo: str) -> list[str]:
    if not api.repo_exists(repo, repo_type="dataset"):
        return []
    return [commit.title for commit in api.list_repo_commits(repo, repo_type="dataset")]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.mark.slow("kills a run again and again, to the same bytes")
def test_a_killed_release_goes_on_from_the_hub_on_an_empty_disk_to_the_same_bytes(local_hub, hub_api, tmp_path):
    lm, name = make_lm(tmp_path / "lm"), "killed-and-resumed"
    first = command(local_hub, tmp_path / "home1", tmp_path / "one", lm, name, "--yes")
    deadline, directory = time.monotonic() + 200, tmp_path / "one" / "datasets" / name
    while not getattr(run_dir.read_manifest(directory), "files", ()) and time.monotonic() < deadline:
        time.sleep(0.005)
    for generator in psutil.Process(first.pid).children():
        generator.suspend()  # or it might be done before the first commit
    while len(commits(hub_api, f"acme/{name}")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    there = commits(hub_api, f"acme/{name}")
    assert len(there) >= 2 and "shards" in there[0], there
    shutil.rmtree(tmp_path / "one")

    code, out, err = ended(command(local_hub, tmp_path / "home2", tmp_path / "two", lm, name, "--yes"))
    assert code == 0, err
    assert "going on from acme/killed-and-resumed" in err and "tag v0.1.0" in out
    code, out, err = ended(command(local_hub, tmp_path / "home3", tmp_path / "plain", lm, name))
    assert code == 0 and "no file changes" in out, err  # a run that never saw the Hub ends in what is published
    assert digests(tmp_path / "two" / "datasets" / name) == digests(tmp_path / "plain" / "datasets" / name)

    before = commits(hub_api, f"acme/{name}")
    code, out, err = ended(command(local_hub, tmp_path / "home2", tmp_path / "two", lm, name, "--yes", "--again"))
    assert code == 0 and "no file changes" in out and commits(hub_api, f"acme/{name}") == before


@pytest.mark.slow("runs whole releases in processes of their own")
def test_a_hub_that_refuses_stops_before_the_model_is_loaded(local_hub, tmp_path):
    process = command(local_hub, tmp_path / "home", tmp_path / "art", tmp_path / "no-lm", "never", "--yes")
    code, _, err = ended(process)
    assert code == 2 and "no such folder" in err  # allowed to publish, so the generator was started

    environment = local_hub.client_environment(tmp_path / "home2") | {"HF_TOKEN": mint(local_hub, "demo", "read")}
    words = [sys.executable, "-m", "sts_dino", "release", str(RECIPE), "--org", "acme", "--yes"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "may only read" in done.stderr
    assert "generation.run" not in done.stderr and "hf_" not in done.stderr


@pytest.mark.slow("kills a run again and again, to the same bytes")
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_a_signal_leaves_no_generator_behind_and_it_is_said_how_to_go_on(number, code, word, local_hub, tmp_path):
    lm, name = make_lm(tmp_path / "lm"), f"interrupted-{code}"
    process = command(local_hub, tmp_path / "home", tmp_path / "art", lm, name, "--yes", "--set", "source.limit=9000")
    directory = tmp_path / "art" / "datasets" / name
    deadline = time.monotonic() + 120
    while run_dir.read_manifest(directory) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)  # to this process alone: a terminal and Slurm send it to the generator, too
    found, out, err = ended(process)
    assert (found, out, err.splitlines()[-1]) == (code, "", f"{word}; run the same command again to go on")
    with run_dir.locked(directory):
        assert not run_dir.read_manifest(directory).complete


@pytest.mark.slow("runs whole releases in processes of their own")
def test_without_a_hub_everything_is_made_and_no_plan_is_shown(local_hub, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings = [f"model.path={make_lm(tmp_path / 'lm')}", *SMALL, "source.limit=4", "name=offline"]
        environment = local_hub.client_environment(tmp_path / "home") | {"HF_ENDPOINT": nowhere}
        words = [python_in(environment), "-m", "sts_dino", "release", str(RECIPE), "--org", "acme"]
        words += ["--artifacts", str(tmp_path), *(word for setting in settings for word in ("--set", setting))]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "is made, but no Hub says" in done.stderr, done.stderr
        assert (tmp_path / "datasets/offline/README.md").is_file() and not done.stdout
        done = subprocess.run([*words, "--yes"], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "cannot be reached" in done.stderr


BASELINE = """kind: model
name: some-baseline
version: 1.0.0
pretty_name: Words
license: cc-by-nc-sa-4.0
base: {path: assets/demo-lm, modules: static, license: cc-by-nc-sa-4.0}
threads: 1
evaluation: [{task: stsb/cosine, split: validation, path: assets/stsb/sts-dev.csv}]
bootstrap_samples: 100
"""


@pytest.mark.slow("runs whole releases in processes of their own")
def test_a_baseline_in_a_folder_is_scored_and_not_published_and_alone_it_is_refused(local_hub, hub_api, tmp_path):
    folder, artifacts = tmp_path / "recipes", tmp_path / "artifacts"
    folder.mkdir()
    recipe = folder / "some-baseline.yaml"
    recipe.write_text(BASELINE)
    environment = local_hub.client_environment(tmp_path / "home")
    python = python_in(environment)
    words = [python, "-m", "sts_dino", "release", "--org", "acme", "--artifacts", str(artifacts), "--yes"]
    refused = subprocess.run([*words, str(recipe)], env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and not artifacts.exists()
    assert refused.stderr.startswith(f"error: {recipe}: is a baseline, which is not published")

    done = subprocess.run([*words, str(folder)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "some-baseline: is a baseline, which is not published" in done.stderr.splitlines()[-1]
    directory = artifacts / "models" / "some-baseline"
    assert (
        "baseline of the evaluation" in (directory / "README.md").read_text() and (directory / "results.json").is_file()
    )
    assert not hub_api.repo_exists("acme/some-baseline")

    publish = [python, "-m", "sts_dino", "publish", str(directory), "--org", "acme", "--yes"]
    refused = subprocess.run(publish, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "is a baseline, which is not published" in refused.stderr
    assert not hub_api.repo_exists("acme/some-baseline")


def test_workers_are_the_generators_and_no_use_to_models():
    words = "--workers 8 --gpus-per-worker 2 --ray 10.0.0.1:6379 --store s3://bucket/runs"
    assert words_of(ClusterWorkers(8, None, 2, "10.0.0.1:6379", "s3://bucket/runs")) == words.split()
    with pytest.raises(InputError, match=r"store s3://…: the URL must not hold"):
        ClusterWorkers(store="s3://user:password@bucket")
    ClusterWorkers(workers=8).require_datasets(1)
    ClusterWorkers().require_datasets(0)
    with pytest.raises(InputError, match=r"--workers 8: are for datasets.*torchrun or accelerate \(docs/training.md\)"):
        ClusterWorkers(workers=8).require_datasets(0)


def test_folders_stand_for_their_recipes_datasets_first(tmp_path):
    assert expanded([Path("recipes/demo")]) == [
        Path(f"recipes/demo/{name}.yaml") for name in ("auto-nli", "sts-dino-x1x2", "sts-dino-x2", "demo-sts-dino")
    ]
    with pytest.raises(InputError, match=r"no recipe \(\*\.yaml\) is there"):
        expanded([tmp_path])
    (tmp_path / "odd.yaml").write_text("kind: cake\n")
    with pytest.raises(InputError, match="'cake' is no kind of recipe; allowed: dataset, model"):
        expanded([tmp_path])


def test_a_dataset_whose_value_is_not_measured_is_refused_before_anything_is_made(local_hub, hub_api, tmp_path):
    words = (local_hub, tmp_path / "home", tmp_path / "out", make_lm(tmp_path / "lm"), "of-no-value")
    code, _, err = ended(command(*words, "--min-value", "0.5", "--yes"))
    assert code == 2 and "is not made, so its value is not known; make it without --yes, measure it" in err
    assert not (tmp_path / "out/datasets/of-no-value").exists()
    assert not hub_api.repo_exists("acme/of-no-value", repo_type="dataset")


def test_a_least_value_is_no_models():
    words = ["release", "recipes/demo/demo-sts-dino.yaml", "--org", "acme", "--min-value", "1"]
    app = [sys.executable, "-m", "sts_dino", *words]
    done = subprocess.run(app, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--min-value: is of datasets, but a model's recipe is given" in done.stderr

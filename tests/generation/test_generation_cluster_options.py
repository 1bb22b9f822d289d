"""ClusterOptions that spread a run, what they mean for a recipe, and addresses where no cluster answers."""

import dataclasses
import http.server
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_runs import small_recipe
from tiny_lm import make_lm
from typer.testing import CliRunner

from generation import run
from generation.executors.options import (
    PROCESS,
    ClusterOptions,
    _refusal,
    check,
    warn_of_threads,
    withheld_secrets,
    worker_resources,
)
from generation.executors.options import cluster as connected
from generation.executors.ray_workers import WorkerResources, on_this_gpu
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError

X2 = Path("recipes/demo/sts-dino-x2.yaml")


def of(**model: object) -> DatasetRecipe:
    return small_recipe("sts", model={"repo_id": "org/lm", "revision": "a" * 40, "license": "mit"} | model)


def test_a_worker_takes_its_threads_its_gpu_or_the_memory_of_its_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    at = ClusterOptions("auto")
    assert worker_resources(of(), at) == WorkerResources(1)
    assert worker_resources(of(threads=4), at) == WorkerResources(4)
    assert worker_resources(of(threads=4), dataclasses.replace(at, cpus=2)) == WorkerResources(2)
    assert worker_resources(of(device="cuda:1"), at) == WorkerResources(1, 1)
    assert worker_resources(of(device_map="auto"), dataclasses.replace(at, gpus=4)) == WorkerResources(1, 4)
    assert worker_resources(of(repo_id=None, path=str(tmp_path)), at) == WorkerResources(1, 0, PROCESS + 1000)
    (tmp_path / "q4.gguf").write_bytes(b"x" * 100)
    packed = of(repo_id=None, path=str(tmp_path), gguf_file="q4.gguf")
    assert worker_resources(packed, at) == WorkerResources(1, 0, PROCESS + 700)
    assert worker_resources(of(), ClusterOptions(workers=1)).cpus == os.cpu_count()
    assert worker_resources(of(), ClusterOptions(workers=10_000)).cpus == 1


def test_a_worker_on_a_gpu_uses_the_one_that_ray_shows_it():
    assert on_this_gpu(of(device="cuda:3")).model.device == "cuda"
    assert on_this_gpu(of()).model.device == "cpu"


def test_tokens_stay_with_the_driver_unless_workers_need_them():
    local = of(repo_id=None, path="lm")
    assert "OPENAI_API_KEY" in withheld_secrets(of(), None) and "HF_TOKEN" not in withheld_secrets(of(), None)
    assert "HF_TOKEN" in withheld_secrets(local, None) and "HF_TOKEN" in withheld_secrets(local, "/shared")
    assert "HF_TOKEN" not in withheld_secrets(local, "hf://buckets/org/name")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--store", "/shared"], "--store: is for several workers; add --workers N or --ray"),
        (["--cpus-per-worker", "2", "--gpus-per-worker", "1"], "--cpus-per-worker, --gpus-per-worker: is for several"),
        (["--ray", "ray://10.0.0.1:10001"], "run the command on a node of the cluster"),
        (["--ray", "nowhere"], "is no address; allowed: auto or HOST:PORT"),
        (["--ray", "127.0.0.1:1"], r"--ray 127.0.0.1:1: does not answer \(\[Errno 111\]"),
        (["--workers", "0"], "--workers"),
        (
            ["--workers", "1", "--gpus-per-worker", "1.5"],
            "--gpus-per-worker: is 1.5; allowed: a whole number, or a part",
        ),
    ],
)
def test_options_that_cannot_be(tmp_path, options, words):
    lm = make_lm(tmp_path / "lm")
    result = CliRunner().invoke(run.app, [str(X2), "--out", str(tmp_path / "o"), "--set", f"model.path={lm}", *options])
    if isinstance(result.exception, InputError):
        with pytest.raises(InputError, match=words):
            raise result.exception
    else:
        assert result.exit_code == 2 and words in result.output


def test_a_server_is_kept_busy_by_one_process():
    server = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    recipe = small_recipe("nli", model={"backend": "openai", "server": server, "license": "mit"})
    with pytest.raises(InputError, match=r"are not for backend openai; raise model\.server\.concurrency"):
        check(ClusterOptions(workers=2), recipe)


def test_clusters_to_choose_from_are_named():
    said = (
        "ConnectionError: Found multiple active Ray instances: {'127.0.0.1:39037', '127.0.0.2:32891'}. Please specify"
    )
    words = r"--ray auto: several clusters run on this machine \(127\.0\.0\.1:39037, 127\.0\.0\.2:32891\); give one"
    assert re.match(words, str(_refusal("--ray auto", RuntimeError(said))))


def test_versions_of_ray_and_python_that_differ_are_named_with_both_sides():
    from ray._private.utils import check_version_info, compute_version_info

    ray, python = compute_version_info()
    with pytest.raises(RuntimeError) as other:
        check_version_info({"ray_version": "2.1.0", "python_version": "3.10.4"}, "node 10.0.0.1:6379")
    words = f"--ray auto: has Ray 2.1.0, Python 3.10.4; this process Ray {ray}, Python {python}; install the same"
    assert str(_refusal("--ray auto", other.value)).startswith(words)


def test_open_threads_are_told_where_they_decide_bytes(capsys):
    recipe = load_recipe(X2, DatasetRecipe)
    warn_of_threads(recipe)
    assert not capsys.readouterr().err
    warn_of_threads(recipe.model_copy(update={"model": recipe.model.model_copy(update={"threads": None})}))
    assert "--set model.threads=1" in capsys.readouterr().err


def test_an_address_where_something_else_answers_is_refused_in_time(monkeypatch):
    monkeypatch.setattr("generation.executors.options.ANSWER_SECONDS", 3)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(InputError, match=r"within 3 seconds"), connected(f"127.0.0.1:{server.server_port}"):
            pass
    finally:
        server.shutdown()


def test_a_run_imports_neither_ray_nor_a_model_before_it_needs_them():
    heavy = "{'ray', 'torch', 'transformers'} & set(sys.modules)"
    code = f"import sys, generation.pipeline.job, generation.executors.ray_executor; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)

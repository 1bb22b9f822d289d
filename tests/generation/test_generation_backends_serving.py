"""Whole runs against a real OpenAI-compatible server: ``transformers serve`` with the built-in language model."""

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from killing import killed
from serving import TransformersServe
from transformers.utils.import_utils import is_serve_available

if not is_serve_available():
    pytest.skip('transformers serve is not installed: pip install "transformers[serving]"', allow_module_level=True)

from generation.pipeline import job
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.shards import read_shard
from hub.errors import RunError

pytestmark = pytest.mark.slow("writes with a real server of transformers")

RECIPE = Path("recipes/demo/auto-nli.yaml")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = TransformersServe(tmp_path_factory.mktemp("serve")).start()
    yield server
    server.kill()


def settings(server: TransformersServe, **more: object) -> list[str]:
    section = {"base_url": server.base_url, "model": server.model, "dialect": "transformers", "max_retries": 1, **more}
    return [
        "model.backend=openai",
        f"model.server={json.dumps(section)}",
        "source.limit=8",
        "shard_size=3",
        "decoding.max_attempts=3",
    ]


def generate(server: TransformersServe, directory: Path, **more: object) -> run_dir.Manifest:
    with run_dir.locked(directory):
        return job.generate(load_recipe(RECIPE, DatasetRecipe, settings(server, **more)), directory, "test")


def arguments(server: TransformersServe, directory: Path) -> list[str]:
    given = [word for setting in settings(server, concurrency=1) for word in ("--set", setting)]
    return [str(RECIPE), "--out", str(directory), *given]


def answers(directory: Path) -> list[str]:
    path = directory.with_name(f"{directory.name}.answers.sqlite")
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE name = 'answers'").fetchone()
        return [text for (text,) in connection.execute("SELECT text FROM answers")] if found else []


def shards(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*.parquet"))}


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory) -> Path:
    """One run that nothing interrupts, one request at a time."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    generate(server, directory, concurrency=1, price_per_million=[1.0, 2.0])
    return directory


def test_a_run_is_complete_and_its_rows_are_the_servers_words(server, whole):
    manifest = run_dir.require_complete(whole)
    counts, model = manifest.counts, manifest.provenance["model"]
    assert counts["requested"] == counts["kept"] + sum(counts["rejected"].values()) == len(answers(whole)) >= 16
    assert (model["id"], model["backend"]) == (server.model, "openai")
    for name in (run_dir.MANIFEST, run_dir.RECIPE):
        assert "127.0.0.1" not in (whole / name).read_text()
    rows = [
        row for file in manifest.files if file.config in ("raw", "raw-0shot") for row in read_shard(whole / file.path)
    ]
    written = {text.split('"')[0].strip() for text in answers(whole)}
    assert rows and {row["text2"] for row in rows} <= written
    assert {(row["log_prob"], row["margin"]) for row in rows} == {(None, None)}
    assert len(written) > 10  # drawn, not the likeliest text again and again
    usage = json.loads(whole.with_name("whole.usage.json").read_text())
    assert usage["answers"] == len(answers(whole)) and usage["uncounted"] == 0
    assert usage["prompt_tokens"] > 20 * usage["answers"] and usage["completion_tokens"] > 3 * usage["answers"]
    assert usage["cost"] == pytest.approx((usage["prompt_tokens"] + 2 * usage["completion_tokens"]) / 1e6)


def test_a_dead_server_is_one_error_and_a_killed_run_resumes_to_the_same_bytes_with_no_answer_asked_twice(
    server, whole, tmp_path
):
    out, before = tmp_path / "dying", server.served
    command = [sys.executable, "-m", "sts_dino", "write", *arguments(server, out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while len(answers(out)) < 5 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    server.kill()
    output, said = process.communicate(timeout=90)
    assert process.returncode == 1 and output == "" and "Traceback" not in said
    error = said.splitlines()[-1]
    assert error.startswith(f"error: server {server.base_url}: cannot be reached") and "run the same command" in error
    with pytest.raises(RunError, match="cannot be reached"):
        generate(server, out, concurrency=1)
    assert len(answers(out)) < len(answers(whole))
    server.start()
    answered = len(answers(out))
    killed(arguments(server, out), lambda: len(answers(out)) >= answered + 3)
    assert len(answers(out)) < len(answers(whole))
    server.rest()
    generate(server, out, concurrency=1)
    assert shards(out) == shards(whole)
    assert server.served - before <= len(answers(whole)) + 2  # two may have been under way

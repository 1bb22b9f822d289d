"""Whole runs against servers: ``transformers serve`` with the built-in language model, and one that fails to order."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from killing import killed
from serving import Reply, completion, ordered_server, transformers_serve
from transformers.utils.import_utils import is_serve_available

pytest.importorskip("openai", reason='the extra openai is not installed: pip install -e ".[openai]"')

from generation.pipeline import job
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.shards import read_shard
from hub.errors import RunError

RECIPE = Path("recipes/demo/auto-nli.yaml")


def settings(base_url: str, **more: object) -> list[str]:
    section = {"base_url": base_url, "model": "lm", "concurrency": 1, "max_retries": 1, **more}
    sizes = ["source.limit=8", "shard_size=3", "decoding.max_attempts=3"]
    return ["model.backend=openai", f"model.server={json.dumps(section)}", *sizes]


def generate(base_url: str, directory: Path, **more: object) -> run_dir.Manifest:
    with run_dir.locked(directory):
        return job.generate(load_recipe(RECIPE, DatasetRecipe, settings(base_url, **more)), directory, "test")


def answers(directory: Path) -> list[str]:
    path = directory.with_name(f"{directory.name}.answers.sqlite")
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE name = 'answers'").fetchone()
        return [text for (text,) in connection.execute("SELECT text FROM answers")] if found else []


def shards(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*.parquet"))}


@pytest.mark.slow("writes with a real server of transformers")
@pytest.mark.skipif(not is_serve_available(), reason='transformers serve: pip install "transformers[serving]"')
def test_the_rows_of_a_run_are_the_words_of_transformers_serve(tmp_path):
    whole, prices = tmp_path / "whole", {"price_per_million": [1.0, 2.0]}
    with transformers_serve(tmp_path) as (base_url, model):
        generate(base_url, whole, model=model, dialect="transformers", **prices)
    manifest = run_dir.require_complete(whole)
    counts, section = manifest.counts, manifest.provenance["model"]
    assert counts["requested"] == counts["kept"] + sum(counts["rejected"].values()) == len(answers(whole)) >= 16
    assert (section["id"], section["backend"]) == (model, "openai")
    for name in (run_dir.MANIFEST, run_dir.RECIPE):
        assert "127.0.0.1" not in (whole / name).read_text()
    rows = [row for path in whole.glob("data/raw*/*.parquet") for row in read_shard(path)]
    written = {text.split('"')[0].strip() for text in answers(whole)}
    assert rows and {row["text2"] for row in rows} <= written
    assert {(row["log_prob"], row["margin"]) for row in rows} == {(None, None)}
    assert len(written) > 10  # drawn, not the likeliest text again and again
    usage = json.loads(whole.with_name("whole.usage.json").read_text())
    assert usage["answers"] == len(answers(whole)) and usage["uncounted"] == 0
    assert usage["prompt_tokens"] > 20 * usage["answers"] and usage["completion_tokens"] > 3 * usage["answers"]
    assert usage["cost"] == pytest.approx((usage["prompt_tokens"] + 2 * usage["completion_tokens"]) / 1e6)


@pytest.mark.slow("a process of its own, killed")
def test_a_killed_run_and_one_whose_server_died_resume_to_the_same_bytes_and_pay_for_nothing_twice(tmp_path):
    whole, out, dead = tmp_path / "whole", tmp_path / "out", []

    def reply(body: dict, _: int) -> Reply:
        time.sleep(0.02)
        return None if dead else completion(f'A dog runs {body["seed"] % 97} times." And')

    with ordered_server(reply) as server:
        generate(server.base_url, whole)
        asked = len(server.bodies)
        words = [word for setting in settings(server.base_url) for word in ("--set", setting)]
        killed([str(RECIPE), "--out", str(out), *words], lambda: len(answers(out)) >= 7)
        dead.append(True)
        with pytest.raises(RunError, match="cannot be reached"):
            generate(server.base_url, out)
        assert 7 <= len(answers(out)) < len(answers(whole)) == asked
        dead.clear()
        generate(server.base_url, out)
    assert shards(out) == shards(whole)
    assert len(server.bodies) <= 2 * asked + 3  # one was under way at the kill, two met the dead server

"""Metadata that would stop the library which reads it is refused first, by every command that loads strangers' rows."""

import subprocess
import sys
from pathlib import Path

import pytest
from local_hub import ask, commit_body, file_line

pytest_plugins = ["local_hub"]
DEEP = "x: " + "[" * 2000 + "]" * 2000
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1}\n  <<: [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))
LOADS = """
import sys
from hub.cli import run
repo, revision = sys.argv[1:]

def load():
    from training.data.training_sets import from_hub
    from eval.audit.source import find_dataset
    from generation.inputs.sources import _split_rows
    from hub.contract.recipe import Source
    from hub.errors import InputError
    source = Source(kind="hub", repo_id=repo, revision=revision, columns=("text",), description="x", license="mit")
    for call in (lambda: from_hub(repo, revision, None, False, "x"), lambda: find_dataset(f"{repo}@{revision}"),
                 lambda: list(_split_rows(source, "train"))):
        try:
            call()
        except InputError as error:
            print(error)

run(load)
"""


@pytest.mark.parametrize("metadata", [DEEP, MERGES], ids=["levels", "merges"])
def test_every_reader_of_a_hub_dataset_refuses_it(local_hub, repo, tmp_path, metadata):
    body = commit_body(
        file_line("README.md", f"---\n{metadata}\n---\n# x\n"), file_line("train.jsonl", '{"text": "a"}\n')
    )
    answer = ask(local_hub, "POST", f"/api/datasets/{repo}/commit/main", body, token=local_hub.token)
    command = [sys.executable, "-c", LOADS, repo, answer.json()["commitOid"]]
    environment = local_hub.client_environment(tmp_path) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(f"dataset {repo}: README.md: its metadata has more than" in line for line in lines)

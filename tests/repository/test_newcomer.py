"""A newcomer's path: an empty folder, four commands, no file edited by hand, an encoder that loads by name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hub_server.process import LocalHub

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = 60
LOAD = """
import json, sys
from datasets import load_dataset
from sentence_transformers import SentenceTransformer
pairs, encoder = load_dataset(sys.argv[1]), SentenceTransformer(sys.argv[2])
print(json.dumps([sum(map(len, pairs.values())), encoder.encode(["a sentence"]).shape[1]]))
"""


@pytest.mark.slow("writes, trains, scores and publishes in processes of their own")
def test_four_commands_lead_from_sentences_to_a_published_encoder(tmp_path):
    corpus = (ROOT / "assets/first-texts/wikipedia.txt").read_text(encoding="utf-8").splitlines()[:SENTENCES]
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "texts.txt").write_text("\n".join(corpus) + "\n", encoding="utf-8")
    with LocalHub(tmp_path / "hub", orgs=["newcomer"]) as hub:
        environment = hub.client_environment() | {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}

        def run(*words: str) -> str:
            command = [sys.executable, *words]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        run("-m", "sts_dino", "new", "texts.txt", "--lm", "builtin")
        run("-m", "sts_dino", "adapt", "texts.yaml", "--out", "made")
        for place in ("made/datasets/texts-pairs", "made/models/texts-encoder"):
            run("-m", "sts_dino", "publish", place, "--org", "newcomer", "--yes")
        rows, dimension = json.loads(run("-c", LOAD, "newcomer/texts-pairs", "newcomer/texts-encoder").splitlines()[-1])
    assert rows > SENTENCES and dimension > 0
    page = (folder / "made/report.html").read_text(encoding="utf-8")
    assert "texts-encoder" in page and "<script" not in page
    assert not (folder / "made/.adapt.lock").exists()

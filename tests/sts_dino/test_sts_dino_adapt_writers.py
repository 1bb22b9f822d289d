"""From sentences to a published encoder: with a GGUF file, and with the same file behind
llama.cpp's server.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from forked_python import python_in
from tiny_gguf import make_gguf
from tiny_lm import make_lm

from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, require_complete

pytest_plugins = ["local_hub"]
SENTENCES = 40
LICENSE = "cc-by-nc-sa-4.0"
LOAD = """
import json, sys
from datasets import load_dataset
from sentence_transformers import SentenceTransformer
pairs, encoder = load_dataset(sys.argv[1]), SentenceTransformer(sys.argv[2])
print(json.dumps([sum(map(len, pairs.values())), encoder.encode(["a sentence"]).shape[1]]))
"""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """The built-in model as one file, its whole weights beside it."""
    folder = shutil.copytree(find_asset("demo-lm"), tmp_path_factory.mktemp("lm") / "lm")
    return make_gguf(folder, folder / "built-in.gguf")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    texts = (
        (find_asset("source-sentences") / "wikipedia.txt")
        .read_text(encoding="utf-8")
        .splitlines()[:SENTENCES]
    )
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def run(folder: Path, environment: dict[str, str], *words: str) -> str:
    """Run the command as a person types it in a folder; what it prints."""
    command = [python_in(environment), "-m", "sts_dino", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def published(out: Path, *secrets: str) -> str:
    """All text that would be published of both runs; none of it tells one of the ``secrets``."""
    runs = out / "datasets/texts-pairs", out / "models/texts-encoder"
    assert all(map(require_complete, runs))
    text = "".join(
        (run / name).read_text(encoding="utf-8") for run in runs for name in (MANIFEST, RECIPE)
    )
    text += (out / "report.html").read_text(encoding="utf-8")
    assert not [secret for secret in secrets if secret in text] and "<script" not in text
    return text


@pytest.mark.slow("generates, trains, scores and publishes in processes of their own")
def test_four_commands_lead_from_sentences_and_a_gguf_file_to_a_published_encoder(
    gguf, corpus, local_hub, hub_api
):
    folder, made = corpus.parent, corpus.parent / "made"
    home = local_hub.client_environment(folder / "home") | {"PYTHONPATH": str(Path.cwd())}
    run(folder, home, "new", corpus.name, "--lm", str(gguf), "--lm-license", LICENSE)
    run(folder, home, "adapt", "texts.yaml", "--out", "made", "--encoder", "static")
    text = published(made, str(gguf.parent), str(folder))
    assert (
        "built-in.gguf generated" in text
        and "counter_labels" in text
        and not (made / ".adapt.lock").exists()
    )
    for place in ("datasets/texts-pairs", "models/texts-encoder"):
        run(folder, home, "publish", f"made/{place}", "--org", "acme", "--yes")
    command = [python_in(home), "-c", LOAD, "acme/texts-pairs", "acme/texts-encoder"]
    loaded = subprocess.run(
        command, env=home, cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    rows, dimension = json.loads(loaded.splitlines()[-1])
    assert rows > SENTENCES and dimension > 0


@pytest.mark.slow("a server that generates, and stages in processes of their own")
def test_a_model_behind_a_server_generates_for_an_encoder(gguf, corpus, tmp_path):
    pytest.importorskip(
        "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
    )
    pytest.importorskip(
        "xllamacpp", reason="llama.cpp's server is not installed: pip install xllamacpp"
    )
    from sts_dino.experiments.speed.llamacpp_server import serve

    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path.cwd()),
    }
    with serve(gguf, slots=4, context=1024) as server:
        words = [
            corpus.name,
            "--out",
            "made",
            "--lm",
            f"built-in@{server.base_url}",
            "--lm-license",
            LICENSE,
        ]
        words += ["--encoder", str(make_lm(tmp_path / "base")), "--encoder-license", LICENSE]
        assert "stsb/cosine" in run(tmp_path, environment, "adapt", *words)
    text = published(tmp_path / "made", server.base_url, "127.0.0.1", str(tmp_path))
    assert "built-in generated" in text and "dialect: llamacpp" in text

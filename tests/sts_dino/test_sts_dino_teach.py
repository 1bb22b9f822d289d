"""sts-dino teach: which pairs are drawn, with the teacher's cosines as scores, and what is kept."""

import json
import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_outcomes import outcome_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from small_runs import small_recipe, small_run
from tiny_lm import make_tokenizer

from sts_dino import adapt, teach
from sts_dino.eval.tasks.own import OwnFiles, read_own
from sts_dino.eval.tasks.task import Outcomes
from sts_dino.experiments.domains import PLAN, DomainPlan
from sts_dino.generation.backends.load_model import get_half_or_float32
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import format_recipe, load_recipe, read_yaml
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.errors import InputError, RunError
from sts_dino.new import CorpusChoices
from sts_dino.proposals.recipes import TAUGHT_STEPS, choose_base, choose_schedule
from sts_dino.release.simcse import make_baseline_recipe
from sts_dino.teach import (
    FACTS_FILE,
    NEAREST,
    RANGES,
    TAUGHT_PAIRS,
    compute_unit_vectors,
    draw_pairs,
    join_vectors,
    list_candidates,
    write_taught_pairs,
)
from sts_dino.training import run as training_run

WIKIPEDIA = find_asset("source-sentences") / "wikipedia.txt"
TEXTS = WIKIPEDIA.read_text(encoding="utf-8").splitlines()[:50]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers") / "teacher"
    words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
    SentenceTransformer(modules=[words]).save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "texts-pairs"
    small_run(directory, small_recipe("sts"), blocks=4)
    return directory


def unit_vectors(count, dimensions=6, seed=0):
    draws = np.random.default_rng(seed).normal(size=(count, dimensions))
    return compute_unit_vectors(draws.astype(np.float32))


def test_candidates_are_all_pairs_of_a_group_and_each_texts_nearest(monkeypatch):
    monkeypatch.setattr(teach, "CHUNK_TEXTS", 7)
    vectors = unit_vectors(40)
    groups = np.arange(40) // 4
    first, second = list_candidates(vectors, groups, np.random.default_rng(0))
    candidates = set(zip(first.tolist(), second.tolist(), strict=True))
    assert len(candidates) == len(first) and all(left < right for left, right in candidates)

    cosines = vectors @ vectors.T
    for text in range(40):
        others = [other for other in range(40) if other != text]
        nearest = sorted(others, key=lambda other: -cosines[text, other])[:NEAREST]
        expected = {*nearest, *[other for other in others if groups[other] == groups[text]]}
        assert {(min(text, other), max(text, other)) for other in expected} <= candidates


def test_the_pairs_are_spread_evenly_over_the_teachers_cosines():
    vectors = unit_vectors(300)
    groups = np.arange(300)
    first, second, cosines = draw_pairs(vectors, groups, 803, seed=3)
    assert len(first) == len(second) == len(cosines) == 803
    assert np.allclose(cosines, np.sum(vectors[first] * vectors[second], axis=1).clip(0), atol=1e-6)
    assert cosines.min() >= 0 and (first != second).all()
    edges = np.linspace(cosines.min(), cosines.max(), RANGES + 1)
    counts, _ = np.histogram(cosines, edges)
    assert counts.min() >= 100 and counts.max() <= 101  # 803 in eight ranges
    assert (first[:50] != np.sort(first[:50])).any()  # in random order
    again = draw_pairs(vectors, groups, 803, seed=3)
    assert all(
        np.array_equal(*sides) for sides in zip((first, second, cosines), again, strict=True)
    )


def test_a_joined_cosine_is_the_mean_of_both_weighted_by_their_spread():
    teacher, base, groups = unit_vectors(200), unit_vectors(200, 9, seed=1), np.arange(200)
    base[:, 0] += 3  # cosines near 1: a small spread and so a large weight
    base = compute_unit_vectors(base)
    joined = join_vectors(teacher, base, groups, seed=5)
    assert joined.shape == (200, 15) and np.allclose(np.linalg.norm(joined, axis=1), 1, atol=1e-5)

    first, second, _ = draw_pairs(teacher, groups, teach.WEIGHED_PAIRS, 5)
    cosines = [np.sum(vectors[first] * vectors[second], axis=1) for vectors in (teacher, base)]
    weights = [1 / part.std() for part in cosines]
    expected = np.average(cosines, axis=0, weights=weights)
    assert weights[1] > 2 * weights[0]
    assert np.allclose(np.sum(joined[first] * joined[second], axis=1), expected, atol=1e-5)

    # an encoder that takes all texts for the same one, and one without a direction, change nothing
    alike = np.ones((200, 1), dtype=np.float32)
    for constant in (alike, 0 * alike):
        same = join_vectors(teacher, constant, groups, seed=5)
        order = np.argsort(np.sum(same[first] * same[second], axis=1))
        assert np.all(np.diff(cosines[0][order]) > -1e-4)


def test_equal_texts_and_zero_vectors_are_no_trouble():
    vectors = np.zeros((30, 4), dtype=np.float32)
    vectors[10:] = [1, 0, 0, 0]
    _, _, cosines = draw_pairs(compute_unit_vectors(vectors), np.arange(30), 16, seed=0)
    assert len(cosines) == 16 and set(np.unique(cosines)) <= {0.0, 1.0}


def test_the_files_hold_the_teachers_cosines_and_are_made_once(run, teacher, tmp_path, caplog):
    out = tmp_path / "taught"
    facts = write_taught_pairs(str(run), str(teacher), out, pairs=64)
    rows = read_shard(out / TAUGHT_PAIRS)
    assert len(rows) == facts.pairs == 64 and set(rows[0]) == {"sentence1", "sentence2", "score"}
    model = SentenceTransformer(str(teacher))
    left, right = (model.encode([row[side] for row in rows]) for side in ("sentence1", "sentence2"))
    cosines = np.sum(compute_unit_vectors(left) * compute_unit_vectors(right), axis=1).clip(0)
    assert np.allclose([row["score"] for row in rows], cosines, atol=1e-5)
    texts = set()
    for file in sorted(run.rglob("postprocessed*/*.parquet")):
        for row in read_shard(file):
            texts |= {row["sentence1"], row["sentence2"]}
    assert facts.texts == len(texts)
    assert {row["sentence1"] for row in rows} | {row["sentence2"] for row in rows} <= texts
    assert teach.is_taught(out, str(run), str(teacher))

    # a second call makes nothing; a changed file is written anew from the kept embeddings
    before = (out / TAUGHT_PAIRS).read_bytes()
    stamp = (out / FACTS_FILE).stat().st_mtime_ns
    write_taught_pairs(str(run), str(teacher), out, pairs=64)
    assert (out / FACTS_FILE).stat().st_mtime_ns == stamp
    (out / TAUGHT_PAIRS).write_bytes(b"cut short")
    assert not teach.is_taught(out, str(run), str(teacher))
    again = write_taught_pairs(str(run), str(teacher), out, pairs=64)
    assert (out / TAUGHT_PAIRS).read_bytes() == before and again.seconds == 0


def test_the_scores_with_a_base_are_means_and_are_made_once(teacher, tmp_path, caplog):
    folder = tmp_path / "base"
    words = StaticEmbedding(make_tokenizer(), embedding_dim=8)
    SentenceTransformer(modules=[words]).save_pretrained(str(folder), create_model_card=False)
    source, out, base = str(WIKIPEDIA), tmp_path / "taught", str(folder)
    alone = write_taught_pairs(source, str(teacher), tmp_path / "alone", pairs=16)
    facts = write_taught_pairs(source, str(teacher), out, pairs=16, base=base)
    assert facts.base and facts.base_revision and not alone.base
    assert facts.pairs_sha256 != alone.pairs_sha256

    # The base is a part of what decides whether the pairs are finished
    assert teach.is_taught(out, source, str(teacher), base=base)
    assert not teach.is_taught(out, source, str(teacher))
    assert not teach.is_taught(tmp_path / "alone", source, str(teacher), base=base)
    assert write_taught_pairs(source, str(teacher), out, pairs=16, base=base) == facts
    hub_base = f"org/base@{'a' * 40}"
    of_hub = facts.model_copy(update={"base": hub_base, "base_revision": "a" * 40})
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / TAUGHT_PAIRS).write_bytes((out / TAUGHT_PAIRS).read_bytes())
    (tmp_path / "hub" / FACTS_FILE).write_text(of_hub.model_dump_json(), encoding="utf-8")
    assert teach.is_taught(tmp_path / "hub", source, str(teacher), base=hub_base)
    for other in (f"org/other@{'a' * 40}", f"org/base@{'b' * 40}"):
        assert not teach.is_taught(tmp_path / "hub", source, str(teacher), base=other)
    SentenceTransformer(
        modules=[StaticEmbedding(make_tokenizer(), embedding_dim=12)]
    ).save_pretrained(base, create_model_card=False)
    assert not teach.is_taught(out, source, str(teacher), base=base)


def test_more_sentences_are_read_beside_the_dataset(run, teacher, tmp_path):
    more = tmp_path / "more.txt"
    more.write_text("A boat.\nTwo trains are late.\nA boat.\n", encoding="utf-8")
    alone = write_taught_pairs(str(run), str(teacher), tmp_path / "alone", pairs=16)
    both = write_taught_pairs(str(run), str(teacher), tmp_path / "both", 16, more)
    assert both.texts == alone.texts + 2


def test_a_recipes_whole_corpus_is_read_whatever_its_limit(teacher, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    choices = CorpusChoices(lm="builtin", language="en", limit=40)
    found = adapt.propose_adaptation(
        str(corpus), tmp_path / "out", choices, adapt.EncoderChoices(encoder="static")
    )
    assert teach.read_sentences(found.dataset_recipe) == TEXTS


def test_blank_lines_and_blanks_around_a_line_are_no_text(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(["A boat.", "   ", "\u00a0", "\t", "A boat. ", "A train."]), "utf-8")
    assert teach.read_groups(str(file), None).keys() == {"A boat.", "A train."}


def test_of_many_texts_whole_groups_are_drawn(monkeypatch, run, teacher, tmp_path):
    monkeypatch.setattr(teach, "MOST_TEXTS", 40)
    groups = teach.read_groups(str(run), None)
    facts = write_taught_pairs(str(run), str(teacher), tmp_path / "taught", pairs=16)
    assert teach.FEWEST_TEXTS <= facts.texts < len(groups)
    texts, numbers = teach.choose_texts(str(run), None, 42)
    for text, number in zip(texts, numbers, strict=True):
        assert {other for other, group in groups.items() if group == number} <= set(texts), text


def test_too_few_texts_and_unknown_teachers_are_refused(teacher, tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("A boat.\nA train.\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"few.txt.*has 2 distinct texts.*at least 20"):
        write_taught_pairs(str(few), str(teacher), tmp_path / "out")
    few.write_text("".join(f"Boat {number}.\n" for number in range(30)), encoding="utf-8")
    outcome = outcome_of(teach, few, "--teacher", "./nothing", "--out", tmp_path / "out")
    assert outcome.code == 2 and outcome.error.startswith("error: ./nothing: no such model")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"teacher": 1}', b"\xff"])
def test_damaged_facts_are_made_again_from_the_kept_embeddings(content, teacher, tmp_path):
    out = tmp_path / "taught"
    first = write_taught_pairs(str(WIKIPEDIA), str(teacher), out, pairs=16)
    (out / FACTS_FILE).write_bytes(content)
    assert not teach.is_taught(out, str(WIKIPEDIA), str(teacher))
    again = write_taught_pairs(str(WIKIPEDIA), str(teacher), out, pairs=16)
    assert again == first.model_copy(update={"seconds": 0.0})


def test_files_that_are_no_texts_are_refused(teacher, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    table = tmp_path / "texts.csv"
    table.write_text("a,b\nA boat.,A train.\n", encoding="utf-8")
    options = ("--teacher", teacher, "--out", tmp_path / "out")
    for words in ((table,), (texts, "--sentences", table)):
        outcome = outcome_of(teach, *words, *options)
        assert outcome.code == 2
        assert "texts.csv: is a file of the kind '.csv'; allowed: a .txt file" in outcome.error
    for words in ((tmp_path / "none.txt",), (texts, "--sentences", tmp_path / "none.txt")):
        outcome = outcome_of(teach, *words, *options)
        assert outcome.code in (1, 2) and "none.txt: no such file" in outcome.error


def test_the_options_that_errors_name_exist(teacher, tmp_path):
    directory = tmp_path / "nli"
    small_run(directory, small_recipe("nli"), blocks=4)
    options = ("--teacher", teacher, "--pairs", 16, "--out", tmp_path / "taught")
    assert "name one: --config" in outcome_of(teach, directory, *options).error
    assert outcome_of(teach, directory, *options, "--config", "pair-class-0shot").code == 0

    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"".join(b"\xc4pfel %d.\n" % number for number in range(30)))
    outcome = outcome_of(teach, texts, *options, "--encoding", "cp1252")
    assert outcome.code == 0, outcome.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--teacher", "."), "is not a SentenceTransformer model"),
        (("--teacher", ""), "--teacher: an empty text is not a folder here"),
        ((), "--teacher-license: is given without --teacher"),
        (("--teacher", "EmbeddingGemma-300M"), "--teacher-license: is mit, and the licence of"),
    ],
)
def test_teachers_that_cannot_teach_are_refused_before_anything_is_made(
    options, error, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    words = (corpus, "--lm", "builtin", "--encoder", "static", "--language", "en", "--out", "out")
    outcome = outcome_of(adapt, *words, "--teacher-license", "mit", *options)
    assert outcome.code == 2 and error in outcome.error
    assert not list(tmp_path.glob("out/*.yaml"))


def test_a_hub_that_fails_leaves_no_recipe_of_a_refused_call(tmp_path, monkeypatch):
    def fail(*_):
        raise RunError("some/teacher", "the Hub cannot be reached")

    monkeypatch.setattr(adapt, "choose_teacher", fail)
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    encoder = adapt.EncoderChoices(encoder="static", teacher="some/teacher")
    choices = CorpusChoices(lm="builtin", language="en")
    with pytest.raises(RunError):
        adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, encoder)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(("base", "rate"), [("static", "5e-3"), (None, "3e-5")])
def test_a_teacher_trains_a_finished_encoder_as_the_experiments_last_row(
    teacher, tmp_path, base, rate
):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    encoder = adapt.EncoderChoices(
        base or str(teacher), None if base else "mit", str(teacher), "mit"
    )
    choices = CorpusChoices(lm="builtin", language="en")
    found = adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, encoder)
    assert found.model.arguments["learning_rate"] == rate
    assert int(found.model.arguments["max_steps"]) >= 150
    plan = DomainPlan.model_validate(read_yaml(PLAN))
    row = next(row for row in plan.rows if row.name == "teacher, base and pairs")
    measured = {"arguments.learning_rate=3e-5", f"batch_size={found.model.batch_size}"}
    assert measured <= set(row.settings)
    assert f"arguments.max_steps={TAUGHT_STEPS}" in row.settings
    assert found.model.merge == (None if base else 1.5)
    assert "merge=1.5" in row.settings
    if base is None:
        estimate = SimpleNamespace(label_seconds={"1": 60.0, "0": 60.0})
        (line,) = adapt.describe_labels(found, estimate)
        assert (
            "Pairs of the texts of all labels train, too, with the teacher's scores. Texts of"
            in line
        )
        assert "do not train" not in line and "Texts of label 0 are rows of the dataset" in line
        assert "(another --out, --labels 1,0.5) the command takes about 1.0 minutes less" in line
    has_bf16 = "bf16" in found.model.arguments
    assert has_bf16 == (base is None and get_half_or_float32() == "bfloat16")


def test_only_an_english_encoder_is_taken_beyond_its_weights(teacher):
    base = choose_base(str(teacher), "mit", {}, "en")
    merges = [choose_schedule(base, language, has_teacher=True).merge for language in ("en", "es")]
    assert merges == ["1.5", None]
    assert choose_schedule(base, "en", has_teacher=False).merge is None


def test_an_encoder_that_a_teacher_trained_is_not_taken_beyond_its_weights(teacher, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    taught = tmp_path / "taught"
    shutil.copytree(teacher, taught)
    recipe = load_recipe(Path("recipes/small/minilm-sts-dino-taught.yaml"), ModelRecipe)
    recipe = recipe.model_copy(update={"license": "mit"})  # covered by the built-in model's licence
    (taught / "recipe.yaml").write_text(format_recipe(recipe), encoding="utf-8")
    choices = CorpusChoices(lm="builtin", language="en")
    encoder = adapt.EncoderChoices(str(taught), None, str(teacher), "mit")
    assert (
        adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, encoder).model.merge
        is None
    )


@pytest.mark.parametrize("is_better", [True, False])
def test_a_teacher_is_compared_with_the_base_on_the_users_pairs(
    teacher, tmp_path, capsys, is_better
):
    words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
    other = tmp_path / "other"
    SentenceTransformer(modules=[words]).save_pretrained(str(other), create_model_card=False)
    chosen, base = (teacher, other) if is_better else (other, teacher)

    # the scores are the cosines of one of them
    model = SentenceTransformer(str(teacher))
    vectors = compute_unit_vectors(model.encode(TEXTS))
    scores = np.sum(vectors[:-1] * vectors[1:], axis=1)
    judged = tmp_path / "judged.jsonl"
    rows = [
        {"sentence1": TEXTS[row], "sentence2": TEXTS[row + 1], "score": float(score)}
        for row, score in enumerate(scores)
    ]
    judged.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    encoder = adapt.EncoderChoices(str(base), "mit", str(chosen), "mit")
    choices = CorpusChoices(lm="builtin", language="en")
    found = adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, encoder)
    adapt.require_rising_pairs(replace(found, own=read_own(OwnFiles(judged))))
    said = capsys.readouterr().err
    assert ("warning: the teacher other is not better here" in said) != is_better
    assert ("teacher teacher 100.0" in said) == is_better
    assert ("base encoder 100.0" in said) != is_better


def test_a_teacher_that_is_worse_is_warned_of_though_its_mean_with_the_base_is_better(caplog):
    # the teacher's cosines have more noise and a smaller range
    caplog.set_level(logging.INFO)
    gold = np.arange(200.0)
    generator = np.random.default_rng(1)
    base = Outcomes(gold, gold + generator.normal(0, 60, 200))
    teacher = Outcomes(gold, (gold + generator.normal(0, 80, 200)) / 1000)
    teach.compare_teacher("other", base, teacher)
    text = caplog.text
    scores = [float(number) for number in re.findall(r"(\d+\.\d)[, ]", text)]
    assert scores[2] > scores[0] > scores[1]
    assert "not better here" in text


def test_a_teacher_that_is_the_base_is_named(teacher, tmp_path, caplog):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    encoder = adapt.EncoderChoices(str(teacher), "mit", str(teacher), "mit")
    choices = CorpusChoices(lm="builtin", language="en")
    found = adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, encoder)
    assert "the teacher is the base encoder itself" in caplog.text

    # without the pairs, a training names the command that makes them
    found.pairs.mkdir(parents=True)
    outcome = outcome_of(training_run, found.model_recipe, "--out", tmp_path / "model")
    command = f"sts-dino teach RUN --teacher {teacher.resolve()} --out datasets/texts-taught"
    assert f"make it first: {command}" in outcome.error

    # another licence of the teacher is another choice
    other = replace(encoder, teacher_license="apache-2.0")
    with pytest.raises(InputError, match="was begun with another corpus or other options"):
        adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, other)
    file = tmp_path / "out" / adapt.CHOICES_FILE
    file.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"its choices.json is not JSON"):
        adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, other)


def test_a_teacher_is_part_of_the_recipe_the_steps_and_the_licence(teacher, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    encoder = adapt.EncoderChoices(
        encoder="static", teacher=str(teacher), teacher_license="cc-by-nc-4.0"
    )
    choices = CorpusChoices(lm="builtin", language="en")
    found = adapt.propose_adaptation(str(corpus), tmp_path / "out", choices, encoder)
    pairs, taught = found.model.datasets
    assert taught.loss == "CorrelationLoss" and taught.teacher.path == str(teacher.resolve())
    assert taught.path == str(found.taught / TAUGHT_PAIRS) and pairs.path == str(found.pairs)
    assert found.teacher.location == str(teacher.resolve())
    assert "nc" in found.model.license  # the teacher's terms forbid commercial use

    steps = adapt.plan_steps(found, adapt.assume_equal_steps(found))
    names = [step.name for step in steps]
    assert names.index("teach") < names.index("train")
    words = next(step.words for step in steps if step.name == "teach")
    assert words == (
        str(found.pairs),
        "--teacher",
        str(teacher.resolve()),
        "--out",
        str(found.taught),
        "--sentences",
        str(found.dataset_recipe),
    )
    baseline = make_baseline_recipe(found.model, 10)
    assert [data.path for data in baseline.datasets] == [str(found.pairs)]

    # another teacher for the same folder is another choice
    with pytest.raises(InputError, match="was begun with another corpus or other options"):
        adapt.propose_adaptation(
            str(corpus), tmp_path / "out", choices, adapt.EncoderChoices(encoder="static")
        )


def test_a_teacher_scores_pairs_alone(tmp_path):
    recipe = tmp_path / "model.yaml"
    data = {
        "path": "rows.jsonl",
        "config": "default",
        "example_type": "triplet",
        "loss": "MultipleNegativesRankingLoss",
        "teacher": {"path": "teacher", "license": "mit"},
    }
    tree = {
        "kind": "model",
        "name": "m",
        "version": "0.1.0",
        "pretty_name": "m",
        "license": "mit",
        "base": {"path": "base", "license": "mit"},
        "datasets": [data],
    }
    recipe.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(InputError, match="a teacher scores pairs: example_type sts, not triplet"):
        load_recipe(recipe, ModelRecipe)

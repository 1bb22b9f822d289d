"""MTEB tasks on our encoders: the same scores on the same rows, records that are kept, names and
failures.
"""

import re
import zlib
from dataclasses import replace

import mteb
import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub import constants
from mteb.results import TaskResult
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from senteval_layout import bag_of_words, one_task, write_originals, write_senteval
from tiny_bases import make_mlm

from sts_dino.eval.encoders.embeddings import Embeddings
from sts_dino.eval.encoders.load import load_encoder, wrap
from sts_dino.eval.runs.mteb_bridge import (
    MtebEncoder,
    add_task_prompt,
    convert_task,
    find_mteb_tasks,
    make_task_name,
    measure_mteb,
    measure_task,
)
from sts_dino.eval.runs.records import Records
from sts_dino.eval.runs.score import score_tasks
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.scoring.cosines import measure_sts
from sts_dino.eval.tasks.registry import find_task
from sts_dino.eval.tasks.rows import hash_rows
from sts_dino.eval.tasks.sources import Source, TaskData, TaskReader
from sts_dino.hub.errors import InputError, RunError

SETTINGS = EvaluationSettings(bootstrap_samples=100)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_senteval(root / "senteval", rows=12)
    write_originals(root / "originals", rows=12)
    return Source(root / "senteval", root / "originals", pins={})


def distinct(texts):
    """Embeddings without ties between pairs: MTEB's single precision and our double would break
    them differently.
    """
    noise = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(64) for text in texts]
    return bag_of_words(texts) + np.float32(noise)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """An encoder with a prompt for STS and one for queries."""
    root = tmp_path_factory.mktemp("model")
    base = Transformer(str(make_mlm(root / "base", 1, hidden_size=16)), max_seq_length=32)
    found = {"STS": "same meaning? ", "query": "find: "}
    model = SentenceTransformer(
        modules=[base, Pooling(base.get_embedding_dimension())], prompts=found
    )
    model.save(str(root / "encoder"), create_model_card=False)
    return load_encoder(str(root / "encoder"))


def scores(name, encoder, source, cache, settings=SETTINGS):
    with Embeddings(encoder, cache) as embeddings:
        return list(
            measure_mteb(name, embeddings, source, settings, lambda *_: None, cache / "mteb")
        )


def ours(name, encoder, source):
    task = find_task(name)
    with Embeddings(encoder, None) as embeddings:
        data = TaskData(task, "test", source.load(task.dataset, ["test"]))
        return measure_sts(data, embeddings.embed)


@pytest.mark.parametrize(
    ("theirs", "name"),
    [("STS13", "sts13/all"), ("STSBenchmark", "stsb/cosine"), ("SICK-R", "sick-r-full/cosine")],
)
def test_mteb_and_we_score_the_same_rows_alike(source, tmp_path, theirs, name):
    encoder = wrap(distinct, "python:distinct", revision="1")
    (found,) = scores(theirs, encoder, source, tmp_path)
    expected = ours(name, encoder, source)
    assert found.score.main_score == pytest.approx(expected.score, abs=1e-4)
    assert found.score.other["cosine_pearson"] == pytest.approx(expected.other["pearson"], abs=1e-4)
    assert (found.score.task, found.score.main_metric) == (f"mteb/{theirs}", "cosine_spearman")
    assert found.score.n == len(expected.outcomes)
    kept = TaskResult.from_disk(tmp_path / "mteb" / f"{theirs}.json")
    assert 100 * kept.get_score() == pytest.approx(found.score.main_score)
    assert found.score.data_revision is None, "other rows than MTEB's do not bear its revision"
    assert found.score.data_sha256 == hash_rows(
        source.load(find_task(name).dataset, ["test"])["test"]
    )
    assert np.array_equal(found.outcomes.gold, expected.outcomes.gold)
    np.testing.assert_allclose(found.outcomes.predicted, expected.outcomes.predicted, atol=1e-6)
    low, high = found.score.interval()
    assert low < found.score.main_score < high


def test_a_record_is_taken_over_and_one_of_another_revision_is_not(source, tmp_path, capsys):
    entries, store = [one_task("mteb/STS13")], Records(tmp_path / "records")
    encoder = wrap(bag_of_words, "python:bag", revision="1")
    first, second, other = (
        score_tasks(
            entries,
            TaskReader(source),
            replace(encoder, revision=revision),
            store,
            SETTINGS,
            tmp_path,
        ).records
        for revision in "112"
    )
    assert first == second and capsys.readouterr().err.count("(kept)") == 1
    assert other[0].revision == "2"


def test_a_model_gets_the_prompt_of_the_task_type_or_the_side(prompts):
    query = mteb.types.PromptType.query
    for task, side, prompt in (
        ("STS13", None, "same meaning? "),
        ("STS13", query, "same meaning? "),
        ("ArguAna", query, "find: "),
    ):
        given = add_task_prompt(prompts, mteb.get_task(task).metadata, side)
        assert given.key != prompts.key
        expected = prompts.model.encode(["A dog."], prompt=prompt, show_progress_bar=False)
        np.testing.assert_allclose(given.embed(["A dog."]), expected, atol=1e-6)
    assert (
        add_task_prompt(prompts, mteb.get_task("Banking77Classification").metadata, None) is prompts
    )


def test_the_protocol_of_an_aggregate_names_its_mean():
    (task,) = find_mteb_tasks("CQADupstackRetrieval")
    assert "unweighted mean over 12 tasks" in convert_task(task, "test").protocol


def test_a_task_without_outcomes_has_no_interval_and_says_so(tmp_path):
    (task,) = find_mteb_tasks("Banking77Classification")
    labels = [0, 1] * 30
    draw = np.random.default_rng(1)
    text = [f"class{label} w{draw.integers(9)} w{draw.integers(9)}" for label in labels]
    rows = Dataset.from_dict({"text": text, "label": labels})
    task.dataset, task.data_loaded = DatasetDict(train=rows, test=rows.select(range(40))), True
    found = measured(task, tmp_path)
    assert found.outcomes is None
    assert found.score.interval() is None
    assert found.task.metric is None
    assert "no interval" in found.score.protocol
    assert (found.score.n, found.score.unit, found.score.main_metric) == (
        40,
        "documents",
        "accuracy",
    )
    assert found.score.main_score == 100  # its words tell the class
    assert found.score.data_revision == f"mteb/banking77@{task.metadata.revision}"


def measured(task, results):
    with Embeddings(wrap(bag_of_words, "python:bag", revision="1"), None) as embeddings:
        model = MtebEncoder(embeddings)
        (found,) = measure_task(task, model, None, SETTINGS, results)
    return found


def test_names_are_tasks_benchmarks_and_types():
    assert [make_task_name(task) for task in find_mteb_tasks("STS12")] == ["mteb/STS12"]
    named = [make_task_name(task) for task in find_mteb_tasks("benchmark:MTEB(eng, v2)")]
    assert {"mteb/STS12", "mteb/STSBenchmark", "mteb/STS17[en-en]"} <= set(named)
    first, second = (find_mteb_tasks("benchmark:MTEB(eng, v2)")[-1] for _ in "12")
    assert first.rng_state is not second.rng_state  # the second model's sample is the first's
    english = {make_task_name(task) for task in find_mteb_tasks("type:STS:eng")}
    assert {"mteb/STS12", "mteb/STS16", "mteb/SICK-R"} <= english
    assert len(english) < len(find_mteb_tasks("type:STS"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("STS2", "did you mean 'STS22'"),
        ("type:Sts", "did you mean 'STS'"),
        ("type:STS:english", "a code like eng"),
        ("type:STS:ger", "unknown language 'ger'"),  # ISO 639-3 has deu
        ("STS17[en-fr]", "no such subsets"),
        ("STS13VisualSTS", "needs image"),
    ],
)
def test_an_unknown_name_is_told_with_the_did_you_mean(name, said):
    with pytest.raises(InputError, match=r"mteb/") as reported:
        find_mteb_tasks(name)
    assert said in str(reported.value)
    assert len(str(reported.value)) < 1500


def test_a_programming_language_is_a_language_of_mteb():
    assert find_mteb_tasks("type:Retrieval:sql")


def test_a_task_of_the_network_is_one_error_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (reported,) = scores(
        "BIOSSES", wrap(bag_of_words, "python:bag", revision="1"), Source(pins={}), tmp_path
    )
    assert isinstance(reported, RunError)
    assert re.search(r"mteb/BIOSSES: mteb/biosses-sts at .* cannot be reached", str(reported))
    assert "\n" not in str(reported)


def test_a_subset_that_is_named_twice_counts_once():
    (task,) = find_mteb_tasks("STS17[en-en+es-en+en-en]")
    assert task.hf_subsets == ["en-en", "es-en"]


@pytest.mark.parametrize(
    ("name", "option"), [("STS12", "--senteval-data DIR"), ("SICK-R", "--sts-data DIR")]
)
def test_a_task_with_local_data_names_their_own_option(tmp_path, monkeypatch, name, option):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    encoder = wrap(bag_of_words, "python:bag", revision="1")
    (reported,) = scores(name, encoder, Source(pins={}), tmp_path)
    assert str(reported).endswith(f"; give {option}, which holds the same rows")


def test_several_subsets_are_parts_and_average_unweighted(tmp_path):
    (task,) = find_mteb_tasks("STS17[en-en+es-en]")
    draw = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(40)])
    task.dataset = {
        subset: DatasetDict(
            test=Dataset.from_dict(
                {
                    side: [" ".join(draw.choice(words, 4)) for _ in range(n)]
                    for side in ("sentence1", "sentence2")
                }
                | {"score": draw.random(n) * 5}
            )
        )
        for subset, n in (("en-en", 30), ("es-en", 20))
    }
    task.data_loaded = True
    found = measured(task, tmp_path)
    assert found.score.task == "mteb/STS17[en-en+es-en]"
    assert {name: part.n for name, part in found.score.parts.items()} == {"en-en": 30, "es-en": 20}
    assert found.score.main_score == pytest.approx(
        np.mean([part.score for part in found.score.parts.values()])
    )
    assert found.score.n == 50
    assert found.score.interval() is not None
    assert found.task.aggregation == "mean"

"""The trials on the STS Benchmark that ships, with a tiny encoder, and what is told of them."""

import json
from dataclasses import asdict

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tiny_lm import make_tokenizer

from benchmarks.evaluation.cost import in_turns, suite_table, turns_table
from benchmarks.evaluation.cost_trials import SHARED, WAYS, Cost, Work, ours, suite
from eval.tasks.registry import TASKS


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    model = SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=16)])
    model.save_pretrained(str(folder), create_model_card=False)
    return Work(str(folder), None, None, ("sts",), (), 50, torch.get_num_threads())


def test_a_suite_takes_the_tasks_that_have_data_and_tells_each_ones_time(work):
    found = suite(work)
    assert [(row["task"], row["split"], row["rows"]) for row in found["tasks"]] == [("stsb/cosine", "test", 50)]
    assert found["texts"] == 100 and 0 < found["distinct"] <= 100
    assert found["encoding"].peak_rss_mb >= found["loaded_mb"] > 0
    table = suite_table(json.loads(json.dumps(found, default=asdict)))
    assert f"encoding {found['distinct']} distinct texts" in table and "| stsb/cosine | test | 50 |" in table
    assert set(ours(work)["scores"]) == {"STSBenchmark"}
    assert set(SHARED.values()) <= set(TASKS)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_encoding_runs(work, way):
    cost = WAYS[way](work)
    assert cost.wall_s > 0 and cost.peak_rss_mb > 0


def test_ways_take_turns_and_ratios_are_within_a_round(monkeypatch, capsys):
    seconds = {"ours": iter([1.0, 4.0, 2.0]), "mteb": iter([2.0, 4.0, 6.0])}
    order = []

    def trial(name, work):
        order.append(name)
        took = next(seconds[name])
        return {"cost": Cost(took, took, 100.0), "scores": {"STS12": took}}

    monkeypatch.setattr("benchmarks.evaluation.cost.in_fresh_process", trial)
    found = in_turns({"ours": "ours", "mteb": "mteb"}, None, 3)
    assert order == ["ours", "mteb", "mteb", "ours", "ours", "mteb"]
    assert found["ways"]["mteb"]["cpu_s_over"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    table = turns_table(found)
    assert "| mteb | 4 | 4 | 100 | 2 (1 to 3) |" in table
    assert "Largest difference of a score: 1.0000 over 1 tasks" in table

"""The benchmark of probes: all ways see the same rows, and its table says what was measured."""

import json

import pytest
from test_eval_scoring import embed, texts

from benchmarks.evaluation.probes import measure, told, unbatched
from eval.scoring.transfer import arranged
from eval.tasks.registry import find_task


@pytest.fixture(scope="module")
def measured() -> dict:
    rows = {split: texts(60, seed, k=3) for split, seed in (("train", 1), ("validation", 2), ("test", 3))}
    sets = {split: arranged(find_task("sst5/senteval"), part, embed) for split, part in rows.items()}
    task = find_task("sst5/senteval")
    return {"sst5": measure(task, sets, unbatched), "sst2": measure(task, sets, None)}


def test_the_slow_way_runs_between_two_turns_and_agrees(measured):
    timed, scored = measured["sst5"], measured["sst2"]
    assert [len(timed[way]["cpu_seconds"]) for way in ("senteval", "unbatched", "lbfgs")] == [2, 1, 2]
    assert timed["senteval"]["same_predictions"] == 1
    for key in ("accuracy", "dev_accuracy", "regularisation"):
        assert timed["senteval"][key] == timed["unbatched"][key]
        assert timed["lbfgs"][key] == scored["lbfgs"][key]
    assert "unbatched" not in scored and "times_faster" not in scored["senteval"]


def test_the_report_is_json_and_the_table_has_every_task(measured):
    assert json.loads(json.dumps(measured)) == measured
    rows = told(measured).splitlines()
    assert len(rows) == 4 and {row.count("|") for row in rows} == {10}
    assert f"{measured['sst5']['senteval']['accuracy']:.2f}" in rows[2]

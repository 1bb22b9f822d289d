"""hub.contract.measured: means and sample standard deviations of several trainings, and what their file refuses."""

import json
import math

import pytest

from hub.contract.measured import RepeatScore, Run, read_repeats, repeats_of, run_of, summarised, write_repeats
from hub.contract.results import Results, TaskScore
from hub.contract.run_dir import Manifest
from hub.errors import InputError


def run(value, *scores):
    tasks = [("stsb/cosine", "validation"), ("stsb/cosine", "test")]
    told = [RepeatScore(task=t, split=s, main_score=x) for (t, s), x in zip(tasks, scores, strict=False)]
    return Run(value=value, fingerprint=f"f{value}", version="0.1.0", scores=tuple(told), validation_score=0.5)


def test_mean_and_sample_standard_deviation_of_every_task():
    validation, test = summarised([run(1, 70.0, 60.0), run(2, 72.0, 60.0), run(3, 77.0, 60.0)])
    assert (validation.split, validation.runs, validation.mean) == ("validation", 3, 73.0)
    assert validation.sd == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert (validation.low, validation.high) == (70.0, 77.0)
    assert (test.split, test.mean, test.sd) == ("test", 60.0, 0.0)


def test_the_file_reads_back_equal(tmp_path):
    repeats = repeats_of("m", "example_set", [run(0, 70.1, 1 / 3), run(1, 71.7, 2 / 3)])
    write_repeats(tmp_path / "repeats.json", repeats)
    assert read_repeats(tmp_path / "repeats.json") == repeats


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["summaries"][0].update(mean=99.0), "the summaries are not those of the runs"),
        (lambda tree: tree["runs"][0].update(value="1"), "valid integer"),
        (lambda tree: tree["runs"][1].update(value=1), "a seed stands twice"),
        (lambda tree: tree.update(runs=[]), "at least 1 item"),
        (lambda tree: tree.update(extra=1), "not permitted"),
        (lambda tree: tree["runs"][1]["scores"].pop(), "run 2 was scored on"),
    ],
)
def test_a_file_that_does_not_add_up_is_refused(tmp_path, change, message):
    path = tmp_path / "repeats.json"
    write_repeats(path, repeats_of("m", "seed", [run(1, 70.0), run(2, 71.0)]))
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=message):
        read_repeats(path)


def test_a_run_is_read_from_manifest_and_results():
    score = {"task": "sick-r/cosine", "protocol": "p", "split": "test", "main_metric": "spearman", "low": 1.0}
    score |= {"main_score": 63.5, "high": 70.0, "n": 10, "data_sha256": "a"}
    results = Results(model="m", revision="r", bootstrap_samples=1, seed=1, versions={}, scores=(TaskScore(**score),))
    manifest = Manifest(kind="model", name="m", version="0.2.0", fingerprint="abc", complete=True)
    trained = manifest.model_copy(update={"provenance": {"training": {"validation_score": 0.81}}})
    found = run_of(7, trained, results)
    assert (found.value, found.fingerprint, found.version, found.validation_score) == (7, "abc", "0.2.0", 0.81)
    assert found.scores == (RepeatScore(task="sick-r/cosine", split="test", main_score=63.5),)
    assert run_of(7, manifest, results).validation_score is None

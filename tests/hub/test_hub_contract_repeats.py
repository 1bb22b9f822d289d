"""sts_dino.hub.contract.measured: means and sample standard deviations of several trainings, and
what their file refuses.
"""

import json

import pytest

from sts_dino.hub.contract.measured import (
    Repeats,
    RepeatScore,
    Run,
    read_repeats,
    summarize_runs,
    write_json,
)
from sts_dino.hub.errors import InputError


def run(value, *scores):
    tasks = [("stsb/cosine", "validation"), ("stsb/cosine", "test")]
    found = [
        RepeatScore(task=t, split=s, main_score=x) for (t, s), x in zip(tasks, scores, strict=False)
    ]
    return Run(
        value=value,
        fingerprint=f"f{value}",
        version="0.1.0",
        scores=tuple(found),
        validation_score=0.5,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["runs"][1].update(value=1), "two runs have the same seed"),
        (lambda tree: tree["runs"][1]["scores"].pop(), "run 2 was scored on"),
    ],
)
def test_a_file_reads_back_equal_and_one_that_does_not_add_up_is_refused(tmp_path, change, message):
    path, repeats = (
        tmp_path / "repeats.json",
        Repeats(model="m", over="seed", runs=[run(1, 70.0), run(2, 211 / 3)]),
    )
    write_json(path, repeats)
    assert read_repeats(path) == repeats
    tree = json.loads(path.read_text())
    assert tree["summaries"] == [one.model_dump() for one in summarize_runs(repeats.runs)]
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=message):
        read_repeats(path)

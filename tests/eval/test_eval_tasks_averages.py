"""eval.tasks.registry: the papers' own rows give the papers' own averages, and part of the tasks gives none."""

import pytest

from eval.runs.table import table
from eval.tasks.registry import DEFINITIONS, TASKS, averages
from hub.contract.results import Results, TaskScore

DECLUTR = {  # DeCLUTR-base, table 2: MRPC is accuracy and F1
    "cr": 90.68, "mr": 85.16, "mpqa": 88.52, "subj": 95.78, "sst2": 90.01, "sst5": 51.18, "trec": 93.20, "mrpc": 74.61,
    "sick-e": 83.84, "sick-r": 78.62, "stsb": 79.39, "coco": 62.35, "sts12": 63.56, "sts13": 72.58, "sts14": 71.70,
    "sts15": 79.95, "sts16": 79.59, "snli": 85.60,
}  # fmt: skip
OTHER_PROTOCOL = {"sick-r": "regression", "stsb": "regression", "coco": "retrieval"}


def score(task, value, **changes):
    known = {
        "protocol": "p", "split": TASKS[task].default_split, "main_metric": "m", "n": 9, "data_sha256": "0", **changes
    }  # fmt: skip
    return TaskScore(task=task, main_score=value, **known)


def declutr():
    for name, value in DECLUTR.items():
        protocol = OTHER_PROTOCOL.get(name) or ("mean" if name.startswith("sts1") else "senteval")
        yield score(f"{name}/{protocol}", value, other={"f1": 82.65} if name == "mrpc" else {})


def by_name(scores):
    return {average.name: average for average in averages(scores)}


def test_every_task_of_a_definition_is_declared_and_every_name_is_unique():
    assert {task for definition in DEFINITIONS for task in definition.tasks} <= set(TASKS)
    assert len({definition.name for definition in DEFINITIONS}) == len(DEFINITIONS)


def test_declutrs_row_gives_declutrs_average():
    found = by_name(declutr())
    assert found["declutr-downstream"].score == pytest.approx(79.10, abs=0.005)
    assert len(found["declutr-downstream"].tasks) == 17
    with_snli = (17 * found["declutr-downstream"].score + 85.60) / 18
    assert found["declutr-downstream-with-snli"].score == pytest.approx(with_snli)
    assert found["dino-sts12-16-mean"].score == pytest.approx(73.476)


def test_without_one_task_there_is_no_average():
    scores = list(declutr())
    for left_out in range(len(scores)):
        found = by_name(scores[:left_out] + scores[left_out + 1 :])
        assert ("declutr-downstream" in found) == (scores[left_out].task == "snli/senteval")
        assert "declutr-downstream-with-snli" not in found


def test_mrpc_without_f1_makes_no_average():
    scores = [item.model_copy(update={"other": {}}) for item in declutr()]
    assert "declutr-downstream" not in by_name(scores)


@pytest.mark.parametrize(
    ("name", "tasks", "values", "expected"),
    [
        (  # Sato et al. 2024, table 2, 10 shots
            "auto-nli-sts",
            [*(f"sts{year}/all" for year in range(12, 17)), "stsb-tokenised/cosine", "sick-r-tokenised/cosine"],
            [74.32, 87.66, 81.88, 85.79, 84.04, 85.47, 76.38],
            82.21,
        ),
        (  # Sato et al. 2024, appendix C, 5 shots
            "auto-nli-transfer",
            [f"{task}/senteval" for task in ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")],
            [89.44, 92.69, 94.89, 90.74, 93.65, 94.36, 72.35],
            89.73,
        ),
        (  # Schick & Schütze 2021, table 1, S-RoBERTa on STS-DINO-x2
            "dino-sts",
            [*(f"sts{year}/all" for year in range(12, 17)), "stsb/cosine", "sick-r/cosine"],
            [70.27, 81.26, 71.25, 80.49, 77.18, 77.82, 68.09],
            75.20,
        ),
        (  # Giorgi et al. 2021, table 3, GloVe
            "declutr-probing",
            [f"{task}/senteval" for task in (
                "sentlen", "wc", "treedepth", "topconst", "bshift", "tense", "subjnum", "objnum", "somo", "coordinv",
            )],
            [57.82, 81.10, 31.41, 62.70, 49.74, 83.58, 78.39, 76.31, 49.55, 53.62],
            62.42,
        ),
    ],
)  # fmt: skip
def test_a_papers_row_gives_its_average(name, tasks, values, expected):
    scores = [score(task, value) for task, value in zip(tasks, values, strict=True)]
    assert by_name(scores)[name].score == pytest.approx(expected, abs=0.011)  # of rounded figures
    assert name not in by_name(scores[1:])


def test_a_validation_split_makes_no_average():
    scores = [score(f"sts{year}/all", 80.0) for year in range(12, 17)]
    scores += [score("stsb/cosine", 80.0, split="validation"), score("sick-r/cosine", 80.0)]
    assert "dino-sts" not in by_name(scores)


def test_averages_are_rows_of_the_table_beside_base_and_control():
    after, before = list(declutr()), [one.model_copy(update={"main_score": one.main_score - 10}) for one in declutr()]
    results = Results(
        model="m",
        revision="r",
        fingerprint=None,
        bootstrap_samples=10,
        interval="percentile",
        seed=1,
        versions={},
        scores=after,
        averages=averages(after),
        base_scores=before,
        gains=(),
        control_scores=before[:3],  # of a few tasks: no average
        over_control=(),
    )
    lines = table(results).splitlines()
    scores, differences = (line.split() for line in lines if line.startswith("dino-sts12-16-mean "))
    assert scores == ["dino-sts12-16-mean", "5", "tasks", "63.48", "-", "73.48"]
    assert differences == ["dino-sts12-16-mean", "mean", "+10.00", "-"]
    assert lines[0].split() == ["task", "split", "rows", "before", "copies", "control", "after"]
    assert lines[lines.index("") + 1].split() == ["task", "split", "metric", "gain", "over", "control"]
    assert max(map(len, lines[: 2 * len(after)])) < 120, "a line fits a screen"
    assert any(line.startswith("dino-sts12-16-mean: ") for line in lines[-9:])


def test_an_average_on_validation_needs_no_test_score():
    names = ("mr", "cr", "subj", "mpqa", "sst2", "sst5", "trec", "sick-e", "mrpc")
    scores = [score(f"{name}/lbfgs-validation", 50 + place) for place, name in enumerate(names)]
    assert {name: one.score for name, one in by_name(scores).items()} == {"validation-lbfgs": 54}
    assert by_name(scores[1:]) == {}

"""Arms over several seeds: means, paired intervals over rows and seeds, and refusals in one line."""

import numpy as np
import pytest
from planted_evaluations import evaluation, planted

from eval.compare.seeds import compared, drawn_seeds, over_seeds, plan_of, split_of
from hub.errors import InputError
from hub.training_value import ArmPlan

TASKS = ("sts12/all", "stsb-tokenised/cosine")


def folders(tmp_path, arm, qualities, rows=300):
    """Evaluations of one arm by seed: the better, the higher the quality that is planted."""
    return tuple(
        str(evaluation(tmp_path / f"{arm}-{n}", arm, {task: planted(task, quality, rows) for task in TASKS}))
        for n, quality in enumerate(qualities)
    )


def plan(arms, **changes):
    given = {"tasks": TASKS, "split": "test", "samples": 400, "arms": arms, "control": "copies"} | changes
    return ArmPlan.model_validate(given)


def test_a_better_arm_is_better_by_a_paired_interval_and_a_like_one_is_not(tmp_path):
    arms = {
        "untrained": folders(tmp_path, "untrained", [0.3]),
        "copies": folders(tmp_path, "copies", [0.60, 0.61, 0.62]),
        "dataset": folders(tmp_path, "dataset", [0.70, 0.71, 0.72]),
        "shuffled": folders(tmp_path, "shuffled", [0.62, 0.60, 0.61]),
    }
    found = compared(plan(arms)).arms
    better, like, own = found["dataset"], found["shuffled"], found["copies"]
    assert better.over_copies.low > 0
    assert like.over_copies.low < 0 < like.over_copies.high
    assert own.over_copies is None
    assert better.over_copies.score == pytest.approx(better.average.score - own.average.score)
    assert better.average.score == pytest.approx(np.mean(list(better.tasks.values())))
    assert better.average.low < better.average.score < better.average.high
    width = better.over_copies.high - better.over_copies.low  # what both arms share cancels
    assert width < better.average.high - better.average.low
    assert compared(plan(arms)) == compared(plan(arms))


def test_seeds_that_differ_widen_the_interval(tmp_path):
    narrow = {"copies": folders(tmp_path, "copies", [0.6] * 3), "dataset": folders(tmp_path, "a", [0.7] * 3)}
    wide = {"copies": narrow["copies"], "dataset": folders(tmp_path, "b", [0.5, 0.7, 0.9])}
    spans = [compared(plan(arms)).arms["dataset"].over_copies for arms in (narrow, wide)]
    assert spans[1].high - spans[1].low > 2 * (spans[0].high - spans[0].low)


def test_the_spread_over_seeds_is_that_of_a_mean():
    """Scores that no row moves: the deviation is the sample deviation over the root of the number of seeds."""
    values, samples = np.array([70.0, 71.0, 75.0]), 20_000
    drawn = over_seeds(np.repeat(values[:, None], samples, axis=1), drawn_seeds(3, samples, 1))
    assert drawn.std() == pytest.approx(values.std(ddof=1) / np.sqrt(3), rel=0.02)
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.05)
    assert (over_seeds(values[None, :1] * np.ones((1, 5)), drawn_seeds(1, 5, 1)) == 70).all()


def test_one_encoders_evaluation_is_a_plan_of_its_base_and_control(tmp_path):
    scored = evaluation(tmp_path / "m", "m", {task: planted(task, 0.7) for task in (*TASKS, "sts13/all")})
    for folder, quality in (("base", 0.4), ("control", 0.6)):
        with pytest.raises(InputError, match=f"{folder}: no such evaluation; eval.run scores an"):
            plan_of(scored)
        evaluation(scored / folder, folder, {task: planted(task, quality) for task in TASKS})
    found = plan_of(scored)
    assert set(found.tasks) == set(TASKS) and plan_of(scored, TASKS[1:]).tasks == TASKS[1:]
    scores = compared(found).arms
    assert scores["untrained"].average.score < scores["copies"].average.score < scores["dataset"].average.score
    evaluation(tmp_path / "n", "n", {"sts14/all": planted("sts14/all", 0.7)})
    for folder in ("base", "control"):
        (scored / folder).rename(tmp_path / "n" / folder)
    with pytest.raises(InputError, match="share no test set"):
        plan_of(tmp_path / "n")


def test_other_rows_and_missing_tasks_are_refused(tmp_path):
    copies = folders(tmp_path, "copies", [0.6])
    with pytest.raises(InputError, match="scored on different rows; score all arms on the same data"):
        compared(plan({"copies": copies, "dataset": folders(tmp_path, "short", [0.6], rows=200)}))
    with pytest.raises(InputError, match="holds no scored rows of sts13/all"):
        compared(plan({"copies": copies}, tasks=("sts13/all",)))
    for wrong in ({"arms": {"dataset": copies}}, {"arms": {"copies": copies * 2, "dataset": copies * 3}}):
        with pytest.raises(ValueError, match=r"none of the arms|number of seeds"):
            plan(**({"arms": {}} | wrong))


def test_a_task_that_cuts_its_own_folds_is_read_under_its_own_split():
    assert split_of("mr/senteval", "test") == "all" and split_of("trec/lbfgs-validation", "test") == "train"
    assert split_of("stsb/cosine", "validation") == "validation" and split_of("sst2/lbfgs", "test") == "test"

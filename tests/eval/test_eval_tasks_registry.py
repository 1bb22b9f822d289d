"""A name is one protocol, groups never mix probes, and an unknown name is answered with known ones."""

import pytest

from eval.tasks.registry import DATASETS, GROUPS, TASKS, find_task, find_tasks
from hub.errors import InputError


def test_a_name_states_data_set_and_protocol_and_no_two_tasks_say_the_same():
    assert all(task.name == name and name.count("/") == 1 for name, task in TASKS.items())
    assert len({task.protocol for task in TASKS.values()}) == len(TASKS)


def test_every_split_that_a_task_reads_is_one_of_its_data_set():
    for task in TASKS.values():
        for split in task.splits:
            assert set(task.reads(split)) <= set(DATASETS[task.dataset].parts), task.name


@pytest.mark.parametrize(
    ("name", "splits", "reads"),
    [
        ("sts12/all", ("test",), ("test",)),
        ("stsb/cosine", ("validation", "test"), ("validation",)),
        ("mr/senteval", ("all",), ("all",)),
        ("trec/lbfgs", ("test",), ("train", "test")),
        ("snli/senteval", ("test",), ("train", "validation", "test")),
        ("sick-r/regression", ("test",), ("train", "validation", "test")),
        ("wc/senteval", ("test",), ("train", "validation", "test")),
        ("mr/senteval-validation", ("all",), ("all",)),
        ("trec/lbfgs-validation", ("train",), ("train",)),
        ("wc/senteval-validation", ("validation",), ("train", "validation")),
    ],
)
def test_a_task_knows_what_it_scores_and_what_it_is_fitted_on(name, splits, reads):
    task = find_task(name)
    assert (task.splits, task.reads(splits[0])) == (splits, reads)


def test_the_tasks_of_the_three_papers_are_declared():
    assert {f"sts{year}/{how}" for year in range(12, 17) for how in ("all", "mean", "wmean")} <= set(TASKS)
    transfer = ("mr", "cr", "subj", "mpqa", "sst2", "sst5", "trec", "mrpc", "sick-e", "snli")
    assert {f"{name}/{mode}" for name in transfer for mode in ("senteval", "lbfgs")} <= set(TASKS)
    assert {"stsb/regression", "sick-r/regression", "coco/retrieval", "sick-r-full/cosine"} <= set(TASKS)
    assert len(GROUPS["probing"]) == len(GROUPS["probing-lbfgs"]) == len(GROUPS["probing-lbfgs-validation"]) == 10
    assert len(GROUPS["transfer-validation"]) == len(transfer)


def test_a_group_holds_one_mode_of_the_probes():
    for name, tasks in GROUPS.items():
        assert len({task.mode for task in tasks if task.family in ("transfer", "probing")}) <= 1, name


def test_groups_expand_in_order_and_each_task_is_there_once():
    found = find_tasks(["stsb/cosine", "sts", "mteb/STS22", "sts"])
    assert found[0].name == "stsb/cosine"
    assert found[-1].name == "mteb/STS22"
    assert len(found) == len(set(found)) == len(GROUPS["sts"]) + 1


def test_any_name_of_mteb_is_a_task():
    assert find_task("mteb/NFCorpus").is_of_mteb
    assert find_task("mteb/MTEB(eng, v2)").dataset == "MTEB(eng, v2)"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("stsb/cosin", r"unknown task 'stsb/cosin'; allowed: stsb/cosine, stsb/regression; did you mean 'stsb/cosine'"),
        ("sts12", r"allowed: sts12/all, sts12/mean, sts12/wmean"),
        ("mr/logreg-10fold", r"allowed: mr/senteval, mr/lbfgs"),
        ("transfr", r"did you mean 'transfer'"),
        ("st12/all", r"did you mean 'sts12/all'"),
        ("MR/SentEval", r"did you mean 'mr/senteval'"),
        ("mteb/", r"allowed: .*mteb/NAME"),
        ("", r"unknown task ''"),
    ],
)
def test_an_unknown_task_is_answered_with_the_did_you_mean(name, answer):
    with pytest.raises(InputError, match=answer):
        find_tasks([name])


def test_a_split_that_is_not_scored_is_refused():
    with pytest.raises(InputError, match=r"sts12/all: has no split 'validation'; allowed: \['test'\]"):
        find_task("sts12/all").reads("validation")

"""Declared tasks, groups and averages, and the rows that a limit draws."""

import numpy as np
import pytest

from sts_dino.eval.tasks.registry import (
    DATASETS,
    DEFINITIONS,
    GROUPS,
    TASKS,
    compute_averages,
    find_tasks,
)
from sts_dino.eval.tasks.rows import Rows, draw_indices, draw_rows
from sts_dino.hub.contract.results import TaskScore
from sts_dino.hub.errors import InputError
from sts_dino.hub.papers import load_papers

TABLES = [table for paper in load_papers().values() for table in paper.tables]


def score(task, value, **changes):
    known = {
        "protocol": "p",
        "split": TASKS[task].default_split,
        "main_metric": "m",
        "n": 9,
        "data_sha256": "0",
        **changes,
    }
    return TaskScore(task=task, main_score=value, **known)


def by_name(scores):
    return {average.name: average for average in compute_averages(scores)}


AVERAGES = {
    column.average: (table, column)
    for table in TABLES
    for column in table.columns
    if column.average
}


@pytest.mark.parametrize("name", AVERAGES)
def test_a_papers_row_gives_its_average(name):
    table, average = AVERAGES[name]
    row = next(row for row in table.rows if not row.doubt)
    columns = {one.name: one for one in table.columns}
    printed = {
        (columns[key].task, columns[key].metric): value
        for key, value in table.get_values(row).items()
    }
    tasks = {
        columns[key].task
        for part in average.mean_of
        for key in ((part,) if isinstance(part, str) else part)
    }
    scores = [
        score(task, value, other={"f1": printed[task, "f1"]} if (task, "f1") in printed else {})
        for (task, metric), value in printed.items()
        if task in tasks and metric != "f1"
    ]
    tolerance = 0.06 if name == "dino-sts12-16-mean" else 0.011  # of rounded figures
    assert by_name(scores)[name].score == pytest.approx(
        table.get_values(row)[average.name], abs=tolerance
    )
    assert name not in by_name(scores[1:])


def test_a_validation_split_makes_no_average():
    scores = [score(f"sts{year}/all", 80.0) for year in range(12, 17)]
    scores += [score("stsb/cosine", 80.0, split="validation"), score("sick-r/cosine", 80.0)]
    assert "dino-sts" not in by_name(scores)


def test_the_tables_of_tasks_splits_and_averages_agree():
    assert {task for definition in DEFINITIONS for task in definition.tasks} <= set(TASKS)
    assert len({definition.name for definition in DEFINITIONS}) == len(DEFINITIONS)
    assert len({task.protocol for task in TASKS.values()}) == len(TASKS)
    for name, task in TASKS.items():
        assert task.name == name and name.count("/") == 1
        assert all(
            set(task.list_splits(split)) <= set(DATASETS[task.dataset].parts)
            for split in task.splits
        ), name


def test_groups_expand_in_order_and_each_task_is_there_once():
    found = find_tasks(["stsb/cosine", "sts", "mteb/STS22", "sts"])
    assert found[0].name == "stsb/cosine"
    assert found[-1].name == "mteb/STS22"
    assert len(found) == len(set(found)) == len(GROUPS["sts"]) + 1
    with pytest.raises(InputError, match=r"^task: unknown name 'stsb/cosin'; allowed: stsb/cosine"):
        find_tasks(["stsb/cosin"])


def pairs(sizes: tuple[int, ...]) -> Rows:
    """Pairs whose texts and score are their number, in subsets of these sizes."""
    ends = np.cumsum(sizes).tolist()
    subsets = [
        (f"s{number}", end - size, end)
        for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]
    return Rows.from_tuples(
        [(str(row), str(row), float(row)) for row in range(sum(sizes))], subsets=subsets
    )


def test_every_row_is_as_likely_and_every_group_has_its_share():
    strata = np.repeat([0, 1, 2], [10, 60, 30])
    counts = np.zeros(100)
    for seed in range(2000):
        chosen = draw_indices(strata, 20, seed)
        assert len(set(chosen.tolist())) == 20 and (np.diff(chosen) > 0).all()
        assert np.bincount(strata[chosen]).tolist() == [2, 12, 6]
        counts[chosen] += 1
    assert np.abs(counts / 2000 - 0.2).max() < 0.04  # 4.5 standard deviations


def test_the_drawn_pairs_are_the_datas_with_their_subsets():
    rows = pairs((50, 30, 20))
    part = draw_rows(rows, 10, 7)
    assert part.first == part.second == tuple(str(int(gold)) for gold in part.target)
    assert [(name, stop - start) for name, start, stop in part.subsets] == [
        ("s0", 5),
        ("s1", 3),
        ("s2", 2),
    ]
    for name, start, stop in part.subsets:
        of = next((low, high) for found, low, high in rows.subsets if found == name)
        assert all(of[0] <= gold < of[1] for gold in part.target[start:stop])
    assert part.sha256 == rows.sha256  # of the whole: the limit is reported beside it
    assert part.first != rows.first[:10]
    assert draw_rows(rows, 10, 7).first == part.first != draw_rows(rows, 10, 8).first


def test_labelled_rows_keep_their_labels():
    texts = [f"{label} {row}" for row, label in enumerate([0] * 50 + [1] * 50)]
    for columns in (1, 2):
        part = draw_rows(
            Rows.from_tuples([(*[text] * columns, int(text[0])) for text in texts], ("a", "b")),
            10,
            3,
        )
        for column in part.columns:
            assert (
                [int(text.split()[0]) for text in column]
                == part.target.tolist()
                == [0] * 5 + [1] * 5
            )

"""The tables of the papers are whole, agree with themselves and name declared tasks."""

import re

import numpy as np
import pytest

from eval.tasks.registry import DEFINITIONS, find_task
from hub.errors import InputError
from hub.papers import Paper, Table, papers, read_paper

TABLES = [(paper, table) for paper in papers().values() for table in paper.tables]
NAMES = [f"{paper.key}/{table.number}" for paper, table in TABLES]
TABLE = """
key: k
cite: A and B 2020
title: T
version: v1
tables:
  - number: 1
    section: 4
    caption: C
    columns:
      - {name: x, task: stsb/cosine, metric: spearman}
      - {name: mean, reason: a mean, metric: spearman, mean_of: [x]}
    rows:
      - {name: one, values: [50.0, 50.0]}
"""


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_a_printed_average_is_the_mean_of_the_printed_columns(paper: Paper, table: Table):
    """Within a unit of the last place: half from its own rounding, half from its columns'. Else a doubt says so."""
    unit = 0.1 if NAMES[TABLES.index((paper, table))] == "dino/5" else 0.01
    for column in (column for column in table.columns if column.mean_of):
        for row in table.rows:
            values = table.printed(row)
            parts = [[one] if isinstance(one, str) else one for one in column.mean_of]
            assert {name for part in parts for name in part} <= {column.name for column in table.columns}
            each = [np.mean([values.get(name, np.nan) for name in part]) for part in parts]
            mean, printed = np.mean(each), values.get(column.name)
            if np.isnan(mean) or printed is None:
                assert row.name == "QuickThoughts"
            else:
                assert (abs(mean - printed) <= unit + 1e-9) == (row.doubt is None or "STS row" in row.doubt), row.name


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_a_column_names_a_task_or_average_of_ours_or_why_there_is_none(paper: Paper, table: Table):
    """An average of ours is over the tasks of the columns that the paper averages."""
    tasks = {column.name: column.task for column in table.columns}
    averages = {definition.name: definition for definition in DEFINITIONS}
    for column in table.columns:
        if column.task:
            task = find_task(column.task)
            assert column.metric == task.metric or (column.task, column.metric) == ("mrpc/senteval", "f1")
            assert "test" in task.splits or "all" in task.splits
        elif column.average:
            parts = [name for one in column.mean_of for name in ((one,) if isinstance(one, str) else one)]
            assert set(averages[column.average].tasks) == {tasks[name] for name in parts}
        else:
            assert column.reason


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("values: [50.0, 50.0]", "values: [50.0]", "1 values for 2 columns"),
        ("task: stsb/cosine, ", "", "reason for neither"),
    ],
)
def test_a_broken_table_is_refused_by_name(tmp_path, old, new, reported):
    path = tmp_path / "k.yaml"
    path.write_text(TABLE, encoding="utf-8")
    assert read_paper(path).table(1).scores(read_paper(path).table(1).row("one")) == {("stsb/cosine", "spearman"): 50.0}
    path.write_text(TABLE.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(reported)) as raised:
        read_paper(path)
    assert "k.yaml" in str(raised.value) and "\n" not in str(raised.value)

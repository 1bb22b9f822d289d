"""The tables of the papers are whole, agree with themselves and name declared tasks."""

import numpy as np
import pytest

from sts_dino.eval.tasks.registry import DEFINITIONS, find_task
from sts_dino.hub.papers import Paper, Table, load_papers

TABLES = [(paper, table) for paper in load_papers().values() for table in paper.tables]
NAMES = [f"{paper.key}/{table.number}" for paper, table in TABLES]


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_a_printed_average_is_the_mean_of_the_printed_columns(paper: Paper, table: Table):
    """Within a unit of the last place: half from its own rounding, half from its columns'. Else a
    doubt says so.
    """
    unit = 0.1 if NAMES[TABLES.index((paper, table))] == "dino/5" else 0.01
    for column in (column for column in table.columns if column.mean_of):
        for row in table.rows:
            values = table.get_values(row)
            parts = [[one] if isinstance(one, str) else one for one in column.mean_of]
            assert {name for part in parts for name in part} <= {
                column.name for column in table.columns
            }
            each = [np.mean([values.get(name, np.nan) for name in part]) for part in parts]
            mean, printed = np.mean(each), values.get(column.name)
            if np.isnan(mean) or printed is None:
                assert row.name == "QuickThoughts"
            else:
                assert (abs(mean - printed) <= unit + 1e-9) == (
                    row.doubt is None or "STS row" in row.doubt
                ), row.name


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_a_column_names_a_task_or_average_of_ours_or_why_there_is_none(paper: Paper, table: Table):
    """An average of ours is over the tasks of the columns that the paper averages. A row has a
    value a column.
    """
    tasks = {column.name: column.task for column in table.columns}
    assert len(tasks) == len(table.columns) and {len(row.values) for row in table.rows} == {
        len(tasks)
    }
    assert len({row.name for row in table.rows}) == len(table.rows)
    averages = {definition.name: definition for definition in DEFINITIONS}
    for column in table.columns:
        assert [column.task, column.average, column.reason].count(None) == 2
        if column.task:
            task = find_task(column.task)
            assert column.metric == task.metric or (column.task, column.metric) == (
                "mrpc/senteval",
                "f1",
            )
            assert "test" in task.splits or "all" in task.splits
        elif column.average:
            parts = [
                name for one in column.mean_of for name in ((one,) if isinstance(one, str) else one)
            ]
            assert set(averages[column.average].tasks) == {tasks[name] for name in parts}
        else:
            assert column.reason

"""The tables of the papers are whole, agree with themselves and name declared tasks."""

import re

import pytest

from eval.tasks.registry import DEFINITIONS, find_task
from hub.errors import InputError
from hub.papers import Paper, Table, find_paper, papers, read_paper

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
            mean, printed = table.mean(row, column), table.printed(row).get(column.name)
            if mean is None or printed is None:
                assert row.name == "QuickThoughts"
            else:
                assert (abs(mean - printed) <= unit + 1e-9) == (row.doubt is None or "STS row" in row.doubt), row.name


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_a_column_names_a_task_or_average_of_ours_or_why_there_is_none(paper: Paper, table: Table):
    averages = {definition.name for definition in DEFINITIONS}
    for column in table.columns:
        if column.task:
            task = find_task(column.task)
            assert column.metric == task.metric or (column.task, column.metric) == ("mrpc/senteval", "f1")
            assert "test" in task.splits or "all" in task.splits
        elif column.average:
            assert column.average in averages
        else:
            assert column.reason


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=NAMES)
def test_an_average_of_ours_is_over_the_columns_tasks(paper: Paper, table: Table):
    tasks = {column.name: column.task for column in table.columns}
    for column in table.columns:
        if column.average:
            ours = next(definition for definition in DEFINITIONS if definition.name == column.average)
            parts = [name for one in column.mean_of for name in ((one,) if isinstance(one, str) else one)]
            assert set(ours.tasks) == {tasks[name] for name in parts}


def test_aggregations_and_heads_are_the_papers():
    """STS12-16 are one set in DINO's table 1 and in Auto-NLI, means over subsets in DINO's table 5 and in DeCLUTR."""

    def task(paper: str, number: int, column: str) -> str | None:
        return next(c.task for c in find_paper(paper).table(number).columns if c.name == column)

    assert [task("dino", 1, "STS12"), task("auto-nli", 2, "STS12")] == ["sts12/all"] * 2
    assert [task("dino", 5, "STS12"), task("declutr", 2, "STS12")] == ["sts12/mean"] * 2
    assert [task("declutr", 2, name) for name in ("STS-B", "SICK-R")] == ["stsb/regression", "sick-r/regression"]
    assert [task("dino", 1, name) for name in ("STSb", "SICK")] == ["stsb/cosine", "sick-r/cosine"]
    assert task("auto-nli", 2, "STS-B") == "stsb-tokenised/cosine"
    assert task("auto-nli", 5, "MR") == task("declutr", 2, "MR") == "mr/senteval"
    assert all(column.task is None for number in (1,) for column in find_paper("auto-nli").table(number).columns)


def test_the_confusion_of_dinos_table_3_sums_to_all_pairs_of_a_label():
    table = find_paper("dino").table(3)
    assert [sum(column) for column in zip(*(row.values for row in table.rows), strict=True)] == [100] * 4


def test_spot_checks_against_the_papers_text():
    declutr = find_paper("declutr").table(2)
    row = declutr.printed(declutr.row("DeCLUTR-base"))
    assert (row["SST5"], row["MRPC F1"], row["COCO"], row["STS16"], row["Avg."]) == (51.18, 82.65, 62.35, 79.59, 79.10)
    deltas = {row.name: round(declutr.printed(row).get("Avg.", 0) - 79.10, 2) for row in declutr.rows}
    printed = {"GloVe": -13.63, "fastText": -10.54, "InferSent": -3.10, "USE": -0.21, "Sentence Transformers": -1.91}
    printed |= {"Transformer-small": -6.52, "Transformer-base": -6.40, "DeCLUTR-small": -1.60}
    assert {name: deltas[name] for name in printed} == printed
    copied = find_paper("auto-nli").table(5).row("Supervised SimCSE-RoBERTa-large")
    assert copied.values == find_paper("auto-nli").table(2).row("Supervised-SimCSE-RoBERTa").values
    assert copied.doubt


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("values: [50.0, 50.0]", "values: [50.0]", "1 values for 2 columns"),
        ("values: [50.0, 50.0]", "values: [50.0, .nan]", "finite"),
        ("task: stsb/cosine, ", "", "reason for neither"),
        ("reason: a mean", "reason: a mean, task: stsb/cosine", "reason for neither"),
        ("mean_of: [x]", "mean_of: [y]", "no column 'y'"),
        ("name: mean", "name: x", "two columns"),
        ("caption: C", "captoin: C", "caption"),
        ("number: 1", "number: [", "while parsing"),
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


def test_unknown_papers_tables_and_rows_are_named_with_what_there_is():
    with pytest.raises(InputError, match="auto-nli"):
        find_paper("simcse")
    with pytest.raises(InputError, match="has no table 9"):
        find_paper("dino").table(9)
    with pytest.raises(InputError, match="has no row"):
        find_paper("dino").table(1).row("BERT")

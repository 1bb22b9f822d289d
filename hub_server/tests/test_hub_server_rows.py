"""Pages of rows: their texts, the bounds of a search, and the rows of partial reads."""

import json
import math
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub_server.pages import readers, row_scan
from hub_server.pages.readers import ROWS, Question
from hub_server.pages.row_scan import Split, collect_facts, find_rows


@pytest.fixture
def split(tmp_path):
    """Writes files of the given tables and asks a question of them."""

    def ask(*tables, row_group=70, **question):
        files = tuple(str(tmp_path / f"{number}.parquet") for number in range(len(tables)))
        for path, table in zip(files, tables, strict=True):
            pq.write_table(table, path, row_group_size=row_group)
        return find_rows(Question(files=files, **question), collect_facts(Split(files)))

    return ask


def pairs(*counts: int) -> list[pa.Table]:
    rng, tables, number = random.Random(7), [], 0
    for count in counts:
        numbers = range(number, number + count)
        number += count
        first = pa.array([f"first {n // 7}" for n in numbers], pa.string())
        second = pa.array(
            [f"second {n} {rng.choice(['Red', 'blue'])}" for n in numbers], pa.string()
        )
        score = pa.array([rng.choice([0.9, 0.5, 0.1]) for _ in numbers], pa.float32())
        tables.append(pa.table({"sentence1": first, "sentence2": second, "score": score}))
    return tables


@pytest.mark.parametrize(
    "question", [{}, {"label": "0.5"}, {"words": "rEd"}, {"label": "0.9", "words": "blue"}], ids=str
)
def test_pages_together_are_all_rows_that_match(split, question):
    tables = pairs(130, 0, 61, 200)
    wanted = [
        [row["sentence1"], row["sentence2"], f"{row['score']:.6g}"]
        for row in pa.concat_tables(tables).to_pylist()
        if f"{row['score']:.6g}" == question.get("label", f"{row['score']:.6g}")
        and question.get("words", "").lower() in row["sentence2"].lower()
    ]
    shown = [split(*tables, **question, grouped=False, page=page) for page in range(1, 10)]
    pages = -(-len(wanted) // ROWS)
    assert [row for page in shown[:pages] for row in page.table] == wanted
    assert {(page.pages, page.matches, page.rows) for page in shown} == {(pages, len(wanted), 391)}
    # beyond the end: the last page
    assert [page.page for page in shown[pages - 1 :]] == [pages] * (10 - pages)
    assert all(page.table == shown[pages - 1].table for page in shown[pages:])
    grouped = [split(*tables, **question, page=page) for page in range(1, pages + 1)]
    texts = [
        [group.first, second.text]
        for page in grouped
        for group in page.groups
        for second in group.seconds
    ]
    assert sorted(texts) == sorted(row[:2] for row in wanted)


def test_a_search_ends_at_its_bounds_and_says_so(split, monkeypatch):
    monkeypatch.setattr(row_scan, "_BATCH_ROWS", 50)
    monkeypatch.setattr(row_scan, "MOST_ROWS", 100)
    shown = split(*pairs(400), words="second", page=9)
    assert (shown.scanned, shown.matches, shown.rows, shown.page, shown.pages) == (
        100,
        100,
        400,
        2,
        2,
    )
    assert shown.counted == 100
    late = split(*pairs(400), page=8)  # pages without a filter reach the end
    assert (late.page, late.groups[-1].seconds[-1].text.split()[1]) == (8, "399")
    monkeypatch.setattr(row_scan, "_SCAN_SECONDS", -1)
    assert split(*pairs(400), words="second").scanned == 0


def test_words_match_literally_and_files_of_one_split_may_differ(split):
    table = pa.table({"text": ["50% (a.b)", "axb", None, "A.B"], "n": [1, 2, 3, 4]})
    assert [row[0] for row in split(table, words="a.b").table] == ["50% (a.b)", "A.B"]
    assert split(table, words="1").matches == 0  # a number is not text
    encoded = table.set_column(0, "text", table["text"].dictionary_encode())
    assert split(encoded, words="AX").table == [["axb", "2"]]
    first, second = (
        pa.table({"text": ["a", "b"], "label": ["x", "y"]}),
        pa.table({"other": [1], "text": ["b"]}),
    )
    assert split(first, second).table == [["a", "x"], ["b", "y"], ["b", ""]]
    assert (
        split(first, second, label="y").table == [["b", "y"]]
        and split(first, second, words="B").matches == 2
    )


def test_labels_have_their_names(split):
    def shown(metadata: bytes, **question):
        table = pa.table({"label": [1, 0, -1, 2, None]}).replace_schema_metadata(
            {b"huggingface": metadata}
        )
        return [row[0] for row in split(table, **question).table]

    known = b'{"info": {"features": {"label": {"names": ["low", "high"], "_type": "ClassLabel"}}}}'
    assert shown(known) == ["1 (high)", "0 (low)", "-1", "2", ""] and shown(
        known, label="0 (low)"
    ) == ["0 (low)"]
    for broken in (
        b"",
        b"[]",
        b"7",
        b'{"info": []}',
        b'{"info": {"features": {"label": {"names": 7}}}}',
        b"\xff",
    ):
        assert shown(broken) == ["1", "0", "-1", "2", ""]


def test_values_are_rounded_and_long_or_wide_rows_cut(split):
    long = "x" * (row_scan.MOST_CELL_CHARACTERS + 1)
    table = pa.table({"a": [0.1 + 0.2], "c": [long], "d": ["\u202e\u06dd" + "y" * 400]})
    a, c, d = split(table).table[0]
    assert a == "0.3" and d == "\N{REPLACEMENT CHARACTER}\u06dd" + "y" * 400
    assert c.startswith("x" * row_scan.MOST_CELL_CHARACTERS) and c.endswith(
        "(cut: 3,001 characters)"
    )
    shown = split(
        pa.table({"score": [n / 7 for n in range(200)], **{f"c{n}": [0] * 200 for n in range(30)}})
    )
    assert (
        shown.labels == []
        and len(shown.columns) == row_scan.MOST_COLUMNS
        and shown.more_columns == 11
    )


def test_class_names_beyond_the_last_shown_column_are_shown(split):
    names = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    many = {f"c{number}": [number] * 2 for number in range(25)}
    pair = {"premise": ["a", "a"], "hypothesis": ["x", "y"], "label": [0, 1]}
    table = pa.table(many | pair).replace_schema_metadata({"huggingface": json.dumps(names)})
    (group,) = split(table).groups
    assert [(second.label, second.text) for second in group.seconds] == [("yes", "y"), ("no", "x")]
    shown = split(table, grouped=False, label="1 (yes)")
    assert len(shown.columns) == row_scan.MOST_COLUMNS and shown.columns[-1] == "label"
    assert [row[-1] for row in shown.table] == ["1 (yes)"]


def test_a_page_of_many_long_cells_is_bounded(split):
    long = {f"c{number}": ["x" * 5_000] * ROWS for number in range(row_scan.MOST_COLUMNS)}
    shown = split(pa.table(long))
    characters = sum(len(cell) for row in shown.table for cell in row)
    assert len(shown.table) == ROWS and characters < 1.1 * row_scan.MOST_PAGE_CHARACTERS


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (MemoryError(), "needs more memory to read than 4 GiB"),
        (pa.ArrowMemoryError("malloc"), "needs more memory to read than 4 GiB"),
        (PermissionError(13, "Permission denied"), r"from the Hub's disk \(Permission denied\)"),
        (pa.ArrowInvalid("x"), r"cannot be read as parquet \(ArrowInvalid\)"),
    ],
)
def test_the_reason_why_rows_cannot_be_read_is_the_right_one(error, problem):
    with pytest.raises(row_scan.Unreadable) as caught, row_scan.raise_as_unreadable(0):
        raise error
    assert re.search(problem, caught.value.describe())


def test_a_process_that_cannot_start_is_not_the_files_fault(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(readers._CONTEXT.Process, "start", refuse)
    for problem in (
        readers.show_rows(Question(files=(str(tmp_path / "a.parquet"),))).problem,
        readers.show_card(tmp_path / "README.md", "/").problem,
    ):
        assert problem.startswith("The Hub's machine could not start the process")


def test_a_label_that_is_no_number_filters_as_it_is_counted(split):
    table = pa.table({"text": list("abcd"), "score": [1.0, math.nan, None, math.nan]})
    page = split(table, label="nan")
    assert ("nan", 2) in page.labels
    assert page.matches == 2 and [row[0] for row in page.table] == ["b", "d"]


def test_a_column_of_lists_is_no_sentence_of_a_pair(split):
    table = pa.table({"sentence1": [["a"]], "sentence2": ["b"], "score": [1.0]})
    page = split(table)
    assert not page.can_group and page.table == [["['a']", "b", "1"]]

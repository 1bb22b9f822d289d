"""A user's file is read as what it is, or refused in one line that names the row: kinds A and F of
issue "Faults".
"""

import gzip
import io
import json
import os
import random
import re
import zipfile
from contextlib import nullcontext, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import Workbook

from sts_dino.generation.inputs.sources import read_file_rows
from sts_dino.hub import text_files
from sts_dino.hub.contract.recipe import TrainingData
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import (
    as_number,
    find_encoding,
    is_blank,
    open_lines,
    open_rows,
    split_columns,
)
from sts_dino.training.data.training_sets import load_shards, load_training_sets

TEXTS = ["The ferry leaves at six.", "Rain has filled the well.", "Two boys repair a bicycle."]
MARK = "\ufeff"
LINES = "".join(f"{text}\n" for text in TEXTS)
OBJECTS = [json.dumps({"text": text}) for text in TEXTS]


def workbook(*rows: tuple, sheets: int = 1, second: list[tuple] | None = None) -> bytes:
    book = Workbook()
    for row in rows:
        book.active.append(row)
    for _ in range(sheets - 1):
        book.create_sheet()
    if second:
        sheet = book.create_sheet("second")
        for row in second:
            sheet.append(row)
    book.save(found := io.BytesIO())
    return found.getvalue()


pq.write_table(pa.table({"text": TEXTS}), PARQUET := io.BytesIO())
READ = {
    "rows.parquet": PARQUET.getvalue(),
    "bom.txt": (MARK + LINES).encode(),
    "bom.csv": (f"{MARK}text\n{LINES}").encode(),
    "bom.tsv": (f"{MARK}text\n{LINES}").encode(),
    "bom.jsonl": (MARK + "\n".join(OBJECTS)).encode(),
    "UPPER.TXT": LINES.encode(),
    "windows.txt": LINES.replace("\n", "\r\n").encode(),
    "blank.jsonl": ("\n".join([*OBJECTS[:2], "", OBJECTS[2]]) + "\n\n").encode(),
    "array.json": f"[{', '.join(OBJECTS)}]".encode(),
    "lines.json": "\n".join(OBJECTS).encode(),
    "packed.csv.gz": gzip.compress(f"text\n{LINES}".encode()),
    "blank_lines.tsv": ("text\tid\n" + "".join(f"{text}\t1\n\n" for text in TEXTS)).encode(),
    "Packed.JSONL.GZ": gzip.compress("\n".join(OBJECTS).encode()),
    "book.xlsx": workbook(("text", "year"), *((text, 2024) for text in TEXTS), sheets=2),
    "semicolons.csv": "".join(
        f"{cells}\n" for cells in ("id;text", *(f"1;{text}" for text in TEXTS))
    ).encode(),
    "tabs.csv": "".join(
        f"{cells}\n" for cells in ("id\ttext", *(f"1\t{text}" for text in TEXTS))
    ).encode(),
    "line_break.csv": "".join(
        f'"1\n2";{text}\n' if number else "id;text\n" for number, text in enumerate(["", *TEXTS])
    ).encode(),
    "decimal_comma.csv": "".join(
        f"{cells}\n" for cells in ("id;text;price, net", *(f"1;{text};1,50" for text in TEXTS))
    ).encode(),
    "tabs_in_quotes.csv": (
        'id\ttext\n"1\n2"\t' + "\n2\t".join(f'"{text}"' for text in TEXTS) + "\n"
    ).encode(),
    "pipes.csv": ("id|text|price, net\n" + "".join(f"1|{t}|1,50\n" for t in TEXTS)).encode(),
    "colons.csv": ("id:text\n" + "".join(f"1:{text}\n" for text in TEXTS)).encode(),
    "mac_lines.csv": f"text\n{LINES}".replace("\n", "\r").encode(),
    "sep_line.csv": ("sep=;\nid;text\n" + "".join(f"1;{text}\n" for text in TEXTS)).encode(),
    "quoted_sep_line.csv": ('"sep=|"\n' + "text|n\n" + "".join(f"{t}|1\n" for t in TEXTS)).encode(),
    "preface.csv": f"# exported\n\ntext\n{LINES}".encode(),
    "hash_header.tsv": ("#id\ttext\n" + "".join(f"1\t{text}\n" for text in TEXTS)).encode(),
    "unnamed.csv": (",text,,\n" + "".join(f"0,{text},,\n" for text in TEXTS)).encode(),
    "spaced.csv": ("id , text \n" + "".join(f"1,{text}\n" for text in TEXTS)).encode(),
    "quoted_delimiters.csv": (
        'a;"text";c\n' + "".join(f'"x; y, z";{text};"1,5"\n' for text in TEXTS)
    ).encode(),
    "wrapped.json": json.dumps({"data": [{"text": text} for text in TEXTS]}, indent=1).encode(),
    "wrapped_line.json": json.dumps(
        {"version": 2, "rows": [{"text": text} for text in TEXTS]}
    ).encode(),
    "later_key.jsonl": "\n".join([json.dumps({"id": 1, "text": TEXTS[0]}), *OBJECTS[1:]]).encode(),
    "index.xlsx": workbook((None, "text"), *enumerate(TEXTS)),
    "late.xlsx": workbook((), (), ("text",), *((text,) for text in TEXTS)),
    "second_sheet.xlsx": workbook(second=[("text",), *((text,) for text in TEXTS)]),
}
REFUSED = {
    "surplus.csv": (b"text\nA text.\nPlums, pears.\n", "surplus.csv:3: has 2 columns; allowed: 1"),
    "missing.csv": (b"text,year\nA text.\n", "missing.csv:2: has 1 columns; allowed: 2"),
    "open.csv": (
        b'text\nA text.\n"Open\nmore\nmore\n',
        "open.csv:3: its quotation marks do not close",
    ),
    "twice.tsv": (b"text\tnote\ttext\na\tb\tc\n", "twice.tsv:1: the column 'text' stands twice"),
    "twice.jsonl": (b'{"text": "a", "text": "b"}', "twice.jsonl:1: the column 'text' stands twice"),
    "true.jsonl": (
        b'{"text": "a"}\n{"text": true}',
        "true.jsonl:2: its column 'text' holds bool; allowed: text",
    ),
    "nan.jsonl": (b'{"text": NaN}', "nan.jsonl:1: its column 'text' holds nan"),
    "huge.jsonl": (b'{"text": 1e400}', "huge.jsonl:1: its column 'text' holds inf"),
    "other.jsonl": (
        b'{"body": "a"}\n{"note": "b"}',
        "other.jsonl: column 'text': not in the source; allowed: body, note",
    ),
    "number.json": (b"[1, 2]", "number.json:1: is not a JSON object"),
    "texts.json": (b'["a text"]', "is not a JSON object; save texts without columns as .txt"),
    "columns.json": (b'{"text": {"0": "a"}}', "columns.json: holds columns (text), not rows"),
    "splits.json": (
        b'{"train": [{"text": "a"}], "test": [{"text": "b"}]}',
        "splits.json: holds several arrays of objects: train, test",
    ),
    "empty.json": (b"[]", "empty.json: holds no object; allowed: at least one text"),
    "empty_sep.csv": (
        b"sep=\r\ntext,id\r\na,1\r\n",
        "column 'text': not in the source; allowed: sep=",
    ),
    "blank.csv": (b"\n\n\n", "blank.csv: holds no text; allowed: at least one text"),
    "indented.jsonl": (b'{\n "text": "a"\n}', "1: is not JSON: Expecting property name"),
    "comma.json": (b'[\n{"text": "a"},\n{"text": "b"\n]', "comma.json:4: is not JSON: Expecting"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b"\n', "cut.jsonl:2: is not JSON: Expecting"),
    "unicode_text.txt": (
        ("id\ttext\n" + "".join(f"1\t{text}\n" for text in TEXTS)).encode("utf-16"),
        "unicode_text.txt: has 2 columns, separated by tabs, in every line; allowed: a text a line; "
        "rename it .tsv",
    ),
    "renamed.csv": (
        workbook(("text",), ("a",)),
        "is not a text file; it is a zip archive or Excel",
    ),
    "packed.csv": (gzip.compress(b"text\na\n"), "it is packed by gzip: add .gz to its name"),
    "notes.docx.gz": (gzip.compress(b"a"), "notes.docx.gz: unknown kind of file '.docx'; allowed"),
    "parquet.jsonl": (PARQUET.getvalue(), "it is a parquet file: rename it .parquet"),
    "mixed.csv": (
        "text\nÄpfel\nÜbung\nMöhre\n".encode() + "Nüsse\n".encode("latin-1"),
        "mixed.csv:5: is not UTF-8, and 3 other lines are",
    ),
    "late.txt": (
        "Äpfel sind reif.\n".encode() * 2_000 + "Nüsse\n".encode("latin-1"),
        "late.txt:2001: is not UTF-8, and 2000 other lines are",
    ),
    "one_word.txt": (
        "Łódź\n".encode("latin2"),
        "one_word.txt:1: is not UTF-8, and its encoding is not certain: iso8859-2 reads 'Łódź', "
        "cp1250 reads",
    ),
    "undecodable.txt": (
        "Die Fähre fährt um sechs.\n".encode("cp1252") * 600 + b"\x81\n",
        "from this line on some bytes are not cp1252; name the encoding of the whole file",
    ),
    "formula.xlsx": (
        workbook(("text",), ("=A1",)),
        "formula.xlsx:2: the value of the formula =A1 is not stored; open the file in a",
    ),
    "report.xlsx": (
        workbook(("Report",), ("id", "text"), (1, "a")),
        "report.xlsx:2: has a cell without a column name; allowed: Report; name every column in "
        "row 1",
    ),
    "no_cells.xlsx": (workbook(sheets=2), "no_cells.xlsx: has no sheet with cells"),
    "one_name.csv": (b"text , text\na,b\n", "one_name.csv:1: the column 'text' stands twice"),
    "nested.json": (b"[" * 100_000, "nested.json: is not JSON: maximum recursion"),
    "short.csv": (
        b"id;text;note\n1;A text.;a\n2;A text\n3;Texts, three.;c\n",
        "short.csv:3: has 2 columns; allowed: 3; write ';' for each empty cell, or remove the row",
    ),
    "no.xlsx": (b"PK", "is not an Excel workbook, or damaged"),
    "wide.xlsx": (workbook(("text",), ("a", "b")), "wide.xlsx:2: has a cell without a column name"),
    "cut.csv.gz": (gzip.compress(LINES.encode())[:-9], "cannot be read"),
    "changed.csv.gz": (gzip.compress(LINES.encode())[:10] + b"\xff" * 20, "cannot be read"),
    "empty.txt": (b"", "is empty; allowed: at least one text"),
}


def texts_of(path: Path) -> list[str]:
    columns = () if path.name.lower().endswith(".txt") else ("text",)
    return [text for (text,) in read_file_rows(path, columns, path.name)]


@pytest.mark.parametrize("name", READ)
def test_what_people_have_is_read(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(READ[name])
    assert texts_of(tmp_path / name) == TEXTS
    said = {
        "book.xlsx": "the sheet 'Sheet' is read",
        "semicolons.csv": "separated by ';'",
        "tabs.csv": "by '\\t'",
        "line_break.csv": "by ';'",
        "decimal_comma.csv": "by ';'",
        "sep_line.csv": "by ';'",
        "quoted_sep_line.csv": "by '|'",
        "preface.csv": "2 first lines are skipped: blank, or beginning with #",
        "wrapped.json": "the rows under 'data' are read",
        "second_sheet.xlsx": "the sheet 'second' is read",
    }
    assert said.get(name, "") in capsys.readouterr().err


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_with_its_row(name, tmp_path):
    content, problem = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        texts_of(tmp_path / name)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


ENCODED = {
    "german.csv": ("Die Fähre fährt um sechs. Äpfel und Nüsse.", "cp1252"),
    "english.txt": ("The ferry – “at six” – costs €5; it’s late, café.", "cp1252"),
    "mac.txt": ("Le bac part à six heures. L’été, la crêpe était brûlée.", "mac-roman"),
    "polish.csv": ("Łódź odpływa o szóstej, a piekarz niesie ciepły chleb.", "iso8859-2"),
    "windows_polish.csv": ("Żółta łódka; Święta są blisko, a pociąg się spóźni.", "cp1250"),
    "cyrillic.txt": ("Паром отходит в шесть.", "cp1251"),
    "koi.jsonl": ("Паром отходит в шесть.", "koi8-r"),
    "dos.csv": ("Паром отходит в шесть.", "cp866"),
    "greek.tsv": ("Το πλοίο για το νησί φεύγει στις έξι.", "cp1253"),
    "turkish.csv": ("Feribot saat altıda kalkıyor, çarşıya gidiyor.", "cp1254"),
    "hebrew.csv": ("המעבורת לאי יוצאת בשש.", "cp1255"),
    "arabic.csv": ("تغادر العبارة إلى الجزيرة.", "cp1256"),
    "chinese.csv": ("渡轮六点离开岛屿。面包师把热面包送到市场。", "gb18030"),
    "taiwan.txt": ("渡輪六點離開島嶼。麵包師把熱麵包送到市場。", "big5"),
    "japanese.jsonl": ("フェリーは六時に出ます。", "cp932"),
    "euc.txt": ("フェリーは六時に島へ出ます。", "euc_jp"),
    "mail.txt": ("フェリーは六時に島へ出ます。", "iso2022_jp"),
    "korean.csv": ("섬으로 가는 배는 여섯 시에 떠난다.", "cp949"),
    "thai.txt": ("เรือข้ามฟากออกหกโมง", "cp874"),
    "utf16.txt": ("The ferry leaves at six.", "utf-16-le"),
    "chinese16.csv": ("渡轮六点离开岛屿。", "utf-16-be"),
    "mark16.csv": ("The ferry leaves at six.", "utf-16"),
    "mark32.txt": ("The ferry leaves at six.", "utf-32"),
    "plain32.jsonl": ("The ferry leaves at six.", "utf-32-be"),
}


@pytest.mark.parametrize("name", ENCODED)
def test_a_certain_encoding_is_read_and_said(name, tmp_path, capsys):
    text, encoding = ENCODED[name]
    row = f"{json.dumps({'text': text}, ensure_ascii=False)}\n" if "json" in name else f'"{text}"\n'
    if name.endswith((".txt", ".tsv")):
        row = f"{text}\n"
    header = "" if name.endswith((".txt", "jsonl")) else "text\n"
    (tmp_path / name).write_bytes((header + 3 * row).encode(encoding))
    assert texts_of(tmp_path / name) == [text] * 3
    assert f"{name}: is read as {encoding}" in capsys.readouterr().err


def test_the_users_encoding_is_read_where_the_file_is_not_utf_8(tmp_path, capsys):
    path = tmp_path / "word.txt"
    path.write_bytes("Łódź\n".encode("cp1250"))
    assert next(open_rows(path, path, encoding="cp1250").rows)[1] == {"text": "Łódź"}
    path.write_bytes("Müller\n".encode())
    assert next(open_rows(path, path, encoding="cp1252").rows)[1] == {"text": "Müller"}
    assert "is utf-8; --encoding cp1252 is not used" in capsys.readouterr().err
    assert next(open_rows(path, path, encoding="UTF8").rows)[1] == {"text": "Müller"}
    assert "is not used" not in capsys.readouterr().err
    path.write_bytes(b"Miller\n")
    assert [find_encoding(path, path, name) for name in ("cp1252", "utf8")] == ["cp1252", None]
    with pytest.raises(InputError, match="--encoding: unknown encoding 'cp9999'; allowed: a name"):
        find_encoding(path, path, "cp9999")
    with pytest.raises(InputError, match="--encoding: unknown encoding 'cp9999'; allowed: a name"):
        open_rows(path, path, encoding="cp9999")
    with pytest.raises(InputError, match="leave --encoding out"):
        (tmp_path / "a.xlsx").write_bytes(READ["book.xlsx"])
        open_rows(tmp_path / "a.xlsx", "a.xlsx", encoding="cp1252")


def test_a_pipe_is_refused_as_a_pipe(tmp_path):
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    for read in (open_rows, open_lines):
        with pytest.raises(InputError, match="is a pipe, a socket or a device"):
            list(read(path, path.name))


def test_an_empty_text_is_refused_packed_too(tmp_path):
    path = tmp_path / "empty.txt.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(InputError, match=r"empty\.txt\.gz: is empty; allowed"):
        open_rows(path, path.name)


def test_a_line_break_in_the_name_of_a_column_is_a_blank():
    assert split_columns('first\nname,"a,b"') == ["first name", "a,b"]


@pytest.mark.parametrize(
    ("cell", "mark", "number"),
    [
        ("4,5", "comma", 4.5),
        ("4.5", "comma", 4.5),
        ("3,667", "comma", 3.667),
        ("-0,25", "either", -0.25),
        ("0,125", "either", 0.125),
        (" 3 ", "point", 3.0),
        ("1e-3", "point", 0.001),
        (7, "either", 7.0),
        ("\u202a4.5\u202c", "point", 4.5),
        ("", "comma", None),
        (None, "point", None),
        ("#N/A", "comma", None),
        ("#NV", "comma", None),
        ("4,5", "point", "'4,5'; allowed: a number, e.g. 4.2; write a point, or separate"),
        ("1,234", "either", "may be a decimal mark or separate thousands"),
        ("1,234,567", "either", "its score is '1,234,567'; allowed: a number"),
        ("1.234,5", "comma", "is '1.234,5'; allowed: a number"),
        ("4,5,6", "comma", "is '4,5,6'"),
        ("five", "comma", "is 'five'"),
        ("1_000", "point", "is '1_000'"),
        ("NaN", "point", "is 'NaN'"),
        ("inf", "point", "is 'inf'"),
        ("85 %", "point", "is '85 %'"),
    ],
)
def test_a_number_is_read_with_the_decimal_mark_of_its_file(cell, mark, number):
    if not isinstance(number, str):
        assert as_number(cell, "f.csv:2", "score", mark) == number
        return
    with pytest.raises(InputError) as caught:
        as_number(cell, "f.csv:2", "score", mark)
    assert str(caught.value).startswith("f.csv:2: its score is ") and number in str(caught.value)


def test_a_damaged_workbook_is_read_or_refused(tmp_path):
    draw = random.Random(3)
    content = READ["book.xlsx"]
    for _ in range(60):
        place = draw.randrange(len(content))
        (tmp_path / "b.xlsx").write_bytes(
            content[:place] + draw.randbytes(3) + content[place + 3 :]
        )
        with suppress(InputError):
            texts_of(tmp_path / "b.xlsx")


def test_an_empty_chart_sheet_is_named(tmp_path):
    book = Workbook()
    book.create_chartsheet("chart")
    book.save(tmp_path / "chart.xlsx")
    with pytest.raises(
        InputError, match=r"a sheet that cannot be read, e\.g\. an empty chart; remove"
    ):
        texts_of(tmp_path / "chart.xlsx")


def test_a_wrong_stored_size_of_a_sheet_cuts_no_row(tmp_path):
    """Some programs store the size of another sheet."""
    changed = io.BytesIO()
    book = io.BytesIO(READ["book.xlsx"])
    with zipfile.ZipFile(book) as parts, zipfile.ZipFile(changed, "w") as written:
        for name in parts.namelist():
            content = parts.read(name)
            if name.startswith("xl/worksheets/"):
                content = re.sub(rb'<dimension ref="[^"]*"', b'<dimension ref="A1"', content)
            written.writestr(name, content)
    (tmp_path / "small.xlsx").write_bytes(changed.getvalue())
    assert texts_of(tmp_path / "small.xlsx") == TEXTS


def test_spreadsheet_errors_and_empty_letters_count_as_empty(tmp_path):
    (tmp_path / "cells.xlsx").write_bytes(
        workbook(("text", "n"), *((cell, 1) for cell in ("#N/A", "\u3164", "\u2800", "#tag")))
    )
    texts = texts_of(tmp_path / "cells.xlsx")
    assert [is_blank(text) for text in texts] == [True, True, True, False]


def test_a_row_that_lacks_the_column_is_an_empty_text(tmp_path):
    path = tmp_path / "lacks.jsonl"
    path.write_text("".join(f"{line}\n" for line in ['{"id": 1}'] * 1_500 + OBJECTS))
    texts = texts_of(path)
    assert texts.count("") == 1_500 and texts[-3:] == TEXTS


def test_a_damaged_text_inside_a_parquet_file_is_not_taken_for_another_encoding(tmp_path):
    damaged = pa.array([b"\xff"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": damaged}), tmp_path / "damaged.parquet")
    with pytest.raises(InputError, match=r"damaged\.parquet: cannot be read"):
        texts_of(tmp_path / "damaged.parquet")


def test_a_line_without_end_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1_000)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"a" * 10_000_000))
    with pytest.raises(
        InputError, match=r"bomb\.txt\.gz:1: is too long a line; allowed: at most 1,000 characters"
    ):
        list(open_rows(tmp_path / "bomb.txt.gz", "bomb.txt.gz")[1])


def test_words_and_numbers_stay_texts_and_nothing_visible_is_blank(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "null"}\n{"text": "NA"}\n{"text": 12}\n{"text": null}\n'
    )
    assert texts_of(tmp_path / "rows.jsonl") == ["null", "NA", "12", ""]
    assert all(
        map(is_blank, ["", MARK, "\u2060\u200b", "\u00ad\ufe0f", "\u3000 \t"])
    ) and not is_blank("\u200bx")


@pytest.mark.parametrize("folder", ["data [v2]", "c::d", "plain"])
@pytest.mark.parametrize("streaming", [False, True])
def test_training_reads_the_file_that_is_named(folder, streaming, tmp_path):
    place = tmp_path / folder
    place.mkdir()
    scores = {"run?.jsonl": [0.0, 1.0], "run1.jsonl": [0.5, 0.5, 0.5]}
    for name, values in scores.items():
        rows = [
            {"sentence1": f"2024-01-0{score}", "sentence2": TEXTS[0], "score": score}
            for score in values
        ]
        (place / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = TrainingData(
        path=str(place / "run?.jsonl"), config="default", example_type="sts", loss="CoSENTLoss"
    )
    (found,) = load_training_sets((spec.model_copy(update={"streaming": streaming}),), None)
    assert sorted(row["score"] for row in found.train) == [0.0, 1.0]
    table = pa.table({"score": pa.array([0.25, 0.5], pa.float16())})
    pq.write_table(table, place / "part[1].parquet")
    with pytest.raises(InputError, match="rename the folder") if "::" in folder else nullcontext():
        loaded = load_shards({"train": [str(place / "part[1].parquet")]}, streaming, "here")
        assert [row["score"] for row in loaded["train"]] == [0.25, 0.5]


WORDS = [
    *(
        "text",
        "id",
        "score",
        "über",
        "naïve",
        "Łódź",
        "日本",
        "привет",
        "a,b",
        "4,5",
        "1.234",
        "#N/A",
    ),
    *('"', '""', "'", "\t", ";", "|", "{", '{"text": "x"}', '{"id": 1}', "[", "]", "\0", " ", "\r"),
    *("sep=;", "#", "\ufeff", "\u3164", "\u2028", "null", "=A1", "\x1b$B", "\x1a"),
]
HEADERS = [
    "",
    "text\n",
    "text\tb\n",
    "id;text\n",
    "sep=;\nid;text\n",
    "# a\ntext,b\n",
    '"text","b"\n',
]
CORPUS_ENCODINGS = [
    *(["utf-8"] * 4),
    *("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1250", "cp1251", "gbk"),
    *("shift_jis", "iso2022_jp", "mac-roman"),
]


def make_corpus(draw: random.Random) -> bytes:
    lines = ["".join(draw.choices(WORDS, k=draw.randrange(6))) for _ in range(draw.randrange(1, 6))]
    encoding = draw.choice(CORPUS_ENCODINGS)
    end = draw.choice(["\n", "\n", "\r\n"])
    content = (draw.choice(HEADERS) + end.join(lines)).encode(encoding, "replace")
    if draw.random() < 0.2 and content:
        place = draw.randrange(len(content))
        content = content[:place] + draw.randbytes(2) + content[place:]
    return content


CORPORA = 300


def test_random_corpora_are_read_as_what_they_say_or_refused(tmp_path, capsys):
    """No traceback, and no word that the file lacks in the encoding that is printed."""
    draw = random.Random(7)
    read = 0
    for number in range(CORPORA):
        content = make_corpus(draw)
        path = tmp_path / f"{number}{draw.choice([*text_files.READERS])}"
        path.write_bytes(content)
        texts: list[str] = []
        with suppress(InputError):
            texts = texts_of(path)
        said = re.search(r"is read as ([\w-]+)", capsys.readouterr().err)
        decoded = content.decode(said[1] if said else "utf-8", errors="replace")
        for text in texts:
            assert all(word in decoded for word in re.findall(r"\w+", text)), (path, text)
            read += 1
        path.unlink()
    assert read > 100


def test_parquet_unpacks_a_bounded_number_of_bytes_at_once(tmp_path, monkeypatch):
    """A file of a few kilobytes can repeat one text to gigabytes."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(text_files, "BATCH_BYTES", 4 << 20)
    path = tmp_path / "repeated.parquet"

    def write(text: str, rows: int, kind: pa.DataType) -> None:
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
        table = pa.table({"text": texts.cast(kind), "n": range(rows)})
        pq.write_table(table, path, compression="zstd")
        assert path.stat().st_size < 200_000

    kinds = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
    for kind in kinds:
        write("x" * (1 << 19), 900 if kind == kinds[2] else 40, kind)
        used = pa.total_allocated_bytes()
        for number, row in text_files.open_rows(path, "here").rows:
            assert row == {"text": "x" * (1 << 19), "n": number - 1}
            assert pa.total_allocated_bytes() - used < 64 << 20
        assert number == (900 if kind == kinds[2] else 40)
        write("x" * ((1 << 20) + 1), 5_000 if kind == kinds[2] else 3, kind)
        with pytest.raises(InputError, match=r"here: rows 1 to .*: hold a text of 1,048,577 bytes"):
            list(text_files.open_rows(path, "here").rows)

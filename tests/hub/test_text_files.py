"""A user's file is read as what it is, or refused in one line that names the row: kinds A and F of issue "Faults"."""

import gzip
import io
import json
import random
import re
from contextlib import nullcontext, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import Workbook

from generation.inputs.sources import file_rows
from hub import text_files
from hub.contract.recipe import TrainingData
from hub.errors import InputError
from hub.text_files import is_blank, open_rows
from training.data.training_sets import load_all, load_shards

TEXTS = ["The ferry leaves at six.", "Rain has filled the well.", "Two boys repair a bicycle."]
MARK = "\ufeff"
LINES = "".join(f"{text}\n" for text in TEXTS)
OBJECTS = [json.dumps({"text": text}) for text in TEXTS]


def workbook(*rows: tuple, sheets: int = 1) -> bytes:
    book = Workbook()
    for row in rows:
        book.active.append(row)
    for _ in range(sheets - 1):
        book.create_sheet()
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
    "Packed.JSONL.GZ": gzip.compress("\n".join(OBJECTS).encode()),
    "book.xlsx": workbook(("text", "year"), *((text, 2024) for text in TEXTS), sheets=2),
    "semicolons.csv": "".join(f"{cells}\n" for cells in ("id;text", *(f"1;{text}" for text in TEXTS))).encode(),
    "tabs.csv": "".join(f"{cells}\n" for cells in ("id\ttext", *(f"1\t{text}" for text in TEXTS))).encode(),
}
REFUSED = {
    "surplus.csv": (b"text\nA text.\nPlums, pears.\n", "surplus.csv:3: has 2 columns; allowed: 1"),
    "missing.csv": (b"text,year\nA text.\n", "missing.csv:2: has 1 columns; allowed: 2"),
    "open.csv": (b'text\nA text.\n"Open\nmore\nmore\n', "open.csv:3: its quotation marks do not close"),
    "twice.tsv": (b"text\tnote\ttext\na\tb\tc\n", "twice.tsv:1: the column 'text' stands twice"),
    "twice.jsonl": (b'{"text": "a", "text": "b"}', "twice.jsonl:1: the column 'text' stands twice"),
    "true.jsonl": (b'{"text": "a"}\n{"text": true}', "true.jsonl:2: its column 'text' holds bool; allowed: text"),
    "nan.jsonl": (b'{"text": NaN}', "nan.jsonl:1: its column 'text' holds nan"),
    "huge.jsonl": (b'{"text": 1e400}', "huge.jsonl:1: its column 'text' holds inf"),
    "other.jsonl": (b'{"text": "a"}\n{"body": "b"}', "other.jsonl:2: column 'text': not in the source; allowed: body"),
    "number.json": (b"[1, 2]", "number.json:1: is not a JSON object"),
    "nested.json": (b"[" * 100_000, "nested.json: is not JSON: maximum recursion"),
    "utf16.txt": (LINES.encode("utf-16-le"), "it may be UTF-16LE; convert it: iconv -f UTF-16LE -t UTF-8"),
    "mark16.csv": (f"text\n{LINES}".encode("utf-16"), "is not UTF-8; it may be UTF-16LE"),
    "latin.csv": ("text\nÄpfel\n".encode("latin-1"), "latin.csv:2: is not UTF-8; it may be WINDOWS-1252"),
    "no.xlsx": (b"PK", "is not an Excel workbook"),
    "wide.xlsx": (workbook(("text",), ("a", "b")), "wide.xlsx:2: has a cell without a column name"),
    "cut.csv.gz": (gzip.compress(LINES.encode())[:-9], "cannot be read"),
    "empty.txt": (b"", "is empty; allowed: at least one text"),
}


def texts_of(path: Path) -> list[str]:
    columns = () if path.name.lower().endswith(".txt") else ("text",)
    return [text for (text,) in file_rows(path, columns, path.name)]


@pytest.mark.parametrize("name", READ)
def test_what_people_have_is_read(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(READ[name])
    assert texts_of(tmp_path / name) == TEXTS
    said = {"book.xlsx": "the sheet 'Sheet' is read", "semicolons.csv": "separated by ';'", "tabs.csv": "by '\\t'"}
    assert said.get(name, "") in capsys.readouterr().err


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_with_its_row(name, tmp_path):
    content, problem = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        texts_of(tmp_path / name)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_a_line_without_end_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1_000)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"a" * 10_000_000))
    with pytest.raises(InputError, match=r"bomb\.txt\.gz:1: is too long a line; allowed: at most 1,000 characters"):
        list(open_rows(tmp_path / "bomb.txt.gz", "bomb.txt.gz")[1])


def test_words_and_numbers_stay_texts_and_nothing_visible_is_blank(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "null"}\n{"text": "NA"}\n{"text": 12}\n{"text": null}\n')
    assert texts_of(tmp_path / "rows.jsonl") == ["null", "NA", "12", ""]
    assert all(map(is_blank, ["", MARK, "\u2060\u200b", "\u00ad\ufe0f", "\u3000 \t"])) and not is_blank("\u200bx")


@pytest.mark.parametrize("folder", ["data [v2]", "c::d", "plain"])
@pytest.mark.parametrize("streaming", [False, True])
def test_training_reads_the_file_that_is_named(folder, streaming, tmp_path):
    place = tmp_path / folder
    place.mkdir()
    scores = {"run?.jsonl": [0.0, 1.0], "run1.jsonl": [0.5, 0.5, 0.5]}
    for name, values in scores.items():
        rows = [{"sentence1": f"2024-01-0{score}", "sentence2": TEXTS[0], "score": score} for score in values]
        (place / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = TrainingData(path=str(place / "run?.jsonl"), config="default", example_type="sts", loss="CoSENTLoss")
    (found,) = load_all((spec.model_copy(update={"streaming": streaming}),), None)
    assert sorted(row["score"] for row in found.train) == [0.0, 1.0]
    table = pa.table({"score": pa.array([0.25, 0.5], pa.float16())})
    pq.write_table(table, place / "part[1].parquet")
    with pytest.raises(InputError, match="rename the folder") if "::" in folder else nullcontext():
        loaded = load_shards({"train": [str(place / "part[1].parquet")]}, streaming, "here")
        assert [row["score"] for row in loaded["train"]] == [0.25, 0.5]


def test_random_corpora_are_read_or_refused_and_no_word_is_made_up(tmp_path):
    words = ["text", "über", '"', '""', "日本", "a,b", "\t", ";", "{", '{"text": "x"}', "[", "\0", " "]
    draw, read = random.Random(7), 0
    for _ in range(5_000):
        lines = ["".join(draw.choices(words, k=draw.randrange(6))) for _ in range(draw.randrange(1, 6))]
        encoding = draw.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])
        header, body = draw.choice(["", "text\n", "text\tb\n"]), "\n".join(lines)
        content = header.encode(encoding, "replace") + body.encode(encoding, "replace")
        if draw.random() < 0.2 and content:
            place = draw.randrange(len(content))
            content = content[:place] + draw.randbytes(2) + content[place:]
        path = tmp_path / f"corpus{draw.choice([*text_files.READERS])}"
        path.write_bytes(content)
        with suppress(InputError):
            for text in texts_of(path):
                assert all(word in content.decode(errors="replace") for word in re.findall(r"\w+", text))
                read += 1
    assert read > 1_000

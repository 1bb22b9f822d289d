"""Random judgement files for ``--pairs`` and ``--qrels``: each is read with a message, or refused in
one line; no row is misread in silence.
"""

import csv
import io
import json
import logging
import math
import random
from dataclasses import dataclass, field

import numpy as np
from senteval_layout import bag_of_words

from sts_dino.eval.encoders.load import wrap
from sts_dino.eval.runs.score import score_encoder
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.tasks.own import OwnFiles, read_own
from sts_dino.eval.tasks.sources import Source
from sts_dino.hub.cli import FileOptions
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.untrusted import strip_controls

FILES_PER_TEST = 100
COLUMN_NAMES = ["sentence1", "sentence2", "score"]
WORDS = [
    "ferry",
    "Küche",
    "東京",
    "naïve",
    "leaves,late",
    "a;b",
    '"quoted"',
    "it's",
    "5,5",
    "x\u200by",
    "don't",
    "Straße",
    "сыр",
]
SCORES = ["0", "1", "2", "3", "4", "5", "2.5", "-1", "1e2"]
BAD_NUMBERS = (
    *("", " ", "NaN", "nan", "inf", "-inf", "1e400", "9" * 400, "4,5", "1.234,5", "5/5", "true"),
    *("null", "None", "#N/A", "٣", "½", "²", "1_000", "0x10", "=1+1", "-", "1 2", "2024-01-01"),
)
BAD_TEXTS = (
    *(
        "",
        " ",
        "\u3164",
        "\u200b",
        "\ufeff",
        "\x00",
        "line\nbreak",
        "tab\there",
        '"',
        "'",
        ";",
        ",",
    ),
    *("a" * 200_000, "#N/A", "\u202eevil", "\ud83d", "NaN", "null", "\\n", "=HYPERLINK()"),
)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "cp1251", "latin-1", "shift-jis")
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".CSV", ".parquet", ".xlsx", ".md", "")


@dataclass
class File:
    """Rows of a file before they are written, and the rows whose values were changed."""

    header: list[str]
    rows: list[list[object]]
    changed: set[int] = field(default_factory=set)
    is_whole: bool = True  # no byte of the written file was changed


def write(file, generator, folder, name):
    """Write a file in a random form: delimiter, quotes, line ends, encoding, damaged bytes."""
    suffix = generator.choice([*SUFFIXES, ".csv", ".tsv", ".jsonl", ".csv", ".tsv"])
    encoding = "utf-8" if generator.random() < 0.7 else generator.choice(ENCODINGS)
    if suffix in (".jsonl", ".json") or generator.random() < 0.03:
        rows = [dict(zip(file.header, row, strict=False)) for row in file.rows]
        if suffix == ".json":
            text = json.dumps(rows if generator.random() < 0.6 else {"data": rows})
        else:
            text = "\n".join(map(json.dumps, rows))
    elif suffix == ".tsv":  # a quotation mark is text there
        text = "\n".join("\t".join(map(str, row)) for row in [file.header, *file.rows])
    else:
        buffer = io.StringIO()
        delimiter = generator.choice(",,,;|\t")
        writer = csv.writer(
            buffer,
            delimiter=delimiter,
            quoting=generator.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
            lineterminator=generator.choice(["\n", "\r\n", "\r"]),
        )
        if generator.random() < 0.9:
            writer.writerow(file.header)
        writer.writerows(file.rows)
        text = buffer.getvalue()
        if generator.random() < 0.1:
            text = generator.choice(["sep=;\n", "\n", "# a comment\n", "\ufeff"]) + text
            file.is_whole = False
    content = text.encode(encoding, "replace")
    file.is_whole &= encoding.startswith("utf")
    if generator.random() < 0.15 and content:
        file.is_whole = False
        damage = generator.randrange(3)
        position = generator.randrange(len(content))
        if damage == 0:
            content = content[:position]
        elif damage == 1:
            content = content[:position] + generator.randbytes(3) + content[position:]
        else:
            content = content[:position] + content[position + 1 :]
    path = folder / f"{name}{suffix}"
    path.write_bytes(content)
    return path


def change(file, generator, number_column):
    """Change some values, rows or columns of a file, and note the changed rows."""
    for _ in range(generator.choice([0, 0, 1, 1, 2, 4])):
        row = generator.randrange(len(file.rows))
        column = generator.randrange(min(len(file.header), len(file.rows[row])))
        kind = generator.randrange(8)
        file.changed.add(row)
        if kind < 3:
            bad = BAD_NUMBERS if column == number_column else BAD_TEXTS
            file.rows[row][column] = generator.choice(bad)
        elif kind == 3:
            file.rows[row][column] = generator.choice([None, True, 7, 1e300, -0.0, [1], {"a": 1}])
        elif kind == 4:
            file.rows[row].append(generator.choice(["surplus", ""]))
        elif kind == 5:
            file.rows[row] = file.rows[row][:1]
        elif kind == 6:
            file.header[column] = generator.choice(["", "x", file.header[0], "Score ", "label"])
            file.changed.update(range(len(file.rows)))
        else:
            file.rows.append(list(file.rows[row]))
            file.changed.add(len(file.rows) - 1)


def make_pairs(generator, folder):
    rows = []
    for number in range(generator.randint(10, 14)):
        texts = [f"{number} {generator.choice(WORDS)} {generator.choice(WORDS)}" for _ in range(2)]
        rows.append([*texts, generator.choice(SCORES)])
    file = File([*COLUMN_NAMES], rows)
    originals = [tuple(row) for row in rows]
    change(file, generator, 2)
    intended = {
        (first, second): float(score)
        for number, (first, second, score) in enumerate(originals)
        if number not in file.changed
    }
    return file, intended, write(file, generator, folder, "mine")


def make_judgements(generator, folder):
    queries = {f"q{number}": f"question {number}" for number in range(12)}
    documents = {f"d{number}": f"document {number}" for number in range(15)}
    for name, texts in (("queries", queries), ("corpus", documents)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rows = [[query, f"d{number}", "1"] for number, query in enumerate(queries)]
    header = ["query-id", "corpus-id", "score"]
    if generator.random() < 0.3:  # TREC's lines
        rows = [[query, "0", document, grade] for query, document, grade in rows]
        header = ["query", "iteration", "document", "relevance"]
    file = File(header, rows)
    change(file, generator, len(header) - 1)
    path = write(file, generator, folder, "qrels")
    if header[1] == "iteration" and generator.random() < 0.7:
        lines = [" ".join(map(str, row)) for row in file.rows]
        path = folder / "qrels.txt"
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    return OwnFiles(queries=folder / "queries.jsonl", corpus=folder / "corpus.jsonl", qrels=path)


def words(texts):
    return bag_of_words(texts) + np.float32(1e-3)


words.revision = "1"


def read(files, messages, is_scored, options):
    """Read files; a refusal is one line, and a reading says how many rows it took."""
    messages.clear()
    try:
        data = read_own(files, options)
    except InputError as error:
        text = str(error)
        assert strip_controls(text) == text and len(text.splitlines()) == 1, text[:300]
        assert len(text) < 1_000 and ": " in text, text[:300]
        return None
    assert any(" pairs" in line or " queries with " in line for line in messages.messages)
    if is_scored:
        settings = EvaluationSettings(bootstrap_samples=20)
        try:
            results = score_encoder(wrap(words, "words"), [], Source(own=data), settings)
            assert all(math.isfinite(score.main_score) for score in results.scores)
        except (InputError, RunError) as error:
            assert len(str(error).splitlines()) == 1
    return data


def check_scores(rows, intended, is_changed):
    """Each pair whose row was not changed has the score of its row."""
    for first, second, score in rows.iter_canonical():
        expected = intended.get((str(first), str(second)))
        assert expected == float(score) or (is_changed and expected is None), (first, second)


def read_random_files(make, tmp_path, caplog, fewest):
    """Yield what ``make`` wrote by each seed, and its reading; both outcomes are frequent."""
    caplog.set_level(logging.INFO, logger="sts_dino")
    outcomes = {"read": 0, "refused": 0}
    for seed in range(FILES_PER_TEST):
        folder = tmp_path / str(seed)
        folder.mkdir()
        made, files, options = make(random.Random(seed), folder)
        data = read(files, caplog, seed % 20 == 0, options)
        outcomes["refused" if data is None else "read"] += 1
        yield made, data
    assert min(outcomes.values()) >= fewest, outcomes


def test_random_pairs_are_read_with_a_message_or_refused_in_one_line(tmp_path, caplog):
    def make(draw, folder):
        file, intended, path = make_pairs(draw, folder)
        return (file, intended, path), OwnFiles(pairs=path), FileOptions()

    for (file, intended, path), data in read_random_files(make, tmp_path, caplog, 20):
        if data is not None and file.is_whole:
            rows = data.rows[f"{path.name}/pairs"]["test"]
            check_scores(rows, intended, is_changed=len(file.changed) > 0)


def test_random_columns_are_read_with_a_message_or_refused_in_one_line(tmp_path, caplog):
    def make(draw, folder):
        path = make_pairs(draw, folder)[2]
        columns = ",".join(draw.choices([*COLUMN_NAMES, "a b", ""], k=3))
        return None, OwnFiles(pairs=path), FileOptions(columns=columns)

    assert len(list(read_random_files(make, tmp_path, caplog, 0))) == FILES_PER_TEST


def test_random_judgements_are_read_with_a_message_or_refused_in_one_line(tmp_path, caplog):
    def make(draw, folder):
        return None, make_judgements(draw, folder), FileOptions()

    assert len(list(read_random_files(make, tmp_path, caplog, 20))) == FILES_PER_TEST

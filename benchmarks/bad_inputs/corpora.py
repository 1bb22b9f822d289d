"""Corpora and options of ``sts-dino new``, and words that no command has."""

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bad_inputs.case import SENTENCES, Box, Case

MEGABYTE = "word " * 200_000


def _parquet(box: Box) -> None:
    path = box.folder / "texts.parquet"
    pq.write_table(pa.table({"text": SENTENCES * 100}), path)
    path.write_bytes(path.read_bytes()[:1000])


def _with_column(box: Box) -> None:
    box.file("texts.csv", ["id,question", *(f"{n},{text}" for n, text in enumerate(SENTENCES))])


CORPORA = (
    Case(
        "a corpus too small for an encoder",
        "adapt texts.txt --out made --lm builtin",
        ("texts.txt: has 2 usable texts", "allowed: 40 or more"),
        lambda box: box.file("texts.txt", SENTENCES[:2]),
    ),
    Case("a corpus to adapt that is not there", "adapt nowhere.txt --out made", ("nowhere.txt: no such file",)),
    Case(
        "options for a corpus, given with a recipe",
        "adapt recipe.yaml --out made --lm builtin",
        ("recipe.yaml: is a recipe", "edit the recipe"),
        lambda box: box.dataset(),
    ),
    Case("a report of no run", "report nowhere", ("nowhere", "run")),
    Case("a corpus that is not there", "new nowhere.txt", ("nowhere.txt: no such file", "give a file of texts")),
    Case("a folder as the corpus", "new .", (".: is a folder", "allowed: a file of texts")),
    Case(
        "an empty corpus",
        "new texts.txt",
        ("texts.txt: is empty", "allowed: at least one text"),
        lambda box: box.file("texts.txt", ""),
    ),
    Case(
        "a corpus of blank lines",
        "new texts.txt",
        ("texts.txt: has no usable text", "5 empty", "allowed:"),
        lambda box: box.file("texts.txt", "\n" * 5),
    ),
    Case(
        "a corpus in Latin-1",
        "new texts.txt",
        ("texts.txt", "is not UTF-8", "save it as UTF-8"),
        lambda box: box.file("texts.txt", "Ein schöner Tag im Süden.\n".encode("latin-1")),
    ),
    Case(
        "a corpus of one line, a megabyte long",
        "new texts.txt",
        ("texts.txt: has no usable text", "1 overlong"),
        lambda box: box.file("texts.txt", MEGABYTE),
    ),
    Case(
        "a CSV file without a header",
        "new texts.csv",
        ("texts.csv: ", "header", "--column"),
        lambda box: box.file("texts.csv", [f"{text},{n}" for n, text in enumerate(SENTENCES)]),
    ),
    Case(
        "a misspelt column",
        "new texts.csv --column questoin",
        ("column 'questoin': not in the data", "allowed: id, question", "did you mean 'question'?"),
        _with_column,
    ),
    Case(
        "a CSV file with two columns of texts",
        "new texts.csv",
        ("which column holds the texts is not clear", "allowed: a, b", "--column NAME"),
        lambda box: box.file("texts.csv", ["a,b", "one two three,four five six"]),
    ),
    Case(
        "a JSONL file with a broken line",
        "new texts.jsonl",
        ("texts.jsonl:3: is not JSON",),
        lambda box: box.file("texts.jsonl", ['{"text": "one two three"}'] * 2 + ['{"text": "one']),
    ),
    Case("a Parquet file that was cut", "new texts.parquet", ("texts.parquet: cannot be read",), _parquet),
    Case(
        "a Word document",
        "new texts.docx",
        ("texts.docx: unknown kind of file '.docx'", "allowed: .txt", "save"),
        lambda box: box.file("texts.docx", b"PK\3\4"),
    ),
    Case(
        "a PDF file",
        "new texts.pdf",
        ("texts.pdf: unknown kind of file '.pdf'", "allowed: .txt", "save"),
        lambda box: box.file("texts.pdf", b"%PDF-1.7"),
    ),
    Case(
        "a corpus that one may not read",
        "new texts.txt",
        ("texts.txt: cannot be written or read here", "change its permissions"),
        lambda box: box.file("texts.txt").chmod(0),
        code=1,
        own_process=True,
    ),
    Case(
        "an unknown licence",
        "new texts.txt --license mitt",
        ("--license: 'mitt' is no licence", "allowed: ", "did you mean 'mit'?"),
        lambda box: box.file("texts.txt"),
    ),
    Case(
        "a language by its name",
        "new texts.txt --language English --lm builtin",
        ("--language: 'English'", "allowed: ", "e.g. en"),
        lambda box: box.file("texts.txt"),
    ),
    Case(
        "a language model that is not there",
        "new texts.txt --lm ./models/gemma --lm-license gemma",
        ("--lm: ", "allowed: "),
        lambda box: box.file("texts.txt"),
    ),
    Case(
        "a language model of no known licence",
        "new texts.txt --lm org/name",
        ("--lm-license: the licence of org/name is not known", "allowed: "),
        lambda box: box.file("texts.txt"),
    ),
    Case(
        "a recipe that is there already",
        "new texts.txt",
        ("texts.yaml: is there already", "--out"),
        lambda box: (box.file("texts.txt"), box.file("texts.yaml", "mine")),
    ),
    Case(
        "a place for the recipe that cannot be written",
        "new texts.txt --lm builtin --out /proc/none/recipe.yaml",
        ("/proc/none", "choose another folder"),
        lambda box: box.file("texts.txt"),
        code=1,
    ),
    Case("a misspelt command", "wriet recipe.yaml", ("'wriet'", "did you mean 'write'?", "sts-dino --help")),
    Case("a misspelt option", "write recipe.yaml --dryrun", ("--dryrun", "--dry-run", "sts-dino write --help")),
    Case("a word for a number", "write recipe.yaml --limit ten", ("--limit", "'ten'", "sts-dino write --help")),
    Case("a command without its argument", "train", ("RECIPE", "sts-dino train --help")),
)

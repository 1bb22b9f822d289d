"""Readers of every data set, sources and pins: altered, missing and malicious files are one clear
error.
"""

import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from measured_pins import measure
from senteval_layout import write_originals, write_senteval

from sts_dino.eval.tasks.registry import DATASETS, find_dataset
from sts_dino.eval.tasks.rows import DataFile, Pins, RowsPin, load_pins
from sts_dino.eval.tasks.sources import Source
from sts_dino.hub.errors import InputError


def read(dataset: str, split: str, *contents: str | bytes):
    """The rows of a split whose files have these contents."""
    part = find_dataset(dataset).parts[split]
    assert len(part.files) == len(contents)
    as_bytes = [content if isinstance(content, bytes) else content.encode() for content in contents]
    return part.reader(
        [DataFile(name, content) for name, content in zip(part.files, as_bytes, strict=True)]
    )


HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
SICK = HEADER + "7\tA  dog runs \tA dog\t4.5\tNEUTRAL\r\n"
MRPC = (
    '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t12\t34\tHe said " yes .\tHe agreed .\n'
)
STSB = 'main-news\tMSRpar\t2012\t1\t3.800\t"It is here\tIt is  "here" .\n'
PROBING = "tr\t5\tshort one\ntr\t10\tdeep one\nva\t10\textra\tva sentence\nte\t5\tte sentence\n"
QUESTIONS = b"NUM:dist How far is it from Caf\xe9 : Bar ?\nABBR:exp What is NASA ?\n"
READ = {  # data set, split, files → columns of texts, classes or scores
    "Latin-1, blank rows, the first file has class 1": (
        ("cr", "all", b"good  phone \n\n caf\xe9 \n", b"bad \n"),
        (("good phone", "", "café", "bad"),),
        [1, 1, 1, 0],
    ),
    "a byte-order mark and a header": (
        ("mrpc", "train", MRPC),
        (('He said " yes .',), ("He agreed .",)),
        [1],
    ),
    "Windows line ends": (("sick-e", "test", SICK), (("A dog runs",), ("A dog",)), [1]),
    "the organisers' spaces stay, as at MTEB": (
        ("sick-r", "test", SICK),
        (("A  dog runs ",), ("A dog",)),
        [4.5],
    ),
    "no quoting": (("stsb", "test", STSB), (('"It is here',), ('It is  "here" .',)), [3.8]),
    "more columns": (
        ("stsb", "test", STSB[:-1] + "\ta\tb\n"),
        (('"It is here',), ('It is  "here" .',)),
        [3.8],
    ),
    "the class behind the text": (
        ("sst2", "validation", "a fine film \t1\n"),
        (("a fine film",),),
        [1],
    ),
    "the class before it": (
        ("sst5", "train", "4 a funny film\n0 no  fun\n"),
        (("a funny film", "no fun"),),
        [4, 0],
    ),
    "the coarse class": (
        ("trec", "test", QUESTIONS),
        (("How far is it from Café : Bar ?", "What is NASA ?"),),
        [5, 0],
    ),
    "parallel files": (
        (
            "snli",
            "test",
            "neutral\ncontradiction\n",
            "A man . \nA boy . \n",
            "He sits . \nHe runs . \n",
        ),
        (("A man .", "A boy ."), ("He sits .", "He runs .")),
        [1, 2],
    ),
    "classes of train, sorted as text": (
        ("treedepth", "train", PROBING),
        (("short one", "deep one"),),
        [1, 0],
    ),
    "of test": (("treedepth", "test", PROBING), (("te sentence",),), [1]),
}


@pytest.mark.parametrize(("given", "columns", "target"), READ.values(), ids=READ)
def test_files_are_read_as_the_toolkit_does(given, columns, target):
    rows = read(*given)
    assert rows.columns == columns and rows.target.tolist() == target


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_line_ends_at_a_newline_only(separator):
    rows = read("sst2", "test", f"one{separator}two \t1\nthree \t0\n")
    assert rows.first == ("one two", "three") and rows.target.tolist() == [1, 0]


def test_unscored_sts_pairs_are_left_out_and_subsets_keep_the_toolkits_order():
    contents = [
        content
        for number in range(5)
        for content in (f"a{number}\tb{number}\nc\td\ne{number}\tf\n", f"{number}\n\n1.25\n")
    ]
    rows = read("sts15", "test", *contents)
    assert (
        rows.subsets[:2] == (("answers-forums", 0, 2), ("answers-students", 2, 4))
        and len(rows) == 10
    )
    assert rows.first[:3] == ("a0", "e0", "a1") and rows.target[:4].tolist() == [0, 1.25, 1, 1.25]


BAD = {
    "stsb-columns": (
        "stsb",
        "a\tb\tc\n",
        "sts-test.csv:1: has 3 tab-separated columns, expected 7",
    ),
    "stsb-score": ("stsb", "g\tf\t1\t2\tfive\ta\tb\n", "sts-test.csv:1: 'five' is not a score"),
    "stsb-nan": ("stsb", "g\tf\t1\t2\tnan\ta\tb\n", "the score nan is out of range"),
    "sst2-class": ("sst2", "fine \t2\n", "sentiment-test:1: unknown class '2'; allowed: 0, 1"),
    "probing-part": ("wc", "xx\t1\ta\n", "word_content.txt:1: unknown part 'xx'"),
    "probing-class": ("wc", "tr\t1\ta\nte\t2\tb\n", "word_content.txt:2: unknown class '2'"),
    "parallel": (
        "snli",
        ("neutral\nneutral\n", "a\nb\n", "c\n"),
        "s2.test: has 1 lines, downstream/SNLI/labels.test",
    ),
    "utf-8": ("sst2", b"caf\xe9 \t1\n", "sentiment-test: is not utf-8 .byte 3"),
}


@pytest.mark.parametrize("dataset,content,message", BAD.values(), ids=BAD)
def test_what_is_not_in_form_names_file_and_line(dataset, content, message):
    with pytest.raises(InputError, match=message):
        read(dataset, "test", *(content if isinstance(content, tuple) else (content,)))


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("planted")
    return write_senteval(root / "senteval", rows=6), write_originals(root / "originals", rows=6)


@pytest.fixture(scope="module")
def pins(planted) -> Pins:
    """The planted data's own pins, measured by the code that measured the published ones."""
    return measure(*planted)


@pytest.fixture
def copied(planted, tmp_path) -> Path:
    return Path(shutil.copytree(planted[0], tmp_path / "copy"))


def test_every_data_set_is_read_and_every_form_is_whole(planted, pins):
    source = Source(*planted, pins=pins)
    for name, dataset in DATASETS.items():
        for rows in source.load(name, list(dataset.parts)).values():
            assert len(rows) > 0 and len(rows.texts) % len(rows) == 0, name
            if name.startswith("sts") and name[3].isdigit():
                assert rows.subsets[-1][2] == len(rows)


def test_the_downstream_folder_itself_is_accepted_and_so_is_its_content(planted, pins, tmp_path):
    whole = Source(planted[0], pins=pins)
    downstream = Source(planted[0] / "downstream", pins=pins)
    renamed = Source(Path(shutil.copytree(planted[0] / "downstream", tmp_path / "data")), pins=pins)
    for name, split in (("mr", "all"), ("sts12", "test"), ("snli", "train")):
        hashes = {
            source.load(name, [split])[split].sha256 for source in (whole, downstream, renamed)
        }
        assert len(hashes) == 1
    assert len(downstream.load("wc", ["test"])["test"])  # probing lies beside downstream
    missing = shutil.copytree(planted[0] / "downstream", tmp_path / "cut" / "downstream")
    shutil.rmtree(missing / "MR")
    with pytest.raises(InputError, match=f"^{missing}/MR/rt-polarity.pos: no such data file"):
        Source(missing, pins=pins).load("mr", ["all"])


def test_a_link_to_the_downstream_folder_finds_the_probing_tasks(
    planted, pins, tmp_path, monkeypatch
):
    link = tmp_path / "link"
    link.symlink_to(planted[0] / "downstream")
    assert len(Source(link, pins=pins).load("wc", ["test"])["test"])
    monkeypatch.chdir(planted[0] / "downstream")
    assert len(Source(Path(), pins=pins).load("wc", ["test"])["test"])

    # the link alone leads to another disk; the probing tasks are beside the link
    disk = tmp_path / "disk" / "downstream"
    shutil.copytree(planted[0] / "downstream", disk)
    link = tmp_path / "data" / "downstream"
    shutil.copytree(planted[0] / "probing", link.with_name("probing"))
    link.symlink_to(disk)
    assert len(Source(link, pins=pins).load("wc", ["test"])["test"])


ALTERED = {
    "a letter": lambda content: content.replace(b"word1", b"word!", 1),
    "half of it cut": lambda content: content[: len(content) // 2],
    "one line more": lambda content: content + content.splitlines(keepends=True)[-1],
    "two lines exchanged": lambda content: b"".join([*reversed(content.splitlines(keepends=True))]),
    "empty": lambda content: b"",
}
FILES = {
    "mr": "downstream/MR/rt-polarity.neg",
    "trec": "downstream/TREC/train_5500.label",
    "sts15": "downstream/STS/STS15-en-test/STS.input.belief.txt",
    "tense": "probing/past_present.txt",
}


@pytest.mark.parametrize("change", ALTERED)
@pytest.mark.parametrize("dataset", FILES)
def test_an_altered_file_is_one_error_that_names_the_files(copied, pins, dataset, change):
    path = copied / FILES[dataset]
    path.write_bytes(ALTERED[change](path.read_bytes()))
    with pytest.raises(InputError) as raised:
        Source(copied, pins=pins).load(dataset, list(DATASETS[dataset].parts))
    message = str(raised.value)
    assert str(path.parent) in message and "\n" not in message and "restore" in message, message
    counted = (
        r"has \d+ rows, expected \d+; |has other rows: sha256 [0-9a-f]{12}…, expected [0-9a-f]{12}…"
    )
    assert re.search(rf"{counted}|:\d+: |has \d+ lines", message), message


@pytest.mark.parametrize(
    ("rows", "more", "problem"),
    [(12, 0, None), (10, 2, None), (14, 5, "12 rows, expected 14 to 19"), (9, 2, "9 to 11")],
)
def test_an_unmeasured_split_is_held_to_its_count(planted, rows, more, problem):
    """As SNLI's train part and the probing tasks: no checksum, and a few more rows where their
    authors say so.
    """
    source = Source(planted[0], pins={"bshift": {"train": RowsPin(rows=rows, more=more)}})
    with pytest.raises(InputError, match=problem) if problem else nullcontext():
        assert len(source.load("bshift", ["train"])["train"]) == 12


def test_the_published_pins_know_every_split():
    rows = load_pins()
    every = {name: set(dataset.parts) for name, dataset in DATASETS.items()}
    assert {name: set(splits) for name, splits in rows.items()} == every
    unmeasured = {
        (name, split)
        for name, splits in rows.items()
        for split, pin in splits.items()
        if pin.sha256 is None
    }
    probing = {
        name
        for name, dataset in DATASETS.items()
        if "probing" in next(iter(dataset.parts.values())).files[0]
    }
    of_probing = {(name, split) for name in probing for split in ("train", "validation", "test")}
    assert unmeasured == {("snli", "train")} | of_probing
    assert rows["snli"]["train"].rows == 549_367


def test_rows_have_one_hash_whatever_the_file_looks_like():
    plain = read("sst2", "test", "a fine film \t1\nno fun \t0\n")
    other = read("sst2", "test", "a  fine film\t1\r\nno fun\t0")
    assert plain.sha256 == other.sha256
    changed = (
        ("a fine film \t0\nno fun \t0\n"),
        ("no fun \t0\na fine film \t1\n"),
        ("a fine film \t1\n"),
    )
    assert len({plain.sha256, *(read("sst2", "test", content).sha256 for content in changed)}) == 4

"""Where data are read from, and what a missing, cut, grown or altered file says."""

import re
import shutil
from pathlib import Path

import pytest
from senteval_layout import write_coco, write_originals, write_senteval

from eval.tasks.files import Directory
from eval.tasks.measure import file_pin, rows_pin
from eval.tasks.registry import DATASETS
from eval.tasks.rows import FilePin, Pins, RowsPin, ScoredPairs, published
from eval.tasks.sources import Source
from hub.errors import InputError


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("planted")
    write_coco(write_senteval(root / "senteval", rows=6), {"train": 4, "valid": 3, "test": 3})
    return root / "senteval", write_originals(root / "originals", rows=6)


@pytest.fixture(scope="module")
def pins(planted) -> Pins:
    """The planted data's own pins, measured by the code that measured the published ones."""
    source, files, rows = Source(*planted, pins=Pins()), {"senteval": {}, "originals": {}}, {}
    places = dict(zip(("senteval", "originals"), (Directory(root, "DIR") for root in planted), strict=True))
    for name, dataset in DATASETS.items():
        rows[name] = {split: rows_pin(found) for split, found in source.load(name, list(dataset.parts)).items()}
        for part in dataset.parts.values():
            files[dataset.layout] |= {file: file_pin(places[dataset.layout].read(file)) for file in part.files}
    return Pins(**files, rows=rows)


@pytest.fixture
def copied(planted, tmp_path) -> Path:
    return Path(shutil.copytree(planted[0], tmp_path / "copy"))


def test_every_data_set_is_read_and_every_form_is_whole(planted, pins):
    source = Source(*planted, pins=pins)
    for name, dataset in DATASETS.items():
        for rows in source.load(name, list(dataset.parts)).values():
            assert len(rows) > 0 and len(rows.texts) % len(rows) == 0, name
            if name.startswith("sts") and name[3].isdigit():
                assert isinstance(rows, ScoredPairs) and rows.subsets[-1][2] == len(rows)


def test_the_downstream_folder_itself_is_accepted_and_so_is_its_content(planted, pins, tmp_path):
    whole = Source(planted[0], pins=pins)
    downstream = Source(planted[0] / "downstream", pins=pins)
    renamed = Source(Path(shutil.copytree(planted[0] / "downstream", tmp_path / "data")), pins=pins)
    for name, split in (("mr", "all"), ("sts12", "test"), ("snli", "train")):
        hashes = {source.load(name, [split])[split].sha256 for source in (whole, downstream, renamed)}
        assert len(hashes) == 1
    assert len(downstream.load("wc", ["test"])["test"])  # probing lies beside downstream


def test_nothing_is_read_before_it_is_asked_for(copied, pins):
    for name in ("train", "dev"):
        (copied / f"downstream/SNLI/s1.{name}").unlink()
    shutil.rmtree(copied / "probing")
    source = Source(copied, pins=pins)
    assert len(source.load("snli", ["test"])["test"]) == 18
    with pytest.raises(InputError, match=r"SNLI/s1\.train: no such data file; --senteval-data DIR needs the whole"):
        source.load("snli", ["train"])


def test_a_source_that_is_not_given_is_named():
    with pytest.raises(InputError, match=r"mr: no source of its data.*--senteval-data DIR.*--hub-data ORG/NAME@REV"):
        Source().load("mr", ["all"])
    with pytest.raises(InputError, match=r"sts12-original: no source of its data.*--sts-data DIR"):
        Source().load("sts12-original", ["test"])
    with pytest.raises(InputError, match=r"nowhere: no such directory; check --senteval-data DIR"):
        Source(Path("nowhere")).load("mr", ["all"])
    with pytest.raises(InputError, match=r"unknown name 'sst-2'.*did you mean 'sst2'"):
        Source().load("sst-2", ["test"])
    with pytest.raises(InputError, match="mr: has no split 'test'; allowed: all"):
        Source().load("mr", ["test"])


def test_what_ships_with_the_project_needs_no_option():
    rows = Source().load("stsb", ["validation", "test"])
    assert (len(rows["validation"]), len(rows["test"])) == (1500, 1379)
    assert Source().has("stsb", "test") and not Source().has("stsb", "train") and not Source().has("mr", "all")


ALTERED = {
    "a letter": lambda content: content.replace(b"word1", b"word!", 1),
    "a line cut": lambda content: content[: content.rindex(b"\n", 0, -1) + 1],
    "half of it cut": lambda content: content[: len(content) // 2],
    "one line more": lambda content: content + content.splitlines(keepends=True)[-1],
    "two lines exchanged": lambda content: b"".join([*reversed(content.splitlines(keepends=True))]),
    "empty": lambda content: b"",
}
FILES = {
    "mr": ("all", "downstream/MR/rt-polarity.neg"),
    "cr": ("all", "downstream/CR/custrev.pos"),
    "sst2": ("train", "downstream/SST/binary/sentiment-train"),
    "trec": ("train", "downstream/TREC/train_5500.label"),
    "mrpc": ("test", "downstream/MRPC/msr_paraphrase_test.txt"),
    "sick-e": ("test", "downstream/SICK/SICK_test_annotated.txt"),
    "snli": ("train", "downstream/SNLI/s2.train"),
    "sts15": ("test", "downstream/STS/STS15-en-test/STS.input.belief.txt"),
    "stsb-tokenised": ("validation", "downstream/STS/STSBenchmark/sts-dev.csv"),
    "tense": ("train", "probing/past_present.txt"),
}


@pytest.mark.parametrize("change", ALTERED)
@pytest.mark.parametrize("dataset", FILES)
def test_an_altered_file_is_one_error_that_names_it(copied, pins, dataset, change):
    split, name = FILES[dataset]
    path = copied / name
    before, found = path.read_bytes(), ALTERED[change](path.read_bytes())
    path.write_bytes(found)
    with pytest.raises(InputError) as raised:
        Source(copied, pins=pins).load(dataset, [split])
    message = str(raised.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and "restore" in message, message
    lines = [len(content.split(b"\n")) - content.endswith(b"\n") if content else 0 for content in (found, before)]
    if lines[0] != lines[1]:
        assert re.search(rf"has {lines[0]} lines, expected {lines[1]}\b", message), message
    else:
        assert re.search(r"altered: \d+ lines as expected, but sha256 [0-9a-f]{12}…, expected [0-9a-f]{12}…", message)


def test_a_file_with_the_same_rows_in_other_bytes_is_as_good(copied, pins, planted):
    path = copied / "downstream/SST/binary/sentiment-test"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (rows,) = Source(copied, pins=pins).load("sst2", ["test"]).values()
    assert rows.sha256 == Source(planted[0], pins=pins).load("sst2", ["test"])["test"].sha256


def test_an_unmeasured_file_is_held_to_its_count(copied):
    """As SNLI's train part and the probing tasks: no checksum, and a few more rows where their authors say so."""
    path, lines = copied / "probing/bigram_shift.txt", 36
    assert len(path.read_text().splitlines()) == lines
    for rows, more, problem in ((12, 0, None), (10, 2, None), (14, 5, "12 rows, expected 14 to 19"), (9, 2, "9 to 11")):
        pins = Pins(rows={"bshift": {"train": RowsPin(rows=rows, more=more)}})
        source = Source(copied, pins=pins)
        if problem is None:
            assert len(source.load("bshift", ["train"])["train"]) == 12
        else:
            with pytest.raises(InputError, match=problem):
                source.load("bshift", ["train"])
    pins = Pins(senteval={"probing/bigram_shift.txt": FilePin(lines=40)})
    with pytest.raises(InputError, match=r"bigram_shift.txt: has 36 lines, expected 40"):
        Source(copied, pins=pins).load("bshift", ["test"])


def test_the_published_pins_know_every_split():
    rows = published().rows
    assert {name: set(splits) for name, splits in rows.items()} == {
        name: set(dataset.parts) for name, dataset in DATASETS.items()
    }
    unmeasured = {(name, split) for name, splits in rows.items() for split, pin in splits.items() if pin.sha256 is None}
    probing = {name for name, dataset in DATASETS.items() if "probing" in next(iter(dataset.parts.values())).files[0]}
    assert unmeasured == {("snli", "train")} | {
        (name, split) for name in (*probing, "coco") for split in ("train", "validation", "test")
    }
    assert rows["snli"]["train"].rows == 549_367 and rows["coco"]["test"].rows == 25_000


def test_planted_data_do_not_pass_for_published_ones(planted):
    with pytest.raises(InputError, match=r"custrev.pos: has 6 lines, expected 2407"):
        Source(planted[0]).load("cr", ["all"])

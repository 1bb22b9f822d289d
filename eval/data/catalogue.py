"""Every data set: which files of which layout its splits are read from, and by which reader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from eval.data import senteval as toolkit
from eval.data.coco import coco
from eval.data.files import DataFile
from eval.data.forms import Rows
from eval.data.rows import tokens
from eval.data.scored import TextForm, as_it_is, benchmark, sick, sts_year
from hub.errors import InputError, nearest

Layout = Literal["senteval", "originals"]
Reader = Callable[[Sequence[DataFile]], Rows]

SUBSETS = {  # in the toolkit's order, which is the order of rows
    "12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "13": ("FNWN", "headlines", "OnWN"),  # without SMT, which was never freely distributed
    "14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
PROBING = {
    "sentlen": "sentence_length",
    "wc": "word_content",
    "treedepth": "tree_depth",
    "topconst": "top_constituents",
    "bshift": "bigram_shift",
    "tense": "past_present",
    "subjnum": "subj_number",
    "objnum": "obj_number",
    "somo": "odd_man_out",
    "coordinv": "coordination_inversion",
}
SICK_FILES = {"train": "SICK_train.txt", "validation": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
STSB_FILES = {"train": "sts-train.csv", "validation": "sts-dev.csv", "test": "sts-test.csv"}


@dataclass(frozen=True)
class Part:
    """A split: the files it is read from, in the reader's order."""

    files: tuple[str, ...]
    reader: Reader


@dataclass(frozen=True)
class DataSet:
    """A data set's layout and splits."""

    name: str
    layout: Layout
    parts: Mapping[str, Part]

    def part(self, split: str) -> Part:
        """The split's files and reader. Raises InputError when there is no such split."""
        if split not in self.parts:
            raise InputError(self.name, f"has no split {split!r}", allowed=", ".join(self.parts))
        return self.parts[split]


def find_dataset(name: str) -> DataSet:
    """The data set called ``name``. Raises InputError with the nearest known name."""
    if name in DATASETS:
        return DATASETS[name]
    guess = nearest(name, DATASETS)
    hint = f"did you mean {guess!r}?" if guess else None
    raise InputError("data set", f"unknown name {name!r}", allowed=", ".join(DATASETS), hint=hint)


def _folder(name: str, layout: Layout, folder: str, files: Mapping[str, Sequence[str]], reader: Reader) -> DataSet:
    """A data set whose splits are read by the same reader from files of one folder."""
    parts = {split: Part(tuple(f"{folder}/{file}" for file in names), reader) for split, names in files.items()}
    return DataSet(name, layout, parts)


def _year(year: str, layout: Layout) -> DataSet:
    senteval = layout == "senteval"
    folder = f"downstream/STS/STS{year}-en-test" if senteval else f"STS{year}"
    prefix = "STS2016" if year == "16" and not senteval else "STS"
    subsets = SUBSETS[year]
    names = [f"{prefix}.{kind}.{subset}.txt" for subset in subsets for kind in ("input", "gs")]
    reader = partial(sts_year, subsets=subsets, form=tokens if senteval else as_it_is)
    return _folder(f"sts{year}{'' if senteval else '-original'}", layout, folder, {"test": names}, reader)


def _pairs(name: str, layout: Layout, folder: str, files: Mapping[str, str], read: Callable[..., Rows]) -> DataSet:
    form: TextForm = tokens if layout == "senteval" else as_it_is
    return _folder(name, layout, folder, {split: (file,) for split, file in files.items()}, partial(read, form=form))


def _probing(name: str, file: str) -> DataSet:
    path = f"probing/{file}.txt"
    parts = {split: Part((path,), partial(toolkit.probing, split=split)) for split in toolkit.PARTS}
    return DataSet(name, "senteval", parts)


def _transfer(name: str, folder: str, files: Mapping[str, Sequence[str]], reader: Reader) -> DataSet:
    return _folder(name, "senteval", f"downstream/{folder}", files, reader)


def _three(pattern: str, validation: str = "dev") -> dict[str, tuple[str, ...]]:
    """train, validation and test of a file name's pattern."""
    return {
        split: (pattern.format(part),) for split, part in zip(toolkit.PARTS, ("train", validation, "test"), strict=True)
    }


_SNLI = {
    split: tuple(f"{kind}.{part}" for kind in ("labels", "s1", "s2"))
    for split, part in (("train", "train"), ("validation", "dev"), ("test", "test"))
}
_ALL: tuple[DataSet, ...] = (
    _transfer("mr", "MR", {"all": ("rt-polarity.pos", "rt-polarity.neg")}, toolkit.two_classes),
    _transfer("cr", "CR", {"all": ("custrev.pos", "custrev.neg")}, toolkit.two_classes),
    _transfer("subj", "SUBJ", {"all": ("subj.objective", "subj.subjective")}, toolkit.two_classes),
    _transfer("mpqa", "MPQA", {"all": ("mpqa.pos", "mpqa.neg")}, toolkit.two_classes),
    _transfer("sst2", "SST/binary", _three("sentiment-{}"), toolkit.sst_binary),
    _transfer("sst5", "SST/fine", _three("sentiment-{}"), toolkit.sst_fine),
    _transfer("trec", "TREC", {"train": ("train_5500.label",), "test": ("TREC_10.label",)}, toolkit.trec),
    _transfer("mrpc", "MRPC", {split: (f"msr_paraphrase_{split}.txt",) for split in ("train", "test")}, toolkit.mrpc),
    _transfer("sick-e", "SICK", {split: (file,) for split, file in SICK_FILES.items()}, toolkit.sick_entailment),
    _transfer("snli", "SNLI", _SNLI, toolkit.snli),
    *(_probing(name, file) for name, file in PROBING.items()),
    _transfer("coco", "COCO", _three("{}.pkl", validation="valid"), coco),
    *(_year(year, "senteval") for year in SUBSETS),
    _pairs("stsb-tokenised", "senteval", "downstream/STS/STSBenchmark", STSB_FILES, benchmark),
    _pairs("sick-r-tokenised", "senteval", "downstream/SICK", SICK_FILES, sick),
    *(_year(year, "originals") for year in SUBSETS),
    _pairs("stsb", "originals", "STSBenchmark", STSB_FILES, benchmark),
    _pairs("sick-r", "originals", "SICK", SICK_FILES, sick),
    _folder("sick-r-full", "originals", "SICK", {"test": tuple(SICK_FILES.values())}, partial(sick, form=as_it_is)),
)
DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _ALL}

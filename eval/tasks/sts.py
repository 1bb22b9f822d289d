"""Semantic textual similarity, declared: files and tasks of STS12-16, STS Benchmark and SICK.

``sts12`` … ``sts16`` and ``…-tokenised`` have SentEval's text form (Moses tokens; STS in lower
case). ``…-original``, ``stsb`` and ``sick-r`` have the organisers' text form.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from sts_dino.eval.tasks.rows import Rows, read_sts_year, read_table
from sts_dino.eval.tasks.task import (
    HELD_OUT,
    LAYOUTS,
    Aggregation,
    DataSet,
    Layout,
    Task,
    make_parts,
)

YEARS = {
    "sts12": "SemEval 2012 task 6, 5 subsets",
    "sts13": "*SEM 2013 shared task without SMT, 3 subsets",
    "sts14": "SemEval 2014 task 10, 6 subsets",
    "sts15": "SemEval 2015 task 2, 5 subsets",
    "sts16": "SemEval 2016 task 1, 5 subsets",
}
SUBSETS = {  # in the toolkit's order, which is the order of rows
    "sts12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "sts13": ("FNWN", "headlines", "OnWN"),  # without SMT, which was never freely distributed
    "sts14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "sts15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "sts16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
SICK_FILES = {
    "train": ("SICK_train.txt",),
    "validation": ("SICK_trial.txt",),
    "test": ("SICK_test_annotated.txt",),
}
STSB_FILES = {
    "train": ("sts-train.csv",),
    "validation": ("sts-dev.csv",),
    "test": ("sts-test.csv",),
}
BOTH = ("validation", "test")
ALL_OF_SICK = {"test": sum(SICK_FILES.values(), ())}


def _declare_years(layout: Layout, suffix: str = "") -> list[DataSet]:
    """Declare the datasets of STS12 to STS16 in one layout; their names end in ``suffix``."""
    datasets = []
    layout_files = LAYOUTS[layout]
    for dataset, subsets in SUBSETS.items():
        prefix = layout_files.prefix_of_2016 if dataset == "sts16" else "STS"
        files: list[str] = []
        for subset in subsets:
            files += [f"{prefix}.input.{subset}.txt", f"{prefix}.gs.{subset}.txt"]
        reader = partial(read_sts_year, subsets=subsets, form=layout_files.form)
        year = dataset.removeprefix("sts")
        folder = layout_files.year.format(year)
        parts = make_parts(folder, {"test": files}, reader)
        datasets.append(DataSet(f"{dataset}{suffix}", layout, parts, dataset))
    return datasets


def _declare_pairs(
    name: str,
    layout: Layout,
    folder: str,
    files: Mapping[str, Sequence[str]],
    read: Callable[..., Rows],
    **options: Any,
) -> DataSet:
    """Declare a dataset of pairs.

    Args:
        name: the dataset's name.
        layout: the layout, which decides the text form.
        folder: the folder of the files in the layout.
        files: split → file names.
        read: reader of the files, which takes the text form as ``form``.
        options: other fields of ``DataSet``.
    """
    reader = partial(read, form=LAYOUTS[layout].form)
    return DataSet(name, layout, make_parts(folder, files, reader), **options)


# Columns: genre, file, year, id, score, two texts, sources
_BENCHMARK = partial(read_table, columns=7, texts=(5, 6), target=4)
# Columns: id, two texts, score, class
_SICK = partial(read_table, columns=5, texts=(1, 2), target=3, span=(1, 5), header=True)
SENTEVAL_DATA = (
    *_declare_years("senteval"),
    _declare_pairs(
        "stsb-tokenised",
        "senteval",
        "downstream/STS/STSBenchmark",
        STSB_FILES,
        _BENCHMARK,
        sentences="stsb",
    ),
    _declare_pairs(
        "sick-r-tokenised", "senteval", "downstream/SICK", SICK_FILES, _SICK, sentences="sick"
    ),
)
ORIGINALS = (
    *_declare_years("originals", "-original"),
    _declare_pairs(
        "stsb", "originals", "STSBenchmark", STSB_FILES, _BENCHMARK, sentences="stsb", shipped=BOTH
    ),
    _declare_pairs("sick-r", "originals", "SICK", SICK_FILES, _SICK, sentences="sick"),
    _declare_pairs("sick-r-full", "originals", "SICK", ALL_OF_SICK, _SICK),  # the rows of sick-r
)

AGGREGATIONS: dict[Aggregation, str] = {
    "all": "one correlation over the pairs of all subsets together",
    "mean": "one correlation per subset, unweighted mean",
    "wmean": "one correlation per subset, mean weighted by the number of pairs",
}
COSINE = (
    "Spearman correlation x 100 between the cosine of two sentence embeddings "
    "and the mean human score"
)
ORIGINAL = "sentences as the organisers distribute them"
TOKENISED = "SentEval's text form (Moses tokens, STS in lower case)"
NO_MODEL = "over all pairs of the split; no model is fitted on top"
STSB = "STS benchmark (SemEval 2017 task 1)"
SICK = "SICK relatedness (SemEval 2014 task 1)"


def _declare_year(suffix: str, name: str, aggregation: Aggregation) -> Task:
    """Declare the task ``NAMESUFFIX/AGGREGATION`` of a year of STS.

    ``suffix``: "" for SentEval's text form, "-original" for the organisers'. ``name``: a key of
    ``YEARS``.
    """
    form = ORIGINAL if suffix else TOKENISED
    return Task(
        name=f"{name}{suffix}/{aggregation}",
        dataset=f"{name}{suffix}",
        group=f"sts{suffix}",
        family="sts",
        protocol=f"{name.upper()} ({YEARS[name]}), {form}: {COSINE}; {AGGREGATIONS[aggregation]}; "
        "no model is fitted on top",
        metric="spearman",
        aggregation=aggregation,
    )


def _declare_cosine(
    dataset: str, group: str, protocol: str, splits: tuple[str, ...] = ("test",)
) -> Task:
    """Declare the task ``DATASET/cosine``: Spearman's correlation of cosines and human scores."""
    return Task(f"{dataset}/cosine", dataset, group, "sts", protocol, "spearman", splits=splits)


def _declare_regression(name: str, words: str) -> Task:
    """Declare the task of SentEval's regression head on a dataset of human scores.

    ``name``: the dataset without "-tokenised"; ``words``: the dataset in the protocol.
    """
    return Task(
        name=f"{name}/regression",
        dataset=f"{name}-tokenised",
        group="transfer",
        family="relatedness",
        protocol=f"SentEval {words}, SentEval's text form: Spearman correlation x 100 between the "
        "mean human score and that of SentEval's trained head (softmax over the whole scores on "
        "|u-v| and u*v, stopped on validation)",
        metric="spearman",
        fitted_on=("train", "validation"),
        design=HELD_OUT,
        mode="senteval",
    )


_STSB_WORDS = (
    f"{STSB}: correlation x 100 between the cosine of two sentence embeddings and the mean human "
    f"score, {NO_MODEL}"
)
_ALL_OF_SICK_WORDS = (
    f"{SICK}, {ORIGINAL}: {COSINE}, over all 9,927 pairs (train, trial and test together, as "
    "MTEB); no model is fitted on top"
)
TASKS = (
    *(
        _declare_year(suffix, year, aggregation)
        for suffix, year, aggregation in product(("", "-original"), YEARS, AGGREGATIONS)
    ),
    _declare_cosine("stsb", "sts", _STSB_WORDS, BOTH),
    _declare_cosine("stsb-tokenised", "sts", f"{STSB}, {TOKENISED}: {COSINE}, {NO_MODEL}", BOTH),
    _declare_cosine("sick-r-tokenised", "sts", f"{SICK}, Moses tokens: {COSINE}, {NO_MODEL}"),
    _declare_cosine("sick-r", "sts-original", f"{SICK}, {ORIGINAL}: {COSINE}, {NO_MODEL}"),
    _declare_cosine("sick-r-full", "sts-original", _ALL_OF_SICK_WORDS),
)
REGRESSIONS = (
    _declare_regression("stsb", "STS benchmark"),
    _declare_regression("sick-r", "SICK relatedness"),
)

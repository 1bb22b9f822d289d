"""Semantic textual similarity, declared: STS12-16, the STS Benchmark and SICK relatedness, their files and tasks.

``sts12`` … ``sts16`` and ``…-tokenised`` have SentEval's text form (Moses tokens; STS in lower case), ``…-original``,
``stsb`` and ``sick-r`` the organisers'.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from eval.tasks.readers import sts_year, table
from eval.tasks.rows import Rows
from eval.tasks.task import HELD_OUT, LAYOUTS, Aggregation, DataSet, Layout, Task, parts

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
SICK_FILES = {"train": ("SICK_train.txt",), "validation": ("SICK_trial.txt",), "test": ("SICK_test_annotated.txt",)}
STSB_FILES = {"train": ("sts-train.csv",), "validation": ("sts-dev.csv",), "test": ("sts-test.csv",)}
BOTH = ("validation", "test")
ALL_OF_SICK = {"test": tuple(file for files in SICK_FILES.values() for file in files)}


def _years(layout: Layout, suffix: str = "") -> list[DataSet]:
    found, files = [], LAYOUTS[layout]
    for name, subsets in SUBSETS.items():
        prefixes = {"sts16": files.prefix_of_2016}
        names = [f"{prefixes.get(name, 'STS')}.{kind}.{part}.txt" for part in subsets for kind in ("input", "gs")]
        reader = partial(sts_year, subsets=subsets, form=files.form)
        split = parts(files.year.format(name.removeprefix("sts")), {"test": names}, reader)
        found.append(DataSet(f"{name}{suffix}", layout, split, name))
    return found


def _pairs(
    name: str, layout: Layout, folder: str, files: Mapping[str, Sequence[str]], read: Callable[..., Rows], **more: Any
) -> DataSet:
    return DataSet(name, layout, parts(folder, files, partial(read, form=LAYOUTS[layout].form)), **more)


_BENCHMARK = partial(table, columns=7, texts=(5, 6), target=4)  # genre, file, year, id, score, two texts, sources
_SICK = partial(table, columns=5, texts=(1, 2), target=3, span=(1, 5), header=True)  # id, two texts, score, class
SENTEVAL_DATA = (
    *_years("senteval"),
    _pairs("stsb-tokenised", "senteval", "downstream/STS/STSBenchmark", STSB_FILES, _BENCHMARK, sentences="stsb"),
    _pairs("sick-r-tokenised", "senteval", "downstream/SICK", SICK_FILES, _SICK, sentences="sick"),
)
ORIGINALS = (
    *_years("originals", "-original"),
    _pairs("stsb", "originals", "STSBenchmark", STSB_FILES, _BENCHMARK, sentences="stsb", shipped=BOTH),
    _pairs("sick-r", "originals", "SICK", SICK_FILES, _SICK, sentences="sick"),
    _pairs("sick-r-full", "originals", "SICK", ALL_OF_SICK, _SICK),  # the rows of sick-r
)

AGGREGATIONS: dict[Aggregation, str] = {
    "all": "one correlation over the pairs of all subsets together",
    "mean": "one correlation per subset, unweighted mean",
    "wmean": "one correlation per subset, mean weighted by the number of pairs",
}
COSINE = "Spearman correlation x 100 between the cosine of two sentence embeddings and the mean human score"
ORIGINAL = "sentences as the organisers distribute them"
TOKENISED = "SentEval's text form (Moses tokens, STS in lower case)"
NO_MODEL = "over all pairs of the split; no model is fitted on top"
STSB, SICK = "STS benchmark (SemEval 2017 task 1)", "SICK relatedness (SemEval 2014 task 1)"


def _year(name: str, suffix: str, aggregation: Aggregation) -> Task:
    how = f"{ORIGINAL if suffix else TOKENISED}: {COSINE}; {AGGREGATIONS[aggregation]}; no model is fitted on top"
    protocol, dataset = f"{name.upper()} ({YEARS[name]}), {how}", f"{name}{suffix}"
    return Task(f"{dataset}/{aggregation}", dataset, f"sts{suffix}", "sts", protocol, "spearman", aggregation)


def _cosine(dataset: str, group: str, protocol: str, splits: tuple[str, ...] = ("test",)) -> Task:
    return Task(f"{dataset}/cosine", dataset, group, "sts", protocol, "spearman", splits=splits)


def _regression(name: str, words: str) -> Task:
    return Task(
        name=f"{name}/regression",
        dataset=f"{name}-tokenised",
        group="transfer",
        family="relatedness",
        protocol=f"SentEval {words}, SentEval's text form: Spearman correlation x 100 between the mean human score and "
        "that of SentEval's trained head (softmax over the whole scores on |u-v| and u*v, stopped on validation)",
        metric="spearman",
        fitted_on=("train", "validation"),
        design=HELD_OUT,
        mode="senteval",
    )


_STSB_WORDS = (
    f"{STSB}: correlation x 100 between the cosine of two sentence embeddings and the mean human score, {NO_MODEL}"
)
_ALL_OF_SICK_WORDS = (
    f"{SICK}, {ORIGINAL}: {COSINE}, over all 9,927 pairs (train, trial and test together, as MTEB); no model is fitted "
    "on top"
)
TASKS = (
    *(_year(name, suffix, how) for suffix in ("", "-original") for name in YEARS for how in AGGREGATIONS),
    _cosine("stsb", "sts", _STSB_WORDS, BOTH),
    _cosine("stsb-tokenised", "sts", f"{STSB}, {TOKENISED}: {COSINE}, {NO_MODEL}", BOTH),
    _cosine("sick-r-tokenised", "sts", f"{SICK}, Moses tokens: {COSINE}, {NO_MODEL}"),
    _cosine("sick-r", "sts-original", f"{SICK}, {ORIGINAL}: {COSINE}, {NO_MODEL}"),
    _cosine("sick-r-full", "sts-original", _ALL_OF_SICK_WORDS),
)
REGRESSIONS = (_regression("stsb", "STS benchmark"), _regression("sick-r", "SICK relatedness"))

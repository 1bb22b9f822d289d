"""The built-in evaluation tasks, each declared once: files, reader, protocol; groups and averages.

A task's name is ``<dataset>/<protocol>``; the name of a group stands for its tasks.

Semantic textual similarity: STS12-16, STS Benchmark and SICK. ``sts12`` … ``sts16`` and
``…-tokenised`` have SentEval's text form (Moses tokens; STS in lower case). ``…-original``,
``stsb`` and ``sick-r`` have the organisers' text form.

SentEval's classification and probing: a new task is one ``Classification`` in ``TRANSFER`` or
``PROBING``. Its tasks (``NAME/senteval``, ``NAME/lbfgs``, and both as ``-validation``), its place
in the groups, on cards and among the data of a decontamination follow from it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

from sts_dino.eval.tasks import rows
from sts_dino.eval.tasks.task import (
    CROSS_VALIDATED,
    HELD_OUT,
    KFOLD,
    LAYOUTS,
    Aggregation,
    DataSet,
    Design,
    Layout,
    Mode,
    Part,
    Reader,
    Task,
    make_parts,
)
from sts_dino.hub.contract.results import Average, TaskScore
from sts_dino.hub.errors import InputError, suggest_choice

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


def _declare_years(layout: Layout, suffix: str = "") -> list[DataSet]:
    """Declare the datasets of STS12 to STS16 in one layout; their names end in ``suffix``.

    The files of each are the input and the gold file of its first subset, then of the next.
    """
    datasets = []
    layout_files = LAYOUTS[layout]
    for dataset, subsets in SUBSETS.items():
        prefix = layout_files.prefix_of_2016 if dataset == "sts16" else "STS"
        files: list[str] = []
        for subset in subsets:
            files += [f"{prefix}.input.{subset}.txt", f"{prefix}.gs.{subset}.txt"]
        reader = partial(rows.read_sts_year, subsets=subsets, form=layout_files.form)
        year = dataset.removeprefix("sts")
        folder = layout_files.year.format(year)
        parts = make_parts(folder, {"test": files}, reader)
        datasets.append(DataSet(f"{dataset}{suffix}", layout, parts, sentences=dataset))
    return datasets


def _declare_pairs(
    name: str,
    layout: Layout,
    folder: str,
    files: Mapping[str, Sequence[str]],
    read: Callable[..., rows.Rows],
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
_BENCHMARK = partial(rows.read_table, columns=7, texts=(5, 6), target=4)
# Columns: id, two texts, score, class
_SICK = partial(rows.read_table, columns=5, texts=(1, 2), target=3, span=(1, 5), header=True)
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
    # The rows of sick-r
    _declare_pairs(
        "sick-r-full", "originals", "SICK", {"test": sum(SICK_FILES.values(), ())}, _SICK
    ),
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
    """Declare the task of a year of STS under one aggregation, e.g. ``sts12-original/mean``.

    ``suffix``: "" for SentEval's text form, "-original" for the organisers'. ``name``: a key of
    ``YEARS``, e.g. ``sts12``.
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
    """Declare the task ``DATASET/cosine``: Spearman's correlation of cosines and human scores.

    ``protocol``: the measurement in words. ``splits``: the splits that can be scored.
    """
    return Task(f"{dataset}/cosine", dataset, group, "sts", protocol, "spearman", splits=splits)


def _declare_regression(name: str, title: str) -> Task:
    """Declare the task ``NAME/regression``: SentEval's trained head on a dataset of human scores.

    ``name``: the dataset's name without "-tokenised"; ``title``: its name in the protocol.
    """
    return Task(
        name=f"{name}/regression",
        dataset=f"{name}-tokenised",
        group="transfer",
        family="relatedness",
        protocol=f"SentEval {title}, SentEval's text form: Spearman correlation x 100 between the "
        "mean human score and the score that SentEval's trained head predicts (softmax over the "
        "integer scores 1 to 5, from |u-v| and u*v; early stopping on validation)",
        metric="spearman",
        fitted_on=("train", "validation"),
        design=HELD_OUT,
        mode="senteval",
    )


STS_TASKS = (
    *(
        _declare_year(suffix, year, aggregation)
        for suffix, year, aggregation in product(("", "-original"), YEARS, AGGREGATIONS)
    ),
    _declare_cosine(
        "stsb",
        "sts",
        f"{STSB}: correlation x 100 between the cosine of two sentence embeddings and the mean "
        f"human score, {NO_MODEL}",
        BOTH,
    ),
    _declare_cosine("stsb-tokenised", "sts", f"{STSB}, {TOKENISED}: {COSINE}, {NO_MODEL}", BOTH),
    _declare_cosine("sick-r-tokenised", "sts", f"{SICK}, Moses tokens: {COSINE}, {NO_MODEL}"),
    _declare_cosine("sick-r", "sts-original", f"{SICK}, {ORIGINAL}: {COSINE}, {NO_MODEL}"),
    _declare_cosine(
        "sick-r-full",
        "sts-original",
        f"{SICK}, {ORIGINAL}: {COSINE}, over all 9,927 pairs (train, trial and test together, as "
        "MTEB); no model is fitted on top",
    ),
)
REGRESSIONS = (
    _declare_regression("stsb", "STS benchmark"),
    _declare_regression("sick-r", "SICK relatedness"),
)

MODES: dict[Mode, str] = {
    "senteval": "SentEval's own optimiser, initialisation and early stopping",
    "lbfgs": "the convex optimum by L-BFGS",
}
VALIDATION = "-validation"  # suffix of the name of a task that is scored without test rows
SNLI_TRAINING: dict[Mode, str] = {  # no regularisation is chosen for SNLI
    "senteval": "weight decay 1e-9, the best of up to 16 passes on validation, scored on test",
    "lbfgs": "weight decay 1e-9, scored on test",
}


@dataclass(frozen=True)
class Classification:
    """A labelled dataset of SentEval, and the logistic regression that is scored on it.

    ``words``: the dataset in words, for protocols. ``parts``: split → files. They decide the
    probe's design: a split ``all`` is cut into folds, and train and test without validation are
    cross-validated. ``has_pairs``: whether a row has two sentences. ``as_snli``, ``with_f1``: as in
    ``Task``. ``has_shared_sentences``: whether another dataset has the same sentences, so that a
    decontamination skips this dataset.
    """

    name: str
    words: str
    parts: Mapping[str, Part]
    family: Literal["transfer", "probing"] = "transfer"
    has_pairs: bool = False
    as_snli: bool = False
    with_f1: bool = False
    has_shared_sentences: bool = False

    @property
    def dataset(self) -> DataSet:
        """The dataset of the rows; a decontamination reads no probing data by default."""
        is_skipped = self.has_shared_sentences or self.family == "probing"
        sentences = None if is_skipped else self.name
        return DataSet(self.name, "senteval", self.parts, sentences)

    @property
    def design(self) -> Design:
        """The design of the probe, which follows from the splits."""
        if "all" in self.parts:
            return KFOLD
        if "validation" in self.parts:
            return HELD_OUT
        return CROSS_VALIDATED

    def make_validation_task(self, mode: Mode) -> Task:
        """Make ``NAME/MODE-validation``, whose score reads no test row.

        The score is the accuracy by which ``make_task`` chooses the regularisation. For SNLI, where
        nothing is chosen, it is the accuracy on validation.
        """
        task = self.make_task(mode)
        design = self.design.validation
        assert design is not None, "the design of a test score has a validation design"
        fitted_on = [split for split in design.rows if split != design.scored]
        # The protocol of ``make_task`` ends with the words of its design, after the last "; "
        protocol_without_design = task.protocol.rpartition("; ")[0]
        return replace(
            task,
            name=task.name + VALIDATION,
            group=task.group + VALIDATION,
            protocol=f"{protocol_without_design}; {design.words}",
            splits=(design.scored,),
            fitted_on=tuple(dict.fromkeys(fitted_on)),
            design=design,
            with_f1=False,
        )

    def make_task(self, mode: Mode) -> Task:
        """Make ``NAME/MODE``: the probe's accuracy on test rows, or over folds of all rows.

        ``mode``: the optimiser of the probe.
        """
        chosen_by = self.design.words
        features = "|u-v| and u*v" if self.has_pairs else "the embedding"
        if self.as_snli:
            chosen_by = SNLI_TRAINING[mode]
            features = "u, v, u*v and |u-v|"
        return Task(
            name=f"{self.name}/{mode}",
            dataset=self.name,
            group=self.family if mode == "senteval" else f"{self.family}-{mode}",
            family=self.family,
            protocol=f"SentEval {self.words}: accuracy x 100 of a logistic regression on "
            f"{features}, {MODES[mode]}; {chosen_by}",
            metric="accuracy",
            unit="pairs" if self.has_pairs else "sentences",
            splits=(self.design.scored,),
            fitted_on=tuple(split for split in self.parts if split not in ("all", "test")),
            design=self.design,
            mode=mode,
            as_snli=self.as_snli,
            with_f1=self.with_f1,
        )


def _declare_transfer(
    name: str,
    words: str,
    folder: str,
    files: Mapping[str, Sequence[str]],
    reader: Reader,
    **options: Any,
) -> Classification:
    """Declare a classification; each split has its own files, read by ``reader``.

    ``files``: split → file names in ``downstream/FOLDER``. ``options``: other fields of
    ``Classification``.
    """
    parts = make_parts(f"downstream/{folder}", files, reader)
    return Classification(name, words, parts, **options)


def _declare_two_classes(name: str, words: str, folder: str, *files: str) -> Classification:
    """Declare a classification with the one split ``all``; ``files``: of class 1, of class 0."""
    return _declare_transfer(name, words, folder, {"all": files}, rows.read_two_classes)


def _declare_probing(name: str, words: str, file: str) -> Classification:
    """Declare a probing task; the file ``probing/FILE.txt`` has all its splits."""
    parts = {
        split: Part((f"probing/{file}.txt",), partial(rows.read_probing, split=split))
        for split in rows.PART_CODES
    }
    return Classification(name, words, parts, "probing")


_SST_FILES = {
    "train": ("sentiment-train",),
    "validation": ("sentiment-dev",),
    "test": ("sentiment-test",),
}
_PAIR_TABLE = partial(rows.read_table, columns=5, header=True)
TRANSFER = (
    _declare_two_classes("mr", "MR, movie reviews", "MR", "rt-polarity.pos", "rt-polarity.neg"),
    _declare_two_classes("cr", "CR, customer reviews", "CR", "custrev.pos", "custrev.neg"),
    _declare_two_classes("subj", "SUBJ, subjectivity", "SUBJ", "subj.objective", "subj.subjective"),
    _declare_two_classes("mpqa", "MPQA, opinion polarity", "MPQA", "mpqa.pos", "mpqa.neg"),
    _declare_transfer(
        "sst2",
        "SST2, binary sentiment",
        "SST/binary",
        _SST_FILES,
        partial(rows.read_table, columns=2, texts=(0,), target=1, classes=rows.BINARY),
    ),
    _declare_transfer(
        "sst5",
        "SST5, fine sentiment",
        "SST/fine",
        _SST_FILES,
        partial(rows.read_label_first, classes=rows.FINE),
    ),
    _declare_transfer(
        "trec",
        "TREC, question types",
        "TREC",
        {"train": ("train_5500.label",), "test": ("TREC_10.label",)},
        partial(rows.read_label_first, classes=rows.TREC, encoding="latin-1"),
    ),
    _declare_transfer(
        "mrpc",
        "MRPC, paraphrases",
        "MRPC",
        {"train": ("msr_paraphrase_train.txt",), "test": ("msr_paraphrase_test.txt",)},
        partial(_PAIR_TABLE, texts=(3, 4), target=0, classes=rows.BINARY),
        has_pairs=True,
        with_f1=True,
    ),
    _declare_transfer(
        "sick-e",
        "SICK-E, entailment",
        "SICK",
        SICK_FILES,
        partial(_PAIR_TABLE, texts=(1, 2), target=4, classes=rows.SICK),
        has_pairs=True,
        has_shared_sentences=True,
    ),
    _declare_transfer(
        "snli",
        "SNLI, entailment",
        "SNLI",
        {
            "train": ("labels.train", "s1.train", "s2.train"),
            "validation": ("labels.dev", "s1.dev", "s2.dev"),
            "test": ("labels.test", "s1.test", "s2.test"),
        },
        rows.read_snli,
        has_pairs=True,
        as_snli=True,
    ),
)
PROBING = (
    _declare_probing("sentlen", "SentLen, length in 6 bins", "sentence_length"),
    _declare_probing("wc", "WC, which of 1,000 words occurs", "word_content"),
    _declare_probing("treedepth", "TreeDepth, depth of the syntax tree", "tree_depth"),
    _declare_probing(
        "topconst", "TopConst, constituents below the sentence node", "top_constituents"
    ),
    _declare_probing("bshift", "BShift, two words inverted or not", "bigram_shift"),
    _declare_probing("tense", "Tense of the main verb", "past_present"),
    _declare_probing("subjnum", "SubjNum, number of the subject", "subj_number"),
    _declare_probing("objnum", "ObjNum, number of the object", "obj_number"),
    _declare_probing("somo", "SOMO, a word replaced or not", "odd_man_out"),
    _declare_probing("coordinv", "CoordInv, clauses inverted or not", "coordination_inversion"),
)

MTEB = "mteb/"
_CLASSIFICATIONS = (*TRANSFER, *PROBING)
_PAPERS = ("sts", "sts-original", "transfer", "probing")


_DECLARED = (
    *STS_TASKS,
    *(classification.make_task(mode) for mode, classification in product(MODES, TRANSFER)),
    *REGRESSIONS,
    *(classification.make_task(mode) for mode, classification in product(MODES, PROBING)),
    *(
        classification.make_validation_task(mode)
        for mode, classification in product(MODES, _CLASSIFICATIONS)
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _DECLARED}
DATASETS: dict[str, DataSet] = {
    **{classification.name: classification.dataset for classification in _CLASSIFICATIONS},
    **{dataset.name: dataset for dataset in (*SENTEVAL_DATA, *ORIGINALS)},
}


def _group_tasks() -> dict[str, tuple[Task, ...]]:
    """Map each group to its tasks, in declared order.

    The group ``papers`` has the tasks of the papers' tables.
    """
    groups: dict[str, list[Task]] = {}
    for task in _DECLARED:
        groups.setdefault(task.group, []).append(task)

    # The papers score STS12-16 in SentEval's text form only
    groups["papers"] = [
        task for task in _DECLARED if task.group in _PAPERS and "-original/" not in task.name
    ]
    return {name: tuple(tasks) for name, tasks in groups.items()}


GROUPS = _group_tasks()


def find_dataset(name: str) -> DataSet:
    """Return the dataset of a name.

    Raises InputError, with the nearest known name, for an unknown name.
    """
    if name in DATASETS:
        return DATASETS[name]
    hint = suggest_choice(name, DATASETS)
    raise InputError("data set", f"unknown name {name!r}", allowed=", ".join(DATASETS), hint=hint)


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """Return the tasks of ``names`` in order, without repeats; a group's name gives its tasks.

    Raises InputError for an unknown name, as ``find_task`` does.
    """
    tasks: list[Task] = []
    for name in names:
        if name in GROUPS:
            tasks += GROUPS[name]
        else:
            tasks.append(find_task(name))
    return tuple(dict.fromkeys(tasks))


def find_task(name: str) -> Task:
    """Return the task of a name, or make one for ``mteb/NAME``.

    NAME is a task, benchmark or task type of the library mteb; this function does not check it.
    Raises InputError, with the nearest known name, for an unknown name.
    """
    if name in TASKS:
        return TASKS[name]
    if name.startswith(MTEB) and name != MTEB:
        mteb_name = name.removeprefix(MTEB)
        return Task(
            name=name,
            dataset=mteb_name,
            group="mteb",
            family="mteb",
            protocol=f"{mteb_name} as MTEB defines it, its main score x 100",
            metric=None,
        )

    # Suggest the dataset's own tasks, else any group or task
    dataset = name.partition("/")[0]
    choices = [task for task in TASKS if task.startswith(f"{dataset}/")]
    allowed = choices
    if not choices:
        choices = [*GROUPS, *TASKS]
        allowed = [*GROUPS, "a task of these groups", f"{MTEB}NAME"]
    hint = suggest_choice(name, choices)
    raise InputError("task", f"unknown name {name!r}", allowed=", ".join(allowed), hint=hint)


@dataclass(frozen=True)
class Definition:
    """The definition of an average: the mean over the main scores of ``tasks``."""

    name: str
    words: str
    tasks: tuple[str, ...]

    def compute(self, scores: Mapping[str, TaskScore]) -> Average | None:
        """Average ``scores`` (task → score); None unless every task has a score."""
        if not scores.keys() >= set(self.tasks):
            return None
        mean = sum(scores[task].main_score for task in self.tasks) / len(self.tasks)
        return Average(name=self.name, definition=self.words, score=mean, tasks=self.tasks)


def _name_tasks(datasets: Iterable[str], protocol: str) -> tuple[str, ...]:
    """Return the names of the datasets' tasks with one protocol."""
    return tuple(f"{dataset}/{protocol}" for dataset in datasets)


def _define_validation(name: str, words: str, datasets: Iterable[str]) -> list[Definition]:
    """Define ``NAME-MODE`` for each probe mode: the mean over the datasets' validation tasks.

    ``words``: the average in words.
    """
    definitions = []
    for mode in MODES:
        tasks = _name_tasks(datasets, f"{mode}{VALIDATION}")
        definitions.append(Definition(f"{name}-{mode}", words, tasks))
    return definitions


_PROBING = tuple(classification.name for classification in PROBING)
DEFINITIONS = (
    Definition(
        "declutr-probing",
        "mean accuracy over SentEval's ten probing tasks "
        "(Giorgi et al. 2021, appendix C.2, table 3)",
        _name_tasks(_PROBING, "senteval"),
    ),
    *_define_validation(
        "validation",
        "mean accuracy on what SentEval's classification tasks choose their regularisation by, "
        "SNLI left out: for choices between encoders, without test rows",
        ("mr", "cr", "subj", "mpqa", "sst2", "sst5", "trec", "sick-e", "mrpc"),
    ),
    *_define_validation(
        "validation-probing",
        "mean accuracy on what SentEval's ten probing tasks choose their regularisation by: for "
        "choices between encoders, without test rows",
        _PROBING,
    ),
    Definition(
        "auto-nli-sts",
        "mean Spearman correlation over STS12-16 (all), STS-B and SICK-R by cosine, in SentEval's "
        "text form, as SimCSE's toolkit scores them (Sato et al. 2024, table 2)",
        (*_name_tasks(YEARS, "all"), "stsb-tokenised/cosine", "sick-r-tokenised/cosine"),
    ),
    Definition(
        "auto-nli-transfer",
        "mean accuracy over MR, CR, SUBJ, MPQA, SST2, TREC and MRPC (Sato et al. 2024, appendix C)",
        _name_tasks(("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"), "senteval"),
    ),
    Definition(
        "dino-sts",
        "mean Spearman correlation over STS12-16 (all), STSb and SICK by cosine, the last two in "
        "their original text form (Schick & Schütze 2021, table 1)",
        (*_name_tasks(YEARS, "all"), "stsb/cosine", "sick-r/cosine"),
    ),
    Definition(
        "dino-sts12-16-mean",
        "mean over STS12-16 of the mean Spearman correlation over subsets "
        "(Schick & Schütze 2021, table 5)",
        _name_tasks(YEARS, "mean"),
    ),
)


def is_averaged(task: str, split: str) -> bool:
    """Return whether averages use the score of a task on a split.

    They use scores on the splits ``test`` and ``all``, and every score of a validation task.
    """
    return split in ("test", "all") or VALIDATION in task


def compute_averages(scores: Iterable[TaskScore]) -> tuple[Average, ...]:
    """Compute the declared averages, in the order of ``DEFINITIONS``.

    An average is left out unless each of its tasks has a score that ``is_averaged`` allows.
    """
    by_task = {score.task: score for score in scores if is_averaged(score.task, score.split)}
    averages = [definition.compute(by_task) for definition in DEFINITIONS]
    return tuple(average for average in averages if average is not None)

"""Evaluation tasks by name. A name is ``<data set>/<protocol>``: a score under one name is always the same measurement.

Data sets: ``sts12`` … ``sts16`` and ``…-tokenised`` have SentEval's text form (Moses tokens; STS in lower case),
``…-original``, ``stsb`` and ``sick-r`` the organisers'. Groups stand for their tasks wherever a task is named.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from eval.outcomes import Aggregation, Metric
from hub.errors import InputError, nearest

Kind = Literal["sts", "transfer", "relatedness", "retrieval", "mteb"]
Design = Literal["kfold", "cross-validated", "held-out"]
Mode = Literal["senteval", "lbfgs"]
Unit = Literal["pairs", "sentences", "captions", "documents", "queries"]
Form = Literal["original", "tokenised"]


@dataclass(frozen=True)
class Task:
    """A declared evaluation.

    ``dataset`` is what ``eval.data.sources.Source.load`` reads, ``splits`` what is scored and ``fitted_on`` the further
    splits that a head is fitted or chosen on. ``design`` and ``mode`` are a probe's; ``metric`` is None for MTEB, whose
    tasks have their own main score.
    """

    name: str
    dataset: str
    group: str
    kind: Kind
    protocol: str
    metric: Metric | None
    aggregation: Aggregation = "all"
    unit: Unit = "pairs"
    splits: tuple[str, ...] = ("test",)
    fitted_on: tuple[str, ...] = ()
    design: Design | None = None
    mode: Mode | None = None

    @property
    def default_split(self) -> str:
        """The split of a task named without one: test, or all rows where the protocol cuts its own folds."""
        return "test" if "test" in self.splits else self.splits[0]

    def reads(self, split: str) -> tuple[str, ...]:
        """The splits that scoring ``split`` needs. Raises InputError when the task does not score it."""
        if split not in self.splits:
            raise InputError(self.name, f"has no split {split!r}", allowed=list(self.splits))
        return (*self.fitted_on, split)


AGGREGATIONS: dict[Aggregation, str] = {
    "all": "one correlation over the pairs of all subsets together",
    "mean": "one correlation per subset, unweighted mean",
    "wmean": "one correlation per subset, mean weighted by the number of pairs",
}
COSINE = "Spearman correlation x 100 between the cosine of two sentence embeddings and the mean human score"
TEXTS: dict[Form, str] = {
    "original": "sentences as the organisers distribute them",
    "tokenised": "SentEval's text form (Moses tokens, STS in lower case)",
}
YEARS = {
    "sts12": "SemEval 2012 task 6, 5 subsets",
    "sts13": "*SEM 2013 shared task without SMT, 3 subsets",
    "sts14": "SemEval 2014 task 10, 6 subsets",
    "sts15": "SemEval 2015 task 2, 5 subsets",
    "sts16": "SemEval 2016 task 1, 5 subsets",
}


def _year(name: str, form: Form, aggregation: Aggregation) -> Task:
    dataset = name if form == "tokenised" else f"{name}-original"
    return Task(
        name=f"{dataset}/{aggregation}",
        dataset=dataset,
        group="sts" if form == "tokenised" else "sts-original",
        kind="sts",
        protocol=f"{name.upper()} ({YEARS[name]}), {TEXTS[form]}: {COSINE}; {AGGREGATIONS[aggregation]}; no model is "
        "fitted on top",
        metric="spearman",
        aggregation=aggregation,
    )


def _cosine(dataset: str, group: str, protocol: str, splits: tuple[str, ...] = ("test",)) -> Task:
    return Task(f"{dataset}/cosine", dataset, group, "sts", protocol, "spearman", splits=splits)


STSB_COSINE = _cosine(
    "stsb",
    "sts",
    "STS benchmark (SemEval 2017 task 1): correlation x 100 between the cosine of two sentence embeddings and "
    "the mean human score, over all pairs of the split; no model is fitted on top",
    ("validation", "test"),
)
_NO_MODEL = "over all pairs of the split; no model is fitted on top"
_COSINES = (
    STSB_COSINE,
    _cosine(
        "stsb-tokenised",
        "sts",
        f"STS benchmark (SemEval 2017 task 1), {TEXTS['tokenised']}: {COSINE}, {_NO_MODEL}",
        ("validation", "test"),
    ),
    _cosine("sick-r-tokenised", "sts", f"SICK relatedness (SemEval 2014 task 1), Moses tokens: {COSINE}, {_NO_MODEL}"),
    _cosine(
        "sick-r",
        "sts-original",
        f"SICK relatedness (SemEval 2014 task 1), {TEXTS['original']}: {COSINE}, {_NO_MODEL}",
    ),
    _cosine(
        "sick-r-full",
        "sts-original",
        f"SICK relatedness (SemEval 2014 task 1), {TEXTS['original']}: {COSINE}, over all 9,927 pairs (train, trial "
        "and test together, as MTEB); no model is fitted on top",
    ),
)

MODES: dict[Mode, str] = {
    "senteval": "SentEval's own optimiser, initialisation and early stopping",
    "lbfgs": "the convex optimum by L-BFGS",
}
DESIGNS: dict[Design, str] = {
    "kfold": "nested 10-fold cross-validation over all rows",
    "cross-validated": "regularisation chosen by 10-fold cross-validation on train, scored on test",
    "held-out": "regularisation chosen on validation, scored on test",
}
UNCHOSEN: dict[Mode, str] = {  # SNLI
    "senteval": "weight decay 1e-9, the best of up to 16 passes on validation, scored on test",
    "lbfgs": "weight decay 1e-9, scored on test",
}
FITTED_ON: dict[Design, tuple[str, ...]] = {
    "kfold": (),
    "cross-validated": ("train",),
    "held-out": ("train", "validation"),
}
TRANSFER: dict[str, tuple[str, Design]] = {
    "mr": ("MR, movie reviews", "kfold"),
    "cr": ("CR, customer reviews", "kfold"),
    "subj": ("SUBJ, subjectivity", "kfold"),
    "mpqa": ("MPQA, opinion polarity", "kfold"),
    "sst2": ("SST2, binary sentiment", "held-out"),
    "sst5": ("SST5, fine sentiment", "held-out"),
    "trec": ("TREC, question types", "cross-validated"),
    "mrpc": ("MRPC, paraphrases", "cross-validated"),
    "sick-e": ("SICK-E, entailment", "held-out"),
    "snli": ("SNLI, entailment", "held-out"),
}
OF_PAIRS = ("mrpc", "sick-e", "snli")
PROBING = {
    "sentlen": "SentLen, length in 6 bins",
    "wc": "WC, which of 1,000 words occurs",
    "treedepth": "TreeDepth, depth of the syntax tree",
    "topconst": "TopConst, constituents below the sentence node",
    "bshift": "BShift, two words inverted or not",
    "tense": "Tense of the main verb",
    "subjnum": "SubjNum, number of the subject",
    "objnum": "ObjNum, number of the object",
    "somo": "SOMO, a word replaced or not",
    "coordinv": "CoordInv, clauses inverted or not",
}


def _probe(dataset: str, words: str, design: Design, mode: Mode, family: str) -> Task:
    pairs = dataset in OF_PAIRS
    chosen = UNCHOSEN[mode] if dataset == "snli" else DESIGNS[design]
    features = "u, v, u*v and |u-v|" if dataset == "snli" else "|u-v| and u*v" if pairs else "the embedding"
    return Task(
        name=f"{dataset}/{mode}",
        dataset=dataset,
        group=family if mode == "senteval" else f"{family}-{mode}",
        kind="transfer",
        protocol=f"SentEval {words}: accuracy x 100 of a logistic regression on {features}, {MODES[mode]}; {chosen}",
        metric="accuracy",
        unit="pairs" if pairs else "sentences",
        splits=("all",) if design == "kfold" else ("test",),
        fitted_on=FITTED_ON[design],
        design=design,
        mode=mode,
    )


def _regression(name: str, words: str) -> Task:
    return Task(
        name=f"{name}/regression",
        dataset=f"{name}-tokenised",
        group="transfer",
        kind="relatedness",
        protocol=f"SentEval {words}, SentEval's text form: Spearman correlation x 100 between the mean human score and "
        "that of SentEval's trained head (softmax over the whole scores on |u-v| and u*v, stopped on validation)",
        metric="spearman",
        fitted_on=FITTED_ON["held-out"],
        design="held-out",
        mode="senteval",
    )


COCO = Task(
    name="coco/retrieval",
    dataset="coco",
    group="retrieval",
    kind="retrieval",
    protocol="SentEval COCO caption-image retrieval: mean of recall@1, 5 and 10 x 100 in both directions, over 5 folds "
    "of 1,000 test images, from a linear map of both sides trained with SentEval's ranking loss",
    metric="recall",
    aggregation="mean",
    unit="captions",
    fitted_on=FITTED_ON["held-out"],
)

_MODES: tuple[Mode, ...] = ("senteval", "lbfgs")
_FORMS: tuple[Form, ...] = ("tokenised", "original")
_DECLARED = (
    *(_year(year, form, aggregation) for form in _FORMS for year in YEARS for aggregation in AGGREGATIONS),
    *_COSINES,
    *(_probe(name, words, design, mode, "transfer") for mode in _MODES for name, (words, design) in TRANSFER.items()),
    _regression("stsb", "STS benchmark"),
    _regression("sick-r", "SICK relatedness"),
    *(_probe(name, words, "held-out", mode, "probing") for mode in _MODES for name, words in PROBING.items()),
    COCO,
)
TASKS = {task.name: task for task in _DECLARED}
MTEB = "mteb/"
_PAPERS = ("sts", "sts-original", "transfer", "probing", "retrieval")
GROUPS: dict[str, tuple[Task, ...]] = {
    group: tuple(task for task in _DECLARED if task.group == group)
    for group in dict.fromkeys(task.group for task in _DECLARED)
} | {"papers": tuple(task for task in _DECLARED if task.group in _PAPERS and "-original/" not in task.name)}


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """The tasks of ``names`` in order, each once; a group stands for its tasks. Raises InputError as ``find_task``."""
    found = [task for name in names for task in GROUPS.get(name) or (find_task(name),)]
    return tuple(dict.fromkeys(found))


def find_task(name: str) -> Task:
    """The task called ``name``; ``mteb/NAME`` is any task, benchmark or task type that mteb knows by that name.

    Raises InputError with the nearest known names.
    """
    if name in TASKS:
        return TASKS[name]
    if name.startswith(MTEB) and name != MTEB:
        return _mteb(name.removeprefix(MTEB))
    same = [task for task in TASKS if task.startswith(f"{name.partition('/')[0]}/")]
    allowed = same or [*GROUPS, "or a task of these", f"{MTEB}NAME"]
    guess = nearest(name, same or (*GROUPS, *TASKS))
    hint = f"did you mean {guess!r}?" if guess else None
    raise InputError("evaluation.task", f"unknown task {name!r}", allowed=", ".join(allowed), hint=hint)


def _mteb(name: str) -> Task:
    protocol = f"{name} as MTEB defines it, its main score x 100"
    return Task(f"{MTEB}{name}", name, "mteb", "mteb", protocol, None)

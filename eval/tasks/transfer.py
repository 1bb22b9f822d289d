"""SentEval's classification and probing tasks, each declared once: files, reader, probe, protocol.

A new task is one ``Classification`` in ``TRANSFER`` or ``PROBING``: its tasks (``NAME/senteval``,
``NAME/lbfgs``, and both as ``-validation``), its place in the groups, on cards and among the data
of a decontamination follow from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sts_dino.eval.tasks import rows
from sts_dino.eval.tasks.sts import SICK_FILES
from sts_dino.eval.tasks.task import (
    CROSS_VALIDATED,
    HELD_OUT,
    KFOLD,
    DataSet,
    Design,
    Mode,
    Part,
    Reader,
    Task,
    make_parts,
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
    cross-validated. ``has_shared_sentences``: whether another dataset has the same sentences, so
    that a decontamination skips this dataset.
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
        """Make ``NAME/MODE-validation``: the score that chooses the regularisation."""
        task = self.make_task(mode)
        design = self.design.validation
        assert design is not None
        fitted_on = [split for split in design.rows if split != design.scored]
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
        """Make ``NAME/MODE``, the task of the probe's accuracy with one optimiser."""
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
    """Declare a classification whose splits are files of ``downstream/FOLDER`` (split → names).

    ``options``: other fields of ``Classification``.
    """
    parts = make_parts(f"downstream/{folder}", files, reader)
    return Classification(name, words, parts, **options)


def _declare_two_classes(name: str, words: str, folder: str, *files: str) -> Classification:
    """Declare a classification without splits; its two ``files`` have class 1 and class 0."""
    return _declare_transfer(name, words, folder, {"all": files}, rows.read_two_classes)


def _declare_probing(name: str, words: str, file: str) -> Classification:
    """Declare a probing task, all of whose splits are in ``probing/FILE.txt``."""
    parts = {}
    for split in rows.PART_CODES:
        parts[split] = Part((f"probing/{file}.txt",), partial(rows.read_probing, split=split))
    return Classification(name, words, parts, "probing")


_SST_FILES = {
    "train": ("sentiment-train",),
    "validation": ("sentiment-dev",),
    "test": ("sentiment-test",),
}
_SNLI_FILES = {
    "train": ("labels.train", "s1.train", "s2.train"),
    "validation": ("labels.dev", "s1.dev", "s2.dev"),
    "test": ("labels.test", "s1.test", "s2.test"),
}
_MRPC_FILES = {"train": ("msr_paraphrase_train.txt",), "test": ("msr_paraphrase_test.txt",)}
_TREC_FILES = {"train": ("train_5500.label",), "test": ("TREC_10.label",)}
_SST2 = partial(rows.read_table, columns=2, texts=(0,), target=1, classes=rows.BINARY)
_SST5 = partial(rows.read_label_first, classes=rows.FINE)
_TREC = partial(rows.read_label_first, classes=rows.TREC, encoding="latin-1")
_PAIR_TABLE = partial(rows.read_table, columns=5, header=True)
_MRPC = partial(_PAIR_TABLE, texts=(3, 4), target=0, classes=rows.BINARY)
_SICK_E = partial(_PAIR_TABLE, texts=(1, 2), target=4, classes=rows.SICK)
TRANSFER = (
    _declare_two_classes("mr", "MR, movie reviews", "MR", "rt-polarity.pos", "rt-polarity.neg"),
    _declare_two_classes("cr", "CR, customer reviews", "CR", "custrev.pos", "custrev.neg"),
    _declare_two_classes("subj", "SUBJ, subjectivity", "SUBJ", "subj.objective", "subj.subjective"),
    _declare_two_classes("mpqa", "MPQA, opinion polarity", "MPQA", "mpqa.pos", "mpqa.neg"),
    _declare_transfer("sst2", "SST2, binary sentiment", "SST/binary", _SST_FILES, _SST2),
    _declare_transfer("sst5", "SST5, fine sentiment", "SST/fine", _SST_FILES, _SST5),
    _declare_transfer("trec", "TREC, question types", "TREC", _TREC_FILES, _TREC),
    _declare_transfer(
        "mrpc", "MRPC, paraphrases", "MRPC", _MRPC_FILES, _MRPC, has_pairs=True, with_f1=True
    ),
    _declare_transfer(
        "sick-e",
        "SICK-E, entailment",
        "SICK",
        SICK_FILES,
        _SICK_E,
        has_pairs=True,
        has_shared_sentences=True,
    ),
    _declare_transfer(
        "snli",
        "SNLI, entailment",
        "SNLI",
        _SNLI_FILES,
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

"""SentEval's classification and probing tasks, each declared once: files, reader, probe, protocol.

A new task is one ``Classification`` in ``TRANSFER`` or ``PROBING``: its tasks (``NAME/senteval``, ``NAME/lbfgs``, and
both as ``-validation``), its place in the groups, on cards and among the data of a decontamination follow from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from eval.tasks import readers as toolkit
from eval.tasks.sts import SICK_FILES
from eval.tasks.task import CROSS_VALIDATED, HELD_OUT, KFOLD, DataSet, Design, Mode, Part, Reader, Task, parts

MODES: dict[Mode, str] = {
    "senteval": "SentEval's own optimiser, initialisation and early stopping",
    "lbfgs": "the convex optimum by L-BFGS",
}
VALIDATION = "-validation"  # the end of the name of a task that is scored without test rows
UNCHOSEN: dict[Mode, str] = {  # SNLI
    "senteval": "weight decay 1e-9, the best of up to 16 passes on validation, scored on test",
    "lbfgs": "weight decay 1e-9, scored on test",
}


@dataclass(frozen=True)
class Classification:
    """A labelled data set of SentEval and the logistic regression that is scored on it.

    ``parts`` decide the probe's design: ``all`` rows are cut into folds, train and test alone are cross-validated.
    ``is_elsewhere``: another data set has the same sentences, so a decontamination need not read this one.
    """

    name: str
    words: str
    parts: Mapping[str, Part]
    family: Literal["transfer", "probing"] = "transfer"
    has_pairs: bool = False
    as_snli: bool = False
    with_f1: bool = False
    is_elsewhere: bool = False

    @property
    def dataset(self) -> DataSet:
        """Where its rows are read."""
        sentences = None if self.is_elsewhere or self.family == "probing" else self.name
        return DataSet(self.name, "senteval", self.parts, sentences)

    @property
    def design(self) -> Design:
        """How the regularisation is chosen."""
        if "all" in self.parts:
            return KFOLD
        return HELD_OUT if "validation" in self.parts else CROSS_VALIDATED

    def validation_task(self, mode: Mode) -> Task:
        """The accuracy that the regularisation is chosen by, on which encoders may be chosen, too."""
        task, design = self.task(mode), self.design.validation
        assert design is not None
        return replace(
            task,
            name=task.name + VALIDATION,
            group=task.group + VALIDATION,
            protocol=f"{task.protocol.rpartition('; ')[0]}; {design.words}",
            splits=(design.scored,),
            fitted_on=tuple(dict.fromkeys(split for split in design.rows if split != design.scored)),
            design=design,
            with_f1=False,
        )

    def task(self, mode: Mode) -> Task:
        """Its accuracy under one of the probe's optimisers."""
        chosen = UNCHOSEN[mode] if self.as_snli else self.design.words
        pair_features = "u, v, u*v and |u-v|" if self.as_snli else "|u-v| and u*v"
        features = pair_features if self.has_pairs else "the embedding"
        return Task(
            name=f"{self.name}/{mode}",
            dataset=self.name,
            group=self.family if mode == "senteval" else f"{self.family}-{mode}",
            family=self.family,
            protocol=f"SentEval {self.words}: accuracy x 100 of a logistic regression on {features}, {MODES[mode]}; "
            f"{chosen}",
            metric="accuracy",
            unit="pairs" if self.has_pairs else "sentences",
            splits=(self.design.scored,),
            fitted_on=tuple(split for split in self.parts if split not in ("all", "test")),
            design=self.design,
            mode=mode,
            as_snli=self.as_snli,
            with_f1=self.with_f1,
        )


def _transfer(
    name: str, words: str, folder: str, files: Mapping[str, Sequence[str]], reader: Reader, **more: Any
) -> Classification:
    return Classification(name, words, parts(f"downstream/{folder}", files, reader), **more)


def _probing(name: str, words: str, file: str) -> Classification:
    found = {split: Part((f"probing/{file}.txt",), partial(toolkit.probing, split=split)) for split in toolkit.PARTS}
    return Classification(name, words, found, "probing")


def _three(pattern: str) -> dict[str, tuple[str, ...]]:
    names = dict(zip(toolkit.PARTS, ("train", "dev", "test"), strict=True))
    return {split: (pattern.format(name),) for split, name in names.items()}


_SNLI_FILES = {split: (f"labels.{part}", f"s1.{part}", f"s2.{part}") for split, (part,) in _three("{}").items()}
_SST2 = partial(toolkit.table, columns=2, texts=(0,), target=1, classes=toolkit.BINARY)
_SST5 = partial(toolkit.label_first, classes=toolkit.FINE)
_TREC = partial(toolkit.label_first, classes=toolkit.TREC, encoding="latin-1")
_MRPC = partial(toolkit.table, columns=5, texts=(3, 4), target=0, classes=toolkit.BINARY, header=True)
_SICK_E = partial(toolkit.table, columns=5, texts=(1, 2), target=4, classes=toolkit.SICK, header=True)
_SUBJ_FILES = {"all": ("subj.objective", "subj.subjective")}
_MRPC_FILES = {split: (f"msr_paraphrase_{split}.txt",) for split in ("train", "test")}
_TREC_FILES = {"train": ("train_5500.label",), "test": ("TREC_10.label",)}
TRANSFER = (
    _transfer("mr", "MR, movie reviews", "MR", {"all": ("rt-polarity.pos", "rt-polarity.neg")}, toolkit.two_classes),
    _transfer("cr", "CR, customer reviews", "CR", {"all": ("custrev.pos", "custrev.neg")}, toolkit.two_classes),
    _transfer("subj", "SUBJ, subjectivity", "SUBJ", _SUBJ_FILES, toolkit.two_classes),
    _transfer("mpqa", "MPQA, opinion polarity", "MPQA", {"all": ("mpqa.pos", "mpqa.neg")}, toolkit.two_classes),
    _transfer("sst2", "SST2, binary sentiment", "SST/binary", _three("sentiment-{}"), _SST2),
    _transfer("sst5", "SST5, fine sentiment", "SST/fine", _three("sentiment-{}"), _SST5),
    _transfer("trec", "TREC, question types", "TREC", _TREC_FILES, _TREC),
    _transfer("mrpc", "MRPC, paraphrases", "MRPC", _MRPC_FILES, _MRPC, has_pairs=True, with_f1=True),
    _transfer("sick-e", "SICK-E, entailment", "SICK", SICK_FILES, _SICK_E, has_pairs=True, is_elsewhere=True),
    _transfer("snli", "SNLI, entailment", "SNLI", _SNLI_FILES, toolkit.snli, has_pairs=True, as_snli=True),
)
PROBING = (
    _probing("sentlen", "SentLen, length in 6 bins", "sentence_length"),
    _probing("wc", "WC, which of 1,000 words occurs", "word_content"),
    _probing("treedepth", "TreeDepth, depth of the syntax tree", "tree_depth"),
    _probing("topconst", "TopConst, constituents below the sentence node", "top_constituents"),
    _probing("bshift", "BShift, two words inverted or not", "bigram_shift"),
    _probing("tense", "Tense of the main verb", "past_present"),
    _probing("subjnum", "SubjNum, number of the subject", "subj_number"),
    _probing("objnum", "ObjNum, number of the object", "obj_number"),
    _probing("somo", "SOMO, a word replaced or not", "odd_man_out"),
    _probing("coordinv", "CoordInv, clauses inverted or not", "coordination_inversion"),
)

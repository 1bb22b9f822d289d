"""Averages over tasks as the papers define them. One is there only when every one of its tasks is: never over some."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hub.results import Average, TaskScore

YEARS = ("sts12", "sts13", "sts14", "sts15", "sts16")
CLASSIFICATION = ("mr", "cr", "subj", "mpqa", "sst2", "sst5", "trec", "sick-e")
PROBING = (
    "sentlen", "wc", "treedepth", "topconst", "bshift", "tense", "subjnum", "objnum", "somo", "coordinv",
)  # fmt: skip
Reading = Callable[[TaskScore], float | None]


def main_score(score: TaskScore) -> float | None:
    """The task's main score."""
    return score.main_score


def accuracy_and_f1(score: TaskScore) -> float | None:
    """The mean of accuracy and F1; None without F1."""
    return (score.main_score + score.other["f1"]) / 2 if "f1" in score.other else None


@dataclass(frozen=True)
class Definition:
    """An average by name: the mean over ``tasks`` (name → what is read of its score) on ``split``."""

    name: str
    words: str
    tasks: Mapping[str, Reading]

    def of(self, scores: Mapping[str, TaskScore]) -> Average | None:
        """The average of scores by task name; None unless all tasks are there."""
        read = [reading(scores[task]) for task, reading in self.tasks.items() if task in scores]
        values = [value for value in read if value is not None]
        if len(values) < len(self.tasks):
            return None
        mean = sum(values) / len(values)
        return Average(name=self.name, definition=self.words, score=mean, tasks=tuple(self.tasks))


def _plain(names: Iterable[str], protocol: str) -> dict[str, Reading]:
    return {f"{name}/{protocol}": main_score for name in names}


_DECLUTR = {
    **_plain(CLASSIFICATION, "senteval"),
    "mrpc/senteval": accuracy_and_f1,
    **_plain(("sick-r", "stsb"), "regression"),
    "coco/retrieval": main_score,
    **_plain(YEARS, "mean"),
}
_DECLUTR_WORDS = (
    "mean over SentEval's downstream tasks: the mean Spearman correlation over subsets for STS12-16, Spearman for "
    "SICK-R and STS-B with the trained head, the mean of accuracy and F1 for MRPC, the mean of six recalls for COCO, "
    "accuracy elsewhere (Giorgi et al. 2021, appendix C.2"
)
DEFINITIONS = (
    Definition("declutr-downstream", f"{_DECLUTR_WORDS}, table 2: without SNLI)", _DECLUTR),
    Definition(
        "declutr-downstream-with-snli",
        f"{_DECLUTR_WORDS}; with SNLI)",
        {**_DECLUTR, "snli/senteval": main_score},
    ),
    Definition(
        "declutr-probing",
        "mean accuracy over SentEval's ten probing tasks (Giorgi et al. 2021, appendix C.2, table 3)",
        _plain(PROBING, "senteval"),
    ),
    Definition(
        "auto-nli-sts",
        "mean Spearman correlation over STS12-16 (all), STS-B and SICK-R by cosine, in SentEval's text form, as "
        "SimCSE's toolkit scores them (Sato et al. 2024, table 2)",
        {**_plain(YEARS, "all"), **_plain(("stsb-tokenised", "sick-r-tokenised"), "cosine")},
    ),
    Definition(
        "auto-nli-transfer",
        "mean accuracy over MR, CR, SUBJ, MPQA, SST2, TREC and MRPC (Sato et al. 2024, appendix C)",
        _plain(("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"), "senteval"),
    ),
    Definition(
        "dino-sts",
        "mean Spearman correlation over STS12-16 (all), STSb and SICK by cosine, the last two in their original text "
        "form (Schick & Schütze 2021, table 1)",
        {**_plain(YEARS, "all"), **_plain(("stsb", "sick-r"), "cosine")},
    ),
    Definition(
        "dino-sts12-16-mean",
        "mean over STS12-16 of the mean Spearman correlation over subsets (Schick & Schütze 2021, table 5)",
        _plain(YEARS, "mean"),
    ),
)


def averages(scores: Iterable[TaskScore]) -> tuple[Average, ...]:
    """Every average whose tasks are all there, from their test splits (or all rows, where folds are cut)."""
    named = {score.task: score for score in scores if score.split in ("test", "all")}
    found = (definition.of(named) for definition in DEFINITIONS)
    return tuple(average for average in found if average is not None)

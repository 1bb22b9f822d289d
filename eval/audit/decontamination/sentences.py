"""The sentences of evaluation data: every text of STS, SICK and SentEval's transfer tasks, with where it stands.

The two text forms of a set (SentEval's tokens, the organisers' text) have the same rows, so they are one set here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.tasks.data.example_types import LabelledPairs, ScoredPairs
from eval.tasks.data.file_layouts import DataSet
from eval.tasks.data.files import names_in_layout
from eval.tasks.data.pins import Pins
from eval.tasks.registry import DATASETS, find_dataset
from eval.tasks.sources import SHIPPED_SPLITS, Source
from hub.errors import InputError


@dataclass(frozen=True)
class EvaluationSet:
    """A split's texts, side by side: ``sides`` holds one tuple of n texts for each side of a pair, or the only one."""

    name: str  # e.g. sts12, whatever the text form
    split: str
    form: str  # the data set's own name, e.g. sts12-original
    sides: tuple[tuple[str, ...], ...]
    sha256: str

    @property
    def place(self) -> str:
        """``sts12/test``."""
        return f"{self.name}/{self.split}"


@dataclass(frozen=True)
class EvaluationTexts:
    """What a dataset is checked against, and the splits whose files are not there."""

    sets: tuple[EvaluationSet, ...]
    absent: tuple[str, ...]


def read_evaluation_sets(
    senteval: Path | None = None,
    originals: Path | None = None,
    names: Sequence[str] = (),
    pins: Pins | None = None,
) -> EvaluationTexts:
    """Every split that the given directories have; without one, the STS Benchmark's shipped validation and test.

    ``names``: these data sets alone, all of whose splits must be there (coco and the probing tasks are read only by
    name). Raises InputError for an unknown name, and for a file that is missing beside others of its split, or altered.
    """
    source = Source(senteval=senteval, originals=originals, pins=pins)
    roots = {"senteval": senteval, "originals": originals}
    sets, absent = [], []
    usual = [dataset for dataset in DATASETS.values() if dataset.sentences is not None]
    for dataset in [find_dataset(name) for name in names] if names else usual:
        root = roots[dataset.layout]
        for split in dataset.parts:
            shipped = root is None and dataset.name == "stsb" and split in SHIPPED_SPLITS
            if shipped or names or (root is not None and _is_there(dataset, split, root)):
                sets.append(_read(source, dataset, split))
            elif root is not None:
                absent.append(f"{dataset.name}/{split}")
    for layout, root in roots.items():
        if not names and root is not None and not any(find_dataset(one.form).layout == layout for one in sets):
            raise InputError(root, "has no evaluation data", hint="check --senteval-data and --sts-data")
    return EvaluationTexts(tuple(sets), tuple(absent))


def _is_there(dataset: DataSet, split: str, root: Path) -> bool:
    """Whether any file of a split is: if one is missing, reading it says so."""
    bases = (root, root.parent) if root.name == "downstream" else (root,)
    paths = [base / name for base in bases for file in dataset.parts[split].files for name in names_in_layout(file)]
    return any(path.is_file() for path in paths)


def _read(source: Source, dataset: DataSet, split: str) -> EvaluationSet:
    rows = source.load(dataset.name, [split])[split]
    sides = (rows.first, rows.second) if isinstance(rows, ScoredPairs | LabelledPairs) else (rows.texts,)
    return EvaluationSet(dataset.sentences or dataset.name, split, dataset.name, tuple(map(tuple, sides)), rows.sha256)

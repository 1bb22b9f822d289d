"""The ledger of a decontamination: what was checked, what was found, under which settings.

Texts are not in it: several sets allow no redistribution. A match is told by the SHA-256 of the dataset's text and by
where the evaluation sentence stands.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from eval.dataset_rows import Batch, Rows
from eval.decontamination import KINDS, Kind, Match, Sentences, Settings
from eval.decontamination_sentences import Evaluation
from hub.errors import InputError
from hub.shards import write_text

SCORED = ("all", "validation", "test")  # splits that scores come from; `all` of k-fold tasks
DROPPED: tuple[Kind, ...] = ("exact", "normal", "near")
EXAMPLES = 10  # of every split and kind


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Checked(_Frozen):
    """A split of evaluation data: its rows' SHA-256 by text form, its sentences, and what of it was found.

    ``rows`` are the dataset's rows that match it, by the strongest kind; ``found`` its distinct sentences (by normal
    form) that some text matches, by kind: a sentence may be matched in several.
    """

    texts: int
    sha256: dict[str, str]
    rows: dict[Kind, int]
    found: dict[Kind, int]


class ConfigCount(_Frozen):
    """Rows of one config. ``kinds``: by a row's strongest match with a split that scores come from; ``train_only``:
    rows that match train splits alone (exact, normal or near)."""

    splits: dict[str, int]
    kinds: dict[Kind, int]
    train_only: int
    columns: dict[str, dict[Kind, int]]  # texts of a column, likewise
    labels: dict[str, dict[Kind, int]]


class Example(_Frozen):
    """One match; rows count from 0."""

    config: str
    split: str
    row: int
    column: str
    text_sha256: str
    kind: Kind
    similarity: float
    place: str  # e.g. sts12/test
    place_row: int
    place_side: int


class Ledger(_Frozen):
    """ledger.json. ``not_checked``: splits without files in the directories that were given.

    ``settings.recall`` is the share of near pairs just at the threshold that is expected to be found.
    """

    dataset: str
    revision: str
    settings: dict[str, float | int | dict[str, int]]
    sentences: int  # distinct normal forms of all evaluation data
    checked: dict[str, Checked]
    not_checked: tuple[str, ...]
    configs: dict[str, ConfigCount]
    examples: tuple[Example, ...]


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Write the ledger atomically."""
    write_text(path, ledger.model_dump_json(indent=2) + "\n")


def read_ledger(path: Path) -> Ledger:
    """Read a ledger. Raises InputError when it is missing or has another form."""
    try:
        return Ledger.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(path, "no such file", hint="run: python -m eval.decontaminate RUN") from error
    except ValidationError as error:
        raise InputError(path, f"not a ledger: {error.errors()[0]['msg']}", hint="check the dataset again") from error


Count = Counter[Kind]
Hits = dict[str, NDArray[np.int8]]  # split → (rows,): 0 keeps a row, k + 1 drops it for KINDS[k]


@dataclass
class _OfConfig:
    rows: Rows
    kinds: Count = field(default_factory=Counter)
    train_only: int = 0
    columns: dict[str, Count] = field(default_factory=lambda: defaultdict(Counter))
    labels: dict[str, Count] = field(default_factory=lambda: defaultdict(Counter))


class Bookkeeper:
    """Matches of all rows, batch by batch, on their way into a ledger."""

    def __init__(self, sentences: Sentences, evaluation: Evaluation):
        self._sentences, self._evaluation = sentences, evaluation
        self._configs: dict[str, _OfConfig] = {}
        self._rows: dict[str, Count] = defaultdict(Counter)  # place → rows
        self._found: dict[tuple[str, Kind], set[int]] = defaultdict(set)  # numbers of evaluation sentences
        self._examples: dict[tuple[str, Kind], list[Example]] = defaultdict(list)

    def check(
        self, rows: Rows, kinds: Sequence[Kind], splits: Sequence[str], progress: Callable[[int], object]
    ) -> Hits:
        """Match all rows of a config; for each one its strongest match, of ``kinds`` with evaluation ``splits``."""
        counted = self._configs.setdefault(rows.config, _OfConfig(rows))
        hits = {split: np.zeros(count, dtype=np.int8) for split, count in rows.splits.items()}
        for batch in rows.batches():
            distinct = list(dict.fromkeys(text for texts in batch.texts.values() for text in texts))
            found = dict(zip(distinct, self._sentences.matches(distinct), strict=True))
            for place, row in enumerate(batch.rows):
                matches = {column: found[texts[place]] for column, texts in batch.texts.items()}
                if any(matches.values()):
                    self._count(counted, batch, place, matches)
                    reason = _strongest(
                        match.kind
                        for one in matches.values()
                        for match in one
                        if match.kind in kinds and match.place.place.partition("/")[2] in splits
                    )
                    hits[batch.split][row] = 0 if reason is None else 1 + KINDS.index(reason)
            progress(len(batch))
        return hits

    def _count(self, counted: _OfConfig, batch: Batch, place: int, matches: dict[str, list[Match]]) -> None:
        by_place: dict[str, list[Kind]] = defaultdict(list)
        for column, found in matches.items():
            for match in found:
                by_place[match.place.place].append(match.kind)
                self._found[match.place.place, match.kind].add(match.sentence)
                self._exemplify(counted.rows.config, batch, place, column, match)
            scored = _strongest(match.kind for match in found if _is_scored(match.place.place))
            if scored:
                counted.columns[column][scored] += 1
        for name, kinds in by_place.items():
            self._rows[name][min(kinds, key=KINDS.index)] += 1
        strongest = _strongest(kind for name, kinds in by_place.items() if _is_scored(name) for kind in kinds)
        if strongest:
            counted.kinds[strongest] += 1
            if batch.labels:
                counted.labels[batch.labels[place]][strongest] += 1
        if strongest in (None, "short"):
            counted.train_only += any(kind in DROPPED for kinds in by_place.values() for kind in kinds)

    def _exemplify(self, config: str, batch: Batch, place: int, column: str, match: Match) -> None:
        kept = self._examples[match.place.place, match.kind]
        if len(kept) < EXAMPLES:
            kept.append(
                Example(
                    config=config,
                    split=batch.split,
                    row=int(batch.rows[place]),
                    column=column,
                    text_sha256=hashlib.sha256(batch.texts[column][place].encode("utf-8", "surrogatepass")).hexdigest(),
                    kind=match.kind,
                    similarity=round(match.similarity, 4),
                    place=match.place.place,
                    place_row=match.place.row,
                    place_side=match.place.side,
                )
            )

    def ledger(self) -> Ledger:
        """What was found in all configs checked so far."""
        first = next(iter(self._configs.values())).rows
        return Ledger(
            dataset=first.name,
            revision=first.revision,
            settings=told(self._sentences.settings),
            sentences=len(self._sentences),
            checked={place: self._checked(place) for place in dict.fromkeys(s.place for s in self._evaluation.sets)},
            not_checked=self._evaluation.absent,
            configs={name: _config_count(one) for name, one in self._configs.items()},
            examples=tuple(example for key in sorted(self._examples) for example in self._examples[key]),
        )

    def _checked(self, place: str) -> Checked:
        sets = [one for one in self._evaluation.sets if one.place == place]
        return Checked(
            texts=sum(len(side) for side in sets[0].sides),
            sha256={one.form: one.sha256 for one in sets},
            rows=_all_kinds(self._rows[place]),
            found={kind: len(self._found.get((place, kind), ())) for kind in KINDS},
        )


def told(settings: Settings) -> dict[str, float | int | dict[str, int]]:
    """The thresholds, how near matches were looked up, and what share of them that finds."""
    return {**asdict(settings), "banding": asdict(settings.banding), "recall": settings.recall}


def _config_count(one: _OfConfig) -> ConfigCount:
    return ConfigCount(
        splits=one.rows.splits,
        kinds=_all_kinds(one.kinds),
        train_only=one.train_only,
        columns={column: _all_kinds(one.columns[column]) for column in one.rows.columns},
        labels={label: _all_kinds(one.labels[label]) for label in sorted(one.labels)},
    )


def _all_kinds(counts: Count) -> dict[Kind, int]:
    return {kind: counts[kind] for kind in KINDS}


def _strongest(kinds: Iterable[Kind]) -> Kind | None:
    return min(kinds, key=KINDS.index, default=None)


def _is_scored(place: str) -> bool:
    return place.partition("/")[2] in SCORED

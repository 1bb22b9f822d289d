"""Keeping the ledger of a decontamination (``hub.contract.measured.Ledger``) while rows are matched."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from eval.audit.evaluation_sentences import EvaluationTexts, Match, Sentences
from eval.audit.source import Batch, DatasetRows
from eval.audit.text_forms import code, table
from hub.contract.measured import KINDS, Checked, ConfigCount, Example, Kind, Ledger

SCORED = ("all", "validation", "test")  # splits that scores come from; `all` of k-fold tasks
DROPPED: tuple[Kind, ...] = ("exact", "normal", "near")
EXAMPLES = 10  # of every split and kind


Hits = dict[str, NDArray[np.int8]]  # split → (rows,): 0 keeps a row, k + 1 drops it for KINDS[k]


class Bookkeeper:
    """Matches of all rows, batch by batch, on their way into a ledger.

    ``hits``: config → the rows to drop, each for its strongest match of ``kinds`` with the evaluation's ``splits``.
    """

    def __init__(
        self,
        sentences: Sentences,
        evaluation: EvaluationTexts,
        kinds: Sequence[Kind] = DROPPED,
        splits: Sequence[str] = SCORED,
    ):
        self.kinds, self.splits, self.hits = tuple(kinds), tuple(splits), dict[str, Hits]()
        self._sentences, self._evaluation = sentences, evaluation
        self._dataset = self._revision = ""
        self._configs: dict[str, ConfigCount] = {}
        self._rows: dict[str, dict[Kind, int]] = defaultdict(_zeros)  # place → rows
        self._found: dict[tuple[str, Kind], set[int]] = defaultdict(set)  # numbers of evaluation sentences
        self._examples: dict[tuple[str, Kind], list[Example]] = defaultdict(list)

    def check(self, rows: DatasetRows, progress: Callable[[int], object] = lambda done: None) -> None:
        """Match all rows of a config; ``progress`` is called with the number of rows of each batch."""
        self._dataset, self._revision = rows.name, rows.revision
        columns = {column: _zeros() for column in rows.columns}
        counted = ConfigCount(splits=rows.splits, kinds=_zeros(), train_only=0, columns=columns, labels={})
        hits = {split: np.zeros(count, dtype=np.int8) for split, count in rows.splits.items()}
        self._configs[rows.config], self.hits[rows.config] = counted, hits
        for batch in rows.batches():
            distinct = list(dict.fromkeys(text for texts in batch.texts.values() for text in texts))
            found = dict(zip(distinct, self._sentences.matches(distinct), strict=True))
            for place, row in enumerate(batch.rows):
                matches = {column: found[texts[place]] for column, texts in batch.texts.items()}
                every = [match for one in matches.values() for match in one]
                if every:
                    self._exemplify(rows.config, batch, place, matches)
                    self._count_places(every)
                    _count(counted, batch.labels[place] if batch.labels else None, matches, every)
                    reason = _strongest(every, self.splits, self.kinds)
                    hits[batch.split][row] = 0 if reason is None else 1 + KINDS.index(reason)
            progress(len(batch))

    def _count_places(self, matches: Sequence[Match]) -> None:
        by_place: dict[str, list[Kind]] = defaultdict(list)
        for match in matches:
            by_place[match.place.place].append(match.kind)
            self._found[match.place.place, match.kind].add(match.sentence)
        for name, kinds in by_place.items():
            self._rows[name][min(kinds, key=KINDS.index)] += 1

    def _exemplify(self, config: str, batch: Batch, place: int, matches: dict[str, list[Match]]) -> None:
        for column, match in ((column, match) for column, found in matches.items() for match in found):
            kept = self._examples[match.place.place, match.kind]
            if len(kept) == EXAMPLES:
                continue
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
        settings = self._sentences.settings
        for one in self._configs.values():
            one.labels = dict(sorted(one.labels.items()))
        return Ledger(
            dataset=self._dataset,
            revision=self._revision,
            settings={**asdict(settings), "banding": asdict(settings.banding), "recall": settings.recall},
            sentences=len(self._sentences),
            checked={place: self._checked(place) for place in dict.fromkeys(s.place for s in self._evaluation.sets)},
            not_checked=self._evaluation.absent,
            configs=self._configs,
            examples=tuple(example for key in sorted(self._examples) for example in self._examples[key]),
        )

    def _checked(self, place: str) -> Checked:
        sets = [one for one in self._evaluation.sets if one.place == place]
        return Checked(
            texts=sum(len(side) for side in sets[0].sides),
            sha256={one.form: one.sha256 for one in sets},
            rows=self._rows[place],
            found={kind: len(self._found.get((place, kind), ())) for kind in KINDS},
        )


def _count(counted: ConfigCount, label: str | None, matches: dict[str, list[Match]], every: Sequence[Match]) -> None:
    """Count a row: its ``matches`` by column, which are ``every`` one of them."""
    for column, found in matches.items():
        if kind := _strongest(found, SCORED):
            counted.columns[column][kind] += 1
    strongest = _strongest(every, SCORED)
    if strongest:
        counted.kinds[strongest] += 1
        if label is not None:
            counted.labels.setdefault(label, _zeros())[strongest] += 1
    if strongest in (None, "short"):
        counted.train_only += any(match.kind in DROPPED for match in every)


def _zeros() -> dict[Kind, int]:
    return dict.fromkeys(KINDS, 0)


def _strongest(matches: Iterable[Match], splits: Sequence[str], kinds: Sequence[Kind] = KINDS) -> Kind | None:
    found = {one.kind for one in matches if one.kind in kinds and one.place.place.partition("/")[2] in splits}
    return min(found, key=KINDS.index, default=None)


def report(ledger: Ledger) -> str:
    """The ledger's counts, and what was not checked."""
    parts = [f"# {code(ledger.dataset)} against evaluation data", _head(ledger)]
    columns = _by("column", {name: one.columns for name, one in ledger.configs.items()})
    parts += ["## Rows by their strongest match", _configs(ledger), "## Texts by column", columns]
    if labels := _by("label", {name: one.labels for name, one in ledger.configs.items()}):
        parts += ["## Rows by label", labels]
    return "\n\n".join([*parts, "## By evaluation split", _places(ledger.checked)]) + "\n"


def _head(ledger: Ledger) -> str:
    absent = f" Not checked (no files): {', '.join(map(code, ledger.not_checked))}." if ledger.not_checked else ""
    settings = ledger.settings
    recall = f"{100 * float(str(settings['recall'])):.1f} %"
    return (
        f"{len(ledger.checked)} splits with {ledger.sentences:,} distinct sentences were checked.{absent} *exact*: the "
        "same characters; *normal*: the same letters and digits; *near*: character 3-grams with a Jaccard similarity "
        f"of {settings['similarity']} or more, from {settings['near_letters']} letters on (of pairs at "
        f"{settings['similarity']}, {recall} are expected to be found, and more above); *short*: exact or normal "
        f"with fewer than {settings['short_letters']} letters, by chance. Rows are counted against the splits that "
        "scores come from (all, validation, test); *train only* are rows that match train splits alone."
    )


def _counts(counts: Mapping[Kind, int]) -> list[str]:
    return [f"{counts[kind]:,}" for kind in KINDS]


def _configs(ledger: Ledger) -> str:
    rows = [
        [code(name), f"{sum(one.splits.values()):,}", *_counts(one.kinds), f"{one.train_only:,}"]
        for name, one in ledger.configs.items()
    ]
    return table(["config", "rows", *KINDS, "train only"], rows)


def _by(part: str, counted: Mapping[str, Mapping[str, Mapping[Kind, int]]]) -> str:
    """Config → column or label → its counts, as a table; nothing without rows."""
    rows = [
        [f"{code(name)} {code(one)}", *_counts(counts)] for name, of in counted.items() for one, counts in of.items()
    ]
    return table([part, *KINDS], rows) if rows else ""


def _places(checked: Mapping[str, Checked]) -> str:
    rows = [[code(place), f"{one.texts:,}", *_counts(one.rows), *_counts(one.found)] for place, one in checked.items()]
    return table(["split", "texts", *(f"rows {kind}" for kind in KINDS), *(f"found {kind}" for kind in KINDS)], rows)

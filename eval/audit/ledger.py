"""Matches of a dataset's rows with evaluation sentences, counted in a ledger (``hub.contract.measured.Ledger``)."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.audit.command import fill
from eval.audit.evaluation_sentences import EvaluationTexts, Sentences
from eval.audit.source import Batch, DatasetRows
from hub.contract.measured import KINDS, Checked, ConfigCount, Example, Kind, Ledger
from hub.untrusted import code

SCORED = ("all", "validation", "test")  # splits that scores come from; `all` of k-fold tasks
DROPPED: tuple[Kind, ...] = ("exact", "normal", "near")
EXAMPLES = 10  # of every split and kind
COLUMNS = ["row", "column", "text", "label", "kind", "similarity", "sentence", "place", "place_row", "place_side"]

Hits = dict[str, NDArray[np.int8]]  # split → (rows,): 0 keeps a row, k + 1 drops it for KINDS[k]


class Bookkeeper:
    """Matches of all rows, batch by batch, and the ledger of them.

    A row is dropped for its strongest match of ``kinds`` with the evaluation's ``splits``.
    """

    def __init__(
        self,
        sentences: Sentences,
        evaluation: EvaluationTexts,
        kinds: Sequence[Kind] = DROPPED,
        splits: Sequence[str] = SCORED,
    ):
        self.kinds, self.splits, self.hits = tuple(kinds), tuple(splits), dict[str, Hits]()
        self._sentences, self._evaluation, self._checked = sentences, evaluation, list[DatasetRows]()
        self._rows = Counter[tuple[str, ...]]()  # what is counted, e.g. ("column", config, column, kind) → rows
        self._found = defaultdict[tuple[str, Kind], set[str]](set)  # evaluation split and kind → its sentences
        self._examples = defaultdict[tuple[str, Kind], list[Example]](list)  # evaluation split and kind → matches

    def check(self, rows: DatasetRows, progress: Callable[[int], object] = lambda done: None) -> None:
        """Match all rows of a config; ``progress`` is called with the number of rows of each batch."""
        self._checked.append(rows)
        self.hits[rows.config] = {split: np.zeros(count, dtype=np.int8) for split, count in rows.splits.items()}
        for batch in rows.batches():
            if matches := self._matches(batch):
                self._add(rows.config, batch.split, matches)
            progress(len(batch))

    def _matches(self, batch: Batch) -> list[tuple[Any, ...]]:
        """One tuple for each match of a text with an evaluation sentence: the values of ``COLUMNS``."""
        distinct = list(dict.fromkeys(text for texts in batch.texts.values() for text in texts))
        found = dict(zip(distinct, self._sentences.matches(distinct), strict=True))
        labels: Sequence[str | None] = batch.labels or [None] * len(batch)
        return [
            (row, column, text, label, KINDS.index(of.kind), of.similarity, of.sentence, *of.place)
            for row, label, *texts in zip(batch.rows.tolist(), labels, *batch.texts.values(), strict=True)
            for column, text in zip(batch.texts, texts, strict=True)
            for of in found[text]
        ]

    def _add(self, config: str, split: str, matches: list[tuple[Any, ...]]) -> None:
        """Count a batch. All matches of a row are in it, so memory does not grow with their number."""
        import pandas

        table = pandas.DataFrame(matches, columns=COLUMNS)
        part = table["place"].str.partition("/")[2]
        scored, in_splits = table[part.isin(SCORED)], table[part.isin(self.splits)]
        tables = {"place": table, "all": scored.assign(all=""), "column": scored, "label": scored}
        for column, counted in tables.items():
            strongest = counted.groupby([column, "row"])["kind"].min()
            for (value, _), kind in strongest.items():
                self._rows[column, "" if column == "place" else config, str(value), KINDS[kind]] += 1
        dropped = in_splits[in_splits["kind"].isin([KINDS.index(kind) for kind in self.kinds])]
        reasons = dropped.groupby("row")["kind"].min()
        self.hits[config][split][reasons.index] = 1 + reasons.to_numpy(dtype=np.int8)
        short = KINDS.index("short")
        long = (set(one.loc[one["kind"] < short, "row"]) for one in (table, scored))
        self._rows["train_only", config] += len(set.difference(*long))
        for (place, kind), of in table.groupby(["place", "kind"]):
            self._found[place, KINDS[kind]].update(of["sentence"])
            kept = self._examples[place, KINDS[kind]]
            kept += [_example(config, split, one) for one in of.head(EXAMPLES - len(kept)).to_dict("records")]

    def ledger(self) -> Ledger:
        """The counts of all configs checked so far."""

        def counts(what: str, config: str, value: str) -> dict[Kind, int]:
            return {kind: self._rows[what, config, value, kind] for kind in KINDS}

        def of_config(rows: DatasetRows) -> ConfigCount:
            labels = sorted({key[2] for key in self._rows if key[:2] == ("label", rows.config)})
            return ConfigCount(
                splits=rows.splits,
                kinds=counts("all", rows.config, ""),
                train_only=self._rows["train_only", rows.config],
                columns={column: counts("column", rows.config, column) for column in rows.columns},
                labels={label: counts("label", rows.config, label) for label in labels},
            )

        def of_place(place: str) -> Checked:
            sets = [one for one in self._evaluation.sets if one.place == place]
            return Checked(
                texts=sum(len(side) for side in sets[0].sides),
                sha256={one.form: one.sha256 for one in sets},
                rows=counts("place", "", place),
                found={kind: len(self._found.get((place, kind), ())) for kind in KINDS},
            )

        return Ledger(
            dataset=self._checked[-1].name,
            revision=self._checked[-1].revision,
            settings=self._sentences.settings,
            sentences=len(self._sentences),
            checked={one.place: of_place(one.place) for one in self._evaluation.sets},
            not_checked=self._evaluation.absent,
            configs={rows.config: of_config(rows) for rows in self._checked},
            examples=tuple(match for key in sorted(self._examples) for match in self._examples[key]),
        )


def _example(config: str, split: str, match: dict[str, Any]) -> Example:
    digest = hashlib.sha256(match["text"].encode("utf-8", "surrogatepass")).hexdigest()
    known = {name: match[name] for name in match.keys() & Example.model_fields.keys()}
    changed = {"kind": KINDS[match["kind"]], "text_sha256": digest, "similarity": round(match["similarity"], 4)}
    return Example(config=config, split=split, **known | changed)


def report(ledger: Ledger) -> str:
    """The ledger's counts, and what was not checked."""

    def by(counted: Mapping[str, Mapping[str, Mapping[Kind, int]]]) -> list[list[Any]]:
        """Config → column or label → its counts, as rows of a table."""
        return [[code(f"{name} {one}"), *of.values()] for name, found in counted.items() for one, of in found.items()]

    rows = {
        "configs": [
            [code(name), sum(one.splits.values()), *one.kinds.values(), one.train_only]
            for name, one in ledger.configs.items()
        ],
        "columns": by({name: one.columns for name, one in ledger.configs.items()}),
        "labels": by({name: one.labels for name, one in ledger.configs.items()}),
        "places": [
            [code(place), one.texts, *one.rows.values(), *one.found.values()] for place, one in ledger.checked.items()
        ],
    }
    return fill("ledger.md.jinja", ledger=ledger, kinds=list(KINDS), **rows)

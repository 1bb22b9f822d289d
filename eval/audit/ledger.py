"""Matches of a dataset's rows with evaluation sentences, counted in a ledger (``hub.contract.measured.Ledger``)."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eval.audit.evaluation_sentences import EvaluationTexts, Sentences
from eval.audit.render import fill
from eval.audit.source import Batch, DatasetRows
from hub.contract.measured import KINDS, Checked, ConfigCount, Example, Kind, Ledger
from hub.untrusted import code

if TYPE_CHECKING:
    import pandas

SCORED = ("all", "validation", "test")  # splits that scores come from; `all` of k-fold tasks
DROPPED: tuple[Kind, ...] = ("exact", "normal", "near")
EXAMPLES = 10  # of every split and kind
ROW = ["config", "split", "row"]
EXAMPLE = ["place", "kind"]
TYPES = {  # columns of the table of matches; kind: its number in KINDS; place: e.g. sts12/test
    **{"config": "str", "split": "str", "row": "int64", "column": "str", "label": "object", "kind": "int8"},
    **{"similarity": "float64", "sentence": "int64", "place": "str", "place_row": "int64", "place_side": "int64"},
    "text": "object",  # of the first matches of a place and kind
}

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
        self.kinds, self.splits, self._checked = tuple(kinds), tuple(splits), list[DatasetRows]()
        self._sentences, self._evaluation = sentences, evaluation
        import pandas

        self._found = [pandas.DataFrame(columns=[*TYPES]).astype(TYPES)]

    def check(self, rows: DatasetRows, progress: Callable[[int], object] = lambda done: None) -> None:
        """Match all rows of a config; ``progress`` is called with the number of rows of each batch."""
        self._checked.append(rows)
        for batch in rows.batches():
            self._add(rows.config, batch)
            progress(len(batch))

    def _add(self, config: str, batch: Batch) -> None:
        distinct = list(dict.fromkeys(text for texts in batch.texts.values() for text in texts))
        found = dict(zip(distinct, self._sentences.matches(distinct), strict=True))
        labels: Sequence[str | None] = batch.labels or [None] * len(batch)
        matches = [
            (config, batch.split, row, column, label, KINDS.index(of.kind), of.similarity, of.sentence, *of.place, text)
            for row, label, *texts in zip(batch.rows.tolist(), labels, *batch.texts.values(), strict=True)
            for column, text in zip(batch.texts, texts, strict=True)
            for of in found[text]
        ]
        if matches:
            import pandas

            table = pandas.DataFrame(matches, columns=[*TYPES]).astype(TYPES)
            self._found.append(table.assign(text=table["text"].where(table.groupby(EXAMPLE).cumcount() < EXAMPLES)))

    @property
    def matches(self) -> "pandas.DataFrame":
        """A row for each match of a text with an evaluation sentence; ``part`` is the split of that."""
        import pandas

        found = pandas.concat(self._found, ignore_index=True)
        return found.assign(part=[place.partition("/")[2] for place in found["place"]])

    @property
    def hits(self) -> dict[str, Hits]:
        """Config → the rows to drop."""
        matches, kinds = self.matches, [KINDS.index(kind) for kind in self.kinds]
        reasons = _strongest(matches[matches["kind"].isin(kinds) & matches["part"].isin(self.splits)])
        hits = {
            rows.config: {split: np.zeros(count, dtype=np.int8) for split, count in rows.splits.items()}
            for rows in self._checked
        }
        for (config, split, row), kind in reasons.items():
            hits[config][split][row] = 1 + kind
        return hits

    def ledger(self) -> Ledger:
        """The counts of all configs checked so far."""
        matches = self.matches
        examples = matches.groupby(EXAMPLE).head(EXAMPLES)
        examples = examples.assign(kind=[KINDS[kind] for kind in examples["kind"]]).sort_values(EXAMPLE, kind="stable")
        return Ledger(
            dataset=self._checked[-1].name,
            revision=self._checked[-1].revision,
            settings=self._sentences.settings,
            sentences=len(self._sentences),
            checked={one.place: self._place(one.place, matches) for one in self._evaluation.sets},
            not_checked=self._evaluation.absent,
            configs={rows.config: _config(rows, matches[matches["config"] == rows.config]) for rows in self._checked},
            examples=tuple(map(_example, examples.to_dict("records"))),
        )

    def _place(self, place: str, matches: "pandas.DataFrame") -> Checked:
        sets = [one for one in self._evaluation.sets if one.place == place]
        mine = matches[matches["place"] == place]
        return Checked(
            texts=sum(len(side) for side in sets[0].sides),
            sha256={one.form: one.sha256 for one in sets},
            rows=_counts(_strongest(mine)),
            found=_counts(mine.drop_duplicates(["kind", "sentence"])["kind"]),
        )


def _strongest(matches: "pandas.DataFrame") -> "pandas.Series[int]":
    """(config, split, row) → the number of its strongest kind."""
    return matches.groupby(ROW)["kind"].min()


def _counts(kinds: "pandas.Series[int]") -> dict[Kind, int]:
    return {kind: int((kinds == number).sum()) for number, kind in enumerate(KINDS)}


def _config(rows: DatasetRows, matches: "pandas.DataFrame") -> ConfigCount:
    scored = matches[matches["part"].isin(SCORED)]
    dropped, dropped_scored = (_strongest(one[one["kind"] < KINDS.index("short")]) for one in (matches, scored))
    return ConfigCount(
        splits=rows.splits,
        kinds=_counts(_strongest(scored)),
        train_only=len(dropped) - len(dropped_scored),
        columns={column: _counts(_strongest(scored[scored["column"] == column])) for column in rows.columns},
        labels={str(label): _counts(_strongest(of)) for label, of in scored.groupby("label")},
    )


def _example(match: dict[str, Any]) -> Example:
    digest = hashlib.sha256(match["text"].encode("utf-8", "surrogatepass")).hexdigest()
    known = {name: match[name] for name in match.keys() & Example.model_fields.keys()}
    return Example(**known | {"text_sha256": digest, "similarity": round(match["similarity"], 4)})


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

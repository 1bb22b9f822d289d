"""A ledger as Markdown: counts only, names made harmless."""

from collections.abc import Mapping

from eval.decontamination import KINDS, Kind
from eval.decontamination_ledger import Checked, Ledger
from eval.quality_report import code, table


def report(ledger: Ledger) -> str:
    """The ledger's counts, and what was not checked."""
    parts = [f"# {code(ledger.dataset)} against evaluation data", _head(ledger)]
    parts += ["## Rows by their strongest match", _configs(ledger), "## Texts by column", _columns(ledger)]
    if labels := _labels(ledger):
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


def _columns(ledger: Ledger) -> str:
    rows = [
        [f"{code(name)} {code(column)}", *_counts(counts)]
        for name, one in ledger.configs.items()
        for column, counts in one.columns.items()
    ]
    return table(["column", *KINDS], rows)


def _labels(ledger: Ledger) -> str:
    rows = [
        [f"{code(name)} {code(label)}", *_counts(counts)]
        for name, one in ledger.configs.items()
        for label, counts in one.labels.items()
    ]
    return table(["label", *KINDS], rows) if rows else ""


def _places(checked: Mapping[str, Checked]) -> str:
    rows = [[code(place), f"{one.texts:,}", *_counts(one.rows), *_counts(one.found)] for place, one in checked.items()]
    return table(["split", "texts", *(f"rows {kind}" for kind in KINDS), *(f"found {kind}" for kind in KINDS)], rows)

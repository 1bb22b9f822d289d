"""A ledger as Markdown: counts only, names made harmless."""

from collections.abc import Mapping

from eval.audit.tables import code, table
from hub.contract.decontamination import KINDS, Checked, Kind, Ledger


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

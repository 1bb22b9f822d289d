"""A dataset card's tables of what was measured: training value by arm, label fidelity, evaluation sentences."""

from hub.contract.measured import KINDS, Arm, Fidelity, Ledger, TrainingValue
from hub.untrusted import Markdown, code, inline, table

TRAINED_ON: dict[Arm, str] = {
    "untrained": "nothing (untrained)",
    "shuffled": "pairs of this dataset, their scores shuffled",
    "copies": "copies of the first texts (no language model)",
    "dataset": "**pairs of this dataset**",
    "people": "pairs that people wrote or chose, and scored",
}


def value_table(value: TrainingValue) -> Markdown:
    """One row an arm: its mean over tasks, and its paired differences to the copies control and to the dataset."""
    none = Markdown("-")
    rows = [
        [
            Markdown(TRAINED_ON[arm]),
            *(Markdown(cell or "-") for cell in (found.average, found.over_copies, value.over.get(arm))),
        ]
        for arm, found in value.arms.items()
    ]
    rows += [
        [Markdown(TRAINED_ON[arm]), inline(f"not trained: {why}"), none, none] for arm, why in value.skipped.items()
    ]
    return table(["trained on", "Spearman x 100", "over the copies", "this dataset over it"], rows)


def fidelity_table(fidelity: Fidelity) -> Markdown:
    """One row a label: its texts, their cosine with the first text, near-copies, and what an NLI judge says."""
    classes = list(next(iter(fidelity.labels.values())).nli or {})
    header = ["label", "texts", "mean cosine", "near-copies", *(f"NLI: {name}" for name in classes)]
    rows = [
        [code(label), of.texts, Markdown(of.cosine), *map(_percent, (of.near_copies, *(of.nli or {}).values()))]
        for label, of in fidelity.labels.items()
    ]
    return table(header, rows)


def people_table(fidelity: Fidelity) -> Markdown:
    """One row a person, without a name: answers, and their agreement with the labels."""
    rows = []
    for number, of in enumerate(fidelity.people, 1):
        same = Markdown(f"{of.same.value:.0f} % [{of.same.low:.0f}, {of.same.high:.0f}]")
        rows.append([number, of.answers, same, Markdown(of.kappa or "undefined")])
    return table(["person", "answers", "equal labels", "Cohen's κ"], rows)


def ledger_table(ledger: Ledger) -> Markdown:
    """One row a config: its rows, and those of them that match evaluation data, by their strongest match."""
    rows = [
        [code(config), sum(of.splits.values()), *(of.kinds[kind] for kind in KINDS), of.train_only]
        for config, of in ledger.configs.items()
    ]
    return table(["config", "rows", *KINDS, "train parts alone"], rows)


def _percent(share: float) -> Markdown:
    return Markdown(f"{100 * share:.1f} %")

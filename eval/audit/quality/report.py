"""A dataset's quality as Markdown. No text of the dataset is shown; names of columns and labels are made harmless."""

from collections.abc import Iterable, Sequence

from eval.audit.quality.measures import Column, Measure, NliAgreement, Quality, Share
from eval.audit.tables import code, table
from hub.contract.recipe import NLI_LABELS
from hub.papers.tables import find_paper

CLASSIFIER = "deberta-v2-xxlarge-mnli"  # of Auto-NLI's Table 1


def report(quality: Quality, pictures: Iterable[str]) -> str:
    """The whole report; ``pictures`` are the file names of its plots."""
    parts = [f"# Quality of {code(quality.dataset)} ({code(quality.config)})", _head(quality)]
    if quality.nli is not None:
        parts += ["## Agreement with an NLI model", _nli_words(quality.nli), _nli(quality.nli), *_paper(quality.nli)]
    for measure in quality.measures:
        parts += [
            f"## Pairs by label: {measure.name}",
            f"Of the embeddings of {code(measure.source)} ({code(measure.revision or '')})." if measure.source else "",
            _measure(measure),
            _separations(measure),
        ]
    words = f"Lengths in {quality.length_unit}; *normal* compares letters and digits alone, without case."
    parts += ["## Texts", words, _texts(quality.columns), _distinct(quality.columns)]
    parts += ["## Repeats", _repeats(quality), *(f"![{name}]({name})" for name in pictures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown_share(share: Share | None) -> str:
    """A share with its interval, e.g. ``0.900 [0.874, 0.922]``."""
    return "–" if share is None else f"{share.share:.3f} [{share.low:.3f}, {share.high:.3f}]"


def _head(quality: Quality) -> str:
    total = sum(quality.splits.values())
    read = "all" if quality.rows == total else f"{quality.rows:,} drawn at random (seed {quality.seed}) of the"
    splits = ", ".join(f"{code(name)} {rows:,}" for name, rows in quality.splits.items())
    return f"{read} {total:,} rows ({splits}) of the form {code(quality.form)}; revision {code(quality.revision)}."


def _nli_words(nli: NliAgreement) -> str:
    return (
        f"Share of pairs that {code(nli.model)} (revision {code(nli.revision)}) puts into each class, by label, with "
        "95 % Wilson intervals; the pairs of one first text are not independent, so these are somewhat too narrow. "
        "*agreement* is the share of the class that the label stands for (Auto-NLI, Table 1)."
    )


def _nli(nli: NliAgreement) -> str:
    rows = [
        [code(row.label), f"{row.predicted[NLI_LABELS[0]].n:,}"]
        + [shown_share(row.predicted[name]) for name in NLI_LABELS]
        + [shown_share(row.agreement)]
        for row in nli.labels
    ]
    if nli.agreement is not None:
        rows.append(["all", f"{nli.agreement.n:,}", "", "", "", shown_share(nli.agreement)])
    return table(["label", "pairs", *NLI_LABELS, "agreement"], rows)


def _paper(nli: NliAgreement) -> list[str]:
    """The paper's Table 1, with the dataset's own row where the classifier is the paper's, and what it is."""
    paper = find_paper("auto-nli")
    table1 = paper.table(1)
    labels = [column.name.lower() for column in table1.columns]
    rows = [[row.name, *("–" if value is None else f"{value:.3f}" for value in row.values)] for row in table1.rows]
    told = f"In {paper.source(table1)} the classifier is {code(CLASSIFIER)}"
    if nli.model.rpartition("/")[2].lower() == CLASSIFIER:
        told += ", as here."
        ours = {row.intended: shown_share(row.agreement) for row in nli.labels if row.intended}
        rows.append(["**this dataset**", *(ours.get(label, "–") for label in labels)])
    else:
        told += ": another than here, so these shares are of another scale and stand apart."
    return [told, table(["agreement", *labels], rows)]


def _measure(measure: Measure) -> str:
    quantiles = list(measure.labels[0].quantiles)
    rows = [
        [
            code(one.label),
            f"{one.n:,}",
            f"{one.mean:.3f}",
            f"{one.sd:.3f}",
            *(f"{one.quantiles[q]:.3f}" for q in quantiles),
        ]
        for one in measure.labels
    ]
    return table(["label", "pairs", "mean", "sd", *(f"{100 * float(q):g} %" for q in quantiles)], rows)


def _separations(measure: Measure) -> str:
    if not measure.separations:
        return ""
    told = [f"{code(one.lower)} < {code(one.higher)}: {one.auc:.3f}" for one in measure.separations]
    return f"Chance that a pair of the next label has the larger value (AUC): {', '.join(told)}."


def _texts(columns: Iterable[Column]) -> str:
    header = ["column", "texts", "empty", "under 3", "4 to 32", "mean length", "different", "different, normal"]
    rows = [
        [
            code(one.name),
            *(f"{count:,}" for count in (one.texts, one.empty, one.short)),
            shown_share(one.between_4_and_32),
            f"{one.mean_length:.1f}",
            *(f"{count:,}" for count in (one.different, one.different_normal)),
        ]
        for one in columns
    ]
    return table(header, rows)


def _distinct(columns: Sequence[Column]) -> str:
    rows = [
        [code(one.name), f"{one.distinct[0].texts:,}", *(f"{d.ratio:.3f}" for d in one.distinct)] for one in columns
    ]
    return table(["column", "texts drawn", *(f"distinct-{d.n}" for d in columns[0].distinct)], rows)


def _repeats(quality: Quality) -> str:
    found = quality.repeats
    header = ["", "exact", "normal"]
    rows = [["rows that repeat an earlier one", f"{found.exact:,}", f"{found.normal:,}"]]
    if len(quality.columns) > 1:
        rows.append(
            ["rows whose first two texts are the same", f"{found.same_sides:,}", f"{found.same_sides_normal:,}"]
        )
    return table(header, rows)

"""A dataset's quality as Markdown. No text of the dataset is shown; names of columns and labels are made harmless."""

import unicodedata
from collections.abc import Iterable, Sequence

from eval.quality_measures import Column, Measure, NliAgreement, Quality, Share
from hub.recipe import NLI_LABELS
from hub.reference import find_paper

NAME_LIMIT = 72
CLASSIFIER = "deberta-v2-xxlarge-mnli"  # of Auto-NLI's Table 1
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # control, format, surrogate, private use, line and paragraph separators


def report(quality: Quality, pictures: Iterable[str]) -> str:
    """The whole report; ``pictures`` are the file names of its plots."""
    parts = [f"# Quality of {code(quality.dataset)} ({code(quality.config)})", _head(quality)]
    if quality.nli is not None:
        parts += ["## Agreement with an NLI model", _nli_words(quality.nli), _nli(quality.nli)]
        parts += [_paper_words(quality.nli), _paper(quality.nli)]
    for measure in quality.measures:
        parts += [
            f"## Pairs by label: {measure.name}",
            _measure_words(measure),
            _measure(measure),
            _separations(measure),
        ]
    parts += ["## Texts", _texts_words(quality), _texts(quality.columns), _distinct(quality.columns)]
    parts += ["## Repeats", _repeats(quality), *(f"![{name}]({name})" for name in pictures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def code(name: str) -> str:
    """A name as a code span that no name can leave, on one line and of bounded length."""
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in HIDDEN else char for char in name)
    shown = shown if len(shown) <= NAME_LIMIT else shown[: NAME_LIMIT - 1] + "…"
    return f"`{shown.replace('`', 'ˋ').replace('|', '¦').replace(chr(92), '⧵') or ' '}`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of finished cells, the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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


def _paper_words(nli: NliAgreement) -> str:
    paper = find_paper("auto-nli")
    told = f"In {paper.source(paper.table(1))} the classifier is {code(CLASSIFIER)}"
    if _is_papers(nli):
        return f"{told}, as here."
    return f"{told}: another than here, so these shares are of another scale and stand apart."


def _paper(nli: NliAgreement) -> str:
    """The paper's Table 1, with the dataset's own row where the classifier is the paper's."""
    table1 = find_paper("auto-nli").table(1)
    labels = [column.name.lower() for column in table1.columns]
    rows = [[row.name, *("–" if value is None else f"{value:.3f}" for value in row.values)] for row in table1.rows]
    if _is_papers(nli):
        ours = {row.intended: shown_share(row.agreement) for row in nli.labels if row.intended}
        rows.append(["**this dataset**", *(ours.get(label, "–") for label in labels)])
    return table(["agreement", *labels], rows)


def _is_papers(nli: NliAgreement) -> bool:
    return nli.model.rpartition("/")[2].lower() == CLASSIFIER


def _measure_words(measure: Measure) -> str:
    return f"Of the embeddings of {code(measure.source)} ({code(measure.revision or '')})." if measure.source else ""


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


def _texts_words(quality: Quality) -> str:
    return f"Lengths in {quality.length_unit}; *normal* compares letters and digits alone, without case."


def _texts(columns: Iterable[Column]) -> str:
    header = ["column", "texts", "empty", "under 3", "4 to 32", "mean length", "different", "different, normal"]
    return table(header, [[code(one.name), *_counts(one)] for one in columns])


def _counts(column: Column) -> list[str]:
    before = [f"{count:,}" for count in (column.texts, column.empty, column.short)]
    after = [f"{column.mean_length:.1f}", f"{column.different:,}", f"{column.different_normal:,}"]
    return [*before, shown_share(column.between_4_and_32), *after]


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

"""The tables of a report: a header and rows of texts, from facts alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hub.contract.licences import Verdict
from hub.contract.published_paths import origin_name
from model_cards.dataset.tables import LINE_REASONS, REASONS, label_names, ordered_reasons
from model_cards.shared.facts import TrainingFacts
from sts_dino.report.collect import Cost, DatasetFacts, Facts, Judgements, ModelFacts

SPACE = "\N{NO-BREAK SPACE}"  # a number and its interval stay on one line


@dataclass(frozen=True)
class Table:
    """A header and rows. ``words``: the columns that hold words; the others hold numbers, flush right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)


def interval(low: float, high: float) -> str:
    """Both ends, to one decimal."""
    return f"{low:.1f},{SPACE}{high:.1f}"


def percent(share: float) -> str:
    """A share of 1 in percent, without decimals."""
    return f"{100 * share:.0f}{SPACE}%"


def signed(number: float) -> str:
    """A difference with its sign, to one decimal; the minus sign is a real one."""
    return f"{number:+.1f}".replace("-", "\N{MINUS SIGN}")


def labels(found: DatasetFacts) -> Table:
    """What was asked for, kept and rejected of every label, and its rows in the finished config."""
    assert found.counts is not None
    counts, totals = found.counts, found.sample.totals if found.sample else {}
    rows = []
    for name in label_names(found.recipe, counts):
        one = counts.by_label[name]
        share = percent(one.kept / one.requested) if one.requested else ""
        rows.append(
            [name, f"{one.requested:,}", f"{one.kept:,}", share, f"{one.rejected:,}", f"{totals.get(name, 0):,}"]
        )
    for name in totals.keys() - counts.by_label.keys():
        rows.append([name, "", "", "", "", f"{totals[name]:,}"])
    config = found.sample.config if found.sample else "none"
    return Table(["label", "asked for", "kept", "share", "rejected", f"rows in {config}"], rows)


def reasons(found: DatasetFacts) -> Table:
    """Why texts were rejected, in words, label by label where that was counted."""
    assert found.counts is not None
    counts = found.counts
    names = label_names(found.recipe, counts)
    names = names if any(counts.by_label[name].reasons for name in names) else []
    meanings = LINE_REASONS if found.recipe.decoding.text_end == "line" else REASONS
    rows = [
        [reason, meanings.get(reason, "").replace("`", "")]
        + [f"{counts.by_label[name].reasons.get(reason, 0):,}" for name in names]
        + [f"{counts.rejected[reason]:,}"]
        for reason in ordered_reasons(counts.rejected, meanings)
    ]
    return Table(["reason", "what it means", *names, "all"], rows, words=(0, 1))


def similarities(found: DatasetFacts) -> Table:
    """Quartiles of each label's cosines, an encoder after the other."""
    rows = []
    for label in found.sample.pairs if found.sample else ():
        for encoder, of in found.cosines.items():
            low, middle, high = np.percentile(of[label], [25, 50, 75])
            rows.append(
                [label, encoder, f"{len(of[label]):,}", f"{middle:.2f}", f"{low:.2f}{SPACE}to{SPACE}{high:.2f}"]
            )
    return Table(["label", "encoder", "pairs", "median", "middle half"], rows, words=(0, 1))


def fidelity(found: DatasetFacts) -> Table | None:
    """What an independent judge says of each label's texts."""
    measured = found.measured.fidelity
    if measured is None:
        return None
    rows = [
        [label, f"{of.texts:,}", str(of.cosine), f"{of.near_copies:.1%}", f"{of.word_overlap:.2f}"]
        for label, of in measured.labels.items()
    ]
    return Table(["label", "texts", "cosine [95 % interval]", "near-copies", "word overlap"], rows)


def agreement(found: Judgements) -> Table:
    """Each encoder's correlation with people's judgements."""
    rows = [[one.encoder, f"{one.spearman:.1f}", f"{one.low:.1f}{SPACE}to{SPACE}{one.high:.1f}"] for one in found.rows]
    return Table(["encoder", "Spearman", "95 % interval"], rows)


def value(found: DatasetFacts) -> Table | None:
    """What an encoder gains from a dataset, arm by arm."""
    measured = found.measured.value
    if measured is None:
        return None
    rows = [[arm, str(of.average), str(of.over_copies or "")] for arm, of in measured.arms.items()]
    return Table(["trained on", "score [95 % interval]", "over the copies control"], rows)


def training(found: ModelFacts, told: TrainingFacts) -> Table:
    """What was trained, on what and for how long."""
    assert found.provenance is not None
    base = found.recipe.base
    rows = [["base", origin_name(base.repo_id, base.path)]]
    for item in found.provenance.datasets:
        split = ", ".join(f"{name} {rows:,}" if rows is not None else name for name, rows in item.splits.items())
        rows.append(
            ["trained on", f"{origin_name(item.repo_id, item.path)} ({item.config}; rows: {split}), {item.loss}"]
        )
    kept = f", of which step {told.best_step:,} was kept" if told.best_step is not None else ""
    rows += [["steps", f"{told.steps:,}{kept}"], ["epochs", f"{told.epochs:g}"]]
    rows.append(["rows of a step", f"{told.batch_size:,}" + (f" on {told.processes} devices" * (told.processes > 1))])
    if told.validation_score is not None:
        metric = told.validation_metric or "score"
        rows.append(["on validation", f"{metric} {told.validation_score:.4f}"])
    return Table(["", ""], [*rows, ["seed", str(told.seed)]], words=(0, 1))


def costs(facts: Facts) -> Table:
    """What each run took, as its stages noted it."""
    rows = [[one.manifest.name, *_cost(one.cost, _tokens(one))] for one in facts.datasets]
    rows += [[one.manifest.name, *_cost(one.cost, "")] for one in facts.models]
    header = ["run", "seconds of work", "rows a second", "most memory", "tokens", "money"]
    filled = [column for column in range(len(header)) if any(row[column] for row in rows)]
    return Table([header[column] for column in filled], [[row[column] for column in filled] for row in rows])


def _cost(cost: Cost, tokens: str) -> list[str]:
    timing, usage = cost.timing, cost.usage
    seconds, rows = timing.get("seconds"), timing.get("rows")
    rate = timing.get("samples_per_second") or (rows / seconds if rows and seconds else None)
    peaks = [("", timing.get("peak_rss_mb")), (" on the GPU", timing.get("peak_gpu_mb"))]
    if usage.get("prompt_tokens") is not None:
        tokens = f"{usage['prompt_tokens']:,} read, {usage['completion_tokens']:,} written"
    money = "" if usage.get("cost") is None else f"{usage['cost']:.4f} in the server's currency"
    memory = ", ".join(f"{peak:,.0f} MB{where}" for where, peak in peaks if peak)
    return [
        f"{seconds:,.1f}" if seconds is not None else "not noted",
        f"{rate:,.1f}" if rate is not None else "",
        memory,
        tokens,
        money,
    ]


def _tokens(found: DatasetFacts) -> str:
    """The tokens of kept texts, where lengths were counted in tokens."""
    lengths = found.counts.token_lengths if found.counts else None
    if lengths is None or lengths.unit != "tokens":
        return ""
    return f"{sum(size * texts for of in lengths.by_label.values() for size, texts in of.items()):,} of kept texts"


def licences(facts: Facts) -> list[dict[str, Any]]:
    """Each run's licence, its parts with theirs, and what its users should know."""
    told = [(one.manifest.name, one.verdict) for one in facts.runs]
    return [
        {"name": name, "licence": verdict.licence, "parts": list(_parts(verdict)), "notes": verdict.notes}
        for name, verdict in told
        if verdict is not None
    ]


def _parts(verdict: Verdict) -> Iterator[tuple[str, Any]]:
    for part in verdict.parts:
        yield f"{part.role}: {part.what}", part.licence
        for portion, leaf in zip(part.licence.parts, part.licence.leaves(), strict=False):
            yield portion.what, leaf

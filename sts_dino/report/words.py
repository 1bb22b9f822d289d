"""What a report says in sentences: the summary, what was not measured, and how numbers are told."""

from collections.abc import Iterator
from pathlib import PurePath

from hub.contract.results import Gain, Results, TaskScore, by_task
from model_cards.dataset.progress import done_so_far
from sts_dino.report.collect import DatasetFacts, Facts, ModelFacts
from sts_dino.report.scores import headline
from sts_dino.report.tables import interval, percent, signed


def summary(facts: Facts) -> list[str]:
    """What was made and what it is worth, in a sentence for each run."""
    return [*map(of_dataset, facts.datasets), *map(of_model, facts.models)]


def of_dataset(found: DatasetFacts) -> str:
    """What was written, in a sentence."""
    name = found.manifest.name
    if found.counts is None:
        assert found.progress is not None
        return f"{name} is not finished: {done_so_far(found.manifest, found.progress).replace('`', '')}"
    counts, labels = found.counts, len(found.counts.by_label)
    model = found.recipe.model
    named = model.repo_id or model.gguf_file or PurePath(model.path or "").name
    generator = model.server.model if model.server else named
    kept = (
        f"{counts.kept:,} ({percent(counts.kept / counts.requested)}) were kept"
        if counts.requested
        else "none was kept"
    )
    return (
        f"For {counts.sources:,} first texts and {labels} label{'s' * (labels != 1)}, {generator} wrote "
        f"{counts.requested:,} texts, of which {kept} as {name}."
    )


def of_model(found: ModelFacts) -> str:
    """What was trained and what it scores, in a sentence."""
    name = found.manifest.name
    if found.provenance is None:
        return f"{name} is not trained to the end yet."
    training = found.provenance.training
    rows = [next(iter(item.splits.values())) for item in found.provenance.datasets]  # validation, if any, comes second
    made = f"{name} is the base as it is, trained on nothing"
    if training is not None:
        on = f" on {sum(map(int, filter(None, rows))):,} rows" if rows and None not in rows else ""
        made = f"{name} was trained{on} in {training.steps:,} steps"
    return f"{made}{_scored(found.results)}."


def _scored(results: Results | None) -> str:
    score = headline(results) if results else None
    if results is None or score is None:
        return "; it was not scored"
    told = f" and scores {score.main_score:.1f}{_around(score)} on {score.task} {score.split}"
    key = score.task, score.split
    gain, over = by_task(results.gains).get(key), by_task(results.over_control).get(key)
    told += f", {_difference(gain)} the untrained encoder" if gain else ""
    joined = " and" if gain else ","
    return told + (f"{joined} {_difference(over)} the copies control, which needs no language model" if over else "")


def _around(score: TaskScore) -> str:
    around = score.interval()
    return f" [{interval(*around)}]" if around else ""


def _difference(gain: Gain) -> str:
    verdict = "not separable from" if gain.verdict == "not separable" else "to be compared with"
    if gain.verdict in ("better", "worse", None):
        verdict = "above" if gain.difference >= 0 else "below"
        return f"{abs(gain.difference):.1f} points [{signed(gain.low)}, {signed(gain.high)}] {verdict}"
    return f"{signed(gain.difference)} points [{signed(gain.low)}, {signed(gain.high)}], {verdict}"


def not_measured(facts: Facts) -> list[str]:
    """What a reader may look for and will not find, each with the command that measures it where there is one."""
    found = [line for one in facts.datasets for line in _missing_of_dataset(one)]
    found += [line for one in facts.models for line in _missing_of_model(one)]
    if facts.judgements is None:
        found.append("People's own judgements of the pairs: nobody was asked (sts-dino annotate).")
    return [*found, *_missing_cost(facts), "Facts in the texts: whether what they say is true was not looked at."]


def _missing_of_dataset(found: DatasetFacts) -> Iterator[str]:
    name, measured = found.manifest.name, found.measured
    if found.counts is None:
        yield f"{name}: keep rates and reasons, which are counted when the run is finished."
        return
    if not found.cosines:
        reason = (
            "no trained encoder is in this report" if found.sample and found.sample.has_pairs else "it has no pairs"
        )
        yield f"{name}: cosine similarity by label, since {reason}."
    if measured.fidelity is None:
        yield f"{name}: how well texts fit their labels by a judge that took no part (sts-dino fidelity)."
    if measured.value is None:
        yield f"{name}: its training value beside controls, over several seeds (sts-dino value)."
    if measured.ledger is None:
        yield f"{name}: whether evaluation sentences are in it (sts-dino decontaminate)."


def _missing_of_model(found: ModelFacts) -> Iterator[str]:
    name, results = found.manifest.name, found.results
    if found.provenance is None:
        yield f"{name}: everything, until its training is finished."
        return
    if results is None:
        yield f"{name}: its scores (sts-dino score)."
        return
    if found.provenance.training is not None and not results.base_scores:
        yield f"{name}: the scores of the untrained encoder."
    if found.provenance.training is not None and not results.control_scores:
        yield f"{name}: the copies control (control: simcse in the recipe, made by sts-dino release)."
    if any(score.interval() is None for score in results.scores):
        yield f"{name}: intervals where a table says none; the program that scored kept no outcomes of rows."
    if not any(score.split in ("test", "all") for score in results.scores):
        yield f"{name}: a test split; its scores are those of validation data."


def _missing_cost(facts: Facts) -> Iterator[str]:
    if not any(one.cost.timing for one in facts.runs):
        yield "Time: no stage's note of its seconds lies beside these runs."
    yield "Energy: no stage measures it."
    if not any(one.cost.usage.get("cost") is not None for one in facts.runs):
        yield "Money: no price was given for any of it."
    yield "The machine: no stage notes its name or processor."

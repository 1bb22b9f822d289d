"""What came of ``sts-dino adapt``, read from its folder: rows, keep rates, cosines before and after, scores, seconds.

Beside it, how encoders rank the examples of the prompts: twenty first sentences with a sentence for each label, written
by hand (``assets/examples``). The language model saw them in its prompts; no encoder was trained on them.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.trials import quiet
from eval.audit.agreement import agreements, encoder_facts
from eval.encoders.embeddings import cosine
from eval.encoders.load import MINILM, Encoder, load_encoder, minilm
from generation.inputs.file_rows import file_rows
from hub.assets import asset
from hub.contract.results import Results
from release.copies_control import places
from sts_dino.proposals.recipes import languages
from sts_dino.report.facts import collect

LABELS = ("1", "0.5", "0")  # of the sentences of an example, in the order of its columns
COLUMNS = ("text1", *LABELS)


def figures(made: Path, pairs: Path, encoder: Path) -> dict[str, Any]:
    """The figures of a finished adaptation in ``made``. Raises InputError where a run is not whole."""
    quiet()
    found = collect([pairs, encoder], made / "report.cosines.json", (), None)
    (dataset,), (model,) = found.datasets, found.models
    assert dataset.counts is not None and dataset.sample is not None
    counts = dataset.counts.by_label
    steps = json.loads((made / "steps.json").read_text(encoding="utf-8"))
    return {
        "language": dataset.recipe.language,
        "first_texts": dataset.counts.sources,
        "asked_for": {label: one.requested for label, one in counts.items()},
        "kept": {label: one.kept for label, one in counts.items()},
        "rejected": dict(dataset.counts.rejected),
        "rows": dict(dataset.sample.totals),
        "median_cosine": {
            when: {label: round(median(values), 3) for label, values in of.items()}
            for when, of in dataset.cosines.items()
        },
        "scores": scores(model.results) if model.results else {},
        "step_seconds": {name: step["seconds"] for name, step in steps.items()},
        "estimate": json.loads((made / "estimate.json").read_text(encoding="utf-8"))["estimate"],
        "written_by_hand": written_by_hand(dataset.recipe.language, encoder),
    }


def scores(results: Results) -> dict[str, dict[str, float]]:
    """Encoder → task and split → score."""
    of = {"trained": results.scores, "copies control": results.control_scores, "untrained": results.base_scores}
    return {name: {f"{one.task} {one.split}": one.main_score for one in found} for name, found in of.items()}


def examples_of(language: str) -> list[tuple[str, str, float]]:
    """First text, second text and score of every pair that was written by hand in a language."""
    path = asset(f"examples/{languages()[language]['examples']}")
    pairs = zip(LABELS, range(1, len(COLUMNS)), strict=True)
    rows = list(file_rows(path, COLUMNS, str(path)))
    return [(cells[0], cells[place], float(label)) for label, place in pairs for cells in rows]


def written_by_hand(language: str, folder: Path) -> list[dict[str, object]]:
    """How the encoder in ``folder``, its control, its untrained start and MiniLM rank pairs written by hand."""
    base, control = folder.with_name(f"{folder.name}.base"), places(folder)[1]
    folders = {"trained": folder, "copies control": control, "untrained": base, MINILM: minilm()}
    encoders = {name: load_encoder(str(place)) for name, place in folders.items()}
    pairs = examples_of(language)
    first, second, scores = (list(column) for column in zip(*pairs, strict=True))
    cosines = {name: _cosines(encoder, first, second) for name, encoder in encoders.items()}
    return encoder_facts(agreements(scores, first, cosines, {"trained": "untrained", "copies control": "untrained"}))


def _cosines(encoder: Encoder, first: list[str], second: list[str]) -> list[float]:
    return [float(value) for value in cosine(encoder)(first, second)]

"""The facts of a report: those of cards, and the cost, the drawn pairs and their cosines, and human judgements."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from eval.audit.agreement import agreements
from eval.audit.source import find_rows
from eval.audit.survey import FILE, AnswerStore, read_examples
from eval.encoders.load import MINILM, minilm, minilm_here
from eval.runs.job import COPIES, beside_model
from eval.runs.records import BASE, beside
from hub.contract.run_dir import require_manifest
from hub.errors import InputError
from model_cards.facts import DatasetFacts, ModelFacts
from model_cards.rows import GROWING_SHARDS, first_rows, ordered_shards, sample_config, targets_of
from model_cards.scores import SIMCSE, TRAINED
from sts_dino.report.pairs import Cosines, Pair, Sample, cosines_of, draw

SHOWN_OF_GROWING = 4  # rows of a label
SPLIT = "train"  # the default split of sts-dino annotate
JUDGED = "judged"
NOTE = "The pairs are of the training split: an encoder trained on it has seen them, under the generator's labels."


@dataclass(frozen=True)
class Correlation:
    """Spearman x 100 of an encoder's cosines with human scores, and its 95 % interval."""

    encoder: str
    spearman: float
    low: float
    high: float


@dataclass(frozen=True)
class Judgements:
    """The agreement of encoders with the human scores of ``pairs`` pairs, and a ``note`` for the reader."""

    pairs: int
    rows: tuple[Correlation, ...]
    note: str = ""


@dataclass(frozen=True)
class DatasetPage:
    """A dataset in a report. ``cosines``: side of ``encoder`` → label → cosines of the pairs of ``sample``."""

    facts: DatasetFacts
    cost: Mapping[str, Any]
    sample: Sample | None
    cosines: dict[str, Cosines] = field(default_factory=dict)
    encoder: str = ""
    was_trained_on: bool = False
    judged: Cosines = field(default_factory=dict)  # by the independent encoder of fidelity.json


@dataclass(frozen=True)
class ReportFacts:
    """Everything that a report prints. ``costs``: of the models, in their order."""

    datasets: tuple[DatasetPage, ...]
    models: tuple[ModelFacts, ...]
    costs: tuple[Mapping[str, Any], ...]
    commands: tuple[str, ...]
    judgements: Judgements | None

    @property
    def runs(self) -> tuple[DatasetFacts | ModelFacts, ...]:
        """The runs of datasets, then of models."""
        return (*(one.facts for one in self.datasets), *self.models)


def collect(
    runs: Sequence[Path],
    commands: Sequence[str] = (),
    annotations: Sequence[Path] = (),
) -> ReportFacts:
    """The facts of run directories. ``annotations``: folders of answers.

    Raises InputError for a folder that is not a run directory, damaged files, and numbers that disagree.
    """
    found = [(directory, require_manifest(directory)) for directory in runs]
    models = tuple(ModelFacts.read(*one, evaluation=beside(one[0])) for one in found if one[1].kind == "model")
    datasets = tuple(_dataset(DatasetFacts.read(*one), models) for one in found if one[1].kind == "dataset")
    judgements = read_judgements(annotations, datasets, models) if annotations else None
    facts: tuple[DatasetFacts | ModelFacts, ...] = (*(one.facts for one in datasets), *models)
    recorded = [one.provenance.command for one in facts if one.provenance is not None]
    costs = tuple(cost_of(one.directory) for one in models)
    return ReportFacts(datasets, models, costs, tuple(commands or recorded), judgements)


def cost_of(directory: Path) -> dict[str, Any]:
    """Timing and usage beside a run directory. Raises InputError for a file that is not JSON."""
    cost: dict[str, Any] = {}
    for kind in ("timing", "usage"):
        path = directory.with_name(f"{directory.resolve().name}.{kind}.json")
        try:
            cost |= json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (ValueError, TypeError) as error:
            raise InputError(path, "is not a JSON object", hint="remove it: it holds the cost alone") from error
    return cost


def _dataset(facts: DatasetFacts, models: Sequence[ModelFacts]) -> DatasetPage:
    """A dataset with its pairs' cosines under the first encoder trained on it, else under the first encoder."""
    sample, cost = _sample(facts), cost_of(facts.directory)
    names = {facts.manifest.name, facts.directory.resolve().name}
    trained = [model for model in models if model.training]
    sets = [model.provenance.datasets if model.provenance else () for model in trained]
    read = [{Path(item.path or item.repo_id or "").name for item in items} for items in sets]
    own = [model for model, found in zip(trained, read, strict=True) if names & found]
    if sample is None or not sample.drawn or not sample.has_pairs or not trained:
        return DatasetPage(facts, cost, sample, judged=_judged(facts, sample))
    model = (own or trained)[0]
    cosines = cosines_of(sample, _encoders(model, {model.recipe.base.start: BASE}))
    return DatasetPage(facts, cost, sample, cosines, model.manifest.name, bool(own), _judged(facts, sample))


def _judged(facts: DatasetFacts, sample: Sample | None) -> Cosines:
    """The cosines of a drawn English sample by the judge of fidelity.json, where it is the packaged one; else none."""
    is_packaged = facts.fidelity is not None and facts.fidelity.judge.name == MINILM and minilm_here()
    is_read = facts.recipe.language == "en"  # the packaged judge knows no other language
    if sample is None or not sample.drawn or not sample.has_pairs or not is_packaged or not is_read:
        return {}
    return cosines_of(sample, {MINILM: minilm()})[MINILM]


def _sample(facts: DatasetFacts) -> Sample | None:
    manifest = facts.manifest
    config, labels = sample_config(manifest, facts.recipe), targets_of(facts.recipe)
    if config is None or not any(file.rows for file in manifest.shards(config)):
        return None
    if manifest.complete:
        return draw(find_rows(str(facts.directory), config), labels)
    shards = [file for file in ordered_shards(manifest, config) if file.rows][:GROWING_SHARDS]
    found = first_rows(facts.directory, shards, "target", labels, SHOWN_OF_GROWING)
    pairs = {label: tuple(Pair(one["text1"], one["text2"] or "") for one in rows) for label, rows in found.items()}
    return Sample(config, {label: some for label, some in pairs.items() if some}, {}, drawn=False)


def _encoders(model: ModelFacts, sides: Mapping[str, str]) -> dict[str, Path]:
    """Side → folder of the encoders that training left beside a model, and of the model itself."""
    found = {name: beside_model(str(model.directory), suffix) for name, suffix in sides.items()}
    return {name: Path(place) for name, place in found.items() if place} | {TRAINED: model.directory}


def read_judgements(
    places: Sequence[Path], datasets: Sequence[DatasetPage], models: Sequence[ModelFacts]
) -> Judgements:
    """Spearman's correlation of each encoder's cosines with the mean human scores in the folders ``places``.

    Raises InputError for answers to other rows, labels without an order, too few answers, and without an encoder.
    """
    pairs = tuple(pair for place in places for pair in judged_pairs(place, datasets))
    encoders = {
        f"{model.manifest.name}, {side}": folder
        for model in models
        if model.manifest.complete
        for side, folder in _encoders(model, {model.recipe.base.start: BASE, SIMCSE: COPIES}).items()
    }
    if not encoders:
        raise InputError("--annotations", "no trained encoder is given to compare with", hint="name its run directory")
    cosines = cosines_of(Sample(JUDGED, {JUDGED: pairs}, {JUDGED: len(pairs)}), encoders)
    scores, first = [float(pair.score or 0) for pair in pairs], [pair.first for pair in pairs]
    found = agreements(scores, first, {name: of[JUDGED] for name, of in cosines.items()})
    rows = (Correlation(name, 100 * one.value, 100 * one.low, 100 * one.high) for name, one in found.items())
    return Judgements(len(pairs), tuple(rows), NOTE)


def judged_pairs(place: Path, datasets: Sequence[DatasetPage]) -> list[Pair]:
    """The annotated pairs, each with the mean of its human scores."""
    if not (place / FILE).is_file():
        raise InputError(place, f"holds no answers (no {FILE})", hint="run: sts-dino annotate RUN_DIR")
    refused: InputError | None = None
    for one in (found.facts for found in datasets if found.facts.manifest.complete):
        examples = read_examples(find_rows(str(one.directory), split=SPLIT))
        try:
            store = AnswerStore(place, examples)
        except InputError as error:
            refused = error
            continue
        if not examples.scale.ordered:
            raise InputError(place, f"answers about {examples.name} have no order", allowed="similarity scores")
        scores = defaultdict[int, list[float]](list)  # by row, as labels of all annotators
        for row, label in (given for rows in store.answers().values() for given in rows.items()):
            scores[row].append(float(label))
        return [Pair(examples.texts[row][0], examples.texts[row][1], fmean(scores[row])) for row in sorted(scores)]
    raise refused or InputError("--annotations", "no finished dataset is given", hint="name the annotated run")

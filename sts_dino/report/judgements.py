"""How encoders agree with people who judged pairs of a dataset blind (``sts-dino annotate``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from eval.audit.agreement import Estimate, agreements, mean_scores
from eval.audit.source import find_rows
from eval.audit.survey import FILE, AnswerStore, read_examples
from eval.runs.job import COPIES, beside_model
from eval.runs.records import BASE
from hub.errors import InputError
from sts_dino.report.collect import CONTROL, TRAINED, UNTRAINED, Correlation, DatasetFacts, Judgements, ModelFacts
from sts_dino.report.pairs import Pair, Sample, cosines_of

SPLIT = "train"  # what people are asked about unless they ask for another
JUDGED = "judged"
NOTE = "The pairs are of the training split: an encoder trained on it has seen them, under the language model's labels."


def read_judgements(
    places: Sequence[Path], datasets: Sequence[DatasetFacts], models: Sequence[ModelFacts], kept: Path
) -> Judgements:
    """Spearman's correlation of each encoder's cosines with people's scores; of several people's, their mean.

    places: folders of answers; they are about pairs of one of the ``datasets``. ``kept``: where cosines are kept.

    Raises InputError for answers to other rows, labels without an order, too few answers, and without an encoder.
    """
    pairs = tuple(pair for place in places for pair in judged_pairs(place, datasets))
    encoders = {
        name: folder for model in models if model.manifest.complete for name, folder in encoders_of(model).items()
    }
    if not encoders:
        raise InputError("--annotations", "no trained encoder is given to compare with", hint="name its run directory")
    digest = hashlib.sha256(repr(pairs).encode()).hexdigest()
    sample = Sample(JUDGED, {JUDGED: pairs}, {JUDGED: len(pairs)})
    from eval.encoders.load import content_hash

    cosines = cosines_of(sample, digest, encoders, kept, content_hash)
    people, first = [float(pair.score or 0) for pair in pairs], [pair.first for pair in pairs]
    found = agreements(people, first, {name: of[JUDGED] for name, of in cosines.items()})
    return Judgements(len(pairs), tuple(_correlation(one.encoder, one.spearman) for one in found), NOTE)


def _correlation(encoder: str, spearman: Estimate) -> Correlation:
    return Correlation(encoder, 100 * spearman.value, 100 * spearman.low, 100 * spearman.high)


def judged_pairs(place: Path, datasets: Sequence[DatasetFacts]) -> list[Pair]:
    """The pairs that people answered about, each with the mean of their scores."""
    if not (place / FILE).is_file():
        raise InputError(place, f"holds no answers (no {FILE})", hint="run: sts-dino annotate RUN_DIR")
    refused: InputError | None = None
    for one in (found for found in datasets if found.manifest.complete):
        examples = read_examples(find_rows(str(one.directory), split=SPLIT))
        try:
            store = AnswerStore(place, examples)
        except InputError as error:
            refused = error
            continue
        if not examples.scale.ordered:
            raise InputError(place, f"answers about {examples.name} have no order", allowed="similarity scores")
        scores = mean_scores({person: store.answers(person) for person in store.annotators()})
        return [Pair(examples.texts[row][0], examples.texts[row][1], score) for row, score in scores.items()]
    raise refused or InputError("--annotations", "no finished dataset is given", hint="name the run that was judged")


def encoders_of(model: ModelFacts) -> dict[str, Path]:
    """An encoder, and what was left beside it of the untrained one and the copies control, by name."""
    places = {UNTRAINED: beside_model(str(model.directory), BASE), CONTROL: beside_model(str(model.directory), COPIES)}
    found = {name: Path(place) for name, place in places.items() if place}
    return {f"{model.manifest.name}, {name}": place for name, place in {**found, TRAINED: model.directory}.items()}

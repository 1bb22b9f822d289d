"""The facts of a report: those of cards, costs, drawn pairs with cosines, human judgements."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sts_dino.eval.audit.agreement import correlate_cosines
from sts_dino.eval.audit.source import Batch, DatasetRows, find_rows
from sts_dino.eval.audit.survey import ANSWERS_FILE, AnswerStore, read_examples
from sts_dino.eval.encoders.embeddings import compute_text_cosines
from sts_dino.eval.encoders.load import (
    get_default_judge,
    has_default_judge,
    load_encoder,
    require_packaged_encoder,
)
from sts_dino.eval.runs.job import SIMCSE_SUFFIX, find_sibling_model
from sts_dino.eval.runs.records import BASE_FOLDER, get_records_folder
from sts_dino.hub.contract.measured import Interval
from sts_dino.hub.contract.published_paths import name_inputs
from sts_dino.hub.contract.run_dir import find_beside, require_manifest
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import read_json_object
from sts_dino.model_cards.facts import DatasetFacts, ModelFacts
from sts_dino.model_cards.rows import (
    MOST_SAMPLED_SHARDS,
    choose_sample_config,
    list_targets,
    read_first_rows,
    sort_shards,
)
from sts_dino.model_cards.scores import SIMCSE, TRAINED

GROWING_ROWS_PER_LABEL = 4  # shown rows of each label, while a dataset grows
ANNOTATED_SPLIT = "train"  # the default split of sts-dino annotate
JUDGED_PAIRS_LABEL = "judged"
PAIRS_PER_LABEL = 300  # drawn pairs
SAMPLE_SEED = 42
UNLABELLED = "all"  # the label of rows in a config without labels
Cosines = Mapping[str, Sequence[float]]  # label → the cosine of each drawn pair


@dataclass(frozen=True)
class Pair:
    """A row of a dataset: two texts and a score; a single text has an empty ``second``."""

    first: str
    second: str
    score: float | None = None


@dataclass(frozen=True)
class Sample:
    """Pairs of each label of one config.

    pairs: label → pairs. drawn: whether they are a random sample; else they are the first rows.
    """

    config: str
    pairs: dict[str, tuple[Pair, ...]]
    drawn: bool = True

    @property
    def has_pairs(self) -> bool:
        """Whether rows have two texts."""
        return any(pair.second for pairs in self.pairs.values() for pair in pairs)


@dataclass(frozen=True)
class Misfit:
    """A pair whose cosine similarity differs from the expected one.

    expected: the pair's score, else the median cosine of its label's drawn pairs.
    """

    label: str
    pair: Pair
    cosine: float
    expected: float


@dataclass(frozen=True)
class Judgements:
    """The agreement of encoders with human scores.

    pairs: the number of pairs. correlations: encoder → Spearman's correlation of its cosines.
    """

    pairs: int
    correlations: Mapping[str, Interval]


@dataclass(frozen=True)
class DatasetPage:
    """A dataset in a report.

    cost: timing and usage of the run. sample: pairs of each label; None for an empty dataset.
    cosines: the base and the trained encoder → label → cosines of the sample's pairs.
    encoder: the name of the trained encoder. was_trained_on: whether it trained on this dataset.
    """

    facts: DatasetFacts
    cost: Mapping[str, Any]
    sample: Sample | None
    cosines: dict[str, Cosines] = field(default_factory=dict)
    encoder: str = ""
    was_trained_on: bool = False
    judged: Cosines = field(default_factory=dict)  # by the independent encoder of fidelity.json


@dataclass(frozen=True)
class ReportFacts:
    """Everything that a report prints.

    costs: timing and usage of each model. commands: the command lines that made the runs.
    advice: a line about what to try next; empty: none.
    """

    datasets: tuple[DatasetPage, ...]
    models: tuple[ModelFacts, ...]
    costs: tuple[Mapping[str, Any], ...]
    commands: tuple[str, ...]
    judgements: Judgements | None
    advice: str = ""

    @property
    def runs(self) -> tuple[DatasetFacts | ModelFacts, ...]:
        """The runs of datasets, then of models."""
        return (*(page.facts for page in self.datasets), *self.models)


def collect_facts(
    runs: Sequence[Path],
    commands: Sequence[str] = (),
    annotations: Sequence[Path] = (),
) -> ReportFacts:
    """Read the facts of run directories for a report.

    Args:
        runs: run directories of datasets and models.
        commands: the command lines to print; none: those that the manifests record.
        annotations: folders of human answers to pairs of the datasets.

    Raises InputError for a folder that is not a run directory, damaged files, and numbers that
    disagree.
    """
    manifests = [(directory, require_manifest(directory)) for directory in runs]
    models = [
        ModelFacts.read(directory, manifest, evaluation=get_records_folder(directory))
        for directory, manifest in manifests
        if manifest.kind == "model"
    ]
    dataset_facts = [
        DatasetFacts.read(directory, manifest)
        for directory, manifest in manifests
        if manifest.kind == "dataset"
    ]

    # Add what cards do not have: pairs, cosines, human judgements, cost
    datasets = [_collect_dataset(facts, models) for facts in dataset_facts]
    judgements = read_judgements(annotations, datasets, models) if annotations else None
    provenances = [
        *(facts.provenance for facts in dataset_facts),
        *(facts.provenance for facts in models),
    ]
    recorded = [provenance.command for provenance in provenances if provenance is not None]
    return ReportFacts(
        tuple(datasets),
        tuple(models),
        tuple(read_cost(model.directory) for model in models),
        tuple(commands or recorded),
        judgements,
    )


def read_cost(directory: Path) -> dict[str, Any]:
    """Read the files NAME.timing.json and NAME.usage.json beside a run directory, as one mapping.

    ``find_beside`` says what NAME is. A missing file adds nothing. Raises InputError for a
    file that is not a JSON object.
    """
    cost: dict[str, Any] = {}
    for ending in ("timing.json", "usage.json"):
        path = find_beside(directory, ending)
        if path is not None:
            cost |= read_json_object(path, path.parent)
    return cost


def _collect_dataset(facts: DatasetFacts, models: Sequence[ModelFacts]) -> DatasetPage:
    """Return a dataset's page with a sample of its pairs and their cosines.

    The encoder is the first model that trained on the dataset, else the first trained model.
    """
    sample = _draw_sample(facts)
    page = DatasetPage(facts, read_cost(facts.directory), sample)
    if sample is None or not sample.drawn or not sample.has_pairs:
        return page

    # Compute cosines by the judge, and by a trained encoder and its base.
    page = replace(page, judged=_compute_judged_cosines(facts, sample))
    trained = [model for model in models if model.training]
    if not trained:
        return page
    trained_on_it = [model for model in trained if _is_trained_on(model, facts)]
    model = (trained_on_it or trained)[0]
    encoders = _find_encoders(model, {model.recipe.base.start: BASE_FOLDER})
    return replace(
        page,
        cosines=compute_sample_cosines(sample, encoders),
        encoder=model.manifest.name,
        was_trained_on=bool(trained_on_it),
    )


def _is_trained_on(model: ModelFacts, dataset: DatasetFacts) -> bool:
    """Return whether a model's manifest names the dataset, by its name or its folder's name."""
    names = {dataset.manifest.name, dataset.directory.resolve().name}
    datasets = model.provenance.datasets if model.provenance else ()
    return any(Path(item.path or item.repo_id or "").name in names for item in datasets)


def _compute_judged_cosines(facts: DatasetFacts, sample: Sample) -> Cosines:
    """Return the cosines of a drawn sample by the judge of fidelity.json.

    Empty without fidelity.json, and where its judge is not the default one of the language or not
    on this machine.
    """
    language = facts.recipe.language
    judge = get_default_judge(language)
    is_judged = facts.fidelity is not None and facts.fidelity.judge.name == judge
    if not is_judged or not has_default_judge(language):
        return {}
    return compute_sample_cosines(sample, {judge: require_packaged_encoder(judge)})[judge]


def _draw_sample(facts: DatasetFacts) -> Sample | None:
    """Draw rows of a finished dataset, or read the first rows of a growing one.

    Returns None for a dataset without rows.
    """
    manifest = facts.manifest
    config = choose_sample_config(manifest, facts.recipe)
    if config is None:
        return None
    shards = [file for file in sort_shards(manifest, config) if file.rows]
    if not shards:
        return None
    labels = list_targets(facts.recipe)
    if manifest.complete:
        return draw_sample(find_rows(str(facts.directory), config), labels)
    rows_by_label = read_first_rows(
        facts.directory, shards[:MOST_SAMPLED_SHARDS], "target", labels, GROWING_ROWS_PER_LABEL
    )
    # rows of single texts have no text2
    pairs = {
        label: tuple(Pair(row["text1"], row["text2"] or "") for row in rows)
        for label, rows in rows_by_label.items()
        if rows
    }
    return Sample(config, pairs, drawn=False)


def _find_encoders(model: ModelFacts, suffixes: Mapping[str, str]) -> dict[str, Path]:
    """Return name → folder of the model and of the encoders that its training left beside it.

    suffixes: name of an encoder → suffix of its folder's name, e.g. ``.base``.
    """
    encoders = {}
    for name, suffix in suffixes.items():
        folder = find_sibling_model(str(model.directory), suffix)
        if folder:
            encoders[name] = Path(folder)
    encoders[TRAINED] = model.directory
    return encoders


def read_judgements(
    folders: Sequence[Path], datasets: Sequence[DatasetPage], models: Sequence[ModelFacts]
) -> Judgements:
    """Correlate each encoder's cosines with the mean human scores in ``folders``.

    The encoders are those of each finished model: trained, before training, and SimCSE baseline.
    The second of two models of one name is called NAME#2.

    Args:
        folders: folders of human answers to pairs of the datasets.
        datasets: the datasets of the report.
        models: the models of the report.

    Raises the errors of ``read_judged_pairs``, and InputError for too few answers, for answers or
    cosines that are all equal, and without a finished model.
    """
    # Read the pairs with the mean of their human scores
    pairs: list[Pair] = []
    for folder in folders:
        pairs += read_judged_pairs(folder, datasets)
    if not pairs:
        raise InputError("--annotations", "no pair is answered", hint="sts-dino annotate RUN_DIR")

    # Find the encoders
    finished = [model for model in models if model.manifest.complete]
    model_names = name_inputs(model.manifest.name for model in finished)
    encoders = {}
    for model_name, model in zip(model_names, finished, strict=True):
        suffixes = {model.recipe.base.start: BASE_FOLDER, SIMCSE: SIMCSE_SUFFIX}
        for name, folder in _find_encoders(model, suffixes).items():
            encoders[f"{model_name}, {name}"] = folder
    if not encoders:
        raise InputError(
            "--annotations",
            "no trained encoder is given to compare with",
            hint="name its run directory",
        )

    # Correlate their cosines with the scores; the sample has all pairs under one label
    sample = Sample(JUDGED_PAIRS_LABEL, {JUDGED_PAIRS_LABEL: tuple(pairs)})
    cosines_by_label = compute_sample_cosines(sample, encoders)
    cosines = {name: labels[JUDGED_PAIRS_LABEL] for name, labels in cosines_by_label.items()}
    scores = [pair.score for pair in pairs if pair.score is not None]  # every judged pair has one
    correlations = correlate_cosines(scores, [pair.first for pair in pairs], cosines)
    return Judgements(len(pairs), correlations)


def read_judged_pairs(folder: Path, datasets: Sequence[DatasetPage]) -> list[Pair]:
    """Read the annotated pairs of a folder, each with the mean of its human scores.

    The answers belong to the first of ``datasets`` whose rows fit them. Unfinished datasets are
    passed over. Raises InputError for a folder without answers, answers that fit no finished
    dataset, and labels without an order.
    """
    if not (folder / ANSWERS_FILE).is_file():
        raise InputError(
            folder, f"holds no answers (no {ANSWERS_FILE})", hint="run: sts-dino annotate RUN_DIR"
        )

    # Find the dataset that the answers belong to
    refusal: InputError | None = None
    for page in datasets:
        if not page.facts.manifest.complete:
            continue
        examples = read_examples(find_rows(str(page.facts.directory), split=ANNOTATED_SPLIT))
        try:
            store = AnswerStore(folder, examples)
        except InputError as error:
            refusal = error
            continue
        if not examples.scale.ordered:
            raise InputError(
                folder, f"answers about {examples.name} have no order", allowed="similarity scores"
            )

        # Average each row's labels over the annotators
        scores = defaultdict[int, list[float]](list)
        for answers in store.read_answers().values():
            for row, label in answers.items():
                scores[row].append(float(label))
        return [
            Pair(examples.texts[row][0], examples.texts[row][1], fmean(scores[row]))
            for row in sorted(scores)
        ]
    raise refusal or InputError(
        "--annotations", "no finished dataset is given", hint="name the annotated run"
    )


def draw_sample(
    rows: DatasetRows, labels: Sequence[str], count: int = PAIRS_PER_LABEL, seed: int = SAMPLE_SEED
) -> Sample:
    """Draw at most ``count`` pairs of each label without replacement, in one pass over the rows.

    Each pair gets a random key; the pairs of a label with the smallest keys are its sample.

    Args:
        rows: the rows of the dataset.
        labels: the labels that come first in the sample, in this order.
        count: the largest number of pairs of a label.
        seed: the seed of the random keys.
    """
    random = np.random.default_rng(seed)
    smallest: dict[str, list[tuple[float, Pair]]] = defaultdict(list)
    for batch in rows.read_batches():
        batch_pairs = _list_pairs(batch)
        keys = random.random(len(batch_pairs)).tolist()
        for key, (label, pair) in zip(keys, batch_pairs, strict=True):
            smallest[label].append((key, pair))
        for label, keyed_pairs in smallest.items():
            smallest[label] = heapq.nsmallest(count, keyed_pairs, key=itemgetter(0))

    # The labels of the argument come first, then the others by name.
    ordered = [label for label in labels if label in smallest]
    ordered += sorted(smallest.keys() - set(labels))
    pairs = {label: tuple(pair for _, pair in smallest[label]) for label in ordered}
    return Sample(rows.config, pairs)


def _list_pairs(batch: Batch) -> list[tuple[str, Pair]]:
    """Return the label and the pair of each row of a batch; a triplet gives two of them.

    A row without a label has the label ``UNLABELLED``; the pair of a single text has an empty
    second text.
    """
    first, second, labels = batch.to_pairs()
    if not first:  # single texts
        first = next(iter(batch.texts.values()))
        second = [""] * len(first)
        labels = batch.labels
    labels = labels or [UNLABELLED] * len(first)
    # Triplets and rows of some schemas have no score for each pair.
    scores = batch.scores if len(batch.scores) == len(first) else [None] * len(first)
    return [
        (label, Pair(sentence1, sentence2, score))
        for sentence1, sentence2, label, score in zip(first, second, labels, scores, strict=True)
    ]


def find_misfits(sample: Sample, cosines: Cosines, count: int = 10) -> list[Misfit]:
    """Return the ``count`` pairs whose cosine differs most from the expected one, largest first.

    A pair's expected cosine is its score, else the median cosine of its label.

    sample: the drawn pairs. cosines: label → the cosine of each pair.
    """
    misfits = []
    for label, pairs in sample.pairs.items():
        median = float(np.median(cosines[label]))
        for pair, cosine in zip(pairs, cosines[label], strict=True):
            expected = median if pair.score is None else pair.score
            misfits.append(Misfit(label, pair, cosine, expected))
    return heapq.nlargest(count, misfits, key=lambda misfit: abs(misfit.cosine - misfit.expected))


def compute_sample_cosines(sample: Sample, encoders: Mapping[str, Path]) -> dict[str, Cosines]:
    """Return name of an encoder → the cosines of a sample's pairs, rounded to 6 decimals.

    encoders: name of an encoder → its folder. Raises the errors of ``load_encoder``.
    """
    # Encode the pairs of all labels together, then divide the cosines among the labels.
    pairs = [pair for label_pairs in sample.pairs.values() for pair in label_pairs]
    first = [pair.first for pair in pairs]
    second = [pair.second for pair in pairs]
    cosines: dict[str, Cosines] = {}
    for name, folder in encoders.items():
        values = iter(compute_text_cosines(load_encoder(str(folder)), first, second))
        by_label: dict[str, list[float]] = {}
        for label, label_pairs in sample.pairs.items():
            by_label[label] = [round(value, 6) for value in islice(values, len(label_pairs))]
        cosines[name] = by_label
    return cosines

"""MTEB's tasks by name on our encoders, with local data where there are some.

``NAME`` is a task, ``NAME[subset+subset]`` some of its subsets, ``benchmark:NAME`` all tasks of a benchmark as it cuts
them, ``type:NAME`` (or ``type:NAME:LANGUAGE``, a three-letter code) all tasks of a type. Importing mteb takes seconds.
"""

import hashlib
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import mteb
import numpy as np
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import constants
from mteb.abstasks import AbsTask, AbsTaskSTS
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskMetadata, TaskType
from mteb.get_tasks import TASK_LIST
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder, get_prompt
from mteb.results import TaskResult
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import BATCH, Encoder, chat_template
from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import EvaluationSettings, NewScore, task_interval
from eval.tasks.rows import ScoredPairs, published
from eval.tasks.sources import Source
from eval.tasks.task import Metric, Task, Unit
from hub.client.connection import hub_errors
from hub.contract.results import Part, TaskScore
from hub.errors import InputError, RunError, did_you_mean

PREFIX = "mteb/"
BENCHMARK, TYPE = "benchmark:", "type:"
LOCAL = "local"  # in place of a Hub dataset's name
LONGEST = 60  # characters of a list of subsets in a name


@dataclass(frozen=True)
class LocalCopy:
    """Our data set that is an MTEB task's, row for row, and the revision of MTEB's for which that was found.

    ``spaced``: rows whose first sentence ends in a space there; SentEval's form, read as tokens, has none.
    """

    dataset: str
    revision: str
    spaced: tuple[int, ...] = ()


LOCAL_COPIES = {
    "STS12": LocalCopy("sts12", "a0d554a64d88156834ff5ae9920b964011b16384"),
    "STS13": LocalCopy("sts13", "7e90230a92c190f1bf69ae9002b8cea547a64cca"),
    "STS14": LocalCopy("sts14", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", spaced=(3720,)),
    "STS15": LocalCopy("sts15", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),
    "STS16": LocalCopy("sts16", "4d8694f8f0e0100860b497b999b3dbed754a0513"),
    "STSBenchmark": LocalCopy("stsb", "b0fddb56ed78048fa8b90373c8a3cfc37b684831"),
    "SICK-R": LocalCopy("sick-r-full", "20a6d6f312dd54037fe07a32d58e5e168867909d"),
}
"""Found equal in number of pairs, lengths, distinct texts and pairs, and scores: all that mteb tells of its data."""


def find_mteb(name: str) -> tuple[AbsTask, ...]:
    """The tasks that a name without ``mteb/`` stands for, text alone, none that newer ones supersede in a type.

    Raises InputError with the nearest names when there is none, or when a task needs more than text.
    """
    if name.startswith(BENCHMARK):
        tasks = _benchmark(name.removeprefix(BENCHMARK))
    elif name.startswith(TYPE):
        tasks = _type(name.removeprefix(TYPE))
    else:
        tasks = (_task(name),)
    for task in tasks:
        if set(task.modalities) != {"text"}:
            raise InputError(
                f"{PREFIX}{name}", f"{task.metadata.name} needs {', '.join(task.modalities)}", allowed="text"
            )
    return tasks


def task_name(task: AbsTask) -> str:
    """The name that results of a task are written under: with its subsets and splits where they are not all."""
    name = f"{PREFIX}{task.metadata.name}"
    cuts = []
    if not task.is_aggregate and set(task.hf_subsets) != set(task.metadata.hf_subsets):
        cuts.append(_short(task.hf_subsets))
    if set(task.eval_splits) != set(task.metadata.eval_splits):
        cuts.append(_short(task.eval_splits))
    return f"{name}[{';'.join(cuts)}]" if cuts else name


def parts_of(task: AbsTask) -> Sequence[AbsTask]:
    """The tasks with data: those that an aggregate averages, else the task itself."""
    return task.metadata.tasks if isinstance(task, AbsTaskAggregate) else (task,)


def _short(names: Iterable[str]) -> str:
    """Names joined; where they are many, their number and a hash, so that the result can name a file."""
    joined = "+".join(sorted(names))
    if len(joined) <= LONGEST:
        return joined
    return f"{joined.count('+') + 1}-{hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def _task(name: str) -> AbsTask:
    plain, cut, subsets = name.removesuffix("]").partition("[")
    known = [task.metadata.name for task in TASK_LIST]
    if plain not in known:
        raise _unknown(name, plain, known, (f"{PREFIX}{BENCHMARK}NAME", f"{PREFIX}{TYPE}NAME"))
    task = mteb.get_task(plain)
    if cut:
        wanted, has = subsets.split("+"), task.metadata.hf_subsets
        if not set(wanted) <= set(has):
            raise InputError(f"{PREFIX}{name}", f"{plain} has no such subsets", allowed=", ".join(has))
        task.hf_subsets = wanted
    return task


def _benchmark(name: str) -> tuple[AbsTask, ...]:
    known = {benchmark.name for benchmark in mteb.get_benchmarks()}
    known |= {alias for benchmark in mteb.get_benchmarks() for alias in benchmark.aliases or ()}
    if name not in known:
        raise _unknown(f"{BENCHMARK}{name}", name, known, ())
    return tuple(deepcopy(task) for task in mteb.get_benchmark(name).tasks)  # each draws from a state of its own


def _type(name: str) -> tuple[AbsTask, ...]:
    kind, _, language = name.partition(":")
    known = get_args(TaskType)
    if kind not in known:
        raise _unknown(f"{TYPE}{name}", kind, known, known)
    if language and not re.fullmatch(r"[a-z]{3}", language):
        raise InputError(f"{PREFIX}{TYPE}{name}", f"unknown language {language!r}", allowed="a code like eng")
    wanted: Any = {"task_types": [kind], "modalities": ["text"], "exclusive_modality_filter": True}
    tasks = tuple(mteb.get_tasks(**wanted, languages=[language] if language else None))
    if not tasks:
        raise InputError(f"{PREFIX}{TYPE}{name}", "has no text task", hint="leave the language out")
    return tasks


def _unknown(name: str, word: str, known: Collection[str], allowed: Iterable[str]) -> InputError:
    kind = "benchmark" if name.startswith(BENCHMARK) else "task type" if name.startswith(TYPE) else "task"
    problem = f"mteb {mteb.__version__} has no such {kind}"
    return InputError(f"{PREFIX}{name}", problem, allowed=", ".join(allowed) or None, hint=did_you_mean(word, known))


def local_rows(task: AbsTask, source: Source) -> ScoredPairs | None:
    """The rows of a task's local copy, when the source has a place for them. Raises InputError when not whole."""
    local_copy = LOCAL_COPIES.get(task.metadata.name)
    if local_copy is None or not source.has(local_copy.dataset, "test"):
        return None
    rows = source.load(local_copy.dataset, ["test"])["test"]
    assert isinstance(rows, ScoredPairs)
    return rows


def is_official(task: AbsTask, rows: ScoredPairs) -> bool:
    """Whether rows are those of the task's own revision: by their checksum, for the revision that was compared."""
    local_copy = LOCAL_COPIES[task.metadata.name]
    return (
        task.metadata.revision == local_copy.revision
        and rows.sha256 == published().rows[local_copy.dataset]["test"].sha256
    )


def give_rows(task: AbsTask, rows: ScoredPairs) -> None:
    """Let a task score rows from here. Rows that are not its own revision's get another name in its results."""
    is_theirs, first = is_official(task, rows), list(rows.first)
    for row in LOCAL_COPIES[task.metadata.name].spaced if is_theirs else ():
        first[row] += " "
    columns = {"sentence1": first, "sentence2": list(rows.second), "score": rows.gold.tolist()}
    task.dataset = DatasetDict(test=Dataset.from_dict(columns))
    task.data_loaded = True
    if not is_theirs:
        local = {"path": LOCAL, "revision": f"sha256-{rows.sha256}"}
        task.metadata = task.metadata.model_copy(update={"dataset": local})


def is_published(task: AbsTask) -> bool:
    """Whether a task scores the rows of MTEB's own revision, as far as is known."""
    return task.is_aggregate or task.metadata.dataset["path"] != LOCAL


class MtebEncoder(AbsEncoder):
    """An encoder under MTEB's protocol.

    A SentenceTransformer gets the prompts that MTEB chooses from its own for the task, the task's type or the side of a
    retrieval; a function gets the texts alone. Every text is encoded once a prompt, through
    ``eval.encoders.embeddings``.
    """

    def __init__(self, embeddings: Embeddings):
        """``embeddings`` without a prompt are shared with other tasks; those with one are kept beside them."""
        self.encoder = embeddings.encoder
        self.model: Any = self.encoder.model  # where AbsEncoder finds the model's own similarity
        self.meta = model_meta(self.encoder)
        self.mteb_model_meta = self.meta  # MTEB's name for it, which may be None there
        self._cache = embeddings.folder.parent
        self._stores = {self.encoder.key: embeddings}

    def encode(
        self,
        inputs: DataLoader[Any],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> NDArray[np.float32]:
        """Embeddings (n, dimension) of the texts of all batches."""
        texts = [text for batch in inputs for text in batch["text"]]
        encoder = prompted(self.encoder, task_metadata, prompt_type)
        if encoder.key not in self._stores:
            self._stores[encoder.key] = Embeddings(encoder, self._cache)
        return self._stores[encoder.key].rows(texts)

    @property
    def seconds(self) -> float:
        """The time spent in the encoder, with and without prompts."""
        return sum(store.seconds for store in self._stores.values())

    def close(self) -> None:
        """Close what was opened here: not the embeddings that were given."""
        for key, store in self._stores.items():
            if key != self.encoder.key:
                store.close()


def prompted(encoder: Encoder, task: TaskMetadata, side: PromptType | None) -> Encoder:
    """The encoder with the prompt that MTEB chooses for a task; itself where there is neither prompt nor side."""
    if encoder.model is None:
        return encoder
    prompt = get_prompt(cast("dict[str, str]", encoder.model.prompts), task, side)
    if prompt is None and side is None:
        return encoder
    sides = {PromptType.query: encoder.model.encode_query, PromptType.document: encoder.model.encode_document}
    encode = encoder.model.encode if side is None else sides[side]

    def embed(texts: list[str]) -> Any:
        with chat_template(encoder.name):
            return encode(texts, prompt=prompt, batch_size=BATCH, show_progress_bar=False)

    return replace(
        encoder,
        embed=embed,
        settings=encoder.settings | {"prompt": repr(prompt), "side": str(side and side.value)},
    )


def model_meta(encoder: Encoder) -> ModelMeta:
    """The metadata that MTEB keeps results under: name and revision, so that no two models share a score."""
    name = re.sub(r"[^A-Za-z0-9._/-]", "_", encoder.name.partition("@")[0])
    facts: dict[str, Any] = {
        "name": name if name.count("/") == 1 and not name.startswith(("/", ".")) else f"local/{name.replace('/', '_')}",
        "revision": re.sub(r"[^A-Za-z0-9._-]", "_", encoder.revision),
        "embed_dim": encoder.dimension,
    }
    if encoder.model is not None:
        facts |= {"framework": ["Sentence Transformers", "PyTorch"], "max_tokens": encoder.model.max_seq_length}
        facts |= {"use_instructions": any(encoder.model.prompts.values())}
    return ModelMeta.create_empty(facts)


METRICS: dict[str, Metric] = {"cosine_spearman": "spearman", "cosine_pearson": "pearson"}  # of STS → ours
DIGITS = 6  # that MTEB keeps of a score; rounded at once, so that a kept result is the same as a new one
ERRORS = ("mae", "mse", "rmse")  # metrics that are no shares or correlations
UNITS: dict[str, Unit] = {"STS": "pairs", "PairClassification": "pairs", "BitextMining": "pairs"}
QUERIES = ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")


def described(task: AbsTask, split: str, with_outcomes: bool) -> Task:
    """The task as ours: without a metric where single rows have no outcomes, so that it cannot be resampled."""
    name, main = task.metadata.name, task.metadata.main_score
    subsets = "" if len(task.hf_subsets) == 1 else f", unweighted mean over {len(task.hf_subsets)} subsets"
    known = "" if with_outcomes else "; no interval: MTEB tells no outcome of single rows"
    return Task(
        name=task_name(task),
        dataset=name,
        group="mteb",
        family="mteb",
        protocol=f"MTEB's {name} ({task.metadata.type}), with the model's prompts as MTEB chooses them: {main} x 100"
        f"{subsets}{known}",
        metric=METRICS[main] if with_outcomes else None,
        aggregation="all" if len(task.hf_subsets) == 1 else "mean",
        unit=UNITS.get(task.metadata.type, "queries" if task.metadata.type in QUERIES else "documents"),
        splits=(split,),
    )


def read_score(
    ours: Task,
    task: AbsTask,
    split: str,
    result: TaskResult,
    rows: ScoredPairs | None,
    outcomes: Outcomes | None,
    settings: EvaluationSettings,
    seconds: Mapping[str, float],
) -> TaskScore:
    """The score of a split of ``result``. Raises RunError when it is undefined.

    ``rows`` are the ones that were given to the task; others are named by the revision of MTEB's dataset.
    """
    found = subset_scores(task, split, result)
    main = {subset: 100 * round(float(scores["main_score"]), DIGITS) for subset, scores in found.items()}
    score = float(np.mean(list(main.values())))
    if not math.isfinite(score):
        raise RunError(ours.name, "the score is undefined", hint="do all embeddings coincide?")
    sizes = {subset: size(task, subset, split) for subset in found}
    parts = {subset: Part(score=main[subset], n=sizes[subset]) for subset in found} if len(found) > 1 else {}
    read = TaskScore(
        task=ours.name,
        protocol=ours.protocol,
        split=split,
        main_metric=task.metadata.main_score,
        main_score=score,
        n=sum(sizes.values()),
        unit=ours.unit,
        family=ours.family,
        other=further(task.metadata.main_score, found),
        parts=parts,
        seconds={name: round(value, 6) for name, value in seconds.items()},
        data_sha256=rows.sha256 if rows else None,
        data_revision=data_revision(task),
    )
    if outcomes is None or ours.metric is None:
        return read
    around = task_interval(read, outcomes, ours.metric, ours.aggregation, settings)
    return read.model_copy(update={"low": around.low, "high": around.high})


def subset_scores(task: AbsTask, split: str, result: TaskResult) -> dict[str, Mapping[str, Any]]:
    """MTEB's metrics of every subset of the task; a kept result may hold further ones, which are left out."""
    wanted = ("default",) if task.is_aggregate else task.hf_subsets
    return {scores["hf_subset"]: scores for scores in result.scores[split] if scores["hf_subset"] in wanted}


def further(main: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Every other metric that all subsets have a finite value of, its mean over them; x 100 unless it is an error."""
    metrics = {}
    for name in next(iter(found.values())):
        values = [scores.get(name) for scores in found.values()]
        numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
        if len(numbers) == len(values) and name not in (main, "main_score") and "nauc" not in name:
            metrics[name] = round(float(np.mean(numbers)), DIGITS) * (1 if name in ERRORS else 100)
    return metrics


def has_outcomes(task: AbsTask) -> bool:
    """Whether MTEB tells the outcomes of a task's single rows."""
    return isinstance(task, AbsTaskSTS) and task.metadata.main_score in METRICS


def sts_outcomes(task: AbsTask, split: str, predictions: Path) -> Outcomes | None:
    """Gold and predicted similarities of an STS task's pairs, from the file that MTEB wrote; None for other tasks."""
    if not has_outcomes(task):
        return None
    raw = json.loads((predictions / task.prediction_file_name).read_text(encoding="utf-8"))
    gold = {subset: np.asarray(rows_of(task, subset, split)["score"], dtype=np.float64) for subset in task.hf_subsets}
    predicted = [np.asarray(raw[subset][split]["cosine_scores"]) for subset in gold]
    part = tuple(subset for subset, scores in gold.items() for _ in scores) if len(gold) > 1 else ()
    return Outcomes(np.concatenate(list(gold.values())), np.concatenate(predicted), part)


def rows_of(task: AbsTask, subset: str, split: str) -> Any:
    """The loaded rows of a subset's split, in the form that the task has."""
    assert task.dataset is not None
    return task.dataset[subset][split] if subset in task.dataset else task.dataset[split]


def size(task: AbsTask, subset: str, split: str) -> int:
    """How many rows, or queries, were scored: of the loaded data, else as mteb tells of its revision."""
    if task.is_aggregate:
        return sum(size(part, name, split) for part in parts_of(task) for name in part.hf_subsets)
    if task.data_loaded:
        rows = rows_of(task, subset, split)
        return len(rows["queries"]) if isinstance(rows, Mapping) and "queries" in rows else len(rows)
    stats: Any = (task.metadata.descriptive_stats or {})[split]
    stats = stats.get("hf_subset_descriptive_stats", {}).get(subset, stats)
    return int(stats.get("num_queries") or stats["num_samples"])


def data_revision(task: AbsTask) -> str | None:
    """``ORG/NAME@REVISION`` of the data that a result speaks of; None where they are rows from elsewhere."""
    if task.is_aggregate:
        return ", ".join(str(data_revision(part)) for part in parts_of(task))
    return f"{task.metadata.dataset['path']}@{task.metadata.revision}" if is_published(task) else None


PREDICTIONS = "predictions"
Record = TypeVar("Record")
Earlier = Callable[[Task, str, tuple[str | None, str | None]], Record | None]
"""Task, split and data (rows' SHA-256, revision) → the record of an earlier run, where it holds."""


def measure_mteb(
    name: str,
    embeddings: Embeddings,
    source: Source,
    settings: EvaluationSettings,
    earlier: Earlier[Record] | None = None,
) -> Iterator[NewScore | Record | RunError]:
    """The scores of a task, benchmark or task type (a name without ``mteb/``), every split as soon as it is there.

    A task whose data cannot be downloaded or whose score is undefined gives the RunError, and the next one goes on. A
    task all of whose splits have an ``earlier`` record gives those. MTEB's own results are kept where the embeddings
    are, by its version, the encoder's key and the data, and not measured again.

    Raises InputError for unknown names, tasks of more than text and ``settings.limit``.
    """
    if settings.limit is not None:
        raise InputError(f"{PREFIX}{name}", "--limit does not reach MTEB's tasks", hint="leave it out, or the task")
    model = MtebEncoder(embeddings)
    with closing(model), _quiet():
        # apart for every version of MTEB and all that decides embeddings
        kept = embeddings.folder.parent / "mteb" / version("mteb") / embeddings.encoder.key[:16]
        for task in find_mteb(name):
            try:
                rows = local_rows(task, source)
                if rows is not None:
                    give_rows(task, rows)
                found = _earlier(task, rows, earlier) if earlier else None
                yield from measure_task(task, model, rows, settings, kept) if found is None else found
            except RunError as error:
                if error.place == embeddings.encoder.name:
                    raise
                yield error


def _earlier(task: AbsTask, rows: ScoredPairs | None, earlier: Earlier[Record]) -> list[Record] | None:
    data = rows.sha256 if rows else None, data_revision(task)
    found = [earlier(described(task, split, has_outcomes(task)), split, data) for split in task.eval_splits]
    return [record for record in found if record is not None] if all(found) else None


def measure_task(
    task: AbsTask, model: MtebEncoder, rows: ScoredPairs | None, settings: EvaluationSettings, kept: Path
) -> Iterator[NewScore]:
    """The scores of one task, split by split, with MTEB's results in ``kept``. Raises RunError when it has none.

    ``rows`` are those that the task was given, None for its own.
    """
    folder = kept / ("published" if is_published(task) else task.metadata.revision)
    before = model.seconds
    result = _result(task, model, folder)
    seconds = {"encoding": model.seconds - before, "mteb": result.evaluation_time or 0.0}
    for split in task.eval_splits:
        outcomes = sts_outcomes(task, split, folder / PREDICTIONS)
        ours = described(task, split, outcomes is not None)
        score = read_score(ours, task, split, result, rows, outcomes, settings, seconds)
        yield NewScore(ours, score, outcomes)
        seconds = {}  # reported once
    for part in parts_of(task):
        if part.data_loaded:
            part.unload_data()


def _result(task: AbsTask, model: MtebEncoder, folder: Path) -> TaskResult:
    """What MTEB finds, or found before."""
    _discard_damaged(folder)
    cache, predictions = mteb.ResultCache(folder), None
    known = cache.load_task_result(task.metadata.name, model.meta)
    is_known = known is not None and not known.get_missing_evaluations(task)
    if isinstance(task, AbsTaskSTS):
        predictions = folder / PREDICTIONS
        is_known = is_known and _has_predictions(task, predictions)
    if not is_known or predictions is not None:
        _load(task)
    found = mteb.evaluate(
        model,  # type: ignore[arg-type]  # its protocol has an __init__ for the command line of mteb
        task,
        co2_tracker=False,
        encode_kwargs={"batch_size": 512, "show_progress_bar": False},
        cache=cache,
        overwrite_strategy="only-missing" if is_known or predictions is None else "always",
        prediction_folder=predictions,
        show_progress_bar=False,
        public_only=False,
    )
    return found.task_results[0]


def _discard_damaged(folder: Path) -> None:
    """Remove files that a killed process left half-written: MTEB writes in place, and would fail on reading them."""
    for path in [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]:
        text = path.read_text(encoding="utf-8")
        try:
            for document in text.splitlines() if path.suffix == ".jsonl" else [text]:
                json.loads(document)
        except json.JSONDecodeError:
            path.unlink()


def _has_predictions(task: AbsTask, folder: Path) -> bool:
    path = folder / task.prediction_file_name
    if not path.is_file():
        return False
    raw = json.loads(path.read_text(encoding="utf-8"))
    return all(split in raw.get(subset, {}) for subset in task.hf_subsets for split in task.eval_splits)


def _load(task: AbsTask) -> None:
    """Download a task's data. Raises RunError when they are not to be had: the Hub's client tried five times."""
    for part in parts_of(task):
        if part.data_loaded:
            continue
        place = f"{task_name(task)}: {part.metadata.dataset['path']} at {constants.ENDPOINT}"
        with hub_errors(f"read {place}"):
            try:
                part.load_data()
            except DatasetNotFoundError:
                raise RunError(
                    place, "is gated, private or gone", hint="ask for access on its page, set HF_TOKEN"
                ) from None
            except ConnectionError:
                at_hand = f"give --senteval-data or --sts-data: {', '.join(LOCAL_COPIES)} are read there"
                hint = at_hand if part.metadata.name in LOCAL_COPIES else "run the same command again with a network"
                raise RunError(place, "cannot be reached, and its data are not in the cache", hint=hint) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """No advice to take a newer version of a task: which one is scored is the caller's choice."""
    log = logging.getLogger("mteb")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(superseded|in beta)", category=UserWarning)
            yield
    finally:
        log.setLevel(level)

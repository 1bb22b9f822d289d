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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
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
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import Encoder, prompted
from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import EvaluationSettings, NewScore, task_interval
from eval.tasks.rows import Rows
from eval.tasks.sources import Source
from eval.tasks.task import Metric, Task, Unit
from hub.client.connection import hub_errors
from hub.contract.results import Part, TaskScore
from hub.durable import make_folder
from hub.errors import InputError, RunError, did_you_mean

PREFIX = "mteb/"
LONGEST = 60  # characters of a list of subsets in a name
OURS = {  # MTEB's repository → our data set with the same rows
    **{f"mteb/sts{year}-sts": f"sts{year}" for year in range(12, 17)},
    "mteb/stsbenchmark-sts": "stsb",
    "mteb/sickr-sts": "sick-r-full",
}


def find_mteb(name: str, settings: EvaluationSettings | None = None) -> tuple[AbsTask, ...]:
    """The tasks that a name without ``mteb/`` stands for, text alone, none that newer ones supersede in a type.

    Raises InputError with the nearest names when there is none, when a task needs more than text, and for a limit.
    """
    if settings is not None and settings.limit is not None:
        raise InputError(f"{PREFIX}{name}", "--limit does not reach MTEB's tasks", hint="leave it out, or the task")
    kind, _, rest = name.partition(":")
    tasks = KINDS[kind](rest) if kind in KINDS else _task(name)
    for task in tasks:
        if set(task.modalities) != {"text"}:
            problem = f"{task.metadata.name} needs {', '.join(task.modalities)}"
            raise InputError(f"{PREFIX}{name}", problem, allowed="text")
    return tasks


def _require(place: str, word: str, known: Collection[str], kind: str, allowed: Iterable[str] = ()) -> None:
    if word not in known:
        problem, hint = f"mteb {mteb.__version__} has no such {kind}", did_you_mean(word, known)
        raise InputError(f"{PREFIX}{place}", problem, allowed=", ".join(allowed) or None, hint=hint)


def _task(name: str) -> tuple[AbsTask, ...]:
    plain, cut, subsets = name.removesuffix("]").partition("[")
    known = [task.metadata.name for task in TASK_LIST]
    _require(name, plain, known, "task", (f"{PREFIX}benchmark:NAME", f"{PREFIX}type:NAME"))
    task = mteb.get_task(plain)
    if cut:
        wanted, has = subsets.split("+"), task.metadata.hf_subsets
        if not set(wanted) <= set(has):
            raise InputError(f"{PREFIX}{name}", f"{plain} has no such subsets", allowed=", ".join(has))
        task.hf_subsets = wanted
    return (task,)


def _benchmark(name: str) -> tuple[AbsTask, ...]:
    known = {name for benchmark in mteb.get_benchmarks() for name in (benchmark.name, *(benchmark.aliases or ()))}
    _require(f"benchmark:{name}", name, known, "benchmark")
    return tuple(deepcopy(task) for task in mteb.get_benchmark(name).tasks)  # each draws from a state of its own


def _type(name: str) -> tuple[AbsTask, ...]:
    kind, _, language = name.partition(":")
    _require(f"type:{name}", kind, get_args(TaskType), "task type", get_args(TaskType))
    if language and not re.fullmatch(r"[a-z]{3}", language):
        raise InputError(f"{PREFIX}type:{name}", f"unknown language {language!r}", allowed="a code like eng")
    wanted: Any = {"task_types": [kind], "modalities": ["text"], "exclusive_modality_filter": True}
    tasks = tuple(mteb.get_tasks(**wanted, languages=[language] if language else None))
    if not tasks:
        raise InputError(f"{PREFIX}type:{name}", "has no text task", hint="leave the language out")
    return tasks


KINDS = {"benchmark": _benchmark, "type": _type}


def task_name(task: AbsTask) -> str:
    """The name that results of a task are written under: with its subsets and splits where they are not all."""
    cuts = []
    if not task.is_aggregate and set(task.hf_subsets) != set(task.metadata.hf_subsets):
        cuts.append(_short(task.hf_subsets))
    if set(task.eval_splits) != set(task.metadata.eval_splits):
        cuts.append(_short(task.eval_splits))
    return f"{PREFIX}{task.metadata.name}" + (f"[{';'.join(cuts)}]" if cuts else "")


def _short(names: Iterable[str]) -> str:
    """Names joined; where they are many, their number and a hash, so that the result can name a file."""
    joined = "+".join(sorted(names))
    if len(joined) <= LONGEST:
        return joined
    return f"{joined.count('+') + 1}-{hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def _with_data(task: AbsTask) -> list[AbsTask]:
    """The tasks with data: those that an aggregate averages, else the task itself."""
    return list(task.metadata.tasks) if isinstance(task, AbsTaskAggregate) else [task]


def local_rows(task: AbsTask, source: Source) -> Rows | None:
    """Let a task score the rows of its local copy, when the source has a place for them, and return them.

    Raises InputError when they are not whole.
    """
    dataset = OURS.get(task.metadata.dataset["path"])
    if dataset is None or not source.has(dataset, "test"):
        return None
    rows = source.load(dataset, ["test"])["test"]
    columns = {"sentence1": list(rows.first), "sentence2": list(rows.second), "score": rows.target.tolist()}
    task.dataset, task.data_loaded = DatasetDict(test=Dataset.from_dict(columns)), True
    return rows


def data_revision(task: AbsTask, rows: Rows | None) -> str | None:
    """``ORG/NAME@REVISION`` of the data that a result speaks of; None where they are rows from elsewhere."""
    named = ", ".join(f"{part.metadata.dataset['path']}@{part.metadata.revision}" for part in _with_data(task))
    return named if rows is None else None


class MtebEncoder(AbsEncoder):
    """An encoder under MTEB's protocol.

    A SentenceTransformer gets the prompts that MTEB chooses from its own for the task, the task's type or the side of a
    retrieval; a function gets the texts alone. Every text is encoded once a prompt, through
    ``eval.encoders.embeddings``.
    """

    def __init__(self, embeddings: Embeddings):
        """``embeddings`` without a prompt are shared with other tasks; those with one are kept beside them."""
        self._embeddings = embeddings
        self.model: Any = embeddings.encoder.model  # where AbsEncoder finds the model's own similarity
        self.mteb_model_meta = ModelMeta.create_empty()

    def encode(
        self, inputs: DataLoader[Any], *, task_metadata: TaskMetadata, prompt_type: PromptType | None = None, **_: Any
    ) -> NDArray[np.float32]:
        """Embeddings (n, dimension) of the texts of all batches."""
        encoder = for_task(self._embeddings.encoder, task_metadata, prompt_type)
        return self._embeddings.of(encoder).rows([text for batch in inputs for text in batch["text"]])


def for_task(encoder: Encoder, task: TaskMetadata, side: PromptType | None) -> Encoder:
    """The encoder with the prompt that MTEB chooses for a task; itself where there is neither prompt nor side."""
    if encoder.model is None:
        return encoder
    prompt = get_prompt(cast("dict[str, str]", encoder.model.prompts), task, side)
    if prompt is None and side is None:
        return encoder
    sides = {PromptType.query: encoder.model.encode_query, PromptType.document: encoder.model.encode_document}
    encode = encoder.model.encode if side is None else sides[side]
    settings = encoder.settings | {"prompt": repr(prompt), "side": str(side and side.value)}
    return prompted(encoder, encode, prompt, settings)


METRICS: dict[str, Metric] = {"cosine_spearman": "spearman", "cosine_pearson": "pearson"}  # of STS → ours
DIGITS = 6  # that MTEB keeps of a score
ERRORS = ("mae", "mse", "rmse")  # metrics that are not shares or correlations
UNITS: dict[str, Unit] = {
    **dict.fromkeys(("STS", "PairClassification", "BitextMining"), "pairs"),
    **dict.fromkeys(("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking"), "queries"),
}


def described(task: AbsTask, split: str) -> Task:
    """The task as ours: without a metric where MTEB tells no outcomes of single rows, so that it has no interval."""
    name, main = task.metadata.name, task.metadata.main_score
    has_outcomes = isinstance(task, AbsTaskSTS) and main in METRICS
    subsets = "" if len(task.hf_subsets) == 1 else f", unweighted mean over {len(task.hf_subsets)} subsets"
    known = "" if has_outcomes else "; no interval: MTEB tells no outcome of single rows"
    return Task(
        name=task_name(task),
        dataset=name,
        group="mteb",
        family="mteb",
        protocol=f"MTEB's {name} ({task.metadata.type}), with the model's prompts as MTEB chooses them: {main} x 100"
        f"{subsets}{known}",
        metric=METRICS[main] if has_outcomes else None,
        aggregation="all" if len(task.hf_subsets) == 1 else "mean",
        unit=UNITS.get(task.metadata.type, "documents"),
        splits=(split,),
    )


Record = TypeVar("Record")
Earlier = Callable[[Task, str, tuple[str | None, str | None]], Record | None]
"""Task, split and data (rows' SHA-256, revision) → the record of an earlier run, where it holds."""


def measure_mteb(
    name: str,
    embeddings: Embeddings,
    source: Source,
    settings: EvaluationSettings,
    earlier: Earlier[Record],
    results: Path,
) -> Iterator[NewScore | Record | RunError]:
    """The scores of a task, benchmark or task type (a name without ``mteb/``), every split as soon as it is there.

    A task whose data cannot be downloaded or whose score is undefined gives the RunError, and the next one follows. A
    task all of whose splits have an ``earlier`` record gives those. MTEB's own result of a whole task is written to
    ``results``, TASK.json. Raises InputError as ``find_mteb``.
    """
    model = MtebEncoder(embeddings)
    logging.getLogger("mteb").setLevel(logging.ERROR)  # no advice to take a newer version: that is the caller's choice
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(superseded|in beta)", category=UserWarning)
        for task in find_mteb(name, settings):
            try:
                rows = local_rows(task, source)
                data = rows.sha256 if rows else None, data_revision(task, rows)
                found = [earlier(described(task, split), split, data) for split in task.eval_splits]
                kept = [record for record in found if record is not None]
                yield from kept if len(kept) == len(found) else measure_task(task, model, rows, settings, results)
            except RunError as error:
                if error.place == embeddings.encoder.name:
                    raise
                yield error


def measure_task(
    task: AbsTask, model: MtebEncoder, rows: Rows | None, settings: EvaluationSettings, results: Path
) -> Iterator[NewScore]:
    """The scores of one task, split by split. ``rows`` are those that it was given, None for its own.

    Raises RunError when its data are not to be had or a score is undefined.
    """
    _load(task)
    with TemporaryDirectory() as folder:
        found = mteb.evaluate(
            model,  # type: ignore[arg-type]  # its protocol has an __init__ for the command line of mteb
            task,
            co2_tracker=False,
            encode_kwargs={"batch_size": 512, "show_progress_bar": False},
            cache=None,
            prediction_folder=folder if isinstance(task, AbsTaskSTS) else None,
            show_progress_bar=False,
            public_only=False,
        )
        if settings.limit is None:
            make_folder(results)
            found.task_results[0].to_disk(results / f"{task.metadata.name}.json")
        for split in task.eval_splits:
            ours = described(task, split)
            outcomes = _sts_outcomes(task, split, Path(folder)) if ours.metric else None
            scores = {one["hf_subset"]: one for one in found.task_results[0].scores[split]}
            score = _score(ours, task, split, scores, rows)
            if outcomes is not None and ours.metric is not None:
                around = task_interval(score, outcomes, ours.metric, ours.aggregation, settings)
                score = score.model_copy(update={"low": around.low, "high": around.high})
            yield NewScore(ours, score, outcomes)
    for part in _with_data(task):
        part.unload_data()


def _score(
    ours: Task, task: AbsTask, split: str, found: Mapping[str, Mapping[str, Any]], rows: Rows | None
) -> TaskScore:
    """The score of a split from MTEB's metrics of every subset, without an interval. Raises RunError when undefined."""
    main = {subset: 100 * round(float(scores["main_score"]), DIGITS) for subset, scores in found.items()}
    score = float(np.mean(list(main.values())))
    if not math.isfinite(score):
        raise RunError(ours.name, "the score is undefined", hint="do all embeddings coincide?")
    sizes = {subset: _size(task, subset, split) for subset in found}
    return TaskScore(
        task=ours.name,
        protocol=ours.protocol,
        split=split,
        main_metric=task.metadata.main_score,
        main_score=score,
        n=sum(sizes.values()),
        unit=ours.unit,
        family=ours.family,
        other=_further(task.metadata.main_score, found),
        parts={subset: Part(score=main[subset], n=sizes[subset]) for subset in found} if len(found) > 1 else {},
        data_sha256=rows.sha256 if rows else None,
        data_revision=data_revision(task, rows),
    )


def _further(main: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Every other metric that all subsets have a finite value of, its mean over them; x 100 unless it is an error."""
    metrics = {}
    for name in next(iter(found.values())):
        values = [scores.get(name) for scores in found.values()]
        numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
        if len(numbers) == len(values) and name not in (main, "main_score") and "nauc" not in name:
            metrics[name] = round(float(np.mean(numbers)), DIGITS) * (1 if name in ERRORS else 100)
    return metrics


def _sts_outcomes(task: AbsTask, split: str, predictions: Path) -> Outcomes:
    """Gold and predicted similarities of an STS task's pairs, from the file that MTEB wrote."""
    raw = json.loads((predictions / task.prediction_file_name).read_text(encoding="utf-8"))
    gold = {subset: np.asarray(_rows(task, subset, split)["score"], dtype=np.float64) for subset in task.hf_subsets}
    predicted = [np.asarray(raw[subset][split]["cosine_scores"]) for subset in gold]
    part = tuple(subset for subset, scores in gold.items() for _ in scores) if len(gold) > 1 else ()
    return Outcomes(np.concatenate(list(gold.values())), np.concatenate(predicted), part)


def _rows(task: AbsTask, subset: str, split: str) -> Any:
    """The loaded rows of a subset's split, in the form that the task has."""
    assert task.dataset is not None
    return task.dataset[subset][split] if subset in task.dataset else task.dataset[split]


def _size(task: AbsTask, subset: str, split: str) -> int:
    """How many rows, or queries, were scored."""
    if task.is_aggregate:
        return sum(_size(part, name, split) for part in _with_data(task) for name in part.hf_subsets)
    rows = _rows(task, subset, split)
    return len(rows["queries"]) if isinstance(rows, Mapping) and "queries" in rows else len(rows)


def _load(task: AbsTask) -> None:
    """Download a task's data. Raises RunError when they are not to be had: the Hub's client tried five times."""
    for part in _with_data(task):
        if part.data_loaded:
            continue
        place = f"{task_name(task)}: {part.metadata.dataset['path']} at {constants.ENDPOINT}"
        with hub_errors(f"read {place}"):
            try:
                part.load_data()
            except DatasetNotFoundError:
                hint = "ask for access on its page, set HF_TOKEN"
                raise RunError(place, "is gated, private or gone", hint=hint) from None
            except ConnectionError:
                local = "give --senteval-data or --sts-data, which hold the same rows"
                hint = local if part.metadata.dataset["path"] in OURS else "run the same command again with a network"
                raise RunError(place, "cannot be reached, and its data are not in the cache", hint=hint) from None

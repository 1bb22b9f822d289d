"""Score encoders on MTEB's tasks, named ``mteb/NAME``, with local data where available.

``NAME`` is a task, ``NAME[subset+subset]`` some of its subsets, ``benchmark:NAME`` all tasks of a
benchmark with the benchmark's subsets and splits, ``type:NAME`` (or ``type:NAME:LANGUAGE``, a
three-letter code) all tasks of a type. Importing mteb takes seconds.
"""

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast, get_args

import mteb
import numpy as np
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import constants
from mteb.abstasks import AbsTask, AbsTaskSTS
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskMetadata, TaskType
from mteb.get_tasks import TASK_LIST
from mteb.languages import ISO_TO_LANGUAGE, PROGRAMMING_LANGS
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder, get_prompt
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from sts_dino.eval.encoders.embeddings import Embeddings
from sts_dino.eval.encoders.load import Encoder, wrap_with_prompt
from sts_dino.eval.runs.records import DataVersion, Record
from sts_dino.eval.scoring.bootstrap import EvaluationSettings, NewScore, add_interval
from sts_dino.eval.tasks.registry import find_dataset
from sts_dino.eval.tasks.rows import Rows
from sts_dino.eval.tasks.sources import Source
from sts_dino.eval.tasks.task import LAYOUTS, Metric, Outcomes, Task, Unit
from sts_dino.hub.client.connection import convert_hub_errors
from sts_dino.hub.contract.results import Part, TaskScore
from sts_dino.hub.durable import make_folder
from sts_dino.hub.errors import InputError, RunError, suggest_choice

MTEB_PREFIX = "mteb/"
MAX_SUBSETS_CHARACTERS = 60  # of a list of subsets in a task's name
BATCH_TEXTS = 512  # texts that MTEB gives the encoder at once
LOCAL_DATASETS = {  # MTEB's repository → this project's data set with the same rows
    **{f"mteb/sts{year}-sts": f"sts{year}" for year in range(12, 17)},
    "mteb/stsbenchmark-sts": "stsb",
    "mteb/sickr-sts": "sick-r-full",
}


def find_mteb_tasks(name: str, settings: EvaluationSettings | None = None) -> tuple[AbsTask, ...]:
    """Return the tasks of MTEB that ``name`` stands for.

    ``name``: TASK, TASK[SUBSET+SUBSET], benchmark:NAME, type:NAME or type:NAME:LANGUAGE. A type
    gives its text tasks that no newer task supersedes. ``settings``: those of the evaluation; None:
    they are not checked.

    Raises InputError for an unknown name, with the nearest name; for a task that needs more than
    text; and for settings with a limit.
    """
    if settings is not None and settings.limit is not None:
        raise InputError(
            f"{MTEB_PREFIX}{name}",
            "--limit does not reach MTEB's tasks",
            hint="leave it out, or the task",
        )
    kind, _, kind_name = name.partition(":")
    if kind == "benchmark":
        tasks = _find_benchmark(kind_name)
    elif kind == "type":
        tasks = _find_type(kind_name)
    else:
        tasks = (_find_task(name),)
    for task in tasks:
        if set(task.modalities) != {"text"}:
            problem = f"{task.metadata.name} needs {', '.join(task.modalities)}"
            raise InputError(f"{MTEB_PREFIX}{name}", problem, allowed="text")
    return tasks


def _require_known(
    request: str, name: str, names: Collection[str], kind: str, allowed: Iterable[str] = ()
) -> None:
    """Raise InputError unless ``name`` is one of ``names``.

    Args:
        request: the whole name as the user gave it, without ``mteb/``.
        name: the part of it to look up.
        names: the names of this kind that MTEB knows.
        kind: kind of the names, for the error: task, benchmark, task type.
        allowed: the names or forms that the error lists; empty: it lists none.
    """
    if name not in names:
        raise InputError(
            f"{MTEB_PREFIX}{request}",
            f"mteb {mteb.__version__} has no such {kind}",
            allowed=", ".join(allowed) or None,
            hint=suggest_choice(name, names),
        )


def _find_task(name: str) -> AbsTask:
    """Return the task ``name``: NAME, or NAME[subset+subset] for some of its subsets.

    Raises InputError for an unknown task or subset.
    """
    plain, bracket, subset_list = name.removesuffix("]").partition("[")
    names = [task.metadata.name for task in TASK_LIST]
    _require_known(
        name, plain, names, "task", (f"{MTEB_PREFIX}benchmark:NAME", f"{MTEB_PREFIX}type:NAME")
    )
    task = mteb.get_task(plain)
    if bracket:
        subsets = list(dict.fromkeys(subset_list.split("+")))
        all_subsets = task.metadata.hf_subsets
        if not set(subsets) <= set(all_subsets):
            raise InputError(
                f"{MTEB_PREFIX}{name}",
                f"{plain} has no such subsets",
                allowed=", ".join(all_subsets),
            )
        task.hf_subsets = subsets
    return task


def _find_benchmark(name: str) -> tuple[AbsTask, ...]:
    """Return the tasks of a benchmark. Raises InputError for an unknown name."""
    names: set[str] = set()
    for benchmark in mteb.get_benchmarks():
        names.update((benchmark.name, *(benchmark.aliases or ())))
    _require_known(f"benchmark:{name}", name, names, "benchmark")
    # A task that draws rows changes its random state, so every call gets copies
    return tuple(deepcopy(task) for task in mteb.get_benchmark(name).tasks)


def _find_type(name: str) -> tuple[AbsTask, ...]:
    """Return the text tasks of ``name``: TYPE or TYPE:LANGUAGE.

    Raises InputError for an unknown type or language, and when the type has no text task.
    """
    kind, _, language = name.partition(":")
    _require_known(f"type:{name}", kind, get_args(TaskType), "task type", get_args(TaskType))
    if language and language not in (*ISO_TO_LANGUAGE, *PROGRAMMING_LANGS):
        raise InputError(
            f"{MTEB_PREFIX}type:{name}",
            f"unknown language {language!r}",
            allowed="a code like eng (ISO 639-3), or a programming language like python",
        )
    filters: Any = {"task_types": [kind], "modalities": ["text"], "exclusive_modality_filter": True}
    tasks = tuple(mteb.get_tasks(**filters, languages=[language] if language else None))
    if not tasks:
        raise InputError(
            f"{MTEB_PREFIX}type:{name}", "has no text task", hint="leave the language out"
        )
    return tasks


def make_task_name(task: AbsTask) -> str:
    """Return the name of a task in results: ``mteb/NAME[SUBSETS;SPLITS]``.

    Subsets and splits are in the name only where the task does not have all of them.
    """
    parts = []
    if not task.is_aggregate and set(task.hf_subsets) != set(task.metadata.hf_subsets):
        parts.append(_join_names(task.hf_subsets))
    if set(task.eval_splits) != set(task.metadata.eval_splits):
        parts.append(_join_names(task.eval_splits))
    name = f"{MTEB_PREFIX}{task.metadata.name}"
    return f"{name}[{';'.join(parts)}]" if parts else name


def _join_names(names: Iterable[str]) -> str:
    """Return sorted names joined by "+"; for a long list "N-HASH", with N the number of names."""
    joined = "+".join(sorted(names))
    if len(joined) <= MAX_SUBSETS_CHARACTERS:
        return joined
    return f"{joined.count('+') + 1}-{hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def _list_parts(task: AbsTask) -> list[AbsTask]:
    """Return the tasks that an aggregate averages; for any other task, the task itself."""
    return list(task.metadata.tasks) if isinstance(task, AbsTaskAggregate) else [task]


def load_local_rows(task: AbsTask, source: Source) -> Rows | None:
    """Give a task the rows of the local copy of its data, and return the rows.

    Returns None, and leaves the task unchanged, when the source has no copy. Raises InputError for
    a copy that is not complete or was altered, RunError when a copy on the Hub cannot be read.
    """
    dataset = LOCAL_DATASETS.get(task.metadata.dataset["path"])
    if dataset is None or not source.has(dataset, "test"):
        return None
    rows = source.load(dataset, ["test"])["test"]
    columns = {
        "sentence1": list(rows.first),
        "sentence2": list(rows.second),
        "score": rows.target.tolist(),
    }
    task.dataset = DatasetDict(test=Dataset.from_dict(columns))
    task.data_loaded = True
    return rows


def describe_data(task: AbsTask, rows: Rows | None) -> DataVersion:
    """Return the version of a task's data: the hash of local rows, else ORG/NAME@REVISION.

    ``rows``: the local rows that the task was given, or None. An aggregate has the revisions of all
    its tasks, separated by commas.
    """
    if rows is not None:
        return DataVersion(rows.sha256)
    revisions = [
        f"{part.metadata.dataset['path']}@{part.metadata.revision}" for part in _list_parts(task)
    ]
    return DataVersion(None, ", ".join(revisions))


class MtebEncoder(AbsEncoder):
    """An encoder under MTEB's protocol.

    MTEB chooses one of the prompts of a SentenceTransformer by the task, the task's type or the
    side of a retrieval. A function gets texts without a prompt. Every text is encoded once for
    each prompt, through ``sts_dino.eval.encoders.embeddings``.
    """

    def __init__(self, embeddings: Embeddings):
        """Wrap the embeddings of an encoder; each prompt of MTEB opens its own file."""
        self._embeddings = embeddings
        # AbsEncoder reads the model's similarity from this attribute
        self.model: Any = embeddings.encoder.model
        self.mteb_model_meta = ModelMeta.create_empty()

    def encode(
        self,
        inputs: DataLoader[Any],
        *,
        task_metadata: TaskMetadata,
        prompt_type: PromptType | None = None,
        **_: Any,
    ) -> NDArray[np.float32]:
        """Return the embeddings (n, dimension) of the texts of all batches, in their order.

        ``task_metadata`` and ``prompt_type``, the side of a retrieval, choose the prompt. Raises
        the errors of ``Embeddings.embed``.
        """
        encoder = add_task_prompt(self._embeddings.encoder, task_metadata, prompt_type)
        texts = chain.from_iterable(batch["text"] for batch in inputs)
        return self._embeddings.get_for_prompt(encoder).embed(list(texts))


def add_task_prompt(encoder: Encoder, task: TaskMetadata, side: PromptType | None) -> Encoder:
    """Return the encoder with the prompt that MTEB chooses for a task and a side of retrieval.

    Without prompt and side, and for a function, the result is the encoder itself. A side chooses
    the model's method, too: ``encode_query`` or ``encode_document``.
    """
    model = encoder.model
    if model is None:
        return encoder
    prompt = get_prompt(cast("dict[str, str]", model.prompts), task, side)
    if prompt is None and side is None:
        return encoder
    encode: Callable[..., Any] = model.encode
    if side is not None:
        encode = model.encode_query if side is PromptType.query else model.encode_document
    # The settings decide which stored embeddings are read again
    side_name = "None" if side is None else side.value
    settings = encoder.settings | {"prompt": repr(prompt), "side": side_name}
    return wrap_with_prompt(encoder, encode, prompt, settings)


# MTEB's main score of an STS task → this project's metric
STS_METRICS: dict[str, Metric] = {"cosine_spearman": "spearman", "cosine_pearson": "pearson"}
MTEB_DECIMALS = 6  # decimals of a score that MTEB keeps
ERROR_METRICS = ("mae", "mse", "rmse")  # metrics that are not shares or correlations
UNIT_OF_TASK_TYPE: dict[str, Unit] = {
    **dict.fromkeys(("STS", "PairClassification", "BitextMining"), "pairs"),
    **dict.fromkeys(
        ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking"), "queries"
    ),
}


def convert_task(task: AbsTask, split: str) -> Task:
    """Return an MTEB task as a task of this project, with the one split ``split``.

    Only STS tasks whose main score is in ``STS_METRICS`` have a metric and so an interval. MTEB
    returns no scores of single rows for other types, and this project computes no other STS score.
    """
    metadata = task.metadata
    metric = STS_METRICS.get(metadata.main_score) if isinstance(task, AbsTaskSTS) else None
    subsets = len(task.hf_subsets)
    protocol = (
        f"MTEB's {metadata.name} ({metadata.type}), with the model's prompts as MTEB chooses them: "
        f"{metadata.main_score} x 100"
    )
    if subsets != 1:
        protocol += f", unweighted mean over {subsets} subsets"
    if isinstance(task, AbsTaskAggregate):
        protocol += f", unweighted mean over {len(_list_parts(task))} tasks"
    if metric is None:
        protocol += "; no interval: no scores of single rows"
    return Task(
        name=make_task_name(task),
        dataset=metadata.name,
        group="mteb",
        family="mteb",
        protocol=protocol,
        metric=metric,
        aggregation="all" if subsets == 1 else "mean",
        unit=UNIT_OF_TASK_TYPE.get(metadata.type, "documents"),
        splits=(split,),
    )


# Function of task, split and data that returns the record of an earlier run if it holds
FindRecord = Callable[[Task, str, DataVersion], Record | None]


def measure_mteb(
    name: str,
    embeddings: Embeddings,
    source: Source,
    settings: EvaluationSettings,
    find_record: FindRecord,
    results: Path,
) -> Iterator[NewScore | Record | RunError]:
    """Yield the scores of a task, benchmark or task type: task by task, and split by split.

    A task whose data cannot be downloaded, or whose score is undefined, yields its RunError, and
    the next task follows. A task with valid earlier records of all its splits yields the records.
    MTEB scores all splits of a task together, so with fewer records all splits are scored.

    Args:
        name: the name without ``mteb/``.
        embeddings: the embeddings of the encoder.
        source: local copies of data.
        settings: the settings of the intervals.
        find_record: finds the record of an earlier run.
        results: the folder for TASK.json, MTEB's result of a task.

    Raises the InputErrors of ``find_mteb_tasks``, ``load_local_rows`` and the encoder, and the
    RunErrors of the encoder.
    """
    model = MtebEncoder(embeddings)
    # MTEB's advice to take a newer task is silenced: the user chose this one
    logging.getLogger("mteb").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(superseded|in beta)", category=UserWarning)
        for task in find_mteb_tasks(name, settings):
            try:
                # Use earlier records only if all splits of the task have one
                rows = load_local_rows(task, source)
                data = describe_data(task, rows)
                records = []
                for split in task.eval_splits:
                    if record := find_record(convert_task(task, split), split, data):
                        records.append(record)
                if len(records) == len(task.eval_splits):
                    yield from records
                else:
                    yield from measure_task(task, model, rows, settings, results)
            except RunError as error:
                # The encoder would fail on the next task, too
                if error.place == embeddings.encoder.name:
                    raise
                yield error


def measure_task(
    task: AbsTask,
    model: MtebEncoder,
    rows: Rows | None,
    settings: EvaluationSettings,
    results: Path,
) -> Iterator[NewScore]:
    """Yield the scores of one task, split by split.

    Args:
        task: the task.
        model: the encoder.
        rows: the local rows that the task was given; None: the task downloads its data.
        settings: the settings of the intervals.
        results: the folder for TASK.json, MTEB's result of the task.

    The data are unloaded after the last split. Raises RunError when the task's data are not
    available, a score is undefined or the rows cannot be resampled, and the errors of the encoder.
    """
    # Score all splits; MTEB writes the cosines of STS pairs to a folder
    _load_data(task)
    with TemporaryDirectory() as folder:
        evaluated = mteb.evaluate(
            # mteb's type asks for the __init__ of its own command line
            model,  # type: ignore[arg-type]
            task,
            co2_tracker=False,
            encode_kwargs={"batch_size": BATCH_TEXTS, "show_progress_bar": False},
            cache=None,
            prediction_folder=folder if isinstance(task, AbsTaskSTS) else None,
            show_progress_bar=False,
            public_only=False,
        )
        result = evaluated.task_results[0]
        make_folder(results)
        result.to_disk(results / f"{task.metadata.name}.json")

        # Convert the score of each split, and compute its interval
        for split in task.eval_splits:
            our_task = convert_task(task, split)
            metrics = {scores["hf_subset"]: scores for scores in result.scores[split]}
            score = _make_score(our_task, task, split, metrics, rows)
            outcomes = None
            if our_task.metric is not None:
                outcomes = _read_sts_outcomes(task, split, Path(folder))
                score = add_interval(
                    score, outcomes, our_task.metric, our_task.aggregation, settings
                )
            yield NewScore(our_task, score, outcomes)
    for part in _list_parts(task):
        part.unload_data()


def _make_score(
    our_task: Task,
    task: AbsTask,
    split: str,
    metrics: Mapping[str, Mapping[str, Any]],
    rows: Rows | None,
) -> TaskScore:
    """Return the score of a split, without an interval. Raises RunError when it is undefined.

    Args:
        our_task: the task as a task of this project.
        task: MTEB's task.
        split: the split.
        metrics: subset → name of a metric → MTEB's value, 0 to 1 for most metrics.
        rows: the local rows that the task was given; None: MTEB's data.
    """
    # Score every subset
    parts: dict[str, Part] = {}
    for subset, scores in metrics.items():
        main_score = 100 * round(float(scores["main_score"]), MTEB_DECIMALS)
        if not math.isfinite(main_score):
            raise RunError(
                our_task.name, "the score is undefined", hint="do all embeddings coincide?"
            )
        parts[subset] = Part(score=main_score, n=_count_rows(task, subset, split))

    # Average them, unweighted
    data = describe_data(task, rows)
    return TaskScore(
        task=our_task.name,
        protocol=our_task.protocol,
        split=split,
        main_metric=task.metadata.main_score,
        main_score=float(np.mean([part.score for part in parts.values()])),
        n=sum(part.n for part in parts.values()),
        unit=our_task.unit,
        family=our_task.family,
        other=_average_metrics(task.metadata.main_score, metrics),
        parts=parts if len(parts) > 1 else {},
        data_sha256=data.sha256,
        data_revision=data.revision,
    )


def _average_metrics(
    main_metric: str, metrics: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Return the mean over subsets of every metric but the main one.

    ``metrics``: subset → name of a metric → MTEB's value. Means are x 100, except for
    ``ERROR_METRICS``. Metrics without a finite value in each subset are left out, and so are MTEB's
    metrics of abstention (nAUC).
    """
    means = {}
    for name in next(iter(metrics.values())):
        if name in (main_metric, "main_score") or "nauc" in name:
            continue
        values = [scores.get(name) for scores in metrics.values()]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) == len(values) and np.isfinite(numbers).all():
            factor = 1 if name in ERROR_METRICS else 100
            means[name] = factor * round(float(np.mean(numbers)), MTEB_DECIMALS)
    return means


def _read_sts_outcomes(task: AbsTask, split: str, predictions: Path) -> Outcomes:
    """Return the human scores and cosines of an STS task's pairs, with their subsets.

    Pairs of a task with one subset are one part. The cosines are read from the file that MTEB
    wrote into the folder ``predictions``.
    """
    raw = json.loads((predictions / task.prediction_file_name).read_text(encoding="utf-8"))
    gold = []
    predicted = []
    part: list[str] = []
    for subset in task.hf_subsets:
        scores = np.asarray(_get_rows(task, subset, split)["score"], dtype=np.float64)
        gold.append(scores)
        predicted.append(np.asarray(raw[subset][split]["cosine_scores"]))
        part += [subset] * len(scores)
    if len(gold) == 1:
        part = []
    return Outcomes(np.concatenate(gold), np.concatenate(predicted), tuple(part))


def _get_rows(task: AbsTask, subset: str, split: str) -> Any:
    """Return the loaded rows of a split: of a subset, or of a task without subsets."""
    assert task.dataset is not None
    return task.dataset[subset][split] if subset in task.dataset else task.dataset[split]


def _count_rows(task: AbsTask, subset: str, split: str) -> int:
    """Return the number of scored rows, or of queries in a retrieval.

    An aggregate has the sum over all subsets of its tasks.
    """
    if task.is_aggregate:
        count = 0
        for part in _list_parts(task):
            count += sum(_count_rows(part, name, split) for name in part.hf_subsets)
        return count
    rows = _get_rows(task, subset, split)
    is_retrieval = isinstance(rows, Mapping) and "queries" in rows
    return len(rows["queries"] if is_retrieval else rows)


def _load_data(task: AbsTask) -> None:
    """Download the data of a task that are not loaded yet.

    Raises RunError when the data are not available.
    """
    for part in _list_parts(task):
        if part.data_loaded:
            continue
        repository = part.metadata.dataset["path"]
        location = f"{make_task_name(task)}: {repository} at {constants.ENDPOINT}"
        with convert_hub_errors(f"read {location}"):
            try:
                part.load_data()
            except DatasetNotFoundError:
                hint = "ask for access on its page, set HF_TOKEN"
                raise RunError(location, "is gated, private or gone", hint=hint) from None
            except ConnectionError:
                hint = "run the same command again with a network"
                if repository in LOCAL_DATASETS:
                    layout = find_dataset(LOCAL_DATASETS[repository]).layout
                    hint = f"give {LAYOUTS[layout].option}, which holds the same rows"
                raise RunError(
                    location, "cannot be reached, and its data are not in the cache", hint=hint
                ) from None

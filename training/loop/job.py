"""A training job: the recipe and all its inputs, read and checked before anything is written.

Trainer arguments go from text in the recipe to typed ``SentenceTransformerTrainingArguments`` under
their upstream names. ``arguments.yaml`` has their defaults, and the arguments that a recipe may not
set because they are decided elsewhere or not supported.
"""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import yaml

from sts_dino.hub.contract.licences import check_model
from sts_dino.hub.contract.published_paths import name_inputs, name_origin, require_inputs
from sts_dino.hub.contract.recipe import ModelRecipe, TrainingData
from sts_dino.hub.contract.recipe_file import begin_run, load_recipe
from sts_dino.hub.contract.run_dir import ARTIFACTS, Manifest
from sts_dino.hub.errors import InputError, suggest_choice
from sts_dino.hub.untrusted import get_first_line
from sts_dino.training.data.objectives import (
    DOCUMENTS,
    LOSSES,
    check_losses,
    parse_argument,
    parse_loss_arguments,
    require_positive,
)
from sts_dino.training.encoder.bases import Base, find_base
from sts_dino.training.loop.distributed import get_process_count

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformerTrainingArguments

    from sts_dino.training.data.training_sets import TrainingSet
    from sts_dino.training.loop.validation import ValidationEvaluator

LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets", "accelerate")
TENSORBOARD = "tensorboard"  # the name of a reporter
NO_REPORTER = "none"
TABLES = yaml.safe_load(Path(__file__).with_name("arguments.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class TrainingJob:
    """Everything a training run needs, checked: recipe, inputs on this disk, and trainer arguments.

    ``out``: the run directory. ``sets``, ``loss_arguments`` (name → typed value): one for each
    dataset, in the recipe's order. ``evaluator``: None without validation data. ``reporters``: the
    names of the reporters, e.g. tensorboard. ``guides``: index of a dataset → the base of its
    ``guide``; a dataset whose recipe names no guide has no entry.
    """

    recipe: ModelRecipe
    out: Path
    sets: list[TrainingSet]
    base: Base
    evaluator: ValidationEvaluator | None
    arguments: SentenceTransformerTrainingArguments
    reporters: list[str]
    loss_arguments: list[dict[str, Any]]
    guides: dict[int, Base]

    def get_path(self, ending: str) -> Path:
        """Return the path OUT.``ending`` beside the run directory. It is never published."""
        return self.out.with_name(f"{self.out.name}.{ending}")

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, OUT.checkpoints."""
        return self.get_path("checkpoints")

    def begin(self) -> Manifest:
        """Start or resume the run in its run directory; return the manifest.

        The caller holds the directory's lock. A finished run has a complete manifest. A new run
        gets its recipe and manifest written. Raises InputError when the run directory holds another
        run, an unfinished or damaged run of other library versions, or files without a manifest.
        """
        # The inputs, (name, hash): base, vocabulary, datasets, guides.
        base = self.recipe.base
        named_inputs = [(f"base:{name_origin(base.repo_id, base.path)}", self.base.sha256)]
        if base.vocabulary is not None and self.base.corpus is not None:
            name = name_origin(base.vocabulary.repo_id, base.vocabulary.path)
            named_inputs.append(
                (f"vocabulary:{name}:{base.vocabulary.config}", self.base.corpus.sha256)
            )
        for item in self.sets:
            name = name_origin(item.spec.repo_id, item.spec.path)
            named_inputs.append((f"dataset:{name}:{item.spec.config}", item.sha256))
        for index, guide in self.guides.items():
            spec = self.recipe.datasets[index].guide
            assert spec is not None
            named_inputs.append((f"guide:{name_origin(spec.repo_id, spec.path)}", guide.sha256))

        # Equal names get a number.
        names = name_inputs(name for name, _ in named_inputs)
        digests = [sha256 for _, sha256 in named_inputs]
        inputs = dict(zip(names, digests, strict=True))
        if self.evaluator is not None:
            inputs |= self.evaluator.inputs

        versions = {"python": sys.version.split()[0]}
        versions |= {library: version(library) for library in LIBRARIES}
        if self.recipe.lora:
            versions["peft"] = version("peft")
        return begin_run(self.out, self.recipe, inputs, versions)


def prepare(path: Path, out: Path | None, limit: int | None, settings: list[str]) -> TrainingJob:
    """Read and check everything that a run needs, the cheap things first; write no file of a run.

    Downloads base and data from the Hub. With several processes, this process joins their group.
    Warnings and progress bars of the libraries are silenced in this process from then on.

    Args:
        path: the recipe file.
        out: the run directory; None: artifacts/models/NAME.
        limit: replaces the recipe's limit of rows of each dataset; None keeps it.
        settings: overrides of the recipe, ``KEY=VALUE`` or ``@FILE``.

    Raises InputError for a recipe or data that cannot be trained, RunError when the Hub cannot be
    read.
    """
    # The recipe by itself, without libraries whose import takes seconds.
    recipe = load_recipe(path, ModelRecipe, settings)
    if limit is not None:
        recipe = recipe.model_copy(update={"limit": limit})
    where = f"{path}:arguments"
    check_model(recipe, ())
    check_argument_names(recipe.arguments, where)
    check_losses(recipe, str(path))
    require_taught_pairs(recipe.datasets, f"{path}:datasets")
    # Data of the evaluation are read later, by sts-dino score.
    inputs = recipe.collect_local_paths().items()
    require_inputs(path, {key: file for key, file in inputs if not key.startswith("evaluation.")})

    from sts_dino.training.data.training_sets import load_training_sets
    from sts_dino.training.encoder.encoder import check_base_branch
    from sts_dino.training.loop.validation import build_validation_evaluator

    # Arguments of losses and trainer.
    silence_libraries()
    values = parse_arguments(recipe.arguments, where)
    check_arguments(values, recipe.datasets, recipe.slanted_triangular is not None, where)
    reporters = parse_reporters(
        values.get("report_to", TABLES["defaults"]["report_to"]), f"{where}.report_to"
    )
    values["seed"] = recipe.seed
    values["per_device_train_batch_size"] = split_batch(
        recipe.batch_size,
        get_process_count(),
        values.get("gradient_accumulation_steps", 1),
        f"{path}:batch_size",
    )
    loss_arguments = [
        parse_loss_arguments(spec, f"{path}:datasets.{index}")
        for index, spec in enumerate(recipe.datasets)
    ]

    # The base, guides and training data.
    base = find_base(recipe.base)
    guides = {
        index: find_base(spec.guide, f"datasets.{index}.guide")
        for index, spec in enumerate(recipe.datasets)
        if spec.guide is not None
    }
    if recipe.lora is not None and recipe.lora.release == "adapter":
        check_base_branch(recipe.base, "base")
    sets = load_training_sets(recipe.datasets, recipe.limit, recipe.seed, not recipe.validation)
    check_sets(sets, recipe.batch_size, bool(values.get("dataloader_drop_last")))
    check_model(
        recipe,
        [(name_origin(item.spec.repo_id, item.spec.path), item.license or "") for item in sets],
    )

    # The validation data that choose the checkpoint, and the trainer's arguments.
    evaluation_batch_size = values.get("per_device_eval_batch_size", 64)
    evaluator = build_validation_evaluator(recipe.validation, sets, evaluation_batch_size)
    if recipe.merge == "auto" and evaluator is None:
        raise InputError(
            f"{path}:merge",
            "auto is chosen on validation pairs, and the data have none",
            allowed="a number above 0, up to 2",
            hint="or give validation, "
            "or a dataset that keeps some (postprocess.validation_fraction)",
        )
    out = (out or ARTIFACTS / "models" / recipe.name).resolve()
    checkpoints = out.with_name(f"{out.name}.checkpoints")
    arguments = build_trainer_arguments(
        values, reporters, checkpoints, evaluator is not None, where
    )
    return TrainingJob(
        recipe, out, sets, base, evaluator, arguments, reporters, loss_arguments, guides
    )


def require_taught_pairs(datasets: Sequence[TrainingData], where: str) -> None:
    """Raise InputError when the pairs that a teacher scores are missing on this disk.

    The error names the command that makes them. ``where``: the recipe's key ``datasets``, which
    the error names with an index. A dataset without a teacher or a local path passes.
    """
    for index, data in enumerate(datasets):
        if data.teacher is None or data.path is None or Path(data.path).exists():
            continue
        options = ["--teacher", data.teacher.location, "--out", str(Path(data.path).parent)]
        raise InputError(
            f"{where}.{index}.path",
            f"{data.path}: no such file",
            hint=f"make it first: sts-dino teach RUN {shlex.join(options)}",
        )


def check_argument_names(texts: dict[str, str], where: str) -> None:
    """Raise InputError naming ``where``.NAME for an argument that a recipe may not set.

    Such an argument is decided elsewhere or not supported. Unknown names pass: ``parse_arguments``
    finds them, with the trainer's library, whose import takes seconds. ``texts``: name → text.
    """
    for name in texts:
        problem = _explain_refusal(name)
        if problem is not None:
            raise InputError(
                f"{where}.{name}", problem, hint="remove it from the recipe's arguments"
            )


def _explain_refusal(name: str) -> str | None:
    """Return why a recipe may not set the trainer argument ``name``; None when it may.

    The reason is the problem of an error message, e.g. "is set by --out".
    """
    for owner, names in TABLES["decided"].items():
        if name in names:
            return f"is set by {owner}"
    for reason, names in TABLES["unsupported"].items():
        if name in names:
            return f"is not supported: {reason}"
    return "is set by this stage" if name in TABLES["fixed"] else None


def parse_arguments(texts: dict[str, str], where: str) -> dict[str, Any]:
    """Parse trainer arguments from a recipe's texts, as the types of their dataclass fields.

    ``texts``: name → text. Raises InputError naming ``where``.NAME for an unknown name, for a text
    that is not a value of the type, and for a number outside its range.
    """
    from sentence_transformers import SentenceTransformerTrainingArguments

    types = get_type_hints(SentenceTransformerTrainingArguments)
    values: dict[str, Any] = {}
    for name, text in texts.items():
        key = f"{where}.{name}"
        if name not in types:
            raise InputError(
                key,
                "is not a trainer argument",
                hint=suggest_choice(name, types) or "see transformers.TrainingArguments",
            )
        values[name] = parse_argument(text, types[name], key)
        if isinstance(values[name], int | float):
            _check_range(name, values[name], key)
    return values


def _check_range(name: str, value: float, where: str) -> None:
    """Raise InputError naming ``where`` for NaN, and for a value out of the range of ``name``.

    Only the arguments of ``above_zero`` and ``from_zero`` in arguments.yaml have a range.
    """
    if math.isnan(value):
        raise InputError(where, "is nan", allowed="a number")
    is_by_epochs = name == "max_steps" and value == -1  # the trainer's default
    if name in TABLES["above_zero"] and not is_by_epochs:
        require_positive(value, where)
    if name in TABLES["from_zero"]:
        require_positive(value, where, may_be_zero=True, may_be_infinite=True)


def check_arguments(
    values: dict[str, Any], datasets: Sequence[TrainingData], has_schedule: bool, where: str
) -> None:
    """Check that typed trainer arguments fit the recipe's schedule and datasets, and this machine.

    Args:
        values: name → value.
        datasets: the recipe's ``datasets``, which are not loaded.
        has_schedule: whether the recipe's key ``slanted_triangular`` sets the learning rate.
        where: the recipe's section that errors name.

    Raises InputError naming ``where``.NAME.
    """
    import torch

    if values.get("fp16") and not torch.cuda.is_available():
        raise InputError(f"{where}.fp16", "needs a GPU, and none is seen", hint="use bf16 on a CPU")
    for name in ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"):
        if has_schedule and name in values:
            raise InputError(
                f"{where}.{name}", "is set by slanted_triangular", hint="remove one of the two"
            )
    for spec in datasets:
        _check_dataset_arguments(spec, values, where)
        if LOSSES[spec.loss].in_batch and values.get("gradient_accumulation_steps", 1) > 1:
            raise InputError(
                f"{where}.gradient_accumulation_steps",
                f"{spec.loss} compares the rows of a batch, "
                "and accumulated steps do not share them",
                allowed="1",
                hint=LOSSES[spec.loss].smaller,
            )


def _check_dataset_arguments(spec: TrainingData, values: dict[str, Any], where: str) -> None:
    """Raise InputError for a stream without ``max_steps``, or with a ``batch_sampler``.

    A ``batch_sampler`` of documents is refused, too: their spans are cut when a row is read, and a
    batch sampler needs the texts before. ``values``: the typed trainer arguments. ``where``: the
    recipe's section that the error names.
    """
    if spec.streaming and values.get("max_steps", -1) <= 0:
        raise InputError(
            f"{where}.max_steps",
            f"{spec.repo_id or spec.path} is streamed, so how many steps an epoch has is not known",
            hint="give arguments.max_steps",
        )
    if "batch_sampler" in values and (spec.streaming or spec.example_type == DOCUMENTS.name):
        raise InputError(
            f"{where}.batch_sampler",
            "chooses among rows by their texts, and these are read as a stream or cut into spans",
            hint="leave it out",
        )


def parse_reporters(reporters: str, where: str) -> list[str]:
    """Return the names of reporters in ``reporters``, each once, in their order.

    ``reporters``: the value of ``report_to``, names separated by commas; "none" alone gives an
    empty list. Raises InputError naming ``where`` for a reporter that is unknown or not installed.
    """
    from transformers.integrations import integration_utils

    names = [name.strip() for name in reporters.split(",")]
    if names == [NO_REPORTER]:
        return []
    installed = sorted(integration_utils.get_available_reporting_integrations())
    for name in names:
        if name not in installed:
            problem = "is not a reporter of the trainer"
            if name in integration_utils.INTEGRATION_TO_CALLBACK:
                problem = "is not installed"
            raise InputError(
                where, f"{name!r} {problem}", allowed=f"{', '.join(installed)}, or {NO_REPORTER}"
            )
    return list(dict.fromkeys(names))


def split_batch(batch_size: int, processes: int, accumulated: int, where: str) -> int:
    """Return the number of rows that one process takes in one backward pass.

    Args:
        batch_size: rows of an optimiser step, over all processes and backward passes.
        processes: the number of processes.
        accumulated: the number of backward passes of a step in each process.
        where: the recipe's key that errors name.

    Raises InputError when ``batch_size`` is not a multiple of processes x backward passes.
    """
    parts = processes * accumulated
    if batch_size % parts == 0:
        return batch_size // parts
    below = batch_size // parts * parts
    nearest = [str(size) for size in (below, below + parts) if size > 0]
    count = f"{processes} process{'es' if processes > 1 else ''}"
    raise InputError(
        where,
        f"{batch_size} does not divide by {count} x {accumulated} accumulated steps",
        allowed=f"a multiple of {parts}, e.g. {' or '.join(nearest)}",
        hint="change batch_size, arguments.gradient_accumulation_steps or the number of processes",
    )


def check_sets(sets: list[TrainingSet], batch_size: int, drop_last: bool) -> None:
    """Check the licence of each loaded dataset, and its number of rows.

    Raises InputError for data without a licence and, with ``drop_last``, for a dataset of fewer
    than ``batch_size`` rows: it would have no batch. A stream's rows are not counted.
    """
    for index, item in enumerate(sets):
        where = f"datasets.{index}: {item.spec.repo_id or item.spec.path}"
        if item.license is None:
            raise InputError(
                where, "does not say its licence", hint=f"write it to datasets.{index}.license"
            )
        if drop_last and item.rows is not None and item.rows < batch_size:
            raise InputError(
                "arguments.dataloader_drop_last",
                f"drops all {item.rows:,} rows of {where}: "
                f"they are fewer than a batch of {batch_size}",
                hint="lower batch_size, or leave dataloader_drop_last out",
            )


def build_trainer_arguments(
    values: dict[str, Any],
    reporters: list[str],
    output_dir: Path,
    has_evaluator: bool,
    where: str,
) -> SentenceTransformerTrainingArguments:
    """Build the trainer's arguments for this process; with several processes, join their group.

    Args:
        values: the recipe's arguments, typed, with ``seed`` and ``per_device_train_batch_size``.
        reporters: the names of the reporters.
        output_dir: the folder of the checkpoints.
        has_evaluator: whether validation data choose the checkpoint.
        where: the recipe's section that errors name.

    Raises InputError when the trainer, the optimiser or the schedule refuses an argument, when
    evaluations and checkpoints do not go together, and when processes are missing in the group.
    """
    import torch

    chosen = {**TABLES["defaults"], **values, **TABLES["fixed"], "output_dir": str(output_dir)}
    # ``make_trainer`` adds TensorBoard itself, with a folder beside the run directory
    chosen["report_to"] = [name for name in reporters if name != TENSORBOARD]
    chosen.setdefault("dataloader_pin_memory", torch.cuda.is_available())
    chosen.setdefault("use_cpu", not torch.accelerator.is_available())
    if has_evaluator:
        _choose_by_score(chosen, where)
    else:
        chosen["eval_strategy"] = "no"
    return _make_arguments(chosen, where)


def _choose_by_score(values: dict[str, Any], where: str) -> None:
    """Add to ``values``, in place, the arguments that choose the checkpoint with the best score.

    ``values``: the trainer's arguments, name → typed value, defaults included. Raises InputError
    naming ``where`` when a saved checkpoint would not be evaluated, or the best one might not be
    saved.
    """
    eval_strategy = values["eval_strategy"]
    save_strategy = values["save_strategy"]
    if str(eval_strategy) == "no" or save_strategy not in (eval_strategy, "best"):
        raise InputError(
            where,
            f"eval_strategy {eval_strategy!r}, save_strategy {save_strategy!r}: "
            "a checkpoint is chosen only if it is evaluated",
            allowed="equal values, or save_strategy best",
        )
    values["load_best_model_at_end"] = True
    values["metric_for_best_model"] = "eval_sequential_score"
    values["greater_is_better"] = True
    if save_strategy != "steps":
        return

    # Save at every evaluation; upstream evaluates every logging_steps by default.
    eval_steps = values.get("eval_steps") or values["logging_steps"]
    save_steps = values.setdefault("save_steps", eval_steps)
    if save_steps != eval_steps:
        raise InputError(
            f"{where}.save_steps",
            f"is {save_steps:g}, but eval_steps is {eval_steps:g}: the best might not be saved",
            allowed=f"{eval_steps:g}, or save_strategy best",
        )


def _make_arguments(values: dict[str, Any], where: str) -> SentenceTransformerTrainingArguments:
    """Make the trainer's arguments from ``values``; with several processes, join their group.

    Two things differ from upstream. A process uses one GPU, where upstream would split its batch
    over all GPUs. Several processes do not have to drop an incomplete last batch, because
    ``SharedBatches`` divides it. ``values``: all arguments, name → typed value.

    Raises InputError naming ``where`` for values that the trainer, the optimiser or the schedule
    refuses, and InputError naming WORLD_SIZE when another number of processes joined the group.
    """
    import torch
    from sentence_transformers import SentenceTransformerTrainingArguments
    from transformers import Trainer, get_scheduler

    # Make the arguments, which joins the group. With several processes upstream accepts only
    # drop_last, so the recipe's value is set afterwards.
    processes = get_process_count()
    drop_last = values.get("dataloader_drop_last", False)
    accepted = values | {"dataloader_drop_last": drop_last or processes > 1}
    try:
        arguments = SentenceTransformerTrainingArguments(**accepted)
    except (ValueError, ImportError, OSError) as error:
        # the message may list all allowed values, so it is cut later than other messages
        raise InputError(where, get_first_line(error, longest=1_000)) from error
    if arguments.world_size != processes:
        raise InputError(
            "WORLD_SIZE in the environment",
            f"says {processes} processes, but {arguments.world_size} joined their group",
            hint="start them with torchrun or accelerate launch, "
            "or unset it to train in one process",
        )
    arguments.dataloader_drop_last = drop_last
    arguments._n_gpu = min(arguments.n_gpu, 1)

    # Try the optimiser on one weight: a missing option shows before training starts.
    model: Any = torch.nn.Linear(1, 1)
    try:
        optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
        optimizer = optimizer_class([torch.nn.Parameter(torch.zeros(1))], **settings)
    except (ImportError, TypeError, ValueError) as error:
        name = _get_plain(arguments.optim)
        raise InputError(f"{where}.optim", f"{name}: {get_first_line(error)}") from error

    # Try the schedule: no warm-up, one step.
    schedule: Any = _get_plain(arguments.lr_scheduler_type)
    options: Any = arguments.lr_scheduler_kwargs  # None, or the parsed dict
    try:
        get_scheduler(schedule, optimizer, 0, 1, options)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InputError(
            f"{where}.lr_scheduler_type",
            f"{schedule}: {error}",
            hint="give what it needs by lr_scheduler_kwargs, or take another",
        ) from error
    return arguments


def describe_arguments(
    arguments: SentenceTransformerTrainingArguments, recipe: ModelRecipe
) -> dict[str, Any]:
    """Return the trainer arguments that affect the weights: name → plain value, for the manifest.

    With the recipe's slanted triangular schedule, the trainer's own schedule is left out.
    """
    unused = ("lr_scheduler_type", "warmup_steps") if recipe.slanted_triangular else ()
    names = [name for name in TABLES["reported"] if name not in unused]
    return {name: _get_plain(getattr(arguments, name)) for name in names}


def _get_plain(value: Any) -> Any:
    """Return the value of an enum's member; return any other object unchanged."""
    return getattr(value, "value", value)


def silence_libraries() -> None:
    """Silence the libraries' progress bars, and warnings that a user cannot act on.

    The setting holds for this process, until it ends.
    """
    import datasets
    import transformers

    # transformers warns of the language-model head's weights, which an encoder does not load.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for message in (
        "`broadcast_buffers` is deprecated",  # accelerate calls torch
        # sentence-transformers calls torch, at every step
        "torch.distributed.nn.functional.all_gather is deprecated",
        ".*only defines `gradient_checkpointing_enable`",  # of sentence-transformers' model class
        # peft and sentence-transformers call transformers
        "`(is_gradient_checkpointing|gradient_checkpointing_enable)` is deprecated",
    ):
        warnings.filterwarnings("ignore", message, FutureWarning)

"""Trainer arguments: text from the recipe → typed ``SentenceTransformerTrainingArguments`` under their upstream names.

What a recipe leaves out is set here once, in ``DEFAULTS``; what other parts of the recipe or this stage decide may not
be given a second time (``DECIDED``).
"""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import Trainer, get_scheduler

from hub.errors import InputError, nearest
from hub.model_folder import first_line
from hub.recipe import ModelRecipe
from training.batches import per_device_batch
from training.reporters import TENSORBOARD, check_reporters

DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_eval_batch_size": 64,
    "learning_rate": 2e-5,
    "warmup_steps": 0.1,  # below 1: a share of all steps
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 2,  # the newest may be cut short by a kill; the one before it is whole
    "logging_steps": 10,
    "report_to": TENSORBOARD,
    "ddp_find_unused_parameters": False,  # the students use all they train; looking for others costs time
}
FIXED: dict[str, Any] = {
    "disable_tqdm": True,  # its bar prints logs to stdout; training.progress has one on stderr
    "logging_nan_inf_filter": False,  # a NaN is an error here, not something to leave out of an average
    "push_to_hub": False,
    "remove_unused_columns": False,
}
ABOVE_ZERO = (
    *("num_train_epochs", "learning_rate", "max_steps", "gradient_accumulation_steps", "per_device_eval_batch_size"),
    *("logging_steps", "eval_steps", "save_steps", "save_total_limit"),
)
FROM_ZERO = ("weight_decay", "max_grad_norm", "dataloader_num_workers")
CHOOSES = "this stage: it chooses by the recipe's validation data, else by the datasets' own validation splits"
DECIDED = {
    "output_dir": "--out",
    "seed": "the recipe's seed",
    "data_seed": "the recipe's seed",
    "per_device_train_batch_size": "the recipe's batch_size, which is of one step over all devices",
    "auto_find_batch_size": "the recipe's batch_size",
    "load_best_model_at_end": CHOOSES,
    "metric_for_best_model": CHOOSES,
    "greater_is_better": CHOOSES,
    "resume_from_checkpoint": "this stage: it resumes by itself",
    "hub_token": "the environment",
    **dict.fromkeys(FIXED, "this stage"),
}
UNSUPPORTED = {  # upstream's, and why not here
    **dict.fromkeys(("fsdp", "fsdp_config", "deepspeed", "parallelism_config"), "each process holds the whole student"),
    **dict.fromkeys(("save_only_model", "ignore_data_skip"), "a killed run could not go on to the same state"),
    **dict.fromkeys(
        ("neftune_noise_alpha", "label_smoothing_factor", "use_liger_kernel", "liger_kernel_config"),
        "it does nothing for sentence encoders",
    ),
    "eval_on_start": "there is no checkpoint before the first step to choose; eval.run scores the untrained student",
    "prompts": "the released encoder would not have them; base.prompt is around every sentence, there too",
}
REPORTED = (
    *("num_train_epochs", "max_steps", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "max_grad_norm", "optim", "adam_epsilon", "bf16", "fp16"),
    *("activation_checkpointing", "eval_strategy", "eval_steps", "batch_sampler", "multi_dataset_batch_sampler"),
)


def typed_arguments(texts: dict[str, str], place: str) -> dict[str, Any]:
    """Recipe arguments with the types their dataclass fields declare.

    Raises InputError naming ``place``.NAME for an unknown name, one decided elsewhere, or an unfit value.
    """
    hints = get_type_hints(SentenceTransformerTrainingArguments)
    valid = [field.name for field in fields(SentenceTransformerTrainingArguments) if field.init]
    return {name: _typed(name, text, hints, valid, f"{place}.{name}") for name, text in texts.items()}


def _typed(name: str, text: str, hints: dict[str, Any], valid: list[str], place: str) -> Any:
    if name in DECIDED:
        raise InputError(place, f"is set by {DECIDED[name]}", hint="remove it from the recipe's arguments")
    if name in UNSUPPORTED:
        raise InputError(place, f"is not supported: {UNSUPPORTED[name]}", hint="remove it from the recipe's arguments")
    if name not in valid:
        guess = nearest(name, valid)
        hint = f"did you mean {guess!r}?" if guess else "see transformers.TrainingArguments"
        raise InputError(place, "is not a trainer argument", hint=hint)
    adapter = TypeAdapter(hints[name], config=ConfigDict(arbitrary_types_allowed=True))
    try:
        value = adapter.validate_python(text)
    except ValidationError as error:
        raise InputError(place, f"{error.errors()[0]['msg']} (found {text!r})") from error
    _check_range(name, value, place)
    return value


def _check_range(name: str, value: Any, place: str) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise InputError(place, "is not a number")
    if name in ABOVE_ZERO and not 0 < value < math.inf and (name, value) != ("max_steps", -1):  # -1: by epochs
        raise InputError(place, f"is {value:g}", allowed="a positive number")
    if name in FROM_ZERO and value < 0:
        raise InputError(place, f"is {value:g}", allowed="0 or a positive number")


def check_together(recipe: ModelRecipe, given: dict[str, Any], place: str) -> None:
    """Raise InputError for arguments that do not fit one another, the recipe or this machine; nothing is loaded yet."""
    check_reporters(given.get("report_to", TENSORBOARD), f"{place}.report_to")
    if given.get("fp16") and not torch.cuda.is_available():
        raise InputError(f"{place}.fp16", "needs a GPU, and none is seen", hint="use bf16 on a CPU")
    streamed = [item.repo_id or item.path for item in recipe.datasets if item.streaming]
    if streamed and given.get("max_steps", -1) <= 0:
        found = f"{streamed[0]} is streamed, so how many steps an epoch has is not known"
        raise InputError(f"{place}.max_steps", found, hint="give arguments.max_steps")
    if "batch_sampler" in given and (streamed or recipe.datasets[0].form == "documents"):
        found = "chooses among rows by their texts, and these are read as a stream or cut into spans"
        raise InputError(f"{place}.batch_sampler", found, hint="leave it out")
    if recipe.slanted_triangular is not None:
        for name in ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"):
            if name in given:
                raise InputError(f"{place}.{name}", "is set by slanted_triangular", hint="remove one of the two")


def trainer_arguments(
    recipe: ModelRecipe, given: dict[str, Any], output_dir: Path, processes: int, selects: bool, place: str
) -> tuple[SentenceTransformerTrainingArguments, list[str]]:
    """The trainer's arguments and the reporters. ``selects``: whether validation data choose the checkpoint.

    Joins the group of processes, when there are several. Raises InputError when the values do not go together.
    """
    steps = given.get("gradient_accumulation_steps", 1)
    chosen = {**DEFAULTS, **given, **FIXED, "output_dir": str(output_dir), "seed": recipe.seed}
    chosen["per_device_train_batch_size"] = per_device_batch(recipe.batch_size, processes, steps, "batch_size")
    reporters = check_reporters(chosen["report_to"], place)
    chosen["report_to"] = [name for name in reporters if name != TENSORBOARD]  # whose folder is this stage's
    chosen.setdefault("dataloader_pin_memory", torch.cuda.is_available())
    chosen.setdefault("use_cpu", not torch.accelerator.is_available())
    if selects:
        evaluated, saved = chosen["eval_strategy"], chosen["save_strategy"]
        if str(evaluated) == "no" or saved not in (evaluated, "best"):
            found = (
                f"eval_strategy {evaluated!r}, save_strategy {saved!r}: a checkpoint is chosen only if it is evaluated"
            )
            raise InputError(place, found, allowed="equal values, or save_strategy best")
        chosen |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_sequential_score"}
        chosen["greater_is_better"] = True
        _keep_what_is_evaluated(chosen, place)
    else:
        chosen["eval_strategy"] = "no"
    return _built(chosen, processes, place), reporters


def _keep_what_is_evaluated(chosen: dict[str, Any], place: str) -> None:
    """Save at the steps that are evaluated: upstream takes the best score for the run's even if it was not saved."""
    if chosen["save_strategy"] != "steps":
        return
    every = chosen.get("eval_steps") or chosen["logging_steps"]  # as upstream
    if chosen.setdefault("save_steps", every) != every:
        found = f"is {chosen['save_steps']:g}, and evaluated is every {every:g} steps: the best might not be saved"
        raise InputError(f"{place}.save_steps", found, allowed=f"{every:g}, or save_strategy best")


def _built(chosen: dict[str, Any], processes: int, place: str) -> SentenceTransformerTrainingArguments:
    """The arguments of this process. One process takes one GPU: upstream would take all it sees, each with a batch of
    its own; and with several processes, upstream would drop every batch that is not whole (``training.batches`` cuts
    them evenly instead).
    """
    drops = chosen.get("dataloader_drop_last", False)
    try:
        arguments = SentenceTransformerTrainingArguments(**chosen | {"dataloader_drop_last": drops or processes > 1})
    except (ValueError, ImportError, OSError) as error:
        raise InputError(place, first_line(error)) from error
    _check_optimizer(arguments, place)
    if arguments.world_size != processes:
        found = f"says {processes} processes, but {arguments.world_size} joined their group"
        hint = "start them with torchrun or accelerate launch, or unset it to train in one process"
        raise InputError("WORLD_SIZE in the environment", found, hint=hint)
    arguments.dataloader_drop_last = drops
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _check_optimizer(arguments: SentenceTransformerTrainingArguments, place: str) -> None:
    """Make optimiser and schedule of one number, so that what they lack shows before anything is trained."""
    optim, schedule = (getattr(value, "value", value) for value in (arguments.optim, arguments.lr_scheduler_type))
    try:
        kind, settings = Trainer.get_optimizer_cls_and_kwargs(arguments, torch.nn.Linear(1, 1))  # type: ignore[arg-type]
        made = kind([torch.nn.Parameter(torch.zeros(1))], **settings)
    except (ImportError, TypeError, ValueError) as error:
        raise InputError(f"{place}.optim", f"{optim}: {first_line(error)}") from error
    try:
        get_scheduler(schedule, made, 0, 1, arguments.lr_scheduler_kwargs)  # type: ignore[arg-type] # a dict by now
    except (TypeError, ValueError) as error:
        hint = "give what it needs by lr_scheduler_kwargs, or take another"
        raise InputError(f"{place}.lr_scheduler_type", f"{schedule}: {error}", hint=hint) from error


def reported(arguments: SentenceTransformerTrainingArguments, recipe: ModelRecipe) -> dict[str, Any]:
    """The arguments that decide what was learned, as plain values for the manifest."""
    unused = ("lr_scheduler_type", "warmup_steps") if recipe.slanted_triangular else ()
    values = {name: getattr(arguments, name) for name in REPORTED if name not in unused}
    return {name: getattr(value, "value", value) for name, value in values.items()}

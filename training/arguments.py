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

from hub.errors import InputError, nearest
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
REPORTED = (
    *("num_train_epochs", "max_steps", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "max_grad_norm", "optim", "bf16", "fp16", "activation_checkpointing"),
    *("eval_strategy", "eval_steps", "batch_sampler", "multi_dataset_batch_sampler"),
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
    if name not in valid:
        guess = nearest(name, valid)
        hint = f"did you mean {guess!r}?" if guess else "see transformers.TrainingArguments"
        raise InputError(place, "is not a trainer argument", hint=hint)
    adapter = TypeAdapter(hints[name], config=ConfigDict(arbitrary_types_allowed=True))
    try:
        value = adapter.validate_python(text)
    except ValidationError as error:
        raise InputError(place, f"{error.errors()[0]['msg']} (found {text!r})") from error
    if isinstance(value, float) and math.isnan(value):
        raise InputError(place, "is not a number")
    return value


def check_together(recipe: ModelRecipe, given: dict[str, Any], place: str) -> None:
    """Raise InputError for arguments that do not fit one another, the recipe or this machine; nothing is loaded yet."""
    check_reporters(given.get("report_to", TENSORBOARD), f"{place}.report_to")
    if given.get("fp16") and not torch.cuda.is_available():
        raise InputError(f"{place}.fp16", "needs a GPU, and none is seen", hint="use bf16 on a CPU")
    streamed = [item.repo_id or item.path for item in recipe.datasets if item.streaming]
    if streamed and given.get("max_steps", -1) <= 0:
        found = f"{streamed[0]} is streamed, so how many steps an epoch has is not known"
        raise InputError(f"{place}.max_steps", found, hint="give arguments.max_steps")
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
    else:
        chosen["eval_strategy"] = "no"
    return _built(chosen, processes, place), reporters


def _built(chosen: dict[str, Any], processes: int, place: str) -> SentenceTransformerTrainingArguments:
    """The arguments of this process. One process takes one GPU: upstream would take all it sees, each with a batch of
    its own; and with several processes, upstream would drop every batch that is not whole (``training.batches`` cuts
    them evenly instead).
    """
    drops = chosen.get("dataloader_drop_last", False)
    try:
        arguments = SentenceTransformerTrainingArguments(**chosen | {"dataloader_drop_last": drops or processes > 1})
    except ValueError as error:
        raise InputError(place, str(error)) from error
    if arguments.world_size != processes:
        found = f"says {processes} processes, but {arguments.world_size} joined their group"
        hint = "start them with torchrun or accelerate launch, or unset it to train in one process"
        raise InputError("WORLD_SIZE in the environment", found, hint=hint)
    arguments.dataloader_drop_last = drops
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def reported(arguments: SentenceTransformerTrainingArguments) -> dict[str, Any]:
    """The arguments that decide what was learned, as plain values for the manifest."""
    values = {name: getattr(arguments, name) for name in REPORTED}
    return {name: getattr(value, "value", value) for name, value in values.items()}

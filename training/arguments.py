"""Trainer arguments: text from the recipe → typed ``SentenceTransformerTrainingArguments`` under their upstream names.

What a recipe leaves out is set here once, in ``DEFAULTS``; what other parts of the recipe or this stage decide may not
be given a second time (``DECIDED``).
"""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from sentence_transformers import SentenceTransformerTrainingArguments

from hub.errors import InputError, nearest

DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "learning_rate": 2e-5,
    "warmup_steps": 0.1,  # below 1: a share of all steps
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 2,  # the newest may be cut short by a kill; the one before it is whole
    "logging_steps": 10,
    "dataloader_pin_memory": torch.cuda.is_available(),
}
FIXED: dict[str, Any] = {
    "report_to": "none",
    "disable_tqdm": True,  # its bar prints logs to stdout; training.trainer has one on stderr
    "logging_nan_inf_filter": False,  # a NaN is an error here, not something to leave out of an average
    "push_to_hub": False,
    "remove_unused_columns": False,
}
DECIDED = {
    "output_dir": "--out",
    "seed": "the recipe's seed",
    "data_seed": "the recipe's seed",
    "load_best_model_at_end": "this stage: it chooses by Spearman on the datasets' own validation splits",
    "metric_for_best_model": "this stage: it chooses by Spearman on the datasets' own validation splits",
    "greater_is_better": "this stage: it chooses by Spearman on the datasets' own validation splits",
    "resume_from_checkpoint": "this stage: it resumes by itself",
    "hub_token": "the environment",
    **dict.fromkeys(FIXED, "this stage"),
}
REPORTED = (
    *("num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "optim", "bf16", "fp16"),
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
        raise InputError(place, f"is set by {DECIDED[name]}", hint="remove it from the recipe")
    if name not in valid:
        guess = nearest(name, valid)
        hint = f"did you mean {guess!r}?" if guess else "see transformers.TrainingArguments"
        raise InputError(place, "is not a trainer argument", hint=hint)
    adapter = TypeAdapter(hints[name], config=ConfigDict(arbitrary_types_allowed=True))
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        raise InputError(place, f"{error.errors()[0]['msg']} (found {text!r})") from error


def trainer_arguments(
    given: dict[str, Any], output_dir: Path, seed: int, selects: bool, place: str
) -> SentenceTransformerTrainingArguments:
    """The trainer's arguments. ``selects``: whether there are validation data to choose the checkpoint by.

    Raises InputError when the values do not go together.
    """
    chosen = {**DEFAULTS, **given, **FIXED, "output_dir": str(output_dir), "seed": seed}
    if selects:
        if str(chosen["eval_strategy"]) == "no" or chosen["eval_strategy"] != chosen["save_strategy"]:
            found = f"eval_strategy {chosen['eval_strategy']!r}, save_strategy {chosen['save_strategy']!r}"
            raise InputError(place, f"{found}: a checkpoint is chosen only if it is evaluated", allowed="equal values")
        chosen |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_sequential_score"}
        chosen["greater_is_better"] = True
    else:
        chosen["eval_strategy"] = "no"
    try:
        return SentenceTransformerTrainingArguments(**chosen)
    except ValueError as error:
        raise InputError(place, str(error)) from error


def reported(arguments: SentenceTransformerTrainingArguments) -> dict[str, Any]:
    """The arguments that decide what was learned, as plain values for the manifest."""
    values = {name: getattr(arguments, name) for name in REPORTED}
    return {name: getattr(value, "value", value) for name, value in values.items()}

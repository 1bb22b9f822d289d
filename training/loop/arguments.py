"""Trainer arguments: text from the recipe → typed ``SentenceTransformerTrainingArguments`` under their upstream names.

Defaults, and what may not be given because it is decided elsewhere or not supported, are in ``arguments.yaml``.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import yaml

from hub.contract.recipe import ModelRecipe
from hub.errors import InputError, did_you_mean
from hub.untrusted import first_line
from training.data.example_types import DOCUMENTS, EXAMPLE_TYPES
from training.loop.distributed import process_count
from training.losses.losses import LOSSES, loss_arguments, require_positive, typed_argument

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformerTrainingArguments

_SOURCES = (  # of TrainingArguments and what is built upon it
    ("transformers", "training_args.py"),
    ("sentence_transformers", "base/training_args.py"),
    ("sentence_transformers", "sentence_transformer/training_args.py"),
)
TENSORBOARD, NONE = "tensorboard", "none"  # reporters

TABLES = yaml.safe_load(Path(__file__).with_name("arguments.yaml").read_text(encoding="utf-8"))
DEFAULTS, FIXED, REPORTED = TABLES["defaults"], TABLES["fixed"], TABLES["reported"]
DECIDED = {name: who for who, names in TABLES["decided"].items() for name in names} | dict.fromkeys(FIXED, "this stage")
UNSUPPORTED = {name: why for why, names in TABLES["unsupported"].items() for name in names}


def check_texts(texts: dict[str, str], place: str) -> None:
    """Check arguments without the trainer's library, whose import takes seconds.

    Raises InputError naming ``place``.NAME for a name that is decided elsewhere, not supported or unknown, and for a
    number outside its range.
    """
    known = _names_in_source()
    for name, text in texts.items():
        here = f"{place}.{name}"
        for table, problem in ((DECIDED, "is set by "), (UNSUPPORTED, "is not supported: ")):
            if name in table:
                raise InputError(here, problem + table[name], hint="remove it from the recipe's arguments")
        if name not in known:
            hint = did_you_mean(name, known) or "see transformers.TrainingArguments"
            raise InputError(here, "is not a trainer argument", hint=hint)
        with suppress(ValueError):  # ``typed_arguments`` reports text that is not a number
            _check_range(name, float(text), here)


def _names_in_source() -> set[str]:
    """The names of all arguments, read from the source of the classes that declare them."""
    names = set[str]()
    for library, module in _SOURCES:
        spec = find_spec(library)
        assert spec is not None and spec.origin is not None
        source = (Path(spec.origin).parent / module).read_text(encoding="utf-8")
        names |= set(re.findall(r"^    (\w+): ", source, re.MULTILINE))
    return names


def typed_arguments(texts: dict[str, str], place: str) -> dict[str, Any]:
    """Checked recipe arguments with the types their dataclass fields declare.

    Raises InputError naming ``place``.NAME for an unfit value.
    """
    from sentence_transformers import SentenceTransformerTrainingArguments

    check_texts(texts, place)
    hints = get_type_hints(SentenceTransformerTrainingArguments)
    return {name: typed_argument(text, hints[name], f"{place}.{name}") for name, text in texts.items()}


def _check_range(name: str, value: float, place: str) -> None:
    if math.isnan(value):
        raise InputError(place, "is nan", allowed="a number")
    if name in TABLES["above_zero"] and (name, value) != ("max_steps", -1):  # -1: by epochs
        require_positive(value, place)
    if name in TABLES["from_zero"]:
        require_positive(value, place, zero=True, infinity=True)


def check_together(recipe: ModelRecipe, given: dict[str, Any], recipe_place: str) -> int:
    """Return the rows of one process's backward pass. Nothing is loaded yet.

    Raises InputError for arguments that do not fit one another, the losses, the batch or this machine.
    """
    import torch

    place, accumulated = f"{recipe_place}:arguments", given.get("gradient_accumulation_steps", 1)
    check_reporters(given.get("report_to", TENSORBOARD), f"{place}.report_to")
    if given.get("fp16") and not torch.cuda.is_available():
        raise InputError(f"{place}.fp16", "needs a GPU, and none is seen", hint="use bf16 on a CPU")
    streamed = [item.repo_id or item.path for item in recipe.datasets if item.streaming]
    if streamed and given.get("max_steps", -1) <= 0:
        found = f"{streamed[0]} is streamed, so how many steps an epoch has is not known"
        raise InputError(f"{place}.max_steps", found, hint="give arguments.max_steps")
    if "batch_sampler" in given and (streamed or EXAMPLE_TYPES[recipe.datasets[0].example_type] == DOCUMENTS):
        found = "chooses among rows by their texts, and these are read as a stream or cut into spans"
        raise InputError(f"{place}.batch_sampler", found, hint="leave it out")
    if recipe.slanted_triangular is not None:
        for name in ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"):
            if name in given:
                raise InputError(f"{place}.{name}", "is set by slanted_triangular", hint="remove one of the two")
    for index, spec in enumerate(recipe.datasets):
        loss_arguments(spec, f"{recipe_place}:datasets.{index}")
        if LOSSES[spec.loss].in_batch and accumulated > 1:
            found = f"{spec.loss} compares the rows of a batch, and accumulated steps do not share them"
            hint = LOSSES[spec.loss].smaller
            raise InputError(f"{place}.gradient_accumulation_steps", found, allowed="1", hint=hint)
    return per_device_batch(recipe.batch_size, process_count(), accumulated, f"{recipe_place}:batch_size")


def check_reporters(given: str | list[str] | None, place: str) -> list[str]:
    """The reporters that ``given`` names (a list, or one text with commas).

    Raises InputError for one that is unknown or not installed.
    """
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    listed = given if isinstance(given, list) else (given or NONE).split(",")
    names = [name.strip() for name in listed]
    if names == [NONE]:
        return []
    installed = sorted(get_available_reporting_integrations())
    for name in names:
        if name not in installed:
            problem = "is not installed" if name in INTEGRATION_TO_CALLBACK else "is not a reporter of the trainer"
            raise InputError(place, f"{name!r} {problem}", allowed=f"{', '.join(installed)}, or {NONE}")
    return list(dict.fromkeys(names))


def per_device_batch(batch_size: int, processes: int, accumulated: int, place: str) -> int:
    """Rows that one process takes in one backward pass. Raises InputError naming ``place`` when they do not divide."""
    parts = processes * accumulated
    if batch_size % parts == 0:
        return batch_size // parts
    below = batch_size // parts * parts
    nearest = [str(size) for size in (below, below + parts) if size]
    of = f"{processes} process{'es' if processes > 1 else ''}"
    raise InputError(
        place,
        f"{batch_size} does not divide by {of} x {accumulated} accumulated steps",
        allowed=f"a multiple of {parts}, e.g. {' or '.join(nearest)}",
        hint="change batch_size, arguments.gradient_accumulation_steps or the number of processes",
    )


def trainer_arguments(
    given: dict[str, Any], output_dir: Path, processes: int, selects: bool, place: str
) -> tuple[SentenceTransformerTrainingArguments, list[str]]:
    """The trainer's arguments and the reporters. ``given`` also has ``seed`` and ``per_device_train_batch_size``.

    ``selects``: whether validation data choose the checkpoint.

    Joins the group of processes, when there are several. Raises InputError when the values do not go together.
    """
    import torch

    chosen = {**DEFAULTS, **given, **FIXED, "output_dir": str(output_dir)}
    reporters = check_reporters(chosen["report_to"], place)
    chosen["report_to"] = [name for name in reporters if name != TENSORBOARD]  # whose folder is this stage's
    chosen.setdefault("dataloader_pin_memory", torch.cuda.is_available())
    chosen.setdefault("use_cpu", not torch.accelerator.is_available())
    if selects:
        evaluated, saved = chosen["eval_strategy"], chosen["save_strategy"]
        if str(evaluated) == "no" or saved not in (evaluated, "best"):
            found = f"eval_strategy {evaluated!r}, save_strategy {saved!r}"
            problem = f"{found}: a checkpoint is chosen only if it is evaluated"
            raise InputError(place, problem, allowed="equal values, or save_strategy best")
        chosen |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_sequential_score"}
        chosen["greater_is_better"] = True
        every = chosen.get("eval_steps") or chosen["logging_steps"]  # as upstream, which may not save the best step
        if saved == "steps" and chosen.setdefault("save_steps", every) != every:
            found = f"is {chosen['save_steps']:g}, but eval_steps is {every:g}: the best might not be saved"
            raise InputError(f"{place}.save_steps", found, allowed=f"{every:g}, or save_strategy best")
    else:
        chosen["eval_strategy"] = "no"
    return _built(chosen, processes, place), reporters


def _built(chosen: dict[str, Any], processes: int, place: str) -> SentenceTransformerTrainingArguments:
    """The arguments of this process, on one GPU: upstream would take all it sees, each with a batch of its own.

    With several processes, upstream would drop every batch that is not whole (``training.loop.trainer`` cuts them).
    """
    import torch
    from sentence_transformers import SentenceTransformerTrainingArguments
    from transformers import Trainer, get_scheduler

    drops = chosen.get("dataloader_drop_last", False)
    try:
        arguments = SentenceTransformerTrainingArguments(**chosen | {"dataloader_drop_last": drops or processes > 1})
    except (ValueError, ImportError, OSError) as error:
        raise InputError(place, first_line(error, longest=1_000)) from error  # it may list what is allowed
    if arguments.world_size != processes:
        found = f"says {processes} processes, but {arguments.world_size} joined their group"
        hint = "start them with torchrun or accelerate launch, or unset it to train in one process"
        raise InputError("WORLD_SIZE in the environment", found, hint=hint)
    arguments.dataloader_drop_last = drops
    arguments._n_gpu = min(arguments.n_gpu, 1)
    optim, schedule = (getattr(value, "value", value) for value in (arguments.optim, arguments.lr_scheduler_type))
    try:  # optimiser and schedule of one number: what they lack shows before anything is trained
        kind, settings = Trainer.get_optimizer_cls_and_kwargs(arguments, torch.nn.Linear(1, 1))  # type: ignore[arg-type]
        made = kind([torch.nn.Parameter(torch.zeros(1))], **settings)
    except (ImportError, TypeError, ValueError) as error:
        raise InputError(f"{place}.optim", f"{optim}: {first_line(error)}") from error
    try:
        get_scheduler(schedule, made, 0, 1, arguments.lr_scheduler_kwargs)  # type: ignore[arg-type] # a dict by now
    except (TypeError, ValueError) as error:
        hint = "give what it needs by lr_scheduler_kwargs, or take another"
        raise InputError(f"{place}.lr_scheduler_type", f"{schedule}: {error}", hint=hint) from error
    return arguments


def reported(arguments: SentenceTransformerTrainingArguments, recipe: ModelRecipe) -> dict[str, Any]:
    """The arguments that decide what was learned, as plain values for the manifest."""
    unused = ("lr_scheduler_type", "warmup_steps") if recipe.slanted_triangular else ()
    values = {name: getattr(arguments, name) for name in REPORTED if name not in unused}
    return {name: getattr(value, "value", value) for name, value in values.items()}

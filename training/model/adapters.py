"""LoRA adapters (Hu et al. 2022) by peft, on the model inside a sentence-transformers encoder.

The base is frozen, in any precision; the adapter is trained in float32. What is saved is the adapter alone, and its
``adapter_config.json`` names the base by Hub id and commit: ``SentenceTransformer("<org>/<adapter>")`` fetches both.
sentence-transformers 6.2 reads that base at its branch main whatever the config's ``revision`` says (peft's own classes
honour it), so ``check_base_branch`` refuses a pin that main has left, and a merged release has no such dependence.
"""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from peft import LoraConfig, PeftModel, prepare_model_for_kbit_training
from peft.tuners.tuners_utils import cast_adapter_dtype
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers.pytorch_utils import Conv1D

from hub.client.failures import reading
from hub.contract.recipe import Encoder, Lora
from hub.contract.shards import write_text
from hub.errors import InputError, did_you_mean
from training.model.bases import ADAPTER_CONFIG

NAME = "default"  # peft's name for the only adapter
READ_FILES = (".safetensors", ".json", ".model", "merges.txt", "vocab.txt")  # of a base, what loading depends on


def attach(encoder: SentenceTransformer, lora: Lora, repo_id: str | None = None, revision: str | None = None) -> None:
    """Freeze the encoder and put a new adapter, the identity, on its linear layers (all, or those that are named).

    ``repo_id`` and ``revision`` name the base in what is saved (None: a local base, which only a merged release has).
    Raises InputError for layers that the base does not have.
    """
    model: Any = encoder.transformers_model
    _check_targets(model, lora)
    model.base_dtype = model.config.dtype  # before saving or quantization change what the config says
    if getattr(model, "is_quantized", False):
        _check_device(model)
        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # the trainer's argument decides that
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) or "all-linear",
        task_type="FEATURE_EXTRACTION",
    )
    model.add_adapter(config, NAME)
    cast_adapter_dtype(model, NAME)
    # the name waits in the model: with one in its config, peft asks the Hub for the base at every checkpoint
    model.name_or_path, config.base_model_name_or_path, config.revision = repo_id, None, revision


def has_adapter(encoder: SentenceTransformer) -> bool:
    """Whether the encoder is an adapter on a base."""
    return bool(getattr(encoder.transformers_model, "_hf_peft_config_loaded", False))


def merge(encoder: SentenceTransformer, folder: Path) -> None:
    """Add the adapter in ``folder`` to the weights of ``encoder``, a plain one on the adapter's base."""
    model: Any = encoder.transformers_model
    encoder[0].model = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()


def write_config(encoder: SentenceTransformer, folder: Path) -> None:
    """Name the base in a saved ``adapter_config.json``, and put the layers in order: peft writes a set as it comes."""
    path = folder / ADAPTER_CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    model: Any = encoder.transformers_model
    config["base_model_name_or_path"] = model.name_or_path
    if isinstance(config["target_modules"], list):  # a finished adapter may have a pattern
        config["target_modules"].sort()
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


def check_base_branch(spec: Encoder, place: str) -> None:
    """Raise InputError when the base's branch main is not what ``spec`` pins, in the files that are loaded.

    Whoever loads a released adapter with sentence-transformers gets the base at main.
    """
    assert spec.repo_id is not None
    with reading(spec.repo_id, spec.revision):
        pinned, main = (_contents(spec.repo_id, revision) for revision in (spec.revision, "main"))
    differ = sorted(path for path in pinned.keys() | main.keys() if pinned.get(path) != main.get(path))
    if differ:
        problem = f"{spec.revision!r} is not the base that an adapter is loaded on: main has another {differ[0]}"
        raise InputError(f"{place}.revision", problem, hint="pin what main is now, or choose lora.release: merged")


def _contents(repo_id: str, revision: str | None) -> dict[str, str | None]:
    """Path → git's id, for the files that decide what is loaded."""
    siblings = HfApi().model_info(repo_id, revision=revision, files_metadata=True).siblings or []
    top = (item for item in siblings if "/" not in item.rfilename)
    return {item.rfilename: item.blob_id for item in top if item.rfilename.endswith(READ_FILES)}


def _check_device(model: Any) -> None:
    """bitsandbytes (0.50) packs weights at the first evaluation on a CPU; no gradient passes them after that."""
    if model.device.type == "cpu" and getattr(model, "quantization_method", None) == "bitsandbytes":
        hint = "train on a GPU, or leave base.quantization out"
        raise InputError("base.quantization", "bitsandbytes does not train on a CPU", hint=hint)


def _check_targets(model: nn.Module, lora: Lora) -> None:
    """peft passes over a name that fits no layer as long as another one fits."""
    linear = [name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D))]
    leaves = sorted({name.rsplit(".", 1)[-1] for name in linear})
    for target in lora.target_modules:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            hint = did_you_mean(target, leaves)
            raise InputError("lora.target_modules", f"no linear layer {target!r}", allowed=leaves, hint=hint)

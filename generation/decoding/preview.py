"""What can be told of a language model before it is loaded, from its config and its tokenizer: for ``--dry-run``."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from generation.decoding.load_model import (
    check_vocabulary,
    load_tokenizer,
    model_origin,
    model_place,
    resolve_dtype,
    slow_dtype,
)
from generation.decoding.model_check import find_path
from generation.inputs.chat_template import ChatTemplate, encoded_prompt
from hub.client.connection import hub_errors
from hub.contract.recipe import LanguageModel
from hub.untrusted import NO_CODE, reading_model, require_safetensors

SMALL = {
    "vocab_size": 512,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "moe_intermediate_size": 64,
    "num_local_experts": 8,
    "num_experts": 8,
}


class Preview:
    """A language model as its config and tokenizer tell it: ``context`` in tokens (0: not known)."""

    def __init__(self, recipe: LanguageModel, config: Any, tokenizer: Any):
        self.recipe, self.config, self.tokenizer = recipe, config.get_text_config(), tokenizer
        self.context = int(getattr(self.config, "max_position_embeddings", 0) or 0)
        self._template = ChatTemplate(tokenizer)

    @classmethod
    @hub_errors("read the language model's config")
    def of(cls, recipe: LanguageModel) -> "Preview":
        """The preview of a recipe's section ``model``. Raises InputError when its config or tokenizer is unusable."""
        place, tokenizer = model_place(recipe), load_tokenizer(recipe)
        with model_origin(recipe) as origin, reading_model(place, "its config cannot be read"):
            config = AutoConfig.from_pretrained(**origin, **NO_CODE)
        if isinstance(place, Path) and place.is_dir():
            require_safetensors(place, place)
            with reading_model(place, "cannot be loaded as a causal language model"):
                for file in sorted(place.glob("*.safetensors")):
                    with safe_open(file, framework="pt"):  # its header, held against the file's size
                        pass
        check_vocabulary(tokenizer, config, place)
        return cls(recipe, config, tokenizer)

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the model reads of a prompt: special tokens and the chat template's included."""
        return len(encoded_prompt(prompt, self.tokenizer, self._template if self.recipe.chat_template else None))

    def lines(self) -> Iterator[str]:
        """What is said of the model: the dtype, and which attention is expected and why."""
        yield f"model: {resolve_dtype(self.recipe)} on {self.recipe.device_map or self.recipe.device}"
        if warning := slow_dtype(self.recipe):
            yield f"warning: {warning}"
        facts = self.describe()
        window = facts.get("attention_window")
        beyond = f"; texts beyond its window of {window} tokens: the plain, slower loop" if window else ""
        yield f"attention: {facts['attention']}, expected ({facts['attention_reason']}{beyond})"

    def describe(self) -> dict[str, Any]:
        """The attention that the engine will find, tried on a small random model of the same config (float32)."""
        try:
            with torch.random.fork_rng(devices=[]):  # who asks keeps their random numbers
                torch.manual_seed(0)
                model = AutoModelForCausalLM.from_config(small_config(self.config), dtype=torch.float32, **NO_CODE)
                return find_path(model.eval()).describe()
        except Exception as error:  # noqa: BLE001 - configs of strangers; a plan is worth having without this line
            reason = f"not known before the model is loaded: {(str(error).splitlines() or [''])[0]}"
            return {"attention": "unknown", "attention_reason": reason}


def small_config(config: Any) -> Any:
    """A config with the attention of another one, and few layers (one of each kind, two at least), tokens and neurons.

    Heads, their size and the hidden size stay as they are, since they belong to the attention.
    """
    small = copy.deepcopy(config)
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or []))
    layers = max(2, len(kinds))
    if kinds:
        small.layer_types = (kinds * layers)[:layers]
    small.num_hidden_layers = min(layers, config.num_hidden_layers)
    for name, size in SMALL.items():
        if isinstance(getattr(small, name, None), int):
            setattr(small, name, min(size, getattr(small, name)))
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, name, None)
    return small

"""A tiny random causal language model with a real tokenizer, made in a second, for tests that need no quality."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import AutoConfig

from generation.backends.engine import Engine
from generation.backends.load_model import load_model
from hub.contract.recipe import LanguageModel

TEXTS = [
    'Task: Write two sentences that mean the same thing.\nSentence 1: "A man is playing a flute."\nSentence 2: "',
    'Task: Write two sentences that are somewhat similar.\nSentence 1: "Two dogs run on the beach."\nSentence 2: "',
    'Task: Write two sentences that are on completely different topics.\nSentence 1: "A woman cooks."\nSentence 2: "',
] * 3


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("gemma2", {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "query_pre_attn_scalar": 12, "sliding_window": 128, "layer_types": MIXED, "tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
        "query_pre_attn_scalar": 16, "sliding_window": 128, "layer_types": MIXED, "tie_word_embeddings": True,
        "rope_parameters": {MIXED[0]: ROPE, MIXED[1]: ROPE | {"rope_theta": 1e6}}}),
    "qwen2": ("qwen2", {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1,
        "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 8}),
    "qwen2.5": ("qwen2", {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
        "tie_word_embeddings": False, "rope_parameters": ROPE | {"rope_theta": 1e6}, "padded": 70}),
    "qwen3": ("qwen3", {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "tie_word_embeddings": True}),
    "llama3": ("llama", {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
        "tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "smollm2": ("llama", {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3,
        "tie_word_embeddings": True}),
    "smollm3": ("smollm3", {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1,
        "no_rope_layers": [1, 0], "tie_word_embeddings": True}),
    "mistral": ("mistral", {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
        "sliding_window": 4096, "tie_word_embeddings": False}),
    "phi": ("phi", {"hidden_size": 64, "num_attention_heads": 4, "partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 128,
        "tie_word_embeddings": False}),
    "opt": ("opt", {"hidden_size": 32, "num_attention_heads": 4, "padded": 7}),
    "opt-350m": ("opt", {"hidden_size": 32, "num_attention_heads": 4, "word_embed_proj_dim": 16,
        "do_layer_norm_before": False}),
    "gpt2": ("gpt2", {"n_embd": 48, "n_head": 3}),
    "gpt_neox": ("gpt_neox", {"hidden_size": 64, "num_attention_heads": 4, "tie_word_embeddings": False, "padded": 46,
        "rope_parameters": ROPE | {"partial_rotary_factor": 0.25}}),
    "olmo2": ("olmo2", {"hidden_size": 64, "num_attention_heads": 4, "tie_word_embeddings": False}),
    "granite": ("granite", {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
        "tie_word_embeddings": True, "embedding_multiplier": 12.0, "attention_multiplier": 0.0625,
        "residual_multiplier": 0.22, "logits_scaling": 8.0}),
    "cohere": ("cohere", {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "tie_word_embeddings": True, "logit_scale": 0.0625}),
}  # fmt: skip
"""Today's families by their transformers model type, with the shapes of their published configs, made small."""


def make_family(directory: Path, name: str, **changes: object) -> Path:
    """Write a random two-layer model of one of ``FAMILIES`` to ``directory``."""
    kind, shape = FAMILIES[name]
    return make_lm(directory, kind, **{**shape, **changes})


def make_lm(directory: Path, kind: str = "llama", seed: int = 0, padded: int = 0, **changes: object) -> Path:
    """Write a random two-layer model of an architecture (llama, gpt2, opt, qwen3, bloom ...) to ``directory``.

    ``padded``: so many rows more in its embedding than the tokenizer has tokens.
    """
    tokenizer = make_tokenizer()
    sizes = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256},
        "opt": {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64},
        "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
        "gpt_neo": {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 256,
        },
    }.get(kind, {"hidden_size": 32, "intermediate_size": 64})
    if kind not in ("gpt2", "bloom", "gpt_neo"):
        sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 256}
    if kind in ("llama", "qwen3", "mistral", "gemma2"):
        sizes |= {"num_key_value_heads": 2, "head_dim": 16}
    sizes |= {"eos_token_id": 0, "pad_token_id": 0, "bos_token_id": 0, "vocab_size": len(tokenizer) + padded}
    config = AutoConfig.for_model(kind, **sizes | changes)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # peaked distributions, as a trained model has: a flat one hides mistakes
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def load_engine(folder: Path, **settings: Any) -> Engine:
    model = LanguageModel(path=str(folder), license="mit", **settings)
    return Engine(*load_model(model), chat=model.chat_template)

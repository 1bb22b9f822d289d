"""A tiny random causal language model with a real tokenizer, made in a second, for tests that need
no quality.
"""

from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import AutoConfig

from sts_dino.generation.backends.engine import Engine
from sts_dino.generation.backends.load_model import load_model
from sts_dino.hub.contract.recipe import LanguageModel

TEXTS = [
    'Task: Write two sentences that mean the same thing.\nSentence 1: "A man is playing a flute."\nSentence 2: "',
    'Task: Write two sentences that are somewhat similar.\nSentence 1: "Two dogs run on the beach."\nSentence 2: "',
    'Task: Write two sentences that are on completely different topics.\nSentence 1: "A woman cooks."\nSentence 2: "',
] * 3


def byte_level_bpe(specials: list[str]) -> Tokenizer:
    """A byte-level BPE of 330 tokens, learned from ``TEXTS``; ``specials`` have the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=specials
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = byte_level_bpe(["<|end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>"
    )


FAMILIES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("tiny_families.yaml").read_text()
)
# of each family: what it is called, and whether its attention is shared or the loop is plain
MODELS = {name: family.pop("models") for name, family in FAMILIES.items()}
PATHS = {name: family.pop("path") for name, family in FAMILIES.items()}


def make_family(directory: Path, name: str, **changes: object) -> Path:
    """Write a random two-layer model of one of ``FAMILIES`` to ``directory``."""
    return make_lm(directory, **FAMILIES[name] | changes)


def make_lm(
    directory: Path, kind: str = "llama", seed: int = 0, padded: int = 0, **changes: object
) -> Path:
    """Write a random two-layer model of an architecture (llama, gpt2, opt, qwen3, bloom ...) to
    ``directory``.

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
    sizes |= {
        "eos_token_id": 0,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "vocab_size": len(tokenizer) + padded,
    }
    config = AutoConfig.for_model(kind, **sizes | changes)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # peaked distributions, as a trained model has: a flat one hides mistakes
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def make_closing(directory: Path) -> Path:
    """Write a random language model whose texts end soon: about one token in four is a quotation
    mark.
    """
    make_lm(directory, "gpt2", n_layer=1, n_positions=1024, tie_word_embeddings=False)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), make_tokenizer()
    # the last normalisation adds a direction that few tokens' output weights share
    with torch.no_grad():
        direction = torch.nn.functional.normalize(torch.randn(32), dim=0)
        model.transformer.ln_f.bias.copy_(10 * direction)
        for token, logit in (('"', 5), ("Ċ", -5), ("<|end|>", -5)):
            model.lm_head.weight[tokenizer.convert_tokens_to_ids(token)] = logit / 10 * direction
    model.save_pretrained(directory)
    return directory


def load_engine(folder: Path, workers: int = 1, **settings: Any) -> Engine:
    model = LanguageModel(path=str(folder), license="mit", **settings)
    return Engine(*load_model(model), chat=model.chat_template, workers=workers)

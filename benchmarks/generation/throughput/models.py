"""Models of real shapes with random weights that close their quotation mark as soon as a trained model does.

Random weights alone never close a quote, so every text would run to its last token and the gain of stopping would
vanish. Here the *age* of a text, how many tokens it has, is carried by the tokens themselves: all words that a model
can write are divided among ages 1, 2, ... The embedding of a word names its age on one axis and the output layer puts
the words of the next age far above all others. Of the words of age n, a share equal to the trained model's hazard (how
many of its texts that reach token n close there) ends with a quotation mark. Which word of an age is written is decided
by the random rest of the weights. So lengths follow the trained model's, in any program that runs the model, without a
hook, and every product has the real shape. The output layer has weights of its own (GPT-2 shares them with the
embeddings): the same arithmetic, some memory more, for every variant alike.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import AutoConfig

from hub.untrusted import NO_CODE


def _llama(vocabulary: int, width: int, inner: int, layers: int, heads: int, **more: int) -> dict[str, Any]:
    sizes = {"vocab_size": vocabulary, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    return {"model_type": "llama", **sizes, "num_attention_heads": heads, **more}


SHAPES: dict[str, dict[str, Any]] = {
    "gpt2-124m": {"model_type": "gpt2"},  # GPT-2 small is the default of its config class
    "gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "llama-5m": _llama(8192, 256, 704, 4, 8),  # the demo's model, with words enough to write
    "llama-27m": _llama(32_000, 384, 1024, 8, 6, max_position_embeddings=4096),
    "gpt2-tiny": {"model_type": "gpt2", "vocab_size": 8000, "n_embd": 64, "n_layer": 2, "n_head": 2},
    "llama-tiny": _llama(8000, 64, 128, 2, 2, max_position_embeddings=4096),
}
BASE = 4096  # byte-pair tokens that prompts are made of; all others are words that only the model writes
END = "<|end|>"
AGE_NAME = 2.0  # a token's age in its embedding; the rest of the embedding has length 1
AGE_SIGNAL, WORD_SIGNAL = 4.0, 3.0  # of the output layer: what decides the age, and the word among those of an age


def hazards(lengths: Sequence[int], limit: int) -> list[float]:
    """Of the texts that reach token 1, 2, ... ``limit``, the share that closes there.

    Args:
        lengths: tokens of trained texts, closing one included; above ``limit`` means not closed.
        limit: the token budget.
    """
    ends, alive, shares = Counter(lengths), len(lengths), list[float]()
    for age in range(1, limit + 1):
        shares.append(ends[age] / alive if alive else 0.0)
        alive -= ends[age]
    return shares


def write_model(shape: str, directory: Path, texts: Sequence[str], closing: Sequence[float], seed: int = 0) -> None:
    """Write a random model of a named shape and its tokenizer, which is trained on ``texts``, to ``directory``."""
    torch.manual_seed(seed)
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    shaped: dict[str, Any] = SHAPES[shape] | ends
    config = AutoConfig.for_model(**shaped, tie_word_embeddings=False)
    ages = [max(0, 1 + (token - BASE) % len(closing)) if token >= BASE else 0 for token in range(config.vocab_size)]
    model = AutoModelForCausalLM.from_config(config, **NO_CODE)
    _impose_ages(model, torch.tensor(ages), len(closing))
    model.save_pretrained(directory)
    _tokenizer(texts, ages, closing).save_pretrained(directory)


def _impose_ages(model: Any, ages: torch.Tensor, oldest: int) -> None:
    """Let every token's embedding name its age, and its output weights ask for the age before."""
    axes, width = torch.arange(oldest + 1), model.config.hidden_size
    with torch.no_grad():
        embeddings, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embeddings.normal_(0, width**-0.5)
        outputs.normal_(0, WORD_SIGNAL * width**-0.5)
        embeddings[:, axes], outputs[:, axes] = 0.0, 0.0
        embeddings[torch.arange(len(ages)), ages] = AGE_NAME
        written = (ages > 0).nonzero()[:, 0]
        outputs[written, ages[written] - 1] = AGE_SIGNAL


def _tokenizer(texts: Sequence[str], ages: Sequence[int], closing: Sequence[float]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer for the prompts, as GPT-2's, that can also decode the words the model writes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=BASE, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    state = json.loads(tokenizer.to_str())
    used = len(state["model"]["vocab"])
    state["model"]["vocab"] |= {f"<unused{token}>": token for token in range(used, BASE)}
    per_age, seen = Counter(ages), Counter[int]()
    for token in range(BASE, len(ages)):
        age = ages[token]
        closes = (seen[age] + 0.5) / per_age[age] < closing[age - 1]
        state["model"]["vocab"][f"Ġw{token:05d}" + ('"' if closes else "")] = token
        seen[age] += 1
    whole = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=whole, eos_token=END, pad_token=END)

"""A small RoBERTa to start from: a byte-level BPE learned from the benchmark's text, and random weights.

It has the form of ``FacebookAI/roberta-base``, language-model head included, and 3 % of its size. Random is the harder
start: the mean of random contextual vectors counts shared words, which STSb rewards (about 56), while a few hundred
steps of masked language modelling end in vectors that all look alike (300 steps, 614,400 tokens: 18.7).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import RobertaProcessing
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
VOCABULARY = 8_000
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def make_base(folder: Path, texts: Sequence[str], seed: int) -> dict[str, Any]:
    """Write tokenizer and random weights to ``folder``; their sizes."""
    tokenizer = train_tokenizer(texts)
    torch.manual_seed(seed)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=130,
        type_vocab_size=1,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        **SIZES,
    )
    model = RobertaForMaskedLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "vocabulary": len(tokenizer), "weights": "random", **SIZES}


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """RoBERTa's kind of tokenizer, its pieces learned from ``texts``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
        ),
    )
    tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=True)
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    names |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)

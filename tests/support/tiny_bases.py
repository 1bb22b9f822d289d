"""Tiny random base models of the papers' families, with real tokenizers, made in a second from
their configs.
"""

from pathlib import Path

import torch
from tiny_lm import byte_level_bpe, make_lm
from tokenizers.processors import RobertaProcessing
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

# RoBERTa's ids 0-3; its mask is the last of the vocabulary
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def make_mlm_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = byte_level_bpe(SPECIALS)
    tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    names |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)


def make_mlm(directory: Path, seed: int = 0, **changes: object) -> Path:
    """A random RoBERTa with its masked-language-model head, as ``FacebookAI/roberta-base`` is
    published.
    """
    tokenizer = make_mlm_tokenizer()
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    sizes |= {"max_position_embeddings": 514, "type_vocab_size": 1}
    config = RobertaConfig(
        vocab_size=len(tokenizer), bos_token_id=0, pad_token_id=1, eos_token_id=2, **sizes | changes
    )
    torch.manual_seed(seed)
    model = RobertaForMaskedLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def make_llama(directory: Path, seed: int = 0, **changes: object) -> Path:
    """A random Llama, as ``meta-llama/Llama-2-7b-hf`` is published."""
    return make_lm(directory, "llama", seed, **changes)

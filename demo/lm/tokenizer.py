"""The demonstration model's tokenizer: byte-level BPE in which a double quote is always a token of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.lm.prompts import PROMPT_PHRASES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


EOS, PAD = "<|endoftext|>", "<|pad|>"
VOCABULARY = 5120
MAX_LENGTH = 1024


def train_tokenizer(texts: Iterable[str], size: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Learn the merges from ``texts``; prompt phrases become single tokens on top, inside ``size``."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    quote_alone = pre_tokenizers.Split(Regex('"'), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([quote_alone, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(PROMPT_PHRASES),
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in PROMPT_PHRASES])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=EOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )

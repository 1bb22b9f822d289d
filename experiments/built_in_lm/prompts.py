"""The documents that the built-in language model learns, filled prompts, and its tokenizer.

A document is a prompt, a source sentence, a closing quote, the rest of the prompt, a completion and its closing quote.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

STS_TASKS = {
    "1": "Task: Write two sentences that mean the same thing.",
    "0.5": "Task: Write two sentences that are somewhat similar.",
    "0": "Task: Write two sentences that are on completely different topics.",
}
NLI_MIDDLE = '" in the form of a statement beginning with "Answer:". Answer: "'
# Whole phrases of the prompts are single tokens: shorter prompts, and labels that differ in one token.
PROMPT_PHRASES = (
    *STS_TASKS.values(),
    "\nSentence 1: ",
    "\nSentence 2: ",
    "Generate one sentence that logically entails ",
    "Generate one sentence that logically contradicts ",
    " in the form of a statement beginning with ",
)

EOS, PAD = "<|endoftext|>", "<|pad|>"
VOCABULARY = 5120
MAX_LENGTH = 1024

_SPACES = re.compile(r"\s+")
_QUOTES = re.compile(r'["“”„«»]|\'\'|``')


@dataclass(frozen=True)
class Pair:
    """One training example: ``label`` is an STS label (`1`, `0.5`, `0`) or an NLI verb; ``kind`` names its origin."""

    label: str
    first: str
    second: str
    kind: str


def before_first(label: str) -> str:
    """The prompt up to and including the quote that opens the source sentence."""
    if label in STS_TASKS:
        return f'{STS_TASKS[label]}\nSentence 1: "'
    return f'Generate one sentence that logically {label} "'


def between(label: str) -> str:
    """From the quote that closes the source sentence to the quote that opens the completion, both included."""
    return '"\nSentence 2: "' if label in STS_TASKS else NLI_MIDDLE


def prompt(label: str, first: str) -> str:
    """The whole prompt for a completion."""
    return before_first(label) + first + between(label)


def clean(text: str) -> str:
    """One line without double quotes: inside a document a double quote means "the sentence ends here"."""
    return _SPACES.sub(" ", _QUOTES.sub("", text)).strip()


def train_tokenizer(texts: Iterable[str], size: int = VOCABULARY) -> "PreTrainedTokenizerFast":
    """Learn the merges from ``texts``; prompt phrases become single tokens on top, inside ``size``."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
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

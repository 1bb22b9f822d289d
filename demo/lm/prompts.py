"""The documents the demonstration model learns: the project's prompts, filled in and closed.

A document is a prompt, a first text, a closing quote, the rest of the prompt, a completion and its closing quote.
"""

import re
from dataclasses import dataclass

STS_TASKS = {
    "1": "Task: Write two sentences that mean the same thing.",
    "0.5": "Task: Write two sentences that are somewhat similar.",
    "0": "Task: Write two sentences that are on completely different topics.",
}
NLI_VERBS = ("entails", "contradicts")
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
    """The prompt up to and including the quote that opens the first text."""
    if label in STS_TASKS:
        return f'{STS_TASKS[label]}\nSentence 1: "'
    return f'Generate one sentence that logically {label} "'


def between(label: str) -> str:
    """From the quote that closes the first text to the quote that opens the completion, both included."""
    return '"\nSentence 2: "' if label in STS_TASKS else NLI_MIDDLE


def prompt(label: str, first: str) -> str:
    """The whole prompt for a completion."""
    return before_first(label) + first + between(label)


def clean(text: str) -> str:
    """One line without double quotes: inside a document a double quote means "the sentence ends here"."""
    return _SPACES.sub(" ", _QUOTES.sub("", text)).strip()

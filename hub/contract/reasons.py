"""Why a text is rejected: each value of the column ``reason`` and of the manifest's counts, with a card's words.

Those of ``COMPLETION`` are found where a text ends (``generation.backends.protocol``), of ``COPY`` against its prompt
and first text, ``CONTROL_CHARACTERS`` and ``WRONG_LANGUAGE`` in the text alone, those of ``SIFT`` against the other
texts of its shard (all in ``generation.rows.filters``), ``VERIFIED`` of them by its likelihood under every label's
prompt (``generation.rows.verification``), the others among first texts (``generation.inputs.sources``,
``generation.pipeline.source_sentences``); duplicates of whole datasets in ``generation.pipeline.finish``. To add one:
declare it here, and find it there.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """A reason and what a card says of it: of a second text, of one that ends at its line, of a first text."""

    name: str
    second: str = ""
    line: str = ""  # where ``decoding.text_end`` is line; empty: as ``second``
    first: str = ""


NOT_CLOSED = Reason(
    "not_closed",
    second="no closing quotation mark within the token limit",
    line="no end within the token limit",
    first="no closing quotation mark within the token limit",
)
LINE_BREAK = Reason("line_break", second="a line break inside the text", first="a line break inside the text")
EMPTY = Reason("empty", second="no text before the closing quotation mark", line="no text in the line", first="no text")
EXAMPLE_COPY = Reason("example_copy", second="a text of an example that stood in its prompt")
PROMPT_WORDS = Reason(
    "prompt_words",
    second="nothing but words of its prompt, such as the name of a line",
    first="nothing but words of its prompt, such as the name of a line",
)
PROMPT_ECHO = Reason(
    "prompt_echo",
    second="nothing but words of its prompt, which its first text does not have",
    first="nothing but words of its prompt, such as the name of a line",
)
CONTROL_CHARACTERS = Reason(
    "control_characters",
    second="control characters, directional overrides or U+FFFD (what is left of broken text)",
    first="control characters, directional overrides or U+FFFD (what is left of broken text)",
)
WRONG_LANGUAGE = Reason(
    "wrong_language",
    second="in another language than the dataset's, as a classifier sees it",
    first="in another language than the dataset's, as a classifier sees it",
)
NEAR_COPY = Reason("near_copy", second="nearly the words of the first text (`postprocess.near_copy`)")
OVERLAP = Reason("overlap", second="shares more or fewer words with the first text than its label may (`overlap`)")
IDENTICAL = Reason("identical", second="the second text repeats the first")
DUPLICATE = Reason("duplicate", second="the same pair was kept before", first="the same first text was there before")
OTHER_LABEL = Reason("other_label", second="likelier under another label's prompt than under its own")
NOT_BEST = Reason("not_best", second="other texts for the same first text and label are more probably of the label")
OVER_CAP = Reason("over_cap", second="more texts than wanted for one first text and label")
QUOTATION_MARK = Reason("quotation_mark", first="a quotation mark inside, which the recipe passes over")
NOT_UNICODE = Reason("not_unicode", first="half a surrogate pair, which is no text")
LENGTH = Reason("length", first="not of the wanted number of tokens")
TOO_LONG = Reason("too_long", first="with its prompt, more tokens than the model's context")
NOT_NEEDED = Reason("not_needed", first="there were enough first texts already")

COMPLETION = (NOT_CLOSED, LINE_BREAK, EMPTY)
COPY = (EXAMPLE_COPY, PROMPT_WORDS, PROMPT_ECHO, NEAR_COPY, OVERLAP)
VERIFIED = (OTHER_LABEL, NOT_BEST)
SIFT = (IDENTICAL, *VERIFIED, DUPLICATE, OVER_CAP)
OF_SECOND_TEXTS = (*COMPLETION, CONTROL_CHARACTERS, *COPY, WRONG_LANGUAGE, *SIFT)  # in the order of a card
OF_FIRST_TEXTS = (
    *COMPLETION,
    DUPLICATE,
    QUOTATION_MARK,
    PROMPT_WORDS,
    PROMPT_ECHO,
    NOT_UNICODE,
    CONTROL_CHARACTERS,
    WRONG_LANGUAGE,
    LENGTH,
    TOO_LONG,
    NOT_NEEDED,
)

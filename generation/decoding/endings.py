"""Where a written text ends, pure: one rule for the engine and every backend (``decoding.text_end``).

quotation_mark  at the first quotation mark, which closes the one that the prompt opens (DINO section 3). The engine
                cannot draw the end-of-text token then: the original code bans it, by ``min_length = max_length``.
line            at the first line break or end-of-text token; a quotation mark inside is text. A final ``".`` goes, as
                in the Auto-NLI authors' code, and so does a final ``"``, which is the closing mark all the same.
"""

from hub.contract.recipe import QUOTE, TextEnd
from hub.contract.schema import EMPTY, LINE_BREAK, NOT_CLOSED

_CLOSINGS = (f"{QUOTE}.", QUOTE)


def cut(written: str, ended: bool, text_end: TextEnd) -> tuple[str, str | None]:
    """The text in what was written after an open quotation mark, and what is wrong with it.

    ``ended``: the model drew the end of text, or its server says that it stopped by itself. The problem is the name of
    one of ``hub.contract.schema.COMPLETION``, or None.
    """
    return _line(written, ended) if text_end == "line" else _quotation(written)


def _quotation(written: str) -> tuple[str, str | None]:
    inner, closed, _ = written.partition(QUOTE)
    problem = LINE_BREAK if "\n" in inner else NOT_CLOSED if not closed else None if inner.strip() else EMPTY
    return inner.split("\n")[0].strip(), problem.name if problem else None


def _line(written: str, ended: bool) -> tuple[str, str | None]:
    line, broken, _ = written.partition("\n")
    line = line.strip()
    closing = next((mark for mark in _CLOSINGS if line.endswith(mark)), "")
    text = line.removesuffix(closing).strip()
    problem = NOT_CLOSED if not (broken or ended or closing) else None if text else EMPTY
    return text, problem.name if problem else None

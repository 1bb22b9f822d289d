"""Untrusted text for a terminal or a log, without escape sequences, control and direction characters."""

import re
import unicodedata

LONGEST = 300  # characters that a server's own words may take in a line of ours
_SEQUENCE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # a title, a link, the clipboard (OSC)
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, the cursor (CSI)
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # strings to the device (DCS, SOS, PM, APC)
    r"|\x1b[ -/]*[0-~]?"
)
# Controls, invisible and direction marks (bidi), halves of pairs, line and paragraph separators.
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """``text`` without escape sequences, control characters and invisible marks; its line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    bare = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return "".join(c for c in bare if c in "\n\t" or unicodedata.category(c) not in _DROPPED)


def one_line(text: str, longest: int = LONGEST) -> str:
    """``text`` as ``printable``, in one line of at most ``longest`` characters."""
    line = " ".join(printable(re.sub(r"[\r\n\x85\u2028\u2029]", " ", text[: 20 * longest])).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def first_line(error: BaseException, longest: int = LONGEST) -> str:
    """The first line of an error's message, as ``one_line``; its type's name when it says nothing."""
    said = str(error).strip().splitlines()
    return one_line(said[0] if said else "", longest) or type(error).__name__

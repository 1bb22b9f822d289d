"""Untrusted text (models' names, protocols) in the files of a comparison: shown as it is, and doing nothing else."""

import re
import unicodedata

HIDDEN = frozenset(
    {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
)  # control, format (bidi, zero width), surrogate, private, breaks
ENTITIES = str.maketrans({char: f"&#{ord(char)};" for char in "&<>\\`*_[]|~$^=!#@:"})
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "`": r"\textasciigrave{}",
        "[": "{[}",
        "]": "{]}",
        "-": "{-}",
        **{char: f"\\{char}" for char in "&%$#_{}"},
    }
)
MATHS = {char: f"${name}$" for char, name in {"λ": r"\lambda", "ε": r"\varepsilon", "τ": r"\tau", "±": r"\pm"}.items()}


def one_line(text: str) -> str:
    """``text`` on one line, every character that hides or reorders others shown as U+FFFD."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in HIDDEN else char for char in " ".join(text.split())
    )


def markdown(text: str) -> str:
    """Text for a cell or a paragraph: characters with a meaning become entities, which can never be structure."""
    escaped = one_line(text).translate(ENTITIES)
    escaped = re.sub(r"^[+-]", lambda mark: f"&#{ord(mark[0])};", escaped)
    return re.sub(r"^(\d+)([.)])(?=\s|$)", lambda mark: f"{mark[1]}&#{ord(mark[2])};", escaped)


def latex(text: str) -> str:
    """Text for a LaTeX table or caption."""
    return "".join(MATHS.get(char, char) for char in one_line(text).translate(LATEX))


def csv_cell(text: str) -> str:
    """Text for a CSV cell that no spreadsheet takes for a formula: one that begins like one gets an apostrophe."""
    plain = one_line(text)
    return f"'{plain}" if plain.lstrip()[:1] in ("=", "+", "-", "@") else plain


def plotted(text: str, limit: int = 40) -> str:
    """A label in a plot: shortened in the middle; a leading underscore would hide it from matplotlib's legend."""
    plain = one_line(text)
    if len(plain) > limit:
        plain = f"{plain[: limit // 2 - 1]}…{plain[-(limit // 2) :]}"
    return f" {plain}" if plain.startswith("_") else plain

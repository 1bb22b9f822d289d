"""Untrusted text (models' names, protocols) in the files of a comparison: shown as it is, and doing nothing else."""

from hub.markdown import inline, visible_line

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


def markdown(text: str) -> str:
    """Text for a cell or a paragraph: characters with a meaning become entities, which can never be structure."""
    return inline(text).replace("@", "&#64;").replace(":", "&#58;")


def latex(text: str) -> str:
    """Text for a LaTeX table or caption."""
    return "".join(MATHS.get(char, char) for char in visible_line(text).translate(LATEX))


def csv_cell(text: str) -> str:
    """Text for a CSV cell that no spreadsheet takes for a formula: one that begins like one gets an apostrophe."""
    plain = visible_line(text)
    return f"'{plain}" if plain.lstrip()[:1] in ("=", "+", "-", "@") else plain


def plotted(text: str, limit: int = 40) -> str:
    """A label in a plot: shortened in the middle; a leading underscore would hide it from matplotlib's legend."""
    plain = visible_line(text)
    if len(plain) > limit:
        plain = f"{plain[: limit // 2 - 1]}…{plain[-(limit // 2) :]}"
    return f" {plain}" if plain.startswith("_") else plain

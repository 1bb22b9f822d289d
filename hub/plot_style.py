"""How every plot of the project looks: colours and lines that people of any colour vision can tell apart."""

from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")  # Okabe and Ito's
LINES = ("-", "--", "-.", ":")
STYLE: Any = {  # matplotlib settings
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "text.parse_math": False,
}
NAME_LIMIT = 28  # characters of a label's name

"""How every plot of the project looks: colours and lines that people of any colour vision can tell apart."""

import io
from collections.abc import Callable
from typing import Any

from hub.untrusted import visible_line

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")  # Okabe and Ito's
LINES = ("-", "--", "-.", ":")
STYLE: Any = {  # matplotlib settings
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "sts-dino",
    "text.parse_math": False,
}
NAME_LIMIT = 28  # characters of a label's name
WIDTH = 6.5  # inches: a telephone's screen still shows legible letters


def picture(draw: Callable[..., None], size: tuple[float, float], kind: str = "png", rows: int = 1) -> bytes:
    """A plot as PNG or SVG, the same bytes from the same numbers: no pyplot, no display, no style of the user's.

    draw: called with the figure and its ``rows`` axes, one below the other; size: width and height in inches.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = Figure(figsize=size, dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, *figure.subplots(rows, squeeze=False).flat)
        out = io.BytesIO()
        undated: Any = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        figure.savefig(out, format=kind, metadata=undated)
        return out.getvalue()


def name(text: str, limit: int = NAME_LIMIT) -> str:
    """An untrusted name as a plot shows it: printable, on one line, shortened in the middle.

    A leading underscore would hide it from matplotlib's legend.
    """
    shown = visible_line(text)
    if len(shown) > limit:
        shown = f"{shown[: limit // 2 - 1]}…{shown[-(limit // 2) :]}"
    return f" {shown}" if shown.startswith("_") else shown

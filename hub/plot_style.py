"""Style of every plot: colours and lines that people of any colour vision can distinguish."""

import io
from collections.abc import Callable
from typing import Any

from sts_dino.hub.untrusted import make_visible_line

# Okabe and Ito's palette
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
LINES = ("-", "--", "-.", ":")
MATPLOTLIB_SETTINGS: Any = {
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
MOST_NAME_CHARACTERS = 28  # characters of a label's name
WIDTH = 6.5  # inches of a plot; on a telephone's screen its letters stay legible


def draw_picture(
    draw: Callable[..., None], size: tuple[float, float], kind: str = "png", rows: int = 1
) -> bytes:
    """Return a plot as the bytes of a PNG or SVG file; equal numbers give equal bytes.

    The user's matplotlib style has no effect, and no display is needed.

    Args:
        draw: the function that draws, called as ``draw(figure, *axes)`` with matplotlib's objects.
        size: width and height in inches.
        kind: ``png`` or ``svg``.
        rows: number of axes, one below the other.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **MATPLOTLIB_SETTINGS}):
        figure = Figure(figsize=size, dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, *figure.subplots(rows, squeeze=False).flat)
        # Leave out dates and versions, which would change the bytes.
        metadata: Any = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, metadata=metadata)
        return stream.getvalue()


def shorten_name(text: str, limit: int = MOST_NAME_CHARACTERS) -> str:
    """Return an untrusted name as one printable line of at most ``limit`` characters.

    A longer name has ``…`` for its middle. A name with a leading underscore gets a blank before it,
    because matplotlib's legend leaves out names that begin with an underscore.
    """
    name = make_visible_line(text)
    if name.startswith("_"):
        name = f" {name}"
    if len(name) > limit:
        name = f"{name[: limit // 2 - 1]}…{name[-(limit // 2) :]}"
    return name

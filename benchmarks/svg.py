"""Plots as SVG, in the project's style: always the same bytes from the same numbers."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from hub.plot_style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(width: float, height: float, draw: Callable[["Figure"], None]) -> str:
    """What ``draw`` puts on a figure of so many inches."""
    import matplotlib  # which takes a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none", "svg.hashsalt": "sts-dino"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        picture = io.BytesIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue().decode()

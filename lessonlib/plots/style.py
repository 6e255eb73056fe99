"""One look for all still pictures: white face, colours that colour-blind readers can tell apart, a takeaway below."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, darkest first where a text is set in it.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
GREY = "#6e6e6e"

_RC: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.dpi": 110,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


@contextmanager
def picture(takeaway: str, width: float = 7.2, height: float = 3.6, columns: int = 1) -> Iterator[list[Axes]]:
    """Give axes to draw on, show the picture at the end, and print what it says.

    Args:
        takeaway: one line that stands below the picture and says what can be seen in it.
        width: inches.
        height: inches.
        columns: number of axes side by side.
    """
    with plt.rc_context(_RC):
        figure, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False, layout="constrained")
        yield list(axes[0])
        plt.show()
        plt.close(figure)
    print(textwrap.fill(f"Picture: {takeaway}", 96))

"""Pure SVG, drawn in Python: the still picture of a figure, for places where scripts are off.

The functions have the names and the meaning of those in `base.js`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from html import escape

WIDTH = 680


def fixed(x: float, digits: int = 0) -> str:
    """A number with so many decimals and thousands separators, rounded as JavaScript's toFixed does."""
    return f"{Decimal(x).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):,}"


def three(x: float) -> str:
    """About three significant digits."""
    return fixed(x, 0 if x == 0 or x >= 100 else 1 if x >= 10 else 2 if x >= 1 else 3)


def milliseconds(t: float) -> str:
    """Seconds as ms, or as s from one second on."""
    return f"{three(t * 1e3)} ms" if t < 1 else f"{three(t)} s"


def gigabytes(n: float) -> str:
    """Bytes as decimal gigabytes."""
    return f"{fixed(n / 1e9, 1)} GB"


def _number(v: float) -> str:
    return f"{v:.1f}".removesuffix(".0")


def _tag(name: str, look: str, body: str = "", **attributes: float | str) -> str:
    given = "".join(
        f" {key.replace('_', '-')}='{value if isinstance(value, str) else _number(value)}'"
        for key, value in attributes.items()
    )
    return f"<{name}{given} class='{look}'>{body}</{name}>" if body else f"<{name}{given} class='{look}'/>"


def rect(x: float, y: float, width: float, height: float, look: str) -> str:
    """A rectangle; `look` is a class of picture.css."""
    return _tag("rect", look, x=x, y=y, width=max(0, width), height=max(0, height))


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    """A straight line."""
    return _tag("line", look, x1=x1, y1=y1, x2=x2, y2=y2)


def dot(cx: float, cy: float, r: float, look: str) -> str:
    """A disc."""
    return _tag("circle", look, cx=cx, cy=cy, r=r)


def text(x: float, y: float, words: str, look: str = "", anchor: str = "start") -> str:
    """Words at a baseline point."""
    return _tag("text", look, escape(words, quote=False), x=x, y=y, text_anchor=anchor)


def path(points: Iterable[Sequence[float]], look: str) -> str:
    """A line through points."""
    return _tag("path", look, d="M" + "L".join(" ".join(_number(v) for v in point) for point in points))


def keys(x: float, y: float, entries: Iterable[tuple[str, str]]) -> str:
    """Entries of a key, side by side: a coloured square and its words."""
    svg = ""
    for look, words in entries:
        svg += rect(x, y - 9, 10, 10, look) + text(x + 14, y, words)
        x += 24 + sum(4.5 if letter in "fijlrt .,:" else 7.3 for letter in words)
    return svg


def linear(start: float, end: float, left: float, right: float) -> Callable[[float], float]:
    """Scale that maps start … end to left … right."""
    return lambda v: left + (v - start) / (end - start) * (right - left)


def logarithmic(start: float, end: float, left: float, right: float) -> Callable[[float], float]:
    """Logarithmic scale that maps start … end to left … right."""
    return lambda v: left + math.log(v / start) / math.log(end / start) * (right - left)


def ticks(top: float, n: int = 4) -> list[float]:
    """Round values from 0 to at least `top`, about n of them."""
    rough = max(top, 1e-12) / n
    power = 10 ** math.floor(math.log10(rough) + 1e-9)
    step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]

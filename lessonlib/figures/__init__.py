"""The interactive figures: `figures.decode_roofline()` and so on, each the last value of a cell.

Given a learner's function, a figure draws with it, so that a wrong answer is seen; without one it draws with the
reference. The outputs are self-contained: see `lessonlib.figures.interactive`.
"""

from lessonlib.figures.batching import batching
from lessonlib.figures.decode_roofline import decode_roofline
from lessonlib.figures.interactive import Figure
from lessonlib.figures.interference import interference
from lessonlib.figures.kv_memory import kv_memory
from lessonlib.figures.speculative_position import speculative_position
from lessonlib.figures.speculative_rounds import speculative_rounds

__all__ = [
    "Figure",
    "batching",
    "decode_roofline",
    "interference",
    "kv_memory",
    "speculative_position",
    "speculative_rounds",
]

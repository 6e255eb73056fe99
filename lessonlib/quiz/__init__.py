"""Quick checks of the lessons, `quiz.kv_cache.bytes_of_70b()` and so on, and `quiz.compare` for predictions."""

from lessonlib.quiz import batching, decode_roofline, kv_cache, paged_memory, speculative_sampling
from lessonlib.quiz.question import Choice, Question, compare

__all__ = [
    "Choice",
    "Question",
    "batching",
    "compare",
    "decode_roofline",
    "kv_cache",
    "paged_memory",
    "speculative_sampling",
]

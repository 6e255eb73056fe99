"""One check per exercise part: a line in a notebook that tells a learner what was misunderstood.

`check.kv_bytes_per_token(kv_bytes_per_token)` prints one line where the answer is right, and raises
`CheckFailed` with the call, what came back, what was expected and the likely mistake where it is wrong.
Every check takes `seed=`, so that a grader can draw cases of its own.
"""

from importlib import import_module
from typing import Any

from lessonlib.check.batching import simulate
from lessonlib.check.decode_roofline import decode_step, largest_batch
from lessonlib.check.harness import CheckFailed, NotWritten
from lessonlib.check.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, max_batch
from lessonlib.check.paged_memory import block_allocator, prefix_caching
from lessonlib.check.speculative_sampling import expected_tokens, speculative_round, speedup

# The capstone's checks need torch, which nothing else here does: they are loaded when they are asked for.
_CAPSTONE = ("admit", "expected_speed", "paged_attention", "slot_mapping", "verify", "write_kv")

__all__ = [
    "CheckFailed",
    "NotWritten",
    "admit",
    "block_allocator",
    "decode_step",
    "expected_speed",
    "expected_tokens",
    "kv_bytes_per_sequence",
    "kv_bytes_per_token",
    "largest_batch",
    "max_batch",
    "paged_attention",
    "prefix_caching",
    "simulate",
    "slot_mapping",
    "speculative_round",
    "speedup",
    "verify",
    "write_kv",
]


def __getattr__(name: str) -> Any:
    if name in _CAPSTONE:
        return getattr(import_module("lessonlib.check.capstone"), name)
    raise AttributeError(f"there is no check {name!r}; there are {', '.join(n for n in __all__ if n[0].islower())}")

"""One check per exercise part: a line in a notebook that tells a learner what was misunderstood.

`check.kv_bytes_per_token(kv_bytes_per_token)` prints one line where the answer is right, and raises
`CheckFailed` with the call, what came back, what was expected and the likely mistake where it is wrong.
Every check takes `seed=`, so that a grader can draw cases of its own.
"""

from lessonlib.check.decode_roofline import decode_step, largest_batch
from lessonlib.check.harness import CheckFailed, NotWritten
from lessonlib.check.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, max_batch
from lessonlib.check.paged_memory import block_allocator, prefix_caching

__all__ = [
    "CheckFailed",
    "NotWritten",
    "block_allocator",
    "decode_step",
    "kv_bytes_per_sequence",
    "kv_bytes_per_token",
    "largest_batch",
    "max_batch",
    "prefix_caching",
]

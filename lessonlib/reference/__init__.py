"""The reference answers of the exercises, one module per lesson."""

from lessonlib.reference.batching import simulate
from lessonlib.reference.decode_roofline import decode_step, largest_batch
from lessonlib.reference.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, max_batch
from lessonlib.reference.paged_memory import BlockAllocator, PrefixCachingAllocator
from lessonlib.reference.speculative_sampling import expected_tokens, speculative_round, speedup

__all__ = [
    "BlockAllocator",
    "PrefixCachingAllocator",
    "decode_step",
    "expected_tokens",
    "kv_bytes_per_sequence",
    "kv_bytes_per_token",
    "largest_batch",
    "max_batch",
    "simulate",
    "speculative_round",
    "speedup",
]

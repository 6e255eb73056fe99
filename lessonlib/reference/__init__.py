"""The reference answers of the exercises, one module per lesson."""

from lessonlib.reference.decode_roofline import decode_step, largest_batch
from lessonlib.reference.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, max_batch
from lessonlib.reference.paged_memory import BlockAllocator, PrefixCachingAllocator

__all__ = [
    "BlockAllocator",
    "PrefixCachingAllocator",
    "decode_step",
    "kv_bytes_per_sequence",
    "kv_bytes_per_token",
    "largest_batch",
    "max_batch",
]

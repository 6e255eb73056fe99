"""The reference answers of the exercises, one module per lesson."""

from lessonlib.reference.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, max_batch

__all__ = ["kv_bytes_per_sequence", "kv_bytes_per_token", "max_batch"]

"""The paged KV cache: where the keys and values of every token live, and how tokens find their slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lessonlib.models import ModelConfig


def slot_mapping(block_table: Sequence[int], start: int, n_tokens: int, block_size: int) -> list[int]:
    """Where in the pool the tokens start … start + n_tokens - 1 of one sequence are stored.

    Slots are numbered through the whole pool: block b has the slots b · block_size … (b + 1) · block_size - 1.

    Args:
        block_table: the sequence's physical blocks, in the order of its logical blocks.
        start: position of the first token in its sequence, from 0.
        n_tokens: number of tokens.
        block_size: tokens per block.

    Returns:
        One slot per token, in order.
    """
    return [block_table[i // block_size] * block_size + i % block_size for i in range(start, start + n_tokens)]


def write_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Store the keys and values of new tokens in their slots, in place and in one layer; touch nothing else.

    Args:
        k_cache, v_cache: shape (n_blocks, block_size, n_kv, d_h), changed in place.
        slots: shape (n_tokens,), integers.
        k, v: shape (n_tokens, n_kv, d_h).
    """
    k_cache.flatten(0, 1).index_copy_(0, slots, k)
    v_cache.flatten(0, 1).index_copy_(0, slots, v)


class KVCache:
    """Keys and values of all layers, in blocks: `k` and `v` have shape (layers, n_blocks, block_size, n_kv, d_h)."""

    def __init__(
        self, shape: ModelConfig, n_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = (shape.n_layers, n_blocks, block_size, shape.n_kv_heads, shape.head_dim)
        self.k = torch.zeros(size, dtype=dtype, device=device)
        self.v = torch.zeros(size, dtype=dtype, device=device)

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole pool, keys and values."""
        return 2 * self.k.numel() * self.k.element_size()

    def copy_block(self, source: int, copy: int) -> None:
        """Copy a block's content, in every layer: what copy-on-write asks for."""
        self.k[:, copy] = self.k[:, source]
        self.v[:, copy] = self.v[:, source]

"""Attention over keys and values that lie in blocks: a reference to read, and the fast path of the engine."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lessonlib.serving.block_manager import blocks_needed

# The form of `paged_attention`: (q, k_cache, v_cache, block_table, length) -> output of one new token
PagedAttention = Callable[[Tensor, Tensor, Tensor, Sequence[int], int], Tensor]


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Sequence[int], length: int) -> Tensor:
    """Attention of one new token over its sequence's cache, block by block along the table.

    Every block gives a partial result: scores, their maximum m, the sum of exp(score - m), and the sum of values
    weighted by it. Two partial results merge after both are put on the larger maximum: the online softmax
    (Milakov and Gimelshein 2018, arXiv 1805.02867; Kwon et al. 2023, section 4.1, for its use over blocks).

    Args:
        q: the token's queries, shape (a, d_h).
        k_cache, v_cache: one layer of the cache, shape (n_blocks, block_size, n_kv, d_h), the new token included.
        block_table: physical block of each logical block; may have more than `length` needs.
        length: tokens of the sequence, the new one included.

    Returns:
        Shape (a, d_h).
    """
    a, d = q.shape
    block_size, n_kv = k_cache.shape[1:3]
    queries = q.view(n_kv, a // n_kv, d).float() / math.sqrt(d)
    m = torch.full(queries.shape[:2], -torch.inf, device=q.device)
    weight_sum, output = torch.zeros_like(m), torch.zeros_like(queries)
    for i in range(blocks_needed(length, block_size)):
        n = min(block_size, length - i * block_size)
        keys, values = k_cache[block_table[i], :n].float(), v_cache[block_table[i], :n].float()
        scores = torch.einsum("kgd,tkd->kgt", queries, keys)
        m_new = torch.maximum(m, scores.amax(-1))
        shrink, weights = torch.exp(m - m_new), torch.exp(scores - m_new[..., None])
        weight_sum = weight_sum * shrink + weights.sum(-1)
        output = output * shrink[..., None] + torch.einsum("kgt,tkd->kgd", weights, values)
        m = m_new
    return (output / weight_sum[..., None]).reshape(a, d).to(q.dtype)


@dataclass(slots=True)
class Group:
    """Sequences of one step that have equally many new tokens, and whose attention is one call.

    Args:
        rows: their place in the flat list of tokens.
        n_new: new tokens of each sequence.
        n_keys: the longest of their contexts.
        tables: block tables, padded with 0, shape (B, blocks of the longest).
        mask: which key each query sees, shape (B, 1, n_new · g, n_keys); None where every query sees all.
        whole: these are whole prompts, so that the new keys and values are all there are.
        lengths: contexts as a tensor of shape (B,), where the Triton kernel is to be used; else None.
    """

    rows: slice
    n_new: int
    n_keys: int
    tables: Tensor
    mask: Tensor | None
    whole: bool
    lengths: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        a, d = q.shape[1:]
        n_kv, B = k.shape[1], len(self.tables)
        if self.whole:
            q, k, v = (t.unflatten(0, (B, self.n_new)).transpose(1, 2) for t in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=a != n_kv)
            return out.transpose(1, 2).flatten(0, 1)
        if self.lengths is not None:
            from lessonlib.serving.triton_attention import paged_decode  # only where Triton is

            return paged_decode(q, k_cache, v_cache, self.tables, self.lengths)
        keys, values = (self._gather(cache) for cache in (k_cache, v_cache))
        # The g query heads of a KV head become g more queries of it, so that K and V are never repeated.
        queries = q.view(B, self.n_new, n_kv, a // n_kv, d).transpose(1, 2).reshape(B, n_kv, -1, d)
        out = (
            self._attend_few(queries, keys, values) if self._is_small(q) else self._attend_fused(queries, keys, values)
        )
        return out.reshape(B, n_kv, self.n_new, a // n_kv, d).transpose(1, 2).reshape(-1, a, d)

    def _is_small(self, q: Tensor) -> bool:
        """A few queries on a CPU: sharing them out over the cores, as the fused kernel does, takes longer than them."""
        return self.n_new <= 16 and not q.is_cuda

    def _attend_few(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = torch.matmul(q.float(), keys.float().transpose(2, 3)) / math.sqrt(q.shape[-1])
        if self.mask is not None:
            scores = scores.masked_fill(self.mask.logical_not(), -torch.inf)
        return torch.matmul(scores.softmax(-1), values.float()).to(q.dtype)

    def _attend_fused(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask)

    def _gather(self, cache: Tensor) -> Tensor:
        """Shape (B, n_kv, n_keys, d_h)."""
        blocks = cache.index_select(0, self.tables.flatten())
        return blocks.view(len(self.tables), -1, *cache.shape[2:])[:, : self.n_keys].transpose(1, 2)


def group(
    n_new: Sequence[int],
    n_context: Sequence[int],
    tables: Sequence[Sequence[int]],
    group_size: int,
    device: torch.device,
) -> list[Group]:
    """Group the sequences of a step, which are sorted by their number of new tokens.

    Args:
        n_new: new tokens of each sequence.
        n_context: tokens of each up to and with its newest.
        tables: block table of each, at least as long as its context needs.
        group_size: g, query heads per KV head.
        device: where the tables go.
    """
    groups, first, row = [], 0, 0
    while first < len(n_new):
        n, last = n_new[first], first
        whole = n > 1 and n_context[first] == n
        while last < len(n_new) and n_new[last] == n and (n > 1 and n_context[last] == n) == whole:
            last += 1
        contexts = n_context[first:last]
        kernel = n == 1 and has_kernel(device)
        groups.append(
            Group(
                rows=slice(row, row + n * (last - first)),
                n_new=n,
                n_keys=max(contexts),
                tables=_padded(tables[first:last], device),
                mask=None if whole or kernel else _mask(n, contexts, group_size, device),
                whole=whole,
                lengths=torch.tensor(contexts, device=device) if kernel else None,
            )
        )
        row, first = groups[-1].rows.stop, last
    return groups


@functools.cache
def has_kernel(device: torch.device) -> bool:
    """Whether the Triton kernel runs here: a GPU of compute capability 8.0 or more, and Triton installed."""
    return (
        device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) and find_spec("triton") is not None
    )


def _padded(tables: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    longest = max(map(len, tables))
    return torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables], device=device)


def _mask(n_new: int, n_context: Sequence[int], group_size: int, device: torch.device) -> Tensor | None:
    if n_new == 1 and min(n_context) == max(n_context):
        return None
    seen = torch.tensor(n_context, device=device)[:, None] - torch.arange(n_new - 1, -1, -1, device=device)
    mask = torch.arange(max(n_context), device=device) < seen[..., None]
    return mask.repeat_interleave(group_size, dim=1).unsqueeze(1)

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

from lessonlib.models import ModelConfig
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
        whole: these are whole prompts, so that the new keys and values are all there are, and the rest is not used.
        tables: block tables, padded with 0, shape (B, blocks of the longest).
        lengths: contexts as a tensor of shape (B,), where the Triton kernel is to be used; else None.
        places: where in a layer of the cache, as a list of vectors of one head, each key is: shape (B, n_kv, n_keys).
        bias: 0 where a query sees a key and -inf where not, shape (B, 1, n_new · g, n_keys).
    """

    rows: slice
    n_new: int
    whole: bool
    tables: Tensor
    lengths: Tensor | None = None
    places: Tensor | None = None
    bias: Tensor | None = None

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
        assert self.places is not None
        place = self.places.flatten()
        keys, values = (cache.view(-1, d).index_select(0, place).view(B, n_kv, -1, d) for cache in (k_cache, v_cache))
        # The g query heads of a KV head become g more queries of it, so that K and V are never repeated.
        queries = q.view(B, self.n_new, n_kv, a // n_kv, d).transpose(1, 2).reshape(B, n_kv, -1, d)
        few = self.n_new <= 16 and not q.is_cuda
        out = self._attend_few(queries, keys, values) if few else self._attend_fused(queries, keys, values)
        return out.view(B, n_kv, self.n_new, a // n_kv, d).transpose(1, 2).reshape(-1, a, d)

    def _attend_few(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """A few queries on a CPU: sharing them out over the cores, as the fused kernel does, takes longer than them."""
        assert self.bias is not None
        bias = self.bias.expand(-1, q.shape[1], -1, -1).flatten(0, 1)
        q, keys, values = (t.flatten(0, 1) for t in (q, keys, values))
        scores = torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=1 / math.sqrt(q.shape[-1]))
        return torch.bmm(scores.softmax(-1), values)

    def _attend_fused(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=self.bias)


def group(
    n_new: Sequence[int],
    n_context: Sequence[int],
    tables: Sequence[Sequence[int]],
    model: ModelConfig,
    block_size: int,
    like: Tensor,
) -> list[Group]:
    """Group the sequences of a step, which are sorted by their number of new tokens.

    Args:
        n_new: new tokens of each sequence.
        n_context: tokens of each up to and with its newest.
        tables: block table of each, at least as long as its context needs.
        model: shape of the model.
        block_size: tokens per block.
        like: a tensor of the device and number format to compute in.
    """
    groups, first, row = [], 0, 0
    while first < len(n_new):
        n, last = n_new[first], first
        whole = n > 1 and n_context[first] == n
        while last < len(n_new) and n_new[last] == n and (n > 1 and n_context[last] == n) == whole:
            last += 1
        rows = slice(row, row := row + n * (last - first))
        groups.append(Group(rows, n, whole, _padded(tables[first:last], like.device)))
        lengths = torch.tensor(n_context[first:last], device=like.device)
        if n == 1 and has_kernel(like.device):
            groups[-1].lengths = lengths
        elif not whole:
            n_keys = max(n_context[first:last])
            groups[-1].places = places(groups[-1].tables, n_keys, block_size, model.n_kv_heads)
            groups[-1].bias = bias(lengths, n, n_keys, model.group_size, like.dtype)
        first = last
    return groups


@functools.cache
def has_kernel(device: torch.device) -> bool:
    """Whether the Triton kernel runs here: a GPU of compute capability 8.0 or more, and Triton installed."""
    return (
        device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) and find_spec("triton") is not None
    )


def places(tables: Tensor, n_keys: int, block_size: int, n_kv: int) -> Tensor:
    """`Group.places`: slot · n_kv + head, for the first n_keys slots along each block table."""
    slots = (tables[:, :, None] * block_size + torch.arange(block_size, device=tables.device)).flatten(1)[:, :n_keys]
    return slots[:, None] * n_kv + torch.arange(n_kv, device=tables.device)[:, None]


def bias(lengths: Tensor, n_new: int, n_keys: int, group_size: int, dtype: torch.dtype) -> Tensor:
    """`Group.bias`: the i-th of n_new queries sees all but the last n_new - 1 - i keys of its sequence."""
    seen = lengths[:, None] - torch.arange(n_new - 1, -1, -1, device=lengths.device).repeat_interleave(group_size)
    hidden = torch.arange(n_keys, device=lengths.device) >= seen[..., None]
    return torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill(hidden, -torch.inf)[:, None]


def _padded(tables: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    longest = max(map(len, tables))
    return torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables], device=device)

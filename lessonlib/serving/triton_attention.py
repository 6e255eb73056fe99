"""Decode attention over blocks as a Triton kernel, for GPUs of compute capability 8.0 and up.

One query per sequence leaves a GPU idle where each sequence and head is one program: at batch 1 a few of its hundred
processors would read the whole cache. So the context is split too, every split gives a partial result, and a second
kernel merges them as the online softmax does (split-KV; Dao et al. 2023, "Flash-Decoding for long-context inference").

On a CPU the kernels run in Triton's interpreter: set `TRITON_INTERPRET=1` before the first import of triton.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # tokens that a program reads at a time
MAX_SPLITS = 32
MIN_CAPABILITY = (8, 0)


def is_supported(device: torch.device) -> bool:
    """Whether the kernels run on this device: a GPU on which Triton still multiplies matrices in hardware."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lengths: Tensor, n_splits: int | None = None
) -> Tensor:
    """Attention of one new token per sequence over its cached keys and values.

    Args:
        q: shape (B, a, d_h); the last two dimensions are contiguous.
        k_cache, v_cache: one layer of the cache, shape (n_blocks, block_size, n_kv, d_h), contiguous.
        tables: block tables, shape (B, longest), whole numbers; entries behind a sequence's last block are not read.
        lengths: tokens of each sequence, the new one included, shape (B,); 0 gives zeros.
        n_splits: parts of the context; by default enough to keep the GPU busy (see `choose_splits`).

    Returns:
        Shape (B, a, d_h).

    Raises:
        ValueError: shapes or strides that the kernel does not take.
    """
    B, a, d = q.shape
    _, block_size, n_kv, d_cache = k_cache.shape
    if d != d_cache or a % n_kv or q.stride()[1:] != (d, 1):
        raise ValueError(f"q must be (B, a, {d_cache}), contiguous in a and d_h, a a multiple of {n_kv}, got {a}, {d}")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous() and tables.is_contiguous()):
        raise ValueError(f"caches and tables must be contiguous, got strides {k_cache.stride()} and {tables.stride()}")
    if n_splits is None:
        n_splits = choose_splits(B * n_kv, tables.shape[1] * block_size, _n_processors(q.device))
    partial = torch.empty((B, a, n_splits, d), dtype=torch.float32, device=q.device)
    highest, total = torch.empty((2, B, a, n_splits), dtype=torch.float32, device=q.device)
    output = torch.empty((B, a, d), dtype=q.dtype, device=q.device)
    padded_d = triton.next_power_of_2(d)
    _attend_to_split[(B, n_kv, n_splits)](
        q, k_cache, v_cache, tables, lengths, partial, highest, total,
        math.log2(math.e) / math.sqrt(d), q.stride(0), tables.stride(0), block_size, n_splits,
        n_kv, a // n_kv, d,
        PADDED_G=max(16, triton.next_power_of_2(a // n_kv)), PADDED_D=padded_d, TILE=TILE,
    )  # fmt: skip
    _merge_splits[(B, a)](
        partial, highest, total, output, n_splits, d,
        PADDED_S=triton.next_power_of_2(n_splits), PADDED_D=padded_d,
    )  # fmt: skip
    return output


def choose_splits(n_programs: int, n_keys: int, n_processors: int) -> int:
    """Parts to cut the context into: two programs per processor, and at least one tile of tokens per part."""
    wanted = -(-2 * n_processors // n_programs)
    return max(1, min(wanted, -(-n_keys // TILE), MAX_SPLITS))


def _n_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@triton.jit
def _attend_to_split(
    q, k_cache, v_cache, tables, lengths, partial, highest, total,
    scale, q_stride, table_stride, block_size, n_splits,
    N_KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    PADDED_G: tl.constexpr, PADDED_D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One sequence, one KV head with its G query heads, one part of the context. Base-2 exponentials are the faster."""
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + seq)
    part = tl.cdiv(tl.cdiv(length, n_splits), TILE) * TILE  # tokens per split, whole tiles
    first, last = split * part, tl.minimum(split * part + part, length)

    g, dim, row = tl.arange(0, PADDED_G), tl.arange(0, PADDED_D), tl.arange(0, TILE)
    is_head, is_dim = (g < G)[:, None], (dim < D)[None, :]
    head = kv_head * G + g
    queries = tl.load(q + seq * q_stride + head[:, None] * D + dim[None, :], mask=is_head & is_dim, other=0.0)

    m = tl.full((PADDED_G,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((PADDED_G,), tl.float32)
    out = tl.zeros((PADDED_G, PADDED_D), tl.float32)
    for start in range(first, last, TILE):
        token = start + row
        is_token = token < last
        block = tl.load(tables + seq * table_stride + token // block_size, mask=is_token, other=0)
        slot = block.to(tl.int64) * block_size + token % block_size  # a pool may have over 2^31 numbers
        place = (slot[:, None] * N_KV + kv_head) * D + dim[None, :]
        keys = tl.load(k_cache + place, mask=is_token[:, None] & is_dim, other=0.0)
        values = tl.load(v_cache + place, mask=is_token[:, None] & is_dim, other=0.0)

        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=1))
        shrink, weights = tl.exp2(m - m_new), tl.exp2(scores - m_new[:, None])
        weight_sum = weight_sum * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        m = m_new

    at = (seq * N_KV * G + head) * n_splits + split
    tl.store(highest + at, m, mask=g < G)
    tl.store(total + at, weight_sum, mask=g < G)
    tl.store(partial + at[:, None] * D + dim[None, :], out, mask=is_head & is_dim)


@triton.jit
def _merge_splits(
    partial, highest, total, output, n_splits, D: tl.constexpr, PADDED_S: tl.constexpr, PADDED_D: tl.constexpr
):  # fmt: skip
    """One sequence and query head: put the splits on one maximum and add them. A split without tokens weighs 0."""
    head = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    split, dim = tl.arange(0, PADDED_S), tl.arange(0, PADDED_D)
    is_split, is_dim = split < n_splits, dim < D
    m = tl.load(highest + head * n_splits + split, mask=is_split, other=float("-inf"))
    weight_sum = tl.load(total + head * n_splits + split, mask=is_split, other=0.0)
    place = (head * n_splits + split)[:, None] * D + dim[None, :]
    out = tl.load(partial + place, mask=is_split[:, None] & is_dim[None, :], other=0.0)

    scale = tl.where(weight_sum > 0, tl.exp2(m - tl.max(m, axis=0)), 0.0)
    whole = tl.sum(weight_sum * scale, axis=0)
    merged = tl.sum(out * scale[:, None], axis=0) / tl.where(whole > 0, whole, 1.0)
    tl.store(output + head * D + dim, merged.to(output.dtype.element_ty), mask=is_dim)

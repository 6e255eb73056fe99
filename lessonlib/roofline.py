"""Bytes, FLOPs and seconds of decode and prefill: the arithmetic that lessons, figures and simulator share.

Everything here is a bound of the roofline model (Williams et al. 2009): the time to move the bytes, or the
time to do the arithmetic, whichever is longer. `lessonlib.reference.decode_step` is the exercise's own form of
it for one decode step of equal sequences; these functions also hold for steps that mix decodes with prefill.
Bytes are right for every number format, for MLA and for sliding windows. FLOPs count full attention over heads
of `head_dim`, which for windows and MLA is an estimate.
"""

from __future__ import annotations

import math

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.reference.kv_cache import kv_bytes_per_sequence


def weight_bytes(cfg: ModelConfig) -> float:
    """W = e · Ψ, the bytes of all weights. One step reads them once, however many tokens it processes."""
    return cfg.n_params * cfg.bytes_per_weight


def decode_bytes(B: int, C: int, cfg: ModelConfig) -> float:
    """Bytes that a decode step of B sequences with C cached tokens each reads: W + B · (cache of one sequence)."""
    return weight_bytes(cfg) + B * kv_bytes_per_sequence(C, cfg)


def decode_flops(n_tokens: int, cached_tokens: int, cfg: ModelConfig) -> float:
    """FLOPs of a decode step: 2 · Ψ per new token, and 4 · L · a · d_h per cached token that it attends to.

    Args:
        n_tokens: sequences in the step, one new token each.
        cached_tokens: cached tokens of all these sequences together (B · C where all have C).
        cfg: shape of the model.
    """
    return 2 * cfg.n_params * n_tokens + 4 * cached_tokens * cfg.n_layers * cfg.n_heads * cfg.head_dim


def prefill_flops(T: int, cfg: ModelConfig, cached: int = 0) -> float:
    """FLOPs of the prefill of T tokens, causal: 2 · Ψ · T + 2 · L · a · d_h · T².

    A token attends to itself and to those before it, T / 2 on average, so the attention term is half of a full
    square. A chunk that follows `cached` tokens adds the strip between the two squares; the
    chunks of a prompt therefore sum to the whole prompt.

    Args:
        T: tokens to process, at least 1.
        cfg: shape of the model.
        cached: tokens of the same sequence that are in the cache already.
    """
    if T < 1 or cached < 0:
        raise ValueError(f"need T of at least 1 and cached of at least 0, got {T!r} and {cached!r}")
    attention = 2 * cfg.n_layers * cfg.n_heads * cfg.head_dim * ((cached + T) ** 2 - cached**2)
    return 2 * cfg.n_params * T + attention


def step_seconds(n_bytes: float, flops: float, gpu: Gpu, share_of_peak: float = 1.0) -> float:
    """Roofline bound on one step: the longer of the memory time and the compute time.

    Args:
        n_bytes: bytes that the step moves.
        flops: floating-point operations of the step.
        gpu: the GPU.
        share_of_peak: share of the peak FLOP/s that real kernels reach, above 0 and at most 1.
    """
    if not 0 < share_of_peak <= 1:
        raise ValueError(f"share_of_peak must be above 0 and at most 1, got {share_of_peak!r}")
    return max(n_bytes / gpu.bandwidth, flops / (share_of_peak * gpu.peak_flops))


def prefill_seconds(T: int, cfg: ModelConfig, gpu: Gpu, share_of_peak: float = 1.0, cached: int = 0) -> float:
    """Roofline bound on the prefill of T tokens alone: weights read once, caches read and written, `prefill_flops`."""
    n_bytes = weight_bytes(cfg) + kv_bytes_per_sequence(cached + T, cfg)
    return step_seconds(n_bytes, prefill_flops(T, cfg, cached), gpu, share_of_peak)


def intensity(B: int, C: int, cfg: ModelConfig) -> float:
    """FLOPs per byte of a decode step of B sequences with C cached tokens each.

    For plain attention this is weight share · 2B/e_w + cache share · 2g/e_kv, the shares being those of the bytes:
    with 2-byte numbers, a byte-weighted average of B and g.
    """
    return decode_flops(B, B * C, cfg) / decode_bytes(B, C, cfg)


def matmul_threshold(D: int, F: int, gpu: Gpu, bytes_per_number: float = 2) -> float:
    """B*: from how many rows on the matmul (B × D) · (D × F) is compute-bound.

    2·B·D·F FLOPs over e · (B·D + D·F + B·F) bytes reach the ridge point R at B* = R'·D·F / (D·F − R'·(D + F)), with
    R' = R · e / 2. For wide matrices B* is a little above R'.

    Args:
        D: inner dimension.
        F: columns of the weight matrix.
        gpu: the GPU.
        bytes_per_number: e, for inputs, weights and outputs alike.

    Returns:
        B*, not rounded; infinity where D·F ≤ R'·(D + F), so that no number of rows suffices.
    """
    ridge = gpu.ridge_point * bytes_per_number / 2
    spare = D * F - ridge * (D + F)
    return ridge * D * F / spare if spare > 0 else math.inf


def transfer_seconds(n_tokens: int, cfg: ModelConfig, link_bandwidth: float) -> float:
    """Time to send the cache of n_tokens over a link of so many bytes/s: a swap one way, or a hand-over."""
    return kv_bytes_per_sequence(n_tokens, cfg) / link_bandwidth

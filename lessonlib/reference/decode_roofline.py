"""Reference answers of exercise 2: the decode step on the roofline."""

from __future__ import annotations

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.records import DecodeStep
from lessonlib.reference.kv_cache import kv_bytes_per_token, max_batch


def decode_step(B: int, C: int, cfg: ModelConfig, gpu: Gpu) -> DecodeStep:
    """Roofline estimate of one decode step: B sequences, each with C cached tokens, gain one token each.

    The step reads every weight once and every sequence's own cache; it multiplies and adds once per weight and
    sequence, and attends with every query head. It takes at least the longer of the memory time and the
    compute time (Williams et al. 2009, "Roofline").

    Args:
        B: sequences in the step, at least 1.
        C: cached tokens per sequence, at least 1.
        cfg: shape of the model; weights and cache in formats of their own.
        gpu: peak FLOP/s and bandwidth in bytes/s.

    Returns:
        DecodeStep(n_bytes, flops, t_memory, t_compute, t_step, tokens_per_s, bound): n_bytes = W + B·C·k and
        flops = 2·Ψ·B + 4·B·C·L·a·d_h; both times and their maximum in seconds; tokens per second of the whole
        batch; and which limit binds, "memory" or "compute" (either where the times are equal).

    Raises:
        ValueError: B or C is below 1.
    """
    if B < 1 or C < 1:
        raise ValueError(f"B and C must be at least 1, got B = {B!r} and C = {C!r}")
    n_bytes = cfg.n_params * cfg.bytes_per_weight + B * C * kv_bytes_per_token(cfg)
    flops = 2 * cfg.n_params * B + 4 * B * C * cfg.n_layers * cfg.n_heads * cfg.head_dim
    t_memory = n_bytes / gpu.bandwidth
    t_compute = flops / gpu.peak_flops
    t_step = max(t_memory, t_compute)
    return DecodeStep(
        n_bytes=n_bytes,
        flops=flops,
        t_memory=t_memory,
        t_compute=t_compute,
        t_step=t_step,
        tokens_per_s=B / t_step,
        bound="memory" if t_memory >= t_compute else "compute",
    )


def largest_batch(tpot: float, C: int, cfg: ModelConfig, gpu: Gpu, m_kv: float) -> int:
    """The largest batch whose decode step keeps the time per output token, and whose caches fit.

    Args:
        tpot: longest allowed step time in seconds, above 0.
        C: cached tokens per sequence, at least 1.
        cfg: shape of the model.
        gpu: the GPU.
        m_kv: bytes of GPU memory for the KV cache.

    Returns:
        The largest B with t_step ≤ tpot and B · C · k ≤ m_kv, an int; 0 when even one sequence is too slow or
        does not fit.

    Raises:
        ValueError: tpot is not positive, C is below 1, or m_kv is negative.
    """
    if not tpot > 0:
        raise ValueError(f"tpot must be above 0 seconds, got {tpot!r}")
    enough, too_many = 0, max_batch(m_kv, C, cfg) + 1
    while too_many - enough > 1:  # a larger batch is never faster, so halve the range
        B = (enough + too_many) // 2
        if decode_step(B, C, cfg, gpu).t_step <= tpot:
            enough = B
        else:
            too_many = B
    return enough

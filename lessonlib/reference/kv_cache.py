"""Reference answers of exercise 1: how many bytes a KV cache takes."""

from __future__ import annotations

from lessonlib.models import ModelConfig


def kv_bytes_per_token(cfg: ModelConfig) -> float:
    """Bytes that one token adds to the KV cache: 2 · L · n_kv · d_h · e.

    Args:
        cfg: shape of the model; `cfg.bytes_per_kv` is e, in bytes.

    Returns:
        Bytes per token, all layers together.
    """
    return 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv


def max_batch(m_kv: float, C: int, cfg: ModelConfig) -> int:
    """How many sequences of C cached tokens fit in the memory kept for the KV cache.

    Args:
        m_kv: bytes of GPU memory for the cache; may be a float such as 50e9.
        C: cached tokens per sequence, at least 1.
        cfg: shape of the model.

    Returns:
        The largest B with B · C · k ≤ m_kv, an int; 0 when not even one sequence fits.

    Raises:
        ValueError: m_kv is negative or not finite, or C is below 1.
    """
    if not 0 <= m_kv < float("inf"):
        raise ValueError(f"m_kv must be a finite number of bytes, at least 0, got {m_kv!r}")
    if C < 1:
        raise ValueError(f"C must be at least 1 token, got {C!r}")
    # Whole bytes and whole numbers of sequences: integers keep exact fits exact.
    return int(m_kv) // int(C * kv_bytes_per_token(cfg))


def kv_bytes_per_sequence(C: int, cfg: ModelConfig) -> float:
    """Bytes of the whole cache of one sequence, for every kind of model.

    MLA stores one latent and one rotary key per token and layer, and no V (DeepSeek-V2, arXiv:2405.04434,
    section 2.1). A sliding-window layer keeps the last `sliding_window` tokens and no more.

    Args:
        C: tokens in the sequence so far, at least 1.
        cfg: shape of the model.

    Returns:
        Bytes, all tokens and layers together.

    Raises:
        ValueError: C is below 1.
    """
    if C < 1:
        raise ValueError(f"C must be at least 1 token, got {C!r}")
    if cfg.kv_latent_dim is not None:
        numbers_per_token = cfg.kv_latent_dim + cfg.rope_head_dim
    else:
        numbers_per_token = 2 * cfg.n_kv_heads * cfg.head_dim
    window = C if cfg.sliding_window is None else min(C, cfg.sliding_window)
    cached_tokens = (cfg.n_layers - cfg.n_sliding_layers) * C + cfg.n_sliding_layers * window
    return cached_tokens * numbers_per_token * cfg.bytes_per_kv

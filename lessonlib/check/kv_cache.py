"""Checks of exercise 1: KV-cache memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lessonlib import reference
from lessonlib.check.harness import Answer, Mistake, expect_numbers, part
from lessonlib.models import MODELS, ModelConfig

_per_token = reference.kv_bytes_per_token

PER_TOKEN_MISTAKES = [
    Mistake(
        "query-heads",
        "Query heads were counted where KV heads are stored. Grouped queries share one K and one V, so the cache "
        "grows with n_kv_heads.",
        lambda cfg: 2 * cfg.n_layers * cfg.n_heads * cfg.head_dim * cfg.bytes_per_kv,
    ),
    Mistake(
        "factor-2",
        "The factor 2 is missing: every token leaves a key and a value.",
        lambda cfg: _per_token(cfg) / 2,
    ),
    Mistake(
        "one-layer",
        "This is one layer only: each of the n_layers layers has a cache of its own.",
        lambda cfg: _per_token(cfg) / cfg.n_layers,
    ),
    Mistake(
        "bits-for-bytes",
        "Bits were counted where bytes are asked for: bytes_per_kv is already in bytes.",
        lambda cfg: _per_token(cfg) * 8,
    ),
    Mistake(
        "bytes-per-number",
        "This counts numbers, not bytes: each of them takes bytes_per_kv bytes.",
        lambda cfg: _per_token(cfg) / cfg.bytes_per_kv,
    ),
    Mistake(
        "hidden-over-heads",
        "The head dimension was taken as hidden_size / n_heads. That holds for some models and not for others "
        "(Qwen3, Gemma): use head_dim.",
        lambda cfg: 2 * cfg.n_layers * cfg.n_kv_heads * (cfg.hidden_size / cfg.n_heads) * cfg.bytes_per_kv,
    ),
    Mistake(
        "hidden-over-heads",
        "The head dimension was taken as hidden_size // n_heads. That holds for some models and not for others "
        "(Qwen3, Gemma): use head_dim.",
        lambda cfg: 2 * cfg.n_layers * cfg.n_kv_heads * (cfg.hidden_size // cfg.n_heads) * cfg.bytes_per_kv,
    ),
    Mistake(
        "weight-bytes",
        "The weights' format was used for the cache: the cache has a format of its own, bytes_per_kv.",
        lambda cfg: 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_weight,
    ),
    Mistake(
        "always-bf16",
        "Two bytes per number were taken for granted: an fp8 or int4 cache has fewer, see bytes_per_kv.",
        lambda cfg: 4 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim,
    ),
    Mistake(
        "group-size",
        "The group size g was used where the number of KV heads belongs: g query heads share one KV head, and there "
        "are n_kv_heads = n_heads / g of those.",
        lambda cfg: 2 * cfg.n_layers * cfg.group_size * cfg.head_dim * cfg.bytes_per_kv,
    ),
    Mistake(
        "hidden-size",
        "All of hidden_size was cached per token: K and V are only n_kv_heads · head_dim wide.",
        lambda cfg: 2 * cfg.n_layers * cfg.hidden_size * cfg.bytes_per_kv,
    ),
]


def _per_token_cases(seed: int) -> list[tuple[ModelConfig]]:
    names = [
        "Llama-3-70B",
        "Llama-3-8B",
        "Llama-2-7B",
        "Qwen3-4B",
        "Qwen3-0.6B",
        "Gemma-7B",
        "Gemma-2B",
        "Falcon-7B",
    ]
    fixed = [MODELS[name] for name in names]
    fixed += [replace(MODELS["Llama-3-8B"], bytes_per_kv=1), replace(MODELS["Qwen3-8B"], bytes_per_kv=0.5)]
    fixed += [replace(MODELS["Llama-3-70B"], bytes_per_weight=0.5)]
    rng = np.random.default_rng(seed)
    return [(cfg,) for cfg in fixed + [random_config(rng) for _ in range(20)]]


def random_config(rng: np.random.Generator) -> ModelConfig:
    """A model of random shape (no MLA, no window), whose head_dim is not hidden_size / n_heads."""
    n_kv_heads, group_size = int(rng.integers(1, 12)), int(rng.integers(1, 9))
    head_dim = 16 * int(rng.integers(2, 17))
    hidden_size = n_kv_heads * group_size * (head_dim + 16 * int(rng.integers(1, 5)))
    return ModelConfig(
        "random",
        n_layers=int(rng.integers(2, 100)),
        n_heads=n_kv_heads * group_size,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        vocab_size=32000,
        n_params=int(rng.integers(1, 100)) * 1e8,
        bytes_per_weight=float(rng.choice([2, 1, 0.5])),
        bytes_per_kv=float(rng.choice([2, 1, 0.5])),
    )


@part("kv_bytes_per_token")
def kv_bytes_per_token(answer: Answer, seed: int) -> str:
    """Bytes per token of catalogue models and of random shapes."""
    cases = _per_token_cases(seed)
    expect_numbers(answer, cases, _per_token, PER_TOKEN_MISTAKES, what="a number of bytes")
    return f"{len(cases)} models right, with MHA, GQA and MQA, and caches of 2, 1 and 0.5 bytes per number."


def _quotient(m_kv: float, C: int, cfg: ModelConfig) -> float:
    return m_kv / (C * _per_token(cfg))


def _batch_of(mistake: Mistake) -> Callable[..., float]:
    """max_batch of a learner whose kv_bytes_per_token has that mistake."""
    return lambda m_kv, C, cfg: int(int(m_kv) // (C * mistake.wrong(cfg)))


MAX_BATCH_MISTAKES = [
    Mistake(
        "context-left-out",
        "This counts tokens, not sequences: each sequence holds C of them.",
        lambda m_kv, C, cfg: int(m_kv) // int(_per_token(cfg)),
    ),
    Mistake(
        "gib-for-gb",
        "GB was taken as GiB: here 1 GB is 1e9 bytes, and m_kv is in bytes already.",
        lambda m_kv, C, cfg: int(m_kv / 1e9 * 2**30) // int(C * _per_token(cfg)),
    ),
    Mistake(
        "rounds-to-nearest",
        "The quotient was rounded to the nearest whole number. A sequence that fits only in part does not fit.",
        lambda m_kv, C, cfg: round(_quotient(m_kv, C, cfg)),
    ),
    Mistake(
        "rounds-up",
        "The quotient was rounded up. A sequence that fits only in part does not fit.",
        lambda m_kv, C, cfg: -int(-_quotient(m_kv, C, cfg) // 1),
    ),
    Mistake(
        "adds-one",
        "One sequence too many: where m_kv / (C · k) is not whole, the rest stays empty.",
        lambda m_kv, C, cfg: int(m_kv) // int(C * _per_token(cfg)) + 1,
    ),
    Mistake(
        "at-least-one",
        "Not even one sequence fits here: the answer is 0.",
        lambda m_kv, C, cfg: max(1, int(m_kv) // int(C * _per_token(cfg))),
    ),
    Mistake(
        "no-quotient-rounding",
        "The quotient itself came back: a batch is a whole number of sequences, so round down.",
        _quotient,
    ),
    Mistake(
        "exact-fit-excluded",
        "An exact fit was refused: B · C · k may equal m_kv.",
        lambda m_kv, C, cfg: max(0, -int(-_quotient(m_kv, C, cfg) // 1) - 1),
    ),
    Mistake(
        "float-division",
        "Rounding of floats lost a sequence that fits exactly: divide whole bytes with //, once, and not via GB or "
        "via 1 / (C · k).",
        lambda m_kv, C, cfg: int(m_kv * (1 / (C * _per_token(cfg)))),
    ),
    Mistake(
        "float-division",
        "Rounding of floats lost a sequence that fits exactly: divide whole bytes with //, once, and not via GB or "
        "via 1 / (C · k).",
        lambda m_kv, C, cfg: int(m_kv / 1e9 // (C * _per_token(cfg) / 1e9)),
    ),
    Mistake(
        "weights-subtracted",
        "The weights were taken off again: m_kv is what is left for the cache after them.",
        lambda m_kv, C, cfg: max(0, int(m_kv - cfg.n_params * cfg.bytes_per_weight) // int(C * _per_token(cfg))),
    ),
    *[
        Mistake(m.slug, "The batch comes from a wrong size per token. " + m.why, _batch_of(m))
        for m in PER_TOKEN_MISTAKES
    ],
]


def _exact_fits(rng: np.random.Generator) -> list[tuple[float, int, ModelConfig]]:
    """Exact fits and one byte less; half of them are fits that division by way of floats gets wrong."""
    by_way_of_floats = [m.wrong for m in MAX_BATCH_MISTAKES if m.slug == "float-division"]
    cases: list[tuple[float, int, ModelConfig]] = []
    wanted = {True: 30, False: 30}
    while any(wanted.values()):
        cfg = random_config(rng) if rng.random() < 0.5 else MODELS["Llama-3-8B"]
        C, n = int(rng.integers(1, 5000)), int(rng.integers(1, 400))
        fit = n * C * int(_per_token(cfg))
        delicate = all(wrong(fit, C, cfg) != n for wrong in by_way_of_floats)
        if wanted[delicate]:
            wanted[delicate] -= 1
            cases += [(fit, C, cfg), (fit - 1, C, cfg), (float(fit), C, cfg)]
    return cases


@part("max_batch")
def max_batch(answer: Answer, seed: int) -> str:
    """Batches of catalogue models, at exact fits and one byte to either side, and of random shapes."""
    llama, old = MODELS["Llama-3-8B"], MODELS["Llama-2-7B"]
    cases: list[tuple[float, int, ModelConfig]] = [
        (50e9, 2048, llama), (50e9, 4096, llama), (50e9, 4096, old), (50e9, 8192, llama), (50e9, 1, llama),
        (1e6, 2048, llama), (0, 1, llama), (30e9, 1000, replace(MODELS["Qwen3-4B"], bytes_per_kv=0.5)),
        (20e9, 3000, replace(llama, bytes_per_kv=1)),
    ]  # fmt: skip
    large = 131072 * int(_per_token(llama))  # so large that one byte hardly shows in the quotient
    cases += [(3 * large, 131072, llama), (3 * large - 1, 131072, llama)]
    cases += _exact_fits(np.random.default_rng(seed))
    expect_numbers(answer, cases, reference.max_batch, MAX_BATCH_MISTAKES, whole=True, what="a number of sequences")
    return f"{len(cases)} cases right, exact fits and one byte less among them."


_per_sequence = reference.kv_bytes_per_sequence


def _sequence_of(mistake: Mistake) -> Callable[..., float]:
    """kv_bytes_per_sequence of a learner whose size per token has that mistake, on plain models."""
    return lambda C, cfg: _per_sequence(C, cfg) * mistake.wrong(cfg) / _per_token(cfg)


def _swapped(cfg: ModelConfig) -> ModelConfig:
    n_swapped = cfg.n_layers - cfg.n_sliding_layers
    if cfg.sliding_window is None or n_swapped == 0:
        return replace(cfg, sliding_window=None, n_sliding_layers=0)
    return replace(cfg, n_sliding_layers=n_swapped)


def _latent_doubled(cfg: ModelConfig) -> ModelConfig:
    return replace(cfg, kv_latent_dim=2 * (cfg.kv_latent_dim or 0))


PER_SEQUENCE_MISTAKES = [
    Mistake(
        "window-ignored",
        "The window was ignored: a sliding-window layer keeps min(C, window) tokens.",
        lambda C, cfg: _per_sequence(C, replace(cfg, sliding_window=None, n_sliding_layers=0)),
    ),
    Mistake(
        "all-layers-windowed",
        "The window was given to every layer: only n_sliding_layers of them have it, the others keep all C tokens.",
        lambda C, cfg: _per_sequence(C, replace(cfg, n_sliding_layers=cfg.n_layers if cfg.sliding_window else 0)),
    ),
    Mistake(
        "windowed-layers-swapped",
        "The two kinds of layer are swapped: n_sliding_layers counts the ones with the window.",
        lambda C, cfg: _per_sequence(C, _swapped(cfg)),
    ),
    Mistake(
        "window-always-full",
        "A windowed layer was charged its whole window even where the sequence is shorter: it keeps min(C, window).",
        lambda C, cfg: (
            _per_sequence(max(C, cfg.sliding_window or 1), cfg)
            if cfg.n_sliding_layers == cfg.n_layers
            else _per_sequence(C, cfg)
            + cfg.n_sliding_layers * max(0, (cfg.sliding_window or 0) - C) * _per_token(cfg) / cfg.n_layers
        ),
    ),
    Mistake(
        "mla-ignored",
        "MLA was treated like plain attention: it caches one latent of kv_latent_dim numbers and the rotary key of "
        "rope_head_dim numbers, not n_kv_heads heads.",
        lambda C, cfg: _per_sequence(C, replace(cfg, kv_latent_dim=None, rope_head_dim=0)),
    ),
    Mistake(
        "mla-factor-2",
        "MLA has no factor 2: keys and values are both rebuilt from the one cached latent.",
        lambda C, cfg: _per_sequence(C, cfg) * (1 if cfg.kv_latent_dim is None else 2),
    ),
    Mistake(
        "mla-without-rotary-part",
        "The rotary part of the key is missing: MLA caches rope_head_dim numbers beside the latent.",
        lambda C, cfg: _per_sequence(C, replace(cfg, rope_head_dim=0)),
    ),
    Mistake(
        "mla-latent-doubled",
        "The latent was counted twice, as if for K and V: both are rebuilt from one latent.",
        lambda C, cfg: _per_sequence(C, cfg if cfg.kv_latent_dim is None else _latent_doubled(cfg)),
    ),
    Mistake(
        "context-left-out",
        "This is one token: a sequence of C tokens has C of them.",
        lambda C, cfg: _per_sequence(1, cfg),
    ),
    *[Mistake(m.slug, "The size per token is wrong. " + m.why, _sequence_of(m)) for m in PER_TOKEN_MISTAKES],
]


@part("kv_bytes_per_sequence")
def kv_bytes_per_sequence(answer: Answer, seed: int) -> str:
    """Whole caches of models with MLA, with windows in some or all layers, and with neither."""
    names = [
        "gpt-oss-20B",
        "Gemma-3-27B",
        "Gemma-2-9B",
        "Mistral-7B-v0.1",
        "DeepSeek-V3",
        "DeepSeek-V2",
        "Llama-3-8B",
    ]
    cases = [(C, MODELS[name]) for C in (131072, 5000, 100, 1) for name in names]
    cases += [(C, replace(MODELS["DeepSeek-V2"], bytes_per_kv=1)) for C in (1, 4096)]
    rng = np.random.default_rng(seed)
    for _ in range(30):
        cfg = random_config(rng)
        window = int(rng.integers(1, 6000))
        kinds: list[dict[str, Any]] = [
            {},
            {"sliding_window": window, "n_sliding_layers": int(rng.integers(1, cfg.n_layers + 1))},
            {"kv_latent_dim": 64 * int(rng.integers(1, 9)), "rope_head_dim": 32 * int(rng.integers(0, 4))},
        ]
        C = int(rng.choice([window, window - 1 or 1, window + 1, int(rng.integers(1, 9000))]))
        cases.append((C, replace(cfg, **kinds[int(rng.integers(3))])))
    expect_numbers(answer, cases, _per_sequence, PER_SEQUENCE_MISTAKES, what="a number of bytes")
    return f"{len(cases)} caches right, with MLA, sliding windows, both sides of each window, and plain attention."

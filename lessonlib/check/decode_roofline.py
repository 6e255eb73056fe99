"""Checks of exercise 2: the decode step on the roofline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lessonlib import reference
from lessonlib.check.harness import Answer, FieldOf, Mistake, close, expect_numbers, fail, part, show
from lessonlib.check.kv_cache import PER_TOKEN_MISTAKES, random_config
from lessonlib.gpus import GPUS, Gpu
from lessonlib.models import MODELS, ModelConfig
from lessonlib.records import DecodeStep

Case = tuple[int, int, ModelConfig, Gpu]

_step = reference.decode_step
_per_token = reference.kv_bytes_per_token


def _weights(cfg: ModelConfig) -> float:
    return cfg.n_params * cfg.bytes_per_weight


def _cache(B: int, C: int, cfg: ModelConfig) -> float:
    return B * C * _per_token(cfg)


def _matmul(B: int, cfg: ModelConfig) -> float:
    return 2 * cfg.n_params * B


def _attention(B: int, C: int, cfg: ModelConfig) -> float:
    return 4 * B * C * cfg.n_layers * cfg.n_heads * cfg.head_dim


# --- decode_step: a list of mistakes per field; each is called with (B, C, cfg, gpu) --------------------


def _bytes_of(mistake: Mistake) -> Mistake:
    """n_bytes of a learner whose size per token has that mistake."""
    return Mistake(
        mistake.slug,
        "The cache's bytes come from a wrong size per token. " + mistake.why,
        lambda B, C, cfg, gpu: _weights(cfg) + B * C * mistake.wrong(cfg),
    )


BYTES_MISTAKES = [
    Mistake(
        "weights-per-sequence",
        "The weights were counted once per sequence. One step reads each weight once, for all sequences: that is what "
        "batching gains.",
        lambda B, C, cfg, gpu: B * _weights(cfg) + _cache(B, C, cfg),
    ),
    Mistake(
        "cache-without-batch",
        "The cache of one sequence was counted. Caches are private: each of the B sequences reads its own.",
        lambda B, C, cfg, gpu: _weights(cfg) + _cache(1, C, cfg),
    ),
    Mistake(
        "cache-without-context",
        "One cached token per sequence was counted. A step reads the keys and values of all C of them.",
        lambda B, C, cfg, gpu: _weights(cfg) + _cache(B, 1, cfg),
    ),
    Mistake(
        "cache-left-out",
        "The caches are missing: a step reads B · C · k bytes beside the weights.",
        lambda B, C, cfg, gpu: _weights(cfg),
    ),
    Mistake(
        "weights-left-out",
        "The weights are missing: every step reads all of them.",
        lambda B, C, cfg, gpu: _cache(B, C, cfg),
    ),
    Mistake(
        "bits-for-bytes",
        "Bits were counted where bytes are asked for.",
        lambda B, C, cfg, gpu: 8 * (_weights(cfg) + _cache(B, C, cfg)),
    ),
    Mistake(
        "bits-for-bytes",
        "The weights were counted in bits: bytes_per_weight is already in bytes.",
        lambda B, C, cfg, gpu: 8 * _weights(cfg) + _cache(B, C, cfg),
    ),
    Mistake(
        "bits-for-bytes",
        "Bytes were divided by 8 as if they were bits: bytes_per_weight and bytes_per_kv are already in bytes.",
        lambda B, C, cfg, gpu: (_weights(cfg) + _cache(B, C, cfg)) / 8,
    ),
    Mistake(
        "parameters-for-bytes",
        "Parameters were counted, not their bytes: each takes bytes_per_weight bytes.",
        lambda B, C, cfg, gpu: cfg.n_params + _cache(B, C, cfg),
    ),
    Mistake(
        "always-bf16-weights",
        "Two bytes per weight were taken for granted: int4 weights have half a byte, see bytes_per_weight.",
        lambda B, C, cfg, gpu: 2 * cfg.n_params + _cache(B, C, cfg),
    ),
    Mistake(
        "cache-format-for-weights",
        "The cache's format was used for the weights: they have one of their own, bytes_per_weight.",
        lambda B, C, cfg, gpu: cfg.n_params * cfg.bytes_per_kv + _cache(B, C, cfg),
    ),
    Mistake(
        "scale",
        "The unit is wrong: n_bytes is in bytes, not in GB.",
        lambda B, C, cfg, gpu: (_weights(cfg) + _cache(B, C, cfg)) / 1e9,
    ),
    *[_bytes_of(mistake) for mistake in PER_TOKEN_MISTAKES],
]

FLOPS_MISTAKES = [
    Mistake(
        "attention-left-out",
        "Attention is missing: 4 · B · C · L · a · d_h FLOPs for q·K and p·V over the cache.",
        lambda B, C, cfg, gpu: _matmul(B, cfg),
    ),
    Mistake(
        "kv-heads-in-attention",
        "KV heads were counted in attention's FLOPs. Every query head computes its own scores: n_heads of them. (Bytes "
        "are the other way round: only KV heads are stored.)",
        lambda B, C, cfg, gpu: _matmul(B, cfg) + _attention(B, C, cfg) / cfg.group_size,
    ),
    Mistake(
        "half-of-attention",
        "Half of attention is missing: q·K costs 2·C·d_h FLOPs per query head, and p·V as much again.",
        lambda B, C, cfg, gpu: _matmul(B, cfg) + _attention(B, C, cfg) / 2,
    ),
    Mistake(
        "multiply-add-is-two",
        "A multiplication and an addition are two operations: 2 FLOPs per weight and sequence.",
        lambda B, C, cfg, gpu: (_matmul(B, cfg)) / 2 + _attention(B, C, cfg),
    ),
    Mistake(
        "multiply-add-is-two",
        "A multiplication and an addition are two operations: everything is half of what it should be.",
        lambda B, C, cfg, gpu: (_matmul(B, cfg) + _attention(B, C, cfg)) / 2,
    ),
    Mistake(
        "bytes-for-parameters",
        "The weights' bytes were taken for their number. A weight of any format is one multiply-add per sequence: "
        "2 · n_params · B.",
        lambda B, C, cfg, gpu: _weights(cfg) * B + _attention(B, C, cfg),
    ),
    Mistake(
        "bytes-for-parameters",
        "The formula g · B · C · k holds for a cache of 2 bytes per number only: FLOPs do not depend on the format.",
        lambda B, C, cfg, gpu: _matmul(B, cfg) + cfg.group_size * _cache(B, C, cfg),
    ),
    Mistake(
        "bytes-for-parameters",
        "The formula B · W + g · B · C · k holds for 2 bytes per number only: FLOPs do not depend on the format.",
        lambda B, C, cfg, gpu: _weights(cfg) * B + cfg.group_size * _cache(B, C, cfg),
    ),
    Mistake(
        "flops-without-batch",
        "The work of one sequence was counted: each weight is multiplied once per sequence.",
        lambda B, C, cfg, gpu: _matmul(1, cfg) + _attention(B, C, cfg),
    ),
    Mistake(
        "flops-without-batch",
        "The work of one sequence was counted: a step does it for B of them.",
        lambda B, C, cfg, gpu: _matmul(1, cfg) + _attention(1, C, cfg),
    ),
    Mistake(
        "attention-without-batch",
        "Attention was counted for one sequence: each of the B attends to its own cache.",
        lambda B, C, cfg, gpu: _matmul(B, cfg) + _attention(1, C, cfg),
    ),
    Mistake(
        "attention-of-one-layer",
        "Attention was counted for one layer: each of the n_layers layers attends.",
        lambda B, C, cfg, gpu: _matmul(B, cfg) + _attention(B, C, cfg) / cfg.n_layers,
    ),
    Mistake(
        "attention-squared",
        "That is prefill's attention, quadratic in the context. In decode one new token attends to C cached ones.",
        lambda B, C, cfg, gpu: _matmul(B, cfg) + _attention(B, C * C, cfg),
    ),
    Mistake(
        "hidden-size",
        "The model width was used for a · d_h. They differ in some models (Qwen3, Gemma).",
        lambda B, C, cfg, gpu: _matmul(B, cfg) + 4 * B * C * cfg.n_layers * cfg.hidden_size,
    ),
    Mistake(
        "flops-per-context-token",
        "The context was pushed through the weights again. Its keys and values are cached: only the new token goes "
        "through the model.",
        lambda B, C, cfg, gpu: _matmul(B * C, cfg) + _attention(B, C, cfg),
    ),
    Mistake(
        "scale",
        "The unit is wrong: flops is in FLOPs, not in TFLOPs.",
        lambda B, C, cfg, gpu: (_matmul(B, cfg) + _attention(B, C, cfg)) / 1e12,
    ),
]


def _scaled(field: str, *factors: float) -> list[Mistake]:
    """A time that is off by the factor of a unit."""
    why = "The unit is wrong: bandwidth is in bytes/s, peak_flops in FLOP/s, times are in seconds."
    return [
        Mistake("scale", why, lambda B, C, cfg, gpu, f=factor: f * getattr(_step(B, C, cfg, gpu), field))
        for factor in factors
    ]


MEMORY_MISTAKES = [
    Mistake(
        "peaks-swapped",
        "The two peaks are swapped: bytes are divided by bandwidth, FLOPs by peak_flops.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).n_bytes / gpu.peak_flops,
    ),
    Mistake(
        "bits-for-bytes",
        "Bandwidth is in bytes/s: no factor 8.",
        lambda B, C, cfg, gpu: 8 * _step(B, C, cfg, gpu).t_memory,
    ),
    Mistake(
        "bits-for-bytes",
        "Bandwidth is in bytes/s: no factor 8.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).t_memory / 8,
    ),
    *_scaled("t_memory", 1e3, 1e-3, 1e12, 1e-12, 1e9, 1e-9, 1e6),
]

COMPUTE_MISTAKES = [
    Mistake(
        "peaks-swapped",
        "The two peaks are swapped: bytes are divided by bandwidth, FLOPs by peak_flops.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).flops / gpu.bandwidth,
    ),
    Mistake(
        "sparse-peak",
        "Twice the peak was used. Data sheets often quote it with sparsity; gpu.peak_flops is the dense one.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).t_compute / 2,
    ),
    *_scaled("t_compute", 1e3, 1e-3, 1e12, 1e-12, 1e9, 1e-9, 1e6),
]

STEP_MISTAKES = [
    Mistake(
        "sum-of-times",
        "The two times were added. Loading and arithmetic overlap: the step takes the longer of the two.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).t_memory + _step(B, C, cfg, gpu).t_compute,
    ),
    Mistake(
        "shorter-time",
        "The shorter time was taken. The step cannot end before the slower of the two is done.",
        lambda B, C, cfg, gpu: min(_step(B, C, cfg, gpu).t_memory, _step(B, C, cfg, gpu).t_compute),
    ),
    Mistake(
        "memory-only",
        "The memory time was taken throughout. Large batches with short contexts are bound by compute.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).t_memory,
    ),
    Mistake(
        "compute-only",
        "The compute time was taken throughout. Decoding is bound by memory nearly everywhere.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).t_compute,
    ),
    *_scaled("t_step", 1e3, 1e-3),
]

RATE_MISTAKES = [
    Mistake(
        "rate-without-batch",
        "That is the rate of one sequence. The whole batch gains B tokens per step.",
        lambda B, C, cfg, gpu: 1 / _step(B, C, cfg, gpu).t_step,
    ),
    Mistake(
        "counts-cached-tokens",
        "Cached tokens were counted as output. A step gives one new token per sequence: B.",
        lambda B, C, cfg, gpu: B * C / _step(B, C, cfg, gpu).t_step,
    ),
    Mistake(
        "step-rate-of-memory-time",
        "The rate was computed from the memory time: divide by t_step, the longer one.",
        lambda B, C, cfg, gpu: B / _step(B, C, cfg, gpu).t_memory,
    ),
    Mistake(
        "step-rate-of-compute-time",
        "The rate was computed from the compute time: divide by t_step, the longer one.",
        lambda B, C, cfg, gpu: B / _step(B, C, cfg, gpu).t_compute,
    ),
    Mistake(
        "time-for-rate",
        "That is the time per token, not tokens per second.",
        lambda B, C, cfg, gpu: _step(B, C, cfg, gpu).t_step / B,
    ),
    *_scaled("tokens_per_s", 1e3, 1e-3),
]

FIELDS = {
    "n_bytes": BYTES_MISTAKES,
    "flops": FLOPS_MISTAKES,
    "t_memory": MEMORY_MISTAKES,
    "t_compute": COMPUTE_MISTAKES,
    "t_step": STEP_MISTAKES,
    "tokens_per_s": RATE_MISTAKES,
}

# How learners come to the name of the limit, and why that is wrong.
BOUND_MISTAKES: list[tuple[str, str, Callable[[DecodeStep, Case], bool]]] = [
    (
        "bound-reversed",
        "The names are swapped: the limit that binds is the one whose time is longer.",
        lambda step, case: step.bound != "memory",
    ),
    (
        "bound-always-memory",
        "Decoding is bound by memory nearly always, but not here: t_compute is the longer time.",
        lambda step, case: True,
    ),
    (
        "bound-from-batch",
        "The batch was compared with the ridge point. That holds while the weights are nearly all of the bytes; with "
        "caches, compare the two times.",
        lambda step, case: case[0] <= case[3].ridge_point,
    ),
    (
        "bound-without-peaks",
        "Every step came out as bound by compute, as when FLOPs are compared with bytes. Each has a peak of its own: "
        "compare the times.",
        lambda step, case: step.n_bytes >= step.flops,
    ),
]


def _crossing(C: int, cfg: ModelConfig, gpu: Gpu) -> int:
    """The first batch whose step is bound by compute; 0 where there is none."""
    spare = (
        2 * cfg.n_params / gpu.peak_flops + _attention(1, C, cfg) / gpu.peak_flops - _cache(1, C, cfg) / gpu.bandwidth
    )
    return int(_weights(cfg) / gpu.bandwidth / spare) + 1 if spare > 0 else 0


def _step_cases(seed: int) -> list[Case]:
    llama, h100 = MODELS["Llama-3-8B"], GPUS["H100-SXM"]
    cases = [
        (64, 2048, llama, h100),
        (1, 2048, llama, h100),
        (32, 4096, llama, h100),
        (512, 128, llama, h100),
        (24, 3000, MODELS["Llama-2-7B"], GPUS["A100-80GB"]),
        (9, 5000, MODELS["Qwen3-4B"], GPUS["L4"]),
        (300, 700, MODELS["Gemma-2B"], GPUS["T4"]),
        (16, 1024, replace(llama, bytes_per_weight=0.5), h100),
        (40, 2000, replace(llama, bytes_per_kv=1), GPUS["H200"]),
        (20, 900, replace(MODELS["Qwen3-8B"], bytes_per_weight=1, bytes_per_kv=0.5), GPUS["MI300X"]),
        (4, 100, MODELS["Llama-3-70B"], GPUS["B200"]),
        (1, 1, llama, h100),
    ]
    for C in (32, 128, 200):  # close to the ridge, on both sides
        first = _crossing(C, llama, h100)
        cases += [(first - 1, C, llama, h100), (first + 1, C, llama, h100)]
    rng = np.random.default_rng(seed)
    for i in range(24):
        gpu = Gpu("random", float(rng.uniform(5e13, 3e15)), float(rng.uniform(2e11, 9e12)), 80e9)
        if i % 2:  # a large batch of short contexts, which compute may bind
            B, C = int(rng.integers(200, 2000)), int(rng.integers(1, 200))
        else:
            B, C = int(rng.integers(1, 400)), int(rng.integers(1, 9000))
        cases.append((B, C, random_config(rng), gpu))
    return cases


def _expect_bounds(answer: Answer, cases: list[Case], seen: dict[Any, Any]) -> None:
    field = FieldOf(answer, "bound", "DecodeStep", seen)
    given = {case: field(*case) for case in cases}
    for case, bound in given.items():
        bound = bound.item() if isinstance(bound, np.ndarray) and bound.ndim == 0 else bound
        if not isinstance(bound, str):
            fail(field.text(case), f"{show(bound)} (type {type(bound).__name__})", '"memory" or "compute"')
    for case in cases:
        step = _step(*case)
        if given[case] == step.bound:
            continue
        mistake = next(
            (
                (slug, why)
                for slug, why, memory in BOUND_MISTAKES
                if all(given[c] == ("memory" if memory(_step(*c), c) else "compute") for c in cases)
            ),
            None,
        )
        times = f"t_memory = {step.t_memory * 1e3:.4g} ms, t_compute = {step.t_compute * 1e3:.4g} ms"
        fail(field.text(case), show(given[case]), f'"{step.bound}", since {times}', mistake)


@part("decode_step")
def decode_step(answer: Answer, seed: int) -> str:
    """Every field, for catalogue models and GPUs, all number formats, both sides of the ridge, random shapes."""
    cases = _step_cases(seed)
    seen: dict[Any, Any] = {}
    for field, mistakes in FIELDS.items():
        right = _field_of_reference(field)
        expect_numbers(FieldOf(answer, field, "DecodeStep", seen), cases, right, mistakes)
    _expect_bounds(answer, cases, seen)
    again = FieldOf(answer, "t_step", "DecodeStep", {})
    if not close(again.number(*cases[0]), _step(*cases[0]).t_step):
        fail(
            f"{again.text(cases[0])}   (called a second time)",
            show(again.number(*cases[0])),
            show(_step(*cases[0]).t_step),
            ("depends-on-earlier-calls", "The result must follow from the arguments, not from what ran before."),
        )
    n_compute = sum(_step(*case).bound == "compute" for case in cases)
    return f"{len(cases)} steps right in all seven fields, {n_compute} of them bound by compute."


def _field_of_reference(field: str) -> Callable[..., float]:
    return lambda B, C, cfg, gpu: getattr(_step(B, C, cfg, gpu), field)


# --- largest_batch: called with (tpot, C, cfg, gpu, m_kv) -----------------------------------------------

_largest = reference.largest_batch
_fits = reference.max_batch


def _fast_enough(tpot: float, C: int, cfg: ModelConfig, gpu: Gpu, m_kv: float) -> int:
    """The batch that the target alone allows."""
    return _largest(tpot, C, cfg, gpu, 1e5 * C * _per_token(cfg))


def _by_time(time: Callable[[DecodeStep], float]) -> Callable[..., int]:
    """The largest batch by another step time than the right one."""

    def search(tpot: float, C: int, cfg: ModelConfig, gpu: Gpu, m_kv: float) -> int:
        enough, too_many = 0, _fits(m_kv, C, cfg) + 1
        while too_many - enough > 1:
            B = (enough + too_many) // 2
            enough, too_many = (B, too_many) if time(_step(B, C, cfg, gpu)) <= tpot else (enough, B)
        return enough

    return search


def _strictly_faster(tpot: float, C: int, cfg: ModelConfig, gpu: Gpu, m_kv: float) -> int:
    B = _largest(tpot, C, cfg, gpu, m_kv)
    return B - 1 if B and _step(B, C, cfg, gpu).t_step == tpot else B


def _strictly_smaller(tpot: float, C: int, cfg: ModelConfig, gpu: Gpu, m_kv: float) -> int:
    return min(_fast_enough(tpot, C, cfg, gpu, m_kv), max(0, -int(-m_kv // (C * _per_token(cfg))) - 1))


def _all_or_nothing(tpot: float, C: int, cfg: ModelConfig, gpu: Gpu, m_kv: float) -> int:
    B = _fits(m_kv, C, cfg)
    return B if B and _step(B, C, cfg, gpu).t_step <= tpot else 0


LARGEST_MISTAKES = [
    Mistake(
        "memory-ignored",
        "Memory was ignored: the caches of these sequences do not fit in m_kv.",
        _fast_enough,
    ),
    Mistake(
        "target-ignored",
        "The target was ignored: this is what fits in memory, and its steps take longer than tpot.",
        lambda tpot, C, cfg, gpu, m_kv: _fits(m_kv, C, cfg),
    ),
    Mistake(
        "all-or-nothing",
        "Where the batch that fills the memory is too slow, the answer is a smaller one: not 0.",
        _all_or_nothing,
    ),
    Mistake(
        "power-of-two",
        "The search stopped at a power of two: go on between that and its double.",
        lambda *case: 1 << (_largest(*case).bit_length() - 1) if _largest(*case) else 0,
    ),
    Mistake(
        "equality-refused",
        "A step that takes exactly tpot was refused: t_step may equal the target.",
        _strictly_faster,
    ),
    Mistake(
        "equality-refused",
        "Caches that fill m_kv exactly were refused: they fit.",
        _strictly_smaller,
    ),
    Mistake(
        "off-by-one",
        "One sequence too many: this is the first batch that breaks a limit, not the last that keeps both.",
        lambda *case: _largest(*case) + 1,
    ),
    Mistake(
        "off-by-one",
        "One sequence too few.",
        lambda *case: _largest(*case) - 1,
    ),
    Mistake(
        "off-by-one",
        "One sequence too few.",
        lambda *case: max(0, _largest(*case) - 1),
    ),
    Mistake(
        "at-least-one",
        "Not even one sequence keeps both limits here: the answer is 0.",
        lambda *case: max(1, _largest(*case)),
    ),
    Mistake(
        "compute-ignored",
        "Only the memory time was held against the target. For large batches of short contexts compute takes longer.",
        _by_time(lambda step: step.t_memory),
    ),
    Mistake(
        "sum-of-times",
        "The two times were added. Loading and arithmetic overlap: the step takes the longer of the two.",
        _by_time(lambda step: step.t_memory + step.t_compute),
    ),
    Mistake(
        "scale",
        "The target was taken in milliseconds: tpot is in seconds.",
        _by_time(lambda step: step.t_step * 1e3),
    ),
    Mistake(
        "time-per-token-of-the-batch",
        "The step time was divided by the batch. Each user waits a whole step for the next token.",
        lambda tpot, C, cfg, gpu, m_kv: max(
            (B for B in range(1, _fits(m_kv, C, cfg) + 1) if _step(B, C, cfg, gpu).t_step / B <= tpot), default=0
        ),
    ),
    Mistake(
        "weights-subtracted",
        "The weights were taken off again: m_kv is what is left for the cache after them.",
        lambda tpot, C, cfg, gpu, m_kv: _largest(tpot, C, cfg, gpu, max(0, m_kv - _weights(cfg))),
    ),
    Mistake(
        "whole-gpu-memory",
        "The batch was sized by gpu.memory: m_kv is the part of it that is left for the cache.",
        lambda tpot, C, cfg, gpu, m_kv: _largest(tpot, C, cfg, gpu, gpu.memory),
    ),
    Mistake(
        "whole-gpu-memory",
        "The batch was sized by gpu.memory: m_kv is the part of it that is left for the cache.",
        lambda tpot, C, cfg, gpu, m_kv: _largest(tpot, C, cfg, gpu, max(0, gpu.memory - _weights(cfg))),
    ),
    Mistake(
        "context-left-out",
        "Memory was counted for one token per sequence: each holds C of them.",
        lambda tpot, C, cfg, gpu, m_kv: min(_fast_enough(tpot, C, cfg, gpu, m_kv), _fits(m_kv, 1, cfg)),
    ),
]

# Powers of two throughout, so that a step of exactly `tpot` is exact in floating point, however it is computed.
_ROUND = ModelConfig("round", 32, 32, 8, 128, 4096, 16384, 131072, 2**33)
_ROUND_GPU = Gpu("round", 2.0**50, 2.0**42, 80e9)


def _largest_cases(seed: int) -> list[tuple[float, int, ModelConfig, Gpu, float]]:
    llama, h100 = MODELS["Llama-3-8B"], GPUS["H100-SXM"]
    cases: list[tuple[float, int, ModelConfig, Gpu, float]] = [
        (10e-3, 2048, llama, h100, 50e9),  # the target binds
        (50e-3, 2048, llama, h100, 50e9),  # memory binds
        (3e-3, 2048, llama, h100, 50e9),  # too slow even alone
        (1e-5, 2048, llama, h100, 50e9),
        (50e-3, 2048, llama, h100, 1e8),  # too large even alone
        (15e-3, 4096, MODELS["Llama-2-7B"], GPUS["A100-80GB"], 60e9),
        (12e-3, 64, llama, h100, 50e9),  # compute is the slower of the two
        (6e-3, 1024, replace(llama, bytes_per_weight=0.5, bytes_per_kv=1), h100, 60e9),
    ]
    for B in (1, 2, 16, 48, 96):  # steps of exactly the target, or hardly more; exact fits, and one byte short
        exact = _step(B, 1024, _ROUND, _ROUND_GPU).t_step
        fit = _cache(B, 1024, _ROUND)
        cases += [(exact, 1024, _ROUND, _ROUND_GPU, 1e12), (1.0, 1024, _ROUND, _ROUND_GPU, fit)]
        cases += [(1.0, 1024, _ROUND, _ROUND_GPU, fit - 1), (exact * (1 - 1e-8), 1024, _ROUND, _ROUND_GPU, 1e12)]
    rng = np.random.default_rng(seed)
    for i in range(24):
        gpu = Gpu("random", float(rng.uniform(1e14, 2e15)), float(rng.uniform(5e11, 5e12)), 80e9)
        cfg, C = random_config(rng), int(rng.integers(1, 60) if i % 3 == 0 else rng.integers(200, 8000))
        B = int(rng.integers(1, 300))
        between = (_step(B, C, cfg, gpu).t_step + _step(B + 1, C, cfg, gpu).t_step) / 2
        cases.append((between, C, cfg, gpu, float(rng.uniform(0.5, 3)) * _cache(B, C, cfg)))
    return cases


@part("largest_batch")
def largest_batch(answer: Answer, seed: int) -> str:
    """Batches that the target limits, that memory limits, that neither allows, and exact fits of both."""
    cases = _largest_cases(seed)
    expect_numbers(answer, cases, _largest, LARGEST_MISTAKES, whole=True, what="a number of sequences")
    return f"{len(cases)} cases right: limited by the target, by memory, exact fits of each, and none at all."

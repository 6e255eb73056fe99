"""Answers to exercise 2, right and wrong."""

from __future__ import annotations

import bisect
import math
from collections import namedtuple
from dataclasses import astuple, make_dataclass, replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

from lessonlib import reference
from lessonlib.records import DecodeStep
from lessonlib.reference import kv_bytes_per_token, max_batch
from tests.answers import Answers, Wrong

# --- decode_step: right ---------------------------------------------------------------------------------


def step_by_terms(B, C, cfg, gpu):
    weights = cfg.n_params * cfg.bytes_per_weight
    caches = sum(C * kv_bytes_per_token(cfg) for _ in range(B))
    matmuls = 2 * cfg.n_params * B
    scores = 2 * B * C * cfg.n_layers * cfg.n_heads * cfg.head_dim
    mixing = scores
    memory, compute = (weights + caches) / gpu.bandwidth, (matmuls + scores + mixing) / gpu.peak_flops
    if compute > memory:
        return DecodeStep(weights + caches, matmuls + scores + mixing, memory, compute, compute, B / compute, "compute")
    return DecodeStep(weights + caches, matmuls + scores + mixing, memory, compute, memory, B / memory, "memory")


def step_own_cache_size(B, C, cfg, gpu):
    n_bytes = cfg.bytes_per_weight * cfg.n_params
    n_bytes += 2 * B * C * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv
    flops = B * (2 * cfg.n_params + 4 * C * cfg.n_layers * cfg.n_heads * cfg.head_dim)
    times = {"memory": n_bytes / gpu.bandwidth, "compute": flops / gpu.peak_flops}
    bound = max(times, key=times.get)
    return DecodeStep(n_bytes, flops, *times.values(), times[bound], B / times[bound], bound)


def step_numpy(B, C, cfg, gpu):
    amounts = np.array([_bytes(B, C, cfg), _flops(B, C, cfg)])
    times = amounts / np.array([gpu.bandwidth, gpu.peak_flops])
    return DecodeStep(*amounts, *times, times.max(), B / times.max(), np.array(["memory", "compute"])[times.argmax()])


def step_namespace(B, C, cfg, gpu):
    s = SimpleNamespace(n_bytes=_bytes(B, C, cfg), flops=_flops(B, C, cfg), note="an extra attribute")
    s.t_memory, s.t_compute = s.n_bytes / gpu.bandwidth, s.flops / gpu.peak_flops
    s.t_step = s.t_memory if s.t_memory > s.t_compute else s.t_compute
    s.tokens_per_s, s.bound = B / s.t_step, "memory" if s.t_memory > s.t_compute else "compute"
    return s


Step = namedtuple("Step", "n_bytes flops t_memory t_compute t_step tokens_per_s bound")


def step_namedtuple(B, C, cfg, gpu):
    return Step(*astuple(step_by_intensity(B, C, cfg, gpu)))


def step_by_intensity(B, C, cfg, gpu):
    """The limit is named by the intensity, not by the times."""
    n_bytes, flops = _bytes(B, C, cfg), _flops(B, C, cfg)
    bound = "memory" if flops / n_bytes < gpu.ridge_point else "compute"
    t_step = n_bytes / gpu.bandwidth if bound == "memory" else flops / gpu.peak_flops
    return DecodeStep(n_bytes, flops, n_bytes / gpu.bandwidth, flops / gpu.peak_flops, t_step, B / t_step, bound)


def step_fractions(B, C, cfg, gpu):
    n_bytes = Fraction(cfg.n_params) * Fraction(cfg.bytes_per_weight) + B * C * Fraction(kv_bytes_per_token(cfg))
    flops = Fraction(_flops(B, C, cfg))
    memory, compute = n_bytes / Fraction(gpu.bandwidth), flops / Fraction(gpu.peak_flops)
    t_step = max(memory, compute)
    return DecodeStep(n_bytes, flops, memory, compute, t_step, B / t_step, ("memory", "compute")[compute > memory])


def step_by_share(B, C, cfg, gpu):
    """FLOPs from the proposition: a byte-weighted average of the two intensities."""
    weights, caches = cfg.n_params * cfg.bytes_per_weight, B * C * kv_bytes_per_token(cfg)
    flops = weights * 2 * B / cfg.bytes_per_weight + caches * 2 * cfg.group_size / cfg.bytes_per_kv
    n_bytes = weights + caches
    t = [n_bytes / gpu.bandwidth, flops / gpu.peak_flops]
    return DecodeStep(n_bytes, flops, *t, max(t), B / max(t), "memory" if t[0] == max(t) else "compute")


def step_prints(B, C, cfg, gpu):
    print("debugging", B, C)
    return make_dataclass("Mine", ["n_bytes", "flops", "t_memory", "t_compute", "t_step", "tokens_per_s", "bound"])(
        *astuple(step_own_cache_size(B, C, cfg, gpu))
    )


# --- decode_step: wrong ---------------------------------------------------------------------------------


def _bytes(B, C, cfg):
    return cfg.n_params * cfg.bytes_per_weight + B * C * kv_bytes_per_token(cfg)


def _flops(B, C, cfg):
    return 2 * cfg.n_params * B + 4 * B * C * cfg.n_layers * cfg.n_heads * cfg.head_dim


def step_of(n_bytes=_bytes, flops=_flops, memory=None, compute=None, step=max, rate=None, bound=None):
    """A wrong decode_step: everything follows from the one thing that is done in another way."""

    def answer(B, C, cfg, gpu):
        amounts = n_bytes(B, C, cfg), flops(B, C, cfg)
        t_memory = memory(amounts[0], gpu) if memory else amounts[0] / gpu.bandwidth
        t_compute = compute(amounts[1], gpu) if compute else amounts[1] / gpu.peak_flops
        t_step = step(t_memory, t_compute)
        per_s = rate(B, C, t_memory, t_compute) if rate else B / t_step
        name = bound(B, C, gpu, *amounts) if bound else "memory" if t_memory >= t_compute else "compute"
        return DecodeStep(*amounts, t_memory, t_compute, t_step, per_s, name)

    return answer


def _w(cfg):
    return cfg.n_params * cfg.bytes_per_weight


def _k(cfg):
    return kv_bytes_per_token(cfg)


def _a(B, C, cfg):
    return 4 * B * C * cfg.n_layers * cfg.n_heads * cfg.head_dim


def _m(B, cfg):
    return 2 * cfg.n_params * B


def step_changes_cfg(B, C, cfg, gpu):
    object.__setattr__(cfg, "n_layers", 1)
    return reference.decode_step(B, C, cfg, gpu)


_calls: list[int] = []


def step_worse_every_time(B, C, cfg, gpu):
    _calls.append(B)
    return reference.decode_step(B + (len(_calls) > 1), C, cfg, gpu)


def step_hangs(B, C, cfg, gpu):
    while True:
        try:
            while True:
                pass
        except Exception:
            pass


def bytes_wrong(n_bytes, mistake=None):
    return Wrong(step_of(n_bytes=n_bytes), mistake)


def flops_wrong(flops, mistake=None):
    return Wrong(step_of(flops=flops), mistake)


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


class LazyRecord:
    @property
    def n_bytes(self):
        return 1 // 0


DECODE_STEP = Answers(
    right=[
        step_by_terms,
        step_own_cache_size,
        step_numpy,
        step_namespace,
        step_namedtuple,
        step_by_intensity,
        step_fractions,
        step_by_share,
        step_prints,
    ],
    wrong={
        "weights per sequence": bytes_wrong(lambda B, C, c: B * (_w(c) + C * _k(c)), "weights-per-sequence"),
        "one cache": bytes_wrong(lambda B, C, c: _w(c) + C * _k(c), "cache-without-batch"),
        "one token per cache": bytes_wrong(lambda B, C, c: _w(c) + B * _k(c), "cache-without-context"),
        "no cache": bytes_wrong(lambda B, C, c: _w(c), "cache-left-out"),
        "no weights": bytes_wrong(lambda B, C, c: B * C * _k(c), "weights-left-out"),
        "bits": bytes_wrong(lambda B, C, c: 8 * _bytes(B, C, c), "bits-for-bytes"),
        "weights in bits": bytes_wrong(lambda B, C, c: 8 * _w(c) + B * C * _k(c), "bits-for-bytes"),
        "divided by 8": bytes_wrong(lambda B, C, c: _bytes(B, C, c) / 8, "bits-for-bytes"),
        "parameters": bytes_wrong(lambda B, C, c: c.n_params + B * C * _k(c), "parameters-for-bytes"),
        "bf16 weights": bytes_wrong(lambda B, C, c: 2 * c.n_params + B * C * _k(c), "always-bf16-weights"),
        "bf16 cache": bytes_wrong(lambda B, C, c: _w(c) + B * C * _k(replace(c, bytes_per_kv=2)), "always-bf16"),
        "formats swapped": bytes_wrong(
            lambda B, C, c: c.n_params * c.bytes_per_kv + B * C * _k(c), "cache-format-for-weights"
        ),
        "query heads stored": bytes_wrong(lambda B, C, c: _w(c) + B * C * _k(c) * c.group_size, "query-heads"),
        "keys only": bytes_wrong(lambda B, C, c: _w(c) + B * C * _k(c) / 2, "factor-2"),
        "cache of one layer": bytes_wrong(lambda B, C, c: _w(c) + B * C * _k(c) / c.n_layers, "one-layer"),
        "GB": bytes_wrong(lambda B, C, c: _bytes(B, C, c) / 1e9, "scale"),
        "next token cached too": bytes_wrong(lambda B, C, c: _w(c) + B * (C + 1) * _k(c)),
        "no attention": flops_wrong(lambda B, C, c: _m(B, c), "attention-left-out"),
        "KV heads attend": flops_wrong(lambda B, C, c: _m(B, c) + _a(B, C, c) / c.group_size, "kv-heads-in-attention"),
        "scores only": flops_wrong(lambda B, C, c: _m(B, c) + _a(B, C, c) / 2, "half-of-attention"),
        "multiply-add as one": flops_wrong(lambda B, C, c: _m(B, c) / 2 + _a(B, C, c), "multiply-add-is-two"),
        "all multiply-adds as one": flops_wrong(lambda B, C, c: _flops(B, C, c) / 2, "multiply-add-is-two"),
        "W for 2Ψ": flops_wrong(lambda B, C, c: _w(c) * B + _a(B, C, c), "bytes-for-parameters"),
        "g·B·C·k": flops_wrong(lambda B, C, c: _m(B, c) + c.group_size * B * C * _k(c), "bytes-for-parameters"),
        "no batch": flops_wrong(lambda B, C, c: _flops(1, C, c), "flops-without-batch"),
        "no batch in the matmuls": flops_wrong(lambda B, C, c: _m(1, c) + _a(B, C, c), "flops-without-batch"),
        "attention without batch": flops_wrong(lambda B, C, c: _m(B, c) + _a(1, C, c), "attention-without-batch"),
        "attention of one layer": flops_wrong(
            lambda B, C, c: _m(B, c) + _a(B, C, c) / c.n_layers, "attention-of-one-layer"
        ),
        "attention squared": flops_wrong(lambda B, C, c: _m(B, c) + _a(B, C * C, c), "attention-squared"),
        "hidden size": flops_wrong(lambda B, C, c: _m(B, c) + 4 * B * C * c.n_layers * c.hidden_size, "hidden-size"),
        "context through the weights": flops_wrong(
            lambda B, C, c: _m(B * C, c) + _a(B, C, c), "flops-per-context-token"
        ),
        "TFLOP": flops_wrong(lambda B, C, c: _flops(B, C, c) / 1e12, "scale"),
        "bandwidth in TB/s": Wrong(step_of(memory=lambda n, gpu: n / (gpu.bandwidth * 1e12)), "scale"),
        "bandwidth in bits": Wrong(step_of(memory=lambda n, gpu: 8 * n / gpu.bandwidth), "bits-for-bytes"),
        "peak in TFLOP/s": Wrong(step_of(compute=lambda n, gpu: n / (gpu.peak_flops * 1e12)), "scale"),
        "bytes over peak": Wrong(step_of(memory=lambda n, gpu: n / gpu.peak_flops), "peaks-swapped"),
        "FLOPs over bandwidth": Wrong(step_of(compute=lambda n, gpu: n / gpu.bandwidth), "peaks-swapped"),
        "sparse peak": Wrong(step_of(compute=lambda n, gpu: n / (2 * gpu.peak_flops)), "sparse-peak"),
        "milliseconds": Wrong(step_of(memory=lambda n, gpu: 1e3 * n / gpu.bandwidth), "scale"),
        "sum of times": Wrong(step_of(step=lambda m, c: m + c), "sum-of-times"),
        "min of times": Wrong(step_of(step=min), "shorter-time"),
        "memory time": Wrong(step_of(step=lambda m, c: m), "memory-only"),
        "compute time": Wrong(step_of(step=lambda m, c: c), "compute-only"),
        "one sequence's rate": Wrong(step_of(rate=lambda B, C, m, c: 1 / max(m, c)), "rate-without-batch"),
        "cached tokens per s": Wrong(step_of(rate=lambda B, C, m, c: B * C / max(m, c)), "counts-cached-tokens"),
        "rate of memory": Wrong(step_of(rate=lambda B, C, m, c: B / m), "step-rate-of-memory-time"),
        "time per token": Wrong(step_of(rate=lambda B, C, m, c: max(m, c) / B), "time-for-rate"),
        "bound reversed": Wrong(
            step_of(bound=lambda B, C, gpu, n, f: "compute" if n / gpu.bandwidth > f / gpu.peak_flops else "memory"),
            "bound-reversed",
        ),
        "always memory": Wrong(step_of(bound=lambda *_: "memory"), "bound-always-memory"),
        "bound from B": Wrong(
            step_of(bound=lambda B, C, gpu, n, f: "compute" if B > gpu.ridge_point else "memory"), "bound-from-batch"
        ),
        "bound without peaks": Wrong(
            step_of(bound=lambda B, C, gpu, n, f: "compute" if f > n else "memory"), "bound-without-peaks"
        ),
        "bound always compute": Wrong(step_of(bound=lambda *_: "compute"), "bound-without-peaks"),
        "bound equal to everything": Wrong(step_of(bound=lambda *_: EqualToAll())),
        "bound in an array": Wrong(step_of(bound=lambda *_: np.array(["memory", "compute"]))),
        "fields that raise": Wrong(lambda B, C, c, g: LazyRecord()),
        "bound in capitals": Wrong(step_of(bound=lambda *_: "Memory")),
        "bound below the ridge": Wrong(
            step_of(bound=lambda B, C, gpu, n, f: "compute" if f / n > 0.9 * gpu.ridge_point else "memory")
        ),
        "changes cfg": Wrong(step_changes_cfg, "changes-its-input"),
        "worse every time": Wrong(step_worse_every_time),
        "hangs": Wrong(step_hangs, "never-returns"),
        "returns None": Wrong(lambda B, C, c, g: None, "returns-nothing"),
        "returns a tuple": Wrong(lambda B, C, c, g: astuple(reference.decode_step(B, C, c, g))),
        "returns t_step": Wrong(lambda B, C, c, g: reference.decode_step(B, C, c, g).t_step),
        "fields of None": Wrong(lambda B, C, c, g: DecodeStep(*[None] * 7)),
        "nan": Wrong(step_of(rate=lambda *_: math.nan)),
        "raises": Wrong(lambda B, C, c, g: reference.decode_step(B, C, c.model, g)),
    },
)

# --- largest_batch: right -------------------------------------------------------------------------------


def _t(B, C, cfg, gpu):
    return reference.decode_step(B, C, cfg, gpu).t_step


def largest_down(tpot, C, cfg, gpu, m_kv):
    B = max_batch(m_kv, C, cfg)
    while B > 0 and _t(B, C, cfg, gpu) > tpot:
        B -= 1
    return B


def largest_up(tpot, C, cfg, gpu, m_kv):
    B = 0
    while (B + 1) * C * kv_bytes_per_token(cfg) <= m_kv and _t(B + 1, C, cfg, gpu) <= tpot:
        B += 1
    return B


def largest_closed_form(tpot, C, cfg, gpu, m_kv):
    k = C * kv_bytes_per_token(cfg)
    by_memory = (tpot * gpu.bandwidth - cfg.n_params * cfg.bytes_per_weight) / k
    per_sequence = 2 * cfg.n_params + 4 * C * cfg.n_layers * cfg.n_heads * cfg.head_dim
    by_compute = tpot * gpu.peak_flops / per_sequence
    return max(0, math.floor(min(by_memory, by_compute, m_kv // k)))


def largest_bisect(tpot, C, cfg, gpu, m_kv):
    batches = range(1, max_batch(m_kv, C, cfg) + 1)
    return bisect.bisect_right(batches, tpot, key=lambda B: _t(B, C, cfg, gpu))


def largest_doubling(tpot, C, cfg, gpu, m_kv):
    def ok(B):
        return B <= max_batch(m_kv, C, cfg) and _t(B, C, cfg, gpu) <= tpot

    B, stride = 0, 1
    while ok(B + stride):
        B, stride = B + stride, 2 * stride
    while stride:
        if ok(B + stride):
            B += stride
        stride //= 2
    return B


def largest_vectorised(tpot, C, cfg, gpu, m_kv):
    B = np.arange(1, max_batch(m_kv, C, cfg) + 1, dtype=float)
    if B.size == 0:
        return 0
    n_bytes, flops = _bytes(B, C, cfg), _flops(B, C, cfg)
    return np.count_nonzero(np.maximum(n_bytes / gpu.bandwidth, flops / gpu.peak_flops) <= tpot)


def largest_recursive(tpot, C, cfg, gpu, m_kv, low=0, high=None):
    high = max_batch(m_kv, C, cfg) if high is None else high
    if low == high:
        return low
    middle = (low + high + 1) // 2
    if _t(middle, C, cfg, gpu) <= tpot:
        return largest_recursive(tpot, C, cfg, gpu, m_kv, middle, high)
    return largest_recursive(tpot, C, cfg, gpu, m_kv, low, middle - 1)


def largest_min_of_two(tpot, C, cfg, gpu, m_kv):
    """The target alone, then memory alone."""
    if _t(1, C, cfg, gpu) > tpot:
        return 0
    allowed = 1
    while allowed < 1_000_000 and _t(allowed + 1, C, cfg, gpu) <= tpot and allowed <= m_kv / C:
        allowed += 1
    return np.int64(min(allowed, int(m_kv / (C * kv_bytes_per_token(cfg)))))


# --- largest_batch: wrong -------------------------------------------------------------------------------


def _right(*case):
    return reference.largest_batch(*case)


def largest_memory_ignored(tpot, C, cfg, gpu, m_kv):
    return _right(tpot, C, cfg, gpu, 1e5 * C * kv_bytes_per_token(cfg))


def largest_strict(tpot, C, cfg, gpu, m_kv):
    B = max_batch(m_kv, C, cfg)
    while B > 0 and _t(B, C, cfg, gpu) >= tpot:
        B -= 1
    return B


def largest_exact_fit_refused(tpot, C, cfg, gpu, m_kv):
    B = 0
    while (B + 1) * C * kv_bytes_per_token(cfg) < m_kv and _t(B + 1, C, cfg, gpu) <= tpot:
        B += 1
    return B


def largest_first_too_slow(tpot, C, cfg, gpu, m_kv):
    return _right(tpot, C, cfg, gpu, m_kv) + 1


def largest_power_of_two(tpot, C, cfg, gpu, m_kv):
    B = 1
    while 2 * B <= max_batch(m_kv, C, cfg) and _t(2 * B, C, cfg, gpu) <= tpot:
        B *= 2
    return B if _t(B, C, cfg, gpu) <= tpot and B <= max_batch(m_kv, C, cfg) else 0


def largest_all_or_nothing(tpot, C, cfg, gpu, m_kv):
    B = max_batch(m_kv, C, cfg)
    return B if B and _t(B, C, cfg, gpu) <= tpot else 0


def largest_by(time):
    def answer(tpot, C, cfg, gpu, m_kv):
        B = max_batch(m_kv, C, cfg)
        while B > 0 and time(reference.decode_step(B, C, cfg, gpu)) > tpot:
            B -= 1
        return B

    return answer


LARGEST_BATCH = Answers(
    right=[
        largest_down,
        largest_up,
        largest_closed_form,
        largest_bisect,
        largest_doubling,
        largest_vectorised,
        largest_recursive,
        largest_min_of_two,
    ],
    wrong={
        "memory ignored": Wrong(largest_memory_ignored, "memory-ignored"),
        "target ignored": Wrong(lambda t, C, cfg, gpu, m: max_batch(m, C, cfg), "target-ignored"),
        "power of two": Wrong(largest_power_of_two, "power-of-two"),
        "strictly faster": Wrong(largest_strict, "equality-refused"),
        "exact fit refused": Wrong(largest_exact_fit_refused, "equality-refused"),
        "one too many": Wrong(largest_first_too_slow, "off-by-one"),
        "one too few": Wrong(lambda *case: max(0, _right(*case) - 1), "off-by-one"),
        "minus one": Wrong(lambda *case: _right(*case) - 1, "off-by-one"),
        "at least one": Wrong(lambda *case: max(1, _right(*case)), "at-least-one"),
        "memory time": Wrong(largest_by(lambda s: s.t_memory), "compute-ignored"),
        "sum of times": Wrong(largest_by(lambda s: s.t_memory + s.t_compute), "sum-of-times"),
        "milliseconds": Wrong(largest_by(lambda s: 1e3 * s.t_step), "scale"),
        "per sequence": Wrong(largest_by(lambda s: 1 / s.tokens_per_s), "time-per-token-of-the-batch"),
        "weights taken off": Wrong(
            lambda t, C, cfg, gpu, m: _right(t, C, cfg, gpu, max(0, m - cfg.n_params * cfg.bytes_per_weight)),
            "weights-subtracted",
        ),
        "whole GPU": Wrong(lambda t, C, cfg, gpu, m: _right(t, C, cfg, gpu, gpu.memory), "whole-gpu-memory"),
        "one token each": Wrong(
            lambda t, C, cfg, gpu, m: min(largest_memory_ignored(t, C, cfg, gpu, m), max_batch(m, 1, cfg)),
            "context-left-out",
        ),
        "returns a float": Wrong(lambda *case: float(_right(*case)), "returns-a-float"),
        "all or nothing": Wrong(largest_all_or_nothing, "all-or-nothing"),
        "forgives a millionth": Wrong(lambda t, *rest: _right(t * (1 + 1e-6), *rest)),
        "at most 64": Wrong(lambda *case: min(64, _right(*case))),
        "multiples of 8": Wrong(lambda *case: _right(*case) // 8 * 8),
        "None where none fits": Wrong(lambda *case: _right(*case) or None, "returns-nothing"),
        "returns the step": Wrong(lambda t, C, cfg, gpu, m: reference.decode_step(1, C, cfg, gpu)),
    },
)

PARTS = {"decode_step": DECODE_STEP, "largest_batch": LARGEST_BATCH}

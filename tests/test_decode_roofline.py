"""Exercise 2's reference answers against the golden numbers, and the facts of its docstrings."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessonlib import GPUS, MODELS, Gpu, quiz
from lessonlib.check.decode_roofline import _crossing
from lessonlib.reference import decode_step, kv_bytes_per_token, largest_batch, max_batch
from lessonlib.roofline import decode_bytes, decode_flops, intensity

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["decode"]
LLAMA, H100 = MODELS["Llama-3-8B"], GPUS["H100-SXM"]

shapes = st.sampled_from([MODELS[name] for name in ("Llama-3-8B", "Llama-2-7B", "Gemma-2B", "Qwen3-4B")])
formats = st.sampled_from([2, 1, 0.5])


@pytest.mark.parametrize("step", GOLDEN["steps"], ids=lambda s: f"B={s['B']},C={s['C']}")
def test_golden_steps(step: dict) -> None:
    got = asdict(decode_step(step["B"], step["C"], LLAMA, H100))
    assert got["bound"] == step["bound"]
    for field in ("n_bytes", "flops", "t_memory", "t_compute", "t_step", "tokens_per_s"):
        assert got[field] == pytest.approx(step[field], rel=1e-12), field
    assert got["flops"] / got["n_bytes"] == pytest.approx(step["intensity"], rel=1e-12)


def test_golden_ridge() -> None:
    assert pytest.approx(GOLDEN["ridge_point"], rel=1e-12) == H100.ridge_point


def test_gains_of_batching() -> None:
    """1 -> 64 gains 31 times in throughput, 64 -> 186 only 1.5 times."""
    rates = [decode_step(B, 2048, LLAMA, H100).tokens_per_s for B in (1, 64, 186)]
    assert rates[1] / rates[0] == pytest.approx(31, abs=0.5)
    assert rates[2] / rates[1] == pytest.approx(1.5, abs=0.05)


def test_never_compute_bound_at_2048_within_memory() -> None:
    fits = max_batch(50e9, 2048, LLAMA)
    assert fits == 186
    assert all(decode_step(B, 2048, LLAMA, H100).bound == "memory" for B in range(1, fits + 1))


def test_doubling_the_batch_at_long_context_leaves_intensity_near_g() -> None:
    first, second = (intensity(B, 131072, LLAMA) for B in (16, 32))
    assert LLAMA.group_size <= first <= second <= 1.1 * first
    assert second == pytest.approx(LLAMA.group_size, rel=0.3)


@given(B=st.integers(1, 3000), C=st.integers(1, 200_000), cfg=shapes, e_w=formats, e_kv=formats)
def test_agrees_with_the_shared_arithmetic(B: int, C: int, cfg: object, e_w: float, e_kv: float) -> None:
    cfg = replace(cfg, bytes_per_weight=e_w, bytes_per_kv=e_kv)
    step = decode_step(B, C, cfg, H100)
    assert step.n_bytes == pytest.approx(decode_bytes(B, C, cfg), rel=1e-12)
    assert step.flops == pytest.approx(decode_flops(B, B * C, cfg), rel=1e-12)
    assert step.t_step == max(step.t_memory, step.t_compute)
    assert step.bound == ("memory" if step.t_memory >= step.t_compute else "compute")
    assert step.tokens_per_s * step.t_step == pytest.approx(B, rel=1e-12)


@given(tpot=st.floats(1e-4, 0.2), C=st.integers(1, 20_000), cfg=shapes, m_kv=st.floats(0, 1e11), e_kv=formats)
def test_largest_batch_is_the_last_that_keeps_both_limits(
    tpot: float, C: int, cfg: object, m_kv: float, e_kv: float
) -> None:
    cfg = replace(cfg, bytes_per_kv=e_kv)
    B = largest_batch(tpot, C, cfg, H100, m_kv)
    assert isinstance(B, int)
    if B:
        assert decode_step(B, C, cfg, H100).t_step <= tpot
        assert B * C * kv_bytes_per_token(cfg) <= m_kv
    more = decode_step(B + 1, C, cfg, H100).t_step > tpot or (B + 1) * C * kv_bytes_per_token(cfg) > m_kv
    assert more


def test_largest_batch_at_equality() -> None:
    exact = decode_step(64, 2048, LLAMA, H100).t_step
    assert largest_batch(exact, 2048, LLAMA, H100, 50e9) == 64
    assert largest_batch(1.0, 2048, LLAMA, H100, 64 * 2048 * 131072) == 64
    assert largest_batch(1.0, 2048, LLAMA, H100, 64 * 2048 * 131072 - 1) == 63


def test_bad_input_is_named() -> None:
    for B, C in ((0, 1), (1, 0), (-3, 5)):
        with pytest.raises(ValueError, match=f"B = {B} and C = {C}"):
            decode_step(B, C, LLAMA, H100)
    with pytest.raises(ValueError, match="got 0"):
        largest_batch(0, 2048, LLAMA, H100, 50e9)
    with pytest.raises(ValueError, match="got nan"):
        largest_batch(float("nan"), 2048, LLAMA, H100, 50e9)
    with pytest.raises(ValueError, match="got -1"):
        largest_batch(0.01, 2048, LLAMA, H100, -1)


def test_the_check_looks_at_both_sides_of_the_ridge() -> None:
    for gpu in (H100, Gpu("x", 3e14, 2e12, 80e9)):
        first = _crossing(64, LLAMA, gpu)
        assert decode_step(first, 64, LLAMA, gpu).bound == "compute"
        assert decode_step(first - 1, 64, LLAMA, gpu).bound == "memory"


def test_quick_checks_have_the_right_keys() -> None:
    keys = {"step_time": "9.9 ms", "intensity_when_batch_doubles": "hardly", "where_batching_helps": "About 1.5 times"}
    for name, expected in keys.items():
        (right,) = [choice for choice in getattr(quiz.decode_roofline, name)().choices if choice.right]
        assert expected in right.text

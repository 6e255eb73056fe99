"""The shared arithmetic against the golden numbers and against each other."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.roofline import (
    decode_bytes,
    decode_flops,
    intensity,
    matmul_threshold,
    prefill_flops,
    prefill_seconds,
    step_seconds,
    transfer_seconds,
    weight_bytes,
)

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
LLAMA, H100 = MODELS["Llama-3-8B"], GPUS["H100-SXM"]


@pytest.mark.parametrize("step", GOLDEN["decode"]["steps"], ids=lambda s: f"B={s['B']},C={s['C']}")
def test_decode_golden(step: dict) -> None:
    B, C = step["B"], step["C"]
    assert decode_bytes(B, C, LLAMA) == step["n_bytes"]
    assert decode_flops(B, B * C, LLAMA) == step["flops"]
    assert intensity(B, C, LLAMA) == pytest.approx(step["intensity"], rel=1e-12)
    assert step_seconds(step["n_bytes"], step["flops"], H100) == pytest.approx(step["t_step"], rel=1e-12)


def test_prefill_golden() -> None:
    for T, flops in GOLDEN["decode"]["prefill_flops"].items():
        assert prefill_flops(int(T), LLAMA) == flops
    for T, seconds in GOLDEN["decode"]["prefill_seconds_at_peak"].items():
        assert prefill_seconds(int(T), LLAMA, H100) == pytest.approx(seconds, rel=1e-12)
        assert prefill_seconds(int(T), LLAMA, H100, share_of_peak=0.5) == pytest.approx(2 * seconds, rel=1e-12)


def test_matmul_threshold_golden() -> None:
    for shape, threshold in GOLDEN["decode"]["matmul_threshold"].items():
        D, F = map(int, shape.split("x"))
        assert matmul_threshold(D, F, H100) == pytest.approx(threshold, rel=1e-12)
        B = matmul_threshold(D, F, H100)
        at_threshold = 2 * B * D * F / (2 * (B * D + D * F + B * F))
        assert at_threshold == pytest.approx(H100.ridge_point)


def test_narrow_matmul_is_never_compute_bound() -> None:
    assert matmul_threshold(512, 512, H100) == math.inf
    assert matmul_threshold(512, 512, H100, bytes_per_number=1) < math.inf


def test_transfer_golden() -> None:
    assert transfer_seconds(1500, LLAMA, 50e9) == pytest.approx(GOLDEN["paging"]["swap_1500_seconds_at_50e9"])
    for link, seconds in GOLDEN["batching"]["transfer_seconds"].items():
        assert transfer_seconds(2048, LLAMA, float(link)) == pytest.approx(seconds)


def test_chunks_beside_decodes_golden() -> None:
    """64 sequences at C = 1024 decode while a 32,768-token prompt is prefilled in chunks of 512."""
    steps = []
    for cached in range(0, 32768, 512):
        flops = decode_flops(64, 64 * 1024, LLAMA) + prefill_flops(512, LLAMA, cached)
        steps.append(step_seconds(decode_bytes(64, 1024, LLAMA), flops, H100))
    golden = GOLDEN["batching"]["chunked_512_step_seconds_at_peak"]
    assert steps[0] == pytest.approx(golden["first"], rel=1e-4)
    assert steps[-1] == pytest.approx(golden["last"], rel=1e-4)
    assert sum(steps) == pytest.approx(golden["sum_ttft"], rel=1e-4)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_chunks_sum_to_the_prompt(chunks: list[int]) -> None:
    done, flops = 0, 0.0
    for T in chunks:
        flops += prefill_flops(T, LLAMA, cached=done)
        done += T
    assert flops == pytest.approx(prefill_flops(done, LLAMA), rel=1e-12)


@pytest.mark.parametrize("bytes_per_weight", [2, 1, 0.5])
@pytest.mark.parametrize("bytes_per_kv", [2, 1, 0.5])
@pytest.mark.parametrize("name", ["Llama-3-8B", "Llama-2-7B", "Gemma-2B"])
def test_intensity_is_a_byte_weighted_average(name: str, bytes_per_weight: float, bytes_per_kv: float) -> None:
    cfg = replace(MODELS[name], bytes_per_weight=bytes_per_weight, bytes_per_kv=bytes_per_kv)
    for B, C in [(1, 1), (8, 2048), (200, 300)]:
        share = weight_bytes(cfg) / decode_bytes(B, C, cfg)
        average = share * 2 * B / bytes_per_weight + (1 - share) * 2 * cfg.group_size / bytes_per_kv
        assert intensity(B, C, cfg) == pytest.approx(average, rel=1e-12)


def test_windows_and_mla_are_charged_what_they_store() -> None:
    gpt = MODELS["gpt-oss-20B"]
    assert decode_bytes(1, 131072, gpt) - weight_bytes(gpt) == pytest.approx(3.00 * 2**30, rel=0.01)
    assert decode_bytes(1, 1, MODELS["DeepSeek-V3"]) - weight_bytes(MODELS["DeepSeek-V3"]) == 70272


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="got 0 and 0"):
        prefill_flops(0, LLAMA)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        step_seconds(1, 1, H100, share_of_peak=1.5)

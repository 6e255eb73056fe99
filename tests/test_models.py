"""The catalogues: golden values, validation, and shapes that add up."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from lessonlib import GPUS, MODELS, Gpu, ModelConfig, Request
from lessonlib.reference import kv_bytes_per_sequence, kv_bytes_per_token, max_batch

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
LLAMA = MODELS["Llama-3-8B"]


def test_catalogue_sizes() -> None:
    assert len(MODELS) >= 20
    assert len(GPUS) >= 10
    assert all(name == cfg.name for name, cfg in MODELS.items())
    assert all(name == gpu.name for name, gpu in GPUS.items())
    kinds = {"MHA": 1, "MQA": 1, "GQA": 10, "MLA": 2, "window": 5, "wide heads": 3}
    found = dict.fromkeys(kinds, 0)
    for cfg in MODELS.values():
        found["MLA"] += cfg.kv_latent_dim is not None
        found["MHA"] += cfg.kv_latent_dim is None and cfg.group_size == 1
        found["MQA"] += cfg.n_kv_heads == 1
        found["GQA"] += 1 < cfg.n_kv_heads < cfg.n_heads
        found["window"] += cfg.sliding_window is not None
        found["wide heads"] += cfg.kv_latent_dim is None and cfg.head_dim * cfg.n_heads > cfg.hidden_size
    assert all(found[kind] >= least for kind, least in kinds.items()), found


@pytest.mark.parametrize(
    ("name", "tied", "kv_bias"),
    [
        ("Llama-2-7B", False, False),
        ("Llama-3.1-8B", False, False),
        ("Llama-3-70B", False, False),
        ("Llama-3.1-405B", False, False),
        ("Llama-3.2-1B", True, False),
        ("Llama-3.2-3B", True, False),
        ("Mistral-7B-v0.1", False, False),
        ("Mistral-Small-24B", False, False),
        ("SmolLM2-135M", True, False),
        ("SmolLM2-360M", True, False),
        ("SmolLM2-1.7B", True, False),
        ("Qwen2.5-7B", False, True),
        ("Phi-4", False, False),
    ],
)
def test_parameters_follow_from_the_shape(name: str, tied: bool, kv_bias: bool) -> None:
    """Llama's layers: Q and O, K and V, a gated MLP, two norms; embeddings in and out, one last norm."""
    cfg = MODELS[name]
    q_width, kv_width = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
    layer = cfg.hidden_size * (2 * q_width + 2 * kv_width + 3 * cfg.intermediate_size + 2)
    layer += (q_width + 2 * kv_width) * kv_bias
    embeddings = cfg.vocab_size * cfg.hidden_size * (1 if tied else 2)
    assert cfg.n_layers * layer + embeddings + cfg.hidden_size == cfg.n_params


def test_golden_kv_sizes() -> None:
    golden = GOLDEN["kv_cache"]
    for name, size in golden["kv_bytes_per_token"].items():
        assert kv_bytes_per_token(MODELS[name]) == size
    for name, batches in golden["max_batch_50e9"].items():
        for C, batch in batches.items():
            assert max_batch(50e9, int(C), MODELS[name]) == batch
    assert max_batch(50e9, 8192, LLAMA) == golden["sequences_reserved_at_8192"]
    assert max_batch(50e9, 1, LLAMA) == golden["tokens_in_50e9"]
    assert max_batch(50e9, 16, LLAMA) == golden["blocks_of_16_in_50e9"]


def test_published_kv_sizes() -> None:
    sizes = {"Qwen3-4B": 147456, "Qwen3-0.6B": 114688, "gpt-oss-20B": 49152, "Falcon-7B": 8192, "Gemma-3-27B": 507904}
    assert {name: kv_bytes_per_token(MODELS[name]) for name in sizes} == sizes
    assert kv_bytes_per_sequence(1, MODELS["DeepSeek-V3"]) == 70272
    assert kv_bytes_per_sequence(1, MODELS["DeepSeek-V2"]) == 69120
    assert kv_bytes_per_sequence(131072, MODELS["gpt-oss-20B"]) / 2**30 == pytest.approx(3.0, abs=0.005)


def test_ridge_point() -> None:
    assert GPUS["H100-SXM"].ridge_point == pytest.approx(GOLDEN["decode"]["ridge_point"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 0}, r"n_layers .* got 0"),
        ({"n_layers": 32.5}, r"n_layers .* got 32.5"),
        ({"head_dim": True}, r"head_dim .* got True"),
        ({"n_kv_heads": 5}, "divide n_heads = 32, got 5"),
        ({"n_params": -1}, r"n_params .* got -1"),
        ({"n_params": math.nan}, r"n_params .* got nan"),
        ({"bytes_per_weight": "2"}, r"bytes_per_weight .* got '2'"),
        ({"bytes_per_kv": 16}, "bytes, not bits.* got 16"),
        ({"sliding_window": 128}, "go together"),
        ({"n_sliding_layers": 33, "sliding_window": 1}, "at most n_layers = 32, got 33"),
        ({"rope_head_dim": 64}, "only for MLA"),
        ({"rope_head_dim": -1}, r"rope_head_dim .* got -1"),
        ({"kv_latent_dim": 0}, r"kv_latent_dim .* got 0"),
    ],
)
def test_bad_shapes_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LLAMA, **change)


def test_bad_gpus_and_requests_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bandwidth .* got 0"):
        Gpu("toy", 1e12, 0, 1e9)
    with pytest.raises(ValueError, match=r"n_steps .* got 0"):
        Request(0, 0)
    with pytest.raises(ValueError, match=r"arrival .* got -1"):
        Request(-1, 1)
    with pytest.raises(ValueError, match=r"arrival .* got 0.5"):
        Request(0.5, 1)  # type: ignore[arg-type]


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        LLAMA.n_layers = 1  # type: ignore[misc]


def test_group_size_is_query_heads_per_kv_head() -> None:
    assert LLAMA.group_size == 4
    assert MODELS["Llama-2-7B"].group_size == 1
    assert MODELS["Falcon-7B"].group_size == 71


@pytest.mark.parametrize(("m_kv", "C"), [(-1, 1), (math.nan, 1), (math.inf, 1), (1e9, 0)])
def test_max_batch_refuses_bad_input(m_kv: float, C: int) -> None:
    with pytest.raises(ValueError, match="got"):
        max_batch(m_kv, C, LLAMA)


def test_new_models_are_one_line() -> None:
    toy = ModelConfig("toy", 2, 4, 1, 4, 16, 64, 100, 1e4)
    assert kv_bytes_per_token(toy) == 32

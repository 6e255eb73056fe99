"""The decoder agrees with `transformers`, for every kind of model that it says it supports."""

from __future__ import annotations

import pytest
import torch

from lessonlib.serving import LLM, Decoder, DecoderConfig, SamplingParams, model, random_weights, tiny_config
from tests.serving.conftest import make_tiny
from tests.serving.peer import greedy, transformers_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "llama": ("llama", {}),
    "llama, untied": ("llama", {"tie_word_embeddings": False}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama, as many KV heads": ("llama", {"num_key_value_heads": 4}),
    "llama 3 rotary scaling": ("llama", {"rope_parameters": LLAMA3, "rope_theta": 500.0}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


@pytest.mark.parametrize("name", KINDS)
def test_logits_and_greedy_tokens_equal_transformers(name: str, prompts: list[list[int]]) -> None:
    pytest.importorskip("transformers", reason="the comparison needs transformers")
    kind, changes = KINDS[name]
    model = make_tiny(kind, **changes)
    peer = transformers_model(model.cfg, random_weights(model.cfg, 0, scale=0.3))
    with torch.inference_mode():
        theirs = peer(torch.tensor([prompts[-1]])).logits[0]
    torch.testing.assert_close(model.dense_logits(prompts[-1]), theirs, atol=1e-3, rtol=1e-4)
    outputs = LLM(model, block_size=8, max_batch_tokens=40).generate(prompts[:8], SamplingParams(max_tokens=24))
    assert [out.token_ids for out in outputs] == [greedy(peer, prompt, 24) for prompt in prompts[:8]]


def test_number_of_parameters_is_that_of_the_shape() -> None:
    cfg = tiny_config()
    assert sum(t.numel() for t in random_weights(cfg).values()) == cfg.shape.n_params


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"sliding_window": 64, "use_sliding_window": True}, "sliding"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_unsupported_checkpoints_are_refused(change: dict[str, object], message: str) -> None:
    fields = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}
    fields |= {"num_attention_heads": 2, "vocab_size": 8}
    with pytest.raises(ValueError, match=message):
        DecoderConfig.from_hf({**fields, **change})


def test_missing_and_misshapen_weights_are_named() -> None:
    cfg = tiny_config()
    weights = random_weights(cfg)
    with pytest.raises(ValueError, match=r"model\.norm\.weight should have shape \(64,\), and is missing"):
        Decoder(cfg, {k: v for k, v in weights.items() if k != "model.norm.weight"})
    with pytest.raises(ValueError, match=r"has shape \(63,\)"):
        Decoder(cfg, {**weights, "model.norm.weight": torch.ones(63)})


@pytest.mark.parametrize("intel", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
def test_packed_weights_give_the_same_product(
    monkeypatch: pytest.MonkeyPatch, intel: bool, dtype: torch.dtype, rows: int
) -> None:
    """Both layouts of a CPU, whichever maker's this one is."""
    monkeypatch.setattr(model, "intel", lambda: intel)
    rng = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=rng).to(dtype) for shape in ((rows, 48), (80, 48), (80,)))
    packed = model.packed(weight)
    assert packed.shape == weight.shape
    assert packed.is_mkldnn == (model.ONEDNN and not intel)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for b in (None, bias):
        expected = x.double() @ weight.double().t() + (0 if b is None else b.double())
        torch.testing.assert_close(model.linear(x, packed, b).double(), expected, atol=tolerance, rtol=0.01)
